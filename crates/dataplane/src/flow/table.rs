//! The table of tracked flows, shared by all workers: a slab of fixed-size entries and an index
//! over it.
//!
//! Bounded by `max`, allocated at once and committed by the kernel page by page. Every worker finds
//! every flow. Which worker makes a flow keeps it: its [`Flows`](super::Flows) has lists of what it
//! made and takes entries back; here is what all of them read, and the numbers they add up.
//!
//! An entry that is taken out is not another flow's before all workers have let go of it: see
//! [`turns`](super::turns).
//!
//! What two workers may do at once: find, count, follow states (by compare and exchange) and take
//! out (who empties its slot in the index has done it). Both may make an entry for the same flow
//! when its two ends begin at the same moment; the one that is found first is the flow, the other
//! is taken out by whoever sees both, or goes by its timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use foldhash::fast::SeedableRandomState;
use sys::huge::{PAGE, Zeroed};

use super::entry::{Entry, FlowId, NONE};
use super::hash::HashKey;
use super::index::{self, Index};
use super::info::FlowState;
use super::key::Key;
use super::memory::FlowMemory;
use super::spare::Spare;
use super::turns::Turns;
use crate::ids::{MAX_PORTS, PortSlot};

/// Entries that a worker takes at once.
const BLOCK: u32 = 32;

/// Lists that a worker has of each NIC's flows.
pub(super) const LISTS: usize = 2;

/// Flows of all workers.
pub(crate) struct FlowTable {
    entries: Zeroed<Entry>,
    index: Index,
    seed: SeedableRandomState,
    /// Entries from here on were never used.
    high: AtomicU32,
    /// Entries that any worker may take, chained by their first link.
    spare: Spare,
    count: AtomicU32,
    /// How many flows each NIC has begun.
    begun: Box<[AtomicU32]>,
    /// By worker, NIC and list: see [`oldest`](Self::oldest). Nothing where there is one worker.
    oldest: Box<[AtomicU32]>,
    /// By NIC: the workers, a bit each, that were asked to put its lists right and have not done so
    /// yet. Nothing where there is one worker.
    asked: Box<[AtomicU32]>,
    pub(super) turns: Turns,
}

impl FlowTable {
    /// For `max` flows, of so many workers together.
    pub(crate) fn shared(max: u32, seed: u64, workers: usize) -> Arc<FlowTable> {
        let max = max.clamp(1, index::MAX);
        let index = Index::new(max, workers == 1);
        FlowTable::of(
            Zeroed::new(max as usize),
            index,
            HashKey::new(seed),
            workers,
        )
    }

    /// In memory that outlives the process, for as many flows as that was made for.
    pub(crate) fn in_memory(
        memory: &FlowMemory,
        seed: u64,
        workers: usize,
    ) -> std::io::Result<Arc<FlowTable>> {
        let key = HashKey::new(seed);
        let index = memory.index(key, workers == 1)?;
        Ok(FlowTable::of(memory.entries()?, index, key, workers))
    }

    fn of(entries: Zeroed<Entry>, index: Index, key: HashKey, workers: usize) -> Arc<FlowTable> {
        let (lists, asked) = match workers {
            1 => (0, 0),
            _ => (workers * MAX_PORTS * LISTS, MAX_PORTS),
        };
        Arc::new(FlowTable {
            entries,
            index,
            seed: key.hasher(),
            high: AtomicU32::new(0),
            spare: Spare::new(),
            count: AtomicU32::new(0),
            begun: bytemuck::allocation::zeroed_slice_box(MAX_PORTS),
            oldest: bytemuck::allocation::zeroed_slice_box(lists),
            asked: bytemuck::allocation::zeroed_slice_box(asked),
            turns: Turns::new(workers),
        })
    }

