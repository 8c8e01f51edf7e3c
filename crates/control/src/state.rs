//! Everything a controller knows, in persistent maps: a copy costs nothing, so an operation works on one and either
//! becomes the state or is dropped. [`State::stage`] makes the changes to the indices and checks them;
//! `compile.rs` then builds what they touch.

use crate::attach::{DataPlane, Settings};
use crate::diff::{self, Diff, GroupChange, NicChange, NicDiff};
use crate::error::{Error, quota};
use crate::event::NicState;
use crate::limits;
use crate::model::{Group, GroupId, Nic, NicId, Peer, Rule};
use crate::slots::Slots;
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::snapshot::{GroupIdx, NetworkIdx, PortSlot, PortUid, RuleSlot, Snapshot};
use io::trace::Trace;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Mac, Vni};

/// One change of the model. All of a list are checked and made together.
pub(crate) enum Change {
    PutNic(Nic),
    RemoveNic(NicId),
    PutGroup(Group),
    RemoveGroup(GroupId),
}

/// The model and what it compiles to.
#[derive(Clone)]
pub(crate) struct State {
    pub nics: imbl::OrdMap<NicId, NicEntry>,
    /// Every name that is a group, has NICs in it, or is named by a rule.
    pub groups: imbl::OrdMap<GroupId, GroupEntry>,
    pub networks: imbl::HashMap<Vni, NetworkEntry>,
    /// Who has a port's slot.
    pub by_slot: imbl::HashMap<u32, NicId>,
    /// Who sniffs a NIC, which need not exist.
    pub sniffers: imbl::HashMap<NicId, imbl::OrdSet<NicId>>,
    /// Groups that exist.
    pub group_count: usize,
    /// Rules of all groups.
    pub rule_count: usize,
    /// The last one compiled; the one in force once the operation has succeeded.
    pub snapshot: Snapshot,
    /// Sniffers are not in it: they send nothing.
    macs: imbl::HashMap<(Vni, Mac), NicId>,
    /// Sockets, interfaces and trace files in use.
    paths: imbl::HashMap<Arc<str>, NicId>,
    next_uid: u32,
    port_slots: Slots,
    network_slots: Slots,
    group_slots: Slots,
    rule_slots: Slots,
}

/// A NIC that exists.
#[derive(Clone)]
pub(crate) struct NicEntry {
    pub nic: Arc<Nic>,
    pub slot: PortSlot,
    pub uid: PortUid,
    pub network: NetworkIdx,
    pub path: Arc<str>,
    pub trace: Option<Trace>,
    pub state: NicState,
    /// What the slot had counted when the NIC got it.
    pub baseline: Arc<PortCounters>,
}

/// A group's name that something refers to.
#[derive(Clone)]
pub(crate) struct GroupEntry {
    pub idx: GroupIdx,
    /// `None`: it does not exist (yet, or any more).
    pub group: Option<Arc<Group>>,
    /// One for each rule of the group.
    pub counters: Arc<Vec<RuleCounter>>,
    pub nics: imbl::OrdSet<NicId>,
    /// Addresses of those NICs, and how many have each.
    pub addresses: imbl::HashMap<IpAddr, u32>,
    /// Rules, of any group, that name this one.
    referrers: usize,
}

/// Where a rule is counted.
#[derive(Clone, Copy)]
pub(crate) struct RuleCounter {
    pub slot: RuleSlot,
    /// What the slot had counted when the rule got it.
    pub baseline: RuleCounters,
}

/// A virtual network with at least one NIC.
#[derive(Clone, Copy)]
pub(crate) struct NetworkEntry {
    pub idx: NetworkIdx,
    /// NICs in it, sniffers included.
    pub nics: usize,
}

/// What [`State::stage`] has done and `compile` has to build.
#[derive(Default)]
pub(crate) struct Staged {
    pub diff: Diff,
    /// NICs as they were and as they will be.
    pub nics: BTreeMap<NicId, (Option<NicEntry>, Option<NicEntry>)>,
    /// NICs whose list of sniffers changes.
    pub sniffed: BTreeSet<NicId>,
    pub groups: BTreeMap<GroupId, GroupTouch>,
    /// Group indices that nobody refers to any more.
    pub dropped_groups: Vec<GroupIdx>,
    /// Networks whose last NIC goes.
    pub dropped_networks: Vec<NetworkIdx>,
}

