//! The kernel's tables change, and so does what is done to the next packet.

use crate::lab::{Lab, SMALL, WEST, adds, host, story};
use crate::ours::Ours;
use crate::packets::{from, to};
use butterfly_router::layout::Counter;
use std::collections::HashMap;
use testkit::netns::Namespace;
use wire::parse::TcpFlags;

fn ip(namespace: &Namespace, command: &str) {
    namespace.ok(&format!("ip {command}")).expect("ip");
}

/// Where a packet to an address goes, as the neighbour's MAC address on the west's wire; with
/// whether we forwarded it.
fn way(lab: &mut Lab, ours: &Ours, dst: &str) -> (Option<[u8; 6]>, bool) {
    let frame = to(dst).udp(1000, 2000).payload(b"which way").build();
    let (forwarded, mac) = adds(lab, ours, Counter::Forwarded, &frame);
    (mac, forwarded > 0)
}

#[test]
fn routes_and_neighbours_are_followed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let fast = |n| (Some(host(2, n).0), true);
        for (dst, family) in [("203.0.113.7", "-4"), ("2001:db8:f::7", "-6")] {
            let (net, gateway) = if family == "-4" {
                ("203.0.113.0/24", "10.2.0")
            } else {
                ("2001:db8:f::/48", "2001:db8:2:")
            };
            let gateway = |n: u8| {
                if family == "-4" {
                    format!("{gateway}.{n}")
                } else {
                    format!("{gateway}:{n}")
                }
            };
            assert_eq!(way(&mut lab, &ours, dst), fast(2));
            ip(
                namespace,
                &format!("{family} route replace {net} via {}", gateway(3)),
            );
            ours.until("other gateway", |ours| way(&mut lab, ours, dst) == fast(3))
                .await;
            ip(
                namespace,
                &format!(
                    "neigh change {} lladdr 02:00:00:00:02:99 dev west",
                    gateway(3)
                ),
            );
            ours.until("other address", |ours| {
                way(&mut lab, ours, dst) == fast(0x99)
            })
            .await;
            ip(
                namespace,
                &format!(
                    "{family} route add {}/{} via {}",
                    dst,
                    if family == "-4" { 32 } else { 128 },
                    gateway(4)
                ),
            );
            ours.until("host route", |ours| way(&mut lab, ours, dst) == fast(4))
                .await;
            ip(
                namespace,
                &format!(
                    "{family} route del {}/{}",
                    dst,
                    if family == "-4" { 32 } else { 128 }
                ),
            );
            ours.until("network again", |ours| {
                way(&mut lab, ours, dst) == fast(0x99)
            })
            .await;
            ip(namespace, &format!("{family} route del {net}"));
            ours.until("no route", |ours| way(&mut lab, ours, dst) == (None, false))
                .await;
            ip(
                namespace,
                &format!("{family} route add default via {}", gateway(5)),
            );
            ours.until("default route", |ours| way(&mut lab, ours, dst) == fast(5))
                .await;
        }
        // A neighbour that is not known any more is the kernel's to find.
        ip(namespace, "neigh del 10.2.0.5 dev west");
        ours.until("question", |ours| !way(&mut lab, ours, "203.0.113.7").1)
            .await;
        ip(
            namespace,
            "neigh replace 10.2.0.5 lladdr 02:00:00:00:02:05 dev west",
        );
        ours.until("answer", |ours| {
            way(&mut lab, ours, "203.0.113.7") == fast(5)
        })
        .await;
        // An interface that goes down takes its routes with it.
        ip(namespace, "link set west down");
        ours.until("no link", |ours| !way_down(&mut lab, ours))
            .await;
    });
}

fn way_down(lab: &mut Lab, ours: &Ours) -> bool {
    let before = ours.count(Counter::Forwarded);
    lab.east.send(&to("203.0.113.7").udp(1, 2).build());
    ours.count(Counter::Forwarded) > before
}

