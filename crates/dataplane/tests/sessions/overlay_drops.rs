//! Frames from the wire that are not let in, each with its reason.

use std::net::IpAddr;

use dataplane::DropReason::*;
use dataplane::overlay::Flood;
use wire::offload::Offload;
use wire::vxlan::{Ends, UdpChecksum};
use wire::{Mac, build, checksum};

use crate::lab::*;
use crate::wire_lab::*;

/// A host with a NIC that anybody may send to, and a machine elsewhere.
fn open_host() -> (Host, Nic, Far) {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_all_in(None)]);
    let b = host.far(20, 2);
    (host, a, b)
}

#[test]
fn what_is_not_vxlan_to_us() {
    let (mut host, a, b) = open_host();
    let inner = udp(b.nic, a, Family::V4, 1, 2);
    let good = inbound(b.at, &inner);
    let change = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame[24..26].fill(0);
        let sum = checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    host.refuses(change(36, 0), NotOurs); // another port
    host.refuses(change(23, 6), NotOurs); // TCP
    host.refuses(change(42, 0), NotOurs); // no VNI
    host.refuses(change(33, 99), NotOurs); // to another address
    host.refuses(change(20, 0x20), OuterFragment);
    host.refuses(change(14, 0x44), OuterMalformed);
    host.refuses(change(39, 4), OuterMalformed);
    host.refuses(good[..40].to_vec(), OuterMalformed);
    let mut spoilt = good.clone();
    spoilt[30] ^= 1;
    host.refuses(spoilt, OuterChecksum);
    let group = Ends::new(b.at, IpAddr::from([230, 0, 0, 0])).unwrap();
    host.refuses(arriving(group, 0, &inner, 0), NotOurs);
    // The good frame, unspoilt.
    host.enters(b.at, a, inner);
}

/// The frame in a VLAN, or with a priority alone.
fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let [high, low] = tci.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// Who reaches the port in another VLAN knows our address, and a host's that is declared.
#[test]
fn what_comes_in_another_vlan_than_the_address_is_not_for_us() {
    for ours in [0, 100] {
        let (mut host, a, b) = open_host();
        host.configure(|overlay| overlay.flood = Flood::Group([230, 0, 0, 0].into()));
        host.set_underlay(&[(HERE, ours)], vec![(b.at, vec![hop()])]);
        let inner = udp(b.nic, a, Family::V4, 1, 2);
        let group = Ends::new(b.at, [230, 0, 0, 0].into()).unwrap();
        for good in [inbound(b.at, &inner), arriving(group, 0, &inner, 0)] {
            let mut own = vec![tagged(&good, ours), tagged(&good, 0xe000 | ours)];
            if ours == 0 {
                own.push(good.clone());
            } else {
                host.refuses(good.clone(), NotOurs);
                host.refuses(tagged(&good, 0), NotOurs);
            }
            for frame in own {
                // A good one before it is of the same hosts and the same network.
                for other in [200, 0xe0c8, 4095] {
                    let before = host.lab.drops();
                    assert!(host.wire.send(frame.clone(), Offload::default()));
                    host.arrive(tagged(&good, other));
                    assert_eq!(difference(&before, &host.lab.drops()), [(NotOurs, 1)]);
                    assert_eq!(host.lab.received(a), std::slice::from_ref(&inner));
                    host.refuses(tagged(&good, other), NotOurs);
                }
            }
        }
    }
}

/// An address on a loopback may come in several.
#[test]
fn an_address_may_be_in_several_vlans() {
    let (mut host, a, b) = open_host();
    host.set_underlay(&[(HERE, 0), (HERE, 7)], vec![(b.at, vec![hop()])]);
    let inner = udp(b.nic, a, Family::V4, 1, 2);
    let good = inbound(b.at, &inner);
    for frame in [good.clone(), tagged(&good, 7)] {
        host.arrive(frame);
        assert_eq!(host.lab.received(a), std::slice::from_ref(&inner));
    }
    host.refuses(tagged(&good, 8), NotOurs);
}

#[test]
fn who_is_not_known_and_what_is_for_nobody() {
    let (mut host, a, b) = open_host();
    let inner = udp(b.nic, a, Family::V4, 1, 2);
    host.refuses(inbound(host_ip(9), &inner), UnknownHost);
    let from_us = Ends::new(HERE, HERE).unwrap();
    host.lab.hosts.push(HERE);
    host.lab.publish();
    host.refuses(arriving(from_us, 0, &inner, 0), UnknownHost);
    let ends = Ends::new(b.at, HERE).unwrap();
    host.refuses(arriving(ends, 5, &inner, 0), UnknownVni);
    // A network that is on this host alone has no VNI on the wire.
    host.refuses(arriving(ends, 1, &inner, 0), UnknownVni);
    let nobody = build::frame(b.nic.mac, Mac([2; 6]))
        .ip(b.nic.v4, a.v4)
        .udp(1, 2);
    host.refuses(inbound(b.at, &nobody.build()), NoDestination);
    // What has come from the wire does not go back to it.
    let c = host.far(30, 3);
    host.refuses(
        inbound(b.at, &udp(b.nic, c.nic, Family::V4, 1, 2)),
        NoDestination,
    );
    host.enters(b.at, a, inner);
}

