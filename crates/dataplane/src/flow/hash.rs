//! What flows are hashed with: in numbers, so that the next process finds its way in an index that
//! this one leaves.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use super::key::Key;

/// Of all tables of this process.
static SHARED: LazyLock<(u64, SharedSeed)> = LazyLock::new(|| {
    let number = RandomState::new().hash_one(0);
    (number, SharedSeed::from_u64(number))
});

/// Two numbers that nobody else knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HashKey {
    pub seed: u64,
    pub shared: u64,
}

impl HashKey {
    /// Of this process; `seed` is random.
    pub(crate) fn new(seed: u64) -> HashKey {
        HashKey {
            seed,
            shared: SHARED.0,
        }
    }

    /// What hashes with it. That of another process takes some bytes for as long as this one lives.
    pub(crate) fn hasher(&self) -> SeedableRandomState {
        let shared = match self.shared == SHARED.0 {
            true => &SHARED.1,
            false => Box::leak(Box::new(SharedSeed::from_u64(self.shared))),
        };
        SeedableRandomState::with_seed(self.seed, shared)
    }
}

/// What a hasher makes of a key that is always the same: a version whose hash is another one says
/// something else.
pub(crate) fn check(hasher: &SeedableRandomState) -> u64 {
    let words = [1, 2, 3, 4, 5, 6];
    Key { words }.hash(hasher)
}
