//! From a hash to an entry, for several workers at once: buckets of one cache line, without locks.
//!
//! A bucket has sixteen slots of 32 bits; an entry belongs into the bucket that its hash names, and
//! where that is full into one of seven others (its neighbour, and three more pairs), so that a
//! table filled to its maximum ([`FILL`] of a bucket) has room for any flow, as far as chance goes:
//! one new flow in sixty million is refused (with five others it was one in four million). What
//! belongs into a bucket and lies elsewhere is counted; where that is nothing no lookup goes
//! further, so that nearly every lookup reads one line, those that find nothing too. What lies in
//! the neighbour is counted apart from what lies further away, which is nearly always nothing:
//! without that each new flow of a bucket that was too small looked through eight (441 to 451
//! cycles a new flow where it was 456 to 467: docs/journal/2026-11-27-a-million-connections.md).
//!
//! A slot holds the entry's number and, in the bits that the largest number leaves, a part of the
//! hash: 11 bits in a table of a million flows, 5 in the largest that the daemon makes. An entry is
//! read only where those agree, and says itself whether it is the one. What matters more is that
//! the index is small: over a million flows every packet reads a line of it at random (131 cycles a
//! frame where it was 141, when the index of 4,194,304 took 64 MiB and not 26; with what else came
//! that day: docs/journal/2026-11-23-cycles.md).
//!
//! A slot is taken and emptied by one atomic operation. Whoever finds an id reads an entry that was
//! complete before (release, acquire).

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use sys::huge::Zeroed;
use sys::shared_memory::SharedMemory;

use super::entry::FlowId;

/// Slots of a bucket: one cache line.
const SLOTS: usize = 16;

/// How many of them a full table fills, on average. One bucket in twenty is then full.
const FILL: usize = 10;

/// The most that is counted, and stands for more.
const MANY: u8 = 0xf;

/// The most entries that slots can name.
pub(super) const MAX: u32 = (1 << 31) - 1;

/// A bucket; a slot is a part of the hash above `id + 1`, 0 is free.
#[derive(bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Bucket([AtomicU32; SLOTS]);

/// Bytes of a bucket.
pub(crate) const BUCKET: usize = size_of::<Bucket>();

/// How large an index is: where in it an entry is looked for, also in one that another process has
/// made.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    buckets: usize,
    /// The bits of a slot that name the entry; the others are a part of the hash.
    ids: u32,
}

/// Where an entry is that is not in the bucket in which it belongs: which bits count it.
#[derive(Clone, Copy)]
enum Elsewhere {
    /// In the neighbour.
    Near = 0,
    /// In one of the three other pairs.
    Far = 4,
}

impl Elsewhere {
    /// How many are there.
    fn count_in(self, spilt: u8) -> u8 {
        spilt >> self as u8 & MANY
    }

    /// `spilt` with another count of these.
    fn changed(self, spilt: u8, count: u8) -> u8 {
        spilt & !(MANY << self as u8) | count << self as u8
    }
}

pub(super) struct Index {
    buckets: Zeroed<Bucket>,
    /// For each bucket how many of the entries that belong there are elsewhere, by [`Elsewhere`].
    /// [`MANY`] stays.
    spilt: Zeroed<AtomicU8>,
    /// The bits of a slot that name the entry; the others are a part of the hash.
    ids: u32,
    /// One worker alone adds and takes out: it needs no locked instructions.
    alone: bool,
}

impl Shape {
    /// For `max` entries at most, of which [`MAX`] are possible.
    pub(crate) fn of(max: u32) -> Shape {
        debug_assert!(max <= MAX);
        Shape {
            // Each has a neighbour.
            buckets: (max as usize).div_ceil(FILL).next_multiple_of(2).max(8),
            ids: u32::MAX >> max.leading_zeros(),
        }
    }

