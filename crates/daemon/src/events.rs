//! Events of one feature, for whoever watches, and in the log. Numbered without gaps; a subscriber
//! that is more than [`KEPT`] behind is told how many it missed.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::Status;

use crate::app::App;
use crate::v1::budget::Held;
use crate::v1::reply::PATIENCE;

/// Events kept for a slow watcher.
const KEPT: usize = 4096;
/// Events on their way to one client: one may be a group with all of its rules and members. What it
/// is behind with beyond them waits in the channel of all, where an event is a name.
const AHEAD: usize = 1;

/// What can happen.
pub trait Kind: Clone {
    /// Says it in the log, if it belongs there.
    fn log(&self);
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event<K> {
    /// 1 for the first since the daemon started, then one more each.
    pub sequence: u64,
    pub kind: K,
}

/// Numbers events, logs and sends them.
pub struct Events<K> {
    sequence: u64,
    sender: broadcast::Sender<Event<K>>,
}

impl<K: Kind> Default for Events<K> {
    fn default() -> Events<K> {
        Events {
            sequence: 0,
            sender: broadcast::Sender::new(KEPT),
        }
    }
}

impl<K: Kind> Events<K> {
    pub fn subscribe(&self) -> broadcast::Receiver<Event<K>> {
        self.sender.subscribe()
    }

    /// Somebody watches: for events that cost something to make.
    pub fn are_watched(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    pub fn send(&mut self, kind: K) {
        kind.log();
        self.sequence += 1;
        let sequence = self.sequence;
        // An error only says that nobody listens.
        let _ = self.sender.send(Event { sequence, kind });
    }
}

/// A stream for one client: what `forward` sends, until that ends, the client goes or the daemon
/// stops.
pub fn stream<E, F>(
    app: Arc<App>,
    forward: impl FnOnce(Sender<Result<E, Status>>) -> F,
) -> Receiver<Result<E, Status>>
where
    E: Send + 'static,
    F: Future<Output = Option<()>> + Send + 'static,
{
    let (sender, receiver) = channel(AHEAD);
    let gone = sender.clone();
    let forwarding = forward(sender);
    tokio::spawn(async move {
        tokio::select! {
            () = app.stopping() => (),
            () = gone.closed() => (),
            _ = forwarding => (),
        }
    });
    receiver
}

/// Sends all that was made for one reader, and holds it for so long; `None`: nothing more is to be
/// sent. Who does not read what there is has nothing more kept for it.
pub async fn tell<E>(
    made: Result<(Vec<E>, Held), Status>,
    sender: &Sender<Result<E, Status>>,
) -> Option<()> {
    let (all, held) = match made {
        Ok(made) => made,
        Err(status) => {
            let _ = sender.send(Err(status)).await;
            return None;
        }
    };
    let mut rest = all.into_iter();
    while let Some(one) = rest.next() {
        let Err(late) = sender.send_timeout(Ok(one), PATIENCE).await else {
            continue;
        };
        drop((rest, held));
        if let SendTimeoutError::Timeout(_) = late {
            let why = format!("what is there was not read for {} s", PATIENCE.as_secs());
            let _ = sender.send(Err(Status::deadline_exceeded(why))).await;
        }
        return None;
    }
    Some(())
}

/// By the host's clock, since 1970.
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::budget::{Budget, collect};

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn what_is_there_is_held_until_it_is_read_and_no_longer_than_is_waited() {
        let budget = Budget::of("answers", 3 * MIB, 0);
        let make = || {
            let all = (0..3).map(|_| vec![7u8; MIB]);
            collect(all, Vec::len, budget.begin(None, 10))
        };
        for is_read in [true, false] {
            let (sender, mut receiver) = channel(AHEAD);
            let made = make();
            assert!(make().is_err(), "there is room for one reader's");
            let told = tokio::spawn(async move { tell(made, &sender).await });
            if is_read {
                for _ in 0..3 {
                    // Slowly.
                    tokio::time::sleep(PATIENCE / 2).await;
                    assert_eq!(receiver.recv().await.unwrap().unwrap().len(), MIB);
                }
                assert_eq!(told.await.unwrap(), Some(()));
            } else {
                tokio::time::sleep(PATIENCE * 2).await;
                assert!(make().is_ok(), "it is held for who does not read");
                assert!(receiver.recv().await.unwrap().is_ok());
                let late = receiver.recv().await.unwrap().unwrap_err();
                assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
                assert_eq!(told.await.unwrap(), None);
            }
            assert!(receiver.recv().await.is_none());
            assert!(make().is_ok());
        }
        // Where there is no room, its reader is told.
        let (sender, mut receiver) = channel(AHEAD);
        let made = make();
        assert_eq!(tell(make(), &sender).await, None);
        let refused = receiver.recv().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(made);
    }
}
