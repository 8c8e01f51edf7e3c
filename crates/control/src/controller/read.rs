//! What can be asked of a controller; nothing here changes anything.

use super::{Controller, NicStatus, Status};
use crate::attach::HostSettings;
use crate::compile::Work;
use crate::diff::Amounts;
use crate::dot;
use crate::error::Error;
use crate::event::{Event, Part};
use crate::model::{Config, Feature, Group, GroupId, Nic, NicId};
use crate::state::NicEntry;
use crate::stats::{self, GroupStats, NicStats};
use dataplane::FlowCursor;
use dataplane::flow::FlowInfo;
use dataplane::snapshot::PortUid;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Connections that are copied at a time.
const FLOWS_AT_ONCE: usize = 4096;

impl Controller {
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
            hosts: self
                .hosts()
                .map(|status| (status.host.address, (*status.host).clone()))
                .collect(),
            networks: self
                .state
                .overlay
                .options
                .iter()
                .map(|(vni, options)| (*vni, options.clone()))
                .collect(),
            bindings: self
                .bindings(None, None)
                .map(|binding| (binding.key(), binding))
                .collect(),
            services: Some((*self.state.services).clone()),
            interfaces: Feature::ALL
                .map(|feature| (feature, self.interfaces(feature).to_vec()))
                .into(),
            router_acl: Some(self.state.router_acl.clone()),
        }
    }

    /// How much is declared.
    pub fn amounts(&self) -> Amounts {
        let groups = || {
            let entries = self.state.groups.values();
            entries.filter_map(|entry| entry.group.as_ref())
        };
        let overlay = &self.state.overlay;
        let services = &self.state.services;
        let acl = self.state.router_acl.as_ref();
        Amounts {
            nics: self.state.nics.len(),
            groups: groups().count(),
            rules: groups().map(|group| group.rules.len()).sum(),
            members: groups().map(|group| group.members.len()).sum(),
            hosts: self.hosts().count(),
            networks: overlay.options.len(),
            bindings: overlay.bindings.len(),
            services: services.len(),
            servers: services.values().map(|service| service.servers.len()).sum(),
            balancer_interfaces: self.interfaces(Feature::Balancer).len(),
            router_interfaces: self.interfaces(Feature::Router).len(),
            uplinks: self.interfaces(Feature::Uplink).len(),
            router_acls: acl.iter().count(),
            router_acl_rules: acl.map_or(0, |list| list.rules.len()),
        }
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

    pub(super) fn entry(&self, id: &NicId) -> Result<&NicEntry, Error> {
        self.state
            .nics
            .get(id)
            .ok_or_else(|| Error::NoNic(id.clone()))
    }

    pub(super) fn nic_status(&self, entry: &NicEntry) -> NicStatus {
        NicStatus {
            nic: entry.nic.clone(),
            path: entry.path.to_string(),
            trace_path: self.settings.trace_path(&entry.nic),
            mtu: self.settings.mtu(&entry.nic),
            state: entry.state.clone(),
            slot: entry.slot,
            uid: entry.uid,
            missing_groups: self.missing_groups(&entry.nic),
            target_elsewhere: self.is_target_elsewhere(&entry.nic),
        }
    }

    fn is_target_elsewhere(&self, nic: &Nic) -> bool {
        let target = nic.sniff_target.as_ref();
        let target = target.and_then(|id| self.state.nics.get(id));
        target.is_some_and(|target| !nic.sniffs_in(target.nic.vni))
    }

    fn missing_groups(&self, nic: &Nic) -> Vec<GroupId> {
        let groups = nic.security_groups.iter();
        let missing = groups.filter(|group| self.state.group(group).is_none());
        missing.cloned().collect()
    }

    /// What a NIC has counted since it was created.
    pub fn nic_stats(&self, id: &NicId) -> Result<NicStats, Error> {
        Ok(self.stats_of(id, self.entry(id)?))
    }

    fn stats_of(&self, id: &NicId, entry: &NicEntry) -> NicStats {
        let config = self.state.snapshot.ports.get(entry.slot.0 as usize);
        let meters = config
            .and_then(Option::as_ref)
            .and_then(|config| config.meters.as_ref());
        stats::nic_stats(
            id.clone(),
            &self.dataplane.port_counters(entry.slot),
            &entry.baseline,
            meters.map_or((0, 0), |meters| meters.egress.held()),
            entry.mirror.as_ref().map(|tap| tap.capture.counts()),
        )
    }

    /// All NICs, how they are attached and what they have counted, sorted by id.
    pub fn all_nic_stats(&self) -> impl Iterator<Item = (&Nic, &crate::NicState, NicStats)> + '_ {
        self.state
            .nics
            .iter()
            .map(|(id, entry)| (&*entry.nic, &entry.state, self.stats_of(id, entry)))
    }

    /// All groups that exist, sorted by id.
    pub fn groups(&self) -> impl Iterator<Item = Arc<Group>> + '_ {
        self.state
            .groups
            .values()
            .filter_map(|entry| entry.group.clone())
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
        let rules = group
            .rules
            .iter()
            .filter_map(|rule| Some((rule, counters.get(rule)?)))
            .map(|(rule, counter)| {
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
        let uid = id
            .map(|id| self.entry(id))
            .transpose()?
            .map(|entry| entry.uid);
        Ok(self.dataplane.flows(uid)?)
    }

    /// The tracked connections of a NIC, or of all, one after the other for as long as they are
    /// wanted: no more than a page of them is copied ahead.
    pub fn each_flow(
        &self,
        id: Option<&NicId>,
        mut wanted: impl FnMut(FlowInfo) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let entry = id.map(|id| self.entry(id)).transpose()?;
        let uid = entry.map(|entry| entry.uid);
        let mut next = Some(FlowCursor::default());
        while let Some(from) = next {
            let (flows, after) = self.dataplane.flows_page(uid, from, FLOWS_AT_ONCE)?;
            for flow in flows {
                if wanted(flow).is_break() {
                    return Ok(());
                }
            }
            next = after;
        }
        Ok(())
    }

    /// NICs by the identity that [`FlowInfo`] has, for printing it.
    pub fn nics_by_uid(&self) -> BTreeMap<PortUid, NicId> {
        self.state
            .nics
            .iter()
            .map(|(id, entry)| (entry.uid, id.clone()))
            .collect()
    }

    /// Those of these identities that are NICs', and which NICs.
    pub fn nics_with(&self, uids: &BTreeSet<PortUid>) -> impl Iterator<Item = (PortUid, &Nic)> {
        let entries = self.state.nics.values();
        let named = entries.filter(|entry| uids.contains(&entry.uid));
        named.map(|entry| (entry.uid, &*entry.nic))
    }

    /// What all that is behind other hosts is in flows ([`FlowInfo`]), by network that a NIC is in.
    pub fn remotes(&self) -> BTreeMap<wire::Vni, PortUid> {
        let networks = self.state.networks.iter();
        networks.map(|(vni, entry)| (*vni, entry.uid)).collect()
    }

    /// Adds connections, each end's [`PortUid`] being one of this daemon ([`NicStatus::uid`]);
    /// gives back how many were taken. They are judged by today's rules with their next packet.
    pub fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, Error> {
        Ok(self.dataplane.import_flows(flows)?)
    }

    /// Forgets connections; gives back how many were there. What comes of them is judged anew.
    pub fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, Error> {
        Ok(self.dataplane.remove_flows(flows)?)
    }

    /// Events from now on. A receiver that falls [`EVENTS`](crate::limits::EVENTS) behind gets
    /// `Lagged` with how many it missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// The daemon at a glance.
    pub fn status(&self) -> Status {
        Status {
            started_unix_secs: self.settings.started_unix_secs,
            requests: self.requests,
            epoch: self.state.snapshot.epoch.0,
            event_sequence: self.events.number(Part::Switch),
            nics: self.state.nics.len(),
            networks: self.state.networks.len(),
            groups: self.state.group_count,
            rules: self.state.rule_count,
            vnis: self.state.overlay.vnis.len(),
            hosts: self.state.overlay.hosts.len(),
            bindings: self.state.overlay.bindings.len(),
        }
    }

    /// The NICs, networks and groups as a DOT graph.
    pub fn graph_dot(&self) -> String {
        dot::graph(&self.state)
    }

    /// What the daemon was started with.
    pub fn settings(&self) -> &HostSettings {
        &self.settings
    }

    /// What the last operation that changed something had to compile.
    pub fn last_work(&self) -> Work {
        self.work
    }
}
