//! Whether changes are taken now: those of clients wait while another program takes the place of
//! this one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Between two looks of who cannot be woken.
const LOOK: Duration = Duration::from_millis(5);
/// What a client is told whose change was not made.
pub const REPLACED: &str = "another program has taken this daemon's place meanwhile, and nothing \
                            was changed: connect anew, and ask again";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Taken,
    Waiting,
    Over,
}

/// Shared by all who ask. Cheap to clone.
#[derive(Clone)]
pub struct Changes(Arc<watch::Sender<Phase>>);

impl Default for Changes {
    fn default() -> Changes {
        Changes(Arc::new(watch::Sender::new(Phase::Taken)))
    }
}

impl Changes {
    /// They wait.
    pub fn hold(&self) {
        self.0.send_replace(Phase::Waiting);
    }

    /// They are another daemon's: whether [`end`](Changes::end) was called.
    pub fn are_over(&self) -> bool {
        *self.0.borrow() == Phase::Over
    }

    /// They are taken again.
    pub fn resume(&self) {
        self.0.send_replace(Phase::Taken);
    }

    /// They are another daemon's.
    pub fn end(&self) {
        self.0.send_replace(Phase::Over);
    }

    /// Returns when changes are taken; the error is a sentence.
    pub async fn wait(&self) -> Result<(), &'static str> {
        let mut phase = self.0.subscribe();
        let decided = phase.wait_for(|phase| *phase != Phase::Waiting).await;
        // The sender is ours.
        match decided.map(|phase| *phase) {
            Ok(Phase::Over) => Err(REPLACED),
            _ => Ok(()),
        }
    }

    /// [`wait`](Changes::wait), for a thread that may.
    pub fn wait_here(&self) -> Result<(), &'static str> {
        loop {
            match *self.0.borrow() {
                Phase::Taken => return Ok(()),
                Phase::Over => return Err(REPLACED),
                Phase::Waiting => {}
            }
            std::thread::sleep(LOOK);
        }
    }

    /// An error, where they are not taken now; does not wait.
    pub fn are_taken(&self) -> Result<(), &'static str> {
        match *self.0.borrow() {
            Phase::Taken => Ok(()),
            Phase::Waiting => {
                Err("another program is about to take this daemon's place: ask again")
            }
            Phase::Over => Err(REPLACED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_wait_and_are_taken_or_refused() {
        let changes = Changes::default();
        changes.wait().await.unwrap();
        changes.hold();
        assert!(changes.are_taken().unwrap_err().contains("ask again"));
        let waiting = [changes.clone(), changes.clone()].map(|one| {
            let blocking = one.clone();
            let there = tokio::task::spawn_blocking(move || blocking.wait_here());
            (tokio::spawn(async move { one.wait().await }), there)
        });
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|(one, _)| !one.is_finished()));
        changes.resume();
        for (one, other) in waiting {
            assert_eq!((one.await.unwrap(), other.await.unwrap()), (Ok(()), Ok(())));
        }
        changes.end();
        assert_eq!(changes.wait().await, Err(REPLACED));
        assert_eq!(changes.wait_here(), Err(REPLACED));
    }
}
