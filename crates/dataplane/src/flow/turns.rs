//! When an entry that was taken out of the table may be another flow's: when no worker looks at it
//! any more.
//!
//! A lookup gives the number of an entry, which is used until the end of the turn. Whoever has
//! found one that is taken out at that moment may still count a packet in it, so that it rests
//! until every other worker has begun another turn, or sleeps. A worker says that it begins a turn,
//! or wakes, before it looks anything up; who takes an entry out looks afterwards how many turns
//! have begun; a SeqCst fence between the two steps of each side sees to it that either the entry
//! is not found or its finder is waited for.

use crate::atomic::{AtomicU64, Ordering, fence};

/// What stands for a worker's turns while it sleeps.
const ASLEEP: u64 = u64::MAX;

/// The turns of all workers.
pub(crate) struct Turns(Box<[Count]>);

/// How many turns a worker has begun, on a line of its own.
#[repr(align(64))]
struct Count(AtomicU64);

impl Turns {
    pub(crate) fn new(workers: usize) -> Turns {
        Turns((0..workers).map(|_| Count(AtomicU64::new(0))).collect())
    }

    pub(crate) fn workers(&self) -> usize {
        self.0.len()
    }

    /// A worker begins a turn: what it had found before is not used any more.
    #[inline]
    pub(crate) fn begin(&self, worker: usize) {
        let count = &self.0[worker].0;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// A worker goes to sleep with this many turns done, and looks nothing up before it wakes.
    pub(crate) fn sleep(&self, worker: usize) -> u64 {
        self.0[worker].0.swap(ASLEEP, Ordering::Release)
    }

    /// A worker goes on where it was when it went to sleep.
    pub(crate) fn wake(&self, worker: usize, turns: u64) {
        self.0[worker].0.store(turns + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The turns of all workers now: what was taken out before may be used again when
    /// [`passed`](Self::passed) says so.
    pub(crate) fn now(&self) -> Vec<u64> {
        fence(Ordering::SeqCst);
        self.0
            .iter()
            .map(|count| count.0.load(Ordering::Acquire))
            .collect()
    }

    /// All workers but `me` have let go of what they had found when `since` was taken.
    pub(crate) fn passed(&self, me: usize, since: &[u64]) -> bool {
        let gone = |(count, since): (&Count, &u64)| {
            *since == ASLEEP || count.0.load(Ordering::Acquire) > *since
        };
        let others = self.0.iter().zip(since).enumerate();
        others
            .filter(|(worker, _)| *worker != me)
            .all(|(_, pair)| gone(pair))
    }
}
