//! How often ICMP errors may have their flow looked for in a whole network.

use crate::ids::PortSlot;

/// How many errors may look for their flow in a whole network between two housekeepings.
const WIDE_SEARCHES: u32 = 64;

/// Those that still may, and how many of whom did: NICs, and networks' other hosts together. Nobody
/// has more than a quarter of what is left, so that who reports what is not keeps no router from
/// being heard.
#[derive(Clone)]
pub(crate) struct WideSearches {
    left: u32,
    had: Vec<(PortSlot, u32)>,
}

impl Default for WideSearches {
    fn default() -> Self {
        WideSearches {
            left: WIDE_SEARCHES,
            had: Vec::new(),
        }
    }
}

impl WideSearches {
    /// Begins anew.
    pub(crate) fn renew(&mut self) {
        self.left = WIDE_SEARCHES;
        self.had.clear();
    }

    /// True when an error that came from there may look in the whole network.
    pub(crate) fn take(&mut self, from: PortSlot) -> bool {
        let place = self.had.iter().position(|(slot, _)| *slot == from);
        let had = place.map_or(0, |place| self.had[place].1);
        if self.left == 0 || had >= (self.left / 4).max(1) {
            return false;
        }
        self.left -= 1;
        match place {
            Some(place) => self.had[place].1 += 1,
            None => self.had.push((from, 1)),
        }
        true
    }
}
