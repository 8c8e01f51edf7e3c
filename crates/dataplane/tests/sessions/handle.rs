//! A worker and the switch's face, with a thread and a clock of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::{Now, PortSlot, Simulation, Snapshot, Switch, WorkerConfig, WorkerGone};
use io::memory_port::MemoryPort;
use wire::offload::Offload;

use crate::lab::*;

fn config() -> WorkerConfig {
    WorkerConfig {
        max_flows: 16,
        max_fragments: 16,
        max_learned_macs: 16,
        seed: 3,
        on_broken: Box::new(|_, _| {}),
    }
}

#[test]
fn a_sleeping_worker_answers_commands_and_stops() {
    let (switch, workers) = Switch::new(1, |_| config()).unwrap();
    let mut worker = workers.into_iter().next().unwrap();
    let thread = std::thread::spawn(move || {
        let began = Instant::now();
        loop {
            let mono_ns = began.elapsed().as_nanos() as u64;
            let now = Now {
                mono_ns,
                unix_ns: 0,
            };
            let turn = worker.turn(now);
            if turn.stopped {
                return;
            }
            if turn.frames == 0 && turn.commands == 0 {
                worker.sleep(now, Duration::from_secs(10));
            }
        }
    });
    switch.publish(Arc::new(Snapshot::default())).unwrap();
    let (port, _peer) = MemoryPort::pair();
    assert!(
        switch
            .attach(PortSlot(3).into(), port.into())
            .unwrap()
            .is_none()
    );
    let (other, _other_peer) = MemoryPort::pair();
    assert!(
        switch
            .attach(PortSlot(3).into(), other.into())
            .unwrap()
            .is_some(),
        "the one before"
    );
    assert!(switch.detach(PortSlot(3).into()).unwrap().is_some());
    assert!(switch.detach(PortSlot(3).into()).unwrap().is_none());
    assert_eq!(switch.flows(None), Ok(vec![]));
    assert!(switch.loads().unwrap()[0].turns > 0);
    switch.stop();
    thread.join().unwrap();
    assert_eq!(switch.flows(None), Err(WorkerGone));
    assert_eq!(
        switch.publish(Arc::new(Snapshot::default())),
        Err(WorkerGone)
    );
}

#[test]
fn slots_beyond_the_maximum_are_refused() {
    let mut sim = Simulation::default();
    let peer = sim.attach(PortSlot(
        (dataplane::counters::MAX_PORTS + dataplane::counters::MAX_UPLINKS) as u32,
    ));
    peer.send(vec![0; 60], Default::default());
    assert_eq!(sim.run(), 0);
    assert!(!sim.detach(PortSlot(
        (dataplane::counters::MAX_PORTS + dataplane::counters::MAX_UPLINKS) as u32
    )));
}

/// A worker that never gives a batch back does not keep a port for ever.
#[test]
fn a_port_is_not_waited_for_longer_than_a_second() {
    let (lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let (switch, mut workers) = Switch::new(2, |_| config()).unwrap();
    let snapshot = Arc::new(lab.snapshot(7));
    let millis = std::cell::Cell::new(0);
    let later = || {
        millis.set(millis.get() + 1);
        Now {
            mono_ns: millis.get() * 1_000_000,
            unix_ns: 0,
        }
    };
    let ask = |ask: &(dyn Fn() + Sync), workers: &mut [dataplane::Worker]| {
        std::thread::scope(|scope| {
            let asked = scope.spawn(ask);
            let mut turns = 0;
            while !asked.is_finished() {
                let now = later();
                turns += 1;
                for worker in &mut *workers {
                    worker.turn(now);
                }
                std::thread::yield_now();
            }
            turns
        })
    };
    let peers: Vec<_> = [a, b]
        .iter()
        .map(|nic| {
            let (port, peer) = MemoryPort::pair();
            let port = std::sync::Mutex::new(Some(port));
            let attach = || {
                let port = port.lock().unwrap().take().unwrap();
                assert!(
                    switch
                        .attach(nic.slot.into(), port.into())
                        .unwrap()
                        .is_none()
                );
            };
            ask(&attach, &mut workers);
            peer
        })
        .collect();
    ask(&|| switch.publish(snapshot.clone()).unwrap(), &mut workers);
    peers[0].send(udp(a, b, Family::V4, 1, 2), Default::default());
    let detach = || assert!(switch.detach(a.slot.into()).unwrap().is_some());
    assert_eq!(workers[0].turn(later()).frames, 1);
    // The batch is out at worker 1, which hangs.
    let turns = ask(&detach, &mut workers[..1]);
    assert!(turns >= 1000, "{turns} milliseconds");
    assert_eq!(workers[1].turn(later()).messages, 1, "it comes to itself");
    assert_eq!(
        peers[1].receive().map(|(frame, _)| frame),
        Some(udp(a, b, Family::V4, 1, 2))
    );
}

/// What a guest sends whose NIC is not configured waits in its ring, and its worker sleeps
/// meanwhile.
#[test]
fn frames_that_wait_for_their_nic_keep_nobody_awake() {
    let (mut lab, a, b) = Lab::pair(vec![allow_all_in(None)]);
    let with_both = lab.snapshot(1000);
    lab.delete(a);
    lab.queue(a, udp(a, b, Family::V4, 1, 2), Offload::default());
    lab.sim.turn();
    // The guest has kicked: that is looked at once.
    lab.sim.sleep_of(0);
    let before = lab.sim.load();
    for _ in 0..3 {
        lab.sim.turn();
        lab.sim.sleep_of(0);
    }
    let after = lab.sim.load();
    assert_eq!(
        (after.sleeps, after.frames),
        (before.sleeps + 3, before.frames)
    );
    // It comes with the NIC.
    lab.sim.publish(with_both);
    lab.sim.turn();
    assert_eq!(lab.received(b).len(), 1);
}