/// What of a group is touched.
#[derive(Default)]
pub(crate) struct GroupTouch {
    /// Rules, settings or existence.
    pub whole: bool,
    /// Addresses that came or went, and whether the group stood for them before.
    pub members: HashMap<IpAddr, bool>,
}

impl GroupEntry {
    /// True when the group, if it exists, stands for the address.
    pub fn stands_for(&self, address: &IpAddr) -> bool {
        self.addresses.contains_key(address)
            || self
                .group
                .as_ref()
                .is_some_and(|group| group.members.contains(address))
    }

    fn rules(&self) -> &[Rule] {
        self.group.as_ref().map_or(&[], |group| &group.rules)
    }
}

impl NicEntry {
    /// True when its port stays as it is: the guest's connection is kept.
    pub fn same_port(&self, other: &NicEntry) -> bool {
        self.slot == other.slot
    }
}

impl State {
    pub fn new() -> State {
        State {
            nics: imbl::OrdMap::new(),
            groups: imbl::OrdMap::new(),
            networks: imbl::HashMap::new(),
            by_slot: imbl::HashMap::new(),
            sniffers: imbl::HashMap::new(),
            group_count: 0,
            rule_count: 0,
            snapshot: Snapshot::default(),
            macs: imbl::HashMap::new(),
            paths: imbl::HashMap::new(),
            next_uid: 1,
            port_slots: Slots::new(limits::NICS),
            // A network or a name may end and another begin in one operation: twice what can be in use.
            network_slots: Slots::new(2 * limits::NICS),
            group_slots: Slots::new(usize::MAX),
            rule_slots: Slots::new(limits::RULES),
        }
    }

    /// The group, if it exists.
    pub fn group(&self, id: &GroupId) -> Option<&Arc<Group>> {
        self.groups.get(id)?.group.as_ref()
    }

    /// Makes the changes to everything but the snapshot, and checks them. After an error the state is half
    /// changed and to be dropped. `dataplane` is asked for nothing but the counters of slots that are used again.
    pub fn stage(
        &mut self,
        changes: Vec<Change>,
        settings: &Settings,
        dataplane: &dyn DataPlane,
    ) -> Result<Staged, Error> {
        let mut staged = Staged::default();
        let epoch = self.snapshot.epoch.0 + 1;
        let mut groups = Vec::new();
        for change in changes {
            match change {
                Change::PutNic(nic) => {
                    let nic = Arc::new(settings.normalised(nic)?);
                    let old = self.nics.get(&nic.id).cloned();
                    let diff = match &old {
                        None => NicDiff::Added(nic.clone()),
                        Some(old) => NicDiff::Changed(diff::nic_fields(&old.nic, &nic)),
                    };
                    if diff == NicDiff::Changed(Vec::new()) {
                        continue;
                    }
                    let id = nic.id.clone();
                    let new = NicEntry {
                        slot: PortSlot(u32::MAX),
                        uid: PortUid(0),
                        network: NetworkIdx(u32::MAX),
                        path: settings.path(&nic).into(),
                        trace: None,
                        state: NicState::Down,
                        baseline: Arc::default(),
                        nic,
                    };
                    staged.diff.nics.push(NicChange { id: id.clone(), diff });
                    staged.nics.insert(id, (old, Some(new)));
                }
                Change::RemoveNic(id) => {
                    if let Some(old) = self.nics.get(&id).cloned() {
                        staged.diff.nics.push(NicChange {
                            id: id.clone(),
                            diff: NicDiff::Removed,
                        });
                        staged.nics.insert(id, (Some(old), None));
                    }
                }
                Change::PutGroup(group) => groups.push((group.id.clone(), Some(group.normalised()?))),
                Change::RemoveGroup(id) => groups.push((id, None)),
            }
        }
        for (id, group) in groups {
            self.stage_group(id, group, epoch, dataplane, &mut staged)?;
        }
        quota("the daemon", "groups", self.group_count, limits::GROUPS)?;
        quota("the daemon", "rules", self.rule_count, limits::RULES)?;
        self.stage_nics(epoch, settings, dataplane, &mut staged)?;
        self.check_rules_per_nic(&staged)?;
        self.sweep(epoch, &mut staged);
        staged.diff.nics.sort_by(|a, b| a.id.cmp(&b.id));
        staged.diff.groups.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(staged)
    }

