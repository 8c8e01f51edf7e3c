//! Where frames go: networks, unknown and learnt MACs, sniffers, and ports that are not there.

use dataplane::DropReason::*;
use dataplane::snapshot::{PortSlot, PortUid};
use io::frame::HEAD_MAX;
use io::memory_port::MemoryPeer;
use wire::offload::{Gso, Offload};
use wire::{Mac, build};

use crate::lab::*;

#[test]
fn a_network_is_a_world_of_its_own() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b) = (lab.nic(), lab.nic());
        let other = lab.nic_in(1);
        for nic in [b, other] {
            lab.group_of(nic, vec![allow_all_in(None)]);
        }
        lab.passes(
            a,
            b,
            build::frame(a.mac, Mac::BROADCAST)
                .ip(a.ip(family), b.ip(family))
                .udp(1, 2)
                .build(),
        );
        let frame = build::frame(a.mac, other.mac)
            .ip(a.ip(family), other.ip(family))
            .udp(1, 2);
        lab.refuses(a, frame.build(), NoDestination);
        let alone = build::frame(other.mac, Mac::BROADCAST)
            .ip(other.ip(family), b.ip(family))
            .udp(1, 2);
        lab.refuses(other, alone.build(), NoDestination);
    }
}

#[test]
fn what_goes_to_its_sender_is_dropped() {
    let (mut lab, a, _) = Lab::pair(vec![]);
    lab.refuses(a, udp(a, a, Family::V4, 1, 2), Hairpin);
}

/// Who is reached at which MAC is remembered in fewer places than there are NICs, so that some
/// share one.
#[test]
fn frames_of_one_batch_go_each_to_its_own_nic() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let sender = lab.nic();
        let group = lab.group(vec![allow_in(UDP, 53)]);
        let others: Vec<Nic> = (0..60).map(|_| lab.nic()).collect();
        for nic in &others {
            lab.configure(*nic, |config| config.groups.push(group));
        }
        // The first time by the whole path, which opens the fast path to those behind.
        for _ in 0..3 {
            for nic in &others {
                lab.queue(sender, udp(sender, *nic, family, 1, 53), Offload::default());
            }
            lab.sim.run();
            for nic in &others {
                let expected = udp(sender, *nic, family, 1, 53);
                assert_eq!(lab.received(*nic), [expected], "at {:?}", nic.slot);
            }
        }
        assert_eq!(lab.drops().iter().sum::<u64>(), 0);
    }
}

#[test]
fn unknown_macs_are_learnt_behind_nics_that_may_have_them() {
    let mut lab = Lab::new();
    let (a, bridge, bridge2) = (lab.nic(), lab.nic(), lab.nic());
    let nested = Mac([2, 7, 7, 7, 7, 7]);
    for nic in [bridge, bridge2] {
        lab.configure(nic, |config| {
            config.learn_macs = true;
            config.anti_spoof = false;
        });
        lab.group_of(nic, vec![allow_all_in(None), allow_all_out(None)]);
    }
    lab.group_of(a, vec![allow_all_in(None)]);
    let to_nested = |port| {
        build::frame(a.mac, nested)
            .ip(a.v4, bridge.v4)
            .udp(port, 2)
            .build()
    };
    lab.passes_to(a, &[bridge, bridge2], to_nested(1));
    let from_nested = build::frame(nested, a.mac)
        .ip(bridge.v4, a.v4)
        .udp(2, 2)
        .build();
    lab.passes(bridge, a, from_nested.clone());
    lab.passes(a, bridge, to_nested(3));
    // It has moved.
    lab.passes(bridge2, a, from_nested);
    lab.passes(a, bridge2, to_nested(4));
    assert_eq!(lab.sim.load().learned_macs, 1);
    lab.wait(300);
    lab.passes_to(a, &[bridge, bridge2], to_nested(5));
    lab.wait(60);
    assert_eq!(lab.sim.load().learned_macs, 0);
    // A MAC that was given is nobody else's.
    let stolen = build::frame(a.mac, bridge2.mac)
        .ip(bridge.v4, bridge2.v4)
        .udp(2, 2)
        .build();
    lab.refuses(bridge, stolen, MacSpoofed);
}

#[test]
fn a_sniffer_gets_what_is_sent_whatever_becomes_of_it() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let sniffer = lab.nic();
    lab.sniffs(sniffer, a);
    let refused = udp(a, b, Family::V4, 1, 54);
    lab.send(a, refused.clone());
    assert_eq!(lab.received(sniffer), [refused]);
}

