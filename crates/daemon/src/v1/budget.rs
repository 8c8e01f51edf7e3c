//! Memory that clients share: a stated number of bytes for all of them, of which one client may
//! have a part. What one holds below a stated size costs nothing. When there is no more, who asks
//! is refused (RESOURCE_EXHAUSTED), not kept waiting: two that wait for each other would wait for
//! ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::access::{Caller, Peer};

/// Bytes that one permit stands for.
const UNIT: usize = 64 << 10;

/// Cheap to clone.
#[derive(Clone)]
pub struct Budget(Arc<Pool>);

struct Pool {
    /// What holds it, for refusals.
    what: &'static str,
    bytes: usize,
    /// Bytes that each may have without a permit.
    small: usize,
    permits: Arc<Semaphore>,
    /// Units of each client that has any.
    by: Mutex<BTreeMap<Arc<str>, usize>>,
}

/// What one request or answer has of it, until this is dropped.
pub struct Held {
    budget: Budget,
    /// Whose it is, and how many units may be that client's; `None`: as many as there are.
    whose: Option<(Arc<str>, usize)>,
    bytes: usize,
    units: usize,
    permits: Option<OwnedSemaphorePermit>,
    was_large: bool,
}

impl Budget {
    pub fn of(what: &'static str, bytes: usize, small: usize) -> Budget {
        Budget(Arc::new(Pool {
            what,
            bytes,
            small,
            permits: Arc::new(Semaphore::new(bytes / UNIT)),
            by: Mutex::default(),
        }))
    }

    /// Nothing yet, of a client that may have so many tenths of all.
    pub fn begin(&self, caller: Option<&Caller>, tenths: usize) -> Held {
        let limited = caller.filter(|caller| !caller.is_ours());
        self.begin_for(limited.map(|caller| caller.who().clone()), tenths)
    }

    /// The same of somebody whom no request was let in for yet.
    pub fn begin_of(&self, peer: &Peer, tenths: usize) -> Held {
        self.begin_for((!peer.is_ours()).then(|| peer.shown().into()), tenths)
    }

    /// `limited`: who may have no more than that.
    fn begin_for(&self, limited: Option<Arc<str>>, tenths: usize) -> Held {
        let most = self.0.bytes / 10 * tenths / UNIT;
        Held {
            budget: self.clone(),
            whose: limited.map(|who| (who, most)),
            bytes: 0,
            units: 0,
            permits: None,
            was_large: false,
        }
    }

    fn by(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, usize>> {
        self.0.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Nothing is held of any permit.
    pub fn is_small(&self) -> bool {
        self.units == 0
    }

    pub fn add(&mut self, bytes: usize) -> Result<(), Status> {
        self.set(self.bytes + bytes)
    }

    /// So many bytes from now on; where they are refused, as many as before.
    pub fn set(&mut self, bytes: usize) -> Result<(), Status> {
        let units = bytes.saturating_sub(self.budget.0.small).div_ceil(UNIT);
        match units.checked_sub(self.units) {
            Some(0) => (),
            Some(more) => self.take(more)?,
            None => self.give(self.units - units),
        }
        self.bytes = bytes;
        Ok(())
    }

    fn take(&mut self, more: usize) -> Result<(), Status> {
        let Pool { what, permits, .. } = &*self.budget.0;
        if let Some((who, most)) = &self.whose {
            let mut by = self.budget.by();
            let theirs = by.entry(who.clone()).or_default();
            if *theirs + more > *most {
                let why = format!(
                    "{what} of {who} hold as much memory as one client may have: try again"
                );
                if *theirs == 0 {
                    by.remove(who);
                }
                return Err(refused(why));
            }
            *theirs += more;
        }
        let count = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(taken) = permits.clone().try_acquire_many_owned(count) else {
            let why = format!("{what} hold all memory that there is for them: try again");
            self.forget(more);
            return Err(refused(why));
        };
        match &mut self.permits {
            Some(held) => held.merge(taken),
            None => self.permits = Some(taken),
        }
        self.units += more;
        self.was_large = true;
        Ok(())
    }

    fn give(&mut self, units: usize) {
        if let Some(held) = &mut self.permits {
            drop(held.split(units));
        }
        self.units -= units;
        self.forget(units);
    }

    /// The client has so many units less.
    fn forget(&self, units: usize) {
        let Some((who, _)) = &self.whose else { return };
        let mut by = self.budget.by();
        if let Some(theirs) = by.get_mut(who) {
            *theirs = theirs.saturating_sub(units);
            if *theirs == 0 {
                by.remove(who);
            }
        }
    }
}

fn refused(why: String) -> Status {
    tracing::warn!("a client is refused: {why}");
    Status::resource_exhausted(why)
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give(self.units);
        // What a large one took goes back to the system, and does not stay for the next one.
        if self.was_large
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn_blocking(sys::trim_memory));
        }
    }
}

/// About what a message takes.
pub fn memory<M: Message>(message: &M) -> usize {
    size_of::<M>() + message.encoded_len()
}

/// All of them, and what they hold, counted as they are made.
pub fn collect<T>(
    all: impl Iterator<Item = T>,
    memory: impl Fn(&T) -> usize,
    mut held: Held,
) -> Result<(Vec<T>, Held), Status> {
    let (mut list, mut bytes) = (Vec::new(), 0);
    for one in all {
        bytes += memory(&one);
        if bytes >= UNIT {
            held.add(std::mem::take(&mut bytes))?;
        }
        list.push(one);
    }
    held.add(bytes)?;
    Ok((list, held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Who;

    const SMALL: usize = 64 << 10;

    fn caller(name: &str) -> Caller {
        Caller::seeing(&Peer {
            who: Who::Certificate {
                names: vec![name.into()],
            },
            address: None,
        })
    }

    #[test]
    fn a_budget_is_shared_and_given_back() {
        let budget = Budget::of("requests", 4 * UNIT, SMALL);
        let (mut one, mut other) = (budget.begin(None, 10), budget.begin(None, 10));
        one.add(SMALL).unwrap();
        assert!(one.is_small(), "a little is for nothing");
        one.add(1).unwrap();
        one.add(2 * UNIT).unwrap();
        assert_eq!(one.units, 3);
        other.add(SMALL + UNIT).unwrap();
        let refused = other.add(1).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        budget.begin(None, 10).add(SMALL).unwrap();
        one.set(SMALL + 2 * UNIT).unwrap();
        other.add(1).unwrap();
        drop(one);
        drop(other);
        assert_eq!(budget.0.permits.available_permits(), 4);
    }

    #[test]
    fn one_client_s_requests_leave_the_others_theirs() {
        let budget = Budget::of("requests", 20 * UNIT, 0);
        let (blue, red) = (caller("blue"), caller("red"));
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..5 {
            held.push(budget.begin(Some(&blue), 3));
            held.last_mut().unwrap().add(UNIT).unwrap();
        }
        held[0].add(UNIT).unwrap();
        let refused = held[1].add(UNIT).unwrap_err();
        assert!(refused.message().contains("of the certificate of blue"));
        budget.begin(Some(&red), 3).add(6 * UNIT).unwrap();
        held.remove(1);
        held[0].add(UNIT).unwrap();
        held.clear();
        assert!(budget.by().is_empty());
        assert_eq!(budget.0.permits.available_permits(), 20);
    }
}
