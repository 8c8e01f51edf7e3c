//! The controller, and the one way all operations go ([`Controller::commit`]). The operations on
//! NICs and groups are in the modules below, thin: each says which content it wants and commits
//! that. Reading is in `read.rs`.

mod counts;
mod groups;
mod heal;
mod interfaces;
mod nics;
mod overlay;
mod own;
mod parts;
mod read;
mod record;
mod services;
mod trace;
mod underlay;
mod unmade;

pub use counts::nic_key;
pub use heal::Healed;
pub use overlay::{HostStatus, NetworkStatus};
pub use trace::{Explained, GroupVerdict, Miss};
pub use underlay::Reach;

use crate::attach::{
    AttachError, Attachments, DataPlane, DataPlaneError, Declared, Ending, HostSettings,
    OpenRequest,
};
use crate::compile::Work;
use crate::diff::Diff;
use crate::error::Error;
use crate::event::{EventKind, Events, NicState};
use crate::features::{Features, InterfaceStatus, NoFeatures};
use crate::journal::{Author, Journal};
use crate::limits;
use crate::model::{Config, Feature, GroupId, Nic, NicKind, Part, ServiceKey};
use crate::services::Checks;
use crate::stage::{Change, OverlayChanges, Staged};
use crate::state::{NicEntry, State};
use dataplane::snapshot::{PortSlot, PortUid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The model, and the way to change it. See the crate's page for how an operation goes.
pub struct Controller {
    settings: HostSettings,
    attachments: Box<dyn Attachments>,
    dataplane: Arc<dyn DataPlane>,
    features: Box<dyn Features>,
    /// `None`: nobody wants to know.
    journal: Option<Box<dyn Journal>>,
    /// Who makes the next change.
    author: Author,
    /// What the author may change, with how much may be there; none: all.
    parts: Vec<Part>,
    state: State,
    checks: Checks,
    events: Events,
    requests: u64,
    work: Work,
    changed: Option<Changed>,
}

/// What an operation has changed, for whoever keeps a record of it. There is nothing in it where a
/// NIC that is broken was only tried again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// At most [`LISTED`](Changed::LISTED) of each kind.
    pub diff: Diff,
    /// NICs that it removed, as they were; as many at the most.
    pub removed: Vec<Arc<Nic>>,
    /// Changes beyond those.
    pub more: usize,
    /// The last host, or the last thing that was said of a network, went: networks of which nothing
    /// else is said hear anybody again.
    pub opens_networks: bool,
    /// Networks hear nobody on other hosts, and nothing says that it is to be so; until now there
    /// were none ([`Controller::deaf_networks`]).
    pub deafens_networks: bool,
}

impl Changed {
    /// Changes of one kind that are kept: a configuration may have a million bindings.
    pub const LISTED: usize = 1000;

    fn of(staged: &Staged) -> Changed {
        fn first<T: Clone>(all: &[T], more: &mut usize) -> Vec<T> {
            *more += all.len().saturating_sub(Changed::LISTED);
            all.iter().take(Changed::LISTED).cloned().collect()
        }
        let (diff, mut more) = (&staged.diff, 0);
        let removed = staged.nics.values().filter(|(_, new)| new.is_none());
        Changed {
            diff: Diff {
                nics: first(&diff.nics, &mut more),
                groups: first(&diff.groups, &mut more),
                hosts: first(&diff.hosts, &mut more),
                networks: first(&diff.networks, &mut more),
                bindings: first(&diff.bindings, &mut more),
                services: first(&diff.services, &mut more),
                interfaces: first(&diff.interfaces, &mut more),
                router_acl: diff.router_acl.clone(),
            },
            removed: removed
                .filter_map(|(old, _)| Some(old.as_ref()?.nic.clone()))
                .take(Changed::LISTED)
                .collect(),
            more,
            opens_networks: false,
            deafens_networks: false,
        }
    }
}

