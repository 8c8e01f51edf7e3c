//! What no rule lets pass, and what has many receivers.

use std::net::{Ipv4Addr, Ipv6Addr};

use dataplane::DropReason::*;
use wire::Mac;
use wire::build;
use wire::offload::{Gso, Offload, PartialChecksum};

use crate::lab::*;

#[test]
fn other_ethertypes_are_dropped() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    lab.refuses(
        a,
        build::frame(a.mac, b.mac)
            .ethertype(0x88b5)
            .payload(&[1; 46])
            .build(),
        Ethertype,
    );
    let tagged = build::frame(a.mac, b.mac).tag(5).ip(a.v4, b.v4).udp(1, 2);
    lab.refuses(a, tagged.build(), Ethertype);
}

#[test]
fn what_is_shorter_than_an_ethernet_header_is_dropped() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let good = udp(a, b, Family::V4, 1, 2);
    lab.refuses(a, good[..13].to_vec(), Truncated);
}

#[test]
fn offloads_that_do_not_fit_are_dropped() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let frame = udp(a, b, Family::V4, 1, 2);
    // A checksum in the middle of the addresses would change what was judged.
    let before = lab.drops();
    let addresses = Some(PartialChecksum {
        start: 26,
        offset: 4,
    });
    for offload in [
        Offload {
            checksum: addresses,
            ..Offload::default()
        },
        Offload {
            gso: Gso::Tcp4,
            gso_size: 1400,
            ..Offload::default()
        },
    ] {
        lab.send_with(a, frame.clone(), offload);
    }
    assert_eq!(difference(&before, &lab.drops()), [(BadOffload, 2)]);
    lab.silent();
}

#[test]
fn multicast_and_broadcast_are_judged_for_each_receiver() {
    let mut lab = Lab::new();
    let (a, b, c, d) = (lab.nic(), lab.nic(), lab.nic(), lab.nic());
    for nic in [b, c] {
        lab.group_of(nic, vec![allow_in(UDP, 5353)]);
    }
    let group = "224.0.0.251".parse::<Ipv4Addr>().unwrap();
    let group_v6 = "ff02::fb".parse::<Ipv6Addr>().unwrap();
    let v4 = build::frame(a.mac, Mac([1, 0, 0x5e, 0, 0, 0xfb]))
        .ip(a.v4, group)
        .udp(5353, 5353)
        .build();
    let v6 = build::frame(a.mac, Mac([0x33, 0x33, 0, 0, 0, 0xfb]))
        .ip(a.v6, group_v6)
        .udp(5353, 5353)
        .build();
    for frame in [v4, v6] {
        let before = lab.drops();
        lab.send(a, frame.clone());
        assert_eq!(
            difference(&before, &lab.drops()),
            [(NoIngressRule, 1)],
            "for D"
        );
        assert_eq!(lab.received(b), std::slice::from_ref(&frame));
        assert_eq!(lab.received(c), [frame]);
        assert_eq!(lab.received(d), Vec::<Vec<u8>>::new());
    }
    // One entry for each pair of sender and receiver.
    assert_eq!(lab.flows(), 4);
}
