//! Everything at once: frames cross between workers while queues move, ports come and go, and
//! snapshots are published. Whatever the order, each frame is delivered once or counted as dropped,
//! and each guest gets all its buffers back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dataplane::{Now, Simulation, Switch, WorkerConfig};
use io::memory_port::MemoryPort;
use proptest::prelude::*;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use wire::offload::Offload;
use wire::{Mac, build};

use crate::lab::*;

const WORKERS: usize = 3;
const NICS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many frames; to all others when both are the same.
    Send(usize, usize, usize),
    Turn(usize),
    Sleep(usize),
    Move(usize, usize),
    /// Taken away and put back, as a session does that changes something.
    Reattach(usize),
    Publish,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..NICS, 0..NICS, 1..40usize)
            .prop_map(|(from, to, count)| Step::Send(from, to, count)),
        8 => (0..WORKERS).prop_map(Step::Turn),
        2 => (0..WORKERS).prop_map(Step::Sleep),
        1 => (0..NICS, 0..WORKERS).prop_map(|(nic, worker)| Step::Move(nic, worker)),
        1 => (0..NICS).prop_map(Step::Reattach),
        1 => Just(Step::Publish),
        1 => (1..20u64).prop_map(Step::Pass),
    ]
}

/// A frame with a number in it, to one NIC or to all.
fn numbered(from: Nic, to: Option<Nic>, number: u32) -> Vec<u8> {
    let (mac, address) = to.map_or((Mac::BROADCAST, [10, 0, 0, 255].into()), |to| {
        (to.mac, to.v4)
    });
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(number as usize % 700 + 4, 0x5a);
    let frame = build::frame(from.mac, mac).ip(from.v4, address);
    frame.udp(number as u16 % 7, 2).payload(&payload).build()
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_frame_is_lost_without_a_reason_or_delivered_twice(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut lab = Lab::on(Simulation::several(WORKERS));
        let nics: Vec<Nic> = (0..NICS).map(|_| lab.nic()).collect();
        let group = lab.group(vec![allow_all_in(None)]);
        let mut guests: Vec<Guest> = Vec::new();
        for &nic in &nics {
            lab.configure(nic, |config| config.groups.push(group));
            let guest = Guest::new(GuestOptions::default());
            lab.sim.attach_port(nic.slot, guest.port().into());
            guests.push(guest);
        }
        let moves = steps.iter().any(|step| matches!(step, Step::Move(..)));
        let (mut next, mut due) = (0u32, 0u64);
        // By number.
        let mut senders = Vec::new();
        let mut seen: Vec<Vec<u32>> = vec![Vec::new(); NICS];
        for step in steps {
            match step {
                Step::Send(from, to, count) => {
                    guests[from].reclaim();
                    let target = (from != to).then(|| nics[to]);
                    for _ in 0..count {
                        let frame = numbered(nics[from], target, next);
                        if guests[from].send(&frame, Offload::default(), &Shape::cut(&[12, 300])) {
                            due += if from == to { NICS as u64 - 1 } else { 1 };
                            next += 1;
                            senders.push(from);
                        }
                    }
                    guests[from].transmitq.publish();
                }
                Step::Turn(worker) => drop(lab.sim.turn_of(worker)),
                Step::Sleep(worker) => lab.sim.sleep_of(worker),
                Step::Move(nic, to) => prop_assert!(lab.sim.move_queue(nics[nic].slot, to)),
                Step::Reattach(nic) => {
                    let port = lab.sim.take(nics[nic].slot).expect("a port");
                    lab.sim.attach_port(nics[nic].slot, port);
                }
                Step::Publish => lab.configure(nics[0], |_| ()),
                Step::Pass(millis) => lab.sim.let_pass(Duration::from_millis(millis)),
            }
            for (seen, guest) in seen.iter_mut().zip(&mut guests) {
                seen.extend(guest.receive().iter().map(|received| number(&received.frame)));
            }
        }
        lab.sim.let_pass(Duration::from_millis(5));
        lab.sim.run();
        for (nic, (seen, guest)) in seen.iter_mut().zip(&mut guests).enumerate() {
            seen.extend(guest.receive().iter().map(|received| number(&received.frame)));
            let all: HashSet<_> = seen.iter().collect();
            prop_assert_eq!(all.len(), seen.len(), "twice at {}", nic);
            guest.reclaim();
            prop_assert_eq!(guest.transmitq.outstanding(), 0, "buffers of {}", nic);
        }
        let delivered: usize = seen.iter().map(Vec::len).sum();
        let dropped: u64 = lab.drops().iter().sum();
        prop_assert_eq!(delivered as u64 + dropped, due, "{:?}",
            difference(&[0; 99], &lab.drops()));
        let rx: u64 = nics.iter().map(|nic| lab.sim.port(nic.slot).rx_frames).sum();
        let tx: u64 = nics.iter().map(|nic| lab.sim.port(nic.slot).tx_frames).sum();
        prop_assert_eq!((rx, tx), (u64::from(next), delivered as u64));
        // Nothing overtakes where no queue moves.
        for seen in seen.iter().filter(|_| !moves) {
            for sender in 0..NICS {
                let of_sender: Vec<_> =
                    seen.iter().filter(|number| senders[**number as usize] == sender).collect();
                prop_assert!(of_sender.is_sorted(), "{:?}", of_sender);
            }
        }
    }
}

