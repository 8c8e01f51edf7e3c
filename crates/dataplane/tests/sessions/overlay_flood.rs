//! Broadcast, unknown and multicast frames across hosts, what is learnt, and questions that are
//! answered here.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::DropReason::*;
use dataplane::overlay::{Flood, Overlay};
use dataplane::{Location, PortSlot, PortUid};
use wire::vxlan::Ends;
use wire::{Mac, Vni, build, nd};

use crate::lab::*;
use crate::wire_lab::*;

fn broadcast(from: Nic) -> Vec<u8> {
    let frame = build::frame(from.mac, Mac::BROADCAST);
    frame.ip(from.v4, [255, 255, 255, 255]).udp(1, 2).build()
}

/// Two NICs that anybody may send to.
fn two() -> (Host, Nic, Nic) {
    let mut host = Host::new();
    let (a, c) = (host.lab.nic(), host.lab.nic());
    for nic in [a, c] {
        host.lab.group_of(nic, vec![allow_all_in(None)]);
    }
    (host, a, c)
}

#[test]
fn a_broadcast_goes_to_each_host_of_the_network_and_none_goes_back() {
    let (mut host, a, c) = two();
    host.lab.passes(a, c, broadcast(a));
    assert_eq!(
        host.sent(),
        [[0u8; 0]; 0],
        "nothing is flooded unless it is wanted"
    );
    host.learn();
    host.lab.passes(a, c, broadcast(a));
    let copies: Vec<_> = [2, 3].map(|n| outbound(host_ip(n), &broadcast(a))).into();
    assert_eq!(host.sent(), copies);
    let far = machine(20, host_ip(2));
    host.enters_to(far.at, &[a, c], broadcast(far.nic));
}

#[test]
fn one_copy_goes_to_the_group_and_the_group_is_listened_to() {
    let (mut host, a, c) = two();
    let group: IpAddr = [230, 0, 0, 0].into();
    host.configure(|overlay| {
        overlay.learn = true;
        overlay.any_host = true;
        overlay.flood = Flood::Group(group);
    });
    let way = dataplane::underlay::Hop {
        dst_mac: Mac([1, 0, 0x5e, 0x66, 0, 0]),
        ..hop()
    };
    host.set_paths(vec![(group, vec![way]), (host_ip(9), vec![hop()])]);
    host.lab.passes(a, c, broadcast(a));
    let mut expected = outbound(group, &broadcast(a));
    expected[..6].copy_from_slice(&[1, 0, 0x5e, 0x66, 0, 0]);
    assert_eq!(host.sent(), [expected]);
    // Whoever answers is learnt, and sent to directly from then on.
    let far = machine(20, host_ip(9));
    let ends = Ends::new(far.at, group).unwrap();
    host.arrive(arriving(ends, 0, &broadcast(far.nic), 0));
    for nic in [a, c] {
        assert_eq!(host.lab.received(nic), [broadcast(far.nic)]);
    }
    host.leaves(a, far.at, udp(a, far.nic, Family::V4, 1, 2));
    let other = Ends::new(far.at, [230, 0, 0, 1].into()).unwrap();
    host.refuses(arriving(other, 0, &broadcast(far.nic), 0), NotOurs);
}

#[test]
fn machines_are_learnt_move_and_are_forgotten() {
    for family in FAMILIES {
        let (mut host, a, _) = two();
        host.learn();
        let far = machine(20, host_ip(2));
        let there = |port| udp(a, far.nic, family, port, 2);
        let both = [host_ip(2), host_ip(3)];
        host.leaves_to(a, &both, there(1));
        host.enters(far.at, a, udp(far.nic, a, family, 2, 1));
        for _ in 0..3 {
            host.leaves(a, far.at, there(1));
            host.enters(far.at, a, udp(far.nic, a, family, 2, 1));
        }
        assert_eq!(host.lab.sim.load().learned_macs, 1);
        // It has moved.
        host.enters(host_ip(3), a, udp(far.nic, a, family, 2, 1));
        host.leaves(a, host_ip(3), there(1));
        // It stays known while packets of it come, also by packets of one flow alone.
        for _ in 0..8 {
            host.lab.wait(50);
            for _ in 0..2 {
                host.enters(host_ip(3), a, udp(far.nic, a, family, 2, 1));
            }
        }
        host.leaves(a, host_ip(3), there(1));
        host.lab.wait(301);
        host.leaves_to(a, &both, there(9));
        host.lab.wait(60);
        assert_eq!(host.lab.sim.load().learned_macs, 0);
    }
}

