//! What of the kernel's changes could not be brought into force, and when that is tried again: with
//! growing pauses, until all of it is done. No clock: seconds are handed in.

/// Between two tries at the most, in seconds.
const LONGEST_PAUSE: u32 = 64;

/// Nothing, or why and since when.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    why: Option<String>,
    pause_secs: u32,
    left_secs: u32,
    /// All is tried again in this turn.
    again: bool,
}

impl Behind {
    /// Why the router is behind the kernel, as a sentence.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// A second has passed: whether all is to be tried again in this turn.
    pub fn is_due(&mut self) -> bool {
        self.left_secs = self.left_secs.saturating_sub(1);
        self.again = self.why.is_some() && self.left_secs == 0;
        self.again
    }

    /// A turn ends, in which this has failed. What has failed before is over when all was tried
    /// again and nothing failed.
    pub fn end_turn(&mut self, failed: Option<String>) {
        let again = std::mem::take(&mut self.again);
        match failed {
            None if again => *self = Behind::default(),
            None => {}
            Some(why) => {
                if again || self.why.is_none() {
                    self.pause_secs = (2 * self.pause_secs).clamp(1, LONGEST_PAUSE);
                    self.left_secs = self.pause_secs;
                }
                self.why = Some(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until all is tried again.
    fn secs(behind: &mut Behind) -> u32 {
        1 + (0..1000).take_while(|_| !behind.is_due()).count() as u32
    }

    #[test]
    fn what_failed_is_tried_again_with_growing_pauses_until_it_works() {
        let mut behind = Behind::default();
        behind.end_turn(None);
        assert!(!behind.is_due() && behind.why().is_none());
        let failed = |why: &str| Some(why.to_owned());
        behind.end_turn(failed("no room"));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(secs(&mut behind));
            behind.end_turn(failed("no room"));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        // Another turn that works says nothing of what has failed, one that fails puts nothing off.
        behind.is_due();
        behind.end_turn(None);
        behind.is_due();
        behind.end_turn(failed("no memory"));
        assert_eq!(behind.why(), Some("no memory"));
        assert_eq!(secs(&mut behind), 62);
        behind.end_turn(None);
        assert_eq!(behind.why(), None);
        behind.end_turn(failed("no room"));
        assert_eq!(secs(&mut behind), 1, "from the beginning");
    }
}
