//! What a NIC is sent beyond its bits and packets waits here a little, as in the queue of a card
//! before a slow cable, so that TCP finds the limit by its round trip and not by losing whole
//! windows. What is beyond that queue is dropped.
//!
//! Frames wait judged, as private copies: no sender's memory is pinned for them. Each worker has a
//! queue for each NIC that it has too much for; all take from the NIC's one bucket. What was judged
//! under a configuration that is not in force any more is sent before the new one is said to be in
//! force, beyond the limit if need be, which is paid for afterwards.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use io::frame::{BATCH, Batch};
use wire::offload::Offload;

use crate::drop_reason::DropReason;
use crate::ids::{PortSlot, PortUid};
use crate::limits::Meter;
use crate::time::Now;

/// What waits with a worker at most, in bytes; one queue has a part of what is free.
const MOST_BYTES: usize = 32 << 20;
const PART: usize = 8;

/// Buffers that are kept for the next frames, and the largest that is.
const FREE_BUFFERS: usize = 64;
const FREE_BYTES: usize = 66_000;

/// Frames of an old configuration that are sent in one turn.
const OLD_STEP: usize = BATCH;

type Queues = hashbrown::HashMap<PortSlot, Queue, foldhash::fast::RandomState>;

/// The queues of a worker.
#[derive(Default)]
pub(crate) struct Shaper {
    queues: Queues,
    /// When each queue is looked at again, monotonic nanoseconds; each is here once.
    due: BinaryHeap<Reverse<(u64, PortSlot)>>,
    /// In all queues.
    bytes: usize,
    /// Frames that were judged under a configuration that is not in force any more.
    old: usize,
    free: Vec<Vec<u8>>,
}

/// What waits for one NIC, oldest first; never nothing.
struct Queue {
    uid: PortUid,
    frames: VecDeque<Waiting>,
    bytes: usize,
    /// How many of the first ones are old.
    old: usize,
}

struct Waiting {
    bytes: Vec<u8>,
    offload: Offload,
    steer: u32,
}

/// Frames that were taken out.
#[derive(Default)]
pub(crate) struct Taken {
    /// Which pair each is meant for, in the order of the batch.
    pub steer: Vec<u32>,
    /// Those that are dropped all the same, in that order.
    pub refused: Vec<(usize, DropReason)>,
}

