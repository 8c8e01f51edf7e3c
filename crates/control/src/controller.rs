//! The controller, and the one way all operations go ([`Controller::commit`]). The operations on
//! NICs and groups are in the modules below, thin: each says which content it wants and commits
//! that. Reading is in `read.rs`.

mod groups;
mod nics;
mod overlay;
mod read;
mod underlay;

pub use overlay::{EndpointStatus, NetworkStatus};
pub use underlay::Reach;

use crate::attach::{
    AttachError, Attachments, DataPlane, DataPlaneError, HostSettings, OpenRequest,
};
use crate::compile::Work;
use crate::diff::Diff;
use crate::error::Error;
use crate::event::{EventKind, Events, NicState};
use crate::limits;
use crate::model::{Config, GroupId, Nic, NicKind};
use crate::stage::{Change, Staged};
use crate::state::{NicEntry, State};
use dataplane::snapshot::{PortSlot, PortUid};
use std::sync::Arc;

/// The model, and the way to change it. See the crate's page for how an operation goes.
pub struct Controller {
    settings: HostSettings,
    attachments: Box<dyn Attachments>,
    dataplane: Arc<dyn DataPlane>,
    state: State,
    events: Events,
    requests: u64,
    work: Work,
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
    pub endpoints: usize,
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
            state: State::new(),
            events: Events::new(limits::EVENTS),
            requests: 0,
            work: Work::default(),
        }
    }

    /// Makes the declared configuration the configuration, all or nothing, in one snapshot: what is
    /// not in it is removed. With `dry_run` only says what would change; sockets are not tried
    /// then.
    ///
    /// What a NIC frees another may take at once; but not its socket, interface or trace file,
    /// which is refused ([`Error::PathTaken`]): new ones are opened before old ones are closed, so
    /// that an error loses nothing.
    pub fn apply(&mut self, config: Config, dry_run: bool) -> Result<Diff, Error> {
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
        let mut changes: Vec<Change> = gone.map(|id| Change::RemoveNic(id.clone())).collect();
        let gone = self
            .group_ids()
            .into_iter()
            .filter(|id| !config.groups.contains_key(id));
        changes.extend(gone.map(Change::RemoveGroup));
        changes.extend(config.groups.into_values().map(Change::PutGroup));
        changes.extend(config.nics.into_values().map(Change::PutNic));
        let overlay = self.replace_overlay(config.endpoints, config.networks, config.bindings)?;
        changes.push(Change::Overlay(Box::new(overlay)));
        self.commit(changes, dry_run)
    }

    /// The one way of all operations: stage on a copy, open, compile, publish, then take the copy
    /// and close.
    fn commit(&mut self, changes: Vec<Change>, dry_run: bool) -> Result<Diff, Error> {
        let mut next = self.state.clone();
        let staged = next.stage(changes, &self.settings, &*self.dataplane)?;
        self.check_paths(&staged)?;
        if dry_run || staged.diff.is_empty() {
            return Ok(staged.diff);
        }
        let mut opened = Vec::new();
        let published = self.open(&mut next, &staged, &mut opened).and_then(|()| {
            // What is behind other hosts in networks that nobody here is in concerns no frame.
            if !staged.concerns_frames() {
                return Ok(Work::default());
            }
            let work = next.compile(&staged, &self.settings);
            self.dataplane.publish(Arc::new(next.snapshot.clone()))?;
            Ok(work)
        });
        match published {
            Ok(work) => self.work = work,
            Err(error) => {
                for entry in opened.iter().rev() {
                    self.attachments.close(&entry.nic, entry.slot);
                }
                return Err(error);
            }
        }
        self.state = next;
        for (old, new) in staged.nics.values() {
            let Some(old) = old else { continue };
            match new {
                Some(new) if new.same_port(old) => {
                    // A bench answers ARP for its addresses itself; other guests learn of theirs
                    // elsewhere.
                    let ips =
                        |nic: &Nic| matches!(nic.kind, NicKind::Bench(_)).then(|| nic.ips.clone());
                    let changed =
                        |nic: &Nic| (nic.mac, self.settings.mtu(nic), ips(nic), nic.link_down);
                    if changed(&old.nic) != changed(&new.nic) {
                        self.attachments.reconfigure(&request(&self.settings, new));
                    }
                }
                _ => self.attachments.close(&old.nic, old.slot),
            }
        }
        self.events
            .send_diff(self.state.snapshot.epoch.0, &staged.diff);
        Ok(staged.diff)
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

    /// Opens what new and changed NICs need and have not; `opened` gets what to close should a
    /// later step fail.
    fn open(
        &mut self,
        next: &mut State,
        staged: &Staged,
        opened: &mut Vec<NicEntry>,
    ) -> Result<(), Error> {
        for (id, (old, new)) in &staged.nics {
            let Some(new) = new else { continue };
            let refuse = |AttachError(why)| Error::Attach {
                nic: id.clone(),
                why,
            };
            if !old.as_ref().is_some_and(|old| old.same_port(new)) {
                self.attachments
                    .open(&request(&self.settings, new))
                    .map_err(refuse)?;
                opened.push(new.clone());
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
            self.events
                .send(self.state.snapshot.epoch.0, EventKind::NicState(id, state));
        }
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

fn request<'a>(settings: &HostSettings, entry: &'a NicEntry) -> OpenRequest<'a> {
    OpenRequest {
        nic: &entry.nic,
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
