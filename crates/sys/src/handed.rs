//! What one process hands over to the next: descriptors and notes, each by its name.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Descriptors, and what is to be known of them.
#[derive(Debug, Default)]
pub struct Handed {
    /// As whoever made it says it.
    pub note: Vec<u8>,
    /// The descriptors, in the order in which they were given.
    pub fds: Vec<OwnedFd>,
}

/// By their names.
pub type Items = BTreeMap<String, Handed>;

impl Handed {
    /// The descriptors, if there are exactly so many.
    pub fn take<const COUNT: usize>(self) -> Option<[OwnedFd; COUNT]> {
        self.fds.try_into().ok()
    }
}
