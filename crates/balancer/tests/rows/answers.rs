//! What the balancer says itself: echo replies, time exceeded, too big.

use std::net::IpAddr;
use std::num::NonZeroU16;

use butterfly_balancer::{Options, Protocol, Reason, Server, Service, Tunnel};
use wire::build::{self, Builder};
use wire::parse::TcpFlags;
use xdp::Verdict;

use super::stage::*;

trials! {
    an_echo_to_a_vip_is_answered,
    who_runs_out_of_hops_is_told,
    who_is_too_big_for_the_tunnel_is_told_what_fits,
    who_must_not_be_answered_is_not,
    answers_to_a_flood_are_few,
}

fn tagged(from_us: bool, tags: &[u16]) -> Builder {
    let start = if from_us {
        build::frame(OURS, ROUTER)
    } else {
        build::frame(ROUTER, OURS)
    };
    tags.iter().fold(start, |builder, tag| builder.tag(*tag))
}

/// An error about a packet: its first 128 bytes, cut to an even number, come back.
fn error(
    from: IpAddr,
    to: IpAddr,
    tags: &[u16],
    kind: u8,
    code: u8,
    rest: u32,
    about: &[u8],
) -> Vec<u8> {
    let quote = &about[..about.len().min(128) & !1];
    let tos = if from.is_ipv4() { 0xc0 } else { 0 };
    tagged(true, tags)
        .ip(from, to)
        .tos(tos)
        .icmp(kind, code, rest)
        .payload(quote)
        .build()
}

fn an_echo_to_a_vip_is_answered() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 2)),
    );
    for v6 in [false, true] {
        for tags in [&[][..], &[5][..], &[5, 6][..]] {
            for length in [0, 1, 56, 1400] {
                let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let ask = |ttl| {
                    tagged(false, tags)
                        .ip(client(v6, 1), vip(v6))
                        .ttl(ttl)
                        .echo_request(7, 8)
                        .payload(&payload)
                        .build()
                };
                let answer = tagged(true, tags)
                    .ip(vip(v6), client(v6, 1))
                    .echo_reply(7, 8)
                    .payload(&payload)
                    .build();
                let row = format!("{length} bytes, IPv6 {v6}, tags {tags:?}");
                becomes(&balancer, &ask(64), Verdict::Transmit, &answer, &row);
                becomes(
                    &balancer,
                    &ask(1),
                    Verdict::Transmit,
                    &answer,
                    &format!("{row}, the last hop is the VIP"),
                );
            }
        }
    }
    assert_eq!(
        balancer
            .counters()
            .expect("maps can be read")
            .reason(Reason::Echo),
        48
    );
}

fn who_runs_out_of_hops_is_told() {
    let source = (
        Some([10, 1, 2, 3].into()),
        Some("2001:db8:ffff::1".parse().expect("an address")),
    );
    for (source_v4, source_v6) in [(None, None), source] {
        let mut balancer = stage_with(&Options {
            max_flows: 1024,
            source_v4,
            source_v6,
            ..Options::default()
        });
        apply(
            &mut balancer,
            [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 2)),
        );
        for v6 in [false, true] {
            let own: Option<IpAddr> = if v6 {
                source_v6.map(Into::into)
            } else {
                source_v4.map(Into::into)
            };
            for (ttl, tags) in [(0, &[][..]), (1, &[][..]), (1, &[5][..]), (1, &[5, 6][..])] {
                for length in [0, 1, 60, 1000] {
                    let start = tagged(false, tags).ip(client(v6, 1), vip(v6)).ttl(ttl);
                    let frame = start
                        .tcp(1, PORT, TcpFlags::SYN)
                        .payload(&vec![4; length])
                        .build();
                    let kind = if v6 { 3 } else { 11 };
                    let expected = error(
                        own.unwrap_or(vip(v6)),
                        client(v6, 1),
                        tags,
                        kind,
                        0,
                        0,
                        &frame[l3(&frame)..],
                    );
                    becomes(
                        &balancer,
                        &frame,
                        Verdict::Transmit,
                        &expected,
                        &format!("TTL {ttl}, {length} bytes, IPv6 {v6}, {tags:?}"),
                    );
                }
            }
        }
    }
}

fn who_is_too_big_for_the_tunnel_is_told_what_fits() {
    let port = NonZeroU16::new(5555).expect("not zero");
    let tunnels = [
        (Tunnel::None, 0),
        (Tunnel::Ipip, 0),
        (Tunnel::Gre, 4),
        (Tunnel::Fou { port }, 8),
        (Tunnel::Gue { port }, 12),
    ];
    let mut balancer = stage();
    for (tunnel, shim) in tunnels {
        for outer_v6 in [false, true] {
            let only = Server::new(server(outer_v6, 1))
                .expect("a host")
                .tunnel(tunnel);
            apply(
                &mut balancer,
                [false, true].map(|v6| Service::new(key(v6, Protocol::Udp, PORT)).with(only)),
            );
            let outer = if tunnel == Tunnel::None {
                0
            } else if outer_v6 {
                40
            } else {
                20
            };
            let fits = 1500 - outer - shim;
            for v6 in [false, true] {
                let headers = if v6 { 48 } else { 28 };
                let frame = |length: usize| {
                    arrives(v6, 1)
                        .udp(1, PORT)
                        .payload(&vec![1; length - headers])
                        .build()
                };
                let row = format!("{tunnel:?}, over IPv6 {outer_v6}, IPv6 {v6}");
                assert_eq!(
                    run(&balancer, &frame(fits)).verdict,
                    Verdict::Transmit,
                    "{row} fits"
                );
                let large = frame(fits + 1);
                let (kind, code) = if v6 { (2, 0) } else { (3, 4) };
                let expected = error(
                    vip(v6),
                    client(v6, 1),
                    &[],
                    kind,
                    code,
                    fits as u32,
                    &large[14..],
                );
                becomes(&balancer, &large, Verdict::Transmit, &expected, &row);
            }
        }
    }
}

fn who_must_not_be_answered_is_not() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 2)),
    );
    let from = [
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.5",
        "255.255.255.255",
        "::",
        "ff02::1",
    ];
    for from in from.map(ip) {
        let frame = build::frame(ROUTER, OURS)
            .ip(from, vip(from.is_ipv6()))
            .ttl(1)
            .tcp(1, PORT, TcpFlags::SYN)
            .build();
        drops(&balancer, &frame, &from.to_string());
    }
    let counters = balancer.counters().expect("maps can be read");
    assert_eq!(
        (
            counters.reason(Reason::Expired),
            counters.reason(Reason::Silent)
        ),
        (0, 6)
    );
}

fn answers_to_a_flood_are_few() {
    /// So many a CPU in a window of 134 ms (bpf/lib/icmp.h).
    const LIMIT: usize = 128;
    /// Enough for one window to be full on any machine but one that needs a millisecond for each
    /// packet all the time.
    const FLOOD: usize = 100_000;
    let mut balancer = stage();
    apply(&mut balancer, [service(key(false, Protocol::Tcp, PORT), 2)]);
    let frame = arrives(false, 1).ttl(1).tcp(1, PORT, TcpFlags::SYN).build();
    let is_answered = |_: &usize| run(&balancer, &frame).verdict == Verdict::Transmit;
    let answered = (0..FLOOD).take_while(is_answered).count();
    assert!(
        (LIMIT..FLOOD).contains(&answered),
        "{answered} were answered before the first that was not"
    );
    let counters = balancer.counters().expect("maps can be read");
    assert_eq!(
        (
            counters.reason(Reason::Expired),
            counters.reason(Reason::Silent)
        ),
        (answered as u64, 1)
    );
}
