//! Several workers: NICs and queues spread over them, frames handed from one to the other, queues
//! that move.

use std::time::Duration;

use dataplane::DropReason::*;
use dataplane::snapshot::PortSlot;
use dataplane::{QueueId, Simulation};
use io::frame::BATCH;
use io::memory_port::MemoryPeer;
use io::port::Accepts;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use wire::offload::Offload;
use wire::{Mac, build};

use crate::lab::*;

/// As many NICs as workers, each with one of its own, and each open to all.
fn lab(workers: usize, nics: usize) -> (Lab, Vec<Nic>) {
    let mut lab = Lab::on(Simulation::several(workers));
    let nics: Vec<Nic> = (0..nics).map(|_| lab.nic()).collect();
    for &nic in &nics {
        lab.group_of(nic, vec![allow_all_in(None)]);
    }
    (lab, nics)
}

fn pair(slot: PortSlot, pair: u16) -> QueueId {
    QueueId { slot, pair }
}

#[test]
fn new_nics_go_to_the_worker_that_has_fewest() {
    let (mut lab, nics) = lab(3, 7);
    let workers =
        |lab: &Lab| -> Vec<_> { nics.iter().map(|nic| lab.sim.worker_of(nic.slot)).collect() };
    assert_eq!(workers(&lab), [0, 1, 2, 0, 1, 2, 0].map(Some));
    assert!(lab.sim.detach(nics[1].slot));
    lab.sim.attach(nics[1].slot);
    assert_eq!(workers(&lab), [0, 1, 2, 0, 1, 2, 0].map(Some));
    let queues: Vec<u64> = lab.sim.loads().iter().map(|load| load.queues).collect();
    assert_eq!(queues, [3, 2, 2]);
}

#[test]
fn a_connection_is_one_for_the_workers_of_both_ends() {
    for family in FAMILIES {
        let (mut lab, nics) = lab(2, 2);
        let (a, b) = (nics[0], nics[1]);
        lab.set_rules(dataplane::GroupIdx(0), vec![]);
        lab.set_rules(dataplane::GroupIdx(1), vec![allow_in(TCP, 22)]);
        lab.connect(a, b, family, 9, 22);
        assert_eq!(lab.flows(), 1);
        for sequence in 0..40 {
            let data = ip(a, b, family)
                .tcp(9, 22, ACK)
                .seq(1001 + sequence)
                .ack(1001);
            lab.passes(a, b, data.payload(b"x").build());
        }
        let frames: Vec<_> = lab.sim.loads().iter().map(|load| load.frames).collect();
        assert_eq!(frames, [42, 1], "each received what its NIC sent");
        let loads = lab.sim.loads();
        assert_eq!((loads[0].handed_over, loads[1].taken_over), (42, 42));
        assert_eq!((loads[1].handed_over, loads[0].taken_over), (1, 1));
    }
}

#[test]
fn a_queue_moves_and_its_connection_does_not_notice() {
    let (mut lab, nics) = lab(3, 2);
    let (a, b) = (nics[0], nics[1]);
    lab.set_rules(dataplane::GroupIdx(0), vec![]);
    lab.connect(a, b, Family::V4, 9, 22);
    for round in 0..6u32 {
        let nic = [a, b][round as usize % 2];
        let to = round as usize % 3;
        assert!(lab.sim.move_queue(nic.slot, to));
        assert_eq!(lab.sim.worker_of(nic.slot), Some(to));
        let data = ip(a, b, Family::V4)
            .tcp(9, 22, ACK)
            .seq(1001 + round)
            .ack(1001 + round);
        lab.passes(a, b, data.payload(b"x").build());
        let data = ip(b, a, Family::V4)
            .tcp(22, 9, ACK)
            .seq(1001 + round)
            .ack(1002 + round);
        lab.passes(b, a, data.payload(b"y").build());
    }
    assert!(!lab.sim.move_queue(a.slot, 3), "there is no such worker");
    assert!(!lab.sim.move_queue(PortSlot(9), 0), "nor such a queue");
    assert_eq!(lab.flows(), 1);
}