    /// Unlinks all NICs that go or change before it links those that come or have changed: two NICs may exchange
    /// their MACs in one operation.
    fn stage_nics(
        &mut self,
        epoch: u64,
        settings: &Settings,
        dataplane: &dyn DataPlane,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let mut nics = std::mem::take(&mut staged.nics);
        let gone = nics.values().filter(|(old, _)| old.is_some()).count();
        let come = nics.values().filter(|(_, new)| new.is_some()).count();
        quota("the daemon", "NICs", self.nics.len() + come - gone, limits::NICS)?;
        for (old, _) in nics.values() {
            if let Some(old) = old {
                self.unlink(old, settings, staged);
            }
        }
        for (old, new) in nics.values_mut() {
            let Some(new) = new else {
                if let Some(old) = old {
                    self.by_slot.remove(&old.slot.0);
                    self.port_slots.give(old.slot.0, epoch);
                }
                continue;
            };
            match old {
                Some(old) if old.nic.kind == new.nic.kind && old.path == new.path => {
                    new.slot = old.slot;
                    new.state = old.state.clone();
                    new.baseline = old.baseline.clone();
                    let moved = old.nic.mac != new.nic.mac || old.nic.vni != new.nic.vni;
                    new.uid = if moved { self.uid() } else { old.uid };
                }
                _ => {
                    if let Some(old) = old {
                        self.by_slot.remove(&old.slot.0);
                        self.port_slots.give(old.slot.0, epoch);
                    }
                    let taken = self.port_slots.take(epoch);
                    let taken = taken.ok_or_else(|| full("ports, counting those replaced", limits::NICS))?;
                    new.slot = PortSlot(taken.slot);
                    new.uid = self.uid();
                    if taken.reused {
                        new.baseline = Arc::new(dataplane.port_counters(new.slot));
                    }
                }
            }
            self.link(new, settings, epoch, staged)?;
        }
        staged.nics = nics;
        Ok(())
    }

    fn uid(&mut self) -> PortUid {
        let uid = PortUid(self.next_uid);
        // Four thousand million NICs created by one daemon: then the first are long gone.
        self.next_uid = self.next_uid.wrapping_add(1).max(1);
        uid
    }

