//! Hands out the small numbers that the data plane indexes by. One that is given back is handed out
//! again only by a later operation: until the snapshot of the operation that freed it is in force,
//! workers still count and look up under its old meaning.

/// A bounded set of numbers from 0. Copied in no time, as the rest of the state.
#[derive(Clone)]
pub(crate) struct Slots {
    limit: u32,
    /// Numbers from here on were never used.
    fresh: u32,
    /// Numbers given back with the epoch that stopped using them, oldest first.
    freed: imbl::Vector<(u32, u64)>,
}

/// A number that was handed out.
pub(crate) struct Taken {
    pub slot: u32,
    /// Somebody had it before: its counters do not begin at zero.
    pub reused: bool,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Slots {
        Slots {
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            fresh: 0,
            freed: imbl::Vector::new(),
        }
    }

    /// A number for the snapshot `epoch`; `None` when all are in use or were until now.
    pub(crate) fn take(&mut self, epoch: u64) -> Option<Taken> {
        if self.freed.front().is_some_and(|(_, freed)| *freed < epoch) {
            return self
                .freed
                .pop_front()
                .map(|(slot, _)| Taken { slot, reused: true });
        }
        if self.fresh == self.limit {
            return None;
        }
        self.fresh += 1;
        Some(Taken {
            slot: self.fresh - 1,
            reused: false,
        })
    }

    /// Gives a number back that the snapshot `epoch` does not use any more.
    pub(crate) fn give(&mut self, slot: u32, epoch: u64) {
        self.freed.push_back((slot, epoch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_for_the_snapshot_that_frees_it() {
        let mut slots = Slots::new(2);
        let take = |slots: &mut Slots, epoch| slots.take(epoch).map(|t| (t.slot, t.reused));
        assert_eq!(take(&mut slots, 1), Some((0, false)));
        assert_eq!(take(&mut slots, 1), Some((1, false)));
        assert_eq!(take(&mut slots, 2), None);
        slots.give(0, 2);
        assert_eq!(take(&mut slots, 2), None, "workers still use it");
        assert_eq!(take(&mut slots, 3), Some((0, true)));
        assert_eq!(take(&mut slots, 3), None);
    }
}