/// security-groups.md 11, where another worker has the flows that are to go.
#[test]
fn a_nic_that_was_moved_with_a_full_share_begins_new_flows() {
    for family in FAMILIES {
        let (mut lab, nics) = lab(2, 2);
        let (a, b) = (nics[0], nics[1]);
        lab.set_rules(dataplane::GroupIdx(0), vec![]);
        let share = lab.share(a);
        for sport in 0..share {
            lab.passes(a, b, udp(a, b, family, sport, 53));
        }
        assert!(lab.sim.move_queue(a.slot, 1));
        lab.wait(1);
        for sport in 100..100 + 2 * share {
            lab.passes(a, b, udp(a, b, family, sport, 53));
            assert_eq!(lab.flows(), usize::from(share));
        }
        let mut kept: Vec<_> = lab
            .sim
            .flows(None)
            .iter()
            .map(|flow| flow.initiator.port)
            .collect();
        kept.sort_unstable();
        assert!(kept.into_iter().eq(100 + share..100 + 2 * share));
    }
}

/// What is imported is the first worker's, whoever has the NIC.
#[test]
fn imported_flows_that_are_idle_go_for_those_that_a_nic_of_another_worker_begins() {
    for family in FAMILIES {
        let (mut lab, nics) = lab(2, 2);
        let (b, a) = (nics[0], nics[1]);
        lab.set_rules(dataplane::GroupIdx(1), vec![]);
        let share = lab.share(a);
        for sport in 0..share {
            lab.connect(a, b, family, 1000 + sport, 80);
        }
        lab.wait(61);
        let flows = lab.sim.flows(None);
        assert_eq!(lab.sim.remove_flows(&flows), usize::from(share));
        assert_eq!(lab.sim.import_flows(flows), usize::from(share));
        for sport in 0..share {
            lab.connect(a, b, family, 2000 + sport, 80);
            assert_eq!(lab.flows(), usize::from(share));
        }
        // Now all are in use.
        let syn = ip(a, b, family).tcp(3000, 80, SYN).seq(1).build();
        lab.refuses(a, syn, FlowShareFull);
    }
}

#[test]
fn what_comes_for_a_queue_that_moves_is_sent_after_it() {
    let (mut lab, nics) = lab(3, 4);
    let (a, b, d) = (nics[0], nics[1], nics[3]);
    let frames: Vec<_> = (0..3).map(|port| udp(a, b, Family::V4, 1, port)).collect();
    let from_d = udp(d, b, Family::V4, 1, 2);
    let switch = lab.sim.switch();
    lab.queue(a, frames[0].clone(), Offload::default());
    lab.sim.turn_of(0);
    // Handed to worker 1, whose queue goes to worker 2 before worker 1 looks at its ring.
    let moving = std::thread::spawn(move || switch.move_queue(b.slot.into(), 2));
    while !lab.sim.is_called(1) {
        std::thread::yield_now();
    }
    lab.sim.turn_of(1);
    assert_eq!(moving.join().unwrap(), Ok(true));
    // Worker 2 has not looked at all yet: worker 0 knows nothing of the move.
    lab.queue(d, from_d.clone(), Offload::default());
    lab.queue(a, frames[1].clone(), Offload::default());
    lab.sim.turn_of(0);
    lab.sim.turn_of(1);
    assert_eq!(lab.received(b), Vec::<Vec<u8>>::new());
    lab.sim.turn_of(2);
    let mut arrived = lab.received(b);
    assert!(arrived.contains(&from_d));
    arrived.retain(|frame| *frame != from_d);
    assert_eq!(arrived, frames[..2]);
    lab.sim.run();
    lab.passes(a, b, frames[2].clone());
    assert_eq!(difference(&[0; 99], &lab.drops()), []);
}

