//! Captures: who watches a NIC or an uplink sees what passes and what is dropped, and nobody else
//! notices it.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use dataplane::trial::live::Live;
use dataplane::{PortSlot, PortUid, Simulation};
use io::frame::BATCH;
use io::trace::Direction::{Inbound, Outbound};
use io::trace::capture::{Capture, Caught, Wanted};
use wire::bpf::{Filter, INSTRUCTIONS_MAX, Instruction};
use wire::offload::Offload;
use wire::{Mac, build};

use crate::lab::*;
use crate::wire_lab::*;

pub const ALL: Wanted = Wanted {
    filter: None,
    snap_len: 65_535,
    direction: None,
    dropped_only: false,
    received_only: false,
};

fn begin(sim: &mut Simulation, places: &[(PortSlot, PortUid)]) -> (Arc<Capture>, Receiver<Caught>) {
    begin_with(sim, places, ALL)
}

pub fn begin_with(
    sim: &mut Simulation,
    places: &[(PortSlot, PortUid)],
    wanted: Wanted,
) -> (Arc<Capture>, Receiver<Caught>) {
    let (capture, frames) = Capture::new(wanted);
    let given = capture.clone();
    let begun = sim.ask(|switch| switch.begin_capture(places, &given));
    assert_eq!(begun, Ok(()));
    (capture, frames)
}

/// A live trace of what a NIC sends: its frames are judged one by one then.
pub fn trace_live(sim: &mut Simulation, nic: Nic) -> (Arc<Live>, Receiver<Caught>) {
    let place = (nic.slot, nic.uid);
    let (live, _passed) = Live::new(None);
    assert!(sim.ask(|switch| switch.begin_live(place, &live)));
    let (_capture, frames) = begin(sim, &[place]);
    (live, frames)
}

fn end(sim: &mut Simulation, capture: &Arc<Capture>) {
    assert_eq!(sim.ask(|switch| switch.end_capture(capture)), Ok(()));
}

type Seen = (u32, io::trace::Direction, Option<&'static str>, Vec<u8>);

fn seen(frames: &Receiver<Caught>) -> Vec<Seen> {
    let each = frames.try_iter();
    each.map(|caught| {
        let bytes = caught.bytes.to_vec();
        (caught.source, caught.direction, caught.dropped, bytes)
    })
    .collect()
}

#[test]
fn both_ends_are_seen_with_the_reasons_of_drops_and_no_flow_is_decided_again() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let passes = udp(a, b, Family::V4, 1000, 53);
    let dropped = udp(a, b, Family::V4, 1000, 54);
    let forged = wire::build::frame(b.mac, b.mac)
        .ip(a.v4, b.v4)
        .udp(1, 53)
        .build();
    lab.passes(a, b, passes.clone());
    let flows = lab.sim.flows(None);
    let (capture, frames) = begin(&mut lab.sim, &[(a.slot, a.uid), (b.slot, b.uid)]);
    lab.passes(a, b, passes.clone());
    lab.refuses(a, dropped.clone(), dataplane::DropReason::NoIngressRule);
    lab.refuses(a, forged.clone(), dataplane::DropReason::MacSpoofed);
    let reason = Some("no_ingress_rule");
    let expected = [
        (1, Inbound, None, passes.clone()),
        (0, Outbound, None, passes.clone()),
        (1, Inbound, reason, dropped.clone()),
        (0, Outbound, reason, dropped.clone()),
        (0, Outbound, Some("mac_spoofed"), forged),
    ];
    assert_eq!(seen(&frames), expected);
    // The flow is the one of before, of which two packets have passed.
    let again = lab.sim.flows(None);
    assert_eq!((again.len(), again[0].frames_out), (flows.len(), 2));
    assert_eq!(lab.sim.rule(dataplane::RuleSlot(0)).flows, 1);
    // It goes on under another snapshot, and ends with its end.
    lab.publish();
    lab.passes(a, b, passes.clone());
    assert_eq!(seen(&frames).len(), 2);
    assert_eq!(lab.sim.switch().captures(), 1);
    end(&mut lab.sim, &capture);
    lab.passes(a, b, passes);
    assert_eq!(seen(&frames), []);
    assert_eq!((lab.sim.switch().captures(), capture.counts()), (0, (7, 0)));
}

