//! The face of all workers: what the rest of the process asks of them, and which worker has which
//! queue.
//!
//! Every call here waits for the workers, which answer between two batches. The list of queues is
//! behind a lock that no worker ever takes.

mod captures;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use io::port::Port;
use sys::poll::Doorbell;
use wire::Vni;

use crate::balance::{self, Move, QueueBalancer, QueueUse};
use crate::config::WorkerConfig;
use crate::counters::{Counters, PortCounters, RuleCounters};
use crate::drop_reason::REASONS;
use crate::dump::{FlowCursor, FlowPage};
use crate::flow::kernel::{KernelFlowTable, KernelFlows, KernelMap};
use crate::flow::{FlowEvents, FlowInfo, FlowMemory, FlowTable, Log};
use crate::handle::{Answer, Command, QueueArrival, WorkerGone, WorkerHandle};
use crate::handoff::{self, Wake};
use crate::ids::{PortSlot, PortUid, RuleSlot};
use crate::learned::{HandedOverMac, LearnedMac};
use crate::left_flows::{LeftFlows, TakingUp};
use crate::load::{QueueLoad, WorkerLoad};
use crate::queue::{MAX_WORKERS, QueueId, Routes};
use crate::report::PortReport;
use crate::sampling::Samples;
use crate::sleep_flag::SleepFlag;
use crate::snapshot::Snapshot;
use crate::state_memory::StateMemory;
use crate::time::Now;
use crate::trial::{Report, Trial};
use crate::underlay::Underlay;
use crate::view::View;
use crate::wanted::Wanted;
use crate::worker::{Parts, Worker};
use captures::Taps;
pub use captures::{CAPTURES_MAX, CaptureError};

/// Flows that are taken out between two batches.
const REMOVED_AT_ONCE: usize = 256;
/// Flows that a worker takes up between two batches.
const TAKEN_AT_ONCE: usize = 1 << 14;

/// Transfers are sent on so many times at most before a snapshot counts as in force: once for each
/// move of a queue that they meet, and queues are not moved more than that while one is published.
const SETTLE_MAX: usize = 4;

/// All workers.
pub struct Switch {
    workers: Vec<WorkerHandle>,
    queues: Mutex<BTreeMap<QueueId, Assigned>>,
    wanted: Arc<Wanted>,
    /// The view in force; `None`: a worker has ended, and none can be.
    pub(crate) published: Mutex<Option<Arc<View>>>,
    pub(crate) taps: Taps,
    /// The flows of all workers, and what of them outlives the process.
    flows: Arc<FlowTable>,
    memory: Option<FlowMemory>,
    state: Option<StateMemory>,
    /// Slots of NICs that any snapshot had.
    slots: AtomicUsize,
    /// How busy each worker was at the last look, in thousandths.
    busy: Vec<AtomicU64>,
    /// What the kernel forwards, where it does.
    kernel: OnceLock<Arc<KernelFlows>>,
    taking_up: TakingUp,
    stopping: Mutex<bool>,
    paused: AtomicBool,
    stopped: Condvar,
}

/// Where a queue is.
struct Assigned {
    worker: usize,
    load: Arc<QueueLoad>,
}

impl Switch {
    /// `count` workers (1 to [`MAX_WORKERS`], else the nearest number) under an empty snapshot,
    /// each to be driven by a thread of its own. `configure` is asked once for each; the first
    /// answer's says how large the table of flows is that all share. Fails when the process is out
    /// of descriptors.
    pub fn new(
        count: usize,
        configure: impl FnMut(usize) -> WorkerConfig,
    ) -> std::io::Result<(Switch, Vec<Worker>)> {
        Switch::with_memory(count, None, configure)
    }

