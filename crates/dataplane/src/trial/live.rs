//! What does happen: frames of one NIC as they pass, each with what the path found out about it.
//!
//! For each frame that a [`Live`] wants, the worker runs a [`Trial`] at the moment at which it
//! judges the frame, with the same tables, and judges and delivers the frame by itself then: the
//! report says why, and what became of the frame is what really did. Who reads hands in the trials
//! that are used up, so that a worker makes nothing large and a reader that is slow, or wants few,
//! costs little; what passes while there is none is counted as lost. A NIC without a [`Live`] is
//! not looked at.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, TryLockError};

use io::frame::Batch;
use io::trace::capture::{self, Effort};
use wire::bpf::Filter;

use super::{Report, Trial};
use crate::drop_reason::DropReason;
use crate::ids::PortSlot;

/// Frames that wait for the reader, and trials that are kept for the workers.
pub const WAITING: usize = 1024;

/// A frame that has passed, or not.
pub struct Passed {
    /// When it came, nanoseconds since 1970.
    pub unix_ns: u64,
    /// What each step found out.
    pub report: Box<Report>,
    /// What became of it.
    pub fate: Outcome,
    /// Cycles from the first step to behind the last.
    pub cycles: u64,
    /// Used up, to be dropped by the reader.
    pub(crate) _trial: Trial,
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Somebody got it, or has it for another worker's NIC.
    Delivered,
    /// It waits: for its first fragment, a next hop, or tokens.
    Held,
    /// Nobody got it. `None`: each of several targets has its own reason.
    Dropped(Option<DropReason>),
}

/// A live trace, as the workers see it.
pub struct Live {
    filter: Option<Filter>,
    spares: Mutex<Vec<Trial>>,
    passed: SyncSender<Box<Passed>>,
    seen: AtomicU64,
    lost: AtomicU64,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Live {
    /// One of the frames that a filter wants, and where they come out.
    pub fn new(filter: Option<Filter>) -> (Arc<Live>, Receiver<Box<Passed>>) {
        let (passed, receiver) = sync_channel(WAITING);
        let live = Live {
            filter,
            spares: Mutex::default(),
            passed,
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        (Arc::new(live), receiver)
    }

    /// Lets the workers look at so many frames more, [`WAITING`] at the most.
    pub fn supply(&self, count: usize) {
        let made: Vec<_> = (0..count.min(WAITING))
            .map(|_| Trial::new(0, PortSlot(0), Vec::new()))
            .collect();
        let mut spares = self.spares.lock().unwrap_or_else(|e| e.into_inner());
        let room = WAITING.saturating_sub(spares.len());
        spares.extend(made.into_iter().take(room));
    }

    /// Trials that are there for the workers.
    pub fn supplied(&self) -> usize {
        self.spares.lock().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// Frames that were wanted, and how many of them are not told.
    pub fn counts(&self) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.seen), count(&self.lost))
    }

    /// A trial for frame `index` of a batch, if it is wanted and there is one. What that took is
    /// added to `effort`.
    pub(crate) fn trial(&self, batch: &Batch, index: usize, effort: &mut Effort) -> Option<Trial> {
        let frame = &batch.frames()[index];
        if let Some(filter) = &self.filter
            && !capture::wants(filter, batch, index, effort)
        {
            return None;
        }
        self.seen.fetch_add(1, Ordering::Relaxed);
        let spare = match self.spares.try_lock() {
            Ok(mut spares) => spares.pop(),
            Err(TryLockError::Poisoned(spares)) => spares.into_inner().pop(),
            // The reader adds some at this moment.
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut trial) = spare else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        *effort += Effort::copy(frame.len());
        trial.frame = batch.to_bytes(index);
        trial.offload = frame.offload;
        Some(trial)
    }

    pub(crate) fn put(&self, passed: Passed) {
        if self.passed.try_send(Box::new(passed)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
