//! From worker to worker: frames for a queue that another one has, and MAC addresses that were
//! learnt.
//!
//! # Theory
//!
//! A frame is judged by the worker whose queue it came from, and written by the worker that has its
//! target's queue. Between the two goes a [`Transfer`]: a reference to the batch and which of its
//! frames are for which queue. The frames' bodies stay in their sender's memory until the one copy
//! is made.
//!
//! - Each ordered pair of workers has a ring of its own, with one producer and one consumer:
//!   `rtrb`, which is small, maintained, wait-free at both ends and lets each end find out that the
//!   other has gone. Nobody waits for room: a frame for a full ring is dropped (`handoff_full`).
//!   Two workers can therefore not wait for each other. To a payer a ring is full where no more
//!   places are free than it has messages out: who sends to many leaves room to others.
//! - A batch comes back by the last reference to it being dropped. The sending worker looks at the
//!   count of the oldest batch that is out, and gives the guest its buffers back in the order in
//!   which it took them. No second ring is needed for the way back, and a worker that stops returns
//!   what it has by dropping it.
//! - What can be out is bounded: [`LENT_MAX`] batches of a worker, and of those [`OUT_MAX`] of a
//!   [payer](QueueId::payer) and a third of what is free beside its own, so that who sends to a
//!   slow worker by many queues leaves some to others; a queue of an uplink, by which many send,
//!   has what is free. Who is at its bound is not received from; its frames wait with their guest.
//!   The first batch of a payer is beyond all that: however many send to a slow worker, nobody has
//!   to wait there before it has sent anything to it.
//! - A frame that is not of the batch in hand (it was held back) is copied, with others of the same
//!   moment, into a batch that nobody pays for. [`COPIES_MAX`] of these may be out.
//! - A worker that polls looks at its rings every turn. Only one that sleeps is woken by its bell:
//!   see [`sleep_flag`](crate::sleep_flag).

use std::sync::Arc;

use io::frame::{BATCH, Batch, Bits, Wrap};
use rtrb::{Consumer, Producer, RingBuffer};
use sys::poll::Doorbell;
use wire::vxlan::Outer;

use crate::ids::PortSlot;
use crate::learned::News;
use crate::queue::QueueId;
use crate::sleep_flag::{SleepFlag, settle};

/// Messages that wait in a ring at most.
pub(crate) const RING: usize = 1024;

/// Batches of one payer that may be out at once.
pub(crate) const OUT_MAX: usize = 8;

/// Batches that a worker has to hand over. More there are while more payers have one out each.
pub(crate) const LENT_MAX: usize = 32;

/// Batches of a worker's own copies that may be out at once.
const COPIES_MAX: usize = LENT_MAX / 2;

/// Frames of one batch, copies counted each, that others send over uplinks at most: a flood to many
/// hosts by a worker without a queue of the uplink ends there.
const WRAPS_MAX: usize = 1024;

/// What a [payer](QueueId::payer) has out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lent {
    pub batches: usize,
    /// Of these batches, to all workers.
    pub messages: usize,
}

/// What one worker tells another.
pub(crate) enum Message {
    Frames(Transfer),
    Learned(News),
    /// To [put right](crate::flow::Flows::put_right) which flows of this NIC are the oldest.
    PutRight(PortSlot),
}

/// Frames of one batch for one queue.
#[derive(Clone)]
pub(crate) struct Transfer {
    pub batch: Arc<Batch>,
    pub frames: Bits,
    pub target: QueueId,
    /// Copies for a sniffer.
    pub copy: bool,
    /// Its sender sent a few frames, and has no others.
    pub few: bool,
    /// For an uplink: the first of the batch's [`wraps`](Batch::wraps) that say how its frames are
    /// sent, or [`Wrap::LAST`].
    pub wraps: u32,
}

impl Transfer {
    /// How many frames it has.
    pub(crate) fn count(&self) -> u32 {
        match self.wraps {
            Wrap::LAST => self.frames.count_ones(),
            _ => self.wraps().count() as u32,
        }
    }