#[test]
fn a_port_that_is_taken_away_waits_for_the_batch_that_is_out() {
    let (mut lab, nics) = lab(2, 2);
    let (a, b) = (nics[0], nics[1]);
    let mut guest = Guest::new(GuestOptions::default());
    lab.sim.attach_port(a.slot, guest.port().into());
    let frame = ip(a, b, Family::V4).udp(1, 2).payload(&[7; 1000]).build();
    for _ in 0..BATCH + 8 {
        guest.send(&frame, Offload::default(), &Shape::cut(&[12, 300]));
    }
    guest.transmitq.publish();
    assert_eq!((lab.sim.turn_of(0).frames, guest.reclaim()), (BATCH, 0));
    assert_eq!((lab.sim.turn_of(0).frames, guest.reclaim()), (8, 0));
    assert_eq!(lab.received(b), Vec::<Vec<u8>>::new());

    let port = lab.sim.take(a.slot).expect("the port of a");
    assert_eq!(guest.reclaim(), BATCH + 8);
    assert_eq!(lab.received(b), vec![frame.clone(); BATCH + 8]);
    lab.sim.attach_port(a.slot, port);
    guest.send(&frame, Offload::default(), &Shape::whole());
    guest.transmitq.publish();
    lab.sim.run();
    assert_eq!((lab.received(b).len(), guest.reclaim()), (1, 1));
}

#[test]
fn a_queue_with_too_many_batches_out_waits_for_them() {
    let (mut lab, nics) = lab(2, 4);
    let (a, b, c) = (nics[0], nics[1], nics[2]);
    for _ in 0..10 * BATCH {
        lab.queue(a, udp(a, b, Family::V4, 1, 2), Offload::default());
    }
    let turns: Vec<_> = (0..10).map(|_| lab.sim.turn_of(0).frames).collect();
    assert_eq!(turns, [[BATCH; 8].as_slice(), &[0, 0]].concat());
    lab.queue(c, udp(c, a, Family::V4, 1, 2), Offload::default());
    assert_eq!(lab.sim.turn_of(0).frames, 1, "others do not wait");
    assert_eq!(lab.sim.turn_of(1).messages, 8);
    assert_eq!(lab.sim.turn_of(0).frames, BATCH);
    lab.sim.run();
    assert_eq!(
        (lab.received(b).len(), lab.received(a).len()),
        (10 * BATCH, 1)
    );
}

/// Whether they send to a worker that is slow by four queues of one NIC or by four NICs.
#[test]
fn who_has_batches_out_leaves_some_to_others() {
    for of_one_nic in [true, false] {
        let (mut lab, nics) = lab(2, 12);
        let (c, slow, d) = (nics[0], nics[1], nics[2]);
        let queues = match of_one_nic {
            true => [1, 2, 3, 4].map(|number| pair(nics[4].slot, number)),
            false => [4, 6, 8, 10].map(|number| nics[number].slot.into()),
        };
        let peers = queues.map(|queue| lab.sim.attach(queue));
        for (queue, peer) in queues.into_iter().zip(&peers) {
            assert!(lab.sim.move_queue(queue, 0));
            let from = nics[queue.slot.0 as usize];
            for _ in 0..10 * BATCH {
                assert!(peer.send(udp(from, slow, Family::V4, 1, 2), Offload::default()));
            }
        }
        for _ in 0..40 {
            lab.sim.turn_of(0);
        }
        lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
        lab.queue(c, udp(c, slow, Family::V4, 1, 2), Offload::default());
        lab.sim.turn_of(0);
        assert_eq!(lab.sim.port(c.slot).rx_frames, 2);
        assert_eq!(lab.received(d).len(), 1);
        lab.peer(slow).set_capacity(50 * BATCH);
        lab.sim.run();
        assert_eq!(lab.received(slow).len(), 40 * BATCH + 1);
    }
}

