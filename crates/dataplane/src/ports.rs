//! The queues that a worker owns, which of them it has written to since the last flush, and the way
//! to all others.

use std::collections::VecDeque;
use std::sync::Arc;

use io::frame::{BATCH, Batch, Bits};
use io::port::{Accepts, Port, PortError, TransmitError};
use wire::vxlan::Outer;

use crate::counters::MAX_SLOTS;
use crate::drop_reason::DropReason;
use crate::handoff::{Lent, Mark, OUT_MAX, Outbox, Put};
use crate::hold::Hold;
use crate::ids::PortSlot;
use crate::ids::{MAX_PORTS, MAX_UPLINKS};
use crate::load::QueueLoad;
use crate::pace::{self, Pace};
use crate::queue::{QueueId, Routes, pick};
use crate::time::Now;
use crate::watch::Stopwatch;
use crate::work::{self, Debt, Price};

pub(crate) struct Ports {
    slots: Vec<Slot>,
    touched: Vec<QueueId>,
    routes: Arc<Routes>,
    /// This worker's number.
    worker: usize,
    pub outbox: Outbox,
    /// Frames handed to other workers.
    pub handed_over: u64,
    /// How long copies take.
    pub pace: Pace,
    /// Queues that have left for another worker and are not there yet, as far as is known.
    gone: Vec<(QueueId, usize)>,
}

/// What this worker has of a NIC.
#[derive(Default)]
struct Slot {
    first: Place,
    /// Pairs 1 and up.
    others: Vec<Place>,
    mark: Mark,
    /// The pair whose turn is next where there are several, and the turn of the worker in which
    /// they had theirs.
    next: u16,
    turn: u64,
}

/// A pair of a NIC, whose port may be here. What it has cost stays when that goes: a VMM may take
/// its rings away and give them back as often as it likes. A NIC that is given the slot of one that
/// is deleted owes nothing of what that one did ([`Debt::is_of`]).
#[derive(Default)]
struct Place {
    attached: Option<Attached>,
    /// Of its own queue where that [pays](QueueId::payer) for itself, of the NIC in the first pair.
    debt: Debt,
    /// As the debt.
    lent: Lent,
    price: Price,
}

/// A queue that is here, with what its frames have cost, and the outbox.
pub(crate) struct Sending<'a> {
    pub attached: &'a mut Attached,
    pub debt: &'a mut Debt,
    pub lent: &'a mut Lent,
    pub price: &'a mut Price,
    pub outbox: &'a mut Outbox,
}

/// A port and what the worker knows of it.
pub(crate) struct Attached {
    pub port: Box<Port>,
    /// Written to since the last flush.
    touched: bool,
    /// It broke its protocol: it is left alone until it is detached.
    pub broken: bool,
    /// Its descriptor is in the worker's poller, or will be when the worker sleeps.
    pub wakes: bool,
    /// It is one of the worker's sockets, and in its poller now.
    pub in_poller: bool,
    /// Armed, and not polled until the poller reports it.
    pub parked: bool,
    /// It is to be detached once its batches are back: nothing is received from it any more.
    pub leaving: bool,
    /// When a frame came from it last, or when it came itself: monotonic nanoseconds.
    pub heard_ns: u64,
    /// How its NIC's limits hold it back.
    pub hold: Hold,
    /// Its batches that other workers read from, and those behind them, oldest first.
    pub out: VecDeque<Out>,
    pub load: Arc<QueueLoad>,
}

/// A batch that is out.
pub(crate) struct Out {
    batch: Arc<Batch>,
    /// What its sender was charged for what it carries, and for what was cut of it here.
    charged: u64,
    messages: usize,
}

/// What was not written here of some frames, a bit for each in the order in which they were given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Handed {
    /// Handed to another worker, who counts them.
    pub over: Bits,
    /// Dropped: that worker's ring is full.
    pub full: Bits,
}

impl Handed {
    /// All was written, or refused, here.
    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.over | self.full == 0
    }
}

