//! security-groups.md 13, 15 and 16: what passes always, never, and unfiltered; what is malformed.

use std::net::{Ipv4Addr, Ipv6Addr};

use dataplane::DropReason::*;
use wire::Mac;
use wire::build;
use wire::offload::{Gso, Offload, PartialChecksum};

use crate::lab::*;

/// security-groups.md 13.
#[test]
fn arp_and_neighbour_discovery_pass_without_a_rule() {
    let mut lab = Lab::new();
    let (a, b) = (lab.nic(), lab.nic());
    lab.passes(a, b, build::arp_request(a.mac, a.v4, b.v4));
    lab.passes(b, a, build::arp_reply(b.mac, b.v4, a.mac, a.v4));
    lab.passes(a, b, build::neighbour_solicitation(a.mac, a.v6, b.v6));
    lab.passes(
        b,
        a,
        build::neighbour_advertisement(b.mac, b.v6, a.mac, a.v6),
    );
    lab.passes(
        a,
        b,
        build::neighbour_solicitation(a.mac, Ipv6Addr::UNSPECIFIED, a.v6),
    );
    let solicitation = build::frame(a.mac, Mac([0x33, 0x33, 0, 0, 0, 2]))
        .ip(a.mac.link_local(), "ff02::2".parse::<Ipv6Addr>().unwrap())
        .ttl(255)
        .icmp(133, 0, 0);
    lab.passes(a, b, solicitation.build());
    assert_eq!(lab.flows(), 0);
}

/// security-groups.md 13.
#[test]
fn router_advertisements_and_redirects_need_permission() {
    let mut lab = Lab::new();
    let (a, b) = (lab.nic(), lab.nic());
    let mut body = b.v6.octets().to_vec();
    body.extend(a.v6.octets());
    let redirect = build::frame(a.mac, b.mac)
        .ip(a.mac.link_local(), b.v6)
        .ttl(255)
        .icmp(137, 0, 0);
    let redirect = redirect.payload(&body).build();
    lab.refuses(a, build::router_advertisement(a.mac), RouterAdvertisement);
    lab.refuses(a, redirect.clone(), RouterAdvertisement);
    lab.configure(a, |config| config.allow_router_advertisements = true);
    lab.passes(a, b, build::router_advertisement(a.mac));
    lab.passes(a, b, redirect);
}

/// security-groups.md 13.
#[test]
fn dhcp_clients_ask_and_only_servers_answer() {
    let mut lab = Lab::new();
    let (a, b) = (lab.nic(), lab.nic());
    lab.passes(a, b, build::dhcp_request(a.mac, 1, 77));
    lab.passes(a, b, build::dhcpv6_request(a.mac, 1, 77));
    let answer = build::dhcp_answer(b.mac, b.v4, a.mac, a.v4, 2, 77);
    let answer_v6 = build::dhcpv6_answer(b.mac, a.mac, a.mac.link_local(), 2, 77);
    lab.refuses(b, answer.clone(), DhcpServer);
    lab.refuses(b, answer_v6.clone(), DhcpServer);
    lab.configure(b, |config| config.allow_dhcp_server = true);
    lab.passes(b, a, answer);
    lab.passes(b, a, answer_v6);
    // An egress rule does not take it away.
    lab.group_of(a, vec![allow_out(TCP, 1)]);
    lab.passes(a, b, build::dhcp_request(a.mac, 3, 78));
    assert_eq!(lab.flows(), 0);
}

/// security-groups.md 15.
#[test]
fn a_nic_that_bypasses_filtering_is_not_filtered() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        for nic in [a, b] {
            lab.configure(nic, |config| config.bypass = true);
        }
        let foreign = build::frame(a.mac, b.mac)
            .ip(c.ip(family), b.ip(family))
            .udp(1, 2);
        lab.passes(a, b, foreign.build());
        lab.passes(a, b, ip(a, b, family).tcp(1, 2, ACK).build());
        lab.passes(
            a,
            b,
            build::frame(a.mac, b.mac)
                .ethertype(0x88b5)
                .payload(&[1; 46])
                .build(),
        );
        lab.passes(
            a,
            b,
            build::frame(a.mac, b.mac)
                .tag(5)
                .ip(a.ip(family), b.ip(family))
                .udp(1, 2)
                .build(),
        );
        // From any MAC.
        lab.passes(
            a,
            b,
            build::frame(c.mac, b.mac)
                .ip(a.ip(family), b.ip(family))
                .udp(3, 4)
                .build(),
        );
        // Its side alone: C's rules hold, and other types need both.
        lab.refuses(a, udp(a, c, family, 1, 2), NoIngressRule);
        lab.refuses(
            a,
            build::frame(a.mac, c.mac)
                .ethertype(0x88b5)
                .payload(&[1; 46])
                .build(),
            Ethertype,
        );
        // What C began is answered: C keeps state.
        lab.passes(c, a, udp(c, a, family, 1, 2));
        lab.passes(a, c, udp(a, c, family, 2, 1));
    }
}

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

/// security-groups.md 16.
#[test]
fn malformed_headers_are_dropped_with_a_reason() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let good = udp(a, b, Family::V4, 1, 2);
    lab.refuses(a, good[..13].to_vec(), Truncated);
    lab.refuses(a, good[..30].to_vec(), Truncated);
    for (at, byte) in [(14, 0x44), (14, 0x65), (16, 0xff), (17, 19)] {
        let mut bad = good.clone();
        bad[at] = byte;
        lab.refuses(a, bad, Malformed);
    }
    let mut many = ip(a, b, Family::V6).udp(1, 2);
    for _ in 0..20 {
        many = many.extension(60, &[1, 4]);
    }
    lab.refuses(a, many.build(), HeadersTooLong);
    let long = ip(a, b, Family::V6)
        .extension(60, &[0; 300])
        .udp(1, 2)
        .build();
    lab.refuses(a, long, HeadersTooLong);
    let hops = build::frame(a.mac, b.mac)
        .ip(a.v6, b.v6)
        .ttl(64)
        .icmp(135, 0, 0)
        .payload(&b.v6.octets());
    lab.refuses(a, hops.build(), Malformed);
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