    fn unlink(&mut self, entry: &NicEntry, settings: &Settings, staged: &mut Staged) {
        let nic = &entry.nic;
        self.nics.remove(&nic.id);
        self.paths.remove(&entry.path);
        if nic.packet_trace {
            self.paths.remove(settings.trace_path(nic).as_str());
        }
        match &nic.sniff_target {
            None => {
                self.macs.remove(&(nic.vni, nic.mac));
            }
            Some(target) => {
                staged.sniffed.insert(target.clone());
                if let Some(sniffers) = self.sniffers.get_mut(target) {
                    sniffers.remove(&nic.id);
                    if sniffers.is_empty() {
                        self.sniffers.remove(target);
                    }
                }
            }
        }
        if let Some(network) = self.networks.get_mut(&nic.vni) {
            network.nics -= 1;
        }
        for id in &nic.security_groups {
            let Some(entry) = self.groups.get_mut(id) else {
                continue;
            };
            let touch = staged.groups.entry(id.clone()).or_default();
            for ip in &nic.ips {
                touch.members.entry(*ip).or_insert_with(|| entry.stands_for(ip));
                match entry.addresses.get_mut(ip) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => {
                        entry.addresses.remove(ip);
                    }
                }
            }
            entry.nics.remove(&nic.id);
        }
    }

    fn link(
        &mut self,
        entry: &mut NicEntry,
        settings: &Settings,
        epoch: u64,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let nic = entry.nic.clone();
        let trace = nic.packet_trace.then(|| settings.trace_path(&nic).into());
        for path in [Some(entry.path.clone()), trace]
            .into_iter()
            .flatten()
            .filter(|path| !path.is_empty())
        {
            if let Some(other) = self.paths.insert(path.clone(), nic.id.clone()) {
                return Err(Error::PathTaken {
                    nic: nic.id.clone(),
                    path: path.to_string(),
                    other,
                });
            }
        }
        match &nic.sniff_target {
            None => {
                if let Some(other) = self.macs.insert((nic.vni, nic.mac), nic.id.clone()) {
                    return Err(Error::MacTaken {
                        nic: nic.id.clone(),
                        mac: nic.mac,
                        other,
                        vni: nic.vni,
                    });
                }
            }
            Some(target) => {
                staged.sniffed.insert(target.clone());
                self.sniffers
                    .entry(target.clone())
                    .or_default()
                    .insert(nic.id.clone());
            }
        }
        entry.network = match self.networks.get_mut(&nic.vni) {
            Some(network) => {
                network.nics += 1;
                network.idx
            }
            None => {
                let taken = self
                    .network_slots
                    .take(epoch)
                    .ok_or_else(|| full("networks", 2 * limits::NICS))?;
                let idx = NetworkIdx(taken.slot);
                self.networks.insert(nic.vni, NetworkEntry { idx, nics: 1 });
                idx
            }
        };
        for id in &nic.security_groups {
            let entry = self.group_entry(id, epoch)?;
            let touch = staged.groups.entry(id.clone()).or_default();
            for ip in &nic.ips {
                touch.members.entry(*ip).or_insert_with(|| entry.stands_for(ip));
                *entry.addresses.entry(*ip).or_insert(0) += 1;
            }
            entry.nics.insert(nic.id.clone());
        }
        self.by_slot.insert(entry.slot.0, nic.id.clone());
        self.nics.insert(nic.id.clone(), entry.clone());
        Ok(())
    }

    /// The entry of a group's name, made at the first reference.
    fn group_entry(&mut self, id: &GroupId, epoch: u64) -> Result<&mut GroupEntry, Error> {
        if !self.groups.contains_key(id) {
            let taken = self
                .group_slots
                .take(epoch)
                .ok_or_else(|| full("group names", u32::MAX as usize))?;
            let entry = GroupEntry {
                idx: GroupIdx(taken.slot),
                group: None,
                counters: Arc::default(),
                nics: imbl::OrdSet::new(),
                addresses: imbl::HashMap::new(),
                referrers: 0,
            };
            self.groups.insert(id.clone(), entry);
        }
        self.groups.get_mut(id).ok_or_else(|| Error::NoGroup(id.clone()))
    }

    /// Puts (`Some`) or removes (`None`) one group.
    fn stage_group(
        &mut self,
        id: GroupId,
        new: Option<Group>,
        epoch: u64,
        dataplane: &dyn DataPlane,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let old = self.group(&id).cloned();
        let Some(diff) = diff::group_diff(old.as_deref(), new.as_ref()) else {
            return Ok(());
        };
        self.group_count = self.group_count + usize::from(diff.added) - usize::from(diff.removed);
        self.rule_count = self.rule_count + diff.rules_added.len() - diff.rules_removed.len();
        for rule in &diff.rules_added {
            if let Peer::Group(peer) = rule.peer() {
                self.group_entry(peer, epoch)?.referrers += 1;
            }
        }
        for rule in &diff.rules_removed {
            if let Peer::Group(peer) = rule.peer() {
                staged.groups.entry(peer.clone()).or_default();
                if let Some(entry) = self.groups.get_mut(peer) {
                    entry.referrers -= 1;
                }
            }
        }
        let entry = self.group_entry(&id, epoch)?.clone();
        let touch = staged.groups.entry(id.clone()).or_default();
        touch.whole |= diff.added
            || diff.removed
            || !diff.rules_added.is_empty()
            || !diff.rules_removed.is_empty()
            || !diff.fields.is_empty();
        for ip in diff.members_added.iter().chain(&diff.members_removed) {
            touch.members.entry(*ip).or_insert_with(|| entry.stands_for(ip));
        }

        // Rules that stay keep their place and their counters; those that come follow them.
        let gone: HashSet<&Rule> = diff.rules_removed.iter().collect();
        let mut rules = Vec::with_capacity(entry.rules().len() + diff.rules_added.len());
        let mut counters = Vec::with_capacity(rules.capacity());
        for (rule, counter) in entry.rules().iter().zip(entry.counters.iter()) {
            if !gone.is_empty() && gone.contains(rule) {
                self.rule_slots.give(counter.slot.0, epoch);
            } else {
                rules.push(rule.clone());
                counters.push(*counter);
            }
        }
        for rule in &diff.rules_added {
            let taken = self
                .rule_slots
                .take(epoch)
                .ok_or_else(|| full("rules, counting those replaced", limits::RULES))?;
            let slot = RuleSlot(taken.slot);
            let baseline = if taken.reused {
                dataplane.rule_counters(slot)
            } else {
                RuleCounters::default()
            };
            rules.push(rule.clone());
            counters.push(RuleCounter { slot, baseline });
        }
        let entry = self.group_entry(&id, epoch)?;
        entry.group = new.map(|group| Arc::new(Group { rules, ..group }));
        entry.counters = Arc::new(counters);
        staged.diff.groups.push(GroupChange { id, diff });
        Ok(())
    }

    /// The quota of rules times groups of a NIC, for NICs that changed or are in a group that grew. Two bounds make
    /// the second rare: all rules together, and the most that a NIC's number of groups could hold.
    fn check_rules_per_nic(&self, staged: &Staged) -> Result<(), Error> {
        if self.rule_count <= limits::RULES_PER_NIC {
            return Ok(());
        }
        let check = |nic: &Nic| {
            if nic.security_groups.len() * limits::RULES_PER_GROUP <= limits::RULES_PER_NIC {
                return Ok(());
            }
            let groups = nic.security_groups.iter().filter_map(|id| self.group(id));
            let rules = groups.map(|group| group.rules.len()).sum();
            quota(
                nic.owner(),
                "rules in all its groups",
                rules,
                limits::RULES_PER_NIC,
            )
        };
        for new in staged.nics.values().filter_map(|(_, new)| new.as_ref()) {
            check(&new.nic)?;
        }
        for change in staged
            .diff
            .groups
            .iter()
            .filter(|change| !change.diff.rules_added.is_empty())
        {
            let nics = self
                .groups
                .get(&change.id)
                .into_iter()
                .flat_map(|entry| entry.nics.iter());
            for entry in nics.filter_map(|id| self.nics.get(id)) {
                check(&entry.nic)?;
            }
        }
        Ok(())
    }

    /// Forgets the names and networks that nothing refers to any more.
    fn sweep(&mut self, epoch: u64, staged: &mut Staged) {
        for id in staged.groups.keys() {
            let Some(entry) = self.groups.get(id) else {
                continue;
            };
            if entry.group.is_none() && entry.nics.is_empty() && entry.referrers == 0 {
                self.group_slots.give(entry.idx.0, epoch);
                staged.dropped_groups.push(entry.idx);
                self.groups.remove(id);
            }
        }
        for old in staged.nics.values().filter_map(|(old, _)| old.as_ref()) {
            if self
                .networks
                .get(&old.nic.vni)
                .is_some_and(|network| network.nics == 0)
            {
                self.network_slots.give(old.network.0, epoch);
                staged.dropped_networks.push(old.network);
                self.networks.remove(&old.nic.vni);
            }
        }
    }
}

fn full(what: &'static str, limit: usize) -> Error {
    Error::Quota {
        owner: "the daemon".to_owned(),
        what,
        value: limit + 1,
        limit,
    }
}
