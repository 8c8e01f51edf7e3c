//! Networks that go on on other hosts: what leaves for them, what comes from them, and the flows
//! between.

use std::net::IpAddr;

use dataplane::DropReason::*;
use dataplane::overlay::Overlay;
use dataplane::underlay::{Encapsulation, Hop, Underlay};
use dataplane::{PortSlot, PortUid, QueueId, Simulation, WorkerConfig};
use io::port::Accepts;
use wire::Mac;
use wire::offload::Offload;
use wire::vxlan::{self, Ends, UdpChecksum};

use crate::contract::fragments::datagram;
use crate::lab::*;
use crate::wire_lab::*;

#[test]
fn a_flow_to_another_host_leaves_in_outer_headers_and_its_answers_enter() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        let b = host.far(20, 2);
        let there = udp(a, b.nic, family, 1000, 53);
        let back = udp(b.nic, a, family, 53, 1000);
        // Nobody may begin with `a`, who is in no group.
        host.refuses(inbound(b.at, &back), NoIngressRule);
        for _ in 0..3 {
            host.leaves(a, b.at, there.clone());
            host.enters(b.at, a, back.clone());
        }
        // Only by the flow: another port is another matter.
        host.refuses(
            inbound(b.at, &udp(b.nic, a, family, 54, 1000)),
            NoIngressRule,
        );
        assert_eq!(host.lab.flows(), 1);
        let flow = &host.lab.sim.flows(None)[0];
        assert_eq!((flow.initiator.uid, flow.responder.uid), (a.uid, b.nic.uid));
        assert_eq!((flow.frames_out, flow.frames_in), (3, 3));
        let uplink = host.lab.sim.port(PortSlot::uplink(0));
        let bytes = (there.len() + 50) as u64 * 3;
        assert_eq!(
            (uplink.tx_frames, uplink.tx_bytes, uplink.rx_frames),
            (3, bytes, 5)
        );
    }
}

#[test]
fn ingress_rules_are_asked_of_what_comes_from_the_wire_and_connections_are_followed() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        host.lab.group_of(a, vec![allow_in(TCP, 80)]);
        let b = host.far(20, 3);
        let from = |flags, seq, ack| {
            let segment = ip(b.nic, a, family).tcp(4000, 80, flags);
            segment.seq(seq).ack(ack).build()
        };
        let to = |flags, seq, ack| {
            let segment = ip(a, b.nic, family).tcp(80, 4000, flags);
            segment.seq(seq).ack(ack).build()
        };
        host.refuses(inbound(b.at, &from(ACK, 5, 5)), TcpNotSyn);
        host.enters(b.at, a, from(SYN, 1000, 0));
        host.leaves(a, b.at, to(SYN_ACK, 1000, 1001));
        host.enters(b.at, a, from(ACK, 1001, 1001));
        for n in 0..20 {
            host.enters(b.at, a, from(ACK, 1001, 1001 + n));
            host.leaves(a, b.at, to(ACK, 1001 + n, 1001));
        }
        let rule = host.lab.sim.rule(dataplane::RuleSlot(0));
        assert_eq!((rule.flows, rule.frames), (1, 43));
        // The group is taken away: the connection is cut, in both directions.
        host.lab.configure(a, |config| config.groups.clear());
        host.refuses(inbound(b.at, &from(ACK, 1001, 1001)), NoIngressRule);
    }
}

#[test]
fn egress_rules_hold_towards_other_hosts_too() {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_out(UDP, 53)]);
    let b = host.far(20, 2);
    host.leaves(a, b.at, udp(a, b.nic, Family::V4, 1, 53));
    host.lab
        .refuses(a, udp(a, b.nic, Family::V4, 1, 54), NoEgressRule);
    assert_eq!(host.sent(), [[0u8; 0]; 0]);
}