#[test]
fn several_captures_of_one_nic_do_not_know_of_each_other() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let frame = udp(a, b, Family::V6, 1, 2);
    let all: Vec<_> = (0..dataplane::CAPTURES_MAX)
        .map(|_| begin(&mut lab.sim, &[(b.slot, b.uid)]))
        .collect();
    let (one_more, _frames) = Capture::new(ALL);
    let refused = lab
        .sim
        .ask(|switch| switch.begin_capture(&[(b.slot, b.uid)], &one_more));
    assert!(refused.is_err());
    lab.passes(a, b, frame.clone());
    end(&mut lab.sim, &all[0].0);
    lab.passes(a, b, frame);
    let counts: Vec<_> = all.iter().map(|(_, frames)| seen(frames).len()).collect();
    assert_eq!(counts[0], 1);
    assert!(counts[1..].iter().all(|count| *count == 2), "{counts:?}");
}

#[test]
fn a_nic_that_takes_the_slot_of_a_captured_one_is_not_captured() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(Some(UDP))]);
    let (_capture, frames) = begin(&mut lab.sim, &[(b.slot, b.uid)]);
    let other = lab.replace(b);
    lab.passes(a, other, udp(a, other, Family::V4, 1, 2));
    assert_eq!(seen(&frames), []);
    let (_capture, mine) = begin(&mut lab.sim, &[(b.slot, other.uid)]);
    lab.passes(a, other, udp(a, other, Family::V4, 1, 2));
    assert_eq!((seen(&frames).len(), seen(&mine).len()), (0, 1));
}

#[test]
fn an_uplink_is_seen_with_its_outer_headers() {
    let mut host = Host::new();
    let a = host.lab.nic();
    host.lab.group_of(a, vec![allow_in(UDP, 53)]);
    let b = host.far(20, 2);
    let (there, back) = (
        udp(a, b.nic, Family::V4, 53, 1),
        udp(b.nic, a, Family::V4, 1, 53),
    );
    let (capture, frames) = begin(&mut host.lab.sim, &[(PortSlot::uplink(0), PortUid(0))]);
    host.leaves(a, b.at, there.clone());
    host.enters(b.at, a, back.clone());
    let strange = inbound("192.0.2.77".parse().unwrap(), &back);
    host.refuses(strange.clone(), dataplane::DropReason::UnknownHost);
    let expected = [
        (0, Outbound, None, outbound(b.at, &there)),
        (0, Inbound, None, inbound(b.at, &back)),
        (0, Inbound, Some("unknown_endpoint"), strange),
    ];
    assert_eq!(seen(&frames), expected);
    end(&mut host.lab.sim, &capture);
    host.leaves(a, b.at, there);
    assert_eq!(seen(&frames), []);
}

#[test]
fn who_is_traced_live_pays_for_what_goes_to_many() {
    let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
    let flooder = lab.nic();
    let _crowd: Vec<Nic> = (0..60).map(|_| lab.nic()).collect();
    let (live, _frames) = trace_live(&mut lab.sim, flooder);
    let shout = build::frame(flooder.mac, Mac::BROADCAST).ip(flooder.v4, d.v4);
    let (shout, small) = (shout.udp(1, 2).build(), udp(flooder, d, Family::V4, 3, 4));
    // The last one of each batch is for one alone.
    for number in 1..=15 * BATCH {
        let last = number % BATCH == 0;
        let frame = if last { &small } else { &shout };
        lab.queue(flooder, frame.clone(), Offload::default());
        lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
    }
    for _ in 0..15 {
        lab.sim.turn();
    }
    let heard = [c, flooder].map(|nic| lab.sim.port(nic.slot).rx_frames);
    assert_eq!(heard, [15, 1].map(|batches| batches * BATCH as u64));
    assert_eq!(live.counts().0, BATCH as u64, "it was traced");
}

/// As dear as a filter can be: divides to its end, which is behind the head of a frame, so that it
/// runs twice, and wants nothing.
pub fn dear_filter() -> Wanted {
    let one = |code, k| Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = vec![one(0x01, 3)];
    program.extend(vec![one(0x3c, 0); INSTRUCTIONS_MAX - 3]);
    program.extend([one(0x30, 299), one(0x06, 0)]);
    Wanted {
        filter: Some(Filter::new(&program).unwrap()),
        ..ALL
    }
}

fn long(from: Nic, to: Nic) -> Vec<u8> {
    let frame = ip(from, to, Family::V4).udp(1, 2);
    frame.payload(&[7; 300]).build()
}