/// What an operation has made so far, to be undone should a later step refuse.
#[derive(Default)]
struct Made {
    opened: Vec<NicEntry>,
    /// NICs whose sockets were given to others, as they were.
    given: Vec<NicEntry>,
    /// Services that will be open; `None`: the data plane was not told of services.
    services: Option<BTreeSet<ServiceKey>>,
    /// The router was told of another access list.
    router_acl: bool,
    /// Interfaces that were touched, and how they were.
    interfaces: Vec<(Feature, String, Option<InterfaceStatus>)>,
}

/// A NIC as it is: what was declared and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicStatus {
    /// The NIC as it was declared.
    pub nic: Arc<Nic>,
    /// The socket's path or the interface's name; empty for a bench NIC.
    pub path: String,
    /// Where its packets are written, or would be if it were asked for.
    pub trace_path: String,
    /// Its largest packet.
    pub mtu: u16,
    /// Whether a guest is there.
    pub state: NicState,
    /// Its port's slot.
    pub slot: PortSlot,
    /// Its identity in flows: another one when its MAC, VNI or attachment changes.
    pub uid: PortUid,
    /// Those of its groups that are not there.
    pub missing_groups: Vec<GroupId>,
    /// A NIC that has the id of its target is in another network than the one that is meant:
    /// nothing of it is copied.
    pub target_elsewhere: bool,
}

/// The daemon at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// When it started, Unix seconds.
    pub started_unix_secs: u64,
    /// Requests that its APIs have taken.
    pub requests: u64,
    /// The snapshot in force.
    pub epoch: u64,
    /// The last event's number.
    pub event_sequence: u64,
    /// NICs.
    pub nics: usize,
    /// Virtual networks with a NIC.
    pub networks: usize,
    /// Groups that exist.
    pub groups: usize,
    /// Rules of all groups.
    pub rules: usize,
    /// Virtual networks that anything speaks of.
    pub vnis: usize,
    /// Other hosts.
    pub hosts: usize,
    /// MACs that are bound to them.
    pub bindings: usize,
}

impl Controller {
    /// Nothing declared; nothing is published before the first operation.
    pub fn new(
        settings: HostSettings,
        attachments: Box<dyn Attachments>,
        dataplane: Arc<dyn DataPlane>,
    ) -> Controller {
        Controller {
            settings,
            attachments,
            dataplane,
            features: Box::new(NoFeatures),
            journal: None,
            author: Author::Daemon,
            parts: Vec::new(),
            state: State::new(),
            checks: Checks::default(),
            events: Events::new(limits::EVENTS),
            requests: 0,
            work: Work::default(),
            changed: None,
        }
    }

    /// With a load balancer, a router and uplinks.
    pub fn with_features(mut self, features: Box<dyn Features>) -> Controller {
        self.features = features;
        self
    }

    /// With somebody who records every change from now on.
    pub fn with_journal(mut self, journal: Box<dyn Journal>) -> Controller {
        self.journal = Some(journal);
        self
    }

    /// Who makes the changes from now on.
    pub fn set_author(&mut self, author: Author) {
        self.author = author;
    }

    /// What of it the author may change: a change that leaves more in a part than may be there is
    /// refused. None: all. Whether a change is in a part is for the caller to look at.
    pub fn set_parts(&mut self, parts: Vec<Part>) {
        self.parts = parts;
    }

    /// What operations changed since this was last asked; of several the last one.
    pub fn take_changed(&mut self) -> Option<Changed> {
        self.changed.take()
    }

    /// Makes the declared configuration the configuration, all or nothing, in one snapshot: what is
    /// not in it is removed. With `dry_run` only says what would change; sockets are not tried
    /// then.
    ///
    /// What a NIC frees another may take at once; but not its socket, interface or trace file,
    /// which is refused ([`Error::PathTaken`]): new ones are opened before old ones are closed, so
    /// that an error loses nothing.
    ///
    /// What is stored and could not be made ([`unmade`](Controller::unmade)) is stored no more
    /// where it is not in it.
    pub fn apply(&mut self, config: Config, dry_run: bool) -> Result<Diff, Error> {
        let forget = self.forget_beside(&config);
        self.replace(Declared::InDocument, config, vec![forget], dry_run)
    }