#[test]
fn nics_without_rules_need_no_flow_and_take_none() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        host.lab
            .group_of(a, vec![allow_all_in(None), allow_all_out(None)]);
        let b = host.far(20, 2);
        for _ in 0..2 {
            host.leaves(a, b.at, udp(a, b.nic, family, 1, 2));
            host.enters(b.at, a, udp(b.nic, a, family, 2, 1));
        }
        assert_eq!(host.lab.flows(), 0);
        // Not even then may a machine elsewhere use an address of ours.
        let c = host.lab.nic();
        let stolen = wire::build::frame(b.nic.mac, a.mac).ip(c.ip(family), a.ip(family));
        host.refuses(inbound(b.at, &stolen.udp(2, 1).build()), RemoteSpoofed);
    }
}

#[test]
fn a_machine_that_moves_to_another_host_keeps_its_flows() {
    let mut host = Host::new();
    let a = host.lab.nic();
    let b = host.far(20, 2);
    host.leaves(a, b.at, udp(a, b.nic, Family::V4, 1000, 53));
    host.enters(b.at, a, udp(b.nic, a, Family::V4, 53, 1000));
    let moved = host.far(20, 3);
    host.enters(moved.at, a, udp(b.nic, a, Family::V4, 53, 1000));
    host.leaves(a, moved.at, udp(a, b.nic, Family::V4, 1000, 53));
    host.refuses(
        inbound(b.at, &udp(b.nic, a, Family::V4, 53, 1000)),
        RemoteSpoofed,
    );
    assert_eq!(host.lab.flows(), 1);
}

#[test]
fn another_underlay_decides_no_flow_again() {
    let mut host = Host::new();
    let a = host.lab.nic();
    let b = host.far(20, 2);
    let inner = udp(a, b.nic, Family::V4, 1000, 53);
    host.leaves(a, b.at, inner.clone());
    let other = Mac([2, 0xaa, 0, 0, 0, 77]);
    host.set_paths(vec![(
        b.at,
        vec![Hop {
            dst_mac: other,
            ..hop()
        }],
    )]);
    host.lab.send(a, inner.clone());
    let mut expected = outbound(b.at, &inner);
    expected[..6].copy_from_slice(&other.0);
    assert_eq!(host.sent(), [expected]);
    assert_eq!(host.lab.sim.flows(None)[0].frames_out, 2);
}

#[test]
fn hosts_over_ipv6_behind_a_vlan_with_checksums() {
    let here: IpAddr = "2001:db8:ffff::1".parse().unwrap();
    let there: IpAddr = "2001:db8:ffff::2".parse().unwrap();
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.hosts[0] = there;
    let encapsulation = Encapsulation {
        checksum_v6: UdpChecksum::Full,
        dscp: Some(10),
        ttl: 5,
        port: 8472,
        ..Encapsulation::default()
    };
    let way = Hop {
        source: here,
        vlan: Some(7),
        ..hop()
    };
    let underlay = Underlay::new(encapsulation, [(here, 7)], [(there, vec![way])]);
    host.lab.sim.set_underlay(underlay.unwrap());
    let b = machine(20, there);
    host.configure(|overlay| {
        overlay
            .bindings
            .insert(b.nic.mac, dataplane::overlay::HostIdx(0));
    });
    let inner = ip(a, b.nic, Family::V6)
        .tos(0xbb)
        .udp(1, 53)
        .payload(b"hello")
        .build();
    host.lab.send(a, inner.clone());
    let sent = host.sent();
    let received = vxlan::parse(&sent[0], sent[0].len(), 8472).unwrap();
    assert_eq!(
        (received.src, received.dst, received.tos),
        (here, there, 10 << 2 | 3)
    );
    assert_eq!(
        (sent.len(), &sent[0][12..18], sent[0][25]),
        (1, &[0x81, 0, 0, 7, 0x86, 0xdd][..], 5)
    );
    assert!(received.verify(|| wire::checksum::sum(&inner)));
    assert_eq!(&sent[0][usize::from(received.inner)..], inner);

    // And the same way back; a wrong checksum is found out.
    let ends = Ends::new(there, here).unwrap();
    let answer = udp(b.nic, a, Family::V6, 53, 1);
    let mut outer = vxlan::Outer::new(
        (ROUTER_MAC, HERE_MAC),
        Some(7),
        ends,
        64,
        8472,
        UdpChecksum::Full,
    );
    outer.set_flow(wire::Vni::new(0).unwrap(), 1, 0);
    let mut back = vec![0; outer.len()];
    outer.write(&mut back, answer.len(), wire::checksum::sum(&answer));
    back.extend_from_slice(&answer);
    host.arrive(back.clone());
    assert_eq!(host.lab.received(a), [answer]);
    *back.last_mut().unwrap() ^= 1;
    host.refuses(back, OuterChecksum);
}

