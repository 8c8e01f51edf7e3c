//! What a worker has been doing: plain numbers for a dump.
//!
//! All of it is counted by the worker for itself, most of it once a turn or a batch. Numbers only
//! grow, but for those that say "now"; whoever wants a rate asks twice and divides by the
//! difference of `at_ns`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Batch sizes are counted in this many classes: 1, 2, 3..=4, 5..=8, 9..=16, 17..=32, 33..=64.
pub const BATCH_CLASSES: usize = 7;

/// The steps of a batch that are timed, in their order.
pub const STEPS: [&str; 6] = [
    "receive",
    "fast_path",
    "judge",
    "deliver",
    "flush",
    "complete",
];

/// What a step has cost in the batches that were timed, one of many: cycles a frame are `cycles /
/// frames`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepLoad {
    /// Cycles of the time-stamp counter, which runs at a constant rate and not at the core's clock.
    pub cycles: u64,
    /// Frames of the timed batches, whether they had anything to do in the step or not.
    pub frames: u64,
}

/// Counts since the worker began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerLoad {
    /// When this was asked for: the worker's monotonic nanoseconds.
    pub at_ns: u64,
    /// Nanoseconds in turns that found a frame.
    pub busy_ns: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found a frame.
    pub busy_turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Nanoseconds slept.
    pub asleep_ns: u64,
    /// Frames received from all ports.
    pub frames: u64,
    /// Batches by size: class `n` holds those of up to `1 << n` frames (and more than class `n -
    /// 1`).
    pub batches: [u64; BATCH_CLASSES],
    /// What each of [`STEPS`] costs.
    pub steps: [StepLoad; STEPS.len()],
    /// Frames given to other workers, whose ports they were for.
    pub handed_over: u64,
    /// Frames of other workers delivered to ports here.
    pub taken_over: u64,
    /// Queues it has now.
    pub queues: u64,
    /// Flows tracked now.
    pub flows: u64,
    /// Flows given up before their time because a share or the table was full.
    pub flows_evicted: u64,
    /// Datagrams in reassembly now.
    pub datagrams: u64,
    /// Fragments held back now until their first one arrives.
    pub held_fragments: u64,
    /// Frames that wait now for the next hop to another host.
    pub waiting_frames: u64,
    /// Frames that have waited for one.
    pub waited_frames: u64,
    /// MAC addresses learnt now.
    pub learned_macs: u64,
    /// The snapshot in force.
    pub epoch: u64,
}

/// What one queue costs, counted by the worker that has it and read by anybody.
#[derive(Debug, Default)]
pub(crate) struct QueueLoad {
    cycles: AtomicU64,
}

impl QueueLoad {
    /// By one worker at a time: no locked instruction.
    #[inline]
    pub(crate) fn add(&self, cycles: u64) {
        let before = self.cycles.load(Ordering::Relaxed);
        self.cycles
            .store(before.wrapping_add(cycles), Ordering::Relaxed);
    }

    pub(crate) fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::Relaxed)
    }
}

impl WorkerLoad {
    pub(crate) fn count_batch(&mut self, frames: usize) {
        let class = usize::BITS - (frames.max(1) - 1).leading_zeros();
        self.batches[(class as usize).min(BATCH_CLASSES - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_counted_in_the_class_of_its_size() {
        let mut load = WorkerLoad::default();
        for size in [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64] {
            load.count_batch(size);
        }
        assert_eq!(load.batches, [1, 1, 2, 2, 2, 2, 2]);
    }
}