/// Workers that hand over to each other, each on a thread of its own and as fast as it can.
#[test]
fn threads_that_hand_over_to_each_other_lose_nothing_either() {
    const FRAMES: u32 = 5_000;
    let config = |_| WorkerConfig {
        max_flows: 4096,
        max_fragments: 16,
        max_learned_macs: 16,
        seed: 1,
        on_broken: Box::new(|slot, what| panic!("{slot:?}: {what}")),
    };
    let (switch, workers) = Switch::new(WORKERS, config).unwrap();
    let switch = Arc::new(switch);
    let began = Instant::now();
    let threads: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            std::thread::spawn(move || {
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
                    // At once, so that sleeping and waking are tried all the time.
                    if turn.frames == 0 && turn.messages == 0 && !turn.busy {
                        worker.sleep(now, Duration::from_secs(20));
                    }
                }
            })
        })
        .collect();
    // The configuration of a lab that never runs.
    let mut lab = Lab::new();
    let nics: Vec<Nic> = (0..NICS).map(|_| lab.nic()).collect();
    let group = lab.group(vec![allow_all_in(None)]);
    for &nic in &nics {
        lab.configure(nic, |config| config.groups.push(group));
    }
    let mut epoch = 1000;
    let mut publish = |lab: &Lab| {
        epoch += 1;
        switch.publish(Arc::new(lab.snapshot(epoch))).unwrap();
    };
    publish(&lab);
    let peers: Vec<_> = nics
        .iter()
        .map(|nic| {
            let (port, peer) = MemoryPort::pair();
            peer.set_capacity(FRAMES as usize);
            switch.attach(nic.slot.into(), port.into()).unwrap();
            peer
        })
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (from, peer) in peers.iter().enumerate() {
            let (nics, done) = (&nics, &done);
            scope.spawn(move || {
                for number in 0..FRAMES {
                    let to = (from + 1 + number as usize % (NICS - 1)) % NICS;
                    let frame = numbered(nics[from], Some(nics[to]), number);
                    assert!(peer.send(frame, Offload::default()));
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let mut round = 0usize;
        while !done.load(Ordering::Relaxed) {
            round += 1;
            let queue = nics[round % NICS].slot.into();
            assert_eq!(switch.move_queue(queue, round * 7 / 3 % WORKERS), Ok(true));
            if round.is_multiple_of(5) {
                let port = switch.detach(queue).unwrap().expect("a port");
                assert!(switch.attach(queue, port).unwrap().is_none());
            }
            if round.is_multiple_of(3) {
                publish(&lab);
            }
        }
    });
    let counted = || {
        let of = |nic: &Nic| {
            let port = switch.port_counters(nic.slot);
            let drops = port.drops_from.iter().chain(&port.drops_to).sum::<u64>();
            [port.rx_frames, port.tx_frames + drops, port.tx_frames]
        };
        let all = nics.iter().map(of);
        all.fold([0; 3], |sum, one| std::array::from_fn(|n| sum[n] + one[n]))
    };
    let all = u64::from(FRAMES) * NICS as u64;
    while counted()[..2] != [all, all] {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?} of {all}",
            counted()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // Delivered is visible with the flush: every worker has done that when it has answered.
    switch.loads().unwrap();
    let arrived: usize = peers
        .iter()
        .map(|peer| std::iter::from_fn(|| peer.receive()).count())
        .sum();
    assert_eq!(arrived as u64, counted()[2]);
    switch.stop();
    for thread in threads {
        thread.join().unwrap();
    }
}
