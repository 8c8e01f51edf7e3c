//! Access lists beside the kernel's own firewall: the same rules as nftables' ruleset, without the
//! router, let the same packets pass and count as many of them.

use crate::cables::{Cables, NATIVE, PLAIN, TC};
use crate::flow_cache::stay;
use crate::lab::{Lab, SMALL, adds, host, story_over};
use crate::oracle::{Out, alike, pass};
use crate::ours::Ours;
use crate::packets::{from, generate, to};
use butterfly_router::Router;
use butterfly_router::acl::{List, Rule, Side, WITH_PORTS};
use butterfly_router::layout::Counter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::netns::Namespace;
use wire::checksum::checksum;
use wire::parse::TcpFlags;
use xdp::Mode;

const PREFIXES4: [&str; 9] = [
    "10.1.0.0/24",
    "10.1.0.2/32",
    "10.1.0.0/30",
    "203.0.113.0/24",
    "203.0.113.128/25",
    "198.51.100.0/25",
    "10.0.0.0/8",
    "10.2.0.0/16",
    "0.0.0.0/0",
];
const PREFIXES6: [&str; 9] = [
    "2001:db8:1::/64",
    "2001:db8:1::2/128",
    "2001:db8:1::/126",
    "2001:db8:f::/48",
    "2001:db8:f::7/128",
    "2001:db8:e::/112",
    "2001:db8::/32",
    "2001:db8:e::8/125",
    "::/0",
];

/// Rules that packets of `generate` meet, of all kinds.
pub fn rules(seed: u64, count: usize) -> Vec<Rule> {
    let mut rng = StdRng::seed_from_u64(seed);
    let all = std::iter::repeat_with(|| rule(&mut rng));
    // One that asks for next to nothing would decide everything.
    all.filter(|rule| asks(rule) > 1).take(count).collect()
}

/// How many things a rule asks for.
fn asks(rule: &Rule) -> usize {
    let narrow = |side: &Side| side.prefix.is_some_and(|prefix| prefix.prefix_len() > 8);
    let all = [
        narrow(&rule.source),
        narrow(&rule.destination),
        rule.protocol.is_some(),
        rule.input.is_some(),
        rule.output.is_some(),
        rule.destination.ports.is_some(),
    ];
    all.into_iter().filter(|one| *one).count()
}

fn rule(rng: &mut StdRng) -> Rule {
    let six = rng.random_bool(0.5);
    let pool = if six { &PREFIXES6 } else { &PREFIXES4 };
    let mut rule = Rule {
        allows: rng.random_bool(0.5),
        ..Rule::default()
    };
    let side = |rng: &mut StdRng| {
        let text = pool[rng.random_range(0..pool.len())];
        let prefix = rng
            .random_bool(0.6)
            .then(|| text.parse().expect("a prefix"));
        Side {
            prefix,
            ports: None,
        }
    };
    rule.source = side(rng);
    rule.destination = side(rng);
    if rng.random_bool(0.1) {
        rule.family = Some(if six { 6 } else { 4 });
    }
    let name = |rng: &mut StdRng| ["east", "west", "gone"][rng.random_range(0..3)].to_owned();
    rule.input = rng.random_bool(0.2).then(|| name(rng));
    rule.output = rng.random_bool(0.2).then(|| name(rng));
    let protocols = [6, 17, 17, 17, 1, 58, 110, 132];
    rule.protocol = rng
        .random_bool(0.7)
        .then(|| protocols[rng.random_range(0..protocols.len())]);
    if rule.protocol.is_some_and(|one| WITH_PORTS.contains(&one)) {
        let ports = |rng: &mut StdRng, least: u16, most: u16| {
            let first = rng.random_range(least..most);
            let last = rng.random_range(first..=most);
            rng.random_bool(0.5).then_some((first, last))
        };
        rule.source.ports = ports(rng, 1024, 60_000);
        rule.destination.ports = ports(rng, 0, 1024);
    }
    rule
}

/// Gives the kernel a list.
pub fn to_kernel(namespace: &Namespace, list: &List) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), list.to_nftables()).expect("a file");
    namespace
        .ok(&format!("nft -f {}", file.path().display()))
        .expect("nftables takes it");
}

/// Packets and bytes that each rule of the kernel's took.
fn kernels_counts(namespace: &Namespace) -> Vec<(u64, u64)> {
    let text = namespace.ok("nft -j list ruleset").expect("nft");
    let ruleset: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let objects = ruleset["nftables"].as_array().expect("objects");
    let expressions = objects
        .iter()
        .filter_map(|object| object["rule"]["expr"].as_array());
    let counter = |expressions: &Vec<serde_json::Value>| {
        let found = expressions.iter().find_map(|one| one.get("counter"));
        let number = |name: &str| found.and_then(|found| found[name].as_u64());
        (
            number("packets").expect("a counter"),
            number("bytes").expect("a counter"),
        )
    };
    expressions.map(counter).collect()
}

fn our_counts(ours: &Ours) -> Vec<(u64, u64)> {
    let report = ours.service.router.acl_report().expect("a list");
    let counts = report.rules.iter();
    counts.map(|(_, one)| (one.packets, one.bytes)).collect()
}

/// Packets that were judged by what the list had said of their flow.
fn by_flow(ours: &Ours) -> u32 {
    let map = ours.service.router.program().map("acl_flows");
    let map = map.expect("the map");
    let of_cpu = |cpu: u32| {
        let id = map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY);
        let id = id.expect("the map").expect("a CPU's map");
        let id = u32::from_ne_bytes(id.try_into().expect("an id"));
        let flows = MapHandle::from_map_id(id).expect("a CPU's map");
        let flows = flows.lookup(&[0; 4], MapFlags::ANY);
        let flows = flows.expect("the map").expect("a CPU's flows");
        u32::from_ne_bytes(flows[..4].try_into().expect("a word"))
    };
    (0..map.max_entries()).map(of_cpu).sum()
}