impl Attached {
    /// Asks the peer to wake us. True when there are frames already, and then it is not asked.
    pub(crate) fn has_work(&mut self) -> bool {
        let work = !self.broken && self.port.arm();
        if work {
            self.port.disarm();
        }
        work
    }
}

impl Sending<'_> {
    /// Hands the batch in hand over as it is planned, for which so much was `charged`, and leaves
    /// an empty one in its place.
    pub(crate) fn lend(&mut self, batch: &mut Batch, charged: u64, few: bool) {
        let batch = self.outbox.lend(batch);
        let messages = self.outbox.send(&batch, few);
        self.outbox.wake();
        self.attached.out.push_back(Out {
            batch,
            charged,
            messages,
        });
        self.lent.batches += 1;
        self.lent.messages += messages;
    }

    /// Gives the guest the buffers of those batches that have come back, in their order, and
    /// charges what others have cut of them. True when none is out.
    pub(crate) fn reclaim(&mut self, now: Now) -> bool {
        while let Some(oldest) = self.attached.out.front_mut() {
            let Some(batch) = Arc::get_mut(&mut oldest.batch) else {
                return false;
            };
            let packets = work::cost_of_packets(batch.cut());
            if packets > oldest.charged {
                self.debt.charge_more(packets - oldest.charged);
                self.price.note_carried(packets, batch.len(), now);
            }
            self.attached.port.complete(batch);
            if let Some(out) = self.attached.out.pop_front() {
                self.lent.batches -= 1;
                self.lent.messages -= out.messages;
                self.outbox.give_back(out.batch);
            }
        }
        true
    }

    /// Waits no more for batches that others keep: new ones are lent out in their place.
    fn give_up(&mut self) {
        for out in self.attached.out.drain(..) {
            self.lent.batches -= 1;
            self.lent.messages -= out.messages;
            self.outbox.give_back(Arc::default());
        }
    }
}

impl Ports {
    pub(crate) fn new(worker: usize, routes: Arc<Routes>, outbox: Outbox) -> Self {
        Ports {
            slots: Vec::new(),
            touched: Vec::new(),
            routes,
            worker,
            outbox,
            handed_over: 0,
            pace: Pace::default(),
            gone: Vec::new(),
        }
    }

    /// The number of the worker that has them.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }

    /// Puts a port into a place that is free, and on the map.
    pub(crate) fn attach(
        &mut self,
        queue: QueueId,
        port: Box<Port>,
        load: Arc<QueueLoad>,
        wakes: bool,
        now_ns: u64,
    ) {
        let (is_on, accepts) = (port.takes_frames(), port.accepts());
        *self.entry(queue) = Some(Attached {
            port,
            touched: false,
            broken: false,
            wakes,
            in_poller: false,
            parked: false,
            leaving: false,
            heard_ns: now_ns,
            hold: Hold::default(),
            out: VecDeque::with_capacity(OUT_MAX),
            load,
        });
        self.gone.retain(|(other, _)| *other != queue);
        self.routes.set_owner(queue, self.worker);
        self.routes.set_accepts(queue.slot, accepts);
        self.routes.set_on(queue, is_on);
    }

    /// Takes a port out of its place and off the map.
    pub(crate) fn detach(&mut self, queue: QueueId) -> Option<Attached> {
        let attached = self.take(queue)?;
        self.routes.set_on(queue, false);
        Some(attached)
    }

    /// Takes a port out of its place; on the map it stays where it was, until it is somewhere else.
    pub(crate) fn take(&mut self, queue: QueueId) -> Option<Attached> {
        self.sending(queue)?.give_up();
        self.touched.retain(|other| *other != queue);
        self.entry(queue).take()
    }

    fn entry(&mut self, queue: QueueId) -> &mut Option<Attached> {
        let slot = self.slot(queue.slot);
        let Some(other) = usize::from(queue.pair).checked_sub(1) else {
            return &mut slot.first.attached;
        };
        if other >= slot.others.len() {
            slot.others.resize_with(other + 1, Place::default);
        }
        &mut slot.others[other].attached
    }

