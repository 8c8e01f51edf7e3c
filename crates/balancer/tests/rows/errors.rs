//! ICMP errors go to the server whose packet they are about.

use butterfly_balancer::{Protocol, Reason};
use wire::build;
use wire::parse::TcpFlags;
use xdp::Verdict;

use super::stage::*;

trials! {
    an_error_reaches_the_server_of_its_flow,
    an_error_about_no_flow_goes_by_maglev_and_leaves_nothing,
    an_error_about_a_sticky_client_leaves_nothing,
    errors_that_make_no_sense_are_the_kernels,
    an_error_that_runs_out_of_hops_gets_no_error,
}

/// What a server sent to a client, from its IP header on, as a router on the way quotes it.
fn sent(v6: bool, protocol: Protocol, client_port: u16) -> Vec<u8> {
    sent_to(v6, 1, protocol, client_port)
}

/// To another client than the first.
fn sent_to(v6: bool, n: u16, protocol: Protocol, client_port: u16) -> Vec<u8> {
    let start = build::frame(OURS, ROUTER).ip(vip(v6), client(v6, n));
    let frame = match protocol {
        Protocol::Tcp => start
            .tcp(PORT, client_port, TcpFlags::ACK)
            .payload(&[1; 100])
            .build(),
        Protocol::Udp => start.udp(PORT, client_port).payload(&[1; 100]).build(),
        Protocol::Sctp => start
            .sctp(PORT, client_port, 1, 0)
            .payload(&[1; 100])
            .build(),
    };
    frame[14..].to_vec()
}

/// From a router that the client's address says nothing about.
fn complaint(v6: bool, kind: u8, code: u8, rest: u32, quote: &[u8]) -> Vec<u8> {
    build::frame(ROUTER, OURS)
        .ip(client(v6, 999), vip(v6))
        .icmp(kind, code, rest)
        .payload(quote)
        .build()
}

fn an_error_reaches_the_server_of_its_flow() {
    for v6 in [false, true] {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let mut balancer = stage();
            apply(&mut balancer, [service(key(v6, protocol, PORT), 4)]);
            let packet = |port| match protocol {
                Protocol::Tcp => arrives(v6, 1).tcp(port, PORT, TcpFlags::ACK).build(),
                Protocol::Udp => arrives(v6, 1).udp(port, PORT).build(),
                Protocol::Sctp => arrives(v6, 1).sctp(port, PORT, 1, 0).build(),
            };
            let servers: Vec<_> = (1000..1050)
                .map(|port| goes_to(&balancer, &packet(port)))
                .collect();
            // Maglev's answer is another one for many now; the error asks what is remembered.
            apply(&mut balancer, [service(key(v6, protocol, PORT), 9)]);
            let kinds: &[u8] = if v6 { &[1, 2, 3, 4] } else { &[3, 11, 12] };
            for kind in kinds {
                for quoted in [if v6 { 48 } else { 28 }, 140] {
                    for (port, server) in (1000..).zip(&servers) {
                        let error = complaint(
                            v6,
                            *kind,
                            0,
                            1400,
                            &sent(v6, protocol, port)[..quoted.min(if v6 { 140 } else { 120 })],
                        );
                        let to = hop(v6, server.expect("it went somewhere")).mac;
                        becomes(
                            &balancer,
                            &error,
                            Verdict::Transmit,
                            &forwarded(&error, to, &[]),
                            &format!("{protocol} {port} type {kind}"),
                        );
                    }
                }
            }
        }
    }
}

/// An error does not make a flow, nor keep one.
fn an_error_about_no_flow_goes_by_maglev_and_leaves_nothing() {
    let mut balancer = stage();
    apply(&mut balancer, [service(key(false, Protocol::Tcp, PORT), 4)]);
    let error = complaint(false, 3, 4, 1400, &sent(false, Protocol::Tcp, 77));
    let server = goes_to(&balancer, &error);
    assert!(server.is_some());
    assert_eq!(
        goes_to(&balancer, &tcp(false, 1, 77, TcpFlags::SYN)),
        server,
        "Maglev's answer for its flow"
    );
    assert_eq!(
        balancer
            .counters()
            .expect("maps can be read")
            .service(&key(false, Protocol::Tcp, PORT))
            .flows,
        1
    );
}

