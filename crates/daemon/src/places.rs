//! The places of an API's clients: a stated number, and who makes room when all are taken.
//!
//! Connections may stay open as long as they like, as clients of ZeroMQ and of gRPC leave them; a
//! deadline would only be a reason for them to connect again. But a client that is silent keeps no
//! other one out: who comes when all places are taken gets that of the client that has been silent
//! longest, first among those that have never been answered. Who is being answered keeps its place.
//!
//! One user of this host, or certificate, has a quarter of them at most, and all who have a part of
//! the networks have half: beyond it they make room by own connections, or are turned away. On a
//! unix socket a sixteenth is for root and the daemon's own user.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::{Peer, Who};

/// Clients that lost their place are told of once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// All places. Cheap to clone.
#[derive(Clone)]
pub struct ClientPlaces(Arc<Mutex<Taken>>);

struct Taken {
    /// The API that the clients are of, for the log.
    api: &'static str,
    most: usize,
    /// Of these, those for root and the daemon's own user.
    kept: usize,
    next: u64,
    clients: BTreeMap<u64, Client>,
    told: Option<Instant>,
    untold: u64,
}

struct Client {
    holder: Holder,
    /// Since when nothing was asked: since it came, or was answered.
    since: Instant,
    was_answered: bool,
    /// Requests that are not answered yet, streams that go on among them.
    asking: usize,
    displaced: Arc<Notify>,
}

/// Whose a place is.
#[derive(Clone, PartialEq, Eq)]
enum Holder {
    /// Root's, or the daemon's own user's.
    Ours,
    /// Of somebody who is one of many, by this name, and whether all that he might do when he came
    /// was for a part of the networks.
    Named(Arc<str>, bool),
    /// It is not known, or is what many clients have in common.
    Anybody,
}

impl Holder {
    fn of(peer: &Peer, of_part: bool) -> Holder {
        let named = || Holder::Named(peer.shown().into(), of_part);
        match &peer.who {
            _ if peer.is_ours() => Holder::Ours,
            Who::Local(_) => named(),
            Who::Certificate { names } if !names.is_empty() => named(),
            Who::Certificate { .. } | Who::V0Tcp | Who::PageToken | Who::Unknown => Holder::Anybody,
        }
    }
}

/// One client's place, given back when this is dropped.
pub struct ClientPlace {
    places: ClientPlaces,
    number: u64,
    displaced: Arc<Notify>,
}

impl ClientPlaces {
    pub fn new(api: &'static str, most: usize) -> ClientPlaces {
        ClientPlaces::keeping(api, most, 0)
    }

    /// Of a unix socket, where users of this host are known as soon as they connect.
    pub fn local(api: &'static str, most: usize) -> ClientPlaces {
        ClientPlaces::keeping(api, most, most.div_ceil(16))
    }

    fn keeping(api: &'static str, most: usize, kept: usize) -> ClientPlaces {
        ClientPlaces(Arc::new(Mutex::new(Taken {
            api,
            most,
            kept,
            next: 0,
            clients: BTreeMap::new(),
            told: None,
            untold: 0,
        })))
    }

    /// A place for who comes, of whom nothing is known yet; `None` when all who have one are being
    /// answered.
    pub fn take(&self) -> Option<ClientPlace> {
        self.take_as(Holder::Anybody)
    }

    /// A place for who is known; `None` also when he has as many as one may, or all who have a part
    /// of the networks as many as they may, and is being answered on all of them. `of_part`: he is
    /// one of these.
    pub fn take_for(&self, peer: &Peer, of_part: bool) -> Option<ClientPlace> {
        self.take_as(Holder::of(peer, of_part))
    }

