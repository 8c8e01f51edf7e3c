//! What is declared, in the store: written as a change is made, read at the start, gone back to.
//!
//! An object is stored as the [`v1::Config`] that has nothing but it. Its messages have their
//! compatibility rules, and such documents one behind the other are, by the rules of protobuf, one
//! document with all of them. What says more than this version understands is refused: it would be
//! lost with the next change.
//!
//! A change is written with the controller locked, before it is in force, and synced before it is
//! answered ([`Stored::settle`]), when the controller is free again, so that clients share a sync.
//! Where the client has gone by then, it is synced soon ([`Stored::settle_soon`]).
//! One that takes something away is synced before it is in force: nothing could give a guest its
//! connection back. Should the disk fail in between, the controller is made what the store says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::v1;
use control::model::{Config, Feature, SocketAccess};
use control::{Author, Change, Controller, Diff, Error, HostSettings, Journal, ObjectChange};
use prost::Message;
use store::{Keep, Kind, Object, Put, Revision, Signed, Store, Ticket};

use crate::access::permitted::name_networks;
use crate::app::{Operations, unix_secs};
use crate::held::Held;
use crate::upgrade::{Changes, words};
use crate::v1::{convert, render};

/// How long changes may wait for their sync whose client does not, or has gone.
const SOON: Duration = Duration::from_millis(50);

/// Objects by kind and key, each as its document.
type Objects = BTreeMap<StoredKey, Vec<u8>>;
type StoredKey = (Kind, Vec<u8>);

/// The store of a daemon, and what is its own and not stored.
pub struct Stored {
    store: Store,
    /// Interfaces that options name, and not the store.
    of_options: Mutex<BTreeSet<StoredKey>>,
    /// Changes that are not durable yet, in their order: should the disk fail for good, the store
    /// cannot say what was before them.
    unsynced: Mutex<Vec<Unsynced>>,
    /// A sync is to come, of all that was changed since then.
    soon: Mutex<Option<Ticket>>,
    /// Whether changes are taken.
    changes: Changes,
}

/// A change that is not durable yet.
struct Unsynced {
    ticket: Ticket,
    /// What takes it back.
    inverse: Change,
    /// Interfaces that were options' until then.
    of_options: Vec<StoredKey>,
}

/// What came of reading the store.
pub struct Loaded {
    /// Objects that are there.
    pub objects: usize,
    /// All that were stored are.
    pub whole: bool,
}

impl Stored {
    /// Opens the store of a folder. The error is a sentence.
    pub fn open(folder: &Path, revisions: u64, changes: Changes) -> Result<Arc<Stored>, String> {
        let keep = Keep {
            revisions,
            ..Keep::default()
        };
        let store = Store::open(folder, keep).map_err(|e| e.to_string())?;
        Ok(Stored::over(store, changes))
    }

    /// Over a store that is open.
    pub(crate) fn over(store: Store, changes: Changes) -> Arc<Stored> {
        Arc::new(Stored {
            store,
            of_options: Mutex::default(),
            unsynced: Mutex::default(),
            soon: Mutex::default(),
            changes,
        })
    }

    /// Who writes the controller's changes into it.
    pub fn journal(self: &Arc<Stored>) -> Box<dyn Journal> {
        Box::new(Writer(self.clone()))
    }

    /// Makes the controller, which has nothing yet, what was stored. What this host cannot make now
    /// is said, stays stored, and is tried again at the next start. In `held` is what it goes on
    /// with.
    pub fn load(&self, controller: &mut Controller, held: Option<&Held>) -> Result<Loaded, String> {
        let mut stored: Vec<_> = self.objects()?.into_iter().collect();
        stored.sort_by_key(|((kind, _), _)| turn(*kind));
        let made = self.make(controller, held, &stored)?;
        self.note_unmade(controller)?;
        Ok(Loaded {
            objects: made,
            whole: made == stored.len(),
        })
    }

    /// Makes these objects, all that can be made: how many. Where one cannot, each half of them is
    /// made by itself, so that a few that cannot be made cost little, and so do many of one kind,
    /// which are beside each other.
    fn make(
        &self,
        controller: &mut Controller,
        held: Option<&Held>,
        objects: &[(StoredKey, Vec<u8>)],
    ) -> Result<usize, String> {
        held.iter().for_each(|held| held.begin_again());
        let each = objects.iter().map(|(key, value)| (key, value));
        let config = read(self.store.path(), each, controller.settings())?;
        let Err(why) = controller.add(config) else {
            return Ok(objects.len());
        };
        // What was made is gone again by now.
        held.iter().for_each(|held| held.put_back());
        match objects.split_at(objects.len() / 2) {
            ([], _) => {
                tracing::error!("this stays stored, and is not made: {why}");
                Ok(0)
            }
            (one, other) => {
                Ok(self.make(controller, held, one)? + self.make(controller, held, other)?)
            }
        }
    }