/// One batch each is handed over, and nobody has to wait who sends to no slow worker.
#[test]
fn more_senders_to_a_slow_worker_than_there_are_batches_stop_nobody() {
    let (mut lab, nics) = lab(2, 90);
    let here: Vec<Nic> = nics.iter().step_by(2).copied().collect();
    let (slow, senders, c, d) = (nics[1], &here[..40], here[40], here[41]);
    for from in senders {
        for _ in 0..3 * BATCH {
            lab.queue(
                *from,
                udp(*from, slow, Family::V4, 1, 2),
                Offload::default(),
            );
        }
    }
    for _ in 0..20 {
        lab.sim.turn_of(0);
    }
    for from in senders {
        assert!(lab.sim.port(from.slot).rx_frames >= BATCH as u64);
    }
    lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
    lab.sim.turn_of(0);
    assert_eq!(lab.received(d).len(), 1);
    lab.peer(slow).set_capacity(200 * BATCH);
    lab.sim.run();
    assert_eq!(lab.received(slow).len(), 40 * 3 * BATCH);
    assert_eq!(difference(&[0; 99], &lab.drops()), []);
}

/// They are for a worker that is slow, and nobody pays for the batches that they go in.
#[test]
fn fragments_that_waited_for_their_first_one_leave_batches_to_others() {
    for family in FAMILIES {
        let (mut lab, nics) = lab(2, 4);
        let (a, slow, c) = (nics[0], nics[1], nics[2]);
        lab.set_rules(dataplane::GroupIdx(1), vec![allow_in(UDP, 53)]);
        let whole = ip(a, slow, family).udp(1, 53).payload(&[7; 32 * 512 - 8]);
        let parts = build::fragments(&whole.build(), 512, 1);
        assert_eq!(parts.len(), 32);
        for part in parts[1..].iter().chain(&parts[..1]) {
            lab.queue(a, part.clone(), Offload::default());
            lab.sim.turn_of(0);
        }
        for _ in 0..10 * BATCH {
            lab.queue(c, udp(c, slow, family, 1, 53), Offload::default());
        }
        for _ in 0..40 {
            lab.sim.turn_of(0);
        }
        assert_eq!(lab.sim.port(c.slot).rx_frames, 8 * BATCH as u64);
        lab.peer(slow).set_capacity(20 * BATCH);
        lab.sim.run();
        assert_eq!(lab.received(slow).len(), 32 + 10 * BATCH);
    }
}

/// Of the frames of one NIC, this many batches, eight are out at a slow worker; beside it another
/// one has large ones to send that cost much. Gives the slow worker's NIC.
fn beside_eight_batches_out(batches: usize) -> (Lab, Nic) {
    let (mut lab, nics) = lab(2, 6);
    let (c, slow, flooder, d) = (nics[0], nics[1], nics[2], nics[4]);
    for _ in 0..batches * BATCH {
        lab.queue(c, udp(c, slow, Family::V4, 1, 2), Offload::default());
    }
    for _ in 0..8 {
        assert_eq!(lab.sim.turn_of(0).frames, BATCH);
    }
    lab.peer(d).accept(Accepts::ALL);
    let large = ip(flooder, d, Family::V4).udp(1, 2).payload(&[7; 60_000]);
    let (large, offload) = large.gso(1400).build_with_offload();
    for _ in 0..2 * BATCH {
        lab.queue(flooder, large.clone(), offload);
    }
    (lab, slow)
}

/// So that who owes a turn beside it is not alone.
#[test]
fn who_waits_for_its_batches_is_a_sender() {
    let (mut lab, _) = beside_eight_batches_out(10);
    let turns: Vec<_> = (0..10).map(|_| lab.sim.turn_of(0).frames).collect();
    assert_eq!(turns, [[BATCH].as_slice(), &[0; 9]].concat());
}

