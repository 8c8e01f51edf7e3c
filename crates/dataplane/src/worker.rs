//! The worker: one thread's share of the switch, driven by whoever owns the thread and the clock.
//!
//! The owner calls [`Worker::turn`] over and over; after a spell of turns that found nothing it
//! calls [`Worker::sleep`], which waits for a port, a command or a timer. Commands of other threads
//! come through the [`Switch`](crate::Switch) and are carried out between batches; frames of other
//! workers come through rings (`handoff.rs`).
//!
//! The time comes with every turn; what waits, and which ports are polled, is in
//! `worker/polling.rs`.

mod commands;
mod polling;
mod transfers;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use io::frame::{BATCH, Batch};

use crate::config::WorkerConfig;
use crate::dump::Dump;
use crate::flow::{FlowTable, Flows};
use crate::handle::{Command, WorkerHandle};
use crate::handoff::{Inbox, Outbox, RING, Wake};
use crate::ids::PortSlot;
use crate::learned::MacRecords;
use crate::load::WorkerLoad;
use crate::path::Path;
use crate::ports::{Attached, Ports, Sending};
use crate::queue::{QueueId, Routes};
use crate::time::Now;
use crate::view::View;
use crate::wanted::Wanted;
use crate::watch::{Step, Stopwatch};
use crate::work::{self, Cost, FEW, FewSender, FewSenders};
use commands::Leaving;
use polling::Polling;

/// What a turn of the loop did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Frames received.
    pub frames: usize,
    /// Messages of other workers: frames for ports here, MAC addresses.
    pub messages: usize,
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
    polling: Polling,
    batch: Batch,
    commands: Receiver<Command>,
    /// All workers, by number.
    handles: Vec<WorkerHandle>,
    wake: Wake,
    inbox: Inbox,
    /// Batches of other workers whose frames are written and not flushed yet.
    delivered: Vec<Arc<Batch>>,
    /// Queues that wait for their batches to come back before they go.
    leaving: Vec<Leaving>,
    load: WorkerLoad,
    dumps: Vec<Dump>,
    stopped: bool,
    /// Nothing is received: all ports are about to be taken away.
    paused: bool,
    /// When it last went to sleep; counted with the next turn, which knows the time.
    slept_at: Option<u64>,
    /// When the last turn began, if it found a frame.
    busy_since: Option<u64>,
    on_broken: Box<dyn Fn(PortSlot, String) + Send>,
    /// A port has skipped this turn for what its frames have cost.
    owing: bool,
    /// A view was taken up, and frames that were judged under the one before are still to be sent.
    publishing: Option<(Sender<Arc<View>>, Arc<View>)>,
    /// Who has sent in this turn or had to skip it, and in the turn before: NICs, and queues of
    /// uplinks.
    senders: usize,
    senders_before: usize,
    /// Who has sent a few frames now and then, and may wait for answers.
    few: FewSenders,
}

/// A worker's ends of what joins it to the others.
pub(crate) struct Parts {
    pub number: usize,
    pub wake: Wake,
    pub commands: Receiver<Command>,
    pub handles: Vec<WorkerHandle>,
    pub routes: Arc<Routes>,
    pub wanted: Arc<Wanted>,
    pub flows: Arc<FlowTable>,
    /// Where it notes MACs for the next process.
    pub mac_records: Option<MacRecords>,
    pub outbox: Outbox,
    pub inbox: Inbox,
}

impl Worker {
    /// A worker without ports under an empty snapshot. Fails when the process is out of
    /// descriptors.
    pub(crate) fn new(config: WorkerConfig, parts: Parts) -> std::io::Result<Worker> {
        let polling = Polling::new(&parts.wake.bell)?;
        let counters = parts.handles[parts.number].counters.clone();
        let mut flows = Flows::new(parts.flows, parts.number);
        flows.look_at(parts.routes.clone());
        let mut path = Path::new(&config, counters, flows, parts.wanted);
        path.tables
            .learned
            .share_with_others(parts.handles.len() > 1);
        if let Some(records) = parts.mac_records {
            path.tables.learned.note_in(records);
        }
        Ok(Worker {
            path,
            ports: Ports::new(parts.number, parts.routes, parts.outbox),
            polling,
            batch: Batch::new(),
            commands: parts.commands,
            handles: parts.handles,
            wake: parts.wake,
            inbox: parts.inbox,
            delivered: Vec::with_capacity(RING),
            leaving: Vec::new(),
            load: WorkerLoad::default(),
            dumps: Vec::new(),
            stopped: false,
            paused: false,
            slept_at: None,
            busy_since: None,
            on_broken: config.on_broken,
            owing: false,
            publishing: None,
            senders: 0,
            senders_before: 0,
            few: FewSenders::default(),
        })
    }

