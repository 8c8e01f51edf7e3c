//! What comes from other workers: frames for queues that are here, MAC addresses that were learnt
//! there, and what they want to find of our flows.

use io::frame::{BATCH, Wrap};
use io::trace::Direction;

use super::Worker;
use crate::drop_reason::DropReason;
use crate::handoff::{Lent, Message, Put, RING, Transfer};
use crate::path::Path;
use crate::ports::refusal;
use crate::stages::deliver;
use crate::time::Now;
use crate::watch::Stopwatch;
use crate::work::{self, FewSender};

/// Messages taken from one ring in one turn: what a port of our own may have to wait for.
const MESSAGES: usize = 32;

/// What may be taken from one ring in one turn.
#[derive(Clone, Copy)]
struct Room {
    messages: usize,
    /// What they may have cost before the last one.
    cost: u64,
    /// The same of what is done for who watches the NICs that they are for.
    watched: u64,
}

impl Room {
    const ALL: Room = Room {
        messages: RING,
        cost: u64::MAX,
        watched: u64::MAX,
    };
}

/// What was taken from the rings.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    /// Messages.
    pub taken: usize,
    /// Transfers among them whose queue is not here any more.
    pub sent_on: usize,
}

impl Worker {
    /// Takes from each of the other workers what a turn has room for: some messages, and in a hurry
    /// no more than a sender's longest turn costs, or than all senders here have of a turn: a ring
    /// may be many senders'. What is done for who watches NICs costs no more than that at any time:
    /// a filter may cost a hundred times what its frame does. Nobody here is charged for it: who is
    /// watched has not sent these frames, and is to acknowledge them.
    pub(super) fn take_some(&mut self, now: Now) -> Taken {
        let all_here = self.senders as u64 * work::TURN;
        let cost = match self.few.hurry(now) {
            true => work::LONGEST.max(all_here),
            false => u64::MAX,
        };
        let room = Room {
            messages: MESSAGES,
            cost,
            watched: work::LONGEST,
        };
        self.take_messages(room, now)
    }

    /// Takes all that other workers have sent.
    pub(super) fn take_all(&mut self, now: Now) -> Taken {
        self.take_messages(Room::ALL, now)
    }

    /// Takes from each of the other workers what there is room for.
    fn take_messages(&mut self, room: Room, now: Now) -> Taken {
        let mut all = Taken::default();
        for ring in 0..self.inbox.rings() {
            let (mut spent, mut watched, mut few) = (0, 0, None);
            for count in 1..=room.messages {
                if spent > room.cost || watched > room.watched {
                    self.owing = true;
                    break;
                }
                let Some(message) = self.inbox.next(ring) else {
                    if few == Some(true) {
                        self.few.note(FewSender::Ring(ring), now);
                    }
                    break;
                };
                all.taken += 1;
                match message {
                    Message::Learned(news) => {
                        self.path.tables.learned.note_from_worker(&news, now.secs())
                    }
                    Message::PutRight(slot) => {
                        let looked = self.path.tables.flows.put_right(slot, now.millis());
                        spent += work::cost_of_putting_right(looked);
                    }
                    Message::Frames(transfer) => {
                        few = Some(transfer.few && few != Some(false));
                        let cut_before = transfer.batch.cut();
                        all.sent_on += usize::from(!self.deliver(&transfer, now));
                        let shown = self.path.take_watched(&self.ports);
                        watched += shown;
                        if room.cost < u64::MAX {
                            let count = transfer.count() as usize;
                            let rates = self.ports.pace.rates();
                            let copy = rates.cost_of_copies(1, 0);
                            let packets = transfer.batch.cut() - cut_before;
                            spent += rates
                                .cost(count, transfer.bytes(), 0)
                                .max(work::cost_of_packets(packets))
                                + copy
                                + shown;
                        }
                        self.delivered.push(transfer.batch);
                    }
                }
                // More may be there.
                self.owing |= count == room.messages;
            }
        }
        if all.taken > 0 {
            self.flush();
            // With the last reference a batch goes back to its sender.
            self.delivered.clear();
            self.ports.outbox.wake();
            self.ports.forget_gone();
        }
        all
    }

    /// Writes a transfer's frames and counts them. False when the queue is another worker's by now.
    fn deliver(&mut self, transfer: &Transfer, now: Now) -> bool {
        if self.ports.peek(transfer.target).is_none() {
            // A queue that is moved comes as a command, which was there before the frames that
            // follow it. Other queues may go by one: with all that was written to them.
            self.flush();
            self.carry_out(now);
        }
        if self.ports.peek(transfer.target).is_none() && self.send_on(transfer) {
            return false;
        }
        if transfer.wraps != Wrap::LAST {
            self.deliver_outer(transfer);
            return true;
        }
        let watch = Stopwatch::start();
        let (mut frames, mut count) = ([0u8; BATCH], 0);
        for frame in transfer.indices() {
            frames[count] = frame;
            count += 1;
        }
        let frames = &frames[..count];
        self.load.taken_over += count as u64;
        let mut results = [Ok(()); BATCH];
        let results = &mut results[..count];
        let (outbox, batch) = (&mut self.ports.outbox, &transfer.batch);
        outbox.take_in_hand(batch, Lent::default());
        let here = self.ports.peek(transfer.target).is_some();
        if here {
            self.ports
                .transmit_to(transfer.target, &transfer.batch, frames, results);
        }
        for (&frame, result) in frames.iter().zip(&*results) {
            let refused = match result {
                Ok(()) if here => None,
                Ok(()) => Some(DropReason::TargetDown),
                Err(error) => Some(refusal(*error)),
            };
            self.account(transfer, frame.into(), refused, now);
        }
        if self.ports.outbox.has_plans() {
            self.ports.outbox.send(&transfer.batch, false);
        }
        if let Some(attached) = self.ports.peek(transfer.target) {
            attached.load.add(watch.cycles());
        }
        true
    }