    fn slot(&mut self, slot: PortSlot) -> &mut Slot {
        let index = index_of(slot);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    #[inline]
    pub(crate) fn find(&mut self, queue: QueueId) -> Option<&mut Attached> {
        find(&mut self.slots, queue)
    }

    /// The queue's port, if it is here, with all that it takes to receive from it.
    #[inline]
    pub(crate) fn sending(&mut self, queue: QueueId) -> Option<Sending<'_>> {
        let (attached, (debt, lent), price) = place(&mut self.slots, queue)?;
        Some(Sending {
            attached: attached.as_mut()?,
            debt,
            lent,
            price,
            outbox: &mut self.outbox,
        })
    }

    /// What the queue's frames have cost and who owes it, also while its port is away. `None`: it
    /// was never here.
    pub(crate) fn owing(&mut self, queue: QueueId) -> Option<(&mut Debt, &mut Price)> {
        let (_, (debt, _), price) = place(&mut self.slots, queue)?;
        Some((debt, price))
    }

    /// The pairs of a NIC that has had several here, in the order in which they have their turns:
    /// the first one's, and how many there are. `None`: they had theirs in this turn.
    pub(crate) fn pairs_in_turn(&mut self, slot: PortSlot, turn: u64) -> Option<(u16, u16)> {
        let slot = self.slot(slot);
        if std::mem::replace(&mut slot.turn, turn) == turn {
            return None;
        }
        let count = 1 + slot.others.len() as u16;
        Some((slot.next % count, count))
    }

    /// A queue has had its turn: that of the pair behind it is next.
    pub(crate) fn had_its_turn(&mut self, queue: QueueId) {
        self.slot(queue.slot).next = queue.pair + 1;
    }

    /// A NIC, and no uplink, that has had several pairs here.
    #[inline]
    pub(crate) fn takes_turns(&self, slot: PortSlot) -> bool {
        let here = self.slots.get(index_of(slot));
        here.is_some_and(|here| !here.others.is_empty()) && !slot.is_uplink()
    }

    pub(crate) fn peek(&self, queue: QueueId) -> Option<&Attached> {
        let slot = self.slots.get(index_of(queue.slot))?;
        match usize::from(queue.pair).checked_sub(1) {
            None => slot.first.attached.as_ref(),
            Some(other) => slot.others.get(other)?.attached.as_ref(),
        }
    }

    /// This worker has the queue of a NIC that a frame that asks for no pair is written to.
    pub(crate) fn has_queue_of(&self, slot: PortSlot) -> bool {
        self.has_queue_for(slot, 0)
    }

    /// This worker has the queue of a NIC that a frame with this hint is written to.
    pub(crate) fn has_queue_for(&self, slot: PortSlot, steer: u32) -> bool {
        let on = self.routes.on(slot);
        let pair = pick(on, steer);
        on != 0 && self.peek(QueueId { slot, pair }).is_some()
    }

    /// All of them, by slot and pair.
    pub(crate) fn all(&self) -> impl Iterator<Item = (QueueId, &Attached)> {
        self.slots.iter().zip(0..).flat_map(|(slot, number)| {
            let pairs = std::iter::once(&slot.first).chain(&slot.others).zip(0..);
            pairs.filter_map(move |(place, pair)| {
                let slot = slot_at(number);
                Some((QueueId { slot, pair }, place.attached.as_ref()?))
            })
        })
    }

    /// Notes to which worker a queue is on its way, so that what still comes here for it is sent
    /// after it.
    pub(crate) fn note_gone(&mut self, queue: QueueId, to: usize) {
        self.gone.retain(|(other, _)| *other != queue);
        self.gone.push((queue, to));
    }

    /// The worker that has a queue which is not here, or will have it in a moment; `None`: nobody
    /// has.
    pub(crate) fn whereabouts(&mut self, queue: QueueId) -> Option<usize> {
        if self.routes.on(queue.slot) >> queue.pair & 1 == 0 {
            return None;
        }
        let owner = self.routes.owner(queue);
        if owner != self.worker {
            return Some(owner);
        }
        let to = self.gone.iter().find(|(other, _)| *other == queue);
        to.map(|(_, to)| *to)
    }

