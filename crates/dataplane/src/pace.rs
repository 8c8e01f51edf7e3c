//! How long copies take on this machine beside small frames, as a worker has measured them: what a
//! byte costs ([`Rates`]).
//!
//! A copy takes about as many cycles on one machine as on another, and a small frame half as many
//! where the caches are larger. With one price for all machines, who sends frames of 64 KiB had two
//! thirds of a worker on such a one.
//!
//! Both are measured where they happen, in one batch of many ([`watch`](crate::watch)) and wherever
//! a large frame is copied. A batch may take long for what has nothing to do with it, and it may be
//! a guest's doing how long: of small frames the shortest count, and none that is not delivered; of
//! copies those in the middle; and the price stays within [`LEAST`] and [`MOST`].

use crate::work::{Cost, Rates};

/// A batch is of small frames where it cost no more than settled flows' of this length, and has at
/// least so many.
const SMALL: usize = 256;
const SMALL_FRAMES: usize = 16;

/// A frame that is at least so long is mostly copied.
pub(crate) const LARGE: usize = 16 << 10;

/// What is measured is believed once there are so many of either.
const ENOUGH: u32 = 16;

/// What a byte costs at least and at most.
const LEAST: u64 = Rates::BYTE;
const MOST: u64 = 4 * Rates::BYTE;

/// What one worker has measured.
#[derive(Default)]
pub(crate) struct Pace {
    /// Cycles of a small frame, which one of 17 does not reach.
    frame: Quantile<4, 8>,
    /// Cycles for 1,024 bytes of a copy, which the half does not reach.
    copy: Quantile<5, 5>,
    rates: Rates,
}

impl Pace {
    #[inline]
    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// A batch of so many frames, which were all delivered by this worker, took so long.
    pub(crate) fn note_batch(&mut self, frames: usize, cost: Cost, cycles: u64) {
        let small = self.rates.cost(frames, frames * SMALL, 0);
        if frames >= SMALL_FRAMES && cost.judged == 0 && cost.carried <= small {
            self.frame.note(cycles / frames as u64);
            self.weigh();
        }
    }

    /// To copy so many bytes of large frames took so long.
    pub(crate) fn note_copy(&mut self, bytes: usize, cycles: u64) {
        self.copy.note(cycles * 1024 / bytes.max(1) as u64);
        self.weigh();
    }

    fn weigh(&mut self) {
        if self.frame.count < ENOUGH || self.copy.count < ENOUGH {
            return;
        }
        let byte = self.copy.now * Rates::BYTE / self.frame.now.max(1);
        self.rates.byte = byte.clamp(LEAST, MOST);
    }
}

/// A value that goes down by a 2^`DOWN`th at the most where a sample is below it, and up by a
/// 2^`UP`th where it is above.
#[derive(Default)]
struct Quantile<const DOWN: u32, const UP: u32> {
    /// In 256ths.
    now: u64,
    count: u32,
}

impl<const DOWN: u32, const UP: u32> Quantile<DOWN, UP> {
    fn note(&mut self, sample: u64) {
        let sample = sample << 8;
        // The first ones find everything cold.
        self.now = match self.count {
            0 => sample,
            1..ENOUGH => self.now.min(sample),
            _ if sample < self.now => sample.max(self.now - (self.now >> DOWN)),
            _ => sample.min(self.now + (self.now >> UP)),
        };
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 64 small frames, and copies of 64 KiB, each of which takes so many cycles.
    fn measured(frame: u64, copy: u64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..1000 {
            note(&mut pace, frame, copy);
        }
        pace
    }

    fn note(pace: &mut Pace, frame: u64, copy: u64) {
        let small = Cost::carried(pace.rates().cost(64, 64 * 60, 0));
        pace.note_batch(64, small, 64 * frame);
        pace.note_copy(64 << 10, 64 * copy);
    }

    #[test]
    fn a_byte_costs_what_it_takes_beside_a_small_frame() {
        for (frame, copy, byte) in [(190, 190, 256), (100, 200, 512), (100, 250, 640)] {
            let found = measured(frame, copy).rates().byte;
            assert!(found.abs_diff(byte) <= byte / 20, "{found} for {byte}");
        }
        assert_eq!(measured(190, 60).rates().byte, LEAST);
        assert_eq!(measured(100, 5_000).rates().byte, MOST);
    }

    #[test]
    fn a_few_say_nothing() {
        let mut pace = Pace::default();
        for _ in 1..ENOUGH {
            note(&mut pace, 100, 300);
        }
        assert_eq!(pace.rates().byte, Rates::BYTE);
        // However many there are of one of them.
        for _ in 0..100 {
            pace.note_copy(64 << 10, 64 * 300);
        }
        assert_eq!(pace.rates().byte, Rates::BYTE);
    }

    /// The thread was taken off its core, the flows were in no cache, or there was more to do.
    #[test]
    fn what_takes_long_for_another_reason_changes_little() {
        let mut pace = measured(100, 200);
        for round in 0..1000 {
            let late = if round % 3 == 0 { 20 } else { 1 };
            note(&mut pace, 100 * late, 200 * late);
            let judged = Cost {
                judged: 1,
                ..Cost::carried(pace.rates().cost(64, 64 * 60, 0))
            };
            pace.note_batch(64, judged, 64 * 10);
            pace.note_batch(
                64,
                Cost::carried(pace.rates().cost(64, 64 * 1500, 0)),
                64 * 10,
            );
            pace.note_batch(1, Cost::carried(pace.rates().cost(1, 60, 0)), 10);
        }
        let byte = pace.rates().byte;
        assert!((460..=560).contains(&byte), "{byte}");
    }
}
