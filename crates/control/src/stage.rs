//! The first half of an operation: makes its changes to the indices of a copy of the state, and
//! checks them. The order is groups, then NICs (all that go before all that come), then quotas over
//! both, then forgetting what nothing refers to any more. An error leaves a half changed copy,
//! which the caller drops.

mod link;
mod overlay;
mod unmade;

pub(crate) use overlay::{OverlayChanges, OverlayTouch};

use crate::attach::{DataPlane, HostSettings};
use crate::compile;
use crate::diff::{self, AclChange, Diff, GroupChange, GroupDiff, NicChange, NicDiff};
use crate::error::{Error, quota};
use crate::event::NicState;
use crate::limits;
use crate::model::{
    self, AccessList, Config, DeclaredServices, Feature, Group, GroupId, Interface, Nic, NicId,
    Peer, Rule,
};
use crate::state::{GroupEntry, NicEntry, RuleCounter, State};
use dataplane::counters::RuleCounters;
use dataplane::ruleset::RuleSpec;
use dataplane::snapshot::{GroupIdx, NetworkIdx, PortSlot, PortUid, RuleSlot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// One change of the model. All of a list are checked and made together.
pub(crate) enum Change {
    PutNic(Box<Nic>),
    RemoveNic(NicId),
    PutGroup(Group),
    RemoveGroup(GroupId),
    /// Costs what it says, whatever else is in the group.
    EditGroup(GroupId, GroupEdit),
    /// All that an operation changes of it: once in a list at the most.
    Overlay(Box<OverlayChanges>),
    /// All services.
    Services(DeclaredServices),
    /// All interfaces that a feature is to work on; a mode that is not asked for stays.
    Interfaces(Feature, Vec<Interface>),
    /// What the router is to judge packets by.
    RouterAcl(Option<Arc<AccessList>>),
    /// Of what is stored and could not be made, this is stored no more.
    Forget(Box<Config>),
}

/// One thing about a group. It makes the group if it adds something and there is none.
pub(crate) enum GroupEdit {
    AddRule(Rule),
    RemoveRule(Rule),
    AddMember(IpAddr),
    RemoveMember(IpAddr),
}

/// What is to become of a group.
enum GroupChanging {
    /// This, or nothing.
    Be(Option<Group>),
    Edit(GroupEdit),
}

/// What [`State::stage`] has done and `compile` has to build.
#[derive(Default)]
pub(crate) struct Staged {
    pub diff: Diff,
    /// What was not made, and is stored no more.
    pub forgotten: Diff,
    /// NICs as they were and as they will be.
    pub nics: BTreeMap<NicId, (Option<NicEntry>, Option<NicEntry>)>,
    /// NICs whose list of sniffers changes.
    pub sniffed: BTreeSet<NicId>,
    pub groups: BTreeMap<GroupId, GroupTouch>,
    /// Group indices that nobody refers to any more.
    pub dropped_groups: Vec<GroupIdx>,
    /// Networks whose last NIC goes.
    pub dropped_networks: Vec<NetworkIdx>,
    pub overlay: OverlayTouch,
}

impl Staged {
    /// True when a snapshot has to be made of it.
    pub fn concerns_frames(&self) -> bool {
        !self.diff.nics.is_empty() || !self.diff.groups.is_empty() || !self.overlay.is_empty()
    }
}

/// What of a group is touched.
#[derive(Default)]
pub(crate) struct GroupTouch {
    /// Settings or existence.
    pub whole: bool,
    /// Rules that come and go, in the order in which they do.
    pub rules: Vec<RuleEdit>,
    /// Addresses that came or went, and whether the group stood for them before.
    pub members: HashMap<IpAddr, bool>,
}

/// What happens to one compiled rule.
pub(crate) enum RuleEdit {
    Add(RuleSpec),
    Remove(RuleSpec),
}

impl State {
    /// Makes the changes to everything but the snapshot, and checks them. After an error the state
    /// is half changed and to be dropped. `dataplane` is asked for nothing but the counters of
    /// slots that are used again.
    pub fn stage(
        &mut self,
        changes: Vec<Change>,
        settings: &HostSettings,
        dataplane: &dyn DataPlane,
    ) -> Result<Staged, Error> {
        let mut staged = Staged::default();
        let epoch = self.snapshot.epoch.0 + 1;
        let mut groups = Vec::new();
        let mut overlay = OverlayChanges::default();
        for change in changes {
            match change {
                Change::PutNic(nic) => {
                    let nic = Arc::new(settings.normalised(*nic)?);
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
                        mirror: None,
                        state: NicState::Down,
                        baseline: Arc::default(),
                        nic,
                    };
                    staged.diff.nics.push(NicChange {
                        id: id.clone(),
                        diff,
                    });
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
                Change::PutGroup(group) => groups.push((
                    group.id.clone(),
                    GroupChanging::Be(Some(group.normalised()?)),
                )),
                Change::RemoveGroup(id) => groups.push((id, GroupChanging::Be(None))),
                Change::EditGroup(id, edit) => groups.push((id, GroupChanging::Edit(edit))),
                Change::Overlay(changes) => overlay = *changes,
                Change::Services(services) => {
                    model::validate(&services)?;
                    staged.diff.services = diff::services(&self.services, &services);
                    if !staged.diff.services.is_empty() {
                        self.services = Arc::new(services);
                    }
                }
                Change::RouterAcl(wanted) => {
                    if let Some(list) = &wanted {
                        let rules = list.rules.len();
                        quota("the access list", "rules", rules, ::model::acl::RULES_MAX)?;
                    }
                    staged.diff.router_acl = AclChange::between(&self.router_acl, &wanted);
                    self.router_acl = wanted;
                }
                Change::Forget(gone) => {
                    staged.forgotten = Diff::between(&gone, &Config::empty());
                }
                Change::Interfaces(feature, wanted) => {
                    model::once(feature, &wanted)?;
                    let now = self.interfaces.get(&feature).map_or(&[][..], Vec::as_slice);
                    let new = model::declared(now, &wanted);
                    let changes = diff::interfaces(feature, now, &new);
                    if !changes.is_empty() {
                        if feature == Feature::Uplink {
                            quota("the daemon", "uplinks", new.len(), limits::UPLINKS)?;
                            let begins = !settings.overlay && !new.is_empty();
                            staged.overlay.begins |= begins;
                            staged.overlay.everywhere |= begins;
                        }
                        staged.diff.interfaces.extend(changes);
                        Arc::make_mut(&mut self.interfaces).insert(feature, new);
                    }
                }
            }
        }
        for (id, changing) in groups {
            let (diff, new) = match changing {
                GroupChanging::Be(new) => (
                    diff::group_diff(self.group(&id).map(|old| &**old), new.as_ref()),
                    new,
                ),
                GroupChanging::Edit(edit) => self.edit_group(&id, edit)?,
            };
            if let Some(diff) = diff {
                self.stage_group(id, new, diff, epoch, dataplane, &mut staged)?;
            }
        }
        quota("the daemon", "groups", self.group_count, limits::GROUPS)?;
        quota("the daemon", "rules", self.rule_count, limits::RULES)?;
        let State {
            networks,
            overlay: known,
            host_slots: slots,
            ..
        } = self;
        let local = |vni| networks.contains_key(&vni);
        known.stage(overlay, local, (slots, epoch), &mut staged)?;
        self.stage_nics(epoch, settings, dataplane, &mut staged)?;
        self.check_rules_per_nic(&staged)?;
        self.check_mirrors()?;
        self.sweep(epoch, &mut staged);
        quota("the daemon", "VNIs", self.overlay.vnis.len(), limits::VNIS)?;
        staged.diff.nics.sort_by(|a, b| a.id.cmp(&b.id));
        staged.diff.groups.sort_by(|a, b| a.id.cmp(&b.id));
        self.stage_unmade(&staged);
        Ok(staged)
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
                counters: imbl::HashMap::new(),
                nics: imbl::OrdSet::new(),
                addresses: imbl::HashMap::new(),
                referrers: 0,
            };
            self.groups.insert(id.clone(), entry);
        }
        self.groups
            .get_mut(id)
            .ok_or_else(|| Error::NoGroup(id.clone()))
    }

    /// What an edit makes of a group, and how that differs; no difference when it is so already.
    fn edit_group(
        &self,
        id: &GroupId,
        edit: GroupEdit,
    ) -> Result<(Option<GroupDiff>, Option<Group>), Error> {
        let entry = self.groups.get(id);
        let old = entry.and_then(|entry| entry.group.as_ref());
        let adds = matches!(edit, GroupEdit::AddRule(_) | GroupEdit::AddMember(_));
        if old.is_none() && !adds {
            return Ok((None, None));
        }
        let has_rule = |rule| entry.is_some_and(|entry| entry.counters.contains_key(rule));
        let has_member = |ip| old.is_some_and(|old| old.members.contains(ip));
        let is_so = match &edit {
            GroupEdit::AddRule(rule) => has_rule(rule),
            GroupEdit::RemoveRule(rule) => !has_rule(rule),
            GroupEdit::AddMember(ip) => has_member(ip),
            GroupEdit::RemoveMember(ip) => !has_member(ip),
        };
        if is_so {
            return Ok((None, None));
        }
        let mut new = old.map_or_else(|| Group::new(id.clone()), |old| (**old).clone());
        let mut diff = GroupDiff {
            added: old.is_none(),
            ..GroupDiff::default()
        };
        match edit {
            GroupEdit::AddRule(rule) => {
                new.rules.push_back(rule.clone());
                diff.rules_added.push(rule);
            }
            GroupEdit::RemoveRule(rule) => {
                if let Some(at) = new.rules.iter().position(|other| *other == rule) {
                    new.rules.remove(at);
                }
                diff.rules_removed.push(rule);
            }
            GroupEdit::AddMember(ip) => {
                new.members.insert(ip);
                diff.members_added.push(ip);
            }
            GroupEdit::RemoveMember(ip) => {
                new.members.shift_remove(&ip);
                diff.members_removed.push(ip);
            }
        }
        new.check_sizes()?;
        Ok((Some(diff), Some(new)))
    }

    /// Puts (`Some`) or removes (`None`) one group.
    fn stage_group(
        &mut self,
        id: GroupId,
        new: Option<Group>,
        diff: GroupDiff,
        epoch: u64,
        dataplane: &dyn DataPlane,
        staged: &mut Staged,
    ) -> Result<(), Error> {
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
        touch.whole |= diff.added || diff.removed || !diff.fields.is_empty();
        for ip in diff.members_added.iter().chain(&diff.members_removed) {
            touch
                .members
                .entry(*ip)
                .or_insert_with(|| entry.stands_for(ip));
        }

        // Rules that stay keep their counters.
        let mut counters = entry.counters;
        for rule in &diff.rules_removed {
            if let Some(counter) = counters.remove(rule) {
                self.rule_slots.give(counter.slot.0, epoch);
                let spec = compile::rule_spec(rule, counter.slot, &self.groups);
                touch.rules.extend(spec.map(RuleEdit::Remove));
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
            counters.insert(rule.clone(), RuleCounter { slot, baseline });
            let spec = compile::rule_spec(rule, slot, &self.groups);
            touch.rules.extend(spec.map(RuleEdit::Add));
        }
        let entry = self.group_entry(&id, epoch)?;
        entry.group = new.map(Arc::new);
        entry.counters = counters;
        staged.diff.groups.push(GroupChange { id, diff });
        Ok(())
    }

    /// The quota of rules times groups of a NIC, for NICs that changed or are in a group that grew.
    /// Two bounds make the second rare: all rules together, and the most that a NIC's number of
    /// groups could hold.
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
                self.overlay.release(old.nic.vni);
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