    /// Forgets of the queues that have gone those that have arrived.
    pub(crate) fn forget_gone(&mut self) {
        let (routes, worker) = (&self.routes, self.worker);
        self.gone
            .retain(|(queue, _)| routes.owner(*queue) == worker);
    }

    /// Writes a frame to a NIC, a copy for a sniffer. It is seen after [`Ports::flush`]. True when
    /// it was written here; false when it was handed to another worker, who counts it.
    pub(crate) fn transmit(
        &mut self,
        target: PortSlot,
        batch: &Batch,
        index: usize,
    ) -> Result<bool, DropReason> {
        let on = self.routes.on(target);
        if on == 0 {
            return Err(DropReason::TargetDown);
        }
        let queue = QueueId {
            slot: target,
            pair: pick(on, 0),
        };
        if self.find(queue).is_some() {
            let port = self.writable(queue).ok_or(DropReason::TargetDown)?;
            return port.transmit(batch, index).map_err(refusal).map(|()| true);
        }
        match self.hand(queue, batch, index, true) {
            Put::Handed => Ok(false),
            Put::Full => Err(DropReason::HandoffFull),
            Put::Gone => Err(DropReason::TargetDown),
        }
    }

    /// Whether a frame would be written to a NIC or an uplink, as far as that is known before.
    pub(crate) fn outlook(&self, target: PortSlot, steer: u32) -> Result<(), DropReason> {
        let on = self.routes.on(target);
        if on == 0 {
            return Err(DropReason::TargetDown);
        }
        let pair = pick(on, steer);
        match self.peek(QueueId { slot: target, pair }) {
            Some(attached) if attached.broken || !attached.port.info().up => {
                Err(DropReason::TargetDown)
            }
            _ => Ok(()),
        }
    }

    /// What a NIC takes undone, whichever worker has its queues.
    pub(crate) fn accepts(&self, target: PortSlot) -> Accepts {
        match self.peek(target.into()) {
            Some(attached) => attached.port.accepts(),
            None => self.routes.accepts(target),
        }
    }

    /// Sends a frame over an uplink in its outer headers, by a queue of this worker if it has one.
    /// True when it was written here; false when it was handed to another worker, who counts it.
    #[inline]
    pub(crate) fn transmit_outer(
        &mut self,
        uplink: PortSlot,
        batch: &Batch,
        frame: u8,
        outer: &Outer,
        hash: u32,
    ) -> Result<bool, DropReason> {
        let on = self.routes.on(uplink);
        if on == 0 {
            return Err(DropReason::TargetDown);
        }
        let mine = on & self.mine(uplink);
        let queue = QueueId {
            slot: uplink,
            pair: pick(if mine == 0 { on } else { mine }, hash),
        };
        if mine != 0 {
            return self
                .transmit_wrapped(queue, batch, usize::from(frame), outer)
                .map(|()| true);
        }
        let Some(owner) = self.whereabouts(queue) else {
            return Err(DropReason::TargetDown);
        };
        match self.outbox.put_outer(owner, queue, batch, frame, outer) {
            Put::Handed => {
                self.handed_over += 1;
                Ok(false)
            }
            Put::Full => Err(DropReason::HandoffFull),
            Put::Gone => Err(DropReason::TargetDown),
        }
    }

    /// Sends a frame behind outer headers by one queue, which this worker has.
    #[inline]
    pub(crate) fn transmit_wrapped(
        &mut self,
        queue: QueueId,
        batch: &Batch,
        frame: usize,
        outer: &Outer,
    ) -> Result<(), DropReason> {
        let port = self.writable(queue).ok_or(DropReason::TargetDown)?;
        match port.transmit_outer(batch, frame, outer) {
            Ok(()) => Ok(()),
            Err(TransmitError::TooSmall) => Err(DropReason::MtuExceeded),
            Err(error) => Err(refusal(error)),
        }
    }