#[test]
fn large_frames_are_cut_on_the_way_out_each_segment_in_headers_of_its_own() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        let b = host.far(20, 2);
        let large = |n: usize| {
            ip(a, b.nic, family)
                .udp(1, 53)
                .payload(&vec![7; n])
                .gso(1000)
        };
        let (frame, offload) = large(2500).build_with_offload();
        host.lab.send_with(a, frame.clone(), offload);
        let sent = host.sent();
        let lens: Vec<usize> = sent.iter().map(Vec::len).collect();
        let headers = 50 + frame.len() - 2500;
        assert_eq!(lens, [headers + 1000, headers + 1000, headers + 500]);
        let ports: Vec<u16> = sent
            .iter()
            .map(|frame| vxlan::parse(frame, frame.len(), vxlan::PORT).unwrap().sport)
            .collect();
        assert!(ports.iter().all(|port| *port == ports[0]));
        // Each is a datagram with a checksum that is right.
        for frame in &sent {
            let packet = wire::parse::parse(&frame[50..], frame.len() - 50).unwrap();
            assert!(packet.ip().is_some());
            assert_eq!(l4_sum(&frame[50..]), 0xffff);
        }
    }
}

/// The sum of a UDP datagram with its pseudo-header.
fn l4_sum(inner: &[u8]) -> u16 {
    let packet = wire::parse::parse(inner, inner.len()).unwrap();
    let ip = packet.ip().unwrap();
    let (l4, len) = (usize::from(ip.l4), ip.l4_len() as u32);
    let pseudo = match (ip.src(), ip.dst()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => wire::checksum::pseudo_v4(src, dst, ip.protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => wire::checksum::pseudo_v6(src, dst, ip.protocol, len),
        _ => unreachable!("one family"),
    };
    wire::checksum::fold(wire::checksum::add(
        pseudo,
        wire::checksum::sum(&inner[l4..]),
    ))
}

#[test]
fn a_partial_checksum_is_completed_before_the_wire() {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.peer(a).accept(Accepts::ALL);
    let b = host.far(20, 2);
    let whole = ip(a, b.nic, Family::V4).udp(1, 53).payload(b"hello");
    let (frame, offload) = whole.clone().partial_checksum().build_with_offload();
    host.lab.send_with(a, frame, offload);
    assert_eq!(host.sent(), [outbound(b.at, &whole.build())]);
}

#[test]
fn marks_of_congestion_come_in_and_go_out() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        host.lab.group_of(a, vec![allow_all_in(None)]);
        let b = host.far(20, 2);
        let inner = |tos| {
            ip(b.nic, a, family)
                .tos(tos)
                .udp(2, 1)
                .payload(b"hi")
                .build()
        };
        let ends = Ends::new(b.at, HERE).unwrap();
        for (sent, outer, arrives) in [
            (0, 0, 0),
            (2, 3, 3),
            (1, 3, 3),
            (2, 1, 1),
            (0xb8, 0x01, 0xb8),
            (3, 0, 3),
        ] {
            host.arrive(arriving(ends, 0, &inner(sent), outer));
            assert_eq!(host.lab.received(a), [inner(arrives)], "{sent} in {outer}");
        }
        host.refuses(arriving(ends, 0, &inner(0xb8), 3), EcnNotCapable);
        for tos in [0, 1, 2, 3, 0xb9] {
            host.leaves(a, b.at, ip(a, b.nic, family).tos(tos).udp(1, 2).build());
        }
    }
}