#[test]
fn a_binding_wins_and_where_nothing_is_learnt_unknown_machines_are_not_there() {
    let (mut host, a, _) = two();
    host.learn();
    let far = host.far(20, 2);
    host.refuses(
        inbound(host_ip(3), &udp(far.nic, a, Family::V4, 2, 1)),
        RemoteSpoofed,
    );
    host.leaves(a, far.at, udp(a, far.nic, Family::V4, 1, 2));
    assert_eq!(host.lab.sim.load().learned_macs, 0);

    host.configure(|overlay| overlay.learn = false);
    let unknown = machine(30, host_ip(3));
    host.refuses(
        inbound(unknown.at, &udp(unknown.nic, a, Family::V4, 2, 1)),
        RemoteUnbound,
    );
    host.lab
        .refuses(a, udp(a, unknown.nic, Family::V4, 1, 2), NoDestination);
}

#[test]
fn one_host_does_not_take_all_room_for_what_is_learnt() {
    let (mut host, a, _) = two();
    host.learn();
    for n in 0..40 {
        let far = machine(100 + n, host_ip(2));
        host.arrive(inbound(far.at, &udp(far.nic, a, Family::V4, 2, 1)));
    }
    assert_eq!(host.lab.sim.load().learned_macs, 16, "a quarter of 64");
    let other = machine(20, host_ip(3));
    host.arrive(inbound(other.at, &udp(other.nic, a, Family::V4, 2, 1)));
    assert_eq!(host.lab.sim.load().learned_macs, 17);
}

/// A guest of network 0 sends from many MACs. A machine of network 1 moves to its host, and another
/// one comes there.
#[test]
fn machines_of_one_network_take_no_room_of_another_s_at_their_host() {
    let (mut host, a, _) = two();
    host.learn();
    let (crowded, before) = (host_ip(2), host_ip(3));
    let other = host.lab.overlays[0].clone();
    host.lab.overlays[1] = other.map(|overlay| Overlay {
        uid: PortUid(51),
        ..overlay
    });
    let b = host.lab.nic_in(1);
    host.lab.group_of(b, vec![allow_all_in(None)]);
    let sends = |host: &mut Host, machine: Far| {
        let ends = Ends::new(machine.at, HERE).unwrap();
        host.arrive(arriving(ends, 1, &broadcast(machine.nic), 0));
        assert_eq!(host.lab.received(b), [broadcast(machine.nic)]);
    };
    sends(&mut host, machine(20, before));
    for n in 0..40 {
        let far = machine(100 + n, crowded);
        host.arrive(inbound(far.at, &udp(far.nic, a, Family::V4, 2, 1)));
    }
    assert_eq!(host.lab.sim.load().learned_macs, 17);
    sends(&mut host, machine(20, crowded));
    sends(&mut host, machine(21, crowded));
    let vni = Vni::new(1).unwrap();
    let known = host.lab.sim.ask(move |switch| switch.learned(vni)).unwrap();
    let known: Vec<_> = known.iter().map(|one| (one.mac, one.location)).collect();
    let at_crowded = |n| (machine(n, crowded).nic.mac, Location::Host(crowded));
    assert_eq!(known, [at_crowded(20), at_crowded(21)]);
}