    /// Bytes of its frames, without outer headers.
    pub(crate) fn bytes(&self) -> usize {
        let len = |frame: u8| self.batch.frames()[usize::from(frame)].len();
        match self.wraps {
            Wrap::LAST => self.indices().map(len).sum(),
            _ => self.wraps().map(|wrap| len(wrap.frame)).sum(),
        }
    }

    /// Its frames' places in the batch, in their order; of one for an uplink [`wraps`](Self::wraps)
    /// says them.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u8> {
        let frames = self.batch.len().min(BATCH) as u8;
        (0..frames).filter(|frame| self.frames >> frame & 1 == 1)
    }

    /// How its frames are sent, if it is for an uplink.
    pub(crate) fn wraps(&self) -> impl Iterator<Item = &Wrap> {
        let wraps = &self.batch.wraps;
        let first = wraps.get(self.wraps as usize);
        std::iter::successors(first, |wrap| wraps.get(wrap.next as usize))
    }
}

/// The way to one other worker.
struct Peer {
    ring: Producer<Message>,
    bell: Doorbell,
    sleeps: Arc<SleepFlag>,
    /// Transfers of the batch in hand that will go here: there is room for them.
    reserved: usize,
    /// Something was put in since it was last woken.
    news: bool,
}

/// A transfer to be, of the batch in hand.
struct Planned {
    worker: usize,
    target: QueueId,
    copy: bool,
    frames: Bits,
    /// For an uplink: the first and the last of its wraps.
    wraps: Option<(u32, u32)>,
}

/// The last plan made for a target: where a further frame for it is added.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    batch: u64,
    plan: usize,
}

/// What became of a frame for another worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    Handed,
    /// No room: in the ring, or for a copy.
    Full,
    /// That worker has ended.
    Gone,
}

/// The sending end of a worker.
#[derive(Default)]
pub(crate) struct Outbox {
    /// By worker; `None`: this worker itself, or one that has ended.
    peers: Vec<Option<Peer>>,
    plans: Vec<Planned>,
    /// How frames of the batch in hand are sent by others.
    wraps: Vec<Wrap>,
    /// Counts batches, so that a [`Mark`] of an earlier one is not taken for one of this.
    batch: u64,
    /// Where the batch in hand is.
    in_hand: usize,
    /// Messages that its payer had out before.
    out_before: usize,
    /// Batches to be lent out; nobody else has a reference.
    free_batches: Vec<Arc<Batch>>,
    /// Our own copies that go next, and to whom.
    copies: Batch,
    copied: Vec<Planned>,
    /// Batches of our own copies that are out.
    lent: Vec<Arc<Batch>>,
}

/// The receiving end of a worker: a ring from each of the others.
#[derive(Default)]
pub(crate) struct Inbox {
    rings: Vec<Consumer<Message>>,
}

/// How a worker is woken.
#[derive(Clone)]
pub(crate) struct Wake {
    pub bell: Doorbell,
    pub sleeps: Arc<SleepFlag>,
}

/// The rings between all workers: an outbox and an inbox for each.
pub(crate) fn connect(workers: &[Wake]) -> Vec<(Outbox, Inbox)> {
    let count = workers.len();
    let free_batches = if count > 1 { LENT_MAX } else { 0 };
    let mut ends: Vec<_> = (0..count)
        .map(|_| {
            let mut outbox = Outbox::default();
            outbox.peers.resize_with(count, || None);
            outbox.free_batches.resize_with(free_batches, Arc::default);
            (outbox, Inbox::default())
        })
        .collect();
    for from in 0..count {
        for to in (0..count).filter(|to| *to != from) {
            let (producer, consumer) = RingBuffer::new(RING);
            ends[from].0.peers[to] = Some(Peer {
                ring: producer,
                bell: workers[to].bell.clone(),
                sleeps: workers[to].sleeps.clone(),
                reserved: 0,
                news: false,
            });
            ends[to].1.rings.push(consumer);
        }
    }
    ends
}

