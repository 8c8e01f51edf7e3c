//! Endpoints that frames wanted to go to and the underlay has no way to: what workers tell whoever
//! follows the physical network, so that endpoints that were learnt from traffic become reachable.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Addresses that wait to be asked for at most: more are told again with their next frame.
pub const WANTED_MAX: usize = 1024;

/// Shared by all workers, and read by [`Switch::take_wanted`](crate::Switch::take_wanted).
#[derive(Default)]
pub(crate) struct Wanted {
    some: AtomicBool,
    addresses: Mutex<Vec<IpAddr>>,
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Wanted {
    /// Notes an address, and calls who listens for the first one. Does not wait: false when the
    /// list is full or in use, and the address is to be told again.
    #[cold]
    pub(crate) fn note(&self, address: IpAddr) -> bool {
        let mut addresses = match self.addresses.try_lock() {
            Ok(addresses) => addresses,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if addresses.contains(&address) {
            return true;
        }
        if addresses.len() >= WANTED_MAX {
            return false;
        }
        addresses.push(address);
        let is_first = addresses.len() == 1;
        drop(addresses);
        self.some.store(true, Ordering::Release);
        if is_first && let Some(call) = self.listener.get() {
            call();
        }
        true
    }

    /// Who is called when something was noted and nothing was before. False: somebody is already.
    pub(crate) fn listen(&self, call: Box<dyn Fn() + Send + Sync>) -> bool {
        self.listener.set(call).is_ok()
    }

    /// What was noted since the last call.
    pub(crate) fn take(&self) -> Vec<IpAddr> {
        if !self.some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *addresses)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn an_address_is_told_once_until_it_is_taken_and_not_too_many() {
        let wanted = Wanted::default();
        let address = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        assert!(wanted.listen(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        assert!(wanted.note(address(1)) && wanted.note(address(1)));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!((wanted.take(), wanted.take()), (vec![address(1)], vec![]));
        let noted = (0..2000).filter(|n| wanted.note(address(*n))).count();
        assert_eq!((noted, calls.load(Ordering::Relaxed)), (WANTED_MAX, 2));
        assert_eq!(wanted.take().len(), WANTED_MAX);
    }
}