    /// All objects that are there, for a daemon that this one gives way to: see [`load_packed`].
    /// What could not be made here is no reason for that one not to begin, and no business of its
    /// before the next start: it stays stored.
    pub fn packed(&self, controller: &Controller) -> Result<Vec<u8>, String> {
        let made = objects(&controller.config());
        let mut stored = self.objects()?;
        stored.retain(|key, _| made.contains_key(key));
        Ok(packed(&stored))
    }

    /// Refuses a store that has not all of what a daemon before has [packed](Stored::packed): it
    /// is another one than that daemon's, and nothing would write there what is declared already.
    pub fn has_all(&self, packed: &[u8]) -> Result<(), String> {
        let stored = self.objects()?;
        let mut objects = unpacked(packed)?;
        objects.retain(|key, value| stored.get(key) != Some(value));
        match objects.len() {
            0 => Ok(()),
            lacking => Err(format!(
                "the store {} is not that of the daemon before: it lacks {lacking} of its objects; \
                 restart the daemon instead",
                self.store.path().display()
            )),
        }
    }

    /// Whether all that is stored is there; what is not is said.
    pub fn is_whole(&self, controller: &mut Controller) -> Result<bool, String> {
        self.note_unmade(controller)?;
        let unmade = objects(controller.unmade());
        for key in unmade.keys() {
            tracing::error!(
                "this stays stored, and is not made, as in the daemon before: {}",
                name_of(key)
            );
        }
        Ok(unmade.is_empty())
    }

    /// Has the controller know what is stored and not made, so that it can be taken out of the
    /// store.
    fn note_unmade(&self, controller: &mut Controller) -> Result<(), String> {
        let made = objects(&controller.config());
        let mut stored = self.objects()?;
        stored.retain(|key, _| !made.contains_key(key));
        if !stored.is_empty() {
            let unmade = read(self.store.path(), stored.iter(), controller.settings())?;
            controller.set_unmade(unmade);
        }
        Ok(())
    }

    /// Leaves the file to another daemon, with all that was changed in it.
    pub fn give_way(&self) -> Result<(), String> {
        self.store.give_way().map_err(|e| e.to_string())
    }

    /// That daemon has not taken over.
    pub fn take_back(&self) -> Result<(), String> {
        self.store.take_back().map_err(|e| e.to_string())
    }

    /// The last change that was written.
    pub fn last(&self) -> Ticket {
        self.store.last()
    }

    /// Returns when all that was changed by now outlives a crash. An error: something that was
    /// changed since then does not, and is undone.
    pub fn settle(&self, since: Ticket, operations: &Operations) -> Result<(), Error> {
        let last = self.store.last();
        let synced = self.store.sync_since(since, last);
        self.forget_durable();
        synced.map_err(|why| {
            let mut controller = operations.control();
            let refused = Error::Journal(why.to_string());
            match self.reconcile(&mut controller) {
                Ok(()) => refused,
                Err(left) => {
                    tracing::error!("what is not stored could not be undone: {left}");
                    Error::HalfUndone {
                        error: Box::new(refused),
                        left,
                    }
                }
            }
        })
    }

    /// Has all that was changed by now synced soon; at once where there is no runtime to do it in
    /// (any more). Should it fail, what was changed since then is undone.
    pub fn settle_soon(self: &Arc<Stored>, since: Ticket, operations: &Arc<Operations>) {
        let mut soon = self.soon();
        if let Some(first) = &mut *soon {
            *first = since.min(*first);
            return;
        }
        *soon = Some(since);
        drop(soon);
        let (stored, operations) = (self.clone(), operations.clone());
        let settle = move || {
            // Who comes from here on is for the next one.
            let since = stored.soon().take().unwrap_or(since);
            if let Err(why) = stored.settle(since, &operations) {
                tracing::error!("a change that nobody waited for is undone: {why}");
            }
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return settle();
        };
        runtime.spawn(async move {
            tokio::time::sleep(SOON).await;
            let _ = tokio::task::spawn_blocking(settle).await;
        });
    }

