//! The worker (signatures; being filled in).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use io::poll::Doorbell;
use io::port::Port;

use crate::counters::Counters;
use crate::handle::{Command, WorkerHandle};
use crate::snapshot::PortSlot;

/// The time, handed in: the data plane has no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Monotonic nanoseconds.
    pub mono_ns: u64,
    /// Nanoseconds since 1970, for traces.
    pub unix_ns: u64,
}

/// Sizes of a worker's tables and its hooks.
pub struct WorkerConfig {
    /// Flows tracked at once.
    pub max_flows: u32,
    /// Datagrams in reassembly at once.
    pub max_fragments: u32,
    /// MAC addresses learnt at once.
    pub max_learned_macs: u32,
    /// Seed of the keyed hashes: guests choose what is hashed. Random but in tests.
    pub seed: u64,
    /// Called when a port broke its protocol and was stopped: which one, and a sentence. On the worker's
    /// thread: it must not wait.
    pub on_broken: Box<dyn Fn(PortSlot, String) + Send>,
}

/// What a turn of the loop did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Frames received.
    pub frames: usize,
    /// Commands carried out.
    pub commands: usize,
    /// The worker was told to stop: do not call again.
    pub stopped: bool,
}

/// One thread's share of the switch.
pub struct Worker {
    _commands: Receiver<Command>,
    _ports: Vec<Option<Box<Port>>>,
}

impl Worker {
    /// A worker without ports under an empty snapshot. Fails when out of descriptors.
    pub fn new(_config: WorkerConfig) -> std::io::Result<(Worker, WorkerHandle)> {
        let (sender, receiver) = channel();
        let handle = WorkerHandle {
            commands: sender,
            bell: Doorbell::new()?,
            counters: Arc::new(Counters::new()),
        };
        Ok((
            Worker {
                _commands: receiver,
                _ports: Vec::new(),
            },
            handle,
        ))
    }

    /// One round: commands, then every port once.
    pub fn turn(&mut self, _now: Now) -> Turn {
        Turn::default()
    }

    /// Sleeps until a port, a command or the next timer needs the worker, `longest` at most. Returns at once
    /// when there is work already.
    pub fn sleep(&mut self, _now: Now, _longest: Duration) {}

    /// When a table has something to do next, in monotonic nanoseconds; `None`: nothing is waiting.
    pub fn next_timer(&self) -> Option<u64> {
        None
    }
}
