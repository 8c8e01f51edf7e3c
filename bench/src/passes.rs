//! Passes: every switch is up, one runs, and each has a short window in turn.
//!
//! Other tenants of a shared machine make everything slower or faster for seconds to minutes.
//! Switches that are measured a minute apart compare two states of the machine; here their windows
//! are a fraction of a second apart, forth in one pass and back in the next, and a state that lasts
//! longer than a pass is in all of them. Those that do not have their turn are halted.

use std::time::{Duration, Instant};

use crate::interrupt;
use crate::peers::PeerError;
use crate::regime;
use crate::results::{Column, Results, Row, Seen};

/// The core of the switches, and that of the guests' driver and of the caller's thread.
#[derive(Clone, Copy)]
pub struct Cores {
    pub switch: usize,
    pub driver: usize,
}

impl Cores {
    /// The driver on the first core that the switch has not.
    pub fn new(switch: usize) -> Cores {
        Cores {
            switch,
            driver: usize::from(switch == 0),
        }
    }

    /// How far they are from each other now. Moves this thread to the driver's core.
    pub fn regime(self) -> regime::Regime {
        regime::measure(self.driver, self.switch)
    }
}

/// Gives each entrant a window in turn, `count` times over. `window` says what was seen; what
/// failed is its business.
pub fn run<E, R: Row, P: Column>(
    cores: Cores,
    count: usize,
    entrants: &mut [E],
    results: &mut Results<R, P>,
    mut window: impl FnMut(&mut E) -> Vec<Seen<R, P>>,
) -> Result<(), PeerError> {
    let mut before = cores.regime();
    for pass in 0..count {
        let mut seen = Vec::new();
        let last = entrants.len().saturating_sub(1);
        for place in 0..entrants.len() {
            let place = if pass % 2 == 0 { place } else { last - place };
            seen.extend(window(&mut entrants[place]));
            interrupt::check()?;
        }
        let after = cores.regime();
        results.add(before, after, &seen);
        before = after;
    }
    Ok(())
}

/// Runs `round` so often, but begins none that would not end within `budget`.
pub fn rounds(
    count: usize,
    budget: Duration,
    mut round: impl FnMut() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for number in 1..=count {
        if start.elapsed() + longest > budget {
            println!("the time is over after {} rounds", number - 1);
            break;
        }
        let begun = Instant::now();
        round()?;
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("round {number} of {count}: {seconds:.0} s");
        longest = longest.max(begun.elapsed());
    }
    Ok(())
}

/// What fails of a peer is said and left out; nothing is said of what an interruption has ended.
pub fn said<T>(who: &str, done: Result<T, PeerError>) -> Option<T> {
    if let Err(error) = &done
        && !interrupt::asked()
    {
        eprintln!("{who}: {error}");
    }
    done.ok()
}
