//! From a hash to an entry, for several workers at once: buckets of one cache line, without locks.
//!
//! A bucket has eight slots; an entry belongs into the bucket that its hash names, and where that is full into one of
//! five others (its neighbour, and two more pairs), so that a table filled to its maximum (half of the slots) has
//! room for any flow, as far as chance goes. What belongs into a bucket and lies elsewhere is counted; where that is
//! nothing nobody looks further, so that nearly every lookup reads one line, those that find nothing too.
//!
//! A slot is taken and emptied by one atomic operation. Whoever finds an id reads an entry that was complete
//! before (release, acquire). The entry is read only where 32 bits of the hash agree.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use io::huge::Zeroed;

use super::entry::FlowId;

/// Slots of a bucket: one cache line.
const SLOTS: usize = 8;

/// As much in other buckets as can be counted.
const MANY: u8 = u8::MAX;

/// A bucket; a slot is `tag << 32 | id + 1`, 0 is free.
#[derive(bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Bucket([AtomicU64; SLOTS]);

pub(super) struct Index {
    buckets: Zeroed<Bucket>,
    /// Of each bucket: how much of what belongs there is elsewhere. [`MANY`] stays.
    spilt: Zeroed<AtomicU8>,
    mask: usize,
}

impl Index {
    /// For `max` entries at most.
    pub(super) fn new(max: u32) -> Self {
        let buckets = (max as usize * 2 / SLOTS).next_power_of_two().max(8);
        let buckets = Zeroed::new(buckets);
        Index {
            mask: buckets.len() - 1,
            spilt: Zeroed::new(buckets.len()),
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

    /// In the other buckets.
    #[inline(always)]
    fn find_further(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        if self.spilt[hash as usize & self.mask].load(Ordering::Acquire) == 0 {
            return None;
        }
        self.find_spilt(hash, is)
    }

    #[cold]
    fn find_spilt(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
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
        let [first, others @ ..] = self.places(hash);
        if self.insert_into(first, hash, id) {
            return true;
        }
        // Said before it is so: who looks for it then finds it.
        self.count_spilt(first, |count| count + 1);
        let found = others
            .into_iter()
            .find(|bucket| self.insert_into(*bucket, hash, id));
        if found.is_none_or(|bucket| bucket == first) {
            self.count_spilt(first, |count| count - 1);
        }
        found.is_some()
    }

    fn count_spilt(&self, bucket: usize, change: impl Fn(u8) -> u8) {
        let change = |count| (count != MANY).then(|| change(count));
        let _ = self.spilt[bucket].fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
    }

    fn insert_into(&self, bucket: usize, hash: u64, id: FlowId) -> bool {
        let slots = &self.buckets[bucket].0;
        (0..SLOTS).any(|step| {
            let at = &slots[(tag(hash) as usize + step) % SLOTS];
            let is_free = at.load(Ordering::Relaxed) == 0;
            let take = || at.compare_exchange(0, slot(hash, id), Ordering::SeqCst, Ordering::Relaxed);
            is_free && take().is_ok()
        })
    }

    /// Takes an entry out; nobody finds it who begins to look now.
    pub(super) fn remove(&self, hash: u64, id: FlowId) {
        let wanted = slot(hash, id);
        for bucket in self.places(hash) {
            for slot in &self.buckets[bucket].0 {
                if slot.load(Ordering::Relaxed) == wanted {
                    slot.store(0, Ordering::SeqCst);
                    if bucket != hash as usize & self.mask {
                        self.count_spilt(hash as usize & self.mask, |count| count - 1);
                    }
                    return;
                }
            }
        }
    }

    /// The buckets in which an entry with this hash may be.
    fn places(&self, hash: u64) -> [usize; 6] {
        let first = hash as usize & self.mask;
        let second = (hash >> 20) as usize & self.mask;
        let third = (hash >> 40) as usize & self.mask;
        [first, first ^ 1, second, second ^ 1, third, third ^ 1]
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
            let hash_of = |id: u32| u64::from(id % 7) << 32 | u64::from(id % 2);
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