/// By the kernel's firewall, and then by ours: when no flow is known, when the router knows them,
/// and when the list does.
fn compare(modes: [Mode; 2], seed: u64, list: List, packets: usize) {
    const TIMES: u64 = 3;
    let cables = Cables { modes, ..PLAIN };
    story_over(&cables, "", async move |namespace, mut lab| {
        stay();
        let frames = generate(seed, packets);
        pass(&mut lab, &frames[..64]);
        to_kernel(namespace, &list);
        let kernel = pass(&mut lab, &frames);
        let kernels = kernels_counts(namespace);
        namespace.ok("nft flush ruleset").expect("nft");
        let mut ours = Ours::start_in(modes, &SMALL).await;
        ours.service
            .router
            .set_acl(Some(list.clone()))
            .expect("it fits");
        for _ in 0..TIMES {
            let mut fast = pass(&mut lab, &frames);
            // Before its firewall looks the kernel tells the sender of what is too big. A list that
            // is judged here has it denied without a word.
            for (ours, theirs) in fast.iter_mut().zip(&kernel) {
                if ours.0.is_empty() && ours.1.is_empty() && is_told_of_size(theirs) {
                    *ours = theirs.clone();
                }
            }
            equal(seed, &frames, &fast, &kernel);
        }
        let counted = our_counts(&ours);
        for (number, rule) in list.rules.iter().enumerate() {
            let (packets, bytes) = kernels[number];
            assert_eq!(
                counted[number],
                (packets * TIMES, bytes * TIMES),
                "rule {number}, {rule}, of seed {seed}, in {modes:?}"
            );
        }
        let taken = counted.iter().filter(|(packets, _)| *packets > 0).count();
        assert!(taken >= 4, "only {taken} rules took a packet");
        let (denied, forwarded) = (ours.count(Counter::Denied), ours.count(Counter::Forwarded));
        assert!(
            denied > 20 && forwarded > 20,
            "{denied} were denied and {forwarded} forwarded"
        );
    });
}

/// All that became of a packet is that its sender was told that it is too big.
fn is_told_of_size(out: &Out) -> bool {
    let tells = |frame: &Vec<u8>| match frame[12..14] {
        [0x08, 0x00] => frame[23] == 1 && frame[34..36] == [3, 4],
        _ => frame[20] == 58 && frame[54] == 2,
    };
    let mut all = out.0.iter().chain(&out.1).peekable();
    all.peek().is_some() && all.all(tells)
}

fn equal(seed: u64, frames: &[Vec<u8>], fast: &[Out], kernel: &[Out]) {
    for (number, frame) in frames.iter().enumerate() {
        let (ours, theirs) = (&fast[number], &kernel[number]);
        assert!(
            alike(ours, theirs),
            "frame {number} of seed {seed}: {frame:02x?}\nours: {ours:02x?}\n\
             the kernel's: {theirs:02x?}"
        );
    }
}

#[test]
fn the_same_packets_pass_as_with_nftables() {
    let lists = [
        (11, 12, true),
        (12, 60, false),
        (13, 400, true),
        (42, 200, false),
    ];
    for (seed, count, default_allows) in lists {
        for modes in [NATIVE, TC, [Mode::Native, Mode::Tc]] {
            let rules = rules(seed, count);
            let list = List {
                rules,
                default_allows,
            };
            compare(modes, seed, list, 1500);
        }
    }
}

/// Rules without what nftables' ruleset would not have: every rule takes a packet of its family.
fn small_list() -> List {
    List::parse(
        "default deny
        allow in east out west proto udp from 10.1.0.0/24 port 1024-65535 to 203.0.113.0/25
        deny proto tcp to any port 1-512
        allow from 2001:db8:1::2 to 2001:db8:f::/48
        allow ipv6 proto tcp
        allow out west from 10.1.0.2",
    )
    .expect("a list")
}

#[test]
fn nftables_rules_that_say_no_more_are_judged_here() {
    for (seed, list) in [
        (21, small_list()),
        (
            22,
            List {
                rules: rules(22, 300),
                default_allows: true,
            },
        ),
    ] {
        for modes in [NATIVE, TC] {
            let cables = Cables { modes, ..PLAIN };
            let list = list.clone();
            story_over(&cables, "", async move |namespace, mut lab| {
                let frames = generate(seed, 1500);
                to_kernel(namespace, &list);
                pass(&mut lab, &frames[..64]);
                let kernel = pass(&mut lab, &frames);
                let ours = Ours::start_in(modes, &SMALL).await;
                let report = ours.service.router.acl_report().expect("it is read");
                assert_eq!(report.hooks, ["nftables inet butterfly forward"]);
                assert_eq!(report.rules.len(), list.rules.len());
                assert_eq!(report.default_allows, list.default_allows);
                let fast = pass(&mut lab, &frames);
                equal(seed, &frames, &fast, &kernel);
                let (denied, forwarded) =
                    (ours.count(Counter::Denied), ours.count(Counter::Forwarded));
                assert!(denied > 50 && forwarded > 50, "{denied} and {forwarded}");
                // But for headers that nobody understands.
                assert!(ours.count(Counter::Firewall) < 10);
            });
        }
    }
}