impl Outbox {
    /// There are no other workers.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.peers.len() < 2
    }

    /// A batch of this payer, who has so much out, could be handed over, should it have to be.
    #[inline]
    pub(crate) fn has_batch_for(&self, payer: QueueId, lent: Lent) -> bool {
        let free = self.free_batches.len();
        match lent.batches {
            0 => true,
            OUT_MAX.. => false,
            _ if payer.slot.is_uplink() => free > 0,
            out => 3 * out < free,
        }
    }

    /// From here on `batch` is the one that is handed over by reference, of a payer who has so much
    /// out.
    #[inline]
    pub(crate) fn take_in_hand(&mut self, batch: &Batch, lent: Lent) {
        self.in_hand = std::ptr::from_ref(batch).addr();
        self.out_before = lent.messages;
        self.batch += 1;
    }

    /// Plans to hand a frame over. A frame that is not of the batch in hand (it was held back, and
    /// lies in a batch that is used again at once) is copied.
    pub(crate) fn put(
        &mut self,
        worker: usize,
        target: QueueId,
        batch: &Batch,
        frame: usize,
        copy: bool,
        mark: &mut Mark,
    ) -> Put {
        if std::ptr::from_ref(batch).addr() != self.in_hand {
            return self.put_copy(worker, target, batch, frame, copy, None);
        }
        if mark.batch == self.batch
            && let Some(plan) = self.plans.get_mut(mark.plan)
            && plan.target == target
            && plan.copy == copy
        {
            plan.frames |= 1 << frame;
            return Put::Handed;
        }
        if let Err(refused) = self.reserve(worker, self.out_before) {
            return refused;
        }
        *mark = Mark {
            batch: self.batch,
            plan: self.plans.len(),
        };
        self.plans.push(Planned {
            worker,
            target,
            copy,
            frames: 1 << frame,
            wraps: None,
        });
        Put::Handed
    }

    /// Plans to have a frame sent over an uplink. A frame that is not of the batch in hand is
    /// copied.
    pub(crate) fn put_outer(
        &mut self,
        worker: usize,
        target: QueueId,
        batch: &Batch,
        frame: u8,
        outer: &Outer,
    ) -> Put {
        let wrap = Wrap {
            frame,
            outer: *outer,
            next: Wrap::LAST,
        };
        if std::ptr::from_ref(batch).addr() != self.in_hand {
            return self.put_copy(worker, target, batch, frame.into(), false, Some(wrap));
        }
        if self.wraps.len() >= WRAPS_MAX {
            return Put::Full;
        }
        let index = self.wraps.len() as u32;
        // Few queues of uplinks are written to in one batch.
        let plan = self
            .plans
            .iter_mut()
            .find(|plan| plan.target == target && plan.wraps.is_some());
        if let Some((plan, (first, last))) =
            plan.and_then(|plan| plan.wraps.map(|wraps| (plan, wraps)))
        {
            self.wraps[last as usize].next = index;
            self.wraps.push(wrap);
            plan.wraps = Some((first, index));
            return Put::Handed;
        }
        if let Err(refused) = self.reserve(worker, self.out_before) {
            return refused;
        }
        self.wraps.push(wrap);
        self.plans.push(Planned {
            worker,
            target,
            copy: false,
            frames: 0,
            wraps: Some((index, index)),
        });
        Put::Handed
    }

    /// Takes a place in a worker's ring for what is planned next, of who had so many messages out
    /// before.
    #[inline]
    fn reserve(&mut self, worker: usize, out_before: usize) -> Result<(), Put> {
        let peer = self.peers.get_mut(worker).and_then(Option::as_mut);
        let peer = peer.filter(|peer| !peer.ring.is_abandoned());
        let peer = peer.ok_or(Put::Gone)?;
        if peer.ring.slots() <= peer.reserved + out_before {
            return Err(Put::Full);
        }
        peer.reserved += 1;
        Ok(())
    }

    /// Plans to hand a copy of a frame over, at the next [`wake`](Self::wake).
    #[cold]
    fn put_copy(
        &mut self,
        worker: usize,
        target: QueueId,
        batch: &Batch,
        frame: usize,
        copy: bool,
        wrap: Option<Wrap>,
    ) -> Put {
        if self.copies.room() == 0 {
            self.send_copies();
        }
        if self.copied.is_empty() && self.lent.len() >= COPIES_MAX {
            return Put::Full;
        }
        let goes_along = |last: &Planned| {
            last.target == target && last.copy == copy && last.wraps.is_none() && wrap.is_none()
        };
        if !self.copied.last().is_some_and(goes_along) {
            if let Err(refused) = self.reserve(worker, 0) {
                return refused;
            }
            self.copied.push(Planned {
                worker,
                target,
                copy,
                frames: 0,
                wraps: None,
            });
        }
        let bytes = batch.to_bytes(frame);
        // Cannot be refused: there is room, and it was a frame before.
        if let Some(index) = self
            .copies
            .push_bytes(&bytes, batch.frames()[frame].offload)
            && let Some(plan) = self.copied.last_mut()
        {
            plan.frames |= 1 << index;
            if let Some(wrap) = wrap {
                let place = self.copies.wraps.len() as u32;
                let frame = index as u8;
                self.copies.wraps.push(Wrap { frame, ..wrap });
                plan.wraps = Some((place, place));
            }
        }
        Put::Handed
    }

    /// Hands over what was copied.
    #[cold]
    fn send_copies(&mut self) {
        let batch = moved(self.free_batches.pop(), &mut self.copies);
        self.copies.take_at_most(BATCH);
        send_planned(&mut self.peers, &mut self.copied, &batch, false);
        self.lent.push(batch);
    }

    /// Something is to be handed over of the batch in hand.
    #[inline]
    pub(crate) fn has_plans(&self) -> bool {
        !self.plans.is_empty()
    }

    /// Moves the batch in hand into one that can be lent out, and leaves an empty one in its place.
    pub(crate) fn lend(&mut self, batch: &mut Batch) -> Arc<Batch> {
        std::mem::swap(&mut batch.wraps, &mut self.wraps);
        // Where none is free it is the first one of its payer, and a new one.
        moved(self.free_batches.pop(), batch)
    }

    /// Hands over what was planned of the batch in hand, which is this one now. `few`: it is a few
    /// frames, and their sender has no others. Gives how many messages that takes.
    pub(crate) fn send(&mut self, batch: &Arc<Batch>, few: bool) -> usize {
        let messages = self.plans.len();
        send_planned(&mut self.peers, &mut self.plans, batch, few);
        messages
    }

    /// Hands a transfer on, of whatever batch.
    pub(crate) fn pass_on(&mut self, worker: usize, transfer: Transfer) -> Put {
        self.push(worker, Message::Frames(transfer))
    }

    /// Sends a learnt MAC to all other workers. False when one of them has no room for it.
    pub(crate) fn share_learned(&mut self, news: News) -> bool {
        let mut all = true;
        for worker in 0..self.peers.len() {
            all &= self.push(worker, Message::Learned(news)) != Put::Full;
        }
        all
    }

    /// Asks a worker to look after the flows of a NIC. False when there is no room for that: half
    /// of the ring is left to frames. It is asked again when somebody looks for such a flow again.
    pub(crate) fn ask_to_put_right(&mut self, worker: usize, slot: PortSlot) -> bool {
        let peer = self.peers.get(worker).and_then(Option::as_ref);
        let has_room = peer.is_some_and(|peer| peer.ring.slots() > RING / 2);
        has_room && self.push(worker, Message::PutRight(slot)) == Put::Handed
    }

    fn push(&mut self, worker: usize, message: Message) -> Put {
        let Some(peer) = self.peers.get_mut(worker).and_then(Option::as_mut) else {
            return Put::Gone;
        };
        if peer.ring.slots() <= peer.reserved {
            return Put::Full;
        }
        peer.news = true;
        // There is room.
        let _ = peer.ring.push(message);
        Put::Handed
    }

    /// Sends what was copied, and wakes the workers that something was put in for, when they sleep:
    /// once a batch, and at the end of a turn.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if !self.copied.is_empty() {
            self.send_copies();
        }
        if !self.peers.iter().flatten().any(|peer| peer.news) {
            return;
        }
        settle();
        for peer in self.peers.iter_mut().flatten() {
            if std::mem::take(&mut peer.news) && peer.sleeps.is_on() {
                peer.bell.ring();
            }
        }
    }

    /// Lets go of the rings to workers that have ended, and so of the batches in them; wakes the
    /// others.
    pub(crate) fn drop_ended(&mut self) {
        for peer in &mut self.peers {
            peer.take_if(|peer| peer.ring.is_abandoned());
        }
        for peer in self.peers.iter().flatten() {
            peer.bell.ring();
        }
    }

    /// Takes a batch that has come back, or one for it that does not; it goes if there are enough.
    pub(crate) fn give_back(&mut self, free: Arc<Batch>) {
        if self.free_batches.len() < LENT_MAX {
            self.free_batches.push(free);
        }
    }

    /// Takes back the copies that have been delivered.
    pub(crate) fn collect(&mut self) {
        let mut index = 0;
        while let Some(free) = self.lent.get_mut(index) {
            match Arc::get_mut(free) {
                Some(batch) => {
                    batch.clear();
                    let back = self.lent.swap_remove(index);
                    self.give_back(back);
                }
                None => index += 1,
            }
        }
    }

    /// Copies of ours are out.
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }
}

