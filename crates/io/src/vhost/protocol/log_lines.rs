//! How often a VMM has a line written to the log.

use std::time::{Duration, Instant};

use sys::allowance::Allowance;

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
