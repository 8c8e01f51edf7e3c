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

/// Cheap to clone.
#[derive(Clone)]
pub struct Turns(Arc<Kinds>);

struct Kinds {
    all: Places,
    /// Of these, places for long ones.
    long: Places,
}

/// How long an operation has the controller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Length {
    Short,
    /// It looks at all connections, at what is stored, or at many rules: a tenth of a second.
    Long,
}

/// How many there are for one client, and for all but root.
#[derive(Clone, Copy)]
pub struct Count {
    pub each: usize,
    pub all: usize,
}

/// Operations of one kind that are carried out at one time.
struct Places {
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
    pub fn new(all: Count, long: Count) -> Turns {
        Turns(Arc::new(Kinds {
            all: Places::new(all),
            long: Places::new(long),
        }))
    }

    /// A client's next turn; they come in the order in which they are asked for.
    pub async fn take(&self, caller: &Caller, length: Length) -> Turn {
        let long = (length == Length::Long).then_some(&self.0.long);
        let kinds = || long.into_iter().chain([&self.0.all]);
        let mut waits = Vec::new();
        if caller.is_ours() {
            waits.extend(kinds().map(|places| places.ours.clone()));
        } else {
            // All that are its own first: while it waits for these, it takes none of the others'.
            waits.extend(kinds().map(|places| places.of(caller.who())));
            if *caller.reach() != Reach::Whole {
                waits.extend(kinds().map(|places| places.parts.clone()));
            }
            waits.extend(kinds().map(|places| places.others.clone()));
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
    /// over, and what it has changed by then is synced soon.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        length: Length,
        operation: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.take(caller, length).await;
        let held = (turn, caller.memory(), caller.unsettled());
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

impl Places {
    fn new(count: Count) -> Places {
        let places = |count: usize| Arc::new(Semaphore::new(count));
        Places {
            each: count.each,
            by: Mutex::default(),
            parts: places(count.all.div_ceil(2)),
            others: places(count.all),
            ours: places(count.all),
        }
    }

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
    use crate::access::part;

    fn turns(each: usize, all: usize) -> Turns {
        Turns::new(Count { each, all }, Count { each: 1, all: 2 })
    }

    async fn comes(turns: &Turns, caller: &Caller) -> Option<Turn> {
        of_length(turns, caller, Length::Short).await
    }

    async fn of_length(turns: &Turns, caller: &Caller, length: Length) -> Option<Turn> {
        let turn = turns.take(caller, length);
        timeout(Duration::from_secs(1), turn).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_many_waits_alone() {
        let turns = turns(2, 4);
        let (blue, red, root) = (
            Caller::of_user(60_001),
            Caller::of_user(60_002),
            Caller::of_user(0),
        );
        let mut held = [comes(&turns, &blue).await, comes(&turns, &blue).await];
        assert!(held.iter().all(Option::is_some));
        assert!(comes(&turns, &blue).await.is_none());
        let theirs = [comes(&turns, &red).await, comes(&turns, &red).await];
        assert!(theirs.iter().all(Option::is_some));
        // All are taken now, but root's.
        assert!(comes(&turns, &Caller::of_user(60_003)).await.is_none());
        assert!(comes(&turns, &root).await.is_some());
        held[0] = None;
        assert!(comes(&turns, &blue).await.is_some());
        drop((held, theirs));
        comes(&turns, &root).await.unwrap();
        comes(&turns, &Caller::of_user(60_004)).await.unwrap();
        let by = turns.0.all.by.lock().unwrap();
        assert_eq!(by.len(), 1, "who has none is forgotten");
    }

    /// A tenant has as many users as he likes.
    #[tokio::test(start_paused = true)]
    async fn many_clients_of_parts_leave_the_host_s_operators_some() {
        let turns = turns(2, 4);
        let tenant = |uid| Caller::of_user(uid).of_part(part(42..=42));
        let held = [
            comes(&turns, &tenant(60_001)).await,
            comes(&turns, &tenant(60_002)).await,
        ];
        assert!(held.iter().all(Option::is_some));
        assert!(comes(&turns, &tenant(60_003)).await.is_none());
        assert!(comes(&turns, &Caller::of_user(1)).await.is_some());
    }

    /// A client that goes while it waits has taken nothing.
    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_keeps_nobody_waiting() {
        let turns = turns(1, 1);
        let held = comes(&turns, &Caller::of_user(60_001)).await.unwrap();
        assert!(comes(&turns, &Caller::of_user(60_001)).await.is_none());
        assert!(comes(&turns, &Caller::of_user(60_002)).await.is_none());
        drop(held);
        assert!(comes(&turns, &Caller::of_user(60_003)).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_its_own_turns_keeps_nobody_from_a_long_one() {
        let turns = turns(1, 8);
        let tenant = |uid| Caller::of_user(uid).of_part(part(42..=42));
        let (blue, red) = (tenant(60_001), tenant(60_002));
        let held = comes(&turns, &blue).await;
        // They stand in line behind it.
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (turns, blue) = (turns.clone(), blue.clone());
            waiting.spawn(async move { turns.take(&blue, Length::Long).await });
        }
        tokio::task::yield_now().await;
        let long = of_length(&turns, &red, Length::Long).await;
        assert!(long.is_some());
        assert!(
            of_length(&turns, &tenant(60_003), Length::Long)
                .await
                .is_none()
        );
        drop(long);
        assert!(
            of_length(&turns, &tenant(60_003), Length::Long)
                .await
                .is_some()
        );
        drop(held);
        while let Some(turn) = waiting.join_next().await {
            drop(turn.unwrap());
        }
    }
}
