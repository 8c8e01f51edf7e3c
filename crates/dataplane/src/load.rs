//! What a worker has been doing: plain numbers for a dump.

/// Batch sizes are counted in this many classes: 1, 2, 3..=4, 5..=8, 9..=16, 17..=32.
pub const BATCH_CLASSES: usize = 6;

/// Counts since the worker began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerLoad {
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
    /// Batches by size: class `n` holds those of up to `1 << n` frames (and more than class `n - 1`).
    pub batches: [u64; BATCH_CLASSES],
    /// Flows tracked now.
    pub flows: u64,
    /// Flows given up before their time because a share or the table was full.
    pub flows_evicted: u64,
    /// Datagrams in reassembly now.
    pub datagrams: u64,
    /// Fragments held back now until their first one arrives.
    pub held_fragments: u64,
    /// MAC addresses learnt now.
    pub learned_macs: u64,
    /// The snapshot in force.
    pub epoch: u64,
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
        for size in [1, 2, 3, 4, 5, 8, 9, 16, 17, 32] {
            load.count_batch(size);
        }
        assert_eq!(load.batches, [1, 1, 2, 2, 2, 2]);
    }
}