/// Moves a batch into this one that is free, or into a new one, and leaves an empty one in its
/// place.
fn moved(free: Option<Arc<Batch>>, batch: &mut Batch) -> Arc<Batch> {
    let mut free = free.unwrap_or_default();
    match Arc::get_mut(&mut free) {
        Some(empty) => {
            std::mem::swap(empty, batch);
            free
        }
        None => Arc::new(std::mem::take(batch)),
    }
}

/// Hands over what was planned of a batch.
#[inline]
fn send_planned(
    peers: &mut [Option<Peer>],
    plans: &mut Vec<Planned>,
    batch: &Arc<Batch>,
    few: bool,
) {
    for plan in plans.drain(..) {
        let Some(Some(peer)) = peers.get_mut(plan.worker) else {
            continue;
        };
        peer.reserved -= 1;
        peer.news = true;
        // There is room: it was reserved, and nobody else puts anything in.
        let _ = peer.ring.push(Message::Frames(Transfer {
            batch: batch.clone(),
            frames: plan.frames,
            target: plan.target,
            copy: plan.copy,
            few,
            wraps: plan.wraps.map_or(Wrap::LAST, |(first, _)| first),
        }));
    }
}

impl Inbox {
    /// Nothing has come. Looks at the rings themselves, for one who is going to sleep.
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.iter().all(Consumer::is_empty)
    }

    pub(crate) fn rings(&self) -> usize {
        self.rings.len()
    }

    /// The next message of one ring.
    #[inline]
    pub(crate) fn next(&mut self, ring: usize) -> Option<Message> {
        self.rings.get_mut(ring)?.pop().ok()
    }
}

