//! A worker in virtual time, driven step by step: for tests of this crate and of those built on it.
//!
//! There is no thread and nothing sleeps: [`Simulation::run`] turns the worker until nothing moves any more,
//! [`Simulation::advance`] lets time pass. The guests are [`MemoryPeer`]s.

use std::sync::Arc;
use std::time::Duration;

use io::memory_port::{MemoryPeer, MemoryPort};
use io::port::Port;

use crate::counters::{Counters, PortCounters, RuleCounters};
use crate::flow::FlowInfo;
use crate::handle::WorkerHandle;
use crate::load::WorkerLoad;
use crate::report::PortReport;
use crate::snapshot::{PortSlot, PortUid, RuleSlot, Snapshot};
use crate::worker::{Now, Turn, Worker, WorkerConfig};

/// Turns without an end are an error of the test.
const TURNS_MAX: usize = 100_000;

/// A worker and its clock.
pub struct Simulation {
    worker: Worker,
    handle: WorkerHandle,
    now: Now,
}

impl Default for Simulation {
    /// Tables large enough for any session.
    fn default() -> Self {
        Simulation::new(WorkerConfig {
            max_flows: 4096,
            max_fragments: 256,
            max_learned_macs: 64,
            seed: 1,
            on_broken: Box::new(|_, _| {}),
        })
    }
}

impl Simulation {
    /// A worker with these tables, ten days after the machine's start.
    ///
    /// # Panics
    /// When the process is out of descriptors.
    pub fn new(config: WorkerConfig) -> Self {
        let (worker, handle) = Worker::new(config).expect("an eventfd and an epoll set for a worker");
        let now = Now {
            mono_ns: 864_000_000_000_000,
            unix_ns: 1_800_000_000_000_000_000,
        };
        Simulation { worker, handle, now }
    }

    /// Puts a snapshot in force.
    pub fn publish(&mut self, snapshot: Snapshot) {
        self.ask(move |handle| handle.publish(Arc::new(snapshot)).is_ok());
    }

    /// Attaches a new guest to a slot.
    pub fn attach(&mut self, slot: PortSlot) -> MemoryPeer {
        let (port, peer) = MemoryPort::pair();
        self.attach_port(slot, port.into());
        peer
    }

    /// Attaches a port of any kind; true if it took the place of another.
    pub fn attach_port(&mut self, slot: PortSlot, port: Port) -> bool {
        self.ask(move |handle| matches!(handle.attach(slot, port), Ok(Some(_))))
    }

    /// Takes the port out of a slot; true if there was one.
    pub fn detach(&mut self, slot: PortSlot) -> bool {
        self.ask(move |handle| matches!(handle.detach(slot), Ok(Some(_))))
    }

    /// Turns the worker until a turn moves nothing, not even after a look at the ports that sleep. Gives how many
    /// frames were received.
    ///
    /// # Panics
    /// When it does not come to rest.
    pub fn run(&mut self) -> usize {
        let (mut frames, mut looked) = (0, false);
        for _ in 0..TURNS_MAX {
            let turn = self.worker.turn(self.now);
            frames += turn.frames;
            if turn.frames > 0 || turn.commands > 0 || turn.busy {
                looked = false;
            } else if looked {
                return frames;
            } else {
                self.worker.sleep(self.now, Duration::ZERO);
                looked = true;
            }
        }
        panic!("the worker does not come to rest");
    }

    /// One turn of the worker.
    pub fn turn(&mut self) -> Turn {
        self.worker.turn(self.now)
    }

    /// Lets time pass, and the worker do nothing meanwhile.
    pub fn let_pass(&mut self, time: Duration) {
        self.now.unix_ns += time.as_nanos() as u64;
        self.now.mono_ns += time.as_nanos() as u64;
    }

    /// Lets time pass, in steps of a worker that sleeps until its next timer.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now.mono_ns + time.as_nanos() as u64;
        // Long times are not worth a turn every half second.
        let least = time.as_nanos() as u64 / 256;
        while self.now.mono_ns < end {
            let timer = self.worker.next_timer(self.now).unwrap_or(end);
            let at = timer.max(self.now.mono_ns + least + 1).min(end);
            self.now.unix_ns += at - self.now.mono_ns;
            self.now.mono_ns = at;
            self.run();
        }
    }

    /// The tracked flows, of all or of one NIC.
    pub fn flows(&mut self, of: Option<PortUid>) -> Vec<FlowInfo> {
        self.ask(move |handle| handle.flows(of).unwrap_or_default())
    }

    /// Adds flows; gives how many were taken.
    pub fn import_flows(&mut self, flows: Vec<FlowInfo>) -> usize {
        self.ask(move |handle| handle.import_flows(flows).unwrap_or_default())
    }

    /// What the worker has been doing.
    pub fn load(&mut self) -> WorkerLoad {
        self.ask(|handle| handle.load().unwrap_or_default())
    }

    /// The ports of one NIC with their rings, or all without.
    pub fn ports(&mut self, of: Option<PortSlot>) -> Vec<PortReport> {
        self.ask(move |handle| handle.ports(of).unwrap_or_default())
    }

    /// All counters.
    pub fn counters(&self) -> Arc<Counters> {
        self.handle.counters()
    }

    /// What a port has counted.
    pub fn port(&self, slot: PortSlot) -> PortCounters {
        self.handle.counters.port(slot)
    }

    /// What a rule has counted.
    pub fn rule(&self, slot: RuleSlot) -> RuleCounters {
        self.handle.counters.rule(slot)
    }

    /// The handle, for a test that drives the worker from another thread.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Calls the handle from another thread, as everybody else does, and turns the worker meanwhile.
    fn ask<T: Send>(&mut self, call: impl FnOnce(WorkerHandle) -> T + Send) -> T {
        let handle = self.handle.clone();
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || call(handle));
            while !asked.is_finished() {
                self.worker.commands_only(self.now);
                std::thread::yield_now();
            }
            // The closure only panics when the test is wrong anyway.
            asked.join().expect("a call to the worker's handle")
        })
    }
}