    fn soon(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.soon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was changed by now outlives a crash.
    #[cfg(test)]
    pub(crate) fn is_all_durable(&self) -> bool {
        self.store.is_durable(self.store.last()) == Some(true)
    }

    /// Says that a change may come: see [`Store::announce`].
    pub fn announce(&self) -> store::Announced<'_> {
        self.store.announce()
    }

    /// Makes the controller what the store says, beside what options say; or where it says nothing
    /// any more, what it was before the changes that are not durable. What could not be made before
    /// them is not tried.
    fn reconcile(&self, controller: &mut Controller) -> Result<(), String> {
        let mut now = objects(&controller.config());
        // Those that were written since the disk was well again are not lost.
        let is_lost = |one: &mut Unsynced| self.store.is_durable(one.ticket) == Some(false);
        let lost: Vec<_> = self.unsynced().extract_if(.., is_lost).collect();
        let mut unmade = objects(controller.unmade());
        if let Some(first) = lost.first() {
            unmade.extend(objects(&first.inverse.unmade));
        }
        // What was an option's before them is that again, as it was.
        for one in lost.iter().rev() {
            let before = one.inverse.objects.iter().map(put);
            let before = before.map(|put| ((put.kind, put.key), put.value));
            let before = before.filter(|(key, _)| one.of_options.contains(key));
            now.extend(before.filter_map(|(key, value)| Some((key, value?))));
            self.options().extend(one.of_options.iter().cloned());
        }
        let options = self.options().clone();
        let mut wanted = match self.objects() {
            Ok(mut stored) => {
                // What is there as it is stored was made since then by a change that is not lost.
                unmade.retain(|key, _| {
                    let value = stored.get(key);
                    value.is_some() && value != now.get(key)
                });
                stored.extend(now.into_iter().filter(|(key, _)| options.contains(key)));
                stored
            }
            Err(why) => {
                tracing::error!("{why}: changes that it has not are taken back");
                let mut before = now;
                let reversed = lost.iter().rev().flat_map(|one| &one.inverse.objects);
                for Put { kind, key, value } in reversed.map(put) {
                    match value {
                        Some(value) => before.insert((kind, key), value),
                        None => before.remove(&(kind, key)),
                    };
                }
                before
            }
        };
        wanted.retain(|key, _| options.contains(key) || !unmade.contains_key(key));
        let read =
            |objects: &Objects| read(self.store.path(), objects.iter(), controller.settings());
        let (config, unmade) = (read(&wanted)?, read(&unmade)?);
        controller.restore(config).map_err(|e| e.to_string())?;
        controller.set_unmade(unmade);
        Ok(())
    }

    /// The revisions that are kept, newest first.
    pub fn history(&self) -> Result<Vec<Revision>, Error> {
        self.store.history().map_err(unreadable)
    }

    /// The newest revision's number.
    pub fn newest(&self) -> Result<u64, Error> {
        self.store.newest().map_err(unreadable)
    }

    /// What differs between the states after two revisions.
    pub fn compare(&self, from: u64, to: u64, settings: &HostSettings) -> Result<Diff, Error> {
        let at = |revision| {
            let objects = self.at(revision)?;
            read(self.store.path(), objects.iter(), settings).map_err(Error::Invalid)
        };
        Ok(Diff::between(&at(from)?, &at(to)?))
    }

    /// Makes the controller what it was after a revision: a change like any other. Interfaces that
    /// options name stay, and what a sniffer that is stored without a network is to hear is settled
    /// as for one that is declared.
    pub fn roll_back(
        &self,
        controller: &mut Controller,
        revision: u64,
        dry_run: bool,
    ) -> Result<Diff, Error> {
        let now = objects(&controller.config());
        let options = self.options().clone();
        let mut wanted = self.at(revision)?;
        wanted.extend(now.into_iter().filter(|(key, _)| options.contains(key)));
        let config = read(self.store.path(), wanted.iter(), controller.settings());
        let mut config = config.map_err(Error::Invalid)?;
        name_networks(controller, &mut config);
        controller.roll_back(config, dry_run)
    }

    /// Whom sockets of NICs were given to after a revision; nobody where it cannot be read.
    pub fn sockets_at(&self, revision: u64) -> Vec<SocketAccess> {
        let objects = self.at(revision).unwrap_or_default();
        let configs = objects
            .values()
            .map(|value| v1::Config::decode(value.as_slice()));
        let nics = configs.flat_map(|config| config.unwrap_or_default().nics);
        nics.map(|nic| convert::socket_names(&nic)).collect()
    }