/// What nftables says beyond that leaves the packets to it; without that they are judged here.
#[test]
fn nftables_rules_that_say_more_are_the_kernels() {
    story_over(&PLAIN, "", async |namespace, _| {
        let mut ours = Ours::start(&SMALL).await;
        let rules = [
            "ct state established accept",
            "tcp dport { 80, 443 } accept",
            "ip saddr != 10.1.0.2 drop",
            "ip saddr 10.1.0.2 log drop",
            "ip saddr 10.1.0.2 limit rate 10/second accept",
            "ip saddr 10.1.0.2 counter",
            "iifname \"ea*\" drop",
            "iif east drop",
            "ip dscp 3 drop",
            "ip saddr 10.1.0.2 reject",
            "ip saddr 10.1.0.2-10.1.0.9 drop",
            "meta mark 3 drop",
        ];
        let table = "table inet one { chain forward { type filter hook forward priority 0;";
        for rule in rules {
            let text = format!("{table} ip saddr 10.9.0.0/16 tcp dport 22 drop; {rule}; }}; }}");
            namespace
                .ok(&format!("nft '{text}'"))
                .unwrap_or_else(|error| panic!("{rule}: {error}"));
            let says = |ours: &mut Ours| {
                let note = "IPv4 and IPv6 are left to the kernel: nftables inet one forward";
                ours.notes().iter().any(|one| one.starts_with(note))
            };
            ours.until(rule, says).await;
            assert_eq!(ours.service.router.acl_report(), None, "{rule}");
            namespace.ok("nft flush ruleset").expect("nft");
            ours.until("no rules", |ours| ours.notes().is_empty()).await;
        }
        // Two chains that see the same packets are not one list.
        namespace
            .ok(&format!("nft '{table} ip saddr 10.9.0.0/16 drop; }}; }}'"))
            .expect("nft");
        ours.until("list", |ours| ours.service.router.acl_report().is_some())
            .await;
        let second = "table ip two { chain forward { type filter hook forward priority 1;";
        namespace
            .ok(&format!("nft '{second} tcp dport 23 drop; }}; }}'"))
            .expect("nft");
        let judged = "packets of IPv6 are judged by the rules of nftables inet one forward";
        let left =
            "IPv4 is left to the kernel: nftables ip two forward (1 rules) sees forwarded packets";
        ours.until("two chains", |ours| ours.notes() == [judged, left])
            .await;
        // A table that sleeps is not read.
        namespace
            .ok(
                "nft flush ruleset && nft 'table ip two { flags dormant; chain forward { \
                 type filter hook forward priority 1; tcp dport 23 drop; }; }'",
            )
            .expect("nft");
        ours.until("a table that sleeps", |ours| {
            ours.notes()
                .iter()
                .any(|note| note.starts_with("IPv4 is left to the kernel: nftables ip two"))
        })
        .await;
    });
}

/// Of two families by two chains.
#[test]
fn chains_of_each_family_are_one_list() {
    story_over(&PLAIN, "", async |namespace, mut lab| {
        namespace
            .ok(
                "nft 'table ip a { chain f { type filter hook forward priority 0; policy drop; \
                 ip saddr 10.1.0.2 ip daddr 203.0.113.7 udp sport 7 udp dport 9 accept; }; }' && \
                 nft 'table ip6 b { chain f { type filter hook forward priority 0; \
                 ip6 daddr 2001:db8:f::/48 meta l4proto 17 drop; }; }'",
            )
            .expect("nft");
        let ours = Ours::start(&SMALL).await;
        let report = ours.service.router.acl_report().expect("a list");
        let rules: Vec<String> = report
            .rules
            .iter()
            .map(|(rule, _)| rule.to_string())
            .collect();
        assert_eq!(
            rules,
            [
                "allow ipv4 proto udp from 10.1.0.2 port 7 to 203.0.113.7 port 9",
                "deny ipv4",
                "deny ipv6 proto udp to 2001:db8:f::/48",
            ]
        );
        assert!(report.default_allows);
        let mut passes = |to_: &str, ports: (u16, u16)| {
            lab.east.send(&to(to_).udp(ports.0, ports.1).build());
            lab.east.receive();
            lab.west.receive().len() == 1
        };
        assert!(passes("203.0.113.7", (7, 9)) && passes("203.0.113.7", (7, 9)));
        assert!(!passes("203.0.113.7", (7, 8)) && !passes("203.0.113.8", (7, 9)));
        assert!(!passes("2001:db8:f::7", (7, 9)) && passes("2001:db8:e::9", (7, 9)));
        assert_eq!(ours.count(Counter::Denied), 3);
    });
}

#[test]
fn a_list_takes_the_place_of_another_and_equal_rules_go_on_counting() {
    story_over(&PLAIN, "", async |_, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let set = |ours: &mut Ours, text: &str| {
            let list = List::parse(text).expect("a list");
            ours.service.router.set_acl(Some(list))
        };
        let mut send = |port: u16| {
            lab.east.send(&to("203.0.113.7").udp(1, port).build());
            lab.east.receive();
            lab.west.receive().len()
        };
        set(&mut ours, "default deny\nallow proto udp to any port 5").expect("a list");
        assert_eq!((send(5), send(5), send(6)), (1, 1, 0));
        let two = "default deny\nallow proto udp to any port 6\nallow proto udp to any port 5";
        set(&mut ours, two).expect("a list");
        assert_eq!((send(5), send(6), send(7)), (1, 1, 0));
        let packets = |ours: &Ours| {
            let report = ours.service.router.acl_report().expect("a list");
            let rules = report.rules.iter().map(|(_, count)| count.packets);
            rules.chain([report.default.packets]).collect::<Vec<_>>()
        };
        assert_eq!(packets(&ours), [1, 3, 2]);
        // And when nothing of the old one is on its way any more.
        ours.service.router.housekeep();
        assert_eq!(packets(&ours), [1, 3, 2]);
        // One that does not fit changes nothing.
        let names: String = (0..600).map(|n| format!("allow in gone{n}\n")).collect();
        set(&mut ours, &format!("default deny\n{names}")).expect("none of them is there");
        assert_eq!((send(5), packets(&ours)[600]), (0, 3));
        ours.service.router.set_acl(None).expect("none");
        assert_eq!((send(5), send(7)), (1, 1));
        assert_eq!(ours.service.router.acl_report(), None);
    });
}

