//! How much of what daemons before have left is forgotten since it cannot be true, or is out of
//! date: for metrics and the status. Counted where it is found, at the start for the most part.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A connection in the table of flows.
    Connection,
    /// What a NIC or a rule had counted, or all drops.
    Counter,
    /// A learnt MAC.
    Mac,
    /// A VMM's session: its connection is closed.
    Session,
    /// A VMM's session that is not what it was last: its connection is closed.
    OldSession,
    /// A whole memory, that is none of ours or of a layout that is not known.
    Memory,
}

/// Their names, in the order of [`counts`].
pub const NAMES: [&str; COUNT] = [
    "connection",
    "counter",
    "mac",
    "session",
    "old_session",
    "memory",
];

/// What becomes of them, in the same order.
pub const MEANINGS: [&str; COUNT] = [
    "connections that cannot be: what comes of them is judged anew",
    "counters of NICs or rules that cannot be: they begin anew",
    "learnt MACs that cannot be: they are learnt with the next frame",
    "VMMs' sessions that cannot be gone on with: closed, and each VMM is to connect anew",
    "VMMs' sessions that are out of date: closed, and each VMM is to connect anew",
    "whole memories that are no daemon's, or of a layout that is not known: all in them is lost",
];

/// How many kinds there are.
pub const COUNT: usize = What::Memory as usize + 1;

static COUNTS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// So many more are forgotten.
pub fn count(what: What, more: u64) {
    COUNTS[what as usize].fetch_add(more, Ordering::Relaxed);
}

/// How many were, since this process started.
pub fn counts() -> [u64; COUNT] {
    COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed))
}