    /// The pairs of a slot that are here, a bit each.
    #[inline]
    fn mine(&self, slot: PortSlot) -> u64 {
        let Some(slot) = self.slots.get(index_of(slot)) else {
            return 0;
        };
        let others = slot.others.iter().enumerate();
        let bits = others.map(|(pair, other)| u64::from(other.attached.is_some()) << (pair + 1));
        let first = u64::from(slot.first.attached.is_some());
        bits.fold(first, |bits, bit| bits | bit)
    }

    /// Writes several frames to a NIC and says of each in `results` what became of it; see
    /// [`Handed`] for those whose queue another worker has. `steer` has the pair that each is meant
    /// for.
    #[inline]
    pub(crate) fn transmit_all(
        &mut self,
        target: PortSlot,
        batch: &Batch,
        frames: &[u8],
        steer: &[u32],
        results: &mut [Result<(), TransmitError>],
    ) -> Handed {
        let on = self.routes.on(target);
        if on == 1 {
            return self.transmit_to(target.into(), batch, frames, results);
        }
        if on == 0 {
            results.fill(Err(TransmitError::Down));
            return Handed::default();
        }
        self.spread(target, on, batch, frames, steer, results)
    }

    /// Writes several frames to a NIC with several pairs: pair by pair, each in the frames' order.
    fn spread(
        &mut self,
        target: PortSlot,
        on: u64,
        batch: &Batch,
        frames: &[u8],
        steer: &[u32],
        results: &mut [Result<(), TransmitError>],
    ) -> Handed {
        let mut pairs = [0u16; BATCH];
        let mut left = 0u64;
        for (pair, hint) in pairs.iter_mut().zip(steer) {
            *pair = pick(on, *hint);
            left |= 1 << *pair;
        }
        let pairs = &pairs[..frames.len().min(steer.len())];
        let mut handed = Handed::default();
        while left != 0 {
            let pair = left.trailing_zeros() as u16;
            left &= left - 1;
            let (mut mine, mut at, mut count) = ([0u8; BATCH], [0usize; BATCH], 0);
            for (index, _) in pairs
                .iter()
                .enumerate()
                .filter(|(_, other)| **other == pair)
            {
                (mine[count], at[count]) = (frames[index], index);
                count += 1;
            }
            let mut outcome = [Ok(()); BATCH];
            let outcome = &mut outcome[..count];
            let queue = QueueId { slot: target, pair };
            let part = self.transmit_to(queue, batch, &mine[..count], outcome);
            for (bit, (result, index)) in outcome.iter().zip(at).enumerate() {
                results[index] = *result;
                handed.over |= (part.over >> bit & 1) << index;
                handed.full |= (part.full >> bit & 1) << index;
            }
        }
        handed
    }

    /// Writes frames to one queue, or hands them to the worker that has it.
    #[inline]
    pub(crate) fn transmit_to(
        &mut self,
        queue: QueueId,
        batch: &Batch,
        frames: &[u8],
        results: &mut [Result<(), TransmitError>],
    ) -> Handed {
        if self.find(queue).is_some() {
            let len = |frame: &u8| batch.frames()[usize::from(*frame)].len();
            let is_large = frames
                .first()
                .is_some_and(|frame| len(frame) >= pace::LARGE);
            let watch = is_large.then(|| (Stopwatch::start(), batch.cut()));
            match self.writable(queue) {
                Some(port) => port.transmit_all(batch, frames, results),
                None => results.fill(Err(TransmitError::Down)),
            }
            if let Some((watch, cut)) = watch
                && batch.cut() == cut
                && results.iter().all(Result::is_ok)
            {
                let bytes = frames.iter().map(len).sum();
                self.pace.note_copy(bytes, watch.cycles());
            }
            return Handed::default();
        }
        self.hand_all(queue, batch, frames, results)
    }