    /// Sends the frames of a transfer for an uplink.
    fn deliver_outer(&mut self, transfer: &Transfer) {
        let watch = Stopwatch::start();
        let uplink = transfer.target.slot;
        for wrap in transfer.wraps() {
            self.load.taken_over += 1;
            let frame = usize::from(wrap.frame);
            match self
                .ports
                .transmit_wrapped(transfer.target, &transfer.batch, frame, &wrap.outer)
            {
                Ok(()) => {
                    let len = transfer.batch.frames()[frame].len() + wrap.outer.len();
                    self.path.counters.delivered(uplink, len as u64);
                }
                Err(reason) => self.path.counters.dropped_to(uplink, reason),
            }
        }
        if let Some(attached) = self.ports.peek(transfer.target) {
            attached.load.add(watch.cycles());
        }
    }

    /// Counts a frame for its target, and shows it to who watches that.
    fn account(
        &mut self,
        transfer: &Transfer,
        frame: usize,
        refused: Option<DropReason>,
        now: Now,
    ) {
        let (slot, counters) = (transfer.target.slot, &self.path.counters);
        let len = transfer.batch.frames()[frame].len() as u64;
        match refused {
            None => counters.delivered(slot, len),
            Some(reason) => counters.dropped_to(slot, reason),
        }
        let Some(config) = self.path.view.port(slot).filter(|_| !transfer.copy) else {
            return;
        };
        let watched = refused.is_none() && !config.sniffers.is_empty();
        for &sniffer in config.sniffers.iter().filter(|_| watched) {
            let at = (&*self.path.view, &*self.path.counters, now);
            deliver::copy_for_sniffer(at, &mut self.ports, &transfer.batch, frame, sniffer);
        }
        if let Some(trace) = &config.trace {
            let name = refused.map(DropReason::name);
            let batch = &transfer.batch;
            let watched = trace.record(Direction::Inbound, batch, frame, name, now.unix_ns);
            self.path.tables.watched += watched;
        }
    }

    /// Sends a transfer after its queue. False when nobody has that.
    fn send_on(&mut self, transfer: &Transfer) -> bool {
        let Some(worker) = self.ports.whereabouts(transfer.target) else {
            return false;
        };
        match self.ports.outbox.pass_on(worker, transfer.clone()) {
            Put::Handed => true,
            Put::Gone => false,
            Put::Full => {
                let counters = &self.path.counters;
                for _ in 0..transfer.count() {
                    counters.dropped_to(transfer.target.slot, DropReason::HandoffFull);
                }
                true
            }
        }
    }

    /// Asks other workers to put right where flows were looked for that can go.
    #[inline]
    pub(super) fn ask_for_flows(&mut self) {
        let flows = &mut self.path.tables.flows;
        if !flows.has_to_ask() {
            return;
        }
        while let Some((slot, workers)) = flows.next_asked() {
            for worker in (0..self.handles.len()).filter(|worker| workers >> worker & 1 != 0) {
                if !self.ports.outbox.ask_to_put_right(worker, slot) {
                    flows.was_not_asked(slot, worker);
                }
            }
        }
        self.ports.outbox.wake();
    }

    /// Tells the other workers which MACs were learnt here.
    #[inline]
    pub(super) fn send_news(&mut self) {
        let learned = &mut self.path.tables.learned;
        if !learned.has_news() {
            return;
        }
        while let Some(news) = learned.next_news() {
            if !self.ports.outbox.share_learned(news) {
                // It is told again when it is heard of again.
                learned.was_not_told(&news);
            }
        }
        self.ports.outbox.wake();
    }
}

impl Drop for Worker {
    /// What was handed over and not delivered is lost, and what was not judged. Nobody waits for
    /// this worker to let go of a flow.
    fn drop(&mut self) {
        self.path.tables.flows.sleep();
        let Path {
            tables, counters, ..
        } = &mut self.path;
        while let Some(mut sender) = tables.late.take() {
            while tables.late.next_of(&mut sender).is_some() {
                counters.dropped_from(sender.from.slot, DropReason::RuleLookups);
            }
        }
        for ring in 0..self.inbox.rings() {
            while let Some(message) = self.inbox.next(ring) {
                if let Message::Frames(transfer) = message {
                    for _ in 0..transfer.count() {
                        let counters = &self.path.counters;
                        counters.dropped_to(transfer.target.slot, DropReason::TargetDown);
                    }
                }
            }
        }
    }
}