/// What a list has said of a flow is not asked again, counts, and is over with the list.
/// Another router goes on with what this one's rules have counted and count, whatever list it has
/// had in between, and when it has taken over.
#[test]
fn equal_rules_of_another_router_go_on_counting() {
    story_over(&PLAIN, "", async |_, mut lab| {
        stay();
        let mut ours = Ours::start(&SMALL).await;
        let list = |text: &str| List::parse(text).expect("a list");
        let text = "default deny\nallow proto udp to any port 9\nallow proto udp to any port 7";
        let router = &mut ours.service.router;
        router.set_acl(Some(list(text))).expect("it fits");
        let (kept, keep) = std::sync::mpsc::channel();
        router.keep_rules(move |rules| kept.send(rules).expect("the test waits"));
        let mut send = |port: u16, count: usize| {
            for _ in 0..count {
                lab.east.send(&to("203.0.113.7").udp(5, port).build());
                assert_eq!(lab.west.receive().len(), 1);
            }
        };
        send(9, 7);
        let handed = keep.try_iter().last().flatten().expect("it has rules");

        let mut next = Router::new(&SMALL).expect("another one");
        next.take_rules(handed).expect("it is this program's");
        next.set_acl(Some(list("default allow\ndeny proto 99")))
            .expect("it fits");
        let text = "default deny\nallow proto udp to any port 7\nallow proto udp to any port 9";
        next.set_acl(Some(list(text))).expect("it fits");
        let counts = |router: &Router| -> Vec<u64> {
            let report = router.acl_report().expect("a list");
            let rules = report.rules.iter();
            rules.map(|(_, count)| count.packets).collect()
        };
        assert_eq!(counts(&next), [0, 7]);
        // The one before is still the one that forwards.
        next.housekeep();
        send(7, 2);
        send(9, 1);
        assert_eq!(counts(&next), [2, 8]);
        let (kept, keep) = std::sync::mpsc::channel();
        next.keep_rules(move |rules| kept.send(rules).expect("the test waits"));
        next.housekeep();
        // What is counted there from now on is nobody's.
        send(9, 1);
        assert_eq!(counts(&next), [2, 8]);
        let handed = keep.try_iter().last().flatten().expect("it has rules");

        let mut third = Router::new(&SMALL).expect("a third one");
        third.take_rules(handed).expect("it is this program's");
        third.set_acl(Some(list(text))).expect("it fits");
        assert_eq!(counts(&third), [2, 8]);
        // Without a list it is over.
        third.set_acl(None).expect("none");
        third.keep_rules(|_| ());
        third.housekeep();
        third.set_acl(Some(list(text))).expect("it fits");
        assert_eq!(counts(&third), [0, 0]);
    });
}

#[test]
fn a_flow_is_judged_once_and_anew_by_another_list() {
    const PACKETS: usize = 20;
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, "", async move |_, mut lab| {
            stay();
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let mut passed = |dst: &str, ports: (u16, u16)| {
                let frame = to(dst).udp(ports.0, ports.1).build();
                let mut passed = 0;
                for _ in 0..PACKETS {
                    lab.east.send(&frame);
                    lab.east.receive();
                    passed += lab.west.receive().len();
                }
                passed
            };
            for dst in ["203.0.113.7", "2001:db8:f::7"] {
                let rule = |line: &str| format!("default deny\n{line}\nallow proto tcp");
                let lists = [
                    (rule("allow proto udp to any port 9"), PACKETS, 0),
                    (rule("deny proto udp to any port 9"), 0, 0),
                    (rule("deny proto udp to any port 7\nallow"), PACKETS, 1),
                    (rule("allow proto udp to any port 7"), 0, 2),
                ];
                for (text, expected, slot) in lists {
                    let list = List::parse(&text).expect("a list");
                    let router = &mut ours.service.router;
                    // Rules that are equal count from zero.
                    router.set_acl(None).expect("none");
                    router.set_acl(Some(list)).expect("it fits");
                    let before = by_flow(&ours);
                    assert_eq!(passed(dst, (5, 9)), expected, "{text}");
                    // All but the one that the flow cache does not know and the one that the list
                    // has to say something of; of a flow that is denied no packet is forwarded.
                    if expected > 0 {
                        assert_eq!(by_flow(&ours) - before, PACKETS as u32 - 2, "{text}");
                    }
                    let report = ours.service.router.acl_report().expect("a list");
                    let counts = report.rules.iter().map(|(_, count)| count.packets);
                    let counts: Vec<u64> = counts.chain([report.default.packets]).collect();
                    assert_eq!(counts[slot], PACKETS as u64, "{text}: {counts:?}");
                }
            }
        });
    }
}