#[test]
fn a_network_in_the_place_of_one_that_is_gone_knows_none_of_its_machines() {
    let (mut host, a, _) = two();
    host.learn();
    let far = machine(20, host_ip(2));
    host.enters(far.at, a, udp(far.nic, a, Family::V4, 2, 1));
    host.leaves(a, far.at, udp(a, far.nic, Family::V4, 1, 2));
    // Its index, and the places of its NICs, are those of another network's.
    let vni = Vni::new(77).unwrap();
    let mut config = host.lab.snapshot(1000);
    let network = Arc::make_mut(config.networks[0].as_mut().unwrap());
    network.vni = vni;
    Arc::make_mut(network.overlay.as_mut().unwrap()).uid = PortUid(51);
    for port in config.ports.iter_mut().flatten() {
        let port = Arc::make_mut(port);
        (port.vni, port.uid) = (vni, PortUid(100 + port.uid.0));
    }
    host.lab.sim.publish(config);
    let known = host.lab.sim.ask(move |switch| switch.learned(vni));
    assert_eq!(known.unwrap(), []);
    host.lab.send(a, udp(a, far.nic, Family::V4, 3, 2));
    assert_eq!(host.sent().len(), 2, "to each host of the network");
}

#[test]
fn who_asks_for_a_machine_that_is_bound_elsewhere_hears_it_from_here() {
    let (mut host, a, c) = two();
    host.learn();
    let far = host.far(20, 2);
    host.lab
        .send(a, build::arp_request(a.mac, a.v4, far.nic.v4));
    let reply = build::arp_reply(far.nic.mac, far.nic.v4, a.mac, a.v4);
    assert_eq!(host.lab.received(a), [reply]);
    // A probe (RFC 5227) hears that the address is taken; the NIC has to be allowed to ask for it.
    host.lab.configure(a, |config| config.anti_spoof = false);
    host.lab.send(
        a,
        build::arp_request(a.mac, [0, 0, 0, 0].into(), far.nic.v4),
    );
    let reply = build::arp_reply(far.nic.mac, far.nic.v4, a.mac, [0, 0, 0, 0].into());
    assert_eq!(host.lab.received(a), [reply]);

    host.lab
        .send(a, build::neighbour_solicitation(a.mac, a.v6, far.nic.v6));
    let answer = build::neighbour_advertisement(far.nic.mac, far.nic.v6, a.mac, a.v6);
    assert_eq!(host.lab.received(a), [answer]);
    let nobody = std::net::Ipv6Addr::UNSPECIFIED;
    host.lab
        .send(a, build::neighbour_solicitation(a.mac, nobody, far.nic.v6));
    let taken =
        build::neighbour_advertisement(far.nic.mac, far.nic.v6, nd::ALL_NODES_MAC, nd::ALL_NODES);
    assert_eq!(host.lab.received(a), [taken]);
    assert_eq!((host.sent().len(), host.lab.received(c).len()), (0, 0));
    assert_eq!(host.lab.sim.port(a.slot).tx_frames, 4);

    // Who asks the machine itself wants to hear from it; who asks for one that nobody knows asks
    // everybody.
    let directly = {
        let mut request = build::arp_request(a.mac, a.v4, far.nic.v4);
        request[..6].copy_from_slice(&far.nic.mac.0);
        request
    };
    host.leaves(a, far.at, directly);
    let unknown = build::arp_request(a.mac, a.v4, [10, 0, 0, 99].into());
    host.lab.passes(a, c, unknown.clone());
    assert_eq!(host.sent(), [2, 3].map(|n| outbound(host_ip(n), &unknown)));
    // An announcement is for everybody.
    let announcement = build::arp_request(a.mac, a.v4, a.v4);
    host.lab.send(a, announcement.clone());
    assert_eq!(host.lab.received(c), [announcement]);
}

#[test]
fn a_question_for_a_nic_of_this_host_stays_on_it() {
    let (mut host, a, c) = two();
    host.learn();
    host.lab.passes(a, c, build::arp_request(a.mac, a.v4, c.v4));
    host.lab
        .passes(a, c, build::neighbour_solicitation(a.mac, a.v6, c.v6));
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
}

#[test]
fn where_a_nic_has_come_to_is_told_to_other_hosts_too() {
    let (mut host, a, c) = two();
    host.learn();
    host.lab.sim.announce(a.slot);
    let announcement = build::rarp_announcement(a.mac);
    assert_eq!(host.lab.received(c), std::slice::from_ref(&announcement));
    assert_eq!(
        host.sent(),
        [2, 3].map(|n| outbound(host_ip(n), &announcement))
    );
    assert_eq!(host.lab.sim.port(PortSlot::uplink(0)).tx_frames, 2);
}