impl Shaper {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Something waits for this NIC: what comes goes behind it.
    pub(crate) fn has(&self, target: PortSlot) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&target)
    }

    /// Something waits that was judged under a configuration that is not in force any more.
    pub(crate) fn has_old(&self) -> bool {
        self.old > 0
    }

    /// Has a frame wait, or says why it is dropped: there is no room.
    pub(crate) fn hold(
        &mut self,
        (target, uid): (PortSlot, PortUid),
        meter: &Meter,
        (batch, index): (&Batch, usize),
        steer: u32,
        now: Now,
    ) -> Result<(), DropReason> {
        let frame = &batch.frames()[index];
        if self
            .queues
            .get(&target)
            .is_some_and(|queue| queue.uid != uid)
        {
            self.forget(target);
        }
        let room = meter.queue_room();
        // What a few that are slow have taken, others can not have; what all have taken is bounded.
        let part = (MOST_BYTES - self.bytes.min(MOST_BYTES)) / PART;
        let mut fresh = false;
        let queue = self.queues.entry(target).or_insert_with(|| {
            fresh = true;
            Queue::new(uid)
        });
        let is_full =
            queue.bytes + frame.len() > room.bytes.min(part) || queue.frames.len() >= room.packets;
        // A frame that is larger than the queue waits alone, if not for long.
        if is_full && (!fresh || frame.len() > part || meter.is_too_long(now)) {
            if fresh {
                self.queues.remove(&target);
            }
            return Err(meter.short_of(now));
        }
        let mut bytes = self.free.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        batch.copy_to(index, &mut bytes);
        queue.bytes += bytes.len();
        self.bytes += bytes.len();
        queue.frames.push_back(Waiting {
            bytes,
            offload: frame.offload,
            steer,
        });
        if fresh {
            self.due.push(Reverse((meter.queue_until(now), target)));
        }
        Ok(())
    }

    /// A NIC that is to be looked at now, with who it was: after [`take`](Self::take) it is looked
    /// at later.
    pub(crate) fn next_due(&mut self, now: Now) -> Option<(PortSlot, PortUid)> {
        let Reverse((at, target)) = *self.due.peek()?;
        if at > now.mono_ns {
            return None;
        }
        // Every one that is due has a queue.
        self.queues.get(&target).map(|queue| (target, queue.uid))
    }

    /// When the next one is to be looked at, monotonic nanoseconds.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Puts what may pass now of what waits for the NIC that is due into a batch with room.
    pub(crate) fn take(&mut self, meter: &Meter, batch: &mut Batch, now: Now) -> Taken {
        let mut taken = Taken::default();
        let Some(Reverse((_, target))) = self.due.pop() else {
            return taken;
        };
        let Some(queue) = self.queues.get_mut(&target) else {
            return taken;
        };
        self.bytes -= queue.bytes;
        while batch.room() > 0 && !queue.frames.is_empty() && meter.wait_ns(now) == 0 {
            queue.pop(batch, &mut taken, &mut self.old, &mut self.free);
            if let Some(frame) = batch.frames().last() {
                meter.charge_one(frame, now);
            }
        }
        self.bytes += queue.bytes;
        match queue.frames.is_empty() {
            true => drop(self.queues.remove(&target)),
            false => self.due.push(Reverse((meter.queue_until(now), target))),
        }
        taken
    }

    /// Another configuration is in force: all that waits is old.
    pub(crate) fn note_change(&mut self) {
        for queue in self.queues.values_mut() {
            queue.old = queue.frames.len();
        }
        let old = self.queues.values().map(|queue| queue.old);
        self.old = old.sum();
    }

    /// A NIC that old frames wait for, with who it was.
    pub(crate) fn next_old(&self) -> Option<(PortSlot, PortUid)> {
        let mut queues = self.queues.iter();
        let (target, queue) = queues.find(|(_, queue)| queue.old > 0)?;
        Some((*target, queue.uid))
    }

    /// Puts old frames for this NIC into an empty batch. They pass beyond the limit, which is paid
    /// for afterwards, but not if it would owe more than its queue holds: then they are dropped.
    pub(crate) fn take_old(
        &mut self,
        target: PortSlot,
        meter: Option<&Meter>,
        batch: &mut Batch,
        now: Now,
    ) -> Taken {
        let mut taken = Taken::default();
        let Some(queue) = self.queues.get_mut(&target) else {
            return taken;
        };
        self.bytes -= queue.bytes;
        while queue.old > 0 && batch.len() < OLD_STEP && batch.room() > 0 {
            queue.pop(batch, &mut taken, &mut self.old, &mut self.free);
            let (Some(frame), Some(meter)) = (batch.frames().last(), meter) else {
                continue;
            };
            match meter.owes_too_much(now) {
                true => taken.refused.push((batch.len() - 1, meter.short_of(now))),
                false => meter.charge_one(frame, now),
            }
        }
        self.bytes += queue.bytes;
        if queue.frames.is_empty() {
            self.queues.remove(&target);
            self.due.retain(|Reverse((_, other))| *other != target);
        }
        taken
    }

    /// Forgets what waits for a NIC that is gone.
    pub(crate) fn forget(&mut self, target: PortSlot) {
        if let Some(queue) = self.queues.remove(&target) {
            self.bytes -= queue.bytes;
            self.old -= queue.old;
            self.due.retain(|Reverse((_, other))| *other != target);
        }
    }
}

impl Queue {
    fn new(uid: PortUid) -> Queue {
        Queue {
            uid,
            frames: VecDeque::new(),
            bytes: 0,
            old: 0,
        }
    }

    /// Moves the oldest frame into a batch with room.
    fn pop(
        &mut self,
        batch: &mut Batch,
        taken: &mut Taken,
        old: &mut usize,
        free: &mut Vec<Vec<u8>>,
    ) {
        let Some(frame) = self.frames.pop_front() else {
            return;
        };
        // Cannot be refused: there is room, and it was a frame before.
        batch.push_bytes(&frame.bytes, frame.offload);
        taken.steer.push(frame.steer);
        self.bytes -= frame.bytes.len();
        if self.old > 0 {
            self.old -= 1;
            *old -= 1;
        }
        if free.len() < FREE_BUFFERS && frame.bytes.capacity() <= FREE_BYTES {
            free.push(frame.bytes);
        }
    }
}