/// Flows that differ in one thing that a list asks for are two, and fragments go by no flow.
#[test]
fn a_flow_is_all_that_a_list_looks_at() {
    story_over(&PLAIN, "", async |_, mut lab| {
        stay();
        let mut ours = Ours::start(&SMALL).await;
        let text = "default deny
            allow proto udp from 10.1.0.2 port 5 to 203.0.113.7 port 9
            allow proto udp from 2001:db8:1::2 port 5 to 2001:db8:f::7 port 9";
        let list = List::parse(text).expect("a list");
        ours.service.router.set_acl(Some(list)).expect("it fits");
        let mut passes = |frame: &[u8]| {
            lab.east.send(frame);
            lab.east.receive();
            !lab.west.receive().is_empty()
        };
        for (src, other, dst) in [
            ("10.1.0.2", "10.1.0.3", "203.0.113.7"),
            ("2001:db8:1::2", "2001:db8:1::3", "2001:db8:f::7"),
        ] {
            let packet = |src: &str| from(src, dst.parse().expect("an address"));
            let allowed = packet(src).udp(5, 9).build();
            for _ in 0..4 {
                assert!(passes(&allowed));
            }
            for _ in 0..4 {
                assert!(!passes(&packet(src).udp(5, 8).build()), "another port");
                assert!(!passes(&packet(src).udp(6, 9).build()), "another port");
                assert!(!passes(&packet(src).tcp(5, 9, TcpFlags::SYN).build()));
                assert!(!passes(&packet(other).udp(5, 9).build()), "from {other}");
                assert!(passes(&allowed));
            }
        }
        assert!(by_flow(&ours) > 0);
    });
}

/// What is left to the kernel is judged, and what is not to be forwarded is not.
#[test]
fn what_is_left_to_the_kernel_is_judged() {
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, "", async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let list = "default allow\ndeny proto udp to any port 9";
            let list = List::parse(list).expect("a list");
            ours.service.router.set_acl(Some(list)).expect("a list");
            let mut out = |frame: Vec<u8>| {
                lab.east.send(&frame);
                (lab.east.receive().len(), lab.west.receive().len())
            };
            let options = |port| {
                to("203.0.113.7")
                    .ip_options(&[1, 1, 1, 0])
                    .udp(1, port)
                    .build()
            };
            assert_eq!(out(options(8)), (0, 1));
            assert_eq!(out(options(9)), (0, 0));
            // Too long, and to be cut by the kernel.
            let long = |port| to("203.0.113.7").udp(1, port).payload(&[0; 1440]).build();
            assert_eq!(out(long(8)), (0, 2));
            assert_eq!(out(long(9)), (0, 0));
            // To this host: answered that nobody is there.
            let own = to("10.1.0.1").udp(1, 9).build();
            assert_eq!(out(own), (1, 0));
            // A hop too few: the kernel says so.
            let last = to("203.0.113.7").ttl(1).udp(1, 9).build();
            assert_eq!(out(last), (1, 0));
            // To this host's address on the link, answered; and to another's there.
            let on_link = |address: &str, port| to(address).udp(1, port).build();
            assert_eq!(out(on_link("fe80::ff:fe00:e", 9)), (1, 0));
            assert_eq!(out(on_link("fe80::2", 8)), (1, 0));
            assert_eq!(out(on_link("fe80::2", 9)), (0, 0));
            // From an address of the link: it may go back there.
            let source = |address: &str, port| {
                let to = address.parse().expect("an address");
                from("fe80::2", to).udp(1, port).build()
            };
            assert_eq!(out(source("2001:db8:1::3", 8)), (1, 0));
            assert_eq!(out(source("2001:db8:1::3", 9)), (0, 0));
            assert_eq!(ours.count(Counter::Denied), 4);
        });
    }
}

/// Nor do tags that are no VLAN's, sources and destinations that Linux forwards since 5.3, or
/// headers that are not in the buffer's first part hide a packet from the list.
#[test]
fn nothing_hides_what_is_left_to_the_kernel() {
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        let setup = "ip route add 0.0.0.0/1 via 10.2.0.2";
        story_over(&cables, setup, async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let set = |ours: &mut Ours, list: &str| {
                let list = List::parse(list).expect("a list");
                ours.service.router.set_acl(Some(list)).expect("a list");
            };
            let mut out = |frame: &[u8]| {
                lab.east.send(frame);
                assert_eq!(lab.east.receive(), Vec::<Vec<u8>>::new());
                lab.west.receive().len()
            };
            let tagged = |tags: &[u8], port| {
                let frame = to("203.0.113.7").udp(1, port).build();
                [&frame[..12], tags, &frame[12..]].concat()
            };
            let priority = [0x81, 0, 0xe0, 0];
            let service = [0x88, 0xa8, 0, 0];
            let named = |src: &str, dst: &str, port| {
                from(src, dst.parse().expect("an address"))
                    .udp(1, port)
                    .build()
            };
            let frames = |port| {
                [
                    ("a priority tag", tagged(&priority, port)),
                    ("a service tag", tagged(&service, port)),
                    ("two", tagged(&[service, priority].concat(), port)),
                    ("from 0.0.0.0/8", named("0.1.2.3", "203.0.113.7", port)),
                    ("to 0.0.0.0/8", named("10.1.0.2", "0.1.2.3", port)),
                ]
            };
            for ((name, allowed), (_, denied)) in frames(8).into_iter().zip(frames(9)) {
                ours.service.router.set_acl(None).expect("none");
                assert_eq!((out(&allowed), out(&denied)), (1, 1), "{name}: the kernel");
                set(&mut ours, "default allow\ndeny proto udp to any port 9");
                assert_eq!((out(&allowed), out(&denied)), (1, 0), "{name}");
            }
            assert_eq!(ours.count(Counter::Denied), 5);
            // More than are read here.
            let three = tagged(&[priority; 3].concat(), 8);
            assert_eq!(out(&three), 0);
            assert_eq!(ours.count(Counter::Denied), 6);
            ours.service.router.set_acl(None).expect("none");
            assert_eq!(out(&three), 1);
            set(&mut ours, "default allow\ndeny proto udp to any port 9");

            // Options of 40 bytes, of a packet that TAP takes in pieces, the first of which ends
            // with IP's fixed header.
            let mut in_pieces = |port| {
                let packet = to("203.0.113.7").ip_options(&[1; 40]).udp(1, port);
                let frame = packet.payload(&[0; 4200]).build();
                lab.east.send_as_it_is(&frame, 34);
                lab.west.receive().len()
            };
            assert!(in_pieces(8) > 1);
            assert_eq!(in_pieces(9), 0);
        });
    }
}

