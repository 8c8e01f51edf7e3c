//! The interfaces as the program finds them: all in a hash table, and most in a place of their own
//! before it, which is read without a search. Owned by the router; no interface of its own, and no
//! kernel.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use bytemuck::Zeroable;
use sys::bpf_array::BpfArray;
use xdp::Table;

use crate::error::Error;
use crate::layout::{Interface, InterfaceKey, NEAR_PLACES, Near};

/// Words of a place.
const WORDS: usize = size_of::<Near>() / 4;
/// Words of all places.
pub const NEAR_WORDS: usize = NEAR_PLACES * WORDS;

/// Both maps.
#[derive(Debug)]
pub struct Entries {
    all: Table<InterfaceKey, Interface>,
    near: BpfArray,
    /// What is in `all`.
    written: BTreeMap<InterfaceKey, Interface>,
    /// The interface that has each place.
    owners: Vec<Option<InterfaceKey>>,
}

impl Entries {
    /// Over the maps `interfaces` and `near`, empty.
    pub fn new(all: Table<InterfaceKey, Interface>, near: BpfArray) -> Entries {
        Entries {
            all,
            near,
            written: BTreeMap::new(),
            owners: vec![None; NEAR_PLACES],
        }
    }

    /// Makes these the interfaces, and no others.
    ///
    /// # Errors
    /// Some are not as they should be, which the next call tries again. All others are.
    pub fn write(&mut self, wanted: BTreeMap<InterfaceKey, Interface>) -> Result<(), Error> {
        let mut failed = self.write_all(&wanted);
        // Interfaces that went, and ports of bonds.
        let gone: Vec<InterfaceKey> = self.written.keys().copied().collect();
        let mut removed = Ok(());
        for key in gone.iter().filter(|key| !wanted.contains_key(key)) {
            match self.all.remove(key) {
                Ok(_) => drop(self.written.remove(key)),
                Err(error) => removed = Err(error.into()),
            }
        }
        // There may have been no room before.
        if failed.is_err() {
            failed = self.write_all(&wanted);
        }
        self.write_near();
        failed.and(removed)
    }

    fn write_all(&mut self, wanted: &BTreeMap<InterfaceKey, Interface>) -> Result<(), Error> {
        let mut done = Ok(());
        for (key, entry) in wanted {
            if self.written.get(key) == Some(entry) {
                continue;
            }
            match self.all.set(key, entry) {
                Ok(()) => drop(self.written.insert(*key, *entry)),
                Err(error) => done = Err(error.into()),
            }
        }
        done
    }

    /// The first to come has a place. It stays empty once after its owner has gone: a program that
    /// has read the old key must not go on with another's entry.
    fn write_near(&mut self) {
        let wanted = &self.written;
        let mut left = Vec::new();
        for (place, owner) in self.owners.iter_mut().enumerate() {
            if owner.is_some_and(|key| !wanted.contains_key(&key)) {
                *owner = None;
                left.push(place);
            }
        }
        for (key, interface) in wanted {
            let place = key.near_place();
            if self.owners[place].is_some_and(|owner| owner != *key) || left.contains(&place) {
                continue;
            }
            self.owners[place] = Some(*key);
            let near = Near {
                key: *key,
                interface: *interface,
                ..Near::zeroed()
            };
            put(self.place(place), &near);
        }
        for place in left {
            put(self.place(place), &Near::zeroed());
        }
    }

    fn place(&self, place: usize) -> &[AtomicU32] {
        &self.near.words()[place * WORDS..(place + 1) * WORDS]
    }
}

/// The first word says whose it is.
fn put(place: &[AtomicU32], near: &Near) {
    let words: [u32; WORDS] = bytemuck::cast(*near);
    sys::bpf_array::put(place, &words, 0);
}
