//! From a hash to an entry: open addressing with linear probing, half full at most.
//!
//! Eight slots to a cache line, so that nearly every lookup reads one; the entry is read only where all 32
//! bits of the hash agree. What is removed leaves no tombstone (those behind it move up), so the table does
//! not wear out.

use super::entry::FlowId;

/// The longest way from where an entry belongs to where it is. Half full and with a keyed hash nobody gets
/// near; a table that did would refuse new flows rather than become slow.
const PROBES: usize = 128;

/// `hash << 32 | id + 1`; 0 is free.
pub(super) struct Index {
    slots: Box<[u64]>,
    mask: usize,
}

impl Index {
    /// For `max` entries at most. The memory is zeroed lazily by the kernel.
    pub(super) fn new(max: u32) -> Self {
        let slots = (max as usize * 2).next_power_of_two().max(64);
        Index {
            slots: bytemuck::allocation::zeroed_slice_box(slots),
            mask: slots - 1,
        }
    }

    /// Fetches the cache line in which a lookup will begin.
    #[inline]
    pub(super) fn fetch(&self, hash: u32) {
        io::fetch::soon(&self.slots[hash as usize & self.mask]);
    }

    /// The entry that a lookup will try first, when it is where it belongs. Only a guess.
    #[inline]
    pub(super) fn likely(&self, hash: u32) -> Option<FlowId> {
        let slot = self.slots[hash as usize & self.mask];
        (slot != 0 && (slot >> 32) as u32 == hash).then(|| slot as u32 - 1)
    }

    /// The entry with this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is: impl FnMut(FlowId) -> bool) -> Option<FlowId> {
        let mut at = hash as usize & self.mask;
        for _ in 0..PROBES {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == hash && is(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// Adds an entry that is not in the table. False when there is no place near enough.
    pub(super) fn insert(&mut self, hash: u32, id: FlowId) -> bool {
        let mut at = hash as usize & self.mask;
        for _ in 0..PROBES {
            if self.slots[at] == 0 {
                self.slots[at] = u64::from(hash) << 32 | u64::from(id + 1);
                return true;
            }
            at = (at + 1) & self.mask;
        }
        false
    }

    /// Takes an entry out and moves up those that were pushed away from their place by it.
    pub(super) fn remove(&mut self, hash: u32, id: FlowId) {
        let wanted = u64::from(hash) << 32 | u64::from(id + 1);
        let mut hole = hash as usize & self.mask;
        let mut probes = 0;
        while self.slots[hole] != wanted {
            hole = (hole + 1) & self.mask;
            probes += 1;
            if probes == PROBES {
                return;
            }
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            // It may move into the hole when the hole is not before the place where it belongs.
            let home = (slot >> 32) as usize & self.mask;
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Against a map, over few hashes so that they collide and wrap around the end.
        #[test]
        fn finds_what_is_in_it(steps in proptest::collection::vec((any::<bool>(), 0u32..40), 1..300)) {
            let mut index = Index::new(32);
            let mut model = HashMap::new();
            let hash_of = |id: u32| 60 + id % 7;
            for (add, id) in steps {
                if add && model.len() < 32 && !model.contains_key(&id) {
                    prop_assert!(index.insert(hash_of(id), id));
                    model.insert(id, ());
                } else if !add && model.remove(&id).is_some() {
                    index.remove(hash_of(id), id);
                }
                for id in 0..40 {
                    let found = index.find(hash_of(id), |other| other == id);
                    prop_assert_eq!(found, model.contains_key(&id).then_some(id));
                }
            }
        }
    }
}