/// Nor do options that have this host send on what is sent to it, by a way that no rule has seen.
#[test]
fn no_source_route_passes_a_list() {
    let setup = "sysctl -qw net.ipv4.conf.all.accept_source_route=1 \
                 net.ipv4.conf.east.accept_source_route=1";
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, setup, async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let mut out = |options: &[u8]| {
                let frame = to("10.1.0.1").ip_options(options).udp(1, 8).build();
                lab.east.send(&frame);
                (lab.east.receive().len(), lab.west.receive().len())
            };
            let routes = [
                [131, 7, 4, 203, 0, 113, 7, 0],
                [137, 7, 4, 10, 2, 0, 2, 0],
                [1, 131, 7, 4, 203, 0, 113, 7],
            ];
            for options in &routes {
                assert_eq!(out(options), (0, 1), "the kernel: {options:?}");
            }
            let list = List::parse("default allow\ndeny proto udp to any port 9");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            for options in &routes {
                assert_eq!(out(options), (0, 0), "{options:?}");
            }
            assert_eq!(ours.count(Counter::Denied), 3);
            // Others, to this host: answered that nobody is there. A record of the way, with room
            // for one address.
            assert_eq!(out(&[7, 7, 4, 131, 137, 131, 137, 0]), (1, 0));
            assert_eq!(out(&[1, 1, 1, 0]), (1, 0));
            assert_eq!(ours.count(Counter::Denied), 3);
        });
    }
}

/// Nor a header in front of the protocol that a policy rule asks for, by which the kernel takes
/// another way.
#[test]
fn a_policy_rule_s_way_is_judged_behind_extension_headers() {
    let setup = "ip -6 rule add pref 100 ipproto udp table 77
        ip -6 route add 2001:db8:f::/48 via 2001:db8:1::3 table 77";
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, setup, async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let packet = to("2001:db8:f::7").extension(60, &[0; 6]).udp(1, 8);
            let mut out = || {
                lab.east.send(&packet.build());
                (lab.east.receive().len(), lab.west.receive().len())
            };
            assert_eq!(out(), (1, 0), "the kernel");
            let list = List::parse("default allow\ndeny out east").expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            assert_eq!(out(), (0, 0));
            assert_eq!(ours.count(Counter::Denied), 1);
        });
    }
}

/// What a stranger has told of a way's MTU, and the smallest MTU of any route, which is compared
/// where the kernel looks up, let nothing pass: the kernel goes by neither when it forwards. What
/// is too big and denied gets no answer.
#[test]
fn no_length_hides_what_is_left_to_the_kernel() {
    let setup = "ip rule add pref 100 from 10.1.0.9 table 77
        ip -6 rule add pref 100 from 2001:db8:1::9 table 77
        ip -6 route add 2001:db8:aa::/64 via 2001:db8:2::2 mtu 1280";
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, setup, async move |namespace, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            // Fragmentation needed, about an answer of this host's to an echo.
            let about = from("10.2.0.1", "203.0.113.7".parse().expect("an address"));
            let about = about.echo_reply(1, 1).build();
            let told = to("10.1.0.1").icmp(3, 4, 600).payload(&about[14..]);
            lab.east.send(&told.build());
            let route = namespace.ok("ip route get 203.0.113.7").expect("a route");
            assert!(route.contains("mtu 600"), "it is believed: {route}");

            let mut out = |frame: Vec<u8>| {
                lab.east.send(&frame);
                (lab.east.receive().len(), lab.west.receive().len())
            };
            let whole = |dst: &str, port, len| {
                let packet = to(dst).dont_fragment().udp(1, port);
                packet.payload(&vec![0; len])
            };
            let options = |port| {
                let packet = whole("203.0.113.7", port, 900);
                packet.ip_options(&[1, 1, 1, 0]).build()
            };
            let four = |port| whole("203.0.113.8", port, 1322).build();
            let six = |port| whole("2001:db8:f::7", port, 1272).build();
            for frame in [options(9), four(9), six(9)] {
                assert_eq!(out(frame.clone()), (0, 1), "the kernel: {frame:02x?}");
            }
            assert_eq!(
                (ours.count(Counter::Options), ours.count(Counter::TooBig)),
                (1, 2)
            );
            let list = List::parse("default allow\ndeny proto udp to any port 9");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            for frame in [options(8), four(8), six(8)] {
                assert_eq!(out(frame.clone()), (0, 1), "allowed: {frame:02x?}");
            }
            for frame in [options(9), four(9), six(9)] {
                assert_eq!(out(frame.clone()), (0, 0), "denied: {frame:02x?}");
            }
            assert_eq!(ours.count(Counter::Denied), 3);
            // Larger than the interface takes: for no rule to count.
            for dst in ["203.0.113.7", "2001:db8:f::7"] {
                let large = |port| whole(dst, port, 1390).build();
                assert_eq!((out(large(8)), out(large(9))), ((1, 0), (0, 0)), "{dst}");
            }
            assert_eq!(ours.count(Counter::Denied), 3);
            let report = ours.service.router.acl_report().expect("a list");
            assert_eq!(report.rules[0].1.packets, 3);
        });
    }
}

