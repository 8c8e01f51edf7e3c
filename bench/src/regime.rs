//! Which machine is this now? The time a cache line takes from one core to the other and back.
//!
//! On a shared host the two virtual cores are sometimes neighbours and sometimes far apart, and rings that
//! two cores share live on exactly this number. Results of the two regimes must not be mixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Round trips timed; about 100 ms in the far regime.
const ROUNDS: u64 = 100_000;

/// Above this round trip the cores are far from each other.
const FAR_NS: f64 = 300.0;

/// What the ping-pong saw.
#[derive(Clone, Copy, Debug)]
pub struct Regime {
    /// Nanoseconds a cache line takes there and back.
    pub round_trip_ns: f64,
}

impl Regime {
    /// `near` or `far`.
    pub fn name(self) -> &'static str {
        if self.round_trip_ns > FAR_NS {
            "far"
        } else {
            "near"
        }
    }
}

/// Bounces one cache line between core `here` (the caller's thread moves there) and core `there`.
pub fn measure(here: usize, there: usize) -> Regime {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let line = Arc::new(Line(AtomicU64::new(0)));
    let other = Arc::clone(&line);
    pin(here);
    let echo = std::thread::spawn(move || {
        pin(there);
        for round in 0..ROUNDS {
            while other.0.load(Ordering::Acquire) != 2 * round + 1 {
                std::hint::spin_loop();
            }
            other.0.store(2 * round + 2, Ordering::Release);
        }
    });
    // The first exchange also waits for the other thread to be there.
    let mut start = Instant::now();
    for round in 0..ROUNDS {
        if round == ROUNDS / 10 {
            start = Instant::now();
        }
        line.0.store(2 * round + 1, Ordering::Release);
        while line.0.load(Ordering::Acquire) != 2 * round + 2 {
            std::hint::spin_loop();
        }
    }
    let timed = (ROUNDS - ROUNDS / 10) as f64;
    let round_trip_ns = start.elapsed().as_nanos() as f64 / timed;
    echo.join().expect("the echo thread has no way to fail");
    Regime { round_trip_ns }
}

/// Moves the calling thread to one core; a core that is not there leaves it where it is, with a word on stderr.
pub fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("core {core}: {error}");
    }
}
