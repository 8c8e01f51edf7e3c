//! How the rest of the process talks to a worker: commands that wait for its answer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use io::poll::Doorbell;
use io::port::Port;
use thiserror::Error;

use crate::counters::Counters;
use crate::flow::FlowInfo;
use crate::load::WorkerLoad;
use crate::report::PortReport;
use crate::snapshot::{PortSlot, PortUid, Snapshot};

/// The worker's thread has ended: nothing will be switched any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the worker is gone")]
pub struct WorkerGone;

/// What a worker is asked to do. Each carries where the answer goes.
pub(crate) enum Command {
    Publish(Arc<Snapshot>, Sender<Arc<Snapshot>>),
    Attach(PortSlot, Box<Port>, Sender<Option<Box<Port>>>),
    Detach(PortSlot, Sender<Option<Box<Port>>>),
    Flows(Option<PortUid>, Sender<Vec<FlowInfo>>),
    Import(Vec<FlowInfo>, Sender<usize>),
    Load(Sender<WorkerLoad>),
    Ports(Option<PortSlot>, Sender<Vec<PortReport>>),
    Stop,
}

/// The other threads' end of a worker. Cloned for everybody who needs it.
#[derive(Clone)]
pub struct WorkerHandle {
    pub(crate) commands: Sender<Command>,
    pub(crate) bell: Doorbell,
    pub(crate) counters: Arc<Counters>,
}

impl WorkerHandle {
    /// Puts a snapshot in force; returns when every frame from now on is judged by it. Snapshots are to be
    /// published in the order of their epochs.
    pub fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), WorkerGone> {
        // The answer is the snapshot before: it is dropped here and not on the path.
        self.ask(|answer| Command::Publish(snapshot, answer)).map(drop)
    }

    /// Gives the worker a port to receive from and transmit to, as NIC `slot`. A port that was there before
    /// is given back.
    pub fn attach(&self, slot: PortSlot, port: Port) -> Result<Option<Port>, WorkerGone> {
        self.ask(|answer| Command::Attach(slot, Box::new(port), answer))
            .map(|before| before.map(|port| *port))
    }

    /// Takes a port away from the worker, which does not touch it any more when this returns.
    pub fn detach(&self, slot: PortSlot) -> Result<Option<Port>, WorkerGone> {
        self.ask(|answer| Command::Detach(slot, answer))
            .map(|port| port.map(|port| *port))
    }

    /// The tracked flows, all of them or those with an end at one NIC.
    pub fn flows(&self, of: Option<PortUid>) -> Result<Vec<FlowInfo>, WorkerGone> {
        self.ask(|answer| Command::Flows(of, answer))
    }

    /// Adds flows (of a migrated NIC, or of the daemon before). They are judged by the rules in force with
    /// their next packet. Gives how many were taken: not those that are there already, whose NICs are not,
    /// or for which there is no room.
    pub fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, WorkerGone> {
        self.ask(|answer| Command::Import(flows, answer))
    }

    /// What the worker has been doing.
    pub fn load(&self) -> Result<WorkerLoad, WorkerGone> {
        self.ask(Command::Load)
    }

    /// The ports the worker has: those of one NIC with their rings, or all of them without.
    pub fn ports(&self, of: Option<PortSlot>) -> Result<Vec<PortReport>, WorkerGone> {
        self.ask(|answer| Command::Ports(of, answer))
    }

    /// The worker's counters: read them at any time, without asking it.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Ends the worker's loop after the commands sent before. Not to be waited for here: join the thread.
    pub fn stop(&self) {
        // A worker that is gone already has stopped.
        let _ = self.commands.send(Command::Stop);
        self.bell.ring();
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, WorkerGone> {
        let (answer, wait): (Sender<T>, Receiver<T>) = channel();
        self.commands.send(command(answer)).map_err(|_| WorkerGone)?;
        self.bell.ring();
        // A worker that ends drops its queue and with it the sender: the wait ends with an error.
        wait.recv().map_err(|_| WorkerGone)
    }
}