/// Who sends errors in the name of the service's packets does not choose servers for its clients.
fn an_error_about_a_sticky_client_leaves_nothing() {
    let sticky = |count| service(key(false, Protocol::Tcp, PORT), count).sticky(true);
    let of = |balancer: &Balancer| -> Vec<_> {
        let syn = |n| tcp(false, n, 1000, TcpFlags::SYN);
        (0..100).map(|n| goes_to(balancer, &syn(n))).collect()
    };
    for mut balancer in stages() {
        apply(&mut balancer, [sticky(4)]);
        for n in 0..100 {
            let error = complaint(false, 3, 4, 1400, &sent_to(false, n, Protocol::Tcp, 1000));
            assert!(goes_to(&balancer, &error).is_some());
        }
        // With a server remembered, many would stay with one of the four.
        apply(&mut balancer, [sticky(9)]);
        let mut untold = stage();
        apply(&mut untold, [sticky(9)]);
        assert_eq!(of(&balancer), of(&untold));
    }
}

fn errors_that_make_no_sense_are_the_kernels() {
    let mut balancer = stage();
    apply(
        &mut balancer,
        [false, true].map(|v6| service(key(v6, Protocol::Tcp, PORT), 4)),
    );
    for v6 in [false, true] {
        let kind = if v6 { 1 } else { 3 };
        let good = sent(v6, Protocol::Tcp, 1000);
        let header = if v6 { 40 } else { 20 };
        let from_another = {
            let mut quote = good.clone();
            quote[if v6 { 23 } else { 15 }] ^= 1;
            quote
        };
        let rows = [
            ("quotes nothing", complaint(v6, kind, 0, 0, &[])),
            (
                "quotes half a header",
                complaint(v6, kind, 0, 0, &good[..header - 4]),
            ),
            (
                "quotes no ports",
                complaint(v6, kind, 0, 0, &good[..header + 2]),
            ),
            (
                "quotes another version",
                complaint(v6, kind, 0, 0, &[&[0x55], &good[1..]].concat()),
            ),
            (
                "quotes what the VIP did not send",
                complaint(v6, kind, 0, 0, &from_another),
            ),
        ];
        for (what, frame) in rows {
            passes(&balancer, &frame, &format!("{what}, IPv6 {v6}"));
        }
    }
    let mut later = sent(false, Protocol::Tcp, 1000);
    later[7] = 1;
    passes(
        &balancer,
        &complaint(false, 3, 0, 0, &later),
        "quotes a later fragment",
    );
    let other_port = build::frame(OURS, ROUTER)
        .ip(vip(false), client(false, 1))
        .tcp(80, 1, TcpFlags::ACK)
        .build();
    passes(
        &balancer,
        &complaint(false, 3, 0, 0, &other_port[14..]),
        "about a port without service",
    );
    let counters = balancer.counters().expect("maps can be read");
    assert_eq!(
        (
            counters.reason(Reason::NotUnderstood),
            counters.reason(Reason::NoService)
        ),
        (11, 1)
    );
}

fn an_error_that_runs_out_of_hops_gets_no_error() {
    let mut balancer = stage();
    apply(&mut balancer, [service(key(false, Protocol::Tcp, PORT), 4)]);
    let quote = sent(false, Protocol::Tcp, 1000);
    let frame = build::frame(ROUTER, OURS)
        .ip(client(false, 999), vip(false))
        .ttl(1)
        .icmp(3, 4, 1400)
        .payload(&quote)
        .build();
    drops(&balancer, &frame, "no error about an error");
}