#[test]
fn several_ways_share_the_flows_and_each_keeps_to_its_own() {
    let mut host = Host::new();
    let a = host.lab.nic();
    let b = host.far(20, 2);
    let second = host.lab.sim.attach(PortSlot::uplink(1));
    let other = Hop {
        uplink: PortSlot::uplink(1),
        ..hop()
    };
    host.set_paths(vec![(b.at, vec![hop(), other])]);
    let mut shares = [0, 0];
    for sport in 1000..1064 {
        for _ in 0..2 {
            host.lab.send(a, udp(a, b.nic, Family::V4, sport, 53));
        }
        let here = host.sent().len();
        let there = std::iter::from_fn(|| second.receive()).count();
        assert!(
            matches!((here, there), (2, 0) | (0, 2)),
            "{here} and {there}"
        );
        shares[usize::from(there == 2)] += 1;
    }
    assert!(shares.iter().all(|share| *share > 16), "{shares:?}");
}

#[test]
fn a_worker_without_a_queue_of_the_uplink_has_another_one_send() {
    let mut host = Host::on(Simulation::several(2));
    let a = host.lab.nic();
    let b = host.far(20, 2);
    let uplink: QueueId = PortSlot::uplink(0).into();
    let worker = host.lab.sim.worker_of(a.slot).unwrap();
    assert!(host.lab.sim.move_queue(uplink, 1 - worker));
    let frames: Vec<_> = (0..5)
        .map(|n| udp(a, b.nic, Family::V4, 1000 + n % 2, 53))
        .collect();
    for frame in &frames {
        host.lab.queue(a, frame.clone(), Offload::default());
    }
    host.lab.sim.run();
    let expected: Vec<_> = frames.iter().map(|frame| outbound(b.at, frame)).collect();
    assert_eq!(host.sent(), expected);
    assert_eq!(host.lab.sim.port(PortSlot::uplink(0)).tx_frames, 5);
    // And what comes back is judged there and delivered here.
    host.enters(b.at, a, udp(b.nic, a, Family::V4, 53, 1000));
    // The uplink is taken away: counted for it.
    host.lab.sim.detach(PortSlot::uplink(0));
    host.lab.refuses(a, frames[0].clone(), TargetDown);
}

#[test]
fn fragments_from_the_wire_wait_for_their_first_one() {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_in(UDP, 53)]);
    let b = host.far(20, 2);
    let whole = ip(b.nic, a, Family::V4)
        .udp(1, 53)
        .payload(&[7; 2000])
        .build();
    let pieces = wire::build::fragments(&whole, 1000, 5);
    host.arrive(inbound(b.at, &pieces[1]));
    host.lab.silent();
    host.arrive(inbound(b.at, &pieces[0]));
    let arrived = host.lab.received(a);
    assert_eq!(arrived.len(), 2);
    assert!(arrived.contains(&pieces[0]) && arrived.contains(&pieces[1]));
    // And that which nobody may send is dropped with its first one.
    let whole = ip(b.nic, a, Family::V4)
        .udp(1, 54)
        .payload(&[7; 2000])
        .build();
    let pieces = wire::build::fragments(&whole, 1000, 6);
    host.refuses(inbound(b.at, &pieces[0]), NoIngressRule);
    host.refuses(inbound(b.at, &pieces[1]), FragmentOfDropped);
}

/// A host that takes part in several networks has its part of the room for fragments once.
#[test]
fn a_host_s_fragments_leave_room_to_other_hosts_in_whatever_networks_they_are() {
    let mut host = Host::on(Simulation::new(WorkerConfig {
        max_flows: 4096,
        max_fragments: 32,
        max_learned_macs: 64,
        seed: 1,
        on_broken: Box::new(|_, _| {}),
    }));
    for (overlay, uid) in host.lab.overlays.iter_mut().zip(50..) {
        *overlay = Some(Overlay {
            learn: true,
            any_host: true,
            ..Overlay::new(PortUid(uid))
        });
    }
    let nics = [0, 1, 2].map(|network| {
        let nic = host.lab.nic_in(network);
        host.lab.group_of(nic, vec![allow_in(UDP, 53)]);
        nic
    });
    let sent = |network: u32, at: u8, id| {
        let (from, to) = (machine(20 + at, host_ip(at)), nics[network as usize]);
        let first = datagram(from.nic, to, Family::V4, 53, id).remove(0);
        let ends = Ends::new(from.at, HERE).unwrap();
        (arriving(ends, network, &first, 0), first)
    };
    // An eighth for one network, a quarter in all, and one more where there is none.
    for (network, room) in [(0, 4), (1, 4), (2, 1)] {
        for id in 0..room {
            let (frame, first) = sent(network, 2, id);
            host.arrive(frame);
            assert_eq!(host.lab.received(nics[network as usize]), [first]);
        }
        host.refuses(sent(network, 2, 99).0, FragmentTableFull);
    }
    let (frame, first) = sent(2, 3, 1);
    host.arrive(frame);
    assert_eq!(host.lab.received(nics[2]), [first]);
}