#[cfg(test)]
mod tests {
    use wire::offload::Offload;

    use super::*;

    /// The outboxes and inboxes of two workers.
    fn two() -> [(Outbox, Inbox); 2] {
        let wakes = [0, 1].map(|_| Wake {
            bell: Doorbell::new().unwrap(),
            sleeps: Arc::new(SleepFlag::new()),
        });
        let Ok(ends) = connect(&wakes).try_into() else {
            panic!("not two");
        };
        ends
    }

    fn out(batches: usize) -> Lent {
        Lent {
            batches,
            messages: batches,
        }
    }

    #[test]
    fn an_uplink_has_a_larger_part_of_the_batches_and_the_first_one_everybody() {
        let [(mut outbox, _), _] = two();
        let (nic, uplink) = (PortSlot(1).into(), PortSlot::uplink(0).into());
        let mut lent: Vec<_> = (0..LENT_MAX - 4)
            .map(|_| outbox.lend(&mut Batch::new()))
            .collect();
        assert!(outbox.has_batch_for(nic, out(1)) && !outbox.has_batch_for(nic, out(2)));
        assert!(outbox.has_batch_for(uplink, out(OUT_MAX - 1)));
        assert!(!outbox.has_batch_for(uplink, out(OUT_MAX)));
        for _ in 0..12 {
            for payer in [nic, uplink] {
                assert!(outbox.has_batch_for(payer, out(0)));
            }
            lent.push(outbox.lend(&mut Batch::new()));
        }
        assert!(!outbox.has_batch_for(nic, out(1)) && !outbox.has_batch_for(uplink, out(1)));
        // What was made for them is not kept.
        for batch in lent {
            outbox.give_back(batch);
        }
        assert_eq!(outbox.free_batches.len(), LENT_MAX);
    }

