//! The operations, and the one way they all go ([`Controller::commit`]). Reading is here; what changes NICs and
//! groups is in the modules below, thin: each says which content it wants and commits that.

mod groups;
mod nics;

use crate::attach::{AttachError, Attachments, DataPlane, DataPlaneError, OpenRequest, Settings};
use crate::compile::Work;
use crate::diff::Diff;
use crate::dot;
use crate::error::Error;
use crate::event::{Event, EventKind, Events, NicState};
use crate::limits;
use crate::model::{Config, Group, GroupId, Nic, NicId};
use crate::state::{Change, NicEntry, Staged, State};
use crate::stats::{self, GroupStats, NicStats};
use dataplane::flow::FlowInfo;
use dataplane::snapshot::{PortSlot, PortUid};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::broadcast;

/// The model, and the way to change it. See the crate's page for how an operation goes.
pub struct Controller {
    settings: Settings,
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
    /// As declared.
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
}

impl Controller {
    /// Nothing declared; nothing is published before the first operation.
    pub fn new(
        settings: Settings,
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

    /// Makes the declared configuration the configuration, all or nothing, in one snapshot: what is not in it is
    /// removed. With `dry_run` only says what would change; sockets are not tried then.
    ///
    /// What a NIC frees another may take, its MAC or its VNI's address; but not its socket, interface or trace file:
    /// those are opened before the old ones are closed, so that an error loses nothing.
    pub fn apply(&mut self, config: Config, dry_run: bool) -> Result<Diff, Error> {
        for (key, nic) in config.nics.iter().filter(|(key, nic)| **key != nic.id) {
            return Err(Error::value(
                &format!("NIC '{}'", nic.id),
                "key",
                key.as_str(),
                "is not its id",
            ));
        }
        for (key, group) in config.groups.iter().filter(|(key, group)| **key != group.id) {
            return Err(Error::value(
                &format!("group '{}'", group.id),
                "key",
                key.as_str(),
                "is not its id",
            ));
        }
        let gone = self.state.nics.keys().filter(|id| !config.nics.contains_key(*id));
        let mut changes: Vec<Change> = gone.map(|id| Change::RemoveNic(id.clone())).collect();
        let gone = self
            .group_ids()
            .into_iter()
            .filter(|id| !config.groups.contains_key(id));
        changes.extend(gone.map(Change::RemoveGroup));
        changes.extend(config.groups.into_values().map(Change::PutGroup));
        changes.extend(config.nics.into_values().map(Change::PutNic));
        self.commit(changes, dry_run)
    }

    /// Everything that is declared. Applied again, it changes nothing.
    pub fn config(&self) -> Config {
        let groups = self
            .state
            .groups
            .values()
            .filter_map(|entry| entry.group.as_ref());
        Config {
            nics: self
                .state
                .nics
                .iter()
                .map(|(id, entry)| (id.clone(), (*entry.nic).clone()))
                .collect(),
            groups: groups
                .map(|group| (group.id.clone(), (**group).clone()))
                .collect(),
        }
    }

    /// The one way of all operations: stage on a copy, open, compile, publish, then take the copy and close.
    fn commit(&mut self, changes: Vec<Change>, dry_run: bool) -> Result<Diff, Error> {
        let mut next = self.state.clone();
        let staged = next.stage(changes, &self.settings, &*self.dataplane)?;
        if dry_run || staged.diff.is_empty() {
            return Ok(staged.diff);
        }
        let mut opened = Vec::new();
        let published = self.open(&mut next, &staged, &mut opened).and_then(|()| {
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
                    let changed = |nic: &Nic| (nic.mac, self.settings.mtu(nic));
                    if changed(&old.nic) != changed(&new.nic) {
                        self.attachments.reconfigure(&request(&self.settings, new));
                    }
                }
                _ => self.attachments.close(&old.nic, old.slot),
            }
        }
        self.events.send_diff(self.state.snapshot.epoch.0, &staged.diff);
        Ok(staged.diff)
    }

