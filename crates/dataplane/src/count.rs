//! How many of something each one has; who has none takes no room.

use std::hash::Hash;

use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;

#[derive(Clone)]
pub(crate) struct Count<K>(HashMap<K, usize, SeedableRandomState>);

impl<K: Copy + Eq + Hash> Count<K> {
    pub(crate) fn new(hasher: SeedableRandomState) -> Count<K> {
        Count(HashMap::with_hasher(hasher))
    }

    pub(crate) fn of(&self, whose: &K) -> usize {
        self.0.get(whose).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, whose: &K) {
        *self.0.entry(*whose).or_default() += 1;
    }

    pub(crate) fn take(&mut self, whose: &K) {
        if let Some(count) = self.0.get_mut(whose) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(whose);
            }
        }
    }

    /// How many have some.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
