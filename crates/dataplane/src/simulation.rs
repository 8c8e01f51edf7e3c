//! A switch in virtual time, driven step by step: for tests of this crate and of those built on it.
//!
//! There is no thread of a worker and nothing sleeps: [`Simulation::run`] turns the workers one
//! after the other until nothing moves any more, [`Simulation::turn_of`] turns one,
//! [`Simulation::advance`] lets time pass. The guests are [`MemoryPeer`]s.

use std::sync::Arc;
use std::time::Duration;

use io::memory_port::{MemoryPeer, MemoryPort};
use io::port::Port;

use crate::config::WorkerConfig;
use crate::counters::{PortCounters, RuleCounters};
use crate::dump::FlowCursor;
use crate::flow::{FlowEvents, FlowInfo, FlowMemory};
use crate::ids::{PortSlot, PortUid, RuleSlot};
use crate::load::WorkerLoad;
use crate::queue::QueueId;
use crate::report::PortReport;
use crate::sampling::Samples;
use crate::snapshot::Snapshot;
use crate::switch::Switch;
use crate::time::Now;
use crate::trial::Report;
use crate::underlay::Underlay;
use crate::worker::{Turn, Worker};

/// Turns without an end are an error of the test.
const TURNS_MAX: usize = 100_000;

/// What decides which frames are sampled.
const SEED: u64 = 42;

/// The workers and their clock.
pub struct Simulation {
    /// `None`: it was stopped.
    workers: Vec<Option<Worker>>,
    switch: Arc<Switch>,
    now: Now,
}

/// Tables large enough for any session.
fn any_session() -> WorkerConfig {
    WorkerConfig {
        max_flows: 4096,
        max_fragments: 256,
        max_learned_macs: 64,
        seed: 1,
        on_broken: Box::new(|_, _| {}),
    }
}

impl Default for Simulation {
    /// One worker, with tables large enough for any session.
    fn default() -> Self {
        Simulation::several(1)
    }
}

impl Simulation {
    /// A worker with these tables, ten days after the machine's start.
    ///
    /// # Panics
    /// When the process is out of descriptors.
    pub fn new(config: WorkerConfig) -> Self {
        let mut config = Some(config);
        Simulation::with(1, None, move |_| config.take().expect("one worker"))
    }

    /// Several workers, with the tables that are given for each.
    ///
    /// # Panics
    /// When the process is out of descriptors.
    pub fn configured(workers: usize, configure: impl FnMut(usize) -> WorkerConfig) -> Self {
        Simulation::with(workers, None, configure)
    }

    /// Several workers whose flows are in this memory, with tables as large as that.
    ///
    /// # Panics
    /// When the process is out of descriptors.
    pub fn in_memory(memory: FlowMemory, workers: usize) -> Self {
        Simulation::with(workers, Some(memory), |_| any_session())
    }

    /// Several workers, with tables large enough for any session.
    ///
    /// # Panics
    /// When the process is out of descriptors.
    pub fn several(workers: usize) -> Self {
        Simulation::with(workers, None, |_| any_session())
    }

    fn with(
        workers: usize,
        memory: Option<FlowMemory>,
        configure: impl FnMut(usize) -> WorkerConfig,
    ) -> Self {
        let (switch, workers) = Switch::with_memory(workers, memory, configure)
            .expect("an eventfd and an epoll set for each worker");
        let now = Now {
            mono_ns: 864_000_000_000_000,
            unix_ns: 1_800_000_000_000_000_000,
        };
        Simulation {
            workers: workers.into_iter().map(Some).collect(),
            switch: Arc::new(switch),
            now,
        }
    }

    /// Puts a snapshot in force.
    pub fn publish(&mut self, snapshot: Snapshot) {
        self.ask(move |switch| switch.publish(Arc::new(snapshot)).is_ok());
    }

    /// Puts the next hops of the underlay in force.
    pub fn set_underlay(&mut self, underlay: Underlay) {
        self.ask(move |switch| switch.set_underlay(Arc::new(underlay)).is_ok());
    }