    fn hand_all(
        &mut self,
        queue: QueueId,
        batch: &Batch,
        frames: &[u8],
        results: &mut [Result<(), TransmitError>],
    ) -> Handed {
        let mut handed = Handed::default();
        for (bit, (&frame, result)) in frames.iter().zip(results).enumerate() {
            *result = Ok(());
            match self.hand(queue, batch, frame.into(), false) {
                Put::Handed => handed.over |= 1 << bit,
                Put::Full => handed.full |= 1 << bit,
                Put::Gone => *result = Err(TransmitError::Down),
            }
        }
        handed
    }

    fn hand(&mut self, queue: QueueId, batch: &Batch, frame: usize, copy: bool) -> Put {
        let Some(owner) = self.whereabouts(queue) else {
            return Put::Gone;
        };
        let mut mark = self.slot(queue.slot).mark;
        let put = self.outbox.put(owner, queue, batch, frame, copy, &mut mark);
        self.slot(queue.slot).mark = mark;
        self.handed_over += u64::from(put == Put::Handed);
        put
    }

    /// The port of a queue, which is going to be written to.
    #[inline]
    fn writable(&mut self, queue: QueueId) -> Option<&mut Port> {
        let attached = find(&mut self.slots, queue)?;
        if attached.broken {
            return None;
        }
        if !attached.touched {
            attached.touched = true;
            self.touched.push(queue);
        }
        Some(&mut attached.port)
    }

    /// Makes what was written visible, once per port that was written to.
    #[inline]
    pub(crate) fn flush(&mut self, mut broke: impl FnMut(PortSlot, &mut Attached, PortError)) {
        for queue in self.touched.drain(..) {
            let Some(attached) = find(&mut self.slots, queue) else {
                continue;
            };
            attached.touched = false;
            if let Err(error) = attached.port.flush()
                && !attached.broken
            {
                broke(queue.slot, attached, error);
            }
        }
    }
}

/// Where a slot is in [`Ports::slots`]: the uplinks, whose slots are behind all others, come first,
/// so that the list need not be longer for them.
#[inline(always)]
fn index_of(slot: PortSlot) -> usize {
    let behind = slot.0 as usize + MAX_UPLINKS;
    behind.checked_sub(MAX_SLOTS).unwrap_or(behind)
}

/// The slot at that index.
fn slot_at(index: u32) -> PortSlot {
    let behind = index + MAX_PORTS as u32;
    PortSlot(behind.checked_sub(MAX_SLOTS as u32).unwrap_or(behind))
}

#[inline]
fn find(slots: &mut [Slot], queue: QueueId) -> Option<&mut Attached> {
    let slot = slots.get_mut(index_of(queue.slot))?;
    match usize::from(queue.pair).checked_sub(1) {
        None => slot.first.attached.as_mut(),
        Some(other) => slot.others.get_mut(other)?.attached.as_mut(),
    }
}

/// What there is of a queue that is here or was: its port, who pays for its frames, their price.
type Parts<'a> = (
    &'a mut Option<Attached>,
    (&'a mut Debt, &'a mut Lent),
    &'a mut Price,
);

#[inline]
fn place(slots: &mut [Slot], queue: QueueId) -> Option<Parts<'_>> {
    let Slot { first, others, .. } = slots.get_mut(index_of(queue.slot))?;
    let Some(other) = usize::from(queue.pair).checked_sub(1) else {
        let payer = (&mut first.debt, &mut first.lent);
        return Some((&mut first.attached, payer, &mut first.price));
    };
    let own = others.get_mut(other)?;
    let payer = match queue.slot.is_uplink() {
        true => (&mut own.debt, &mut own.lent),
        false => (&mut first.debt, &mut first.lent),
    };
    Some((&mut own.attached, payer, &mut own.price))
}

/// Why a frame is dropped that a port did not take.
pub(crate) fn refusal(error: TransmitError) -> DropReason {
    match error {
        TransmitError::Full => DropReason::RingFull,
        TransmitError::TooSmall => DropReason::BufferTooSmall,
        TransmitError::Down => DropReason::TargetDown,
        TransmitError::BadOffload => DropReason::BadOffload,
        TransmitError::Broken => DropReason::TargetBroken,
    }
}

