//! How a worker that goes to sleep and another that has something for it do not miss each other.
//!
//! The one says that it sleeps and looks at its rings once more; the other puts something in and
//! looks whether the first has said so. A SeqCst fence between the two steps of each side makes it
//! impossible that both see nothing.

use crate::atomic::{AtomicBool, Ordering, fence};

/// Whether a worker sleeps, or is about to.
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    pub(crate) fn new() -> SleepFlag {
        SleepFlag(AtomicBool::new(false))
    }

    /// The worker goes to sleep, unless it now finds something in its rings.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It looks at its rings again by itself.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// It has to be woken for what was put in before [`settle`], which goes before this.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Behind what was put in for others, before it is asked who of them sleeps.
pub(crate) fn settle() {
    fence(Ordering::SeqCst);
}