    /// How many buckets it has; as many bytes count what is elsewhere.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets
    }

    /// The bucket in which an entry with this hash belongs.
    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        self.nth(hash as u32)
    }

    /// The bucket of a number that may be any of 32 bits: the first ones of the lowest, and so on.
    #[inline(always)]
    fn nth(&self, number: u32) -> usize {
        ((u64::from(number) * self.buckets as u64) >> 32) as usize
    }

    /// The buckets in which an entry with this hash may be; nearly all are in the first.
    #[inline]
    pub(crate) fn places(&self, hash: u64) -> [usize; 8] {
        let [a, b, c, d] = [0, 16, 32, 48].map(|by| self.nth(hash.rotate_right(by) as u32));
        [a, a ^ 1, b, b ^ 1, c, c ^ 1, d, d ^ 1]
    }

    /// The part of a hash that a slot holds, where it holds it.
    #[inline(always)]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.ids
    }

    #[inline]
    fn slot(&self, hash: u64, id: FlowId) -> u32 {
        self.tag(hash) | (id + 1)
    }

    /// The entries that may have this hash of a bucket that is there as bytes.
    pub(crate) fn ids_in(&self, bucket: &[u8; BUCKET], hash: u64) -> impl Iterator<Item = FlowId> {
        let tag = self.tag(hash);
        let slots = bucket.as_chunks::<{ size_of::<u32>() }>().0;
        // As a lookup of our own does: see [`Index`].
        let ids = slots
            .iter()
            .map(move |slot| (u32::from_ne_bytes(*slot) ^ tag).wrapping_sub(1));
        ids.filter(|id| *id < self.ids)
    }
}

impl Index {
    /// For `max` entries at most, of which [`MAX`] are possible. `alone`: of one worker.
    pub(super) fn new(max: u32, alone: bool) -> Self {
        let shape = Shape::of(max);
        let (buckets, spilt) = (Zeroed::new(shape.buckets), Zeroed::new(shape.buckets));
        Index {
            buckets,
            spilt,
            ids: shape.ids,
            alone,
        }
    }

    /// [`new`](Self::new) in memory that outlives the process, where the buckets and what is
    /// counted of them begin there.
    pub(super) fn shared(
        max: u32,
        alone: bool,
        memory: &SharedMemory,
        [buckets, spilt]: [u64; 2],
    ) -> std::io::Result<Self> {
        let shape = Shape::of(max);
        Ok(Index {
            buckets: Zeroed::shared(memory, buckets, shape.buckets)?,
            spilt: Zeroed::shared(memory, spilt, shape.buckets)?,
            ids: shape.ids,
            alone,
        })
    }

    /// Leaves it as it is now in the memory in which it begins there.
    pub(super) fn leave(
        &self,
        memory: &SharedMemory,
        [buckets, spilt]: [u64; 2],
    ) -> std::io::Result<()> {
        self.buckets.leave(memory, buckets)?;
        self.spilt.leave(memory, spilt)
    }

    /// Gives it huge pages, where the system did not by itself; takes all of its memory. See
    /// [`Zeroed::collapse`].
    pub(super) fn collapse(&self, mut go_on: impl FnMut(Duration) -> bool) -> bool {
        let (buckets, spilt) = (0..self.buckets.len(), 0..self.spilt.len());
        self.buckets.collapse(buckets, &mut go_on) && self.spilt.collapse(spilt, go_on)
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        Shape {
            buckets: self.buckets.len(),
            ids: self.ids,
        }
    }

    /// Fetches the cache line in which a lookup will begin.
    #[inline(always)]
    pub(super) fn fetch(&self, hash: u64) {
        io::fetch::soon(&self.buckets[self.shape().first(hash)]);
    }

    /// The entry that a lookup will probably find. Only a guess.
    #[inline(always)]
    pub(super) fn likely(&self, hash: u64) -> Option<FlowId> {
        self.in_bucket(self.shape().first(hash), hash, |_| true)
    }