/// It has nothing more to send: nobody has to wait beside it.
#[test]
fn who_has_sent_all_is_no_sender_while_its_batches_are_out() {
    let (mut lab, slow) = beside_eight_batches_out(8);
    assert_eq!(lab.sim.turn_of(0).frames, BATCH);
    assert_ne!(lab.sim.turn_of(0).frames, 0, "it is alone");
    lab.sim.run();
    assert_eq!(lab.received(slow).len(), 8 * BATCH);
}

/// Each frame of theirs is a message of its own for the other worker.
#[test]
fn who_sends_to_many_leaves_room_in_the_ring_to_others() {
    let (mut lab, nics) = lab(2, 140);
    let here: Vec<Nic> = nics.iter().step_by(2).copied().collect();
    let there: Vec<Nic> = nics.iter().skip(1).step_by(2).copied().collect();
    let (targets, quiet) = (&there[..BATCH], there[BATCH]);
    for (turn, from) in (0..8).flat_map(|turn| here[..4].iter().map(move |from| (turn, *from))) {
        for to in targets {
            lab.queue(
                from,
                udp(from, *to, Family::V4, turn, 2),
                Offload::default(),
            );
        }
    }
    for _ in 0..40 {
        lab.sim.turn_of(0);
    }
    assert_ne!(difference(&[0; 99], &lab.drops()), [], "it is full to them");
    let frame = udp(here[4], quiet, Family::V4, 1, 2);
    lab.queue(here[4], frame.clone(), Offload::default());
    lab.sim.turn_of(0);
    lab.sim.run();
    assert_eq!(lab.received(quiet), [frame]);
}

#[test]
fn a_worker_that_is_behind_loses_frames_and_holds_nobody_up() {
    let (mut lab, nics) = lab(2, 80);
    // Broadcasts of the NICs of worker 0: 40 transfers each for worker 1.
    for nic in nics.iter().step_by(2) {
        let frame = build::frame(nic.mac, Mac::BROADCAST)
            .ip(nic.v4, nics[1].v4)
            .udp(1, 2);
        lab.queue(*nic, frame.build(), Offload::default());
    }
    for _ in 0..4 {
        lab.sim.turn_of(0);
    }
    let full = 40 * 40 - 1024;
    assert_eq!(difference(&[0; 99], &lab.drops()), [(HandoffFull, full)]);
    lab.sim.run();
    let arrived: usize = nics.iter().map(|nic| lab.received(*nic).len()).sum();
    assert_eq!(arrived as u64, 40 * 79 - full);
    assert_eq!(difference(&[0; 99], &lab.drops()), [(HandoffFull, full)]);
}

#[test]
fn a_worker_that_stops_gives_back_what_it_had() {
    let (mut lab, nics) = lab(2, 4);
    let (a, b, c) = (nics[0], nics[1], nics[2]);
    let mut guest = Guest::new(GuestOptions::default());
    lab.sim.attach_port(a.slot, guest.port().into());
    let mut send = |lab: &mut Lab, to: Nic| {
        guest.send(
            &udp(a, to, Family::V4, 1, 2),
            Offload::default(),
            &Shape::whole(),
        );
        guest.transmitq.publish();
        lab.sim.turn_of(0);
        guest.reclaim()
    };
    assert_eq!(send(&mut lab, b), 0, "out");
    lab.sim.stop(1);
    assert_eq!(difference(&[0; 99], &lab.drops()), [(TargetDown, 1)]);
    assert_eq!(send(&mut lab, b), 2, "the one that was out, and this one");
    assert_eq!(difference(&[0; 99], &lab.drops()), [(TargetDown, 2)]);
    assert_eq!(send(&mut lab, c), 1);
    assert_eq!(lab.received(c).len(), 1);
    assert!(!lab.sim.move_queue(c.slot, 1), "it stays where it is");
    lab.send(c, udp(c, a, Family::V4, 1, 2));
    assert_eq!(guest.receive().len(), 1);
    assert!(lab.sim.detach(a.slot));
}

