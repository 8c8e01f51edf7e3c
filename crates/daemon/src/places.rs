//! The places of an API's clients: a stated number, and who makes room when all are taken.
//!
//! Connections may stay open as long as they like, as clients of ZeroMQ and of gRPC leave them; a
//! deadline would only be a reason for them to connect again. But a client that is silent keeps no
//! other one out: who comes when all places are taken gets that of the client that has been silent
//! longest, first among those that have never been answered. Who is being answered keeps its place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Clients that lost their place are told of once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// All places. Cheap to clone.
#[derive(Clone)]
pub struct ClientPlaces(Arc<Mutex<Taken>>);

struct Taken {
    /// The API that the clients are of, for the log.
    api: &'static str,
    most: usize,
    next: u64,
    clients: BTreeMap<u64, Client>,
    told: Option<Instant>,
    untold: u64,
}

struct Client {
    /// Since when nothing was asked: since it came, or was answered.
    since: Instant,
    was_answered: bool,
    /// Requests that are not answered yet, streams that go on among them.
    asking: usize,
    displaced: Arc<Notify>,
}

/// One client's place, given back when this is dropped.
pub struct ClientPlace {
    places: ClientPlaces,
    number: u64,
    displaced: Arc<Notify>,
}

impl ClientPlaces {
    pub fn new(api: &'static str, most: usize) -> ClientPlaces {
        ClientPlaces(Arc::new(Mutex::new(Taken {
            api,
            most,
            next: 0,
            clients: BTreeMap::new(),
            told: None,
            untold: 0,
        })))
    }

    /// A place for who comes; `None` when all who have one are being answered.
    pub fn take(&self) -> Option<ClientPlace> {
        let mut taken = self.lock();
        if taken.clients.len() >= taken.most {
            let silent = taken
                .clients
                .iter()
                .filter(|(_, client)| client.asking == 0);
            let longest = silent.min_by_key(|(_, client)| (client.was_answered, client.since));
            let longest = longest.map(|(number, _)| *number);
            taken.warn_full(longest.is_some());
            let client = taken.clients.remove(&longest?)?;
            client.displaced.notify_one();
        }
        let (number, displaced) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        let client = Client {
            since: Instant::now(),
            was_answered: false,
            asking: 0,
            displaced: displaced.clone(),
        };
        taken.clients.insert(number, client);
        Some(ClientPlace {
            places: self.clone(),
            number,
            displaced,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Logs that all places are taken, at most once in [`TOLD_EVERY`].
    fn warn_full(&mut self, displaced: bool) {
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        let what = match displaced {
            true => "the one that has been silent longest gives way to a new one",
            false => "all of them are being answered, a new one is turned away",
        };
        tracing::warn!(
            "all {} places of {} clients are taken: {what} ({} times since this was last said)",
            self.most,
            self.api,
            self.untold
        );
        (self.told, self.untold) = (Some(Instant::now()), 0);
    }
}

impl ClientPlace {
    /// Its client asks, and keeps its place until as many calls of [`end`](Self::end). False when
    /// it has lost it.
    pub fn begin(&self) -> bool {
        match self.places.lock().clients.get_mut(&self.number) {
            Some(client) => {
                client.asking += 1;
                true
            }
            None => false,
        }
    }

    /// It is answered.
    pub fn end(&self) {
        if let Some(client) = self.places.lock().clients.get_mut(&self.number) {
            (client.was_answered, client.since) = (true, Instant::now());
            client.asking = client.asking.saturating_sub(1);
        }
    }

    /// Takes the place away.
    pub fn displace(&self) {
        self.places.lock().clients.remove(&self.number);
        self.displaced.notify_one();
    }

    /// Returns when somebody else has got the place.
    pub fn displaced(&self) -> impl Future<Output = ()> + Send + use<> {
        let displaced = self.displaced.clone();
        async move { displaced.notified().await }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.places.lock().clients.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_displaced(place: &ClientPlace) -> bool {
        tokio::time::timeout(Duration::ZERO, place.displaced())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_longest_makes_room() {
        let places = ClientPlaces::new("test", 3);
        let (asked, silent, late) = (
            places.take().unwrap(),
            places.take().unwrap(),
            places.take().unwrap(),
        );
        assert!(asked.begin());
        asked.end();
        tokio::time::advance(Duration::from_secs(1)).await;
        // Two that were never answered go before the one that was.
        let next = places.take().unwrap();
        assert!(is_displaced(&silent).await && !is_displaced(&late).await);
        assert!(!silent.begin(), "what it asks now is not carried out");
        let after = places.take().unwrap();
        assert!(is_displaced(&late).await && !is_displaced(&asked).await);
        // All are being answered: nobody makes room.
        for place in [&asked, &next, &after] {
            assert!(place.begin());
        }
        assert!(places.take().is_none());
        after.end();
        let another = places.take().unwrap();
        assert!(is_displaced(&after).await);
        // A place that is given back is free; one that was lost is not given back twice.
        drop((silent, late, after, another));
        let free = places.take().unwrap();
        assert!(!is_displaced(&next).await && !is_displaced(&free).await);
    }
}
