//! How a queue of a NIC with limits is held back: it is not received from until there are tokens.
//! Its frames wait with their guest, whose own TCP sees a full ring and sends more slowly.

use io::frame::Batch;

use crate::limits::{Charge, Meter};
use crate::time::Now;

/// What a frame is taken for before any has come: one of 1,500 bytes.
const UNKNOWN: Charge = Charge {
    bytes: 1514,
    packets: 1,
};

/// What a worker knows of such a queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hold {
    /// Nothing is received before (monotonic nanoseconds); 0: it is not held back.
    pub until_ns: u64,
    /// It was taken out of the poller, which would report its frames over and over.
    pub unwatched: bool,
    /// What its last batch was charged, and how many frames that were.
    last: (Charge, u64),
}

impl Hold {
    /// How many frames may be received now, `None`: none, and the queue is held back.
    pub(crate) fn room(&mut self, meter: &Meter, now: Now) -> Option<usize> {
        if now.mono_ns < self.until_ns {
            return None;
        }
        self.until_ns = 0;
        match meter.wait_ns(now) {
            0 => Some(match self.last {
                (_, 0) => meter.frames(now, UNKNOWN, 1),
                (charge, frames) => meter.frames(now, charge, frames),
            }),
            wait => {
                meter.note_wait(wait);
                self.until_ns = now.mono_ns.saturating_add(wait).max(1);
                None
            }
        }
    }

    /// Charges what was received.
    pub(crate) fn charge(&mut self, meter: &Meter, batch: &Batch, now: Now) {
        let charge = Charge::of_all(batch.frames().iter());
        self.last = (charge, batch.len() as u64);
        meter.charge(charge, now);
    }

    /// When it is to be looked at again.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.until_ns != 0).then_some(self.until_ns)
    }
}