    /// As [`apply`](Controller::apply), with a configuration that was declared before.
    pub fn roll_back(&mut self, config: Config, dry_run: bool) -> Result<Diff, Error> {
        let forget = self.forget_beside(&config);
        self.replace(Declared::Before, config, vec![forget], dry_run)
    }

    /// As [`roll_back`](Controller::roll_back), and what could not be made stays stored.
    pub fn restore(&mut self, config: Config) -> Result<Diff, Error> {
        self.replace(Declared::Before, config, Vec::new(), false)
    }

    fn replace(
        &mut self,
        declared: Declared,
        config: Config,
        mut changes: Vec<Change>,
        dry_run: bool,
    ) -> Result<Diff, Error> {
        if let Some((key, nic)) = config.nics.iter().find(|(key, nic)| **key != nic.id) {
            return Err(Error::value(
                &nic.owner(),
                "key",
                key.as_str(),
                "is not its id",
            ));
        }
        if let Some((key, group)) = config.groups.iter().find(|(key, group)| **key != group.id) {
            let owner = format!("group '{}'", group.id);
            return Err(Error::value(&owner, "key", key.as_str(), "is not its id"));
        }
        let gone = self
            .state
            .nics
            .keys()
            .filter(|id| !config.nics.contains_key(*id));
        changes.extend(gone.map(|id| Change::RemoveNic(id.clone())));
        let gone = self
            .group_ids()
            .into_iter()
            .filter(|id| !config.groups.contains_key(id));
        changes.extend(gone.map(Change::RemoveGroup));
        changes.extend(config.groups.into_values().map(Change::PutGroup));
        changes.extend(config.nics.into_values().map(Box::new).map(Change::PutNic));
        let overlay = self.replace_overlay(config.hosts, config.networks, config.bindings)?;
        changes.push(Change::Overlay(Box::new(overlay)));
        changes.extend(config.services.map(Change::Services));
        let interfaces = config.interfaces.into_iter();
        changes.extend(interfaces.map(|(feature, list)| Change::Interfaces(feature, list)));
        changes.extend(config.router_acl.map(Change::RouterAcl));
        self.commit_as(declared, changes, dry_run)
    }

    /// Adds what was declared before to the configuration, all or nothing, in one snapshot. Nothing
    /// is removed; what is there and declared otherwise is replaced.
    pub fn add(&mut self, config: Config) -> Result<Diff, Error> {
        let groups = config.groups.into_values().map(Change::PutGroup);
        let nics = config.nics.into_values().map(Box::new).map(Change::PutNic);
        let mut changes: Vec<Change> = groups.chain(nics).collect();
        fn put<K, V>((key, value): (K, V)) -> (K, Option<V>) {
            (key, Some(value))
        }
        changes.push(Change::Overlay(Box::new(OverlayChanges {
            hosts: config.hosts.into_iter().map(put).collect(),
            networks: config.networks,
            bindings: config.bindings.into_iter().map(put).collect(),
        })));
        if let Some(more) = config.services.filter(|services| !services.is_empty()) {
            let mut services = (*self.state.services).clone();
            services.extend(more);
            changes.push(Change::Services(services));
        }
        for (feature, more) in config.interfaces {
            let mut interfaces = self.interfaces(feature).to_vec();
            interfaces.retain(|one| more.iter().all(|new| new.name != one.name));
            interfaces.extend(more);
            changes.push(Change::Interfaces(feature, interfaces));
        }
        let list = config.router_acl.flatten();
        changes.extend(list.map(|list| Change::RouterAcl(Some(list))));
        self.commit(changes, false)
    }

    fn commit(&mut self, changes: Vec<Change>, dry_run: bool) -> Result<Diff, Error> {
        self.commit_as(Declared::Before, changes, dry_run)
    }