#[cfg(test)]
mod tests {
    use io::memory_port::MemoryPort;
    use sys::poll::Doorbell;
    use wire::{Mac, build};

    use super::*;
    use crate::handoff::{Wake, connect};
    use crate::sleep_flag::SleepFlag;
    use crate::work::Rates;

    const QUEUE: QueueId = QueueId {
        slot: PortSlot(0),
        pair: 0,
    };

    fn attach(ports: &mut Ports) {
        let port = Box::new(MemoryPort::pair().0.into());
        ports.attach(QUEUE, port, Arc::default(), true, 0);
    }

    /// Of `frames` of 2,042 bytes, that so much was `charged` for, another worker cuts packets of
    /// so many bytes for each of some receivers: whether their sender waits then, and how many
    /// frames are received of it.
    fn when_cut(frames: usize, packet: u16, receivers: usize, charged: u64) -> (bool, usize) {
        let mut ports = Ports::new(0, Arc::new(Routes::new()), Outbox::default());
        attach(&mut ports);
        let frame = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
        let frame = frame.udp(1, 2).payload(&[7; 2000]).gso(packet);
        let (bytes, offload) = frame.build_with_offload();
        let mut batch = Batch::new();
        for _ in 0..frames {
            batch.push_bytes(&bytes, offload);
        }
        let mut sending = ports.sending(QUEUE).unwrap();
        sending.lend(&mut batch, charged, false);

        let (receiver, peer) = MemoryPort::pair();
        peer.set_capacity(usize::MAX);
        let mut receiver = Port::from(receiver);
        for _ in 0..receivers {
            for frame in 0..frames {
                let out = &sending.attached.out[0].batch;
                assert_eq!(receiver.transmit(out, frame), Ok(()));
            }
        }
        assert!(sending.reclaim(Now::default()));
        let waits = sending.debt.waits(1, 2);
        (waits, sending.price.room(BATCH, false, Now::default()))
    }

    #[test]
    fn what_others_cut_is_charged_beyond_what_was_charged_before() {
        let bytes = 2042;
        // Packets of a byte's price of two, and copies for many, cost no more than their bytes do.
        let dear = Rates {
            byte: 2 * Rates::BYTE,
        };
        let charged = dear.cost(BATCH, BATCH * bytes, 0);
        assert_eq!(when_cut(BATCH, 500, 1, charged), (false, BATCH));
        let rates = Rates::default();
        let copies = rates.cost(1, bytes, 0) + rates.cost_of_copies(100, 100 * bytes);
        assert_eq!(when_cut(1, 500, 100, copies), (false, BATCH));
        // Twenty small ones of each cost more, and fewer frames are received at a time.
        let charged = rates.cost(BATCH, BATCH * bytes, 0);
        assert_eq!(when_cut(BATCH, 100, 1, charged), (true, 10));
    }

    #[test]
    fn a_batch_that_another_worker_keeps_is_replaced() {
        let wake = || Wake {
            bell: Doorbell::new().unwrap(),
            sleeps: Arc::new(SleepFlag::new()),
        };
        let (outbox, _inbox) = connect(&[wake(), wake()]).swap_remove(0);
        let mut ports = Ports::new(0, Arc::new(Routes::new()), outbox);
        let mut kept = Vec::new();
        for _ in 0..10 {
            attach(&mut ports);
            let mut sending = ports.sending(QUEUE).unwrap();
            for _ in 0..OUT_MAX {
                assert!(sending.outbox.has_batch_for(QUEUE, *sending.lent));
                sending.lend(&mut Batch::new(), 0, false);
            }
            assert!(!sending.outbox.has_batch_for(QUEUE, *sending.lent));
            kept.extend(sending.attached.out.iter().map(|out| out.batch.clone()));
            assert!(ports.take(QUEUE).is_some());
        }
    }
}