/// IPv6 is forwarded from an interface of which forwarding is off, if it is on for all, and where
/// it is off for all, if the interface forces it (Linux 6.17): no matter to the list, which goes by
/// the way that there is, and leaves alone what is for this host.
#[test]
fn forwarding_that_is_off_hides_nothing_of_ipv6() {
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        let setup = "sysctl -qw net.ipv6.conf.east.forwarding=0";
        story_over(&cables, setup, async move |namespace, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let mut out = |frame: &[u8]| {
                lab.east.send(frame);
                (lab.east.receive().len(), lab.west.receive().len())
            };
            let plain = |port| to("2001:db8:f::7").udp(1, port);
            let options = |port| plain(port).extension(0, &[1, 4, 0, 0, 0, 0]).build();
            let own = to("2001:db8:1::1").udp(1, 9).build();
            assert_eq!(out(&options(9)), (0, 1), "the kernel");
            let list = List::parse("default deny\nallow out west proto udp to any port 8");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            let passed = (out(&options(8)), out(&options(9)), out(&own));
            assert_eq!(passed, ((0, 1), (0, 0), (1, 0)));

            namespace
                .ok("sysctl -qw net.ipv6.conf.all.forwarding=0")
                .expect("off for all");
            let force = "sysctl -qw net.ipv6.conf.east.force_forwarding=1";
            if !namespace.succeeds(force).expect("a shell") {
                println!("skipped: this kernel cannot force an interface's forwarding");
                return;
            }
            let note = "IPv6 is not forwarded from east: its forwarding is off";
            ours.until("note", |ours| ours.notes().contains(&note.to_owned()))
                .await;
            let [allowed, denied] = [8, 9].map(|port| plain(port).build());
            let passed = (out(&allowed), out(&denied), out(&own));
            assert_eq!(passed, ((0, 1), (0, 0), (1, 0)), "forced");
        });
    }
}

/// What goes nowhere by its destination, and somewhere by a mark that nftables puts on it, is
/// judged; what is for this host reaches it.
#[test]
fn what_is_forwarded_by_a_mark_is_judged() {
    let setup = "ip rule add pref 100 fwmark 7 table 77; ip -6 rule add pref 100 fwmark 7 table 77
        ip route add 192.0.2.0/24 via 10.2.0.2 table 77
        ip route add 192.0.3.0/24 via 10.2.0.2 table 77; ip route add prohibit 192.0.3.0/24
        ip -6 route add 2001:db8:aa::/64 via 2001:db8:2::2 table 77
        ip -6 route add 2001:db8:bb::/64 via 2001:db8:2::2 table 77
        ip -6 route add prohibit 2001:db8:bb::/64
        nft 'table inet one { chain marks { type filter hook prerouting priority mangle; \
            meta mark set 7; }; }'";
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, setup, async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let list = List::parse("default allow\ndeny proto udp to any port 9");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            let mut out = |dst: &str, port| {
                lab.east.send(&to(dst).udp(1, port).build());
                (lab.east.receive().len(), lab.west.receive().len())
            };
            for dst in ["192.0.2.1", "192.0.3.1", "2001:db8:aa::1", "2001:db8:bb::1"] {
                assert_eq!((out(dst, 8), out(dst, 9)), ((0, 1), (0, 0)), "{dst}");
            }
            for own in ["10.1.0.1", "10.2.0.1", "2001:db8:1::1", "2001:db8:2::1"] {
                assert_eq!(out(own, 9), (1, 0), "{own}");
            }
            assert_eq!(ours.count(Counter::Denied), 4);
        });
    }
}

/// Segments of TCP that are more than 64 KiB together have no length in IPv4's header, and whoever
/// has the other end of a TAP device may say so of fewer.
#[test]
fn segments_without_a_length_are_judged() {
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, "", async move |_, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let segments = |port| {
                let packet = to("203.0.113.7").tcp(1, port, TcpFlags::ACK);
                let mut frame = packet.payload(&[0; 2000]).partial_checksum().build();
                // Length and checksum of IP's header.
                frame[16..18].fill(0);
                frame[24..26].fill(0);
                let sum = checksum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
                frame
            };
            let mut out = |port| {
                lab.east.send_segments(&segments(port), 1000);
                lab.west.receive().len()
            };
            if out(9) == 0 {
                println!("skipped: this kernel forwards no such segments, as Linux 6.3 does");
                return;
            }
            assert_eq!(ours.count(Counter::Beyond), 1);
            let list = List::parse("default allow\ndeny proto tcp to any port 9");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("it fits");
            assert_eq!(out(9), 0);
            assert_eq!(ours.count(Counter::Denied), 1);
            // XDP does not see what it is, and has no ports of it.
            assert_eq!(out(8), if modes == TC { 2 } else { 0 });
        });
    }
}