/// A route is told to be a blackhole while its next-hop object is one; when that becomes another,
/// nothing is told of the route.
#[test]
fn a_route_whose_object_is_no_blackhole_any_more() {
    let setup = "sysctl -qw net.ipv4.nexthop_compat_mode=0
        ip nexthop add id 7 blackhole; ip route add 192.0.2.0/24 nhid 7
        ip -6 nexthop add id 8 blackhole; ip -6 route add 2001:db8:aa::/48 nhid 8";
    story(setup, async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        for (id, gateway, dst) in [
            (7, "10.2.0.4", "192.0.2.7"),
            (8, "2001:db8:2::4", "2001:db8:aa::7"),
        ] {
            let frame = to(dst).udp(1, 2).build();
            let dropped = adds(&mut lab, &ours, Counter::Blackhole, &frame);
            assert_eq!(dropped, (1, None), "{dst}");
            let replace = format!("nexthop replace id {id} via {gateway} dev west");
            ip(namespace, &replace);
            ours.until("gateway", |ours| {
                way(&mut lab, ours, dst) == (Some(host(2, 4).0), true)
            })
            .await;
        }
    });
}

/// On an interface without ARP a neighbour that was written down has its own address, and all
/// others have the interface's.
#[test]
fn a_neighbour_that_is_written_down_where_there_is_no_arp() {
    let setup = "ip link set west arp off
        ip neigh replace 10.2.0.2 lladdr 02:00:00:00:02:02 dev west nud permanent
        ip neigh replace 2001:db8:2::2 lladdr 02:00:00:00:02:02 dev west nud permanent";
    story(setup, async |namespace, mut lab| {
        let cases = [
            ("203.0.113.7", host(2, 2)),
            ("10.2.0.2", host(2, 2)),
            ("10.2.0.9", WEST),
            ("2001:db8:f::7", host(2, 2)),
            ("2001:db8:2::2", host(2, 2)),
            ("2001:db8:2::9", WEST),
        ];
        let kernel = cases.map(|(dst, _)| {
            lab.east.send(&to(dst).udp(1000, 2000).build());
            lab.west.receive().first().map(|frame| frame[..6].to_vec())
        });
        assert_eq!(kernel, cases.map(|(_, mac)| Some(mac.0.to_vec())));
        let mut ours = Ours::start(&SMALL).await;
        for (dst, mac) in cases {
            assert_eq!(way(&mut lab, &ours, dst), (Some(mac.0), true), "{dst}");
        }
        // Taken away, it is as all others.
        ip(namespace, "neigh del 10.2.0.2 dev west");
        ours.until("none written down", |ours| {
            way(&mut lab, ours, "203.0.113.7") == (Some(WEST.0), true)
        })
        .await;
    });
}

/// What cannot be written is said and tried again: an interface is refused and leaves nothing, and
/// all else is followed.
#[test]
fn what_cannot_be_written_ends_nothing() {
    let setup = "ip link add spare type veth peer name other && ip link set spare up";
    story(setup, async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let map = ours.service.router.program().map("interfaces");
        map.expect("the map").freeze().expect("it takes no more");
        let refused = ours.service.add("spare", &mut ours.attached, None).await;
        refused.expect_err("it cannot be written");
        assert!(ours.service.router.interface_named("spare").is_none());
        let spare = namespace.ifindex("spare").expect("its index");
        assert_eq!(ours.attached.mode(spare), None);

        assert_eq!(ours.service.router.behind(), None);
        namespace
            .ok("sysctl -qw net.ipv4.conf.east.forwarding=0")
            .expect("sysctl");
        ours.until("trouble", |ours| ours.service.router.behind().is_some())
            .await;
        let note = "not all that the kernel says is in force, and it is tried again: ";
        let notes = ours.notes();
        assert!(notes.iter().any(|said| said.starts_with(note)), "{notes:?}");
        ip(
            namespace,
            "-6 route replace 2001:db8:f::/48 via 2001:db8:2::3",
        );
        ours.until("other gateway", |ours| {
            way(&mut lab, ours, "2001:db8:f::7") == (Some(host(2, 3).0), true)
        })
        .await;
    });
}

