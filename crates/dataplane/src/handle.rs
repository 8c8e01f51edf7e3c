//! How the rest of the process talks to one worker: commands that wait for its answer.
//! [`Switch`](crate::Switch) is the face of all workers together.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use io::port::Port;
use sys::poll::Doorbell;
use thiserror::Error;
use wire::Vni;

use crate::counters::Counters;
use crate::dump::FlowPage;
use crate::flow::kernel::{Entered, KernelPart};
use crate::flow::{FlowId, FlowInfo, Log};
use crate::ids::{PortSlot, PortUid};
use crate::learned::{HandedOverMac, LearnedMac};
use crate::left_flows::{LeftFlows, Place};
use crate::load::{QueueLoad, WorkerLoad};
use crate::queue::QueueId;
use crate::report::PortReport;
use crate::sampling::Sampler;
use crate::trial::{Report, Trial};
use crate::underlay::Underlay;
use crate::view::{Difference, View};

/// The worker's thread has ended: nothing will be switched any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the worker is gone")]
pub struct WorkerGone;

/// What a worker is asked to do. Each carries where the answer goes.
pub(crate) enum Command {
    /// Put a view in force, which differs in this from the one before, and the generation of what
    /// the kernel forwards; the answer: the view before.
    Publish(Arc<View>, Arc<Difference>, u32, Sender<Arc<View>>),
    /// The kernel may forward flows from now on.
    Kernel(Box<KernelPart>, Sender<()>),
    /// The kernel is told of these directions; the answer: the places that no flow took.
    Entered(Vec<Entered>, Sender<Vec<u32>>),
    /// Put an underlay in force; the answer: the one before.
    Underlay(Arc<Underlay>, u32, Sender<Arc<Underlay>>),
    /// Deliver what other workers have handed over so far; the answer: how many transfers had to be
    /// sent on.
    Settle(Sender<usize>),
    /// Receive nothing from any port, or receive again.
    Pause(bool, Sender<()>),
    Attach(QueueArrival, Sender<Option<Box<Port>>>),
    Detach(QueueId, Sender<Option<Box<Port>>>),
    /// Give a queue to another worker; the answer: it was here, and is there.
    Move(QueueId, usize, Sender<bool>),
    /// Tell those of a NIC's network whose queues are here where the NIC is.
    Announce(PortSlot, Sender<()>),
    /// The flows that it has made, of all or of one NIC: so many from an entry on at most. The
    /// answer says which entry is next, if any is.
    Flows(
        Option<PortUid>,
        FlowPage,
        Sender<(Vec<FlowInfo>, Option<FlowId>)>,
    ),
    Import(Vec<FlowInfo>, Sender<usize>),
    /// Flows of a process before are to be taken up from now on, or all are.
    LeftFlows(Option<Arc<LeftFlows>>, Sender<()>),
    /// Take these of them up, which are in these places.
    TakeUp(Vec<(Place, FlowInfo)>, Sender<()>),
    /// Flows are left to the next process as they are.
    LeaveFlows(Sender<()>),
    /// Take these flows out; the answer: how many were there.
    Remove(Vec<FlowInfo>, Sender<usize>),
    /// Tell this one of connections from now on, or nobody.
    LogFlows(Option<Box<Log>>, Sender<()>),
    /// Sample frames from now on, or none.
    Sample(Option<Box<Sampler>>, Sender<()>),
    Load(Sender<WorkerLoad>),
    Ports(Option<PortSlot>, Sender<Vec<PortReport>>),
    /// Learn what a process before has heard, and, with `true`, note it for the next one; the
    /// answer: how many were taken.
    Learn(Arc<[HandedOverMac]>, bool, Sender<usize>),
    /// The MACs that it has learnt in a network.
    Learned(Vni, Sender<Vec<LearnedMac>>),
    /// What would become of a frame; nothing is changed. The trial comes back, to be dropped by who
    /// has made it.
    Trial(Box<Trial>, Sender<(Box<Report>, Box<Trial>)>),
    Stop,
}

impl Command {
    /// Whether copies that were put off are to be made before it is carried out: what they were
    /// judged by ends, or somebody waits for them to be made.
    pub(crate) fn ends_floods(&self) -> bool {
        use Command::{Announce, Pause, Publish, Settle, Stop, Underlay};
        matches!(
            self,
            Publish(..) | Underlay(..) | Settle(_) | Pause(..) | Announce(..) | Stop
        )
    }
}

/// A queue that comes to a worker.
pub(crate) struct QueueArrival {
    pub queue: QueueId,
    pub port: Box<Port>,
    pub load: Arc<QueueLoad>,
}

/// An answer that is under way.
pub(crate) struct Answer<T>(Receiver<T>);

impl<T> Answer<T> {
    /// Waits for it. A worker that ends drops its queue and with it the sender: the wait ends with
    /// an error.
    pub(crate) fn wait(self) -> Result<T, WorkerGone> {
        self.0.recv().map_err(|_| WorkerGone)
    }
}

/// The other threads' end of a worker.
#[derive(Clone)]
pub(crate) struct WorkerHandle {
    pub commands: Sender<Command>,
    pub bell: Doorbell,
    pub counters: Arc<Counters>,
}

impl WorkerHandle {
    /// Asks without waiting: several workers can be asked at once.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Answer<T> {
        let answer = self.ask_silently(command);
        self.bell.ring();
        answer
    }

    /// Asks without waking the worker, which may not look before its bell is rung.
    pub(crate) fn ask_silently<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Answer<T> {
        let (answer, wait) = channel();
        // A worker that is gone drops the command, and with it the sender.
        let _ = self.commands.send(command(answer));
        Answer(wait)
    }

    /// Ends the worker's loop after the commands sent before. Not to be waited for here: join the
    /// thread.
    pub(crate) fn stop(&self) {
        // A worker that is gone already has stopped.
        let _ = self.commands.send(Command::Stop);
        self.bell.ring();
    }
}
