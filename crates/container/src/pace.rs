//! How soon what has gone is made again: at once, and later and later where it goes, or cannot be
//! made, again and again. Whoever has a container's interface in its hands may remove it in a loop,
//! or have it unmade each time, and a VMM may open and close its device so; each time all flows
//! that the kernel forwards come up again.

use std::time::{Duration, Instant};

/// What goes again within this time has a longer pause than before; longer than [`LAST`], so that
/// who goes on removing finds the longest.
const SOON: Duration = Duration::from_secs(10);
/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);
/// The first pause of what could not be made.
const FAILED: Duration = Duration::from_secs(1);

/// Of one NIC.
#[derive(Default, Debug)]
pub(crate) struct Pace {
    gone: Option<Instant>,
    pause: Duration,
}

impl Pace {
    /// It has gone.
    pub(crate) fn gone(&mut self, now: Instant) {
        self.pause = match self.is_soon(now) {
            true => (2 * self.pause).clamp(FIRST, LAST),
            false => Duration::ZERO,
        };
        self.gone = Some(now);
    }

    /// It could not be made, and what there was of it is gone.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.pause = match self.is_soon(now) {
            true => (2 * self.pause).clamp(FAILED, LAST),
            false => FAILED,
        };
        self.gone = Some(now);
    }

    fn is_soon(&self, now: Instant) -> bool {
        self.gone.is_some_and(|before| now - before < SOON)
    }

    /// Somebody has asked for it: there is no pause until it goes again.
    pub(crate) fn hurry(&mut self) {
        *self = Pace::default();
    }

    /// When it may be made again, if that is still to come.
    pub(crate) fn rests_until(&self, now: Instant) -> Option<Instant> {
        let until = self.gone? + self.pause;
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_again_and_again_is_made_later_and_later() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.rests_until(now), None);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pace.gone(now);
            let until = pace.rests_until(now).unwrap_or(now);
            pauses.push((until - now).as_millis());
            now = until;
            assert_eq!(pace.rests_until(now), None);
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        // What has stayed for a while is made at once.
        now += SOON;
        pace.gone(now);
        assert_eq!(pace.rests_until(now), None);
    }

    #[test]
    fn what_cannot_be_made_is_tried_later_and_later() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        pace.gone(now);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            pace.failed(now);
            let until = pace.rests_until(now).unwrap_or(now);
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        // One that was made and goes at once does not begin anew.
        pace.gone(now);
        assert_eq!(pace.rests_until(now), Some(now + LAST));
    }

    #[test]
    fn who_asks_does_not_wait() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.gone(now);
        pace.gone(now);
        assert!(pace.rests_until(now).is_some());
        pace.hurry();
        assert_eq!(pace.rests_until(now), None);
    }
}