    /// The one way of all operations: stage on a copy, make, record, publish, then take the copy
    /// and close. What a step refuses undoes all that the steps before it made.
    fn commit_as(
        &mut self,
        declared: Declared,
        changes: Vec<Change>,
        dry_run: bool,
    ) -> Result<Diff, Error> {
        let mut next = self.state.clone();
        let mut staged = next.stage(changes, &self.settings, &*self.dataplane)?;
        parts::check(&self.parts, &self.author, &self.state, &next, &staged)?;
        self.check_paths(&staged)?;
        self.admit(&staged.diff)?;
        if dry_run || staged.diff.is_empty() && staged.forgotten.is_empty() {
            return Ok(staged.diff.and(staged.forgotten));
        }
        let mut made = Made::default();
        let published = self.make(declared, &mut next, &staged, &mut made);
        match published.and_then(|()| self.put_in_force(&mut next, &staged)) {
            Ok(work) => self.work = work,
            Err(error) => return Err(self.undo(made, error)),
        }
        let before = std::mem::replace(&mut self.state, next);
        self.note_counted(&before, &staged);
        self.settings.overlay |= staged.overlay.begins;
        if let Some(open) = made.services {
            let services = &self.state.services;
            self.checks
                .follow(self.features.now(), &before.services, services, open);
            self.features.checks_changed();
        }
        self.close_and_reconfigure(declared, &staged);
        self.events
            .send_diff(self.state.snapshot.epoch.0, &staged.diff);
        if !staged.diff.services.is_empty() {
            self.settle();
        }
        let forgotten = std::mem::take(&mut staged.forgotten);
        staged.diff = std::mem::take(&mut staged.diff).and(forgotten);
        self.changed = Some(Changed {
            deafens_networks: self.deafens(&before, &staged),
            opens_networks: self.state.overlay.is_undeclared() && !before.overlay.is_undeclared(),
            ..Changed::of(&staged)
        });
        Ok(staged.diff)
    }

    /// Refuses checks that this host does not run.
    fn admit(&self, diff: &Diff) -> Result<(), Error> {
        for service in diff.services.iter().filter_map(|change| change.to.as_ref()) {
            if let Some(check) = &service.check {
                let admitted = self.features.admit(check);
                admitted.map_err(|e| Error::check(&service.owner(), e))?;
            }
        }
        Ok(())
    }

    /// Makes what can be refused and can be undone: attachments, services, the access list,
    /// interfaces.
    fn make(
        &mut self,
        declared: Declared,
        next: &mut State,
        staged: &Staged,
        made: &mut Made,
    ) -> Result<(), Error> {
        self.open(declared, next, staged, made)?;
        if !staged.diff.services.is_empty() {
            let (services, open) = self.checks.after(&self.state.services, &next.services);
            self.features
                .balance(&services)
                .map_err(of(Feature::Balancer))?;
            made.services = Some(open);
        }
        // Before the router has interfaces, so that none of their packets passes unjudged.
        if let Some(change) = &staged.diff.router_acl {
            self.features
                .judge(change.to.as_deref())
                .map_err(of(Feature::Router))?;
            made.router_acl = true;
        }
        for change in &staged.diff.interfaces {
            let (feature, name) = (change.feature, &change.name);
            let before = self.features.interface(feature, name);
            let before = before.map_err(of(feature))?;
            let done = match &change.to {
                None => self.features.give_back(feature, name),
                Some(to) => self.features.take(feature, name, to.mode).map(drop),
            };
            done.map_err(of(feature))?;
            made.interfaces.push((feature, name.clone(), before));
        }
        Ok(())
    }