    /// The objects as they were after a revision.
    fn at(&self, revision: u64) -> Result<Objects, Error> {
        let patch = self.store.back_to(revision).map_err(|why| match why {
            store::Error::NoRevision { .. } | store::Error::Merged { .. } => {
                Error::NoRevision(why.to_string())
            }
            other => unreadable(other),
        })?;
        let mut objects = self.objects().map_err(Error::Journal)?;
        for (key, value) in patch {
            match value {
                Some(value) => objects.insert(key, value),
                None => objects.remove(&key),
            };
        }
        Ok(objects)
    }

    /// What is durable is not taken back.
    fn forget_durable(&self) {
        let is_durable = |ticket| self.store.is_durable(ticket) == Some(true);
        self.unsynced().retain(|one| !is_durable(one.ticket));
    }

    fn unsynced(&self) -> MutexGuard<'_, Vec<Unsynced>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that options name these interfaces, which were declared before there was a
    /// [journal](Stored::journal).
    pub fn are_of_options(&self, interfaces: &[(Feature, String)]) {
        let key = |(feature, name): &(Feature, String)| (kind_of(*feature), name.clone().into());
        self.options().extend(interfaces.iter().map(key));
    }

    /// A client that takes or gives back an interface makes it the store's: which of these were
    /// options' until now.
    fn take_from_options(&self, puts: &[Put]) -> Vec<StoredKey> {
        let keys = puts.iter().filter(|put| interface(put.kind));
        let keys = keys.map(|put| (put.kind, put.key.clone()));
        let mut options = self.options();
        keys.filter(|key| options.remove(key)).collect()
    }

    fn options(&self) -> MutexGuard<'_, BTreeSet<StoredKey>> {
        let known = self.of_options.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> Result<Objects, String> {
        let objects = self.store.objects().map_err(|e| e.to_string())?;
        let object = |Object { kind, key, value }| ((kind, key), value);
        Ok(objects.into_iter().map(object).collect())
    }
}

/// What is declared, as it is [packed](Stored::packed) when it is stored.
pub fn pack(config: &Config) -> Vec<u8> {
    packed(&objects(config))
}

fn packed(objects: &Objects) -> Vec<u8> {
    let kinds: Vec<[u8; 1]> = objects.keys().map(|(kind, _)| [*kind as u8]).collect();
    let parts = objects.iter().zip(&kinds);
    let parts = parts.flat_map(|(((_, key), value), kind)| [&kind[..], key.as_slice(), value]);
    words::pack(parts)
}

/// Makes the controller, which has nothing yet, what a daemon before has declared, as it
/// [packed](Stored::packed) it; how many objects. The error is a sentence.
pub fn load_packed(controller: &mut Controller, packed: &[u8]) -> Result<usize, String> {
    let objects = unpacked(packed)?;
    let from = Path::new("of the daemon before");
    let whole = read(from, objects.iter(), controller.settings())?;
    controller.restore(whole).map_err(|e| e.to_string())?;
    Ok(objects.len())
}

fn unpacked(packed: &[u8]) -> Result<Objects, String> {
    let damaged = || "what is declared was not handed over as it should be".to_owned();
    let parts = words::unpack(packed).ok_or_else(damaged)?;
    let mut objects = Objects::new();
    for part in parts.chunks(3) {
        let [[kind], key, value] = part else {
            return Err(damaged());
        };
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == *kind);
        let kind = known.ok_or_else(damaged)?;
        objects.insert((kind, key.to_vec()), value.to_vec());
    }
    Ok(objects)
}

/// The configuration that objects are together: all of it, nothing stays as it is.
fn read<'a>(
    path: &Path,
    objects: impl Iterator<Item = (&'a (Kind, Vec<u8>), &'a Vec<u8>)>,
    settings: &HostSettings,
) -> Result<Config, String> {
    let path = path.display();
    let mut whole = v1::Config::default();
    for (key, value) in objects {
        let name = || name_of(key);
        let one = v1::Config::decode(value.as_slice())
            .map_err(|e| format!("the store {path} is damaged: {} is no object: {e}", name()))?;
        if one.encode_to_vec() != *value {
            return Err(format!(
                "the store {path} was written by a newer version: of {} it says what this one \
                 does not know; start that version, or name another folder with --store",
                name()
            ));
        }
        let merged = whole.merge(value.as_slice());
        merged.map_err(|e| format!("the store {path} is damaged: {}: {e}", name()))?;
    }
    let config = convert::config(whole, settings);
    let mut config = config.map_err(|e| format!("the store {path} cannot be used: {e}"))?;
    config.services.get_or_insert_default();
    for feature in Feature::ALL {
        config.interfaces.entry(feature).or_default();
    }
    config.router_acl.get_or_insert_default();
    Ok(config)
}