    /// The largest number of flows.
    pub(crate) fn max(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Leaves the flows to the next process as they are now, in the memory that they are in.
    pub(crate) fn leave(&self, memory: &FlowMemory) -> std::io::Result<()> {
        memory.leave(&self.entries, &self.index)
    }

    /// Gives the index huge pages, where the system did not by itself; takes all of its memory. See
    /// [`Zeroed::collapse`].
    pub(crate) fn collapse_index(&self, go_on: impl FnMut(Duration) -> bool) -> bool {
        self.index.collapse(go_on)
    }

    /// Gives the entries huge pages, those in use and so many that will be in use next, where the
    /// system did not by itself. `done`: up to where that was done. See [`Zeroed::collapse`].
    pub(crate) fn collapse(
        &self,
        done: &mut usize,
        ahead: usize,
        go_on: impl FnMut(Duration) -> bool,
    ) {
        let page = PAGE / size_of::<Entry>();
        let wanted = (self.high() as usize + ahead).min(self.entries.len());
        if *done < wanted {
            // Whole pages: the next call begins in the one in which this one ends.
            if self.entries.collapse(*done..wanted + page, go_on) {
                *done = wanted + page;
            }
        }
    }

    /// One past the highest entry that was ever used: the end for walks by id.
    pub(crate) fn high(&self) -> u32 {
        self.high.load(Ordering::Relaxed).min(self.max())
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        key.hash(&self.seed)
    }

    /// Begins to bring what a lookup reads first into the cache.
    #[inline(always)]
    pub(crate) fn fetch_index(&self, hash: u64) {
        self.index.fetch(hash);
    }

    /// The flow that a lookup will probably find, and begins to bring what the packets of `side`
    /// read of it. Into the second cache: over a million flows 143 cycles a frame, 149 into the
    /// first one (2026-11-22).
    #[inline(always)]
    pub(crate) fn fetch_entry(&self, hash: u64, side: usize) -> Option<FlowId> {
        let id = self.index.likely(hash)?;
        let entry = self.entries.get(id as usize)?;
        io::fetch::later(entry);
        io::fetch::later(&entry.sides[side & 1]);
        Some(id)
    }

    /// The flow with this key, over or not.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key, hash: u64) -> Option<FlowId> {
        self.index.find(hash, |id| self.entry(id).is(key))
    }

    /// The flow with this key, over or not; entry `likely` is looked at first.
    #[inline(always)]
    pub(crate) fn find_likely(&self, likely: FlowId, key: &Key, hash: u64) -> Option<&Entry> {
        match self.entries.get(likely as usize) {
            Some(entry) if entry.is(key) => Some(entry),
            _ => self.find(key, hash).map(|id| self.entry(id)),
        }
    }

    /// What it is called.
    #[inline(always)]
    pub(crate) fn find_likely_id(&self, likely: FlowId, key: &Key, hash: u64) -> Option<FlowId> {
        match self.entries.get(likely as usize) {
            Some(entry) if entry.is(key) => Some(likely),
            _ => self.find(key, hash),
        }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, id: FlowId) -> &Entry {
        &self.entries[id as usize]
    }

    /// How many flows the NIC in a slot has begun.
    #[inline]
    pub(super) fn begun(&self, slot: u32) -> &AtomicU32 {
        &self.begun[slot as usize % MAX_PORTS]
    }

    /// The first flow in a worker's list of those that a NIC has begun, for other workers. What is
    /// found from here on is used until the end of the turn, as what is found in the index: an
    /// entry leaves its list before its worker looks how many turns have begun.
    pub(super) fn oldest(&self, worker: usize, slot: usize, list: usize) -> FlowId {
        let first = self.oldest.get(place(worker, slot, list));
        first.map_or(NONE, |id| id.load(Ordering::Acquire).wrapping_sub(1))
    }

    #[inline]
    pub(super) fn set_oldest(&self, worker: usize, slot: usize, list: usize, id: FlowId) {
        if let Some(first) = self.oldest.get(place(worker, slot, list)) {
            first.store(id.wrapping_add(1), Ordering::Release);
        }
    }