#[test]
fn a_receiver_that_cannot_take_a_frame_is_counted_by_why() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let frame = udp(a, b, Family::V4, 1, 2);
    lab.peer(b).set_capacity(0);
    lab.refuses(a, frame.clone(), RingFull);
    lab.peer(b).set_capacity(100);
    lab.peer(b).set_up(false);
    lab.refuses(a, frame.clone(), TargetDown);
    lab.peer(b).set_up(true);
    lab.passes(a, b, frame.clone());
    assert!(lab.sim.detach(b.slot));
    lab.refuses(a, frame.clone(), TargetDown);
    assert_eq!(lab.sim.port(b.slot).drops(TargetDown), (0, 2));
}

#[test]
fn a_broken_port_is_stopped_and_disturbs_nobody() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let c = lab.nic();
    lab.group_of(c, vec![allow_all_in(Some(UDP))]);
    lab.peer(b).break_port("index 9 beyond the table");
    lab.sim.run();
    lab.refuses(a, udp(a, b, Family::V4, 1, 2), TargetDown);
    lab.passes(a, c, udp(a, c, Family::V4, 1, 2));
}

#[test]
fn what_a_port_sends_whose_nic_is_not_there_yet_waits() {
    let mut lab = Lab::new();
    let (a, b) = (lab.nic(), lab.nic());
    lab.group_of(b, vec![allow_all_in(Some(UDP))]);
    let early: MemoryPeer = lab.sim.attach(PortSlot(2));
    let frame = |mac: Mac| {
        build::frame(mac, b.mac)
            .ip([10, 0, 0, 3], b.v4)
            .udp(1, 2)
            .build()
    };
    early.send(frame(Mac([2, 0, 0, 0, 0, 3])), Offload::default());
    assert_eq!(lab.sim.run(), 0);
    lab.delete(a);
    assert!(early.receive().is_none());
    let c = lab.nic_on(early);
    assert_eq!((c.slot, c.uid != PortUid(0)), (PortSlot(2), true));
    assert_eq!(lab.sim.run(), 1);
    assert_eq!(lab.received(b), [frame(c.mac)]);
}

#[test]
fn large_frames_cross_whole_with_their_offloads() {
    for family in FAMILIES {
        let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(TCP))]);
        lab.connect(a, b, family, 1, 80);
        lab.peer(b).accept(io::port::Accepts {
            checksum: true,
            tso4: true,
            tso6: true,
            ..Default::default()
        });
        let frame = ip(a, b, family)
            .tcp(1, 80, ACK)
            .seq(1001)
            .ack(1001)
            .payload(&vec![5; 60_000]);
        let (bytes, offload) = frame.gso(1400).build_with_offload();
        assert!(bytes.len() > HEAD_MAX && offload.gso != Gso::None);
        lab.send_with(a, bytes.clone(), offload);
        assert_eq!(lab.peer(b).receive(), Some((bytes, offload)));
        assert_eq!(lab.flows(), 1);
    }
}

#[test]
fn a_mac_that_nics_share_is_where_it_was_heard_last() {
    for family in FAMILIES {
        let mut lab = Lab::new();
        let (a, b, c) = (lab.nic(), lab.nic(), lab.nic());
        let d = lab.nic();
        for nic in [a, b, c, d] {
            lab.group_of(nic, vec![allow_all_in(None)]);
        }
        lab.configure(c, |config| config.mac = b.mac);
        let to_it = |port| udp(a, b, family, port, 80);
        let from = |nic: Nic, port| {
            let frame = build::frame(b.mac, a.mac).ip(nic.ip(family), a.ip(family));
            frame.udp(port, 90).build()
        };
        // Nobody has been heard: all that have it, and nobody else.
        lab.passes_to(a, &[b, c], to_it(1));
        lab.passes(b, a, from(b, 2));
        lab.passes(a, b, to_it(3));
        lab.passes(a, b, to_it(3));
        lab.passes(c, a, from(c, 4));
        lab.passes(a, c, to_it(5));
        lab.passes(a, c, to_it(5));
        // It is not the learners' to take.
        lab.configure(d, |config| config.learn_macs = true);
        lab.refuses(d, from(d, 6), MacSpoofed);
    }
}
