//! The worker: one thread's share of the switch, driven by whoever owns the thread and the clock.
//!
//! The owner calls [`Worker::turn`] over and over; after a spell of turns that found nothing it calls
//! [`Worker::sleep`], which waits for a port, a command or a timer. Commands of other threads come through a
//! [`WorkerHandle`] and are carried out between batches.
//!
//! Only *active* ports are polled. A port that has been quiet for [`PARK_AFTER_NS`] is *parked*: armed, so that
//! its peer wakes us, and left alone until the poller reports it. So a thousand quiet guests cost a busy one
//! nothing but the look at the poller every [`LOOK_EVERY_NS`], and going to sleep costs what was active before.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use io::frame::{BATCH, Batch};
use io::poll::{Doorbell, Poller};
use io::port::Port;

use crate::counters::{Counters, MAX_PORTS};
use crate::dump::{self, Dump};
use crate::handle::{Command, WorkerHandle};
use crate::load::WorkerLoad;
use crate::path::Path;
use crate::ports::{Attached, Ports};
use crate::report;
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
    /// A dump or a sweep is under way, or a sender waits for others: call again soon.
    pub busy: bool,
    /// The worker was told to stop: do not call again.
    pub stopped: bool,
}

/// One thread's share of the switch.
pub struct Worker {
    path: Path,
    ports: Ports,
    /// The ports that are polled; all others are parked.
    active: Vec<PortSlot>,
    parked: usize,
    looked_at_ns: u64,
    batch: Batch,
    commands: Receiver<Command>,
    bell: Doorbell,
    poller: Poller,
    load: WorkerLoad,
    dumps: Vec<Dump>,
    stopped: bool,
    /// The doorbell was answered while asleep, and the commands not looked at yet.
    called: bool,
    /// When it last went to sleep; counted with the next turn, which knows the time.
    slept_at: Option<u64>,
    /// When the last turn began, if it found a frame.
    busy_since: Option<u64>,
    on_broken: Box<dyn Fn(PortSlot, String) + Send>,
    /// A port has skipped this turn for what its frames have cost.
    owing: bool,
}

/// The poller's token of the doorbell; ports have their slot.
const BELL: u64 = u64::MAX;

/// How long a port is polled after its last frame, and how often parked ports are looked at meanwhile.
const PARK_AFTER_NS: u64 = 1_000_000;
const LOOK_EVERY_NS: u64 = 50_000;

impl Worker {
    /// A worker without ports under an empty snapshot. Fails when the process is out of descriptors.
    pub fn new(config: WorkerConfig) -> std::io::Result<(Worker, WorkerHandle)> {
        let (sender, receiver) = channel();
        let bell = Doorbell::new()?;
        let poller = Poller::new()?;
        poller.add(bell.as_fd(), BELL)?;
        let counters = Arc::new(Counters::new());
        let worker = Worker {
            path: Path::new(&config, counters.clone()),
            ports: Ports::default(),
            active: Vec::new(),
            parked: 0,
            looked_at_ns: 0,
            batch: Batch::new(),
            commands: receiver,
            bell: bell.clone(),
            poller,
            load: WorkerLoad::default(),
            dumps: Vec::new(),
            stopped: false,
            called: false,
            slept_at: None,
            busy_since: None,
            on_broken: config.on_broken,
            owing: false,
        };
        let handle = WorkerHandle {
            commands: sender,
            bell,
            counters,
        };
        Ok((worker, handle))
    }

    /// One round: the commands that wait, every port once, and a little housekeeping.
    pub fn turn(&mut self, now: Now) -> Turn {
        let mut turn = Turn::default();
        self.path.tables.flows.begin_turn();
        if let Some(slept_at) = self.slept_at.take() {
            self.load.asleep_ns += now.mono_ns.saturating_sub(slept_at);
        }
        if let Some(since) = self.busy_since.take() {
            self.load.busy_ns += now.mono_ns.saturating_sub(since);
        }
        turn.commands = self.commands_only(now);
        if self.parked > 0 && now.mono_ns.wrapping_sub(self.looked_at_ns) >= LOOK_EVERY_NS {
            self.wait(Duration::ZERO, now);
        }
        let mut index = 0;
        while let Some(&slot) = self.active.get(index) {
            let frames = self.serve(slot, now);
            turn.frames += frames;
            if frames > 0 || !self.is_quiet(slot, now) || !self.park(index) {
                index += 1;
            }
        }
        self.path.keep_house(now);
        self.load.turns += 1;
        self.load.busy_turns += u64::from(turn.frames > 0);
        self.load.frames += turn.frames as u64;
        self.busy_since = (turn.frames > 0).then_some(now.mono_ns);
        turn.busy = !self.dumps.is_empty() || self.path.has_work() || std::mem::take(&mut self.owing);
        turn.stopped = self.stopped;
        turn
    }