    /// Attaches a new guest to a slot, or to one queue of it.
    pub fn attach(&mut self, queue: impl Into<QueueId>) -> MemoryPeer {
        let (port, peer) = MemoryPort::pair();
        self.attach_port(queue, port.into());
        peer
    }

    /// Attaches a port of any kind; true if it took the place of another.
    pub fn attach_port(&mut self, queue: impl Into<QueueId>, port: Port) -> bool {
        let queue = queue.into();
        self.ask(move |switch| matches!(switch.attach(queue, port), Ok(Some(_))))
    }

    /// Takes the port out of a slot; true if there was one.
    pub fn detach(&mut self, queue: impl Into<QueueId>) -> bool {
        self.take(queue).is_some()
    }

    /// Takes the port out of a slot and gives it to the caller.
    pub fn take(&mut self, queue: impl Into<QueueId>) -> Option<Port> {
        let queue = queue.into();
        self.ask(move |switch| switch.detach(queue).ok().flatten())
    }

    /// Gives a queue to another worker; true if it has it then.
    pub fn move_queue(&mut self, queue: impl Into<QueueId>, to: usize) -> bool {
        let queue = queue.into();
        self.ask(move |switch| switch.move_queue(queue, to) == Ok(true))
    }

    /// Turns the workers, one after the other, until none moves anything, not even after a look at
    /// the ports that sleep. Gives how many frames were received.
    ///
    /// # Panics
    /// When they do not come to rest.
    pub fn run(&mut self) -> usize {
        let (mut frames, mut looked) = (0, false);
        for _ in 0..TURNS_MAX {
            let mut moved = false;
            for worker in self.workers.iter_mut().flatten() {
                let turn = worker.turn(self.now);
                frames += turn.frames;
                moved |= turn.frames > 0 || turn.messages > 0 || turn.commands > 0 || turn.busy;
            }
            if moved {
                looked = false;
            } else if looked {
                return frames;
            } else {
                for worker in self.workers.iter_mut().flatten() {
                    worker.sleep(self.now, Duration::ZERO);
                }
                looked = true;
            }
        }
        panic!("the workers do not come to rest");
    }

    /// One turn of the first worker.
    pub fn turn(&mut self) -> Turn {
        self.turn_of(0)
    }

    /// One turn of one worker; nothing if it was stopped.
    pub fn turn_of(&mut self, worker: usize) -> Turn {
        let now = self.now;
        let worker = self.workers.get_mut(worker).and_then(Option::as_mut);
        worker.map_or(Turn::default(), |worker| worker.turn(now))
    }

    /// Lets one worker go to sleep, without waiting, as its thread would have after a while.
    pub fn sleep_of(&mut self, worker: usize) {
        let now = self.now;
        if let Some(worker) = self.workers.get_mut(worker).and_then(Option::as_mut) {
            worker.sleep(now, Duration::ZERO);
        }
    }

    /// True when somebody has asked one worker for something and it has not looked yet.
    pub fn is_called(&self, worker: usize) -> bool {
        let worker = self.workers.get(worker).and_then(Option::as_ref);
        worker.is_some_and(Worker::is_called)
    }

    /// Ends one worker as its thread does, and with it the ports that it has.
    pub fn stop(&mut self, worker: usize) {
        self.workers[worker] = None;
    }

    /// The time that it is.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Lets time pass, and the workers do nothing meanwhile.
    pub fn let_pass(&mut self, time: Duration) {
        self.now.unix_ns += time.as_nanos() as u64;
        self.now.mono_ns += time.as_nanos() as u64;
    }