    /// One turn of the loop: the commands that wait, every port once, and a little housekeeping.
    pub fn turn(&mut self, now: Now) -> Turn {
        let mut turn = Turn::default();
        self.path.tables.flows.begin_turn();
        self.path.tables.searches.begin_turn(now);
        self.path.tables.flows.log_turn(now);
        if let Some(slept_at) = self.slept_at.take() {
            self.load.asleep_ns += now.mono_ns.saturating_sub(slept_at);
            self.polling.note_awake(now);
        }
        if let Some(since) = self.busy_since.take() {
            self.load.busy_ns += now.mono_ns.saturating_sub(since);
        }
        turn.commands = self.commands_only(now);
        turn.messages = self.take_some(now).taken;
        if self.polling.is_due(now) {
            self.look(now);
        }
        self.path.tables.floods.hurry = self.few.hurry(now);
        let flooded = self.path.go_on_with_floods(&mut self.ports, now);
        if flooded {
            self.show_written();
        }
        self.senders_before = std::mem::take(&mut self.senders);
        let judged = self.judge_late(now);
        let mut index = 0;
        while let Some(&queue) = self.polling.active.get(index) {
            let frames = match self.ports.takes_turns(queue.slot) {
                false => self.serve(queue, now),
                true => self.serve_pairs(queue.slot, now),
            };
            turn.frames += frames;
            if frames > 0 || !self.is_quiet(queue, now) || !self.park(index) {
                index += 1;
            }
        }
        self.send_news();
        self.ask_for_flows();
        self.path.keep_house(now);
        self.path.give_up_waiting(&mut self.ports, now);
        if self.path.send_queued(&mut self.ports, now) {
            self.show_written();
        }
        self.ports.outbox.wake();
        self.load.turns += 1;
        let moved = turn.frames > 0 || turn.messages > 0 || flooded || judged;
        self.load.busy_turns += u64::from(moved);
        self.load.frames += turn.frames as u64;
        self.busy_since = moved.then_some(now.mono_ns);
        turn.busy = self.has_work() || std::mem::take(&mut self.owing);
        turn.stopped = self.stopped;
        turn
    }

    /// Something is under way that goes on without being called for.
    fn has_work(&self) -> bool {
        let waits = !self.leaving.is_empty() || self.ports.outbox.has_lent();
        let asked = !self.dumps.is_empty() || self.publishing.is_some();
        asked || self.path.has_work() || waits || self.stopped
    }

    /// What comes from a slot is taken. What a port sends whose NIC is not configured (yet) waits
    /// in its ring.
    fn is_served(&self, slot: PortSlot) -> bool {
        slot.is_uplink() || self.path.view.port(slot).is_some()
    }

    /// The queues of a NIC that has several here: one batch of each, until they have had the NIC's
    /// part of the turn. Who did not get to its turn is the first one in the next.
    fn serve_pairs(&mut self, slot: PortSlot, now: Now) -> usize {
        let Some((first, count)) = self.ports.pairs_in_turn(slot, self.load.turns + 1) else {
            return 0;
        };
        let mut frames = 0;
        for pair in (0..count).map(|behind| (first + behind) % count) {
            let queue = QueueId { slot, pair };
            let is_polled = |attached: &Attached| !attached.parked;
            if !self.ports.peek(queue).is_some_and(is_polled) {
                continue;
            }
            let came = self.serve(queue, now);
            if came > 0 {
                self.ports.had_its_turn(queue);
            }
            frames += came;
        }
        frames
    }