/// Loose reverse path filtering is strict where an interface has no address, also where the kernel
/// looks routes up.
#[test]
fn an_interface_without_an_address_takes_sources_of_its_own_alone() {
    for rule in ["", "ip rule add pref 100 from 192.0.2.0/24 table 77"] {
        let setup = format!("sysctl -qw net.ipv4.conf.all.rp_filter=2\n{rule}");
        story(&setup, async |namespace, mut lab| {
            let frame = from("203.0.113.9", "198.51.100.9".parse().expect("an address"));
            let frame = frame.udp(1000, 2000).build();
            let kernels = |lab: &mut Lab| {
                lab.east.send(&frame);
                lab.west.receive().len()
            };
            assert_eq!(kernels(&mut lab), 1, "the kernel takes it");
            let mut ours = Ours::start(&SMALL).await;
            let fast = (1, Some(host(2, 3).0));
            assert_eq!(adds(&mut lab, &ours, Counter::Forwarded, &frame), fast);
            ip(namespace, "addr del 10.1.0.1/24 dev east");
            ours.until("source refused", |ours| {
                adds(&mut lab, ours, Counter::Source, &frame) == (1, None)
            })
            .await;
            ip(namespace, "addr add 10.1.0.1/24 dev east");
            ours.until("source taken", |ours| {
                adds(&mut lab, ours, Counter::Forwarded, &frame) == fast
            })
            .await;
            ip(namespace, "addr del 10.1.0.1/24 dev east");
            drop(ours);
            assert_eq!(kernels(&mut lab), 0, "as the kernel");
        });
    }
}

/// An interface that is renamed is the one that rules of its new name are for.
#[test]
fn a_rule_for_an_interface_s_new_name_takes_effect() {
    let setup = "ip route add 203.0.113.0/24 via 10.2.0.4 table 9
        ip rule add pref 50 iif wan0 table 9";
    story(setup, async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let dst = "203.0.113.7";
        assert_eq!(way(&mut lab, &ours, dst), (Some(host(2, 2).0), true));
        ip(namespace, "link set east down");
        ip(namespace, "link set east name wan0");
        ip(namespace, "link set wan0 up");
        ours.until("the other table", |ours| {
            way(&mut lab, ours, dst) == (Some(host(2, 4).0), true)
        })
        .await;
    });
}

/// An interface goes, and before that is known here a packet is to leave by it.
#[test]
fn what_cannot_be_sent_is_counted() {
    story("", async |namespace, mut lab| {
        let ours = Ours::start(&SMALL).await;
        for dst in ["203.0.113.7", "2001:db8:f::7"] {
            assert!(way(&mut lab, &ours, dst).1);
        }
        ip(namespace, "link del west");
        for (count, dst) in [(1, "203.0.113.7"), (2, "2001:db8:f::7")] {
            let forwarded = ours.count(Counter::Forwarded);
            lab.east
                .send(&to(dst).udp(1000, 2000).payload(b"too late").build());
            assert_eq!(ours.count(Counter::Unsent), count);
            assert_eq!(ours.count(Counter::Forwarded), forwarded);
        }
    });
}

#[test]
fn flows_spread_by_weight_and_stay() {
    let setup = "ip route add 192.0.2.0/24 nexthop via 10.2.0.2 weight 1 nexthop via 10.2.0.3 \
        weight 3
        ip -6 route add 2001:db8:aa::/48 nexthop via 2001:db8:2::2 weight 1 nexthop via \
        2001:db8:2::3 weight 3";
    story(setup, async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        for (src, net) in [("10.1.0.", "192.0.2."), ("2001:db8:1::", "2001:db8:aa::")] {
            let spread = |lab: &mut Lab, ports: bool| {
                let mut ways: HashMap<[u8; 6], u32> = HashMap::new();
                for n in 0..400u16 {
                    let (source, last) = if ports {
                        (2, 1)
                    } else {
                        (2 + n % 20, 1 + n / 20)
                    };
                    let packet = from(
                        &format!("{src}{source}"),
                        format!("{net}{last}").parse().expect("an address"),
                    );
                    let packet = packet.udp(1000 + n, 53).build();
                    let mut seen = Vec::new();
                    for _ in 0..2 {
                        lab.east.send(&packet);
                        seen.extend(lab.west.receive());
                    }
                    assert_eq!(seen.len(), 2);
                    assert_eq!(seen[0], seen[1], "a flow stays where it is");
                    *ways
                        .entry(seen[0][..6].try_into().expect("six bytes"))
                        .or_default() += 1;
                }
                ways
            };
            let by_address = spread(&mut lab, false);
            let less = by_address[&host(2, 2).0];
            assert!(
                (60..140).contains(&less),
                "a quarter of 400 is about 100: {by_address:?}"
            );
            assert_eq!(
                spread(&mut lab, true).len(),
                1,
                "ports do not count by default"
            );
            namespace
                .ok("sysctl -qw net.ipv4.fib_multipath_hash_policy=1 \
                     net.ipv6.fib_multipath_hash_policy=1")
                .expect("sysctl");
            ours.until("spread by ports", |_| spread(&mut lab, true).len() == 2)
                .await;
            namespace
                .ok("sysctl -qw net.ipv4.fib_multipath_hash_policy=0 \
                     net.ipv6.fib_multipath_hash_policy=0")
                .expect("sysctl");
            ours.until("spread by addresses", |_| spread(&mut lab, true).len() == 1)
                .await;
        }
    });
}

