//! Which machine is this now? The time a cache line takes from one core to the other and back.
//!
//! On a shared host the two virtual cores are sometimes neighbours and sometimes far apart, and
//! rings that two cores share live on exactly this number. Results of the two regimes must not be
//! mixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::peers::PeerError;
use crate::report::Samples;

/// Round trips timed, in groups, of which the median counts: one in which a thread had to wait for
/// its core does not. About 10 ms in the far regime: it is measured between passes.
const GROUPS: u64 = 20;
const GROUP: u64 = 1000;

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
        for round in 0..GROUPS * GROUP {
            while other.0.load(Ordering::Acquire) != 2 * round + 1 {
                std::hint::spin_loop();
            }
            other.0.store(2 * round + 2, Ordering::Release);
        }
    });
    let mut groups = Samples::default();
    for group in 0..GROUPS {
        let start = Instant::now();
        for round in group * GROUP..(group + 1) * GROUP {
            line.0.store(2 * round + 1, Ordering::Release);
            while line.0.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        }
        groups.push(start.elapsed().as_nanos() as f64 / GROUP as f64);
    }
    echo.join().expect("the echo thread has no way to fail");
    Regime {
        round_trip_ns: groups.median(),
    }
}

/// As [`measure`], on a thread of its own: the caller's finds its cores itself.
pub fn measure_apart(here: usize, there: usize) -> Result<Regime, PeerError> {
    let measured = std::thread::spawn(move || measure(here, there)).join();
    measured.map_err(|_| PeerError("the echo of a cache line panicked".to_owned()))
}

/// Moves the calling thread to one core; a core that is not there leaves it where it is, with a
/// word on stderr.
pub fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("core {core}: {error}");
    }
}