    /// One batch of one queue: receive, judge, deliver, give the buffers back.
    #[inline]
    fn serve(&mut self, queue: QueueId, now: Now) -> usize {
        let nic = self.path.view.port(queue.slot);
        let is_served = nic.is_some() || queue.slot.is_uplink();
        let meters = nic.and_then(|nic| nic.meters.as_deref());
        let uid = nic.map(|nic| nic.uid);
        let turn = self.load.turns + 1;
        let rates = self.ports.pace.rates();
        let Some(mut sending) = self.ports.sending(queue) else {
            return 0;
        };
        if !sending.attached.out.is_empty() && !sending.reclaim(now) {
            // Others read from its batches, and will be done in a moment.
            self.owing = true;
        }
        let Sending {
            attached,
            debt,
            lent,
            price,
            outbox,
        } = sending;
        if !is_served || attached.broken || attached.leaving || self.paused {
            return 0;
        }
        if let Some(uid) = uid {
            debt.is_of(uid);
        }
        // A broadcast costs as much as the frames that it becomes, a large frame more than a small
        // one, and one of which nothing is known as much as several of known flows. Who costs much
        // waits while the others have their turns, so that each sender gets the same part of the
        // worker and not of the frames. Who has too much out at other workers is a sender too, if
        // it has more to send.
        let has_to_pay = debt.waits(turn, self.senders_before);
        let tables = &self.path.tables;
        let waits = has_to_pay || tables.floods.has(queue) || tables.late.has(queue);
        if waits || !outbox.has_batch_for(queue, *lent) {
            if waits || attached.port.may_have_frames() {
                self.senders += usize::from(debt.is_another_sender());
            }
            self.owing = true;
            return 0;
        }
        let mut room = BATCH;
        if let Some(meters) = meters {
            match attached.hold.room(&meters.egress, now) {
                Some(frames) => room = frames,
                None => return 0,
            }
            attached.watch_again(&self.polling.poller, queue);
        }
        let room = price.room(room, self.few.hurry(now), now);
        self.batch.take_at_most(room);
        let alone = outbox.is_alone();
        let watch = match alone {
            true => Stopwatch::OFF,
            false => Stopwatch::start(),
        };
        attached.port.tick(now.mono_ns);
        self.path.watch.begin();
        let received = attached.port.receive(&mut self.batch);
        if let Err(error) = &received {
            attached.breaks(&self.polling.poller);
            broke(&self.on_broken, queue.slot, error);
        }
        let frames = self.batch.len();
        // What is not for the switch makes its frames no dearer.
        let others = rates.cost(self.batch.others(), 0, 0);
        if frames == 0 {
            let looks = others + rates.cost(0, 0, self.batch.pieces());
            if looks > 0 {
                // Or a chain that is not there yet, which is looked at in every turn.
                debt.charge(Cost::carried(looks));
                self.senders += usize::from(debt.is_another_sender());
                self.batch.clear();
                self.ports.had_its_turn(queue);
            }
            return 0;
        }
        self.path.watch.mark(Step::Receive);
        attached.heard_ns = now.mono_ns;
        if let Some(meters) = meters {
            attached.hold.charge(&meters.egress, &self.batch, now);
        }
        self.senders += usize::from(debt.is_another_sender());
        let few = frames <= FEW && frames < room;
        if few {
            self.few.note(FewSender::Port(queue.slot), now);
        }
        self.load.count_batch(frames);
        let pieces = self.batch.pieces();
        outbox.take_in_hand(&self.batch, *lent);
        self.path.tables.floods.begin_batch();
        let mut cost = if queue.slot.is_uplink() {
            self.path
                .run_arriving(queue, &mut self.batch, &mut self.ports, now)
        } else {
            self.path
                .run(queue.slot, queue.pair, &self.batch, &mut self.ports, now)
        };
        // It stays counted: others may go on with it.
        let packets = self.batch.cut();
        cost.carried = cost.carried.max(work::cost_of_packets(packets));
        self.flush();
        self.path.watch.mark(Step::Flush);
        let mut is_all_here = true;
        if let Some(mut sending) = self.ports.sending(queue) {
            is_all_here = !sending.outbox.has_plans() && sending.attached.out.is_empty();
            if !is_all_here {
                sending.lend(&mut self.batch, cost.carried, few);
            } else {
                sending.attached.port.complete(&mut self.batch);
            }
            cost.carried += rates.cost(0, 0, pieces);
            sending.debt.charge(cost);
            sending.debt.charge(Cost::carried(others));
            sending.price.note(cost, frames, few, now);
            if !alone {
                sending.attached.load.add(watch.cycles());
            }
        }
        self.path.watch.mark(Step::Complete);
        // What is dropped is cheaper than what a guest is to be served, and a guest's to choose.
        let is_all_delivered = self.path.tables.delivered == frames;
        if let Some(cycles) = self.path.watch.end(frames)
            && is_all_here
            && is_all_delivered
        {
            self.ports.pace.note_batch(frames, cost, cycles);
        }
        frames
    }

    /// Goes on with frames that the rules could not be asked about in the turns before. True: some
    /// were judged.
    fn judge_late(&mut self, now: Now) -> bool {
        if self.path.tables.late.is_empty() || self.paused {
            return false;
        }
        let turn = (self.load.turns + 1, self.senders_before);
        let (judged, senders) = self.path.judge_late(&mut self.ports, now, turn);
        self.senders += senders;
        if judged {
            self.show_written();
        }
        judged
    }

    /// Makes visible what was written outside a port's turn, to our ports and to others.
    fn show_written(&mut self) {
        self.flush();
        self.ports.outbox.wake();
    }

    /// Makes visible what was written to our ports.
    #[inline]
    fn flush(&mut self) {
        let (on_broken, poller) = (&self.on_broken, &self.polling.poller);
        self.ports.flush(|slot, attached, error| {
            attached.breaks(poller);
            broke(on_broken, slot, &error);
        });
    }
}

fn broke(hook: &dyn Fn(PortSlot, String), slot: PortSlot, error: &io::port::PortError) {
    tracing::warn!(slot = slot.0, %error, "a port broke its protocol and is stopped");
    hook(slot, error.to_string());
}
