//! Endpoints that frames wanted to go to and the underlay has no way to: what workers tell whoever follows the
//! physical network, so that endpoints that were learnt from traffic become reachable.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Addresses that wait to be asked for at most: more are told again with their next frame.
pub const WANTED_MAX: usize = 1024;

/// Shared by all workers, and read by [`Switch::take_wanted`](crate::Switch::take_wanted).
#[derive(Default)]
pub(crate) struct Wanted {
    some: AtomicBool,
    addresses: Mutex<Vec<IpAddr>>,
}

impl Wanted {
    /// Notes an address. Does not wait: who finds the list in use tells it with the next frame.
    #[cold]
    pub(crate) fn note(&self, address: IpAddr) {
        let mut addresses = match self.addresses.try_lock() {
            Ok(addresses) => addresses,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if addresses.len() < WANTED_MAX && !addresses.contains(&address) {
            addresses.push(address);
            self.some.store(true, Ordering::Release);
        }
    }

    /// What was noted since the last call.
    pub(crate) fn take(&self) -> Vec<IpAddr> {
        if !self.some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_once_until_it_is_taken_and_not_too_many() {
        let wanted = Wanted::default();
        let address = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        wanted.note(address(1));
        wanted.note(address(1));
        assert_eq!((wanted.take(), wanted.take()), (vec![address(1)], vec![]));
        (0..2000).for_each(|n| wanted.note(address(n)));
        assert_eq!(wanted.take().len(), WANTED_MAX);
    }
}