/// What is to be known of what is stored and not made; nothing where all is.
pub fn unmade_sentence(unmade: &Config) -> Option<String> {
    /// That many are named.
    const NAMED: usize = 5;
    let unmade = objects(unmade);
    let named: Vec<String> = unmade.keys().take(NAMED).map(name_of).collect();
    let more = match unmade.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!unmade.is_empty()).then(|| {
        format!(
            "stored, and could not be made when the daemon started, which its log says why: {}\
             {more}. The next start tries again; so does what declares it anew, and what deletes \
             it takes it out of the store (docs/state.md)",
            named.join(", ")
        )
    })
}

/// What an object is called in messages.
fn name_of((kind, key): &(Kind, Vec<u8>)) -> String {
    format!("{kind:?} '{}'", String::from_utf8_lossy(key).escape_debug())
}

fn unreadable(why: store::Error) -> Error {
    Error::Journal(why.to_string())
}

/// Writes changes.
struct Writer(Arc<Stored>);

impl Journal for Writer {
    fn record(&mut self, change: &Change) -> Result<(), Error> {
        let author = match &change.author {
            Author::Client(name) => name,
            // What the store says, or an option; or the end, at which nothing is forgotten.
            Author::Daemon => {
                let added = change.objects.iter().map(put);
                let added = added.filter(|put| put.value.is_some());
                let added = added.filter(|put| interface(put.kind));
                let added: Vec<StoredKey> = added.map(|put| (put.kind, put.key)).collect();
                self.0.options().extend(added);
                return Ok(());
            }
        };
        self.0
            .changes
            .are_taken()
            .map_err(|why| Error::Journal(why.into()))?;
        let puts: Vec<Put> = change.objects.iter().map(put).collect();
        let signed = Signed {
            author,
            unix_secs: unix_secs(),
            of_part: change.of_part,
        };
        let written = self.0.store.write(signed, &puts);
        let ticket = written.map_err(unreadable)?;
        let takes_away = |put: &Put| {
            put.value.is_none() && (put.kind == Kind::Nic || put.kind == Kind::Service)
                || put.value.is_none() && interface(put.kind)
        };
        if puts.iter().any(takes_away) {
            let synced = self.0.store.sync(ticket).map_err(unreadable);
            self.0.forget_durable();
            // A change that is refused has made nothing of them.
            synced?;
            self.0.take_from_options(&puts);
            return Ok(());
        }
        let of_options = self.0.take_from_options(&puts);
        let inverse = change.clone().inverse();
        self.0.unsynced().push(Unsynced {
            ticket,
            inverse,
            of_options,
        });
        Ok(())
    }
}

fn interface(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::BalancerInterface | Kind::RouterInterface | Kind::Uplink
    )
}

/// When objects of a kind are made where not all can be made at once, by number: what judges before
/// what is judged by it, so that nothing passes meanwhile that would not.
fn turn(kind: Kind) -> u8 {
    match kind {
        Kind::Group => 0,
        Kind::RouterAcl => 1,
        Kind::Network => 2,
        Kind::Host => 3,
        Kind::Binding => 4,
        Kind::Nic => 5,
        Kind::Service => 6,
        Kind::BalancerInterface => 7,
        Kind::RouterInterface => 8,
        Kind::Uplink => 9,
    }
}

/// The kind of a feature's interfaces.
fn kind_of(feature: Feature) -> Kind {
    match feature {
        Feature::Balancer => Kind::BalancerInterface,
        Feature::Router => Kind::RouterInterface,
        Feature::Uplink => Kind::Uplink,
    }
}