#[test]
fn who_sends_pays_for_the_filters_of_captures() {
    for what in ["its own", "its target's", "live"] {
        let (mut lab, c, d) = Lab::pair(vec![allow_all_in(None)]);
        let (flooder, target) = (lab.nic(), lab.nic());
        lab.group_of(target, vec![allow_all_in(None)]);
        let wanted = dear_filter();
        let (live, _passed) = Live::new(wanted.filter.clone());
        let captured = if what == "its target's" {
            target
        } else {
            flooder
        };
        let place = (captured.slot, captured.uid);
        let (capture, frames) = match what {
            "live" => {
                assert!(lab.sim.ask(|switch| switch.begin_live(place, &live)));
                begin(&mut lab.sim, &[place])
            }
            _ => begin_with(&mut lab.sim, &[place], wanted),
        };
        for _ in 0..15 * BATCH {
            lab.queue(flooder, long(flooder, target), Offload::default());
            lab.queue(c, udp(c, d, Family::V4, 1, 2), Offload::default());
        }
        for _ in 0..15 {
            lab.sim.turn();
        }
        let heard = [c, flooder].map(|nic| lab.sim.port(nic.slot).rx_frames);
        assert_eq!(
            heard,
            [15, 1].map(|batches| batches * BATCH as u64),
            "{what}"
        );
        let seen = if what == "live" { BATCH } else { 0 };
        assert_eq!((frames.try_iter().count(), capture.counts().1), (seen, 0));
        assert_eq!(live.counts(), (0, 0), "the filter wants nothing");
    }
}

/// Who sends pays at its own worker, where nothing is captured.
#[test]
fn another_worker_takes_captured_frames_a_batch_a_turn() {
    let mut lab = Lab::on(Simulation::several(2));
    let (flooder, d) = (lab.nic(), lab.nic());
    lab.group_of(d, vec![allow_all_in(None)]);
    lab.peer(d).set_capacity(10 * BATCH);
    let (_capture, _frames) = begin_with(&mut lab.sim, &[(d.slot, d.uid)], dear_filter());
    for _ in 0..4 * BATCH {
        lab.queue(flooder, long(flooder, d), Offload::default());
    }
    let handed: usize = (0..4).map(|_| lab.sim.turn_of(0).frames).sum();
    assert!(handed >= 2 * BATCH, "{handed}");
    let turn = lab.sim.turn_of(1);
    assert_eq!((turn.messages, turn.busy), (1, true));
    assert_eq!(lab.received(d).len(), BATCH);
    lab.sim.run();
    assert_eq!(lab.received(d).len(), 3 * BATCH);
}

/// Who is sent much by way of another worker, and captured, sends what it has to send.
#[test]
fn who_is_captured_does_not_pay_for_what_another_worker_hands_over() {
    let mut lab = Lab::on(Simulation::several(2));
    let [flooder, d, c, e] = [(); 4].map(|()| lab.nic());
    for nic in [d, e] {
        lab.group_of(nic, vec![allow_all_in(None)]);
    }
    let there = lab.sim.worker_of(d.slot).unwrap();
    for (nic, worker) in [(flooder, 1 - there), (c, there), (e, there)] {
        if lab.sim.worker_of(nic.slot) != Some(worker) {
            assert!(lab.sim.move_queue(nic.slot, worker));
        }
    }
    lab.peer(d).set_capacity(10 * BATCH);
    let wanted = Wanted {
        direction: Some(Inbound),
        ..dear_filter()
    };
    let (_capture, _frames) = begin_with(&mut lab.sim, &[(d.slot, d.uid)], wanted);
    for _ in 0..4 * BATCH {
        lab.queue(flooder, long(flooder, d), Offload::default());
    }
    let handed: usize = (0..4).map(|_| lab.sim.turn_of(1 - there).frames).sum();
    assert!(handed >= 2 * BATCH, "{handed}");
    for turn in 1..=6 {
        for from in [c, d] {
            lab.queue(from, udp(from, e, Family::V4, 1, 2), Offload::default());
        }
        lab.sim.turn_of(there);
        let heard = [c, d].map(|nic| lab.sim.port(nic.slot).rx_frames);
        assert_eq!(heard, [turn; 2]);
    }
    assert!(lab.received(d).len() >= 2 * BATCH);
}

#[test]
fn frames_of_other_workers_are_seen() {
    let mut lab = Lab::on(Simulation::several(2));
    let (a, b) = (lab.nic(), lab.nic());
    lab.group_of(b, vec![allow_all_in(Some(UDP))]);
    let there = lab.sim.worker_of(b.slot).unwrap();
    assert!(lab.sim.move_queue(a.slot, 1 - there));
    let places = [(a.slot, a.uid), (b.slot, b.uid)];
    let (_capture, frames) = begin(&mut lab.sim, &places);
    lab.passes(a, b, udp(a, b, Family::V4, 1, 2));
    let mut seen: Vec<_> = seen(&frames)
        .into_iter()
        .map(|(source, ..)| source)
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
}