    fn take_as(&self, holder: Holder) -> Option<ClientPlace> {
        let mut taken = self.lock();
        if !taken.has_room_for(&holder, None) || !taken.make_room(&holder) {
            return None;
        }
        let (number, displaced) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        let client = Client {
            holder,
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
    /// One user has a quarter of the places, and all who have a part of the networks have half.
    /// False: they are being answered on all of them. `new`: the one that is not to make room
    /// itself.
    fn has_room_for(&mut self, holder: &Holder, new: Option<u64>) -> bool {
        let Holder::Named(who, of_part) = holder else {
            return true;
        };
        let each = self.most.div_ceil(4);
        let own = |number: u64, client: &Client| {
            let is_his = matches!(&client.holder, Holder::Named(other, _) if other == who);
            is_his && Some(number) != new
        };
        let one = || format!("{who} has {each} places, which one may have");
        let half = self.most.div_ceil(2);
        let of_parts = |number: u64, client: &Client| {
            matches!(client.holder, Holder::Named(_, true)) && Some(number) != new
        };
        let parts =
            || format!("clients of a part of the networks have {half} places, which is their half");
        self.make_room_among(own, each, one)
            && (!of_part || self.make_room_among(of_parts, half, parts))
    }

    /// False: these have as many as they may, and are being answered on all of them.
    fn make_room_among(
        &mut self,
        of: impl Fn(u64, &Client) -> bool,
        most: usize,
        full: impl FnOnce() -> String,
    ) -> bool {
        let clients = self.clients.iter();
        let theirs = clients.filter(|(number, client)| of(**number, client));
        if theirs.count() < most {
            return true;
        }
        let displaced = self.displace(of);
        self.warn_full(&full(), displaced);
        displaced
    }

    /// False: all who could make room are being answered.
    fn make_room(&mut self, holder: &Holder) -> bool {
        let other = |_: u64, client: &Client| client.holder != Holder::Ours;
        let others = self.clients.values();
        let others = others.filter(|client| other(0, client)).count();
        let has_room = *holder == Holder::Ours || others < self.most - self.kept;
        let is_full = self.clients.len() >= self.most;
        if has_room && !is_full {
            return true;
        }
        // Ours give way where they have more than is kept for them.
        let displaced = self.displace(other) || has_room && self.displace(|_, _| true);
        let full = match is_full {
            true => format!("all {} places are taken", self.most),
            false => format!("all {others} places of others than root are taken"),
        };
        self.warn_full(&full, displaced);
        displaced
    }

    /// Takes the place of the one that is silent longest, of these.
    fn displace(&mut self, of: impl Fn(u64, &Client) -> bool) -> bool {
        let silent = self.clients.iter();
        let silent = silent.filter(|(number, client)| client.asking == 0 && of(**number, client));
        let longest = silent.min_by_key(|(_, client)| (client.was_answered, client.since));
        let longest = longest.map(|(number, _)| *number);
        let client = longest.and_then(|number| self.clients.remove(&number));
        if let Some(client) = &client {
            client.displaced.notify_one();
        }
        client.is_some()
    }

    /// Logs that all places are taken, at most once in [`TOLD_EVERY`].
    fn warn_full(&mut self, full: &str, displaced: bool) {
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        let what = match displaced {
            true => "the one that has been silent longest gives way to a new one",
            false => "all of these are being answered, a new one is turned away",
        };
        tracing::warn!(
            "{} clients: {full}: {what} ({} times since this was last said)",
            self.api,
            self.untold
        );
        (self.told, self.untold) = (Some(Instant::now()), 0);
    }
}

impl ClientPlace {
    /// Its client is known now. False: it has lost the place, or has as many as one may, or all who
    /// have a part of the networks as many as they may. `of_part`: it is one of these.
    pub fn is_of(&self, peer: &Peer, of_part: bool) -> bool {
        let holder = Holder::of(peer, of_part);
        let mut taken = self.places.lock();
        match taken.clients.get_mut(&self.number) {
            Some(client) => client.holder = holder.clone(),
            None => return false,
        }
        taken.has_room_for(&holder, Some(self.number))
    }

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

    fn user(uid: u32) -> Peer {
        match Who::local(uid, 9) {
            Who::Local(user) => Peer::local(user),
            _ => unreachable!(),
        }
    }

    /// One user holds streams on all the connections that are to be had.
    #[tokio::test(start_paused = true)]
    async fn one_user_locks_nobody_out_and_many_lock_root_not_out() {
        let places = ClientPlaces::local("test", 32);
        let ask = |place: ClientPlace| {
            assert!(place.begin());
            place
        };
        let places = &places;
        let all = |uid| std::iter::from_fn(move || places.take_for(&user(uid), false).map(ask));
        let first: Vec<_> = all(60_001).take(100).collect();
        assert_eq!(first.len(), 8, "a quarter");
        let rest: Vec<_> = (60_002..60_010)
            .flat_map(|uid| all(uid).take(100))
            .collect();
        assert_eq!(rest.len(), 32 - 2 - 8, "but for root's");
        let of_root: Vec<_> = all(0).take(100).collect();
        assert_eq!(of_root.len(), 2);
        // Who is silent on one of his makes room for himself, and for nobody else's sake.
        first[3].end();
        assert!(all(60_001).next().is_some());
        assert!(is_displaced(&first[3]).await);
    }

    /// Over TLS a client is known only when it has its place.
    #[tokio::test(start_paused = true)]
    async fn a_certificate_has_a_quarter_of_the_places_as_a_user_has() {
        let places = ClientPlaces::new("test", 16);
        let blue = Peer {
            who: Who::Certificate {
                names: vec!["blue.test".into()],
            },
            address: None,
        };
        let mut held = Vec::new();
        for number in 0..6 {
            let place = places.take().unwrap();
            assert_eq!(place.is_of(&blue, false), number < 4, "{number}");
            if number < 4 {
                assert!(place.begin());
                held.push(place);
            }
        }
        held[0].end();
        let place = places.take().unwrap();
        assert!(place.is_of(&blue, false) && is_displaced(&held[0]).await);
        assert!(places.take().unwrap().is_of(&user(60_001), false));
    }

    /// A tenant has as many certificates, and users, as he likes.
    #[tokio::test(start_paused = true)]
    async fn many_clients_of_parts_leave_the_host_s_operators_half_of_the_places() {
        let places = ClientPlaces::new("test", 16);
        let come = |name: &str, of_part| {
            let peer = Peer {
                who: Who::Certificate {
                    names: vec![name.into()],
                },
                address: None,
            };
            let place = places.take()?;
            (place.is_of(&peer, of_part) && place.begin()).then_some(place)
        };
        let tenants = ["t0", "t1", "t2", "t3"].iter().cycle().take(40);
        let held: Vec<_> = tenants.flat_map(|name| come(name, true)).collect();
        assert_eq!(held.len(), 8, "half");
        let of_operator: Vec<_> = (0..10).flat_map(|_| come("operator", false)).collect();
        assert_eq!(of_operator.len(), 4, "a quarter");
        assert!(come("t0", true).is_none());
        // One of theirs that is silent makes room for another one of them, as on a unix socket.
        held[5].end();
        let next = come("t3", true);
        assert!(next.is_some() && is_displaced(&held[5]).await);
        assert!(places.take_for(&user(60_001), true).is_none());
        held[6].end();
        assert!(places.take_for(&user(60_001), true).is_some());
    }
}
