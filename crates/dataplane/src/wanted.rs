//! Hosts that frames are for and the underlay has no next hop to. Workers report them to the
//! task that follows the physical network, so that hosts that were learnt from traffic become
//! reachable.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Addresses that wait to be asked for at most: more are told again with their next frame.
pub const WANTED_MAX: usize = 1024;

/// Hosts that were only heard of, and that no frame waits for, which are noted in a second: who can
/// put frames on the wire may have them come from anywhere.
pub const HEARD_A_SECOND: u32 = 64;

#[derive(Default)]
struct List {
    addresses: BTreeSet<IpAddr>,
    /// In which second hosts were heard of last, and how many of them are noted.
    heard: (u32, u32),
}

/// Shared by all workers, and read by [`Switch::take_wanted`](crate::Switch::take_wanted).
#[derive(Default)]
pub(crate) struct Wanted {
    some: AtomicBool,
    list: Mutex<List>,
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Wanted {
    /// Notes an address, and calls who listens for the first one. Does not wait: false when the
    /// list is full or in use, and the address is to be told again.
    #[cold]
    pub(crate) fn note(&self, address: IpAddr) -> bool {
        self.note_if(address, |_| true)
    }

    /// [Notes](Self::note) a host that was heard of and that no frame waits for, but
    /// [not too many](HEARD_A_SECOND) a second. The others are noted when a frame is for them.
    #[cold]
    pub(crate) fn note_heard(&self, address: IpAddr, now_secs: u32) -> bool {
        self.note_if(address, |(second, count)| {
            if *second != now_secs {
                (*second, *count) = (now_secs, 0);
            }
            *count += 1;
            *count <= HEARD_A_SECOND
        })
    }

    fn note_if(&self, address: IpAddr, may: impl FnOnce(&mut (u32, u32)) -> bool) -> bool {
        let mut list = match self.list.try_lock() {
            Ok(list) => list,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if list.addresses.contains(&address) {
            return true;
        }
        if list.addresses.len() >= WANTED_MAX || !may(&mut list.heard) {
            return false;
        }
        list.addresses.insert(address);
        let is_first = list.addresses.len() == 1;
        drop(list);
        self.some.store(true, Ordering::Release);
        if is_first && let Some(call) = self.listener.get() {
            call();
        }
        true
    }

    /// Sets what is called when something was noted and nothing was before. False: that is set
    /// already.
    pub(crate) fn listen(&self, call: Box<dyn Fn() + Send + Sync>) -> bool {
        self.listener.set(call).is_ok()
    }

    /// What was noted since the last call.
    pub(crate) fn take(&self) -> Vec<IpAddr> {
        if !self.some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = std::mem::take(&mut list.addresses);
        drop(list);
        addresses.into_iter().collect()
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

    #[test]
    fn of_hosts_that_were_only_heard_of_some_are_noted_in_a_second() {
        let wanted = Wanted::default();
        let address = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        let heard = |secs: u32| {
            let hosts = (0..200).map(|n| address(secs * 200 + n));
            hosts.filter(|host| wanted.note_heard(*host, secs)).count()
        };
        for secs in [7, 8] {
            assert_eq!(heard(secs), HEARD_A_SECOND as usize);
            // Who is waited for is always.
            assert!(wanted.note(address(secs)));
            assert_eq!(wanted.take().len(), HEARD_A_SECOND as usize + 1);
            // Not more for having been taken.
            assert_eq!((heard(secs), wanted.take().len()), (0, 0));
        }
    }
}