#[test]
fn a_firewall_that_looks_on_is_seen_and_obeyed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        assert!(way(&mut lab, &ours, "203.0.113.7").1);
        namespace
            .ok("nft 'add table ip filter; add chain ip filter forward \
                 { type filter hook forward priority 0; }'")
            .expect("nft");
        assert!(
            way(&mut lab, &ours, "203.0.113.7").1,
            "an empty chain that accepts changes nothing"
        );
        namespace
            .ok("nft add rule ip filter forward meta mark 0 ip daddr 203.0.113.7 drop")
            .expect("nft");
        ours.until("firewall", |ours| {
            way(&mut lab, ours, "203.0.113.7") == (None, false)
        })
        .await;
        assert_eq!(
            ours.notes(),
            [
                "IPv4 is left to the kernel: nftables ip filter forward (1 rules) sees forwarded \
                 packets"
            ]
        );
        assert!(
            way(&mut lab, &ours, "2001:db8:f::7").1,
            "IPv6 has no firewall"
        );
        assert!(ours.count(Counter::Firewall) > 0);
        namespace.ok("nft flush ruleset").expect("nft");
        ours.until("no firewall", |ours| way(&mut lab, ours, "203.0.113.7").1)
            .await;
        assert_eq!(ours.notes(), Vec::<String>::new());
    });
}

/// The kernel tells nobody of tables of the older iptables: they are looked for each second.
#[test]
fn a_table_of_the_older_iptables_is_found_and_obeyed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        assert!(way(&mut lab, &ours, "203.0.113.7").1);
        let drops = "iptables-legacy -P FORWARD DROP";
        if !namespace.succeeds(drops).expect("a shell") {
            println!("skipped: this machine has no iptables-legacy, or its kernel none of that");
            return;
        }
        ours.until("table", |ours| {
            way(&mut lab, ours, "203.0.113.7") == (None, false)
        })
        .await;
        assert_eq!(
            ours.notes(),
            ["IPv4 is left to the kernel: iptables (legacy) table filter sees forwarded packets"]
        );
        assert!(
            way(&mut lab, &ours, "2001:db8:f::7").1,
            "IPv6 has no firewall"
        );
        // What is in a table is not looked at, and it stays.
        namespace
            .ok("iptables-legacy -P FORWARD ACCEPT")
            .expect("iptables");
        assert_eq!(
            way(&mut lab, &ours, "203.0.113.7"),
            (Some(host(2, 2).0), false)
        );
    });
}

/// IPVS changes what servers behind it answer, and has no rule.
#[test]
fn what_is_at_netfilter_without_a_rule_is_found_and_obeyed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        assert!(way(&mut lab, &ours, "203.0.113.7").1);
        let directs = "ipvsadm -A -t 10.1.0.1:80 && nft list hooks | grep -q ip_vs_out_hook";
        if !namespace.succeeds(directs).expect("a shell") {
            println!("skipped: this machine has no ipvsadm, or its kernel lists no functions");
            return;
        }
        ours.until("IPVS", |ours| !way(&mut lab, ours, "203.0.113.7").1)
            .await;
        let note = "IPv4 is left to the kernel: function ip_vs_out_hook of ip_vs sees forwarded \
                    packets";
        let notes = ours.notes();
        assert!(notes.iter().any(|one| one == note), "{notes:?}");
        assert!(
            way(&mut lab, &ours, "2001:db8:f::7").1,
            "IPv6 has no service"
        );
    });
}

/// What follows connections for rules of packets to this host sees all packets, and does nothing to
/// them.
#[test]
fn a_firewall_for_this_host_alone_leaves_forwarding_here() {
    story("", async |namespace, mut lab| {
        namespace
            .ok("nft 'add table inet own; add chain inet own input \
                 { type filter hook input priority 0; }; \
                 add rule inet own input ct state established accept'")
            .expect("nft");
        let ours = Ours::start(&SMALL).await;
        for dst in ["203.0.113.7", "2001:db8:f::7"] {
            assert_eq!(way(&mut lab, &ours, dst), (Some(host(2, 2).0), true));
        }
        assert_eq!(ours.notes(), Vec::<String>::new());
    });
}