    /// The entry with this hash for which `is` holds.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let first = self.in_bucket(self.shape().first(hash), hash, &is);
        first.or_else(|| self.find_further(hash, is))
    }

    /// In the other buckets.
    #[inline(always)]
    fn find_further(&self, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        match self.spilt[self.shape().first(hash)].load(Ordering::Acquire) {
            0 => None,
            spilt => self.find_spilt(spilt, hash, is),
        }
    }

    #[cold]
    fn find_spilt(&self, spilt: u8, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let [_, near, far @ ..] = self.shape().places(hash);
        let is_in = |place: Elsewhere| place.count_in(spilt) != 0;
        let near = is_in(Elsewhere::Near).then_some(near);
        let far = far.into_iter().filter(|_| is_in(Elsewhere::Far));
        near.into_iter()
            .chain(far)
            .find_map(|bucket| self.in_bucket(bucket, hash, &is))
    }

    #[inline(always)]
    fn in_bucket(&self, bucket: usize, hash: u64, is: impl Fn(FlowId) -> bool) -> Option<FlowId> {
        let slots = &self.buckets[bucket].0;
        let (tag, ids) = (self.shape().tag(hash), self.ids);
        // Where insertion has begun to look too: nearly always the first.
        for step in 0..SLOTS {
            let slot = slots[(begin(hash) + step) % SLOTS].load(Ordering::Acquire);
            // One comparison for the part of the hash and for a free slot: which slots are free
            // nobody can foretell. As two, a new flow took 1,400 cycles, and 810 so (2026-11-22).
            let id = (slot ^ tag).wrapping_sub(1);
            if id < ids && is(id) {
                return Some(id);
            }
        }
        None
    }

    /// Adds an entry, complete in all its parts. False when there is no place for it.
    #[inline]
    pub(super) fn insert(&self, hash: u64, id: FlowId) -> bool {
        let first = self.shape().first(hash);
        self.insert_into(first, hash, id) || self.insert_elsewhere(hash, id)
    }

    #[cold]
    fn insert_elsewhere(&self, hash: u64, id: FlowId) -> bool {
        let [first, near, far @ ..] = self.shape().places(hash);
        // Those of the same pair are full, and not far.
        let mut far = far.into_iter().filter(|bucket| bucket | 1 != first | 1);
        let into = |bucket| self.insert_into(bucket, hash, id);
        self.counted(first, Elsewhere::Near, || into(near))
            || self.counted(first, Elsewhere::Far, || far.any(into))
    }

    /// Inserts an entry elsewhere, and counts it where that is done. Said before it is so: who
    /// looks for it then finds it.
    fn counted(&self, first: usize, place: Elsewhere, insert: impl FnOnce() -> bool) -> bool {
        self.count_spilt(first, place, |count| count + 1);
        let is_in = insert();
        if !is_in {
            self.count_spilt(first, place, |count| count - 1);
        }
        is_in
    }

    fn count_spilt(&self, bucket: usize, place: Elsewhere, change: impl Fn(u8) -> u8) {
        let change = |spilt| match place.count_in(spilt) {
            MANY => None,
            count => Some(place.changed(spilt, change(count))),
        };
        let _ = self.spilt[bucket].fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
    }

    #[inline]
    fn insert_into(&self, bucket: usize, hash: u64, id: FlowId) -> bool {
        let slots = &self.buckets[bucket].0;
        (0..SLOTS).any(|step| {
            let at = &slots[(begin(hash) + step) % SLOTS];
            let is_free = at.load(Ordering::Relaxed) == 0;
            is_free && self.take(at, self.shape().slot(hash, id))
        })
    }

    /// Takes an entry out; nobody finds it who begins to look now. True for one of those who try.
    #[inline]
    pub(super) fn remove(&self, hash: u64, id: FlowId) -> bool {
        let first = self.shape().first(hash);
        self.remove_from(first, hash, id) || self.remove_elsewhere(hash, id)
    }

    #[cold]
    fn remove_elsewhere(&self, hash: u64, id: FlowId) -> bool {
        let [first, near, far @ ..] = self.shape().places(hash);
        let mut far = far.into_iter();
        let place = if self.remove_from(near, hash, id) {
            Elsewhere::Near
        } else if far.any(|bucket| self.remove_from(bucket, hash, id)) {
            Elsewhere::Far
        } else {
            return false;
        };
        self.count_spilt(first, place, |count| count - 1);
        true
    }

    #[inline]
    fn remove_from(&self, bucket: usize, hash: u64, id: FlowId) -> bool {
        let slots = &self.buckets[bucket].0;
        let wanted = self.shape().slot(hash, id);
        // Where insertion has begun.
        let mut steps = (0..SLOTS).map(|step| &slots[(begin(hash) + step) % SLOTS]);
        let found = steps.find(|slot| slot.load(Ordering::Relaxed) == wanted);
        match found {
            Some(slot) if self.alone => {
                slot.store(0, Ordering::Release);
                true
            }
            Some(slot) => {
                let emptied = slot.compare_exchange(wanted, 0, Ordering::SeqCst, Ordering::Relaxed);
                emptied.is_ok()
            }
            None => false,
        }
    }

    /// Puts an entry into a slot that was free a moment ago, if it still is.
    #[inline]
    fn take(&self, slot: &AtomicU32, entry: u32) -> bool {
        if self.alone {
            slot.store(entry, Ordering::Release);
            return true;
        }
        let taken = slot.compare_exchange(0, entry, Ordering::SeqCst, Ordering::Relaxed);
        taken.is_ok()
    }
}

