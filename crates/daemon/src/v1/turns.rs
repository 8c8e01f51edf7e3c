//! Operations that are carried out at one time. Each has a thread of its own, and nearly all wait
//! for the controller, which has one after the other: more than a few are done no sooner, and who
//! asks for many would have all threads that there are, and all that is carried out in a second.
//! So of each client a few are carried out at one time, of all who have a part of the networks
//! half of what there is, and for root there are as many again that nobody else has. The others
//! wait for their turn without a thread, and go with their client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::access::{Caller, Reach};

/// Turns of one kind. Cheap to clone.
#[derive(Clone)]
pub struct Turns(Arc<Kind>);

struct Kind {
    /// Of one client.
    each: usize,
    by: Mutex<BTreeMap<Arc<str>, Weak<Semaphore>>>,
    /// Of all who have a part of the networks; of all but root and the daemon's own user; of these.
    parts: Arc<Semaphore>,
    others: Arc<Semaphore>,
    ours: Arc<Semaphore>,
}

/// One of them; the next one's when this is dropped.
pub struct Turn {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Turns {
    /// So many of one client, and of all but root.
    pub fn new(each: usize, all: usize) -> Turns {
        let places = |count: usize| Arc::new(Semaphore::new(count));
        Turns(Arc::new(Kind {
            each,
            by: Mutex::default(),
            parts: places(all.div_ceil(2)),
            others: places(all),
            ours: places(all),
        }))
    }

    /// A client's next turn; they come in the order in which they are asked for.
    pub async fn take(&self, caller: &Caller) -> Turn {
        let mut waits = Vec::new();
        if caller.is_ours() {
            waits.push(self.0.ours.clone());
        } else {
            // Its own first: while it waits for these, it takes none of the others'.
            waits.push(self.0.of(caller.who()));
            if *caller.reach() != Reach::Whole {
                waits.push(self.0.parts.clone());
            }
            waits.push(self.0.others.clone());
        }
        let mut permits = Vec::with_capacity(waits.len());
        for places in waits {
            // They are never closed.
            permits.extend(places.acquire_owned().await);
        }
        Turn { _permits: permits }
    }

    /// Runs what may wait when it is this caller's turn. Where the client goes away before that, it
    /// is not run; from then on it has its turn, and what its request holds of memory, until it is
    /// over.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        operation: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let held = (self.take(caller).await, caller.memory());
        let run = move || {
            let done = operation();
            drop(held);
            done
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(result) => result,
            Err(_) => Err(Status::internal(
                "the request made the daemon panic; its log says where",
            )),
        }
    }
}

impl Kind {
    /// A client's own: there for as long as it has a turn, or waits for one.
    fn of(&self, who: &Arc<str>) -> Arc<Semaphore> {
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = by.get(who).and_then(Weak::upgrade) {
            return theirs;
        }
        by.retain(|_, theirs| theirs.strong_count() > 0);
        let theirs = Arc::new(Semaphore::new(self.each));
        by.insert(who.clone(), Arc::downgrade(&theirs));
        theirs
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::access::{Peer, Who, part};

    fn caller(uid: u32) -> Caller {
        Caller::seeing(&Peer::local(match Who::local(uid, 9) {
            Who::Local(user) => user,
            _ => unreachable!(),
        }))
    }

    async fn comes(turns: &Turns, caller: &Caller) -> Option<Turn> {
        timeout(Duration::from_secs(1), turns.take(caller))
            .await
            .ok()
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_many_waits_alone() {
        let turns = Turns::new(2, 4);
        let (blue, red, root) = (caller(60_001), caller(60_002), caller(0));
        let mut held = [comes(&turns, &blue).await, comes(&turns, &blue).await];
        assert!(held.iter().all(Option::is_some));
        assert!(comes(&turns, &blue).await.is_none());
        let theirs = [comes(&turns, &red).await, comes(&turns, &red).await];
        assert!(theirs.iter().all(Option::is_some));
        // All are taken now, but root's.
        assert!(comes(&turns, &caller(60_003)).await.is_none());
        assert!(comes(&turns, &root).await.is_some());
        held[0] = None;
        assert!(comes(&turns, &blue).await.is_some());
        drop((held, theirs));
        comes(&turns, &root).await.unwrap();
        comes(&turns, &caller(60_004)).await.unwrap();
        let by = turns.0.by.lock().unwrap();
        assert_eq!(by.len(), 1, "who has none is forgotten");
    }

    /// A tenant has as many users as he likes.
    #[tokio::test(start_paused = true)]
    async fn many_clients_of_parts_leave_the_host_s_operators_some() {
        let turns = Turns::new(2, 4);
        let tenant = |uid| caller(uid).of_part(part(42..=42));
        let held = [
            comes(&turns, &tenant(60_001)).await,
            comes(&turns, &tenant(60_002)).await,
        ];
        assert!(held.iter().all(Option::is_some));
        assert!(comes(&turns, &tenant(60_003)).await.is_none());
        assert!(comes(&turns, &caller(1)).await.is_some());
    }

    /// A client that goes while it waits has taken nothing.
    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_keeps_nobody_waiting() {
        let turns = Turns::new(1, 1);
        let held = comes(&turns, &caller(60_001)).await.unwrap();
        assert!(comes(&turns, &caller(60_001)).await.is_none());
        assert!(comes(&turns, &caller(60_002)).await.is_none());
        drop(held);
        assert!(comes(&turns, &caller(60_003)).await.is_some());
    }
}
