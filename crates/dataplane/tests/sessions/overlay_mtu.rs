//! Frames that are too large for the way to where they go: their senders are told, with the inner
//! MTU.

use dataplane::DropReason::*;
use dataplane::underlay::Hop;
use wire::parse::TcpFlags;
use wire::{Mac, build};

use crate::lab::*;
use crate::wire_lab::*;

/// A host whose way to host 2 takes outer packets of 1400 bytes, inner ones of 1350.
fn narrow() -> (Host, Nic, Far) {
    let mut host = Host::new();
    let a = host.lab.nic();
    let b = host.far(20, 2);
    host.set_paths(vec![(b.at, vec![Hop { mtu: 1400, ..hop() }])]);
    (host, a, b)
}

/// The error that `a` gets about a packet, as if from where it was for.
fn too_big(about: &[u8], a: Nic, b: Nic, family: Family) -> Vec<u8> {
    let quote = &about[14..256];
    let error = build::frame(b.mac, a.mac).ip(b.ip(family), a.ip(family));
    let error = match family {
        Family::V4 => error.icmp(3, 4, 1350),
        Family::V6 => error.icmp(2, 0, 1350),
    };
    error.payload(quote).build()
}

#[test]
fn a_packet_that_is_too_large_goes_back_as_an_error_that_says_what_fits() {
    for family in FAMILIES {
        let (mut host, a, b) = narrow();
        let headers = ip(a, b.nic, family).udp(1, 2).build().len() - 14;
        let packet = |len: usize| {
            ip(a, b.nic, family)
                .udp(1, 2)
                .payload(&vec![7; len - headers])
                .build()
        };
        host.leaves(a, b.at, packet(1350));
        for _ in 0..2 {
            let before = host.lab.drops();
            host.lab.send(a, packet(1351));
            assert_eq!(difference(&before, &host.lab.drops()), [(MtuExceeded, 1)]);
            assert_eq!(
                host.lab.received(a),
                [too_big(&packet(1351), a, b.nic, family)]
            );
            assert_eq!(host.sent(), [[0u8; 0]; 0]);
        }
    }
}

#[test]
fn what_is_to_be_cut_is_measured_by_its_segments() {
    for family in FAMILIES {
        let (mut host, a, b) = narrow();
        host.leaves(
            a,
            b.at,
            ip(a, b.nic, family).tcp(1, 2, SYN).seq(999).build(),
        );
        host.arrive(inbound(
            b.at,
            &ip(b.nic, a, family)
                .tcp(2, 1, SYN_ACK)
                .seq(9)
                .ack(1000)
                .build(),
        ));
        host.lab.received(a);
        let headers = ip(a, b.nic, family).tcp(1, 2, ACK).build().len() - 14;
        let large = |mss: usize| {
            let segment = ip(a, b.nic, family).tcp(1, 2, ACK).seq(1000).ack(10);
            segment
                .payload(&[7; 4000])
                .gso(mss as u16)
                .build_with_offload()
        };
        let (frame, offload) = large(1350 - headers);
        host.lab.send_with(a, frame, offload);
        assert!(host.sent().iter().all(|frame| frame.len() <= 1400 + 14));
        let (frame, offload) = large(1351 - headers);
        let before = host.lab.drops();
        host.lab.send_with(a, frame.clone(), offload);
        assert_eq!(difference(&before, &host.lab.drops()), [(MtuExceeded, 1)]);
        assert_eq!(host.lab.received(a), [too_big(&frame, a, b.nic, family)]);
    }
}

#[test]
fn no_error_is_sent_about_errors_about_what_many_get_or_too_often() {
    let (mut host, a, b) = narrow();
    host.lab.configure(a, |config| config.bypass = true);
    let error = ip(a, b.nic, Family::V4).icmp(3, 3, 0).payload(&[7; 1400]);
    host.lab.refuses(a, error.build(), MtuExceeded);
    let many = build::frame(a.mac, b.nic.mac)
        .ip(a.v4, [224, 1, 1, 1])
        .udp(1, 2);
    host.lab
        .refuses(a, many.payload(&[7; 1400]).build(), MtuExceeded);
    let group = build::frame(a.mac, Mac::BROADCAST)
        .ip(a.v4, [10, 0, 0, 255])
        .udp(1, 2);
    host.configure(|overlay| {
        overlay.flood = dataplane::overlay::Flood::Hosts([dataplane::overlay::HostIdx(0)].into());
    });
    host.lab
        .refuses(a, group.payload(&[7; 1400]).build(), MtuExceeded);

    let large = ip(a, b.nic, Family::V4)
        .tcp(1, 2, TcpFlags::ACK)
        .payload(&[7; 1400])
        .build();
    let mut told = 0;
    for _ in 0..150 {
        host.lab.send(a, large.clone());
        told += host.lab.received(a).len();
    }
    assert_eq!(told, 100, "a hundred a second");
    host.lab.wait(1);
    host.lab.send(a, large);
    assert_eq!(host.lab.received(a).len(), 1);
}