    /// Sleeps until a port, a command or the next timer needs the worker, `longest` at most. Returns at once
    /// when there is work already.
    pub fn sleep(&mut self, now: Now, longest: Duration) {
        let timer = self
            .next_timer(now)
            .map(|at| Duration::from_nanos(at - now.mono_ns));
        let longest = timer.map_or(longest, |timer| timer.min(longest));
        let mut work = self.bell.is_rung() || !self.dumps.is_empty() || self.path.has_work() || self.stopped;
        let mut index = 0;
        while let Some(&slot) = self.active.get(index) {
            if !self.park(index) {
                // It has frames, or nothing to wake us with.
                work |= self.ports.find(slot).is_some_and(Attached::has_work);
                index += 1;
            }
        }
        if !work {
            self.path.tables.flows.sleep();
            self.wait(longest, now);
            self.path.tables.flows.wake();
            self.load.sleeps += 1;
            self.slept_at = Some(now.mono_ns);
            self.busy_since = None;
        }
        for slot in &self.active {
            if let Some(attached) = self.ports.find(*slot) {
                attached.port.disarm();
            }
        }
    }

    /// Waits for the poller's descriptors, and polls the ports again that it reports.
    fn wait(&mut self, longest: Duration, now: Now) {
        self.looked_at_ns = now.mono_ns;
        match self.poller.wait(Some(longest)) {
            Ok(tokens) => {
                for token in tokens.filter(|token| *token != BELL) {
                    let slot = PortSlot(token as u32);
                    let Some(attached) = self.ports.find(slot) else {
                        continue;
                    };
                    attached.port.drain_kick();
                    if std::mem::take(&mut attached.parked) {
                        attached.port.disarm();
                        attached.heard_ns = now.mono_ns;
                        self.parked -= 1;
                        self.active.push(slot);
                    }
                }
            }
            // Nothing to wait with: poll, rather than lose frames.
            Err(error) => tracing::warn!(%error, "the worker cannot sleep"),
        }
    }

    /// Nothing came from this port for a while.
    fn is_quiet(&mut self, slot: PortSlot, now: Now) -> bool {
        let attached = self.ports.find(slot);
        attached.is_some_and(|attached| now.mono_ns.saturating_sub(attached.heard_ns) >= PARK_AFTER_NS)
    }

    /// Arms an active port and stops polling it. False when it has frames already, or nothing to wake us with.
    fn park(&mut self, index: usize) -> bool {
        let Some(attached) = self.ports.find(self.active[index]) else {
            return false;
        };
        if !attached.wakes || attached.has_work() {
            return false;
        }
        attached.parked = true;
        self.parked += 1;
        self.active.swap_remove(index);
        true
    }

    /// When a table or a port has something to do next, in monotonic nanoseconds; `None`: nothing is waiting.
    pub fn next_timer(&self, now: Now) -> Option<u64> {
        let table = self.path.next_timer_ms(now);
        let table = table.map(|millis| now.mono_ns + u64::from(millis) * 1_000_000);
        let ticks = self
            .active
            .iter()
            .filter_map(|slot| self.ports.peek(*slot)?.port.next_tick());
        ticks.chain(table).min().map(|at| at.max(now.mono_ns))
    }

    /// The part of a turn that answers other threads.
    pub(crate) fn commands_only(&mut self, now: Now) -> usize {
        let mut commands = 0;
        if self.called || self.bell.is_rung() {
            self.called = false;
            self.bell.clear();
            commands = self.carry_out(now);
        }
        let flows = &self.path.tables.flows;
        self.dumps.retain_mut(|dump| {
            let done = dump.step(flows, now);
            if done {
                // Who asked may have gone away.
                let _ = dump.answer.send(std::mem::take(&mut dump.found));
            }
            !done
        });
        commands
    }

