//! A worker and the switch's face, with a thread and a clock of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::{Now, PortSlot, Simulation, Snapshot, Switch, WorkerConfig, WorkerGone};
use io::memory_port::MemoryPort;

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
            let now = Now { mono_ns, unix_ns: 0 };
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
    assert!(switch.attach(PortSlot(3).into(), port.into()).unwrap().is_none());
    let (other, _other_peer) = MemoryPort::pair();
    assert!(
        switch.attach(PortSlot(3).into(), other.into()).unwrap().is_some(),
        "the one before"
    );
    assert!(switch.detach(PortSlot(3).into()).unwrap().is_some());
    assert!(switch.detach(PortSlot(3).into()).unwrap().is_none());
    assert_eq!(switch.flows(None), Ok(vec![]));
    assert!(switch.loads().unwrap()[0].turns > 0);
    switch.stop();
    thread.join().unwrap();
    assert_eq!(switch.flows(None), Err(WorkerGone));
    assert_eq!(switch.publish(Arc::new(Snapshot::default())), Err(WorkerGone));
}

#[test]
fn slots_beyond_the_maximum_are_refused() {
    let mut sim = Simulation::default();
    let peer = sim.attach(PortSlot(dataplane::counters::MAX_PORTS as u32));
    peer.send(vec![0; 60], Default::default());
    assert_eq!(sim.run(), 0);
    assert!(!sim.detach(PortSlot(dataplane::counters::MAX_PORTS as u32)));
}