    /// Lets time pass, in steps of workers that sleep until their next timer.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now.mono_ns + time.as_nanos() as u64;
        // Long times are not worth a turn every half second.
        let least = time.as_nanos() as u64 / 256;
        while self.now.mono_ns < end {
            let workers = self.workers.iter().flatten();
            let timer = workers
                .filter_map(|worker| worker.next_timer(self.now))
                .min();
            let at = timer
                .unwrap_or(end)
                .max(self.now.mono_ns + least + 1)
                .min(end);
            self.now.unix_ns += at - self.now.mono_ns;
            self.now.mono_ns = at;
            self.run();
        }
    }

    /// Announces to a NIC's network where the NIC is.
    pub fn announce(&mut self, slot: PortSlot) {
        self.ask(move |switch| switch.announce(slot).is_ok());
    }

    /// The tracked flows, of all or of one NIC.
    pub fn flows(&mut self, of: Option<PortUid>) -> Vec<FlowInfo> {
        self.ask(move |switch| switch.flows(of).unwrap_or_default())
    }

    /// The tracked flows in pages of so many: the length of each page, and all of them.
    pub fn flows_by_pages(&mut self, most: usize) -> (Vec<usize>, Vec<FlowInfo>) {
        let (mut lens, mut all) = (Vec::new(), Vec::new());
        let mut from = Some(FlowCursor::default());
        while let Some(cursor) = from.take() {
            let page = self.ask(move |switch| switch.flows_page(None, cursor, most));
            if let Ok((found, next)) = page {
                lens.push(found.len());
                all.extend(found);
                from = next;
            }
        }
        (lens, all)
    }

    /// Samples frames from now on.
    pub fn sample(&mut self, rate: u32) -> Option<Samples> {
        self.ask(move |switch| switch.sample(rate, SEED).ok())
    }

    /// Adds flows; gives how many were taken.
    pub fn import_flows(&mut self, flows: Vec<FlowInfo>) -> usize {
        self.ask(move |switch| switch.import_flows(flows).unwrap_or_default())
    }

    /// Tells of connections from now on.
    pub fn log_flows(&mut self) -> Option<FlowEvents> {
        self.ask(move |switch| switch.log_flows(&Arc::default()).ok())
    }

    /// Takes flows out; gives how many were there.
    pub fn remove_flows(&mut self, flows: &[FlowInfo]) -> usize {
        let flows = flows.to_vec();
        self.ask(move |switch| switch.remove_flows(&flows).unwrap_or_default())
    }

    /// What would become of a frame of this NIC or uplink; `None` when its worker was stopped.
    pub fn trial(&mut self, from: PortSlot, frame: &[u8]) -> Option<Box<Report>> {
        let frame = frame.to_vec();
        self.ask(move |switch| switch.trial(from, frame).ok())
    }

    /// What the first worker has been doing.
    pub fn load(&mut self) -> WorkerLoad {
        self.loads().first().copied().unwrap_or_default()
    }

    /// What each worker has been doing; nothing when one was stopped.
    pub fn loads(&mut self) -> Vec<WorkerLoad> {
        self.ask(|switch| switch.loads().unwrap_or_default())
    }

    /// The ports of one NIC with their rings, or all without, in the order of the workers.
    pub fn ports(&mut self, of: Option<PortSlot>) -> Vec<PortReport> {
        let found = self.ask(move |switch| switch.ports(of).unwrap_or_default());
        found.into_iter().map(|(_, report)| report).collect()
    }

    /// Which worker has a queue.
    pub fn worker_of(&self, queue: impl Into<QueueId>) -> Option<usize> {
        let queue = queue.into();
        let uses = self.switch.queue_uses();
        uses.iter()
            .find(|one| one.queue == queue)
            .map(|one| one.worker)
    }

    /// What a port has counted.
    pub fn port(&self, slot: PortSlot) -> PortCounters {
        self.switch.port_counters(slot)
    }

    /// What a rule has counted.
    pub fn rule(&self, slot: RuleSlot) -> RuleCounters {
        self.switch.rule_counters(slot)
    }

    /// The face of all workers, for a test that asks from another thread.
    pub fn switch(&self) -> Arc<Switch> {
        self.switch.clone()
    }

    /// Asks from another thread, as everybody else does, and lets the workers answer meanwhile.
    /// They receive nothing, but deliver what they were handed.
    pub fn ask<T: Send>(&mut self, call: impl FnOnce(&Switch) -> T + Send) -> T {
        let switch = self.switch.clone();
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || call(&switch));
            while !asked.is_finished() {
                for worker in self.workers.iter_mut().flatten() {
                    worker.answer(self.now);
                }
                std::thread::yield_now();
            }
            // The closure only panics when the test is wrong anyway.
            asked.join().expect("a call to the switch")
        })
    }
}