    /// Records the change, and has the workers use it. What is behind other hosts in networks that
    /// nobody here is in concerns no frame.
    fn put_in_force(&mut self, next: &mut State, staged: &Staged) -> Result<Work, Error> {
        let concerns_frames = staged.concerns_frames();
        let work = match concerns_frames {
            true => next.compile(staged, &self.settings),
            false => Work::default(),
        };
        let recorded = match &mut self.journal {
            None => None,
            Some(journal) => {
                let of_part = !self.parts.is_empty();
                let of =
                    |diff| record::change(self.author.clone(), of_part, &self.state, next, diff);
                let mut change = of(&staged.diff);
                change.objects.extend(of(&staged.forgotten).objects);
                journal.record(&change)?;
                Some(change)
            }
        };
        if concerns_frames
            && let Err(error) = self.dataplane.publish(Arc::new(next.snapshot.clone()))
        {
            if let (Some(journal), Some(change)) = (&mut self.journal, recorded) {
                // The daemon ends with its worker: there is nobody left to be told of a refusal.
                let _ = journal.record(&change.inverse());
            }
            return Err(error.into());
        }
        Ok(work)
    }

    /// Undoes what was made, last first; the error that is to be answered.
    fn undo(&mut self, made: Made, error: Error) -> Error {
        let mut left = Vec::new();
        for (feature, name, before) in made.interfaces.into_iter().rev() {
            left.extend(self.features.restore(feature, &name, before).err());
        }
        if made.router_acl {
            let acl = self.state.router_acl.clone();
            left.extend(self.features.judge(acl.as_deref()).err());
        }
        if made.services.is_some() {
            let services = self.checks.now(&self.state.services);
            left.extend(self.features.balance(&services).err());
        }
        for old in made.given.iter().rev() {
            let request = request(&self.settings, old, Declared::Before);
            let given = self.attachments.give_socket(&request);
            left.extend(given.err().map(|AttachError(why)| why));
        }
        let opened = made.opened.into_iter().rev();
        let opened: Vec<_> = opened.map(|entry| (entry.nic, entry.slot)).collect();
        self.attachments.close(&opened);
        match left.is_empty() {
            true => error,
            false => Error::HalfUndone {
                error: Box::new(error),
                left: left.join("; "),
            },
        }
    }

    /// Closes the attachments that nobody needs any more, and tells those that stay of their new
    /// values.
    fn close_and_reconfigure(&mut self, declared: Declared, staged: &Staged) {
        let mut gone = Vec::new();
        for (old, new) in staged.nics.values() {
            let Some(old) = old else { continue };
            match new {
                Some(new) if new.same_port(old) => {
                    // A bench answers ARP for its addresses itself, and a veth is given them; other
                    // guests learn of theirs elsewhere.
                    let ips = |nic: &Nic| {
                        let own = matches!(nic.kind, NicKind::Bench(_) | NicKind::Veth(_));
                        own.then(|| nic.ips.clone())
                    };
                    // What is left of a guest's session is for the network that it was in.
                    let network = |nic: &Nic| (nic.kind == NicKind::VhostUser).then_some(nic.vni);
                    let changed = |nic: &Nic| {
                        let (mtu, link_down) = (self.settings.mtu(nic), nic.link_down);
                        (nic.mac, mtu, ips(nic), link_down, network(nic))
                    };
                    if changed(&old.nic) != changed(&new.nic) || old.nic.kind != new.nic.kind {
                        let request = request(&self.settings, new, declared);
                        self.attachments.reconfigure(&request);
                    }
                    // Its guest has said where it is to the network that it was in, as one does
                    // that has just moved to this host.
                    if old.nic.vni != new.nic.vni {
                        self.dataplane.announce(new.slot);
                    }
                }
                _ => gone.push((old.nic.clone(), old.slot)),
            }
        }
        self.attachments.close(&gone);
    }

    /// What goes on of the operations since this was last asked, to be waited for when nobody else
    /// has to wait for the controller. `None`: nothing does.
    pub fn take_ending(&mut self) -> Option<Ending> {
        self.attachments.ending()
    }

    /// What is opened must not be open still for another NIC: closing the old would then take the
    /// new one's file away.
    fn check_paths(&self, staged: &Staged) -> Result<(), Error> {
        for (old, new) in staged.nics.values() {
            let Some(new) = new else { continue };
            let path =
                (!old.as_ref().is_some_and(|old| old.same_port(new))).then(|| new.path.to_string());
            let trace = |nic: &Nic| nic.packet_trace.then(|| self.settings.trace_path(nic));
            let before = old.as_ref().and_then(|old| trace(&old.nic));
            let trace = trace(&new.nic).filter(|path| Some(path) != before.as_ref());
            for path in [path, trace].into_iter().flatten() {
                if let Some(other) = self.state.paths.get(path.as_str()) {
                    let (nic, other) = (new.nic.id.clone(), other.clone());
                    return Err(Error::PathTaken { nic, path, other });
                }
            }
        }
        Ok(())
    }