#[test]
fn a_rule_or_a_setting_takes_effect() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let fast = |n| (Some(host(2, n).0), true);
        ip(namespace, "route add 203.0.113.0/24 via 10.2.0.4 table 9");
        ip(namespace, "rule add pref 50 from 10.1.0.0/16 table 9");
        ours.until("rule", |ours| way(&mut lab, ours, "203.0.113.7") == fast(4))
            .await;
        assert_eq!(
            ours.notes(),
            ["IPv4 routes are looked up by the kernel: rule 50 asks for the source"]
        );
        ip(namespace, "rule del pref 50");
        ours.until("no rule", |ours| {
            way(&mut lab, ours, "203.0.113.7") == fast(2)
        })
        .await;
        namespace
            .ok("sysctl -qw net.ipv4.conf.east.forwarding=0")
            .expect("sysctl");
        ours.until("no forwarding", |ours| {
            way(&mut lab, ours, "203.0.113.7") == (None, false)
        })
        .await;
        ours.until("a note", |ours| {
            ours.notes() == ["IPv4 is not forwarded from east: its forwarding is off"]
        })
        .await;
    });
}

/// A rule's protocol is what is behind extension headers: nobody gets past a rule by putting one in
/// front, nor do fragments.
#[test]
fn a_rule_by_protocol_is_not_passed_by_extension_headers() {
    let setup = "ip -6 rule add pref 50 ipproto udp table 9
        ip -6 route add blackhole default table 9";
    story(setup, async |_, mut lab| {
        let ours = Ours::start(&SMALL).await;
        let packet = || to("2001:db8:f::7");
        let plain = packet().udp(1000, 2000).build();
        assert_eq!(
            adds(&mut lab, &ours, Counter::Blackhole, &plain),
            (1, None),
            "looked up here"
        );
        for kind in [60, 43, 44] {
            let hidden = packet().extension(kind, &[0; 6]).udp(1000, 2000).build();
            assert_eq!(
                adds(&mut lab, &ours, Counter::Beyond, &hidden),
                (1, None),
                "behind header {kind}"
            );
        }
        let other = packet().tcp(1000, 2000, TcpFlags::SYN).build();
        assert_eq!(
            adds(&mut lab, &ours, Counter::Forwarded, &other),
            (1, Some(host(2, 2).0))
        );
    });
}

/// The kernel drops IPv6 that comes by an interface on which IPv6 is disabled, or whose MTU is too
/// small for it.
#[test]
fn an_interface_without_ipv6_forwards_none() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        let dst = "2001:db8:f::7";
        let fast = (Some(host(2, 2).0), true);
        assert_eq!(way(&mut lab, &ours, dst), fast);
        let conf = "sysctl -qw net.ipv6.conf.east.disable_ipv6";
        for (off, on) in [
            (format!("{conf}=1"), format!("{conf}=0")),
            (
                "ip link set east mtu 1279".into(),
                "ip link set east mtu 1500".into(),
            ),
        ] {
            namespace.ok(&off).expect("off");
            ours.until("IPv6 off", |ours| way(&mut lab, ours, dst) == (None, false))
                .await;
            assert_eq!(
                ours.notes(),
                [
                    "IPv6 is not forwarded from east: it has none (disable_ipv6, or an MTU below \
                  1280)"
                ]
            );
            assert!(way(&mut lab, &ours, "203.0.113.7").1, "IPv4 is");
            namespace.ok(&on).expect("on");
            ours.until("IPv6 on", |ours| way(&mut lab, ours, dst) == fast)
                .await;
        }
    });
}

#[test]
fn a_stale_neighbour_in_use_is_confirmed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&SMALL).await;
        ip(
            namespace,
            "neigh change 10.2.0.2 lladdr 02:00:00:00:02:02 nud stale dev west",
        );
        // The kernel asks for it, because we do: delay, then probes that nobody answers here.
        ours.until("question", |ours| {
            way(&mut lab, ours, "203.0.113.7");
            let west = ours
                .service
                .router
                .snapshot()
                .link_named("west")
                .map_or(0, |link| link.index);
            let known = ours
                .service
                .router
                .snapshot()
                .neighbour(west, "10.2.0.2".parse().expect("an address"))
                .copied();
            known.is_some_and(|known| ["delay", "probe", "failed"].contains(&known.state_name()))
        })
        .await;
    });
}
