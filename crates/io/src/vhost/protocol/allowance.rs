//! How often a VMM may have something done that costs others: some at once, and then one after the
//! other.

use std::time::{Duration, Instant};

/// So many at once, and one more after each `every`.
#[derive(Clone, Copy, Debug)]
pub(in crate::vhost) struct Allowance {
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
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

/// Lines of the log about one NIC that its VMM can bring about as often as it likes, each other
/// than the last.
#[derive(Clone, Copy, Debug)]
pub(in crate::vhost) struct Lines {
    allowance: Allowance,
    /// Since the last one that was written.
    left_out: u64,
}

impl Default for Lines {
    fn default() -> Self {
        Lines {
            allowance: Allowance::new(16, Duration::from_secs(10)),
            left_out: 0,
        }
    }
}

/// A line may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vhost) struct Line {
    /// How many were left out before it, if any were.
    pub left_out: Option<u64>,
}

impl Lines {
    /// Whether the next line is written.
    pub fn take(&mut self, now: Instant) -> Option<Line> {
        if !self.allowance.take(now) {
            self.left_out += 1;
            return None;
        }
        let left_out = std::mem::take(&mut self.left_out);
        Some(Line {
            left_out: (left_out > 0).then_some(left_out),
        })
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
        // A clock that stands still, or goes back, gives nothing.
        assert_eq!(taken(3_600_000) + taken(0), 0);
    }

    #[test]
    fn lines_that_are_left_out_are_counted() {
        let start = Instant::now();
        let mut lines = Lines::default();
        let none = Some(Line { left_out: None });
        assert!((0..16).all(|_| lines.take(start) == none));
        assert!((0..100).all(|_| lines.take(start).is_none()));
        let later = start + Duration::from_secs(10);
        let left_out = Some(100);
        assert_eq!(lines.take(later), Some(Line { left_out }));
        assert_eq!(lines.take(later + Duration::from_secs(20)), none);
    }
}
