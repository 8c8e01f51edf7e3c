//! What clients have of something that there is a stated number of, as streams of one kind: each
//! of them a few, all together some more, of which who has a part of the networks has half, and
//! root or the daemon's own user as many again that nobody else can take.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::Status;

use crate::access::Caller;

/// Cheap to clone.
#[derive(Clone)]
pub struct Shares(Arc<Shared>);

struct Shared {
    /// What they are, in the plural: for refusals.
    what: &'static str,
    /// Those of one client, and of all clients.
    each: usize,
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    by: BTreeMap<Arc<str>, usize>,
    /// Of all but root and the daemon's own user, and of these.
    others: usize,
    ours: usize,
    /// Of `others`, those of clients who may see or change a part alone.
    of_parts: usize,
}

/// One of them; given back when this is dropped.
pub struct Share {
    shares: Shares,
    /// `None`: it is root's, or the daemon's own user's.
    who: Option<Arc<str>>,
    of_part: bool,
}

impl Shares {
    pub fn new(what: &'static str, each: usize, all: usize) -> Shares {
        Shares(Arc::new(Shared {
            what,
            each,
            all,
            taken: Mutex::default(),
        }))
    }

    /// One more for a client. RESOURCE_EXHAUSTED when it has as many as it may, or all have.
    pub fn take(&self, caller: &Caller) -> Result<Share, Status> {
        let Shared {
            what, each, all, ..
        } = &*self.0;
        let refused = |who: &str, count: usize| {
            let why = format!("{who} has {count} {what}, which is the limit: end one first");
            Err(Status::resource_exhausted(why))
        };
        let mut taken = self.lock();
        let of_part = caller.has_part();
        let who = match caller.is_ours() {
            true if taken.ours >= *all => return refused("the daemon's own user", *all),
            true => {
                taken.ours += 1;
                None
            }
            false => {
                let who = caller.who();
                let theirs = taken.by.get(who).copied().unwrap_or(0);
                if theirs >= *each {
                    return refused(who, *each);
                }
                if taken.others >= *all {
                    let why = format!("clients have {all} {what}, which is the limit of all");
                    return Err(Status::resource_exhausted(why));
                }
                if of_part && taken.of_parts >= all.div_ceil(2) {
                    let why = format!(
                        "clients of a part of the networks have {} {what}, which is the limit of \
                         all of them",
                        taken.of_parts
                    );
                    return Err(Status::resource_exhausted(why));
                }
                taken.others += 1;
                taken.of_parts += usize::from(of_part);
                taken.by.insert(who.clone(), theirs + 1);
                Some(who.clone())
            }
        };
        Ok(Share {
            shares: self.clone(),
            who,
            of_part,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        let taken = self.0.taken.lock();
        taken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        let Some(who) = &self.who else {
            taken.ours -= 1;
            return;
        };
        taken.others -= 1;
        taken.of_parts -= usize::from(self.of_part);
        if let Some(theirs) = taken.by.get_mut(who) {
            *theirs -= 1;
            if *theirs == 0 {
                taken.by.remove(who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_its_own_alone_and_nobody_takes_root_s() {
        let shares = Shares::new("streams", 2, 3);
        let (blue, red, root) = (
            Caller::of_user(60_001),
            Caller::of_user(60_002),
            Caller::of_user(0),
        );
        let mut held: Vec<Share> = Vec::new();
        for client in [&blue, &blue, &red] {
            held.push(shares.take(client).unwrap());
        }
        for (client, said) in [
            (&blue, "uid 60001 has 2 streams"),
            (&red, "clients have 3 streams"),
        ] {
            let refused = shares.take(client).err().unwrap();
            assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
            assert!(refused.message().contains(said), "{refused}");
        }
        let of_root: Vec<Share> = (0..3).map(|_| shares.take(&root).unwrap()).collect();
        assert!(shares.take(&root).is_err());
        drop(held.remove(0));
        held.push(shares.take(&red).unwrap());
        drop((held, of_root));
        let taken = shares.lock();
        assert_eq!((taken.others, taken.ours, taken.by.len()), (0, 0, 0));
    }

    /// A tenant has as many users as he likes.
    #[test]
    fn many_clients_of_parts_leave_the_host_s_operators_some() {
        let shares = Shares::new("captures", 2, 6);
        let tenant = |uid| Caller::of_user(uid).of_part(crate::access::part(42..=42));
        let take = |uid| shares.take(&tenant(uid));
        let held: Vec<Share> = (60_001..60_010).filter_map(|uid| take(uid).ok()).collect();
        assert_eq!(held.len(), 3);
        let refused = take(60_011).err().unwrap();
        let said = "clients of a part of the networks have 3 captures";
        assert!(refused.message().starts_with(said), "{refused}");
        let operators: Vec<Share> = [1, 1, 2]
            .map(|uid| shares.take(&Caller::of_user(uid)).unwrap())
            .into();
        assert!(shares.take(&Caller::of_user(3)).is_err(), "six is all");
        drop((held, operators));
        take(60_011).unwrap();
        assert_eq!(shares.lock().of_parts, 0);
    }
}