    /// Opens what new and changed NICs need and have not; `opened` gets what to close should a later step fail.
    fn open(&mut self, next: &mut State, staged: &Staged, opened: &mut Vec<NicEntry>) -> Result<(), Error> {
        for (id, (old, new)) in &staged.nics {
            let Some(new) = new else { continue };
            let refuse = |AttachError(why)| Error::Attach { nic: id.clone(), why };
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

    /// All NICs, sorted by id.
    pub fn nics(&self) -> impl Iterator<Item = NicStatus> + '_ {
        self.state.nics.values().map(|entry| self.nic_status(entry))
    }

    /// The ids of all NICs, sorted.
    pub fn nic_ids(&self) -> Vec<NicId> {
        self.state.nics.keys().cloned().collect()
    }

    /// One NIC.
    pub fn nic(&self, id: &NicId) -> Result<NicStatus, Error> {
        Ok(self.nic_status(self.entry(id)?))
    }

    fn entry(&self, id: &NicId) -> Result<&NicEntry, Error> {
        self.state.nics.get(id).ok_or_else(|| Error::NoNic(id.clone()))
    }

    fn nic_status(&self, entry: &NicEntry) -> NicStatus {
        NicStatus {
            nic: entry.nic.clone(),
            path: entry.path.to_string(),
            trace_path: self.settings.trace_path(&entry.nic),
            mtu: self.settings.mtu(&entry.nic),
            state: entry.state.clone(),
            slot: entry.slot,
            uid: entry.uid,
        }
    }

    /// What a NIC has counted since it was created.
    pub fn nic_stats(&self, id: &NicId) -> Result<NicStats, Error> {
        let entry = self.entry(id)?;
        Ok(stats::nic_stats(
            id.clone(),
            &self.dataplane.port_counters(entry.slot),
            &entry.baseline,
        ))
    }

    /// All groups that exist, sorted by id.
    pub fn groups(&self) -> impl Iterator<Item = Arc<Group>> + '_ {
        self.state.groups.values().filter_map(|entry| entry.group.clone())
    }

    /// The ids of all groups that exist, sorted.
    pub fn group_ids(&self) -> Vec<GroupId> {
        self.groups().map(|group| group.id.clone()).collect()
    }

    /// One group.
    pub fn group(&self, id: &GroupId) -> Result<Arc<Group>, Error> {
        self.state
            .group(id)
            .cloned()
            .ok_or_else(|| Error::NoGroup(id.clone()))
    }

    /// The NICs that are in a group or name it, sorted; the group need not exist.
    pub fn group_nics(&self, id: &GroupId) -> Vec<NicId> {
        self.state
            .groups
            .get(id)
            .map(|entry| entry.nics.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// What each rule of a group has counted since it was added.
    pub fn group_stats(&self, id: &GroupId) -> Result<GroupStats, Error> {
        let group = self.group(id)?;
        let counters = self
            .state
            .groups
            .get(id)
            .map(|entry| entry.counters.clone())
            .unwrap_or_default();
        let rules = group.rules.iter().zip(counters.iter()).map(|(rule, counter)| {
            let now = self.dataplane.rule_counters(counter.slot);
            stats::rule_stats(rule.clone(), &now, &counter.baseline)
        });
        Ok(GroupStats {
            id: id.clone(),
            rules: rules.collect(),
        })
    }

    /// The tracked connections of a NIC, or of all.
    pub fn export_flows(&self, id: Option<&NicId>) -> Result<Vec<FlowInfo>, Error> {
        let uid = id.map(|id| self.entry(id)).transpose()?.map(|entry| entry.uid);
        Ok(self.dataplane.flows(uid)?)
    }

    /// NICs by the identity that [`FlowInfo`] has, for printing it.
    pub fn nics_by_uid(&self) -> BTreeMap<PortUid, NicId> {
        self.state
            .nics
            .iter()
            .map(|(id, entry)| (entry.uid, id.clone()))
            .collect()
    }

    /// Adds connections, each end's [`PortUid`] being one of this daemon ([`NicStatus::uid`]); gives back how many
    /// were taken. They are judged by today's rules with their next packet.
    pub fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, Error> {
        Ok(self.dataplane.import_flows(flows)?)
    }

    /// Events from now on. A receiver that falls [`limits::EVENTS`] behind gets `Lagged` with how many it missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// A guest came, went or broke the protocol: recorded, and an event if it is news. A slot that no NIC has (any
    /// more) is ignored. Not to be called by a thread that [`Attachments::close`] waits for: it holds the controller.
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

    /// The daemon at a glance.
    pub fn status(&self) -> Status {
        Status {
            started_unix_secs: self.settings.started_unix_secs,
            requests: self.requests,
            epoch: self.state.snapshot.epoch.0,
            event_sequence: self.events.sequence(),
            nics: self.state.nics.len(),
            networks: self.state.networks.len(),
            groups: self.state.group_count,
            rules: self.state.rule_count,
        }
    }

    /// The NICs, networks and groups as a DOT graph.
    pub fn graph_dot(&self) -> String {
        dot::graph(&self.state)
    }

    /// What the daemon was started with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the last operation that changed something had to compile.
    pub fn last_work(&self) -> Work {
        self.work
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &State {
        &self.state
    }
}

fn request<'a>(settings: &Settings, entry: &'a NicEntry) -> OpenRequest<'a> {
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