/// Which slot of a bucket is tried first: by bits that do not choose the bucket, and are not in the
/// slot.
#[inline(always)]
fn begin(hash: u64) -> usize {
    hash as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Key;
    use crate::flow::key::KIND_V6;
    use foldhash::SharedSeed;
    use foldhash::fast::SeedableRandomState;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Against a map, over few hashes so that they collide and fill their buckets, with much of
        /// a hash in the slots and with next to nothing.
        #[test]
        fn finds_what_is_in_it(
            steps in proptest::collection::vec((any::<bool>(), 0u32..40), 1..300),
            ids in prop_oneof![Just(0x3f), Just(u32::MAX >> 1)],
            alone in any::<bool>(),
        ) {
            let mut index = Index::new(32, alone);
            index.ids = ids;
            let mut model = HashMap::new();
            let hash_of = |id: u32| u64::from(id % 7) << 61 | u64::from(id % 2) << 31;
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

    /// Flows that differ as little as flows do: in a port, or in an address.
    #[test]
    fn flows_that_are_alike_are_spread_over_the_buckets() {
        let max = 1 << 16;
        let seed = SeedableRandomState::with_seed(1, SharedSeed::global_fixed());
        let alike: [fn(u32) -> u64; 3] = [
            |number| u64::from(number) << 32,
            |number| u64::from(number) << 48 | 53 << 32,
            |number| u64::from(number),
        ];
        for (kind, word) in alike.into_iter().enumerate() {
            let index = Index::new(max, true);
            for id in 0..max {
                let mut words = [
                    0x0a00_0001_0a00_0002,
                    0,
                    0,
                    0,
                    0x0000_0001_0000_0002,
                    0x1100,
                ];
                if kind < 2 {
                    words[5] |= word(id);
                } else {
                    words[0] ^= word(id);
                }
                assert!(index.insert(Key { words }.hash(&seed), id), "{kind}: {id}");
            }
            let spilt: u32 = index
                .spilt
                .iter()
                .map(|spilt| spilt.load(Ordering::Relaxed))
                .map(|spilt| [Elsewhere::Near, Elsewhere::Far].map(|place| place.count_in(spilt)))
                .map(|[near, far]| u32::from(near) + u32::from(far))
                .sum();
            // By chance alone it is one in two hundred.
            assert!(
                spilt < max / 50,
                "{kind}: {spilt} of {max} do not lie where they belong"
            );
        }
    }

    #[test]
    fn a_table_can_be_filled_to_its_maximum() {
        let max = 1 << 16;
        let index = Index::new(max, true);
        let mut hash = 7u64;
        for id in 0..max {
            hash = hash
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            assert!(index.insert(mixed ^ mixed >> 32, id), "{id}");
        }
    }

    /// With any key of the hash, in either family.
    #[test]
    fn a_scan_of_ports_fills_a_table_to_its_maximum() {
        let max = 3000;
        let scans: [fn(u64) -> u64; 2] = [|port| port << 32, |port| port << 48 | 53 << 32];
        for number in 0..400 {
            let shared = SharedSeed::from_u64(number * 7919 + 3);
            let shared: &'static SharedSeed = Box::leak(Box::new(shared));
            let seed = SeedableRandomState::with_seed(number, shared);
            let kinds = scans
                .into_iter()
                .flat_map(|scan| [(scan, 0), (scan, KIND_V6)]);
            for (scan, (of_port, kind)) in kinds.enumerate() {
                let index = Index::new(max, true);
                for id in 0..max {
                    let rest = 0x1100 | u64::from(kind) | of_port(id.into());
                    let words = [0x0a00_0001_0a00_0002, 0, 0, 0, 0x0000_0001_0000_0002, rest];
                    let hash = Key { words }.hash(&seed);
                    assert!(
                        index.insert(hash, id),
                        "key {number}, scan {scan}: port {id}"
                    );
                }
            }
        }
    }
}
