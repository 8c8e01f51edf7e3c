//! Entries that no worker has a use for: a stack that all of them push and pop without a lock.
//!
//! The entries are chained by a number that each of them holds. The head counts every change in its
//! upper half, so that a pop that was held up between reading an entry's link and taking the entry
//! fails when others have popped and pushed it meanwhile.

use crate::atomic::{AtomicU64, Ordering};

/// No entry.
const NONE: u32 = u32::MAX;

/// The head of the chain: a count of all changes, and the first entry or [`NONE`].
pub(crate) struct Spare(AtomicU64);

impl Spare {
    pub(crate) fn new() -> Spare {
        Spare(AtomicU64::new(u64::from(NONE)))
    }

    /// Puts an entry in front; `link` makes it hold the number of the one behind it.
    pub(crate) fn push(&self, id: u32, link: impl Fn(u32)) {
        let _ = self
            .0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |head| {
                link(head as u32);
                Some(changed(head) | u64::from(id))
            });
    }

    /// Takes the first entry; `linked` gives the number that an entry holds.
    pub(crate) fn pop(&self, linked: impl Fn(u32) -> u32) -> Option<u32> {
        let popped = self
            .0
            .fetch_update(Ordering::Acquire, Ordering::Acquire, |head| {
                let first = head as u32;
                // What is read of an entry that another takes at this moment is not used: the count
                // has changed.
                (first != NONE).then(|| changed(head) | u64::from(linked(first)))
            });
        popped.ok().map(|head| head as u32)
    }
}

/// The upper half of the head, one change later.
fn changed(head: u64) -> u64 {
    ((head >> 32) + 1) << 32
}
