//! How often somebody may have something done that costs others: some at once, and then one after
//! the other.

use std::time::{Duration, Instant};

/// So many at once, and one more after each `every`.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    burst: u32,
    every: Duration,
    left: u32,
    /// When the last one was added to `left`.
    since: Option<Instant>,
}

impl Allowance {
    /// All of the burst can be had at once.
    pub const fn new(burst: u32, every: Duration) -> Self {
        Allowance {
            burst,
            every,
            left: burst,
            since: None,
        }
    }

    /// True when one can be had, and then it is gone.
    pub fn take(&mut self, now: Instant) -> bool {
        let allowed = self.left(now) > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }

    /// All of the burst can be had again: it is as a new one.
    pub fn is_whole(&mut self, now: Instant) -> bool {
        self.left(now) == self.burst
    }

    /// How many can be had.
    pub fn left(&mut self, now: Instant) -> u32 {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since).as_nanos() / self.every.as_nanos();
        let more = u32::try_from(passed).unwrap_or(u32::MAX).min(self.burst);
        if more > 0 {
            self.since = Some(if more == self.burst {
                now
            } else {
                since + self.every * more
            });
            self.left = (self.left + more).min(self.burst);
        }
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_at_a_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut allowance = Allowance::new(3, Duration::from_millis(100));
        let mut taken = |millis| (0..10).filter(|_| allowance.take(at(millis))).count();
        assert_eq!(taken(0), 3);
        assert_eq!(taken(99), 0);
        assert_eq!(taken(100), 1);
        assert_eq!(taken(350), 2);
        assert_eq!(taken(399), 0);
        assert_eq!(taken(400), 1);
        assert_eq!(
            taken(3_600_000),
            3,
            "no more than a burst, however long it waits"
        );
        assert!(!allowance.is_whole(at(3_600_000)) && allowance.is_whole(at(3_600_300)));
        let mut taken = |millis| (0..10).filter(|_| allowance.take(at(millis))).count();
        assert_eq!(taken(3_600_300), 3);
        // A clock that stands still, or goes back, gives nothing.
        assert_eq!(taken(3_600_300) + taken(0), 0);
    }
}
