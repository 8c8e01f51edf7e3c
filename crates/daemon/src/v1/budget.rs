//! Memory that clients share: a stated number of bytes for all of them, of which one client may
//! have a part, all who have a part of the networks half, and nobody but root and the daemon's own
//! user the last tenth.
//!
//! What one holds below a stated size costs nothing. When there is no more, who asks
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
    taken: Mutex<Taken>,
}

/// Units that are held, but for those of root and the daemon's own user.
#[derive(Default)]
struct Taken {
    /// Of each client that has any.
    by: BTreeMap<Arc<str>, usize>,
    /// Of all of them; of those that have a part of the networks.
    all: usize,
    of_parts: usize,
}

/// A client that may not have all.
#[derive(Clone)]
struct Limited {
    who: Arc<str>,
    /// Units that may be its own.
    most: usize,
    of_part: bool,
}

/// What one request or answer has of it, until this is dropped.
pub struct Held {
    budget: Budget,
    /// Whose it is; `None`: as many units as there are may be that client's.
    whose: Option<Limited>,
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
            taken: Mutex::default(),
        }))
    }

    /// Nothing yet, of a client that may have so many tenths of all.
    pub fn begin(&self, caller: Option<&Caller>, tenths: usize) -> Held {
        let limited = caller.filter(|caller| !caller.is_ours());
        let limited = limited.map(|caller| (caller.who().clone(), caller.has_part()));
        self.begin_for(limited, tenths)
    }

    /// The same of somebody whom no request was let in for yet: what it can be answered before that
    /// is the same for all, and little.
    pub fn begin_of(&self, peer: &Peer, tenths: usize) -> Held {
        let limited = (!peer.is_ours()).then(|| (peer.shown().into(), false));
        self.begin_for(limited, tenths)
    }

    /// `limited`: who may have no more than that.
    fn begin_for(&self, limited: Option<(Arc<str>, bool)>, tenths: usize) -> Held {
        let most = self.0.bytes / 10 * tenths / UNIT;
        Held {
            budget: self.clone(),
            whose: limited.map(|(who, of_part)| Limited { who, most, of_part }),
            bytes: 0,
            units: 0,
            permits: None,
            was_large: false,
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
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
        let no_more = || format!("{what} hold all memory that there is for them: try again");
        if let Some(limited) = &self.whose {
            let units = self.budget.0.bytes / UNIT;
            let mut taken = self.budget.taken();
            let theirs = taken.by.get(&limited.who).copied().unwrap_or(0);
            if theirs + more > limited.most {
                let who = &limited.who;
                let why = format!(
                    "{what} of {who} hold as much memory as one client may have: try again"
                );
                return Err(refused(why));
            }
            if limited.of_part && taken.of_parts + more > units / 2 {
                let why = format!(
                    "{what} of clients of a part of the networks hold as much memory as all of \
                     them may have: try again"
                );
                return Err(refused(why));
            }
            if taken.all + more > units - units / 10 {
                return Err(refused(no_more()));
            }
            taken.by.insert(limited.who.clone(), theirs + more);
            taken.all += more;
            taken.of_parts += if limited.of_part { more } else { 0 };
        }
        let count = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(taken) = permits.clone().try_acquire_many_owned(count) else {
            self.forget(more);
            return Err(refused(no_more()));
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
        let Some(Limited { who, of_part, .. }) = &self.whose else {
            return;
        };
        let mut taken = self.budget.taken();
        taken.all -= units;
        taken.of_parts -= if *of_part { units } else { 0 };
        if let Some(theirs) = taken.by.get_mut(who) {
            *theirs = theirs.saturating_sub(units);
            if *theirs == 0 {
                taken.by.remove(who);
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
        assert!(budget.taken().by.is_empty());
        assert_eq!(budget.0.permits.available_permits(), 20);
    }

    /// A tenant has as many users as he likes.
    #[test]
    fn many_clients_of_parts_have_half_and_nobody_has_root_s_last_tenth() {
        let budget = Budget::of("answers", 40 * UNIT, 0);
        let tenant = |name| caller(name).of_part(crate::access::part(42..=42));
        let mut held: Vec<Held> = Vec::new();
        let mut take = |caller: &Caller, units: usize| {
            let mut one = budget.begin(Some(caller), 5);
            let taken = one
                .add(units * UNIT)
                .map_err(|refused| refused.message().to_owned());
            held.push(one);
            taken
        };
        take(&tenant("blue"), 15).unwrap();
        take(&tenant("red"), 5).unwrap();
        let refused = take(&tenant("green"), 1).unwrap_err();
        assert!(
            refused.contains("of clients of a part of the networks"),
            "{refused}"
        );
        // What operators of the whole host have beside it is all but root's.
        take(&caller("operator"), 16).unwrap();
        let refused = take(&caller("another operator"), 1).unwrap_err();
        assert!(refused.starts_with("answers hold all memory"), "{refused}");
        take(&Caller::of_user(0), 4).unwrap();
        assert!(take(&Caller::of_user(0), 1).is_err());
        held.clear();
        let taken = budget.taken();
        assert_eq!((taken.by.len(), taken.all, taken.of_parts), (0, 0, 0));
        assert_eq!(budget.0.permits.available_permits(), 40);
    }
}