    /// [`new`](Switch::new) with flows that outlive the process, as many as `memory` was made for.
    /// So do counters and learnt MACs then.
    pub fn with_memory(
        count: usize,
        memory: Option<FlowMemory>,
        mut configure: impl FnMut(usize) -> WorkerConfig,
    ) -> std::io::Result<(Switch, Vec<Worker>)> {
        let count = count.clamp(1, MAX_WORKERS);
        let wakes = (0..count)
            .map(|_| {
                Ok(Wake {
                    bell: Doorbell::new()?,
                    sleeps: Arc::new(SleepFlag::new()),
                })
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let routes = Arc::new(Routes::new());
        let wanted = Arc::new(Wanted::default());
        let configs: Vec<WorkerConfig> = (0..count).map(&mut configure).collect();
        let macs = configs.iter().map(|config| config.max_learned_macs).max();
        let state = memory
            .is_some()
            .then(|| StateMemory::new(count, macs.unwrap_or(0)))
            .transpose()?;
        let mut handles = Vec::new();
        let mut commands = Vec::new();
        for (number, wake) in wakes.iter().enumerate() {
            let (sender, receiver) = channel();
            commands.push(receiver);
            let counters = match &state {
                Some(state) => state.counters(number)?,
                None => Counters::new(),
            };
            handles.push(WorkerHandle {
                commands: sender,
                bell: wake.bell.clone(),
                counters: Arc::new(counters),
            });
        }
        let mut workers = Vec::new();
        let mut flows = None;
        let made = |config: &WorkerConfig| match &memory {
            Some(memory) => FlowTable::in_memory(memory, config.seed, count),
            None => Ok(FlowTable::shared(config.max_flows, config.seed, count)),
        };
        let ends = handoff::connect(&wakes)
            .into_iter()
            .zip(commands)
            .zip(wakes);
        for (number, ((((outbox, inbox), commands), wake), config)) in ends.zip(configs).enumerate()
        {
            let flows = match &mut flows {
                Some(flows) => flows,
                None => flows.insert(made(&config)?),
            };
            workers.push(Worker::new(
                config,
                Parts {
                    number,
                    wake,
                    commands,
                    handles: handles.clone(),
                    routes: routes.clone(),
                    wanted: wanted.clone(),
                    flows: flows.clone(),
                    mac_records: state
                        .as_ref()
                        .map(|state| state.mac_records(number))
                        .transpose()?,
                    outbox,
                    inbox,
                },
            )?);
        }
        let flows = flows.expect("one worker at least, and it has flows");
        let switch = Switch {
            flows,
            memory,
            state,
            slots: AtomicUsize::new(0),
            workers: handles,
            queues: Mutex::default(),
            wanted,
            published: Mutex::new(Some(Arc::default())),
            taps: Taps::default(),
            busy: (0..count).map(|_| AtomicU64::new(0)).collect(),
            kernel: OnceLock::new(),
            taking_up: TakingUp::default(),
            stopping: Mutex::new(false),
            paused: AtomicBool::new(false),
            stopped: Condvar::new(),
        };
        Ok((switch, workers))
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Puts a snapshot in force; returns when every frame that is delivered from now on was judged
    /// by it. Snapshots are to be published in the order of their epochs.
    ///
    /// What follows from it and is the same for all workers is worked out here, once. An error
    /// means that a worker has ended: others may use the snapshot; none that comes after it is
    /// handed to anybody.
    pub fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), WorkerGone> {
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = published.take().ok_or(WorkerGone)?;
        if let Some(memory) = &self.memory {
            memory.note(&snapshot, before.epoch());
        }
        self.slots
            .fetch_max(snapshot.ports.len(), Ordering::Relaxed);
        let (view, difference) = before.next(&snapshot);
        let (epoch, opened) = (snapshot.epoch.0, difference.opened);
        tracing::debug!(epoch, opened, "a snapshot is handed to the workers");
        let (view, difference) = (Arc::new(view), Arc::new(difference));
        // The answers are the views before: they are dropped here and not on the path.
        let handed = self.taps.applied_to(&view);
        let generation = self.end_permits();
        self.ask_all(|answer| {
            Command::Publish(handed.clone(), difference.clone(), generation, answer)
        })?;
        *published = Some(view);
        if self.workers.len() > 1 {
            // Frames that were judged before may still be on their way to another worker.
            for _ in 0..SETTLE_MAX {
                if self.ask_all(Command::Settle)?.iter().sum::<usize>() == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// From now on the kernel forwards flows between the NICs that have a
    /// [device](Self::set_kernel_device). The table is for a thread that
    /// [updates](Self::update_kernel_flow_table) it. `None`: it does already.
    pub fn use_kernel_flows(
        &self,
        flows: &Arc<KernelFlows>,
    ) -> Result<Option<KernelFlowTable>, WorkerGone> {
        if self.kernel.set(flows.clone()).is_err() {
            return Ok(None);
        }
        let counters = self.workers.iter().map(|worker| worker.counters.clone());
        let (table, parts) = KernelFlowTable::new(flows, counters);
        for (worker, part) in parts.into_iter().enumerate() {
            self.ask(worker, |answer| Command::Kernel(Box::new(part), answer))
                .wait()?;
        }
        self.hand_out_again()?;
        Ok(Some(table))
    }

    /// Has the kernel forget what is over and told of what workers have asked for since the last
    /// call: to be called again and again. Gives how many directions that were.
    pub fn update_kernel_flow_table(
        &self,
        table: &mut KernelFlowTable,
        map: &mut impl KernelMap,
    ) -> Result<usize, WorkerGone> {
        table.update(map, |worker, entered| {
            self.ask(worker, |answer| Command::Entered(entered, answer))
                .wait()
        })
    }

    /// What the kernel forwards, where it does.
    pub fn kernel_flows(&self) -> Option<&Arc<KernelFlows>> {
        self.kernel.get()
    }

    /// The index of the device of a NIC that the program is at which forwards flows, 0: none any
    /// more. All flows come up again.
    pub fn set_kernel_device(&self, slot: PortSlot, ifindex: u32) -> Result<(), WorkerGone> {
        match self.kernel.get() {
            Some(kernel) if kernel.set_device(slot, ifindex) => self.hand_out_again(),
            _ => Ok(()),
        }
    }

    /// Nothing that the kernel was permitted to forward is any more. Gives the generation of what
    /// is to be.
    pub(crate) fn end_permits(&self) -> u32 {
        self.kernel.get().map_or(0, |kernel| kernel.raise())
    }

    /// Puts the next hops of the underlay in force: no flow is decided again, but none is
    /// forwarded by the kernel before the path has sent another packet of it. Returns when every
    /// worker uses them; frames that were handed to another worker before still go the old ones.
    pub fn set_underlay(&self, underlay: Arc<Underlay>) -> Result<(), WorkerGone> {
        // Generations come to the workers in their order: no view is handed out meanwhile.
        let _published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let generation = self.end_permits();
        // The answers are the underlays before: they are dropped here and not on the path.
        self.ask_all(|answer| Command::Underlay(underlay.clone(), generation, answer))
            .map(drop)
    }

    /// The hosts that frames wanted to go to since the last call and that the underlay had no
    /// way to, each once. Asks no worker.
    pub fn take_wanted(&self) -> Vec<IpAddr> {
        self.wanted.take()
    }

    /// `call` is called, on a worker's thread, when there is something to [take](Self::take_wanted)
    /// and was nothing before: it must not wait. Once; false when somebody listens already.
    pub fn on_wanted(&self, call: impl Fn() + Send + Sync + 'static) -> bool {
        self.wanted.listen(Box::new(call))
    }

    /// Gives a port to the worker that has least to do. A port that was there before is given back.
    pub fn attach(&self, queue: QueueId, port: Port) -> Result<Option<Port>, WorkerGone> {
        let mut queues = self.queues();
        let (assigned, arrival) = self.assign(&queues, queue, port);
        let before = self
            .ask(assigned.worker, |answer| Command::Attach(arrival, answer))
            .wait()?;
        if queue.is_possible() {
            queues.insert(queue, assigned);
        }
        Ok(before.map(|port| *port))
    }

    /// The worker that a port goes to, the one that its queue has or else the one that has least to
    /// do, and what is said to it.
    fn assign(
        &self,
        queues: &BTreeMap<QueueId, Assigned>,
        queue: QueueId,
        port: Port,
    ) -> (Assigned, QueueArrival) {
        let (worker, load) = match queues.get(&queue) {
            Some(assigned) => (assigned.worker, assigned.load.clone()),
            None => (self.least_loaded(queues), Arc::default()),
        };
        let arrival = QueueArrival {
            queue,
            port: Box::new(port),
            load: load.clone(),
        };
        (Assigned { worker, load }, arrival)
    }

    /// Gives all of these ports to the workers, each to one that has few, between two batches: no
    /// frame of one finds that another is not there yet, unless that is with another worker, which
    /// begins a moment later. With all of them [paused](Self::pause) none does.
    pub fn attach_all(&self, ports: Vec<(QueueId, Port)>) -> Result<(), WorkerGone> {
        let mut queues = self.queues();
        let mut asked = Vec::with_capacity(ports.len());
        for (queue, port) in ports.into_iter().filter(|(queue, _)| queue.is_possible()) {
            let (assigned, arrival) = self.assign(&queues, queue, port);
            let attach = |answer| Command::Attach(arrival, answer);
            asked.push((queue, self.workers[assigned.worker].ask_silently(attach)));
            queues.insert(queue, assigned);
        }
        self.answers(asked).try_for_each(|answer| answer.map(drop))
    }

    /// Has no worker receive anything any more; returns when what was received is delivered, also
    /// by workers to which it was handed. So all ports can be taken away, one after the other, and
    /// no frame is lost between them. What a shaper holds back stays with its worker.
    pub fn pause(&self) -> Result<(), WorkerGone> {
        self.paused.store(true, Ordering::Relaxed);
        self.ask_all(|answer| Command::Pause(true, answer))?;
        for _ in 0..SETTLE_MAX {
            if self.ask_all(Command::Settle)?.iter().sum::<usize>() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// No worker receives, and another process may be about to.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// All workers receive again.
    pub fn resume(&self) -> Result<(), WorkerGone> {
        self.paused.store(false, Ordering::Relaxed);
        self.ask_all(|answer| Command::Pause(false, answer))
            .map(drop)
    }

    /// Takes a port away from its worker. No worker touches it, or reads what it has sent, when
    /// this returns.
    pub fn detach(&self, queue: QueueId) -> Result<Option<Port>, WorkerGone> {
        let mut queues = self.queues();
        let Some(assigned) = queues.remove(&queue) else {
            return Ok(None);
        };
        let port = self
            .ask(assigned.worker, |answer| Command::Detach(queue, answer))
            .wait()?;
        Ok(port.map(|port| *port))
    }

    /// Takes all of these ports away from their workers, as [`detach`](Self::detach) does one:
    /// those that were there.
    pub fn detach_all(&self, gone: &[QueueId]) -> Result<Vec<(QueueId, Port)>, WorkerGone> {
        let mut queues = self.queues();
        let mut asked = Vec::with_capacity(gone.len());
        for &queue in gone {
            if let Some(assigned) = queues.remove(&queue) {
                let detach = |answer| Command::Detach(queue, answer);
                asked.push((queue, self.workers[assigned.worker].ask_silently(detach)));
            }
        }
        let answers = self.answers(asked);
        let port = |(queue, port): (QueueId, Option<Box<Port>>)| Some((queue, *port?));
        answers
            .filter_map(|answer| answer.map(port).transpose())
            .collect()
    }

    /// What workers answer that were silently asked about these queues. The last one first: all
    /// others of its worker have come then, and wake nobody.
    fn answers<T>(
        &self,
        asked: Vec<(QueueId, Answer<T>)>,
    ) -> impl Iterator<Item = Result<(QueueId, T), WorkerGone>> {
        self.workers.iter().for_each(|worker| worker.bell.ring());
        let asked = asked.into_iter().rev();
        asked.map(|(queue, answer)| Ok((queue, answer.wait()?)))
    }

    /// Gives a queue to another worker, between two batches. False when there is no such queue or
    /// worker; true also when that worker has it.
    pub fn move_queue(&self, queue: QueueId, to: usize) -> Result<bool, WorkerGone> {
        let mut queues = self.queues();
        let Some(assigned) = queues.get_mut(&queue).filter(|_| to < self.workers.len()) else {
            return Ok(false);
        };
        if assigned.worker == to {
            return Ok(true);
        }
        let from = assigned.worker;
        let moved = self
            .ask(from, |answer| Command::Move(queue, to, answer))
            .wait()?;
        if moved {
            assigned.worker = to;
        }
        Ok(moved)
    }

    /// Whether a port of the NIC is with a worker. Asks none.
    pub fn has_queue_of(&self, slot: PortSlot) -> bool {
        let first = QueueId::from(slot);
        let last = QueueId {
            pair: u16::MAX,
            ..first
        };
        self.queues().range(first..=last).next().is_some()
    }

    /// All queues, by NIC and pair, and what they have cost. Asks no worker.
    pub fn queue_uses(&self) -> Vec<QueueUse> {
        let queues = self.queues();
        let uses = queues.iter().map(|(queue, assigned)| QueueUse {
            queue: *queue,
            worker: assigned.worker,
            cycles: assigned.load.cycles(),
        });
        uses.collect()
    }

    /// Looks at what the queues have cost since the last look, and moves one if that is worth it:
    /// to be called once a second or so. `now`: by the cycle counter. Gives what was moved.
    pub fn balance(
        &self,
        balancer: &mut QueueBalancer,
        now: u64,
    ) -> Result<Option<Move>, WorkerGone> {
        let shares = balancer.look(&self.queue_uses(), now);
        for (noted, busy) in self.busy.iter().zip(balance::busy(self.workers(), &shares)) {
            noted.store(busy, Ordering::Relaxed);
        }
        let Some(next) = balancer.decide(self.workers(), &shares) else {
            return Ok(None);
        };
        Ok(self.move_queue(next.queue, next.to)?.then_some(next))
    }

    /// Announces to all other NICs of a NIC's network where the NIC is, as a guest that has just
    /// come there would. Does nothing for a NIC that no snapshot in force knows.
    pub fn announce(&self, slot: PortSlot) -> Result<(), WorkerGone> {
        self.ask_all(|answer| Command::Announce(slot, answer))
            .map(drop)
    }

    /// The tracked flows, all of them or those with an end at one NIC.
    pub fn flows(&self, of: Option<PortUid>) -> Result<Vec<FlowInfo>, WorkerGone> {
        self.taking_up.wait();
        let page = FlowPage {
            at: 0,
            most: usize::MAX,
        };
        let found = self.ask_all(|answer| Command::Flows(of, page, answer))?;
        Ok(found.into_iter().flat_map(|(found, _)| found).collect())
    }

    /// Some of the tracked flows, `most` at the most, and where the next ones begin; `None`: there
    /// are no more. A flow that is there all the time is met once, one that comes or goes meanwhile
    /// may be.
    pub fn flows_page(
        &self,
        of: Option<PortUid>,
        from: FlowCursor,
        most: usize,
    ) -> Result<(Vec<FlowInfo>, Option<FlowCursor>), WorkerGone> {
        self.taking_up.wait();
        let page = FlowPage { at: from.at, most };
        let (found, next) = self
            .ask(from.worker, |answer| Command::Flows(of, page, answer))
            .wait()?;
        let next = match next {
            Some(at) => Some(FlowCursor { at, ..from }),
            None => Some(from.worker + 1)
                .filter(|worker| *worker < self.workers.len())
                .map(|worker| FlowCursor { worker, at: 0 }),
        };
        Ok((found, next))
    }

    /// Adds flows (of a migrated NIC, or of the daemon before). They are judged by the rules in
    /// force with their next packet. Gives how many were taken: not those that are there already,
    /// whose NICs are not, or for which there is no room.
    pub fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, WorkerGone> {
        self.taking_up.wait();
        let (mut flows, mut taken) = (flows.into_iter(), 0);
        loop {
            let some: Vec<FlowInfo> = flows.by_ref().take(TAKEN_AT_ONCE).collect();
            if some.is_empty() {
                return Ok(taken);
            }
            taken += self.ask(0, |answer| Command::Import(some, answer)).wait()?;
        }
    }

    /// From now on a packet whose flow is not known has it looked for in what another process has
    /// left, and taken up. Whoever asks for flows waits until
    /// [`take_up_left`](Self::take_up_left), which is to follow, has taken up all others.
    pub fn begin_left(&self, left: &Arc<LeftFlows>) -> Result<(), WorkerGone> {
        self.taking_up.set(true);
        let told = self.ask_all(|answer| Command::LeftFlows(Some(left.clone()), answer));
        told.map(drop).inspect_err(|_| self.taking_up.set(false))
    }

    /// Takes up all flows that were left while frames move, some between two batches, but for
    /// those that have ended by `now`. How many there were, those that packets have asked for
    /// included, and how many entries could not be true.
    ///
    /// # Errors
    /// A sentence: not all were taken up.
    pub fn take_up_left(&self, left: &LeftFlows, now: Now) -> Result<(usize, u64), String> {
        let mut gone = Ok(());
        let untrue = left.rest(now, |some| {
            if gone.is_ok() {
                gone = self.ask(0, |answer| Command::TakeUp(some, answer)).wait();
            }
        });
        let ended = self.ask_all(|answer| Command::LeftFlows(None, answer));
        self.taking_up.set(false);
        gone.and(ended).map_err(|e| e.to_string())?;
        Ok((left.taken(), untrue.map_err(|e| e.to_string())?))
    }

    /// Flows of a process before are still being taken up.
    pub fn is_taking_up(&self) -> bool {
        self.taking_up.is_so()
    }

    /// Returns when no flows are to be taken up any more.
    pub fn wait_for_left(&self) {
        self.taking_up.wait();
    }

    /// Leaves the flows that there are now to the next process, in the memory that outlives this
    /// one: how many. To be called when no worker has a port any more. `None`: there is no such
    /// memory.
    ///
    /// # Errors
    /// A sentence: they are not left.
    pub fn leave_flows(&self) -> Option<Result<usize, String>> {
        let memory = self.memory.as_ref()?;
        self.taking_up.wait();
        let left = self.ask_all(Command::LeaveFlows).map_err(|e| e.to_string());
        let left = left.and_then(|_| self.flows.leave(memory).map_err(|e| e.to_string()));
        Some(left.map(|()| self.flows.len() as usize))
    }

    /// The memory that flows are in, if that outlives the process.
    pub fn flow_memory(&self) -> Option<&FlowMemory> {
        self.memory.as_ref()
    }

    /// The memory that counters and learnt MACs are in, if that outlives the process.
    pub fn state_memory(&self) -> Option<&StateMemory> {
        self.state.as_ref()
    }

    /// Has all workers learn what a process before has heard, in the order in which it was: how
    /// many MACs were taken. What this process has heard itself is newer.
    pub fn learn(&self, heard: Vec<HandedOverMac>) -> Result<usize, WorkerGone> {
        let heard: Arc<[HandedOverMac]> = heard.into();
        let workers = 0..self.workers.len();
        let asked = workers.map(|worker| {
            self.ask(worker, |answer| {
                Command::Learn(heard.clone(), worker == 0, answer)
            })
        });
        // All of them at once: an upgrade holds frames meanwhile.
        let asked: Vec<_> = asked.collect();
        let mut taken = 0;
        for answer in asked {
            taken = answer.wait()?.max(taken);
        }
        Ok(taken)
    }

    /// How many places the table of flows has ever used; behind them it has nothing.
    pub fn flows_used(&self) -> u64 {
        self.flows.high().into()
    }

    /// Gives the memory in which flows are looked up huge pages, where the system does not by
    /// itself: all of it. Before each huge page `go_on` is told how long the one before took, and
    /// says whether to go on. True when all of it is done.
    pub fn collapse_flow_index(&self, go_on: impl FnMut(Duration) -> bool) -> bool {
        self.flows.collapse_index(go_on)
    }

    /// Gives the memory of flows huge pages, of those in use and of `ahead` more, up to where
    /// `done` says: to be called many times a second where the system does not by itself. `go_on`:
    /// see [`collapse_flow_index`](Self::collapse_flow_index). How many were in use at most.
    pub fn collapse_flow_memory(
        &self,
        done: &mut usize,
        ahead: usize,
        go_on: impl FnMut(Duration) -> bool,
    ) -> usize {
        self.flows.collapse(done, ahead, go_on);
        self.flows.high() as usize
    }

    /// Takes flows out, as if they had been idle for too long: what comes next of them is judged by
    /// the rules, and TCP in the middle of a connection is refused where the rules do not take it
    /// up. Gives how many were there.
    pub fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, WorkerGone> {
        self.taking_up.wait();
        let mut removed = 0;
        // A part between two batches each, so that frames need not wait for all.
        for part in flows.chunks(REMOVED_AT_ONCE) {
            let part = part.to_vec();
            removed += self.ask(0, |answer| Command::Remove(part, answer)).wait()?;
        }
        Ok(removed)
    }

    /// Tells of connections that begin and end, and of packets that are refused, from now on;
    /// who was told before is told no more. What is lost is added to `lost`.
    pub fn log_flows(&self, lost: &Arc<AtomicU64>) -> Result<FlowEvents, WorkerGone> {
        let (events, sinks) = FlowEvents::new(self.workers.len(), lost.clone());
        for (number, sink) in sinks.into_iter().enumerate() {
            let log = Some(Box::new(Log::new(sink)));
            self.ask(number, |answer| Command::LogFlows(log, answer))
                .wait()?;
        }
        Ok(events)
    }

    /// Nobody is told of connections any more.
    pub fn end_flow_log(&self) -> Result<(), WorkerGone> {
        self.ask_all(|answer| Command::LogFlows(None, answer))
            .map(drop)
    }

    /// Samples one frame in `rate` from now on, of those that come into the switch; 0: none but of
    /// NICs with a rate of their own. What is taken comes out of the rings. The kernel forwards
    /// nothing by itself meanwhile that a sampled NIC sends. `seed`: which frames are taken.
    pub fn sample(&self, rate: u32, seed: u64) -> Result<Samples, WorkerGone> {
        let (samples, samplers) = Samples::new(self.workers.len(), rate, seed);
        for (number, sampler) in samplers.into_iter().enumerate() {
            let sampler = Some(Box::new(sampler));
            self.ask(number, |answer| Command::Sample(sampler, answer))
                .wait()?;
        }
        // What was permitted before ends here, and the kernel is told of nothing new.
        self.hand_out_again()?;
        Ok(samples)
    }

    /// Nothing is sampled any more.
    pub fn end_samples(&self) -> Result<(), WorkerGone> {
        self.ask_all(|answer| Command::Sample(None, answer))
            .map(drop)
    }

    /// What each worker has been doing, by its number.
    pub fn loads(&self) -> Result<Vec<WorkerLoad>, WorkerGone> {
        self.ask_all(Command::Load)
    }

    /// The ports and which worker has them: those of one NIC with their rings, or all of them
    /// without.
    pub fn ports(&self, of: Option<PortSlot>) -> Result<Vec<(usize, PortReport)>, WorkerGone> {
        let found = self.ask_all(|answer| Command::Ports(of, answer))?;
        let each = |(worker, reports): (usize, Vec<PortReport>)| {
            reports.into_iter().map(move |report| (worker, report))
        };
        Ok(found.into_iter().enumerate().flat_map(each).collect())
    }

    /// The MACs learnt in a network, sorted; of those that several workers know, what was heard
    /// last.
    pub fn learned(&self, vni: Vni) -> Result<Vec<LearnedMac>, WorkerGone> {
        let found = self.ask_all(|answer| Command::Learned(vni, answer))?;
        let mut all: Vec<LearnedMac> = found.into_iter().flatten().collect();
        all.sort_by_key(|learned| (learned.mac, learned.age_secs));
        all.dedup_by_key(|learned| learned.mac);
        Ok(all)
    }

    /// What would become of a frame that came from a NIC, or from an uplink's wire: the path judges
    /// it, and nothing is sent, counted, learnt or remembered. Asks the worker that has the queue.
    pub fn trial(&self, from: PortSlot, frame: Vec<u8>) -> Result<Box<Report>, WorkerGone> {
        self.taking_up.wait();
        let assigned = self.queues().get(&QueueId::from(from)).map(|to| to.worker);
        let worker = assigned.unwrap_or(0);
        // What it needs is made here, and the worker makes nothing large.
        let trial = Box::new(Trial::new(worker, from, frame));
        let answer = self.ask(worker, |answer| Command::Trial(trial, answer));
        answer.wait().map(|(report, _)| report)
    }

    /// What all workers together have counted for a NIC. At any time, without asking them.
    pub fn port_counters(&self, slot: PortSlot) -> PortCounters {
        let mut sum = PortCounters::default();
        for worker in &self.workers {
            sum.add(&worker.counters.port(slot));
        }
        sum
    }

    /// What all workers together have dropped of all NICs, those that are gone included, by
    /// `DropReason as usize`: frames from guests, and frames on their way to guests. With those of
    /// the processes before whose counts were taken up.
    pub fn dropped_frames(&self) -> [[u64; REASONS]; 2] {
        let carried = self.state.as_ref().map(StateMemory::carried_drops);
        let mut sums = carried.unwrap_or([[0; REASONS]; 2]);
        let slots = self.slots.load(Ordering::Relaxed);
        for worker in &self.workers {
            worker.counters.add_drops(slots, &mut sums);
        }
        sums
    }

    /// What all workers together have counted for a rule.
    pub fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        let mut sum = RuleCounters::default();
        for worker in &self.workers {
            sum.add(&worker.counters.rule(slot));
        }
        sum
    }

    /// Ends the loops of all workers after the commands sent before. Not to be waited for here:
    /// join the threads.
    pub fn stop(&self) {
        self.workers.iter().for_each(WorkerHandle::stop);
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.notify_all();
        if let Some(kernel) = self.kernel.get() {
            kernel.wake();
        }
    }

    /// Waits so long, or until [`stop`](Self::stop). True when it was that.
    pub fn wait_stopping(&self, longest: Duration) -> bool {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .stopped
            .wait_timeout_while(stopping, longest, |stopping| !*stopping);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the loop of one worker, for tests of what becomes of the others.
    pub fn stop_worker(&self, worker: usize) {
        if let Some(worker) = self.workers.get(worker) {
            worker.stop();
        }
    }

    /// The one that had least to do at the last look, in quarters of its time; of those, the one
    /// with fewest queues: what a queue will cost is not known before it has come.
    fn least_loaded(&self, queues: &BTreeMap<QueueId, Assigned>) -> usize {
        let mut counts = vec![0usize; self.workers.len()];
        for assigned in queues.values() {
            counts[assigned.worker] += 1;
        }
        let busy = |worker: usize| self.busy[worker].load(Ordering::Relaxed) / 250;
        let least = (0..counts.len()).min_by_key(|&worker| (busy(worker), counts[worker]));
        least.unwrap_or(0)
    }

    fn ask<T>(
        &self,
        worker: usize,
        command: impl FnOnce(std::sync::mpsc::Sender<T>) -> Command,
    ) -> Answer<T> {
        self.workers[worker].ask(command)
    }

    /// Asks all at once, and waits for all whatever becomes of one.
    pub(crate) fn ask_all<T>(
        &self,
        command: impl Fn(std::sync::mpsc::Sender<T>) -> Command,
    ) -> Result<Vec<T>, WorkerGone> {
        let asked: Vec<_> = self
            .workers
            .iter()
            .map(|worker| worker.ask(&command))
            .collect();
        let answers: Vec<_> = asked.into_iter().map(Answer::wait).collect();
        answers.into_iter().collect()
    }

    /// What no worker ever waits for.
    fn queues(&self) -> MutexGuard<'_, BTreeMap<QueueId, Assigned>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Switch {
    /// Nobody can ask the workers for anything any more, not even to stop.
    fn drop(&mut self) {
        self.stop();
    }
}