/// A first fragment of IPv6 that its headers fill has no ports in it, and the next one, which has
/// them, is any later fragment: what denies by ports takes the first one. nftables lets both pass,
/// and a list that is nftables' does the same.
#[test]
fn a_first_fragment_without_its_ports_is_denied_by_ports() {
    const LIST: &str = "default allow\ndeny proto udp to any port 9";
    for modes in [NATIVE, TC] {
        let cables = Cables { modes, ..PLAIN };
        story_over(&cables, "", async move |namespace, mut lab| {
            let mut ours = Ours::start_in(modes, &SMALL).await;
            let mut out = |frame: &[u8]| {
                lab.east.send(frame);
                lab.west.receive().len()
            };
            // Offset and flags, and a number.
            let fragment = |at: u8| to("2001:db8:f::7").extension(44, &[0, at, 0, 0, 0, 7]);
            let first = |port| fragment(1).extension(60, &[1, 4, 0, 0, 0, 0]).udp(1, port);
            let with_ports = |port| first(port).build();
            let mut without = with_ports(9);
            let headers = 8 + 8;
            without.truncate(14 + 40 + headers);
            without[18..20].copy_from_slice(&(headers as u16).to_be_bytes());
            let later = fragment(8).udp(1, 9).build();
            assert_eq!(out(&without), 1, "without a list");

            let list = List::parse(LIST).expect("a list");
            let of_tcp = List::parse("default allow\ndeny proto tcp to any port 9");
            let of_tcp = of_tcp.expect("a list");
            ours.service.router.set_acl(Some(of_tcp)).expect("it fits");
            assert_eq!(out(&without), 1, "it is of another protocol");
            let router = &mut ours.service.router;
            router.set_acl(Some(list.clone())).expect("it fits");
            assert_eq!((out(&with_ports(8)), out(&with_ports(9))), (1, 0));
            assert_eq!((out(&without), out(&later)), (0, 1));
            let allows = List::parse("default deny\nallow proto udp to any port 9");
            let allows = allows.expect("a list");
            ours.service.router.set_acl(Some(allows)).expect("it fits");
            assert_eq!((out(&with_ports(9)), out(&without)), (1, 0));

            ours.service.router.set_acl(None).expect("none");
            to_kernel(namespace, &list);
            ours.until("nftables' list", |ours| {
                ours.service.router.acl_report().is_some()
            })
            .await;
            assert_eq!((out(&with_ports(8)), out(&with_ports(9))), (1, 0));
            assert_eq!((out(&without), out(&later)), (1, 1));
        });
    }
}

/// An own address of this host and one of its loopback as a source, which the kernel takes with
/// `accept_local` and `route_localnet`, are judged; what it refuses by itself counts for no rule.
#[test]
fn sources_that_the_kernel_was_told_to_take_are_judged() {
    for told in [true, false] {
        let setup = if told {
            "sysctl -qw net.ipv4.conf.east.accept_local=1 net.ipv4.conf.east.route_localnet=1"
        } else {
            ""
        };
        story_over(&PLAIN, setup, async move |_, mut lab| {
            let mut ours = Ours::start(&SMALL).await;
            let list = List::parse("default allow\ndeny proto udp to any port 9");
            let list = list.expect("a list");
            ours.service.router.set_acl(Some(list)).expect("a list");
            for source in ["10.2.0.1", "127.0.0.1"] {
                let mut out = |port| {
                    let dst = "203.0.113.7".parse().expect("an address");
                    lab.east.send(&from(source, dst).udp(1, port).build());
                    lab.west.receive().len()
                };
                assert_eq!((out(8), out(9)), (usize::from(told), 0), "{source}");
            }
            let report = ours.service.router.acl_report().expect("a list");
            assert_eq!(report.rules[0].1.packets, 0);
        });
    }
}

/// A list names more interfaces than there is room for, which is found out when they come: it stays
/// as it was, routes are followed on, and it is made anew when there is room.
#[test]
fn a_list_that_finds_no_room_any_more_stays_as_it_was() {
    story_over(&PLAIN, "", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let names: String = (0..300).map(|n| format!("allow in many{n}\n")).collect();
        let text = format!("default allow\ndeny proto udp to any port 9\n{names}");
        let list = List::parse(&text).expect("a list");
        ours.service.router.set_acl(Some(list)).expect("it fits");
        let [passes, denied] = [8, 9].map(|port| to("203.0.113.7").udp(1, port).build());
        let holds = |lab: &mut Lab, ours: &Ours, gateway| {
            let passed = adds(lab, ours, Counter::Forwarded, &passes);
            let refused = adds(lab, ours, Counter::Denied, &denied);
            passed == (1, Some(host(2, gateway).0)) && refused == (1, None)
        };
        assert!(holds(&mut lab, &ours, 2));
        let each = |change: &str| {
            let all = format!("for n in $(seq 0 299); do echo {change}; done | ip -batch -");
            namespace.ok(&all).expect("ip");
        };
        each("link add many$n type bridge");
        let is_behind = |ours: &Ours| {
            let why = ours.service.router.behind();
            why.is_some_and(|why| why.contains("more than there is room for"))
        };
        ours.until("trouble", |ours| is_behind(ours)).await;
        let note = "rules of the access list that name interfaces are as they were before";
        let notes = ours.notes();
        assert!(notes.iter().any(|said| said.starts_with(note)), "{notes:?}");
        assert!(holds(&mut lab, &ours, 2), "the list is as it was");
        let replace = "ip route replace 203.0.113.0/24 via 10.2.0.3";
        namespace.ok(replace).expect("ip");
        ours.until("route", |ours| holds(&mut lab, ours, 3)).await;
        assert!(is_behind(&ours), "{:?}", ours.notes());
        each("link del many$n");
        ours.until_within(30, "way out", |ours| ours.service.router.behind().is_none())
            .await;
        assert!(holds(&mut lab, &ours, 3));
    });
}

/// An interface that a rule names comes, and goes.
#[test]
fn names_are_followed() {
    story_over(&PLAIN, "", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let list = List::parse("default allow\ndeny out later").expect("a list");
        ours.service.router.set_acl(Some(list)).expect("a list");
        let note =
            "rules of the access list that name later take no packet: there is no such interface";
        assert_eq!(ours.notes(), [note]);
        let mut send = || {
            lab.east.send(&to("203.0.113.7").udp(1, 5).build());
            lab.east.receive();
            lab.west.receive().len()
        };
        assert_eq!(send(), 1);
        namespace
            .ok(
                "ip link set west down && ip link set west name later && ip link set later up && \
                 ip route add 203.0.113.0/24 via 10.2.0.2 && \
                 ip neigh replace 10.2.0.2 lladdr 02:00:00:00:02:02 dev later",
            )
            .expect("a name");
        let named = |ours: &mut Ours| !ours.notes().contains(&note.to_owned());
        ours.until("the name", named).await;
        assert_eq!(send(), 0);
    });
}