#[test]
fn nobody_out_there_is_one_of_us_or_bound_elsewhere() {
    for family in FAMILIES {
        let (mut host, a, b) = open_host();
        let (local, bound) = (host.lab.nic(), host.far(30, 3));
        let from = |mac| {
            build::frame(mac, a.mac)
                .ip(b.nic.ip(family), a.ip(family))
                .udp(1, 2)
                .build()
        };
        for mac in [local.mac, a.mac, bound.nic.mac, Mac([3; 6])] {
            host.refuses(inbound(b.at, &from(mac)), RemoteSpoofed);
        }
        // Who is bound nowhere may be there where the network learns, and is nobody where it does
        // not.
        let unbound = || inbound(b.at, &from(Mac([2, 0xcc, 0, 0, 0, 1])));
        host.refuses(unbound(), RemoteUnbound);
        host.configure(|overlay| overlay.learn = true);
        host.enters(b.at, a, from(Mac([2, 0xcc, 0, 0, 0, 1])));
        host.configure(|overlay| overlay.learn = false);
        host.refuses(unbound(), RemoteUnbound);
        let stolen = build::frame(b.nic.mac, a.mac).ip(local.ip(family), a.ip(family));
        host.refuses(inbound(b.at, &stolen.udp(1, 2).build()), RemoteSpoofed);
        let claim = match family {
            Family::V4 => build::arp_reply(b.nic.mac, local.v4, a.mac, a.v4),
            Family::V6 => build::neighbour_advertisement(b.nic.mac, local.v6, a.mac, a.v6),
        };
        host.refuses(inbound(b.at, &claim), RemoteSpoofed);
        let honest = match family {
            Family::V4 => build::arp_reply(b.nic.mac, b.nic.v4, a.mac, a.v4),
            Family::V6 => build::neighbour_advertisement(b.nic.mac, b.nic.v6, a.mac, a.v6),
        };
        host.enters(b.at, a, honest);
    }
}

#[test]
fn nobody_out_there_rides_on_a_flow_of_two_of_us() {
    let mut host = Host::new();
    let (a, c) = (host.lab.nic(), host.lab.nic());
    host.lab.group_of(c, vec![allow_in(UDP, 53)]);
    let b = host.far(20, 2);
    host.lab.passes(a, c, udp(a, c, Family::V4, 1000, 53));
    // The answer, as `c` would send it, but from outside.
    let forged = build::frame(b.nic.mac, a.mac).ip(c.v4, a.v4).udp(53, 1000);
    host.refuses(inbound(b.at, &forged.build()), RemoteSpoofed);
    host.lab.passes(c, a, udp(c, a, Family::V4, 53, 1000));
}

#[test]
fn inner_headers_that_lie_are_found_out() {
    let (mut host, a, b) = open_host();
    let good = udp(b.nic, a, Family::V4, 1, 2);
    let with = |at: usize, value: u8| {
        let mut inner = good.clone();
        inner[at] = value;
        inner
    };
    host.refuses(inbound(b.at, &with(17, 200)), Malformed);
    host.refuses(inbound(b.at, &with(14, 0x41)), Malformed);
    host.refuses(inbound(b.at, &good[..36]), Malformed);
    host.refuses(inbound(b.at, &good[..13]), Truncated);
    let tagged = build::frame(b.nic.mac, a.mac)
        .tag(5)
        .ip(b.nic.v4, a.v4)
        .udp(1, 2);
    host.refuses(inbound(b.at, &tagged.build()), Ethertype);
    // Longer headers than are judged, outer ones not counted.
    let long = ip(b.nic, a, Family::V6).extension(60, &[0; 250]).udp(1, 2);
    host.refuses(inbound(b.at, &long.build()), HeadersTooLong);
    host.enters(b.at, a, good);
}

#[test]
fn a_wrong_udp_checksum_over_ipv4_is_found_out_too() {
    let (mut host, a, b) = open_host();
    let inner = ip(b.nic, a, Family::V4)
        .udp(1, 2)
        .payload(&[7; 1200])
        .build();
    let ends = Ends::new(b.at, HERE).unwrap();
    let mut frame = wrap_as(
        (ROUTER_MAC, HERE_MAC),
        ends,
        (0, 5, 0),
        UdpChecksum::Full,
        &inner,
    );
    host.arrive(frame.clone());
    assert_eq!(host.lab.received(a), [inner]);
    *frame.last_mut().unwrap() ^= 1;
    host.refuses(frame, OuterChecksum);
}

#[test]
fn where_no_way_leads_is_told_to_who_follows_the_network() {
    let (mut host, a, b) = open_host();
    host.set_paths(vec![(host_ip(3), vec![hop()]), (b.at, vec![])]);
    for _ in 0..2 {
        host.lab
            .refuses(a, udp(a, b.nic, Family::V4, 1, 2), NoNextHop);
    }
    let switch = host.lab.sim.switch();
    assert_eq!(
        (switch.take_wanted(), switch.take_wanted()),
        (vec![b.at], vec![])
    );
    host.set_paths(vec![(b.at, vec![hop()])]);
    host.leaves(a, b.at, udp(a, b.nic, Family::V4, 1, 2));
    // An uplink whose ring is full, and one that nobody has attached.
    host.wire.set_capacity(1);
    for _ in 0..2 {
        host.lab
            .queue(a, udp(a, b.nic, Family::V4, 1, 2), Default::default());
    }
    let before = host.lab.drops();
    host.lab.sim.run();
    assert_eq!(difference(&before, &host.lab.drops()), [(RingFull, 1)]);
    assert_eq!(host.sent().len(), 1);
    host.lab.sim.detach(dataplane::PortSlot::uplink(0));
    host.lab
        .refuses(a, udp(a, b.nic, Family::V4, 1, 2), TargetDown);
}
