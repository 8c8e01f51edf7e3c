//! How many chunks for receiving go round: few while few are enough.
//!
//! The kernel takes chunks in the order in which it was given them, so that each comes back when
//! all the others were filled. As many as go round have to fit in a cache, or both the kernel that
//! fills one and we who read it wait for memory: frames of 1518 bytes from the wire came 1.01 to
//! 1.30 times as fast as with all 2,048 (docs/journal/2026-11-23-overlay.md). What a burst needs
//! beyond that is kept aside, and given when a burst has come near the end of what there was.

/// The fewest that go round, for bursts while the worker is elsewhere for a tenth of a millisecond.
const LEAST: u32 = 512;

/// Looks in a row that found something, but less than a quarter filled, after which half as many go
/// round.
const CALM: u32 = 128;

#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    least: u32,
    most: u32,
    /// How many such looks there were in a row.
    calm: u32,
}

impl Window {
    /// Of all of so many chunks.
    pub fn new(chunks: u32) -> Window {
        Window {
            size: chunks,
            least: LEAST.min(chunks),
            most: chunks,
            calm: 0,
        }
    }

    /// Chunks that the kernel should have, filled ones that were not taken yet among them.
    #[inline]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Makes it as wide as another one was.
    pub fn widen_to(&mut self, size: u32) {
        self.change(size);
    }

    /// So many were filled when somebody looked.
    #[inline]
    pub fn saw(&mut self, filled: u32) {
        if filled == 0 {
            return;
        }
        if filled < self.size / 4 {
            self.calm += 1;
            if self.calm >= CALM {
                self.change(self.size / 2);
            }
            return;
        }
        self.calm = 0;
        if filled > self.size / 4 * 3 {
            self.change(self.size * 2);
        }
    }

    #[cold]
    fn change(&mut self, size: u32) {
        self.size = size.clamp(self.least, self.most);
        self.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(window: &mut Window, looks: u32, filled: u32) -> u32 {
        (0..looks).for_each(|_| window.saw(filled));
        window.size()
    }

    #[test]
    fn it_narrows_while_little_is_filled_and_widens_at_once_when_much_is() {
        let mut window = Window::new(2048);
        assert_eq!(after(&mut window, CALM - 1, 64), 2048);
        assert_eq!(
            after(&mut window, CALM, 0),
            2048,
            "nothing came that could be counted"
        );
        assert_eq!(after(&mut window, 1, 64), 1024);
        assert_eq!(after(&mut window, CALM, 64), LEAST);
        assert_eq!(after(&mut window, 10 * CALM, 1), LEAST);
        // Half is neither little nor much, and ends what was calm.
        assert_eq!(after(&mut window, 10 * CALM, LEAST / 2), LEAST);
        assert_eq!(after(&mut window, 1, LEAST), 1024);
        assert_eq!(after(&mut window, 5, 2048), 2048);
        assert_eq!(after(&mut window, CALM - 1, 64), 2048);
        assert_eq!(after(&mut window, 1, 1024), 2048);
        assert_eq!(after(&mut window, CALM - 1, 64), 2048);
    }

    #[test]
    fn what_made_it_narrower_does_not_make_it_wider_again() {
        let mut window = Window::new(2048);
        let filled = 2048 / 4 - 1;
        assert_eq!(after(&mut window, CALM, filled), 1024);
        assert_eq!(after(&mut window, 10 * CALM, filled), 1024);
    }

    #[test]
    fn few_chunks_all_go_round() {
        for chunks in [64, LEAST] {
            let mut window = Window::new(chunks);
            assert_eq!(after(&mut window, 3 * CALM, 1), chunks);
            assert_eq!(after(&mut window, 3, chunks), chunks);
        }
    }
}
