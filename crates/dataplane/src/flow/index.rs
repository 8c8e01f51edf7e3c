//! From a hash to an entry, for several workers at once: buckets of one cache line, without locks.
//!
//! A bucket has eight slots; an entry may lie in any slot of four buckets (two neighbours at each of two places that the
//! hash names), so that a table filled to its maximum (half of the slots) has room for any flow, as far as chance goes.
//! A slot is taken and emptied by one atomic operation. Whoever finds an id reads an entry that was complete
//! before (release, acquire). Nearly every lookup reads one line; the entry is read only where 32 bits of the hash agree.

use std::sync::atomic::{AtomicU64, Ordering};

use io::huge::Zeroed;

use super::entry::FlowId;

/// Slots of a bucket: one cache line.
const SLOTS: usize = 8;

/// A bucket; a slot is `tag << 32 | id + 1`, 0 is free.
#[derive(bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Bucket([AtomicU64; SLOTS]);

pub(super) struct Index {
    buckets: Zeroed<Bucket>,
    mask: usize,
}

impl Index {
    /// For `max` entries at most.
    pub(super) fn new(max: u32) -> Self {
        let buckets = (max as usize * 2 / SLOTS).next_power_of_two().max(8);
        let buckets = Zeroed::new(buckets);
        Index {
            mask: buckets.len() - 1,
            buckets,
        }
    }

    /// Fetches the cache line in which a lookup will begin.
    #[inline(always)]
    pub(super) fn fetch(&self, hash: u64) {
        io::fetch::soon(&self.buckets[hash as usize & self.mask]);
    }

    /// The entry that a lookup will probably find. Only a guess.
    #[inline(always)]
    pub(super) fn likely(&self, hash: u64) -> Option<FlowId> {
        self.in_bucket(hash as usize & self.mask, tag(hash), |_| true)
    }

    /// The entry with this hash for which `is` holds.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let first = self.in_bucket(hash as usize & self.mask, tag(hash), &is);
        first.or_else(|| self.find_further(hash, is))
    }

    /// In the other three buckets.
    #[inline(never)]
    fn find_further(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let [_, others @ ..] = self.places(hash);
        others
            .into_iter()
            .find_map(|bucket| self.in_bucket(bucket, tag(hash), &is))
    }

    #[inline(always)]
    fn in_bucket(&self, bucket: usize, tag: u32, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let slots = &self.buckets[bucket & self.mask].0;
        // Where insertion has begun to look too: nearly always the first.
        for step in 0..SLOTS {
            let slot = slots[(tag as usize + step) % SLOTS].load(Ordering::Acquire);
            if (slot >> 32) as u32 == tag && slot as u32 != 0 && is(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
        }
        None
    }

    /// Adds an entry, complete in all its parts. False when there is no place for it.
    pub(super) fn insert(&self, hash: u64, id: FlowId) -> bool {
        let wanted = slot(hash, id);
        self.places(hash).into_iter().any(|bucket| {
            let slots = &self.buckets[bucket].0;
            (0..SLOTS).any(|step| {
                let slot = &slots[(tag(hash) as usize + step) % SLOTS];
                slot.load(Ordering::Relaxed) == 0
                    && slot
                        .compare_exchange(0, wanted, Ordering::SeqCst, Ordering::Relaxed)
                        .is_ok()
            })
        })
    }

    /// Takes an entry out; nobody finds it who begins to look now.
    pub(super) fn remove(&self, hash: u64, id: FlowId) {
        let wanted = slot(hash, id);
        for bucket in self.places(hash) {
            for slot in &self.buckets[bucket].0 {
                if slot.load(Ordering::Relaxed) == wanted {
                    slot.store(0, Ordering::SeqCst);
                    return;
                }
            }
        }
    }

    /// The buckets in which an entry with this hash may be.
    #[inline]
    fn places(&self, hash: u64) -> [usize; 4] {
        let first = hash as usize & self.mask;
        let second = (hash >> 24) as usize & self.mask;
        [first, first ^ 1, second, second ^ 1]
    }
}

#[inline(always)]
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn slot(hash: u64, id: FlowId) -> u64 {
    u64::from(tag(hash)) << 32 | u64::from(id + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Against a map, over few hashes so that they collide and fill their buckets.
        #[test]
        fn finds_what_is_in_it(steps in proptest::collection::vec((any::<bool>(), 0u32..40), 1..300)) {
            let index = Index::new(32);
            let mut model = HashMap::new();
            let hash_of = |id: u32| u64::from(id % 7) << 32 | u64::from(id % 3);
            for (add, id) in steps {
                if add && model.len() < 32 && !model.contains_key(&id) {
                    if index.insert(hash_of(id), id) {
                        model.insert(id, ());
                    }
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

    #[test]
    fn a_table_can_be_filled_to_its_maximum() {
        let max = 1 << 16;
        let index = Index::new(max);
        let mut hash = 7u64;
        for id in 0..max {
            hash = hash
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            assert!(index.insert(mixed ^ mixed >> 32, id), "{id}");
        }
    }
}
