//! The processor's cycle counter: how long a step of a batch takes, measured from inside.
//!
//! Reading it costs some 20 cycles and no system call, so a worker can afford it a few times a
//! batch. The unit is the counter's (on x86-64 the TSC, which runs at one constant rate whatever
//! the core's clock is); what reads it compares steps and divides by frames, and never takes it for
//! the time of day.

/// The counter now. Only differences on one core mean something.
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a register; it is part of the baseline and no operating system that we
    // run on forbids it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_counts_on() {
        let before = super::now();
        // Some work that takes time.
        let sum: u64 = std::hint::black_box((0..10_000u64).map(std::hint::black_box).sum());
        assert!(super::now() > before, "after a sum of {sum}");
    }
}
