//! Copies of frames for many targets that are made in the next turns.
//!
//! 24 copies of 64 KiB take as long as a thousand small frames, and whoever waits for an answer
//! beside them waits for all. So while somebody does, no more of a sender's copies are made in a
//! turn than are its part of it ([`work`]); the others are made from a private copy of the frame in
//! the turns behind, in their order. No sender's memory is pinned for them.
//!
//! They have been judged. A worker makes all of them before it puts another configuration or
//! underlay in force, before all ports are taken away and before one goes to another worker, and
//! receives nothing of a NIC, or of an uplink's queue, of whose frames some are to be made: frames
//! keep their order. A ring that is taken away and given back makes no difference, which its VMM
//! may do as often as it likes: those of its frames are still to be made, and those for it find
//! what is there then. Targets whose queues other workers have are handed the frame at once; how
//! many copies those make in a turn is for them to say.

use io::frame::Batch;
use wire::offload::Gso;

use crate::ids::{NetworkIdx, PortSlot};
use crate::limits::Charge;
use crate::ports::Ports;
use crate::queue::QueueId;
use crate::work::{self, Rates};

/// Frames that are kept for it at the most: each has 64 KiB of memory, whatever its length. Where
/// there is no room all copies are made at once.
const MOST_FRAMES: usize = 128;

/// Batches that are kept for the next frames, and how many frames each may have had.
const FREE_BATCHES: usize = 4;
const FREE_FRAMES: usize = 4;

/// What a worker has put off.
#[derive(Default)]
pub(crate) struct Floods {
    /// Copies are put off: somebody waits for answers.
    pub hurry: bool,
    /// What private copies have cost that nobody is charged for yet.
    pub cost: u64,
    /// What those copies cost, of the batch in hand, that are not put off.
    at_once: u64,
    all: Vec<Flood>,
    /// In all batches.
    frames: usize,
    free: Vec<Batch>,
}

/// Who has sent a frame: the NIC of a queue, or machines of a network by a queue of an uplink.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub queue: QueueId,
    pub network: Option<NetworkIdx>,
}

/// What is left of one batch.
pub(crate) struct Flood {
    pub from: Origin,
    pub batch: Batch,
    /// The next one is the last.
    copies: Vec<PendingCopy>,
}

/// A frame of the batch for one target.
pub(crate) struct PendingCopy {
    pub frame: u8,
    pub target: PortSlot,
    pub steer: u32,
}

impl Floods {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Copies of frames of who pays for this queue are still to be made.
    #[inline]
    pub(crate) fn has(&self, from: QueueId) -> bool {
        let is_theirs = |flood: &Flood| flood.from.queue.payer() == from.payer();
        !self.all.is_empty() && self.all.iter().any(is_theirs)
    }

    /// Copies of frames of this sender are still to be made.
    #[inline]
    pub(crate) fn has_of(&self, from: Origin) -> bool {
        !self.all.is_empty() && self.all.iter().any(|flood| flood.from == from)
    }

    /// Another batch is in hand.
    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        self.at_once = 0;
    }

    /// Copies that cost so much are made at once: with those of other networks, which came in one
    /// batch, they are no more than their sender's part of two turns.
    pub(crate) fn fit_at_once(&mut self, cost: u64) -> bool {
        let fit = self.at_once + cost < 2 * work::TURN;
        self.at_once += if fit { cost } else { 0 };
        fit
    }

    /// An empty batch for so many frames. `None`: there is no room for them, which those are not
    /// asked that go behind others of their sender: a few fragments, or the rest of a batch that is
    /// traced live.
    pub(crate) fn batch(&mut self, frames: usize, is_behind: bool) -> Option<Batch> {
        let fits = is_behind || self.frames + frames <= MOST_FRAMES;
        fits.then(|| self.free.pop().unwrap_or_default())
    }

    /// Puts copies of a batch of its own off, in their order.
    pub(crate) fn put_off(
        &mut self,
        from: Origin,
        mut batch: Batch,
        mut copies: Vec<PendingCopy>,
        rates: Rates,
    ) {
        batch.for_many = true;
        let bytes = batch.frames().iter().map(|frame| frame.len()).sum();
        self.cost += rates.cost_of_copies(batch.len(), bytes);
        self.frames += batch.len();
        copies.reverse();
        self.all.push(Flood {
            from,
            batch,
            copies,
        });
    }

    /// All of them, to be [put back](Self::put_back).
    pub(crate) fn take(&mut self) -> Vec<Flood> {
        std::mem::take(&mut self.all)
    }

    /// One of which some copies were made, or all.
    pub(crate) fn put_back(&mut self, mut flood: Flood) {
        if !flood.copies.is_empty() {
            return self.all.push(flood);
        }
        self.frames -= flood.batch.len();
        if self.free.len() < FREE_BATCHES && flood.batch.len() <= FREE_FRAMES {
            flood.batch.clear();
            self.free.push(flood.batch);
        }
    }
}

impl Flood {
    /// Those copies that are the sender's part of a turn, of which others have `spent` some; one at
    /// the least, and all of them when nobody is in a hurry.
    pub(crate) fn part(
        &mut self,
        spent: &mut u64,
        hurry: bool,
        ports: &Ports,
    ) -> impl Iterator<Item = PendingCopy> {
        let (batch, copies) = (&self.batch, &mut self.copies);
        std::iter::from_fn(move || {
            copies.pop_if(|copy| {
                let is_first = *spent == 0;
                *spent += cost(batch, copy.frame, copy.target, ports);
                is_first || *spent <= work::TURN || !hurry
            })
        })
    }
}

/// What one copy of a frame costs, for a target that may not take it as it is.
pub(crate) fn cost(batch: &Batch, frame: u8, target: PortSlot, ports: &Ports) -> u64 {
    let frame = &batch.frames()[usize::from(frame)];
    let copy = ports.pace.rates().cost_of_copies(1, frame.len());
    match frame.offload.gso == Gso::None || ports.accepts(target).gso(&frame.offload) {
        true => copy,
        false => copy.max(work::cost_of_packets(Charge::of(frame).packets as usize)),
    }
}
