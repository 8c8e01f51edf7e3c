//! What there is a few of at one time, of which one user of this host has the half at the most:
//! whoever takes all that there is keeps the daemon's other users from nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Cheap to clone.
#[derive(Clone)]
pub struct Few {
    all: Arc<Semaphore>,
    /// Of the client's user; `None`: of root and the daemon's own user, and where a client cannot
    /// be told from others.
    own: Option<Arc<Semaphore>>,
    users: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
    each: usize,
}

/// One of them; given back when this is dropped.
#[derive(Debug)]
pub struct Taken(
    #[expect(dead_code, reason = "held")] OwnedSemaphorePermit,
    #[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>,
);

impl Few {
    pub fn new(count: usize) -> Few {
        Few {
            all: Arc::new(Semaphore::new(count)),
            own: None,
            users: Arc::default(),
            each: count.div_ceil(2),
        }
    }

    /// The same for one client, of the user that is called so; `None`: of root or the daemon's own
    /// user, or of nobody who can be told from others.
    pub fn of(&self, user: Option<&str>) -> Few {
        Few {
            own: user.map(|name| self.of_user(name)),
            ..self.clone()
        }
    }

    fn of_user(&self, name: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, own| own.strong_count() > 0);
        match users.get(name).and_then(Weak::upgrade) {
            Some(own) => own,
            None => {
                let own = Arc::new(Semaphore::new(self.each));
                users.insert(name.to_owned(), Arc::downgrade(&own));
                own
            }
        }
    }

    /// Who came first is served first; who waits for his own waits for them alone.
    pub async fn take(&self) -> Taken {
        // None of the semaphores is ever closed.
        const OPEN: &str = "a semaphore that is open";
        let own = match &self.own {
            Some(own) => Some(own.clone().acquire_owned().await.expect(OPEN)),
            None => None,
        };
        Taken(self.all.clone().acquire_owned().await.expect(OPEN), own)
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn one_user_has_the_half_on_however_many_connections() {
        let few = Few::new(4);
        let (blue, red) = (Some("uid 60001"), Some("uid 60002"));
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(few.of(blue).take().await);
        }
        let third = few.of(blue);
        let wait = |few: Few| async move { timeout(Duration::from_secs(9), few.take()).await };
        assert!(wait(third.clone()).await.is_err());
        held.push(few.of(red).take().await);
        held.push(few.of(None).take().await);
        assert_eq!(few.free(), 0);
        held.remove(0);
        held.push(wait(third).await.unwrap());
        drop(held);
        assert_eq!(few.free(), 4);
        few.of(red);
        assert_eq!(
            few.users.lock().unwrap().len(),
            1,
            "who is gone is forgotten"
        );
    }
}