#[test]
fn who_watches_sees_frames_of_other_workers() {
    for (source, target, sniffer) in [(0, 1, 2), (0, 1, 0), (0, 1, 1), (0, 0, 1)] {
        let (mut lab, nics) = lab(3, 3);
        let (a, b, s) = (nics[0], nics[1], nics[2]);
        lab.configure(s, |config| config.is_sniffer = true);
        for (nic, worker) in [(a, source), (b, target), (s, sniffer)] {
            assert!(lab.sim.move_queue(nic.slot, worker));
        }
        let frame = udp(a, b, Family::V4, 1, 2);
        lab.configure(b, |config| config.sniffers.push(s.slot));
        lab.passes_to(a, &[b, s], frame.clone());
        lab.configure(b, |config| config.sniffers.clear());
        lab.configure(a, |config| config.sniffers.push(s.slot));
        lab.passes_to(a, &[b, s], frame.clone());
        assert_eq!(
            (
                lab.sim.port(b.slot).tx_frames,
                lab.sim.port(s.slot).tx_frames
            ),
            (2, 2)
        );

        // What the one who watches may not be sent, whoever made the copy would have sent.
        lab.configure(a, |config| config.sniffers.clear());
        lab.configure(b, |config| config.sniffers.push(s.slot));
        lab.configure(s, |config| config.link_down = true);
        lab.send(a, frame.clone());
        assert_eq!(lab.received(b), [frame]);
        assert_eq!(lab.sim.port(s.slot).drops(LinkDown), (0, 1));
        lab.silent();
    }
}

#[test]
fn macs_that_one_worker_learns_the_others_know() {
    let (mut lab, nics) = lab(3, 3);
    let (a, bridge, other) = (nics[0], nics[1], nics[2]);
    let nested = Mac([2, 7, 7, 7, 7, 7]);
    for nic in [bridge, other] {
        lab.configure(nic, |config| {
            config.learn_macs = true;
            config.anti_spoof = false;
        });
        lab.group_of(nic, vec![allow_all_out(None)]);
    }
    let to_nested = build::frame(a.mac, nested)
        .ip(a.v4, bridge.v4)
        .udp(1, 2)
        .build();
    lab.passes_to(a, &[bridge, other], to_nested.clone());
    let from_nested = build::frame(nested, a.mac)
        .ip(bridge.v4, a.v4)
        .udp(2, 1)
        .build();
    lab.passes(bridge, a, from_nested.clone());
    let learned: Vec<_> = lab
        .sim
        .loads()
        .iter()
        .map(|load| load.learned_macs)
        .collect();
    assert_eq!(learned, [1, 1, 1]);
    lab.passes(a, bridge, to_nested.clone());
    // Heard of all the time it is known to all, and 300 s after that to nobody.
    for _ in 0..8 {
        lab.wait(100);
        lab.passes(bridge, a, from_nested.clone());
    }
    lab.passes(a, bridge, to_nested);
    lab.wait(700);
    let learned: Vec<_> = lab
        .sim
        .loads()
        .iter()
        .map(|load| load.learned_macs)
        .collect();
    assert_eq!(learned, [0, 0, 0]);
}

