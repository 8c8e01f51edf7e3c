//! security-groups.md 14: nobody sends in another one's name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::AddressPair;
use dataplane::DropReason::*;
use wire::parse::ArpPacket;
use wire::{Mac, build};

use super::words::*;
use crate::lab::Lab;

/// security-groups.md 14.
pub fn the_source_mac_is_always_ones_own(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    lab.configure(a, |config| config.anti_spoof = false);
    lab.keeps_passing(a, b, udp(a, b, family, 1, 2));
    for mac in [b.mac, Mac([2, 9, 9, 9, 9, 9]), Mac::BROADCAST] {
        let frame = build::frame(mac, b.mac)
            .ip(a.ip(family), b.ip(family))
            .udp(1, 2);
        lab.refuses(a, frame.payload(b"hello").build(), MacSpoofed);
    }
}

/// security-groups.md 14.
pub fn the_source_address_is_ones_own_when_the_nic_asks_for_it(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    let link_local = build::frame(a.mac, b.mac)
        .ip(a.mac.link_local(), b.v6)
        .udp(1, 2);
    lab.passes(a, b, link_local.build());
    // An egress rule allows any source, so that nothing but this check is in the way.
    lab.group_of(a, vec![allow_all_out(None)]);
    let frame = build::frame(a.mac, b.mac)
        .ip(foreign(family), b.ip(family))
        .udp(1, 2)
        .build();
    lab.refuses(a, frame.clone(), IpSpoofed);
    let nowhere: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let unspecified = build::frame(a.mac, b.mac)
        .ip(nowhere, b.ip(family))
        .udp(1, 2);
    lab.refuses(a, unspecified.build(), IpSpoofed);
    lab.configure(a, |config| config.anti_spoof = false);
    lab.keeps_passing(a, b, frame.clone());
    lab.configure(a, |config| config.anti_spoof = true);
    lab.refuses(a, frame, IpSpoofed);
}

/// security-groups.md 14.
pub fn allowed_pairs_are_addresses_with_their_mac(lab: &mut Lab, family: Family) {
    let (net, inside, outside) = match family {
        Family::V4 => ("192.168.7.0/24", "192.168.7.7", "192.168.8.7"),
        Family::V6 => ("2001:db8:7::/48", "2001:db8:7::7", "2001:db8:8::7"),
    };
    let (a, b) = lab.two(vec![allow_all_in(None)]);
    let other = Mac([0, 0, 0x5e, 0, 1, 1]);
    let send = |mac, source: &str| {
        let source: IpAddr = source.parse().unwrap();
        build::frame(mac, b.mac)
            .ip(source, b.ip(family))
            .udp(1, 2)
            .build()
    };
    let net = net.parse().unwrap();
    lab.configure(a, |config| {
        config.pairs = vec![AddressPair { net, mac: None }]
    });
    lab.keeps_passing(a, b, send(a.mac, inside));
    lab.refuses(a, send(a.mac, outside), IpSpoofed);
    lab.refuses(a, send(other, inside), MacSpoofed);
    let mac = Some(other);
    lab.configure(a, |config| config.pairs = vec![AddressPair { net, mac }]);
    lab.passes(a, b, send(other, inside));
    lab.refuses(a, send(a.mac, inside), IpSpoofed);
}

/// security-groups.md 14: ARP's senders, and what neighbour discovery says of whose address.
pub fn neighbours_are_who_they_say(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![]);
    if family == Family::V4 {
        let say = |sender_mac, sender_ip| {
            let arp = ArpPacket {
                op: 2,
                sender_mac,
                sender_ip,
                target_mac: b.mac,
                target_ip: b.v4,
            };
            build::arp(a.mac, b.mac, arp)
        };
        lab.passes(a, b, say(a.mac, a.v4));
        lab.passes(a, b, say(a.mac, Ipv4Addr::UNSPECIFIED));
        lab.refuses(a, say(a.mac, b.v4), ArpSpoofed);
        lab.refuses(a, say(b.mac, a.v4), ArpSpoofed);
        lab.configure(a, |config| config.anti_spoof = false);
        lab.passes(a, b, say(a.mac, b.v4));
        return;
    }
    let advertise = |source: Ipv6Addr, target: Ipv6Addr, mac| {
        let mut body = target.octets().to_vec();
        body.extend(build::link_option(2, mac));
        let frame = build::frame(a.mac, b.mac)
            .ip(source, b.v6)
            .ttl(255)
            .icmp(136, 0, 0);
        frame.payload(&body).build()
    };
    lab.passes(a, b, advertise(a.v6, a.v6, a.mac));
    lab.passes(a, b, advertise(a.v6, a.mac.link_local(), a.mac));
    lab.refuses(a, advertise(a.v6, b.v6, a.mac), NdSpoofed);
    lab.refuses(a, advertise(a.v6, a.v6, b.mac), NdSpoofed);
    lab.refuses(a, advertise(b.v6, a.v6, a.mac), IpSpoofed);
    // Asking from nowhere for an address is claiming it.
    let claim = build::neighbour_solicitation(a.mac, Ipv6Addr::UNSPECIFIED, b.v6);
    lab.refuses(a, claim.clone(), NdSpoofed);
    lab.configure(a, |config| config.anti_spoof = false);
    lab.passes(a, b, claim);
}

/// security-groups.md 14.
pub fn a_borrowed_address_touches_nobody_elses_flow(lab: &mut Lab, family: Family) {
    let (a, b) = lab.two(vec![allow_in(TCP, 80)]);
    let thief = lab.nic();
    lab.configure(thief, |config| config.anti_spoof = false);
    lab.group_of(thief, vec![allow_all_out(None)]);
    lab.connect(a, b, family, 1, 80);
    lab.keeps_passing(a, b, amid(a, b, family, 1, 80));
    // The exact reset of A's connection, from another port of the switch, and its data.
    let stolen = build::frame(thief.mac, b.mac).ip(a.ip(family), b.ip(family));
    let reset = stolen.clone().tcp(1, 80, RST).seq(1001);
    lab.refuses(thief, reset.build(), TcpNotSyn);
    lab.refuses(thief, amid(a, b, family, 1, 80), MacSpoofed);
    let data = ip(a, b, family).tcp(1, 80, ACK).seq(1001).ack(1001);
    lab.keeps_passing(a, b, data.payload(b"still here").build());
}
