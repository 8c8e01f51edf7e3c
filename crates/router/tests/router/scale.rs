//! Tables as large as the Internet's, and routes by BGP: `make soak-router`, since each takes
//! longer than all the others.

use std::fmt::Write as _;
use std::time::Instant;

use butterfly_router::Options;
use butterfly_router::layout::Counter;
use testkit::frr::Speaker;
use testkit::netns::Namespace;

use crate::lab::{Lab, host, story};
use crate::ours::Ours;
use crate::packets::to;

/// Seconds; a busy machine adds 40,000 routes in one.
const PATIENCE: u64 = 120;
const MILLION: u32 = 1_000_000;
const OF_BGP: u32 = 10_000;

/// Gives `ip` many commands at once.
pub fn batch(namespace: &Namespace, lines: impl Iterator<Item = String>) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = lines.fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    std::fs::write(file.path(), text).expect("a file");
    namespace
        .ok(&format!("ip -batch {}", file.path().display()))
        .expect("ip -batch");
}

/// The last byte of the west's host that a packet was forwarded to the fast way; `None` for any
/// other end.
fn way(lab: &mut Lab, ours: &Ours, dst: &str) -> Option<u8> {
    let before = ours.count(Counter::Forwarded);
    lab.east
        .send(&to(dst).udp(1000, 2000).payload(b"which way").build());
    lab.east.receive();
    let out = lab.west.receive();
    let last = out
        .first()
        .filter(|_| ours.count(Counter::Forwarded) > before)?[5];
    (out[0][..6] == host(2, last).0).then_some(last)
}

fn prefixes(ours: &Ours, family: usize) -> usize {
    let report = ours.report();
    assert_eq!(
        report.notes,
        Vec::<String>::new(),
        "nothing is left to the kernel"
    );
    report.tables[family].prefixes
}

/// The network of a number: /24, and each tenth a /25 in one of its own.
fn network(n: u32) -> String {
    let [a, b, c, _] = ((16 << 24) + (n << 8)).to_be_bytes();
    format!(
        "{a}.{b}.{c}.0/{}",
        if n.is_multiple_of(10) { 25 } else { 24 }
    )
}

/// An address in it.
fn inside(n: u32) -> String {
    let [a, b, c, _] = ((16 << 24) + (n << 8)).to_be_bytes();
    format!("{a}.{b}.{c}.1")
}

fn gateway(n: u32) -> u8 {
    2 + (n % 4) as u8
}

#[test]
#[ignore = "make soak-router"]
fn a_million_routes_are_followed() {
    story("", async |namespace, mut lab| {
        let mut ours = Ours::start(&Options::default()).await;
        let had = prefixes(&ours, 0);
        let route =
            |verb: &str, n: u32, via: u8| format!("route {verb} {} via 10.2.0.{via}", network(n));
        let start = Instant::now();
        batch(namespace, (0..MILLION).map(|n| route("add", n, gateway(n))));
        let added = start.elapsed();
        ours.until_within(PATIENCE, "million routes", |ours| {
            prefixes(ours, 0) == had + MILLION as usize
        })
        .await;
        println!(
            "a million routes: added in {added:.1?}, followed {:.1?} after",
            start.elapsed() - added
        );
        let sample = || (0..MILLION).step_by(997);
        for n in sample() {
            let dst = inside(n);
            assert_eq!(way(&mut lab, &ours, &dst), Some(gateway(n)), "{dst}");
        }
        // Some go, some go elsewhere, and the others stay.
        let start = Instant::now();
        let gone = |n: &u32| n.is_multiple_of(2);
        batch(
            namespace,
            sample().map(|n| {
                if gone(&n) {
                    route("del", n, gateway(n))
                } else {
                    route("replace", n, gateway(n + 1))
                }
            }),
        );
        let left = had + MILLION as usize - sample().filter(gone).count();
        let last = sample().rfind(|n| !gone(n)).expect("a sample");
        let last_dst = inside(last);
        ours.until_within(PATIENCE, "changes", |ours| {
            prefixes(ours, 0) == left && way(&mut lab, ours, &last_dst) == Some(gateway(last + 1))
        })
        .await;
        println!("a thousand changes among them: {:.1?}", start.elapsed());
        for n in sample() {
            let (dst, beside) = (inside(n), inside(n + 1));
            let expected = if gone(&n) { None } else { Some(gateway(n + 1)) };
            assert_eq!(way(&mut lab, &ours, &dst), expected, "{dst}");
            assert_eq!(
                way(&mut lab, &ours, &beside),
                Some(gateway(n + 1)),
                "{beside}"
            );
        }
    });
}

#[test]
#[ignore = "make soak-router"]
fn routes_by_bgp_are_followed() {
    let peer = Namespace::new().expect("a namespace");
    let setup = format!(
        "ip link add feed type veth peer name far netns {}; ip addr add 10.9.0.1/24 dev feed; \
         ip link set feed up",
        peer.pid()
    );
    story(&setup, async |namespace, mut lab| {
        peer.ok("ip addr add 10.9.0.2/24 dev far && ip link set far up")
            .expect("a peer");
        let net = |n: u32| format!("100.{}.{}", 64 + (n >> 8), n & 0xff);
        batch(
            &peer,
            (0..OF_BGP).map(|n| format!("route add blackhole {}.0/24", net(n))),
        );
        let mut ours = Ours::start(&Options::default()).await;
        let (us, them) = ((65001, "10.9.0.1"), (65002, "10.9.0.2"));
        let announce = " address-family ipv4 unicast\n  redistribute kernel\n  \
            neighbor 10.9.0.1 route-map west out\n \
            exit-address-family\nroute-map west permit 10\n set ip next-hop 10.2.0.2\n";
        let _ours = Speaker::start(namespace, us, them, "").expect("FRR");
        let mut theirs = Speaker::start(&peer, them, us, announce).expect("FRR");
        // Neighbours come and go as well: not all prefixes are routes.
        ours.until_within(PATIENCE, "routes of BGP", |ours| {
            prefixes(ours, 0) >= OF_BGP as usize
                && way(&mut lab, ours, &format!("{}.1", net(OF_BGP - 1))).is_some()
        })
        .await;
        for n in (0..OF_BGP).step_by(97) {
            assert_eq!(way(&mut lab, &ours, &format!("{}.1", net(n))), Some(2));
        }
        // The peer takes back half of them, and then is gone without a word: its hold time ends.
        batch(
            &peer,
            (0..OF_BGP / 2).map(|n| format!("route del blackhole {}.0/24", net(n))),
        );
        ours.until_within(PATIENCE, "fewer routes", |ours| {
            prefixes(ours, 0) < (OF_BGP / 2 + 100) as usize
                && way(&mut lab, ours, &format!("{}.1", net(0))).is_none()
        })
        .await;
        assert_eq!(
            way(&mut lab, &ours, &format!("{}.1", net(OF_BGP - 1))),
            Some(2)
        );
        theirs.kill();
        // They go one after the other, in the speaker's order.
        ours.until_within(PATIENCE, "end of all routes", |ours| {
            prefixes(ours, 0) < 100
                && way(&mut lab, ours, &format!("{}.1", net(OF_BGP - 1))).is_none()
        })
        .await;
    });
}