#[test]
fn flows_from_outside_are_at_the_cost_of_the_nic_that_they_reach() {
    let mut host = Host::new();
    let (a, c) = (host.lab.nic(), host.lab.nic());
    for nic in [a, c] {
        host.lab.group_of(nic, vec![allow_all_in(Some(UDP))]);
        host.lab.configure(nic, |config| config.flow_share = 10);
    }
    let b = host.far(20, 2);
    for sport in 0..30 {
        host.arrive(inbound(b.at, &udp(b.nic, a, Family::V4, 1000 + sport, 53)));
    }
    assert_eq!(host.lab.received(a).len(), 30);
    assert_eq!(host.lab.flows(), 10, "the oldest unanswered ones went");
    host.enters(b.at, c, udp(b.nic, c, Family::V4, 1, 53));
    assert_eq!(host.lab.flows(), 11);
    host.lab.delete(a);
    assert_eq!(host.lab.flows(), 1);
}

/// What strangers send to NICs that are only declared takes no room of the table.
#[test]
fn what_is_for_a_nic_that_nothing_is_attached_to_begins_no_flow() {
    for family in FAMILIES {
        let mut host = Host::new();
        let a = host.lab.nic();
        host.lab.group_of(a, vec![allow_all_in(Some(UDP))]);
        let b = host.far(20, 2);
        let sent = |sport| udp(b.nic, a, family, sport, 53);
        host.enters(b.at, a, sent(1));
        assert!(host.lab.sim.detach(a.slot));
        for sport in 1..5 {
            host.refuses(inbound(b.at, &sent(sport)), TargetDown);
        }
        assert_eq!(host.lab.flows(), 1, "the one of before stays");
        let guest = host.lab.sim.attach(a.slot);
        for sport in [1, 2] {
            host.arrive(inbound(b.at, &sent(sport)));
            let arrived = guest.receive().map(|(frame, _)| frame);
            assert_eq!(arrived, Some(sent(sport)));
        }
        assert_eq!(host.lab.flows(), 2);
    }
}

/// By one worker strangers send a NIC more connections that they never complete than it may have,
/// and do not stop; by another one it begins its own.
#[test]
fn a_share_that_strangers_fill_does_not_keep_a_nic_of_another_worker_from_beginning() {
    for family in FAMILIES {
        let mut host = Host::on(Simulation::several(2));
        let a = host.lab.nic();
        let workers = [PortSlot::uplink(0), a.slot].map(|slot| host.lab.sim.worker_of(slot));
        assert_eq!(workers, [Some(0), Some(1)]);
        host.lab.group_of(a, vec![allow_in(TCP, 80)]);
        let share = host.lab.share(a);
        let (b, c) = (host.far(20, 2), host.far(21, 3));
        let flood = |host: &mut Host, sport| {
            let syn = ip(b.nic, a, family).tcp(sport, 80, SYN).seq(1).build();
            host.arrive(inbound(b.at, &syn));
            assert_eq!(host.lab.received(a), [syn]);
        };
        (0..2 * share).for_each(|sport| flood(&mut host, 1000 + sport));
        host.lab.wait(1);
        for sport in 1..=4 {
            let syn = ip(a, c.nic, family).tcp(sport, 443, SYN).seq(1000);
            host.leaves(a, c.at, syn.build());
            flood(&mut host, 2000 + sport);
            let answer = ip(c.nic, a, family).tcp(443, sport, SYN_ACK);
            host.enters(c.at, a, answer.seq(1000).ack(1001).build());
            host.leaves(a, c.at, amid(a, c.nic, family, sport, 443));
            assert_eq!(host.lab.flows(), usize::from(share));
        }
    }
}