#[test]
fn a_nic_with_several_queues_gets_each_flow_by_one_of_them_and_none_by_one_that_is_off() {
    let (mut lab, nics) = lab(3, 2);
    let (a, b) = (nics[0], nics[1]);
    let mut off = Guest::new(GuestOptions::default());
    let mut parts = off.port().into_parts();
    parts.receiveq = None;
    let port = io::vhost::port::VhostPort::new(parts);
    lab.sim.attach_port(pair(b.slot, 1), port.into());
    let others: Vec<MemoryPeer> = (2..5).map(|n| lab.sim.attach(pair(b.slot, n))).collect();
    let spread: Vec<_> = (0..5)
        .map(|n| lab.sim.worker_of(pair(b.slot, n)).unwrap())
        .collect();
    assert_eq!(
        spread.iter().filter(|worker| **worker == 2).count(),
        2,
        "{spread:?}"
    );

    let mut by_flow = vec![Vec::new(); 64];
    for round in 0..2 {
        for flow in 0..64u16 {
            lab.send(a, udp(a, b, Family::V4, 1000 + flow, 2));
            let mut at: Vec<usize> = Vec::new();
            at.extend(lab.received(b).iter().map(|_| 0));
            for (n, peer) in others.iter().enumerate() {
                at.extend(std::iter::from_fn(|| peer.receive()).map(|_| n + 2));
            }
            assert_eq!(at.len(), 1, "round {round}");
            by_flow[usize::from(flow)].extend(at);
        }
    }
    assert!(
        by_flow.iter().all(|queues| queues[0] == queues[1]),
        "{by_flow:?}"
    );
    let used = |n| by_flow.iter().filter(|queues| queues[0] == n).count();
    assert_eq!(used(1), 0);
    assert!([0, 2, 3, 4].iter().all(|n| used(*n) > 4), "{by_flow:?}");
    assert_eq!(off.receive().len(), 0);
    // What is off in one direction still sends.
    off.send(
        &udp(b, a, Family::V4, 2, 1),
        Offload::default(),
        &Shape::whole(),
    );
    off.transmitq.publish();
    lab.sim.run();
    assert_eq!(lab.received(a).len(), 1);
    // An answer goes to the queue that asked. (Between NICs that allow everything there are no
    // answers, only packets.)
    lab.set_rules(dataplane::GroupIdx(0), vec![allow_in(UDP, 78)]);
    others[1].send(udp(b, a, Family::V4, 77, 78), Offload::default());
    lab.sim.run();
    assert_eq!(lab.received(a).len(), 1);
    lab.send(a, udp(a, b, Family::V4, 78, 77));
    assert!(others[1].receive().is_some());
    lab.sim.detach(pair(b.slot, 3));
    lab.send(a, udp(a, b, Family::V4, 78, 77));
    let others = [&others[0], &others[2]].map(|peer| usize::from(peer.receive().is_some()));
    assert_eq!(
        lab.received(b).len() + others[0] + others[1],
        1,
        "it is off now"
    );
}

#[test]
fn what_was_judged_before_a_change_is_delivered_before_the_change_is_told() {
    let (mut lab, nics) = lab(3, 2);
    let (a, b) = (nics[0], nics[1]);
    lab.queue(a, udp(a, b, Family::V4, 1, 2), Offload::default());
    lab.sim.turn_of(0);
    assert_eq!(lab.received(b).len(), 0, "in the ring");
    lab.set_rules(dataplane::GroupIdx(1), vec![]);
    assert_eq!(lab.received(b).len(), 1);
    lab.refuses(a, udp(a, b, Family::V4, 1, 2), NoIngressRule);
}

#[test]
fn sleeping_workers_are_woken_for_what_is_handed_to_them() {
    let (mut lab, nics) = lab(2, 2);
    let (a, b) = (nics[0], nics[1]);
    lab.sim.run();
    let sleeps = lab.sim.loads()[1].sleeps;
    lab.sim.sleep_of(1);
    lab.queue(a, udp(a, b, Family::V4, 1, 2), Offload::default());
    // Worker 0 hears the kick of its guest.
    lab.sim.sleep_of(0);
    lab.sim.turn_of(0);
    lab.sim.sleep_of(1);
    lab.sim.turn_of(1);
    assert_eq!(lab.received(b).len(), 1);
    assert_eq!(
        lab.sim.loads()[1].sleeps,
        sleeps + 1,
        "not with a frame in its ring"
    );
    lab.sim.advance(Duration::from_secs(1));
}
