//! The table of tracked flows, shared by all workers: a slab of fixed-size entries and an index over it.
//!
//! Bounded by `max`, allocated at once and committed by the kernel page by page. Every worker finds every flow. Which
//! worker makes a flow keeps it: its [`Flows`](super::Flows) has lists of what it made, gives up what is to be given
//! up and takes entries back; here is what all of them read, and the numbers they add up.
//!
//! # Letting go
//!
//! A lookup gives the number of an entry, which is used until the end of the turn. An entry that is taken out can
//! therefore not be another flow's at once: whoever has found it a moment ago may still count a packet in it. It
//! waits until each other worker has begun two more turns, or sleeps. (Two: the beginning of the next may have been
//! counted before reads of the one before were done with.) A worker that wakes says so before it reads anything, with
//! a fence on both sides: either it does not find the entry, or it is waited for.
//!
//! What two workers may do at once: find, count, follow states (by compare and exchange) and take out (one of them
//! wins). Both may make an entry for the same flow when its two ends begin at the same moment; the one that is found
//! first is the flow, the other is taken out by whoever sees both, or goes by its timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use io::huge::Zeroed;

use super::entry::{Entry, FlowId, NONE};
use super::index::Index;
use super::key::Key;
use crate::counters::MAX_PORTS;

/// Entries that are taken from the never used ones at once.
const BLOCK: u32 = 32;

/// A worker's turn while it sleeps.
const ASLEEP: u64 = u64::MAX;

/// Flows of all workers.
pub(crate) struct FlowTable {
    entries: Zeroed<Entry>,
    index: Index,
    seed: SeedableRandomState,
    /// Entries from here on were never used.
    high: AtomicU32,
    /// Entries that any worker may take, chained by their first link: a count of all changes, and the first of them.
    spare: AtomicU64,
    count: AtomicU32,
    /// How many flows each NIC has begun.
    begun: Box<[AtomicU32]>,
    turns: Box<[TurnCount]>,
}

/// How many turns a worker has begun, on a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct TurnCount(AtomicU64);

impl FlowTable {
    /// For `max` flows, of so many workers together.
    pub(crate) fn shared(max: u32, seed: u64, workers: usize) -> Arc<FlowTable> {
        let max = max.clamp(1, NONE - 1);
        Arc::new(FlowTable {
            entries: Zeroed::new(max as usize),
            index: Index::new(max),
            seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            high: AtomicU32::new(0),
            spare: AtomicU64::new(u64::from(NONE)),
            count: AtomicU32::new(0),
            begun: bytemuck::allocation::zeroed_slice_box(MAX_PORTS),
            turns: (0..workers).map(|_| TurnCount::default()).collect(),
        })
    }

    /// The largest number of flows.
    pub(crate) fn max(&self) -> u32 {
        self.entries.len() as u32
    }

    /// How many workers share it.
    pub(super) fn workers(&self) -> usize {
        self.turns.len()
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
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

    /// The flow that a lookup will probably find, and begins to bring what the packets of `side` read of it.
    #[inline(always)]
    pub(crate) fn fetch_entry(&self, hash: u64, side: usize) -> Option<FlowId> {
        let id = self.index.likely(hash)?;
        let entry = self.entries.get(id as usize)?;
        io::fetch::soon(entry);
        io::fetch::soon(&entry.sides[side & 1]);
        Some(id)
    }

    /// The flow with this key, over or not.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key, hash: u64) -> Option<FlowId> {
        self.index.find(hash, |id| self.entry(id).is(key))
    }

    /// The same, looking at entry `likely` first.
    #[inline(always)]
    pub(crate) fn find_likely(&self, likely: FlowId, key: &Key, hash: u64) -> Option<FlowId> {
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
    pub(super) fn begun(&self, slot: u32) -> &AtomicU32 {
        &self.begun[slot as usize % MAX_PORTS]
    }

    /// Lets everybody find a flow. False when there is no place for it.
    pub(super) fn add(&self, hash: u64, id: FlowId) -> bool {
        let added = self.index.insert(hash, id);
        if added {
            self.count.fetch_add(1, Ordering::Relaxed);
            let charged = self.entry(id).charged();
            self.begun(charged.0).fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    /// Takes a flow out, so that nobody finds it any more. True for one of those who try.
    pub(super) fn take_out(&self, id: FlowId) -> bool {
        let entry = self.entry(id);
        if entry.state.swap(0) == 0 {
            return false;
        }
        self.index.remove(self.hash(&entry.key()), id);
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.begun(entry.charged().0).fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Entries for a worker that has none: `take` is called for a few of them.
    pub(super) fn supply(&self, mut take: impl FnMut(FlowId)) {
        for _ in 0..BLOCK {
            let Some(id) = self.pop_spare() else { break };
            take(id);
        }
        let max = self.max();
        let block = self
            .high
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |high| {
                (high < max).then(|| (high + BLOCK).min(max))
            });
        if let Ok(first) = block {
            (first..(first + BLOCK).min(max)).for_each(take);
        }
    }

    /// An entry that its worker has no use for.
    pub(super) fn push_spare(&self, id: FlowId) {
        let _ = self
            .spare
            .fetch_update(Ordering::Release, Ordering::Relaxed, |head| {
                self.entry(id).sides[0].link.set(head as u32);
                Some(changed(head) | u64::from(id))
            });
    }

    fn pop_spare(&self) -> Option<FlowId> {
        let popped = self
            .spare
            .fetch_update(Ordering::Acquire, Ordering::Acquire, |head| {
                // Another may take and use the entry meanwhile: then the count has changed, and this is tried again.
                let first = self.entries.get(head as u32 as usize)?;
                Some(changed(head) | u64::from(first.sides[0].link.get()))
            });
        popped.ok().map(|head| head as u32)
    }

    /// A worker begins a turn.
    #[inline]
    pub(super) fn begin_turn(&self, worker: usize) {
        let turns = &self.turns[worker].0;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// A worker goes to sleep with this many turns done, and will not look at a flow before it wakes.
    pub(super) fn sleep(&self, worker: usize) -> u64 {
        self.turns[worker].0.swap(ASLEEP, Ordering::Release)
    }

    pub(super) fn wake(&self, worker: usize, turns: u64) {
        self.turns[worker].0.store(turns + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The turns of all workers now: what was taken out before may be used again when [`passed`](Self::passed) says so.
    pub(super) fn turns(&self) -> Vec<u64> {
        fence(Ordering::SeqCst);
        self.turns
            .iter()
            .map(|turns| turns.0.load(Ordering::Acquire))
            .collect()
    }

    /// All workers but `me` have let go of what they had found when `since` was taken.
    pub(super) fn passed(&self, me: usize, since: &[u64]) -> bool {
        let gone = |(turns, since): (&TurnCount, &u64)| {
            let now = turns.0.load(Ordering::Acquire);
            *since == ASLEEP || now == ASLEEP || now >= since + 2
        };
        let others = self.turns.iter().zip(since).enumerate();
        others
            .filter(|(worker, _)| *worker != me)
            .all(|(_, pair)| gone(pair))
    }
}

/// The upper half of the head of the spare entries, one change later.
fn changed(head: u64) -> u64 {
    ((head >> 32) + 1) << 32
}