    /// Notes that these workers are asked to put a NIC's lists right. Gives those that were not
    /// yet: nobody is asked twice before it has done so.
    pub(super) fn ask(&self, slot: PortSlot, workers: u32) -> u32 {
        if workers == 0 {
            return 0;
        }
        let asked = self.asked.get(slot.0 as usize % MAX_PORTS);
        asked.map_or(0, |asked| {
            workers & !asked.fetch_or(workers, Ordering::Relaxed)
        })
    }

    /// This worker may be asked again, by who looks at a NIC's lists from here on.
    pub(super) fn may_be_asked(&self, slot: PortSlot, worker: usize) {
        if let Some(asked) = self.asked.get(slot.0 as usize % MAX_PORTS) {
            asked.fetch_and(!(1 << worker), Ordering::Relaxed);
        }
    }

    /// The flow behind another one in a list, which may be another worker's.
    pub(super) fn behind(&self, id: FlowId) -> FlowId {
        let next = self.entry(id).sides[1].link.get();
        fence(Ordering::Acquire);
        next
    }

    /// Puts a flow behind another one: who comes to it there finds it complete.
    #[inline]
    pub(super) fn put_behind(&self, id: FlowId, next: FlowId) {
        if self.turns.workers() > 1 {
            fence(Ordering::Release);
        }
        self.entry(id).sides[1].link.set(next);
    }

    /// Lets everybody find a flow. False when there is no place for it.
    #[inline]
    pub(super) fn add(&self, hash: u64, id: FlowId) -> bool {
        let added = self.index.insert(hash, id);
        if added {
            self.add_to(&self.count, 1);
            self.add_to(self.begun(self.entry(id).charged().0), 1);
        }
        added
    }

    /// Takes a flow out, so that nobody finds it any more. Gives the state that it was in, to one
    /// of those who try.
    #[inline]
    pub(super) fn take_out(&self, id: FlowId) -> Option<FlowState> {
        let entry = self.entry(id);
        // Found no more before it is seen to be out: whose list it is in then begins to wait for
        // those who may have found it.
        if entry.is_out() {
            return None;
        }
        if !self.index.remove(self.hash(&entry.key()), id) {
            // Another worker was first. Where there is none its entry would never be free again.
            debug_assert!(self.turns.workers() > 1, "flow {id} is not in the index");
            return None;
        }
        let was = match self.turns.workers() {
            1 => {
                let was = entry.state.get();
                entry.state.set(0);
                was
            }
            _ => entry.state.take(),
        };
        let state = FlowState::from_code(was);
        self.add_to(&self.count, -1);
        self.add_to(self.begun(entry.charged().0), -1);
        Some(state)
    }

    /// Adds to a number of all workers; where there is but one, without a locked instruction.
    #[inline]
    fn add_to(&self, number: &AtomicU32, by: i32) {
        if self.turns.workers() == 1 {
            let sum = number.load(Ordering::Relaxed).wrapping_add_signed(by);
            number.store(sum, Ordering::Relaxed);
        } else {
            number.fetch_add(by as u32, Ordering::Relaxed);
        }
    }

    /// Entries for a worker that has none: `take` is called for a few of them, `most` at the most.
    pub(super) fn supply(&self, most: usize, mut take: impl FnMut(FlowId)) {
        let mut left = BLOCK.min(u32::try_from(most).unwrap_or(BLOCK));
        while left > 0 {
            let link = |id| self.entry(id).sides[0].link.get();
            let Some(id) = self.spare.pop(link) else {
                break;
            };
            take(id);
            left -= 1;
        }
        let max = self.max();
        let block = self
            .high
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |high| {
                (left > 0 && high < max).then(|| (high + left).min(max))
            });
        if let Ok(first) = block {
            (first..(first + left).min(max)).for_each(take);
        }
    }

    /// An entry that its worker has no use for.
    pub(super) fn push_spare(&self, id: FlowId) {
        self.spare
            .push(id, |next| self.entry(id).sides[0].link.set(next));
    }
}

/// Where the first flow of a list is noted, 0 for none and else one more than its number.
#[inline]
fn place(worker: usize, slot: usize, list: usize) -> usize {
    (worker * MAX_PORTS + slot % MAX_PORTS) * LISTS + list
}
