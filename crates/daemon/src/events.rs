//! Events of one feature, for whoever watches, and in the log. Numbered without gaps; a subscriber
//! that is more than [`KEPT`] behind is told how many it missed.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::Status;

use crate::app::App;

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

/// By the host's clock, since 1970.
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_nanos() as u64
}