    /// Opens what new and changed NICs need and have not; `made` gets what to undo should a later
    /// step fail.
    fn open(
        &mut self,
        declared: Declared,
        next: &mut State,
        staged: &Staged,
        made: &mut Made,
    ) -> Result<(), Error> {
        for (id, (old, new)) in &staged.nics {
            let Some(new) = new else { continue };
            let refuse = |AttachError(why)| Error::Attach {
                nic: id.clone(),
                why,
            };
            let request = request(&self.settings, new, declared);
            match old.as_ref().filter(|old| old.same_port(new)) {
                None => {
                    self.attachments.open(&request).map_err(refuse)?;
                    made.opened.push(new.clone());
                }
                Some(old) if old.nic.socket != new.nic.socket => {
                    self.attachments.give_socket(&request).map_err(refuse)?;
                    made.given.push(old.clone());
                }
                Some(_) => {}
            }
            if let Some(mirror) = &new.nic.mirror {
                // A mirror that does not change goes on, with what it has counted.
                let same = |old: &&NicEntry| {
                    (&old.nic.mirror, old.nic.vni) == (&new.nic.mirror, new.nic.vni)
                };
                let tap = match old.as_ref().filter(same) {
                    Some(old) => old.mirror.clone(),
                    None => self.attachments.mirror(&new.nic, mirror).map_err(refuse)?,
                };
                if let Some(entry) = next.nics.get_mut(id) {
                    entry.mirror = tap;
                }
            }
            if !new.nic.packet_trace {
                continue;
            }
            let path = self.settings.trace_path(&new.nic);
            let traced = old.as_ref().filter(|old| old.nic.packet_trace);
            let trace = match traced.filter(|old| self.settings.trace_path(&old.nic) == path) {
                Some(old) => old.trace.clone(),
                None => self.attachments.trace(&new.nic, &path).map_err(refuse)?,
            };
            if let Some(entry) = next.nics.get_mut(id) {
                entry.trace = trace;
            }
        }
        Ok(())
    }

    /// A guest came, went or broke the protocol: recorded, and an event if it is news. A slot that
    /// no NIC has (any more) is ignored. Not to be called by a thread that [`Attachments::close`]
    /// waits for: it holds the controller.
    pub fn port_state(&mut self, slot: PortSlot, state: NicState) {
        let Some(id) = self.state.by_slot.get(&slot.0).cloned() else {
            return;
        };
        let Some(entry) = self.state.nics.get_mut(&id) else {
            return;
        };
        if entry.state != state {
            entry.state = state.clone();
            self.send_event(EventKind::NicState(id, state));
        }
    }

    fn send_event(&mut self, kind: EventKind) {
        self.events.send(self.state.snapshot.epoch.0, kind);
    }

    /// Counts a request: each API calls it once for each.
    pub fn count_request(&mut self) {
        self.requests += 1;
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &State {
        &self.state
    }
}

/// A refusal of a feature's.
fn of(feature: Feature) -> impl FnOnce(String) -> Error {
    move |why| Error::Feature { feature, why }
}

fn request<'a>(
    settings: &HostSettings,
    entry: &'a NicEntry,
    declared: Declared,
) -> OpenRequest<'a> {
    OpenRequest {
        nic: &entry.nic,
        declared,
        slot: entry.slot,
        path: &entry.path,
        mtu: settings.mtu(&entry.nic),
        offloads: settings.offloads,
    }
}

impl From<DataPlaneError> for Error {
    fn from(DataPlaneError(why): DataPlaneError) -> Error {
        Error::DataPlane(why)
    }
}
