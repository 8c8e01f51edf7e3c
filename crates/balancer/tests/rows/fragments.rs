//! All fragments of a datagram go to its server.

use butterfly_balancer::{Protocol, Reason};
use wire::build;
use xdp::Verdict;

use super::stage::*;

trials! {
    first_and_later_fragments_go_to_the_same_server,
    a_later_fragment_alone_is_dropped_by_name,
    what_is_the_kernels_is_so_to_its_last_fragment,
    an_error_in_fragments_goes_to_its_flow_s_server,
    an_atomic_fragment_is_a_packet,
    many_datagrams_at_once,
}

fn first_and_later_fragments_go_to_the_same_server() {
    for v6 in [false, true] {
        let mut balancer = stage();
        apply(&mut balancer, [service(key(v6, Protocol::Udp, PORT), 8)]);
        for port in 1000..1100 {
            let whole = arrives(v6, 1).udp(port, PORT).payload(&[6; 3000]).build();
            let pieces = build::fragments(&whole, 1200, u32::from(port));
            assert!(pieces.len() > 2);
            let server =
                goes_to(&balancer, &udp(v6, 1, port)).expect("a short datagram of the flow");
            for piece in &pieces {
                let to = hop(v6, server).mac;
                becomes(
                    &balancer,
                    piece,
                    Verdict::Transmit,
                    &forwarded(piece, to, &[]),
                    &format!("port {port}, IPv6 {v6}"),
                );
            }
        }
    }
}

fn a_later_fragment_alone_is_dropped_by_name() {
    for v6 in [false, true] {
        let mut balancer = stage();
        apply(&mut balancer, [service(key(v6, Protocol::Udp, PORT), 8)]);
        let whole = arrives(v6, 1).udp(1, PORT).payload(&[6; 3000]).build();
        let pieces = build::fragments(&whole, 1200, 5);
        drops(&balancer, &pieces[1], "its first fragment was not seen");
        run(&balancer, &pieces[0]);
        assert!(goes_to(&balancer, &pieces[1]).is_some(), "now it was");
        let other = build::fragments(&whole, 1200, 6);
        drops(&balancer, &other[1], "another datagram's");
        assert_eq!(
            balancer
                .counters()
                .expect("maps can be read")
                .reason(Reason::Fragment),
            2
        );
    }
}

/// A large ping, and a datagram to a port that has no service: without all of it the kernel could
/// not answer.
fn what_is_the_kernels_is_so_to_its_last_fragment() {
    for v6 in [false, true] {
        let mut balancer = stage();
        apply(&mut balancer, [service(key(v6, Protocol::Udp, PORT), 8)]);
        let wholes = [
            arrives(v6, 1).echo_request(1, 1).payload(&[6; 3000]),
            arrives(v6, 1).udp(1, PORT + 1).payload(&[6; 3000]),
        ];
        for (id, whole) in (7..).zip(wholes) {
            let pieces = build::fragments(&whole.build(), 1200, id);
            assert!(pieces.len() > 2);
            drops(&balancer, &pieces[1], "its first fragment was not seen");
            for piece in &pieces {
                passes(&balancer, piece, &format!("id {id}, IPv6 {v6}"));
            }
        }
        let counters = balancer.counters().expect("maps can be read");
        assert_eq!(counters.reason(Reason::Fragment), 2);
    }
}

/// Whoever reports it is not the flow's client.
fn an_error_in_fragments_goes_to_its_flow_s_server() {
    for v6 in [false, true] {
        let mut balancer = stage();
        apply(&mut balancer, [service(key(v6, Protocol::Udp, PORT), 8)]);
        let server = goes_to(&balancer, &udp(v6, 1, 1000)).expect("a server");
        let answer = build::frame(OURS, ROUTER)
            .ip(vip(v6), client(v6, 1))
            .udp(PORT, 1000)
            .payload(&[6; 1200])
            .build();
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        let whole = arrives(v6, 99)
            .icmp(kind, code, 0)
            .payload(&answer[14..])
            .build();
        let pieces = build::fragments(&whole, 600, 9);
        assert!(pieces.len() > 1);
        for piece in &pieces {
            assert_eq!(goes_to(&balancer, piece), Some(server), "IPv6 {v6}");
        }
    }
}

/// A fragment header with neither offset nor more to come (RFC 6946) is a whole packet.
fn an_atomic_fragment_is_a_packet() {
    let mut balancer = stage();
    apply(&mut balancer, [service(key(true, Protocol::Udp, PORT), 1)]);
    let frame = arrives(true, 1)
        .extension(44, &[0, 0, 0, 0, 0, 9])
        .udp(1, PORT)
        .build();
    becomes(
        &balancer,
        &frame,
        Verdict::Transmit,
        &forwarded(&frame, hop(true, 1).mac, &[]),
        "atomic",
    );
}

/// A datagram that everybody could be forging the parts of keeps its own slot: ids of others do not
/// meet it.
fn many_datagrams_at_once() {
    let mut balancer = stage();
    apply(&mut balancer, [service(key(false, Protocol::Udp, PORT), 8)]);
    let pieces: Vec<_> = (0..1000u16)
        .map(|n| {
            let whole = arrives(false, n % 10)
                .udp(2000 + n, PORT)
                .payload(&[6; 1400])
                .build();
            build::fragments(&whole, 1200, u32::from(n))
        })
        .collect();
    let first: Vec<_> = pieces
        .iter()
        .map(|pieces| goes_to(&balancer, &pieces[0]))
        .collect();
    let later: Vec<_> = pieces
        .iter()
        .map(|pieces| goes_to(&balancer, &pieces[1]))
        .collect();
    assert_eq!(first, later);
}