/// An object as it will be, for the store.
fn put(change: &ObjectChange) -> Put {
    let mut config = Config::default();
    let (kind, key) = match change {
        ObjectChange::Nic(id, change) => {
            let after = change.after.iter();
            config.nics = after.map(|nic| (id.clone(), (**nic).clone())).collect();
            (Kind::Nic, id.to_string())
        }
        ObjectChange::Group(id, change) => {
            let after = change.after.iter();
            config.groups = after.map(|group| (id.clone(), (**group).clone())).collect();
            (Kind::Group, id.to_string())
        }
        ObjectChange::Host(address, change) => {
            let after = change.after.iter();
            config.hosts = after.map(|one| (*address, (**one).clone())).collect();
            (Kind::Host, address.to_string())
        }
        ObjectChange::Network(vni, change) => {
            // Nothing said is nothing stored.
            let said = |options: &&_| **options != control::model::NetworkOptions::new(*vni);
            let after = change.after.iter().filter(said);
            config.networks = after.map(|options| (*vni, options.clone())).collect();
            (Kind::Network, vni.to_string())
        }
        ObjectChange::Binding(key, change) => {
            let after = change.after.iter();
            config.bindings = after.map(|binding| (*key, binding.clone())).collect();
            (Kind::Binding, format!("{} {}", key.0, key.1))
        }
        ObjectChange::Service(key, change) => {
            let after = change.after.iter();
            let services = after.map(|service| (*key, service.clone())).collect();
            config.services =
                Some(services).filter(|it: &control::model::DeclaredServices| !it.is_empty());
            (Kind::Service, format!("{key:#}"))
        }
        ObjectChange::Interface(feature, name, change) => {
            if let Some(interface) = &change.after {
                config.services = Some(Default::default());
                config.interfaces.insert(*feature, vec![interface.clone()]);
            }
            (kind_of(*feature), name.clone())
        }
        ObjectChange::RouterAcl(change) => {
            config.router_acl = change.after.clone().map(Some);
            (Kind::RouterAcl, "acl".to_owned())
        }
    };
    let document = document(&config).encode_to_vec();
    Put {
        kind,
        key: key.into_bytes(),
        value: Some(document).filter(|document| !document.is_empty()),
    }
}

/// The document of one object: parts of which nothing is said are not there.
fn document(config: &Config) -> v1::Config {
    let mut document = render::config(config);
    if let Some(balancer) = &mut document.balancer {
        let named = |list: &v1::BalancerInterfaces| !list.interfaces.is_empty();
        balancer.interfaces = balancer.interfaces.take().filter(named);
    }
    let says = |balancer: &v1::BalancerConfig| *balancer != v1::BalancerConfig::default();
    document.balancer = document.balancer.take().filter(says);
    document
}

/// All objects of a configuration.
fn objects(config: &Config) -> Objects {
    use control::BeforeAfter;
    fn now<T>(after: T) -> BeforeAfter<T> {
        BeforeAfter {
            before: None,
            after: Some(after),
        }
    }
    let nics = config.nics.iter();
    let nics = nics.map(|(id, nic)| ObjectChange::Nic(id.clone(), now(Arc::new(nic.clone()))));
    let groups = config.groups.iter();
    let groups =
        groups.map(|(id, group)| ObjectChange::Group(id.clone(), now(Arc::new(group.clone()))));
    let hosts = config.hosts.iter();
    let hosts = hosts.map(|(ip, one)| ObjectChange::Host(*ip, now(Arc::new(one.clone()))));
    let networks = config.networks.iter();
    let networks = networks.map(|(vni, one)| ObjectChange::Network(*vni, now(one.clone())));
    let bindings = config.bindings.iter();
    let bindings = bindings.map(|(key, one)| ObjectChange::Binding(*key, now(one.clone())));
    let services = config.services.iter().flatten();
    let services = services.map(|(key, one)| ObjectChange::Service(*key, now(one.clone())));
    let interfaces = config.interfaces.iter().flat_map(|(feature, list)| {
        let one = |one: &control::model::Interface| {
            ObjectChange::Interface(*feature, one.name.clone(), now(one.clone()))
        };
        list.iter().map(one)
    });
    let router_acl = config.router_acl.iter().flatten();
    let router_acl = router_acl.map(|list| ObjectChange::RouterAcl(now(list.clone())));
    let all = groups
        .chain(nics)
        .chain(hosts)
        .chain(networks)
        .chain(bindings)
        .chain(services)
        .chain(interfaces)
        .chain(router_acl);
    all.filter_map(|change| {
        let Put { kind, key, value } = put(&change);
        Some(((kind, key), value?))
    })
    .collect()
}

#[cfg(test)]
mod tests;