    /// One batch of one port: receive, judge, deliver, give the buffers back.
    #[inline]
    fn serve(&mut self, slot: PortSlot, now: Now) -> usize {
        let known = self.path.view.port(slot).is_some();
        let Some(attached) = self.ports.find(slot).filter(|attached| known && !attached.broken) else {
            // What a port sends whose NIC is not configured (yet) waits in its ring.
            return 0;
        };
        // A broadcast costs as much as the frames that it becomes. Who sends many waits while the others have their
        // turns, so that each sender gets the same part of the worker and not of the frames.
        if attached.debt >= BATCH {
            attached.debt -= BATCH;
            self.owing = true;
            return 0;
        }
        attached.port.tick(now.mono_ns);
        let received = attached.port.receive(&mut self.batch);
        if let Err(error) = &received {
            attached.broken = true;
            broke(&self.on_broken, slot, error);
        }
        let frames = self.batch.len();
        if frames == 0 {
            return 0;
        }
        attached.heard_ns = now.mono_ns;
        self.load.count_batch(frames);
        let targets = self.path.run(slot, 0, &self.batch, &mut self.ports, now);
        let on_broken = &self.on_broken;
        self.ports.flush(|slot, error| broke(on_broken, slot, &error));
        if let Some(attached) = self.ports.find(slot) {
            attached.port.complete(&mut self.batch);
            attached.debt += targets.saturating_sub(frames);
        }
        frames
    }

    fn carry_out(&mut self, now: Now) -> usize {
        let mut count = 0;
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return count,
                Err(TryRecvError::Disconnected) => {
                    // Nobody can ask for anything any more, not even to stop.
                    self.stopped = true;
                    return count;
                }
            };
            count += 1;
            // Who asked may have gone away: an answer that nobody takes is no error.
            match command {
                Command::Publish(snapshot, answer) => {
                    self.load.epoch = snapshot.epoch.0;
                    let _ = answer.send(self.path.take_up(snapshot));
                }
                Command::Attach(slot, port, answer) => {
                    let _ = answer.send(self.attach(slot, port, now));
                }
                Command::Detach(slot, answer) => {
                    let _ = answer.send(self.detach(slot));
                }
                Command::Flows(of, answer) => self.dumps.push(Dump {
                    of,
                    at: 0,
                    found: Vec::new(),
                    answer,
                }),
                Command::Import(infos, answer) => {
                    let (view, flows) = (&self.path.view, &mut self.path.tables.flows);
                    let _ = answer.send(dump::import(view, flows, &infos, now));
                }
                Command::Load(answer) => {
                    let _ = answer.send(self.load(now));
                }
                Command::Ports(of, answer) => {
                    let _ = answer.send(report::ports(&self.ports, of, now.mono_ns));
                }
                Command::Stop => self.stopped = true,
            }
        }
    }

    fn attach(&mut self, slot: PortSlot, port: Box<Port>, now: Now) -> Option<Box<Port>> {
        if slot.0 as usize >= MAX_PORTS {
            return Some(port);
        }
        let before = self.detach(slot);
        let wakes = match port.kick_fd().map(|fd| self.poller.add(fd, slot.0.into())) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::warn!(slot = slot.0, %error, "a port cannot wake its worker, which will poll it");
                false
            }
            None => false,
        };
        self.ports.attach(slot, port, wakes, now.mono_ns);
        self.active.push(slot);
        before
    }

    fn detach(&mut self, slot: PortSlot) -> Option<Box<Port>> {
        let mut attached = self.ports.detach(slot)?;
        if attached.parked {
            self.parked -= 1;
        } else {
            self.active.retain(|other| *other != slot);
        }
        if let Some(fd) = attached.port.kick_fd() {
            // Fails only for a descriptor that epoll does not know: it is out already.
            let _ = self.poller.remove(fd);
        }
        attached.port.disarm();
        Some(attached.port)
    }

    fn load(&self, now: Now) -> WorkerLoad {
        let tables = &self.path.tables;
        WorkerLoad {
            at_ns: now.mono_ns,
            flows: tables.flows.len().into(),
            flows_evicted: tables.flows.evicted(),
            datagrams: tables.fragments.len() as u64,
            held_fragments: tables.fragments.held() as u64,
            learned_macs: tables.learned.len() as u64,
            ..self.load
        }
    }
}

fn broke(hook: &dyn Fn(PortSlot, String), slot: PortSlot, error: &io::port::PortError) {
    tracing::warn!(slot = slot.0, %error, "a port broke its protocol and is stopped");
    hook(slot, error.to_string());
}
