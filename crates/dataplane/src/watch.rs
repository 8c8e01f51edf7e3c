//! What each step of a batch costs, by the cycle counter, for one batch of many: reading it twice a
//! batch and step would cost as much as the shorter steps. No other file of this crate reads a
//! clock, and nothing here decides what becomes of a frame; but how many are received of a sender
//! at one time goes by what copies take ([`pace`](crate::pace)).

use sys::cycles;

use crate::load::{STEPS, StepLoad};

/// One batch in so many is timed. A prime, so that ports which take turns are all seen.
const EVERY: u32 = 61;

/// The first ones all are, so that what they take is soon known.
const FIRST: u32 = 64;

/// The steps, in the order of [`STEPS`].
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Receive,
    FastPath,
    Judge,
    Deliver,
    Flush,
    Complete,
}

/// What one thing has cost, for the balancer.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(u64);

impl Stopwatch {
    #[inline]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(cycles::now())
    }

    /// It stands still: where nobody asks, reading the counter is saved.
    pub(crate) const OFF: Stopwatch = Stopwatch(0);

    /// Cycles since the start.
    #[inline]
    pub(crate) fn cycles(self) -> u64 {
        cycles::now().wrapping_sub(self.0)
    }
}

/// The stop watch of a worker.
pub(crate) struct Watch {
    /// How many of the first batches are still to be timed, one after the other.
    first: u32,
    /// Batches until the next one that is timed.
    left: u32,
    /// When the last step ended; 0: this batch is not timed.
    at: u64,
    /// When the batch was begun, if it is timed.
    began: u64,
    steps: [StepLoad; STEPS.len()],
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            first: FIRST,
            left: 0,
            at: 0,
            began: 0,
            steps: Default::default(),
        }
    }
}

impl Watch {
    /// A batch may come.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.at = if self.left == 0 { cycles::now() } else { 0 };
        self.began = self.at;
    }

    /// A step is over.
    #[inline]
    pub(crate) fn mark(&mut self, step: Step) {
        if self.at != 0 {
            let now = cycles::now();
            self.steps[step as usize].cycles += now.wrapping_sub(self.at);
            self.at = now;
        }
    }

    /// The batch is done. How many cycles it took, if it was timed.
    #[inline]
    pub(crate) fn end(&mut self, frames: usize) -> Option<u64> {
        if self.at == 0 {
            self.left -= 1;
            return None;
        }
        let cycles = self.at.wrapping_sub(self.began);
        self.first = self.first.saturating_sub(1);
        self.left = if self.first == 0 { EVERY - 1 } else { 0 };
        self.at = 0;
        for step in &mut self.steps {
            step.frames += frames as u64;
        }
        Some(cycles)
    }

    /// What was measured so far.
    pub(crate) fn steps(&self) -> [StepLoad; STEPS.len()] {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_batch_of_many_is_timed_and_looks_that_find_nothing_are_not() {
        let mut watch = Watch {
            first: 0,
            ..Watch::default()
        };
        for _ in 0..2 * EVERY {
            watch.begin();
            // Nothing had come.
            watch.begin();
            watch.mark(Step::Receive);
            watch.mark(Step::Deliver);
            watch.end(32);
        }
        let steps = watch.steps();
        assert!(steps.iter().all(|step| step.frames == 64));
        assert!(
            steps[Step::Receive as usize].cycles > 0 && steps[Step::Deliver as usize].cycles > 0
        );
        assert_eq!(steps[Step::Judge as usize].cycles, 0);
    }
}