    #[test]
    fn copies_of_one_moment_are_one_batch_and_half_of_all_are_left_to_others() {
        let [(mut outbox, _inbox), (_outbox, mut inbox)] = two();
        let mut held = Batch::new();
        held.push_bytes(&[7; 60], Offload::default());
        let put = |outbox: &mut Outbox, slot| {
            outbox.put_copy(1, PortSlot(slot).into(), &held, 0, false, None)
        };
        for slot in [1, 1, 3] {
            assert_eq!(put(&mut outbox, slot), Put::Handed);
        }
        assert!(inbox.is_empty());
        outbox.wake();
        for (slot, frames) in [(1, vec![0, 1]), (3, vec![2])] {
            let Some(Message::Frames(transfer)) = inbox.next(0) else {
                panic!("nothing for {slot}");
            };
            assert_eq!(transfer.target, PortSlot(slot).into());
            assert!(transfer.indices().eq(frames.iter().copied()));
            assert_eq!(transfer.bytes(), 60 * frames.len());
        }
        assert!(inbox.is_empty());
        outbox.collect();
        assert_eq!(outbox.free_batches.len(), LENT_MAX);
        // One at a time, and a batch of them.
        let handed = (0..LENT_MAX).take_while(|_| {
            let put = put(&mut outbox, 1);
            outbox.wake();
            put == Put::Handed
        });
        assert_eq!(handed.count(), COPIES_MAX);
        assert!(outbox.has_batch_for(PortSlot(1).into(), out(5)));
        while inbox.next(0).is_some() {}
        outbox.collect();
        for _ in 0..BATCH + 1 {
            assert_eq!(put(&mut outbox, 1), Put::Handed);
        }
        outbox.wake();
        let counts = std::iter::from_fn(|| inbox.next(0)).map(|message| match message {
            Message::Frames(transfer) => transfer.count() as usize,
            _ => 0,
        });
        assert!(counts.eq([BATCH, 1]));
    }

    #[test]
    fn what_is_asked_about_flows_leaves_room_in_the_ring_to_frames() {
        let [(mut outbox, _), (_, mut inbox)] = two();
        let asked = (0..).take_while(|slot| outbox.ask_to_put_right(1, PortSlot(*slot)));
        assert_eq!(asked.count(), RING / 2);
        let transfer = Transfer {
            batch: Arc::default(),
            frames: 0,
            target: PortSlot(1).into(),
            copy: false,
            few: false,
            wraps: Wrap::LAST,
        };
        assert!(outbox.pass_on(1, transfer) == Put::Handed);
        for _ in 0..2 {
            assert!(matches!(inbox.next(0), Some(Message::PutRight(_))));
        }
        assert!(outbox.ask_to_put_right(1, PortSlot(0)));
        assert!(!outbox.ask_to_put_right(1, PortSlot(0)));
        assert!(!outbox.ask_to_put_right(0, PortSlot(0)), "itself");
    }
}
