//! The controller as one caller may use it: what is not the caller's is left out of lists, and
//! refused when it is asked for by name or to be changed. There is no other way from a request to
//! the controller, but for [`Permitted::whole`], which takes somebody whose reach is the host.
//!
//! What a change does to the audit log's record is done here, too.

mod nics;
mod sniffers;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use control::model::{
    Binding, BindingKey, Flood, Group, GroupId, NetworkOptions, Nic, NicId, NicUpdate, Part,
    Peer as RulePeer, Removal, Rule,
};
use control::{
    Controller, Diff, Error, Explained, GroupStats, GroupVerdict, HostSettings, NetworkStatus,
    NicStats, NicStatus,
};
use dataplane::counters::PortCounters;
use dataplane::flow::FlowInfo;
use dataplane::trial::Asked;
use dataplane::{PortSlot, PortUid, RuleSlot};
use tonic::Status;
use wire::{Mac, Vni};

use super::admit::{Caller, STALE};
use super::policy::Reach;
use crate::deaf;
pub use sniffers::name_networks;

/// Why an operation is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not among what the caller may see or change.
    #[error("{0}")]
    Denied(String),
    /// Clients' certificates are of another authority since it asked.
    #[error("{STALE}")]
    Stale,
    /// The caller has changed too much of late.
    #[error("{0}")]
    TooOften(String),
    /// It cannot be.
    #[error(transparent)]
    Control(#[from] Error),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        match refusal {
            Refusal::Denied(why) => Status::permission_denied(why),
            Refusal::TooOften(why) => Status::resource_exhausted(why),
            Refusal::Stale => Status::unauthenticated(STALE),
            Refusal::Control(error) => crate::v1::refused(error),
        }
    }
}

type Done<T> = Result<T, Refusal>;

/// All of the one that there is.
fn either<T>(
    one: Option<impl Iterator<Item = T>>,
    other: Option<impl Iterator<Item = T>>,
) -> impl Iterator<Item = T> {
    let one = one.into_iter().flatten();
    one.chain(other.into_iter().flatten())
}

/// The record is told what was changed; who comes next has limits of his own.
impl Drop for Permitted<'_> {
    fn drop(&mut self) {
        self.control.set_parts(Vec::new());
        let Some(changed) = self.control.take_changed() else {
            return;
        };
        if changed.opens_networks {
            tracing::warn!("{OPEN}");
        }
        if changed.deafens_networks
            && let Some(words) = deaf::sentence(&self.control.deaf_networks())
        {
            tracing::warn!("{words}");
        }
        self.caller.changed(&changed);
    }
}

/// What the log says where the last declaration goes that kept strangers out.
const OPEN: &str = "no host is declared any more, and nothing of any network: all networks take \
                    VXLAN from anybody again, who may be DHCP server and router there \
                    (docs/security.md); butterfly network set VNI --from hosts, of any network, \
                    ends that";

/// The controller, for one operation of one caller.
pub struct Permitted<'a> {
    control: &'a mut Controller,
    caller: &'a Caller,
}

impl<'a> Permitted<'a> {
    pub fn new(control: &'a mut Controller, caller: &'a Caller) -> Permitted<'a> {
        // Of an operation before that nobody kept a record of.
        let _ = control.take_changed();
        if let Reach::Parts(parts) = &caller.reach {
            control.set_parts(parts.clone());
        }
        Permitted { control, caller }
    }

    /// Who asks.
    pub fn caller(&self) -> &Caller {
        self.caller
    }

    fn reach(&self) -> &Reach {
        &self.caller.reach
    }

    /// The parts that are the caller's; `None`: all is.
    fn parts(&self) -> Option<&[Part]> {
        match self.reach() {
            Reach::Nothing => Some(&[]),
            Reach::Parts(parts) => Some(parts),
            Reach::Whole => None,
        }
    }

    fn is_whole(&self) -> bool {
        *self.reach() == Reach::Whole
    }

    /// All of it, for who may see or change all.
    pub fn whole(&mut self) -> Done<&mut Controller> {
        match self.is_whole() {
            true => Ok(self.control),
            false => Err(self.not_ours("what is the whole host's")),
        }
    }

    fn not_ours(&self, what: &str) -> Refusal {
        Refusal::Denied(format!("{} has no right to {what}", self.caller.shown))
    }

    /// What the daemon was started with: no secret.
    pub fn settings(&self) -> &HostSettings {
        self.control.settings()
    }

    // NICs.

    pub fn nics(&self) -> impl Iterator<Item = NicStatus> + '_ {
        let control = &*self.control;
        let own = self.parts().map(|parts| control.nics_of(parts));
        let all = own.is_none().then(|| control.nics());
        either(own, all)
    }

    /// What is stored and could not be made.
    pub fn unmade_nics(&self) -> impl Iterator<Item = &Nic> + '_ {
        let all = self.control.unmade().nics.values();
        all.filter(|nic| self.reach().has_nic(nic))
    }

    pub fn nic_ids(&self) -> Vec<NicId> {
        match self.parts() {
            None => self.control.nic_ids(),
            Some(parts) => self.control.nic_ids_of(parts),
        }
    }

    pub fn nic(&self, id: &NicId) -> Done<NicStatus> {
        let status = self.control.nic(id)?;
        match self.reach().has_nic(&status.nic) {
            true => Ok(status),
            false => Err(self.not_ours(&format!("NIC '{id}'"))),
        }
    }

    pub fn nic_stats(&self, id: &NicId) -> Done<NicStats> {
        self.nic(id)?;
        Ok(self.control.nic_stats(id)?)
    }

    /// NICs by what flows call them.
    /// What is behind other hosts, by network: it has no name and no owner.
    pub fn remotes(&self) -> BTreeMap<wire::Vni, PortUid> {
        self.control.remotes()
    }

    pub fn nics_by_uid(&self) -> BTreeMap<PortUid, NicId> {
        match self.parts() {
            None => self.control.nics_by_uid(),
            Some(parts) => self.control.nics_by_uid_of(parts),
        }
    }

    /// Those of these that are the caller's NICs.
    pub fn nics_with(&self, uids: &BTreeSet<PortUid>) -> BTreeMap<PortUid, NicId> {
        let named = self.control.nics_with(uids);
        let own = named.filter(|(_, nic)| self.reach().has_nic(nic));
        own.map(|(uid, nic)| (uid, nic.id.clone())).collect()
    }

    /// How many connections a NIC has.
    pub fn count_flows(&self, id: &NicId) -> Done<u64> {
        let mut count = 0;
        self.each_flow(Some(id), |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// The connections of a NIC, or of all that are the caller's, for as long as they are wanted.
    pub fn each_flow(
        &self,
        id: Option<&NicId>,
        mut wanted: impl FnMut(FlowInfo) -> ControlFlow<()>,
    ) -> Done<()> {
        if let Some(id) = id {
            self.nic(id)?;
        }
        let ours = (!self.is_whole()).then(|| self.nics_by_uid());
        Ok(self.control.each_flow(id, |flow| {
            let ends = [flow.initiator.uid, flow.responder.uid];
            let is_ours = |ours: &BTreeMap<_, _>| ends.iter().any(|uid| ours.contains_key(uid));
            match ours.as_ref().is_none_or(is_ours) {
                true => wanted(flow),
                false => ControlFlow::Continue(()),
            }
        })?)
    }

    pub fn import_flows(&mut self, flows: Vec<FlowInfo>) -> Done<usize> {
        self.caller.takes_effect();
        let taken = self.control.import_flows(flows)?;
        self.caller.detail(format!("connections taken up: {taken}"));
        Ok(taken)
    }

    /// A NIC goes on counting where it has ended elsewhere.
    pub fn count_on(&mut self, id: &NicId, elsewhere: &PortCounters) -> Done<()> {
        self.nic(id)?;
        self.caller.takes_effect();
        Ok(self.control.count_on(id, elsewhere)?)
    }

    /// Forgets connections that [`each_flow`](Self::each_flow) gave.
    pub fn remove_flows(&mut self, flows: &[FlowInfo]) -> Done<usize> {
        self.caller.takes_effect();
        let forgotten = self.control.remove_flows(flows)?;
        let detail = format!("connections forgotten: {forgotten}");
        self.caller.detail(detail);
        Ok(forgotten)
    }

    pub fn put_nic(&mut self, nic: Nic) -> Done<NicStatus> {
        self.may_put(&nic)?;
        let nic = self.sniffing(nic);
        let put = self.control.put_nic(nic);
        put.map_err(|error| self.told(error))
    }

    /// A refusal without the id of a NIC that is not the caller's.
    fn told(&self, error: Error) -> Refusal {
        Refusal::Control(match error {
            Error::PathTaken { nic, path, other } if self.nic(&other).is_err() => Error::Attach {
                nic,
                why: format!("path '{path}' is taken"),
            },
            error => error,
        })
    }

    /// As [`put_nic`](Self::put_nic), but a NIC of that id that has other values stays, and is an
    /// error.
    pub fn create_nic(&mut self, nic: Nic) -> Done<NicStatus> {
        self.may_put(&nic)?;
        let nic = self.sniffing(nic);
        let created = self.control.create_nic(nic);
        created.map_err(|error| self.told(error))
    }

    pub fn update_nic(&mut self, id: &NicId, update: NicUpdate) -> Done<NicStatus> {
        let old = self.nic(id)?;
        if !self.is_whole() {
            self.may_put(&old.nic.updated(update.clone()))?;
        }
        let updated = self.control.update_nic(id, update);
        updated.map_err(|error| self.told(error))
    }

    pub fn delete_nic(&mut self, id: &NicId) -> Done<Diff> {
        // What is not there is deleted already.
        if let Some(old) = self.declared_nic(id)? {
            self.may_delete(&old)?;
        }
        Ok(self.control.delete_nic(id)?)
    }

    /// A NIC that is declared, whether it could be made or not.
    fn declared_nic(&self, id: &NicId) -> Done<Option<Arc<Nic>>> {
        let made = self.control.nic(id).ok().map(|status| status.nic);
        let unmade = || self.control.unmade().nics.get(id).cloned().map(Arc::new);
        match made.or_else(unmade) {
            Some(nic) if !self.reach().has_nic(&nic) => Err(self.not_ours(&format!("NIC '{id}'"))),
            nic => Ok(nic),
        }
    }

    // Groups.

    pub fn groups(&self) -> impl Iterator<Item = Arc<Group>> + '_ {
        let control = &*self.control;
        let own = self.parts().map(|parts| control.groups_of(parts));
        let all = own.is_none().then(|| control.groups());
        either(own, all)
    }

    pub fn group_ids(&self) -> Vec<GroupId> {
        self.groups().map(|group| group.id.clone()).collect()
    }

    pub fn group(&self, id: &GroupId) -> Done<Arc<Group>> {
        self.has_group(id)?;
        Ok(self.control.group(id)?)
    }

    pub fn group_stats(&self, id: &GroupId) -> Done<GroupStats> {
        self.has_group(id)?;
        Ok(self.control.group_stats(id)?)
    }

    fn has_group(&self, id: &GroupId) -> Done<()> {
        match self.reach().has_group(id) {
            true => Ok(()),
            false => Err(self.not_ours(&format!("group '{id}'"))),
        }
    }

    /// A rule that names a group tells who is in it, by what it lets pass.
    fn has_peer(&self, group: &GroupId, rule: &Rule) -> Done<()> {
        match rule.peer() {
            RulePeer::Group(peer) if !self.reach().has_group(peer) => {
                let what = format!("group '{peer}', which a rule of group '{group}' would name");
                Err(self.not_ours(&what))
            }
            _ => Ok(()),
        }
    }

    pub fn put_group(&mut self, group: Group) -> Done<Diff> {
        self.has_group(&group.id)?;
        let foreign = group.rules.iter().filter_map(|rule| {
            let refused = self.has_peer(&group.id, rule).err()?;
            Some((rule, refused))
        });
        let mut foreign = foreign.peekable();
        if foreign.peek().is_some() {
            let known = self.control.group(&group.id).ok();
            let known: HashSet<&Rule> = known.iter().flat_map(|known| &known.rules).collect();
            if let Some((_, refused)) = foreign.find(|(rule, _)| !known.contains(rule)) {
                return Err(refused);
            }
        }
        Ok(self.control.put_group(group)?)
    }

    pub fn update_group(
        &mut self,
        id: &GroupId,
        removal: Option<Removal>,
        allow_midstream: Option<bool>,
        silent_midstream: Option<bool>,
    ) -> Done<Diff> {
        self.has_group(id)?;
        let control = &mut self.control;
        Ok(control.update_group(id, removal, allow_midstream, silent_midstream)?)
    }

    pub fn delete_group(&mut self, id: &GroupId) -> Done<Diff> {
        self.has_group(id)?;
        Ok(self.control.delete_group(id)?)
    }

    pub fn add_rule(&mut self, id: &GroupId, rule: Rule) -> Done<Diff> {
        self.has_group(id)?;
        self.has_peer(id, &rule)?;
        Ok(self.control.add_rule(id, rule)?)
    }

    pub fn delete_rule(&mut self, id: &GroupId, rule: &Rule) -> Done<Diff> {
        self.has_group(id)?;
        Ok(self.control.delete_rule(id, rule)?)
    }

    pub fn add_member(&mut self, id: &GroupId, member: IpAddr) -> Done<Diff> {
        self.has_group(id)?;
        Ok(self.control.add_member(id, member)?)
    }

    pub fn delete_member(&mut self, id: &GroupId, member: IpAddr) -> Done<Diff> {
        self.has_group(id)?;
        Ok(self.control.delete_member(id, member)?)
    }

    // Networks and bindings.

    pub fn has_network(&self, vni: Vni) -> Done<()> {
        match self.reach().has_network(vni) {
            true => Ok(()),
            false => Err(self.not_ours(&format!("VNI {vni}"))),
        }
    }

    pub fn networks(&self) -> impl Iterator<Item = NetworkStatus> + '_ {
        let control = &*self.control;
        let own = self.parts().map(|parts| control.networks_of(parts));
        let all = own.is_none().then(|| control.networks());
        either(own, all)
    }

    pub fn networks_said(&self) -> impl Iterator<Item = &NetworkOptions> {
        let control = &*self.control;
        let own = self.parts().map(|parts| control.networks_said_of(parts));
        let all = own.is_none().then(|| control.networks_said());
        either(own, all)
    }

    pub fn network(&self, vni: Vni) -> Done<NetworkStatus> {
        self.has_network(vni)?;
        Ok(self.control.network(vni))
    }

    pub fn network_hosts(&self, vni: Vni) -> Done<BTreeSet<IpAddr>> {
        self.has_network(vni)?;
        Ok(self.control.network_hosts(vni))
    }

    pub fn put_network(&mut self, options: NetworkOptions) -> Done<Diff> {
        self.has_network(options.vni)?;
        // What is flooded goes by a group to all networks of the underlay that are in it.
        let group = |options: &NetworkOptions| match options.flood {
            Some(Flood::Multicast(group)) => group,
            _ => None,
        };
        let chosen = group(&options).filter(|_| !self.is_whole());
        let now = self.control.network(options.vni).options;
        if let Some(chosen) = chosen.filter(|chosen| group(&now) != Some(*chosen)) {
            let vni = options.vni;
            let what =
                format!("the multicast group {chosen} of VNI {vni}, which is the whole host's");
            return Err(self.not_ours(&what));
        }
        // Others' networks would hear strangers, or nobody any more.
        if !self.is_whole() && self.control.turns_all_networks(&options) {
            let vni = options.vni;
            let what = format!(
                "say the first or take back the last thing that is declared of any network, which \
                 that of VNI {vni} would be: it changes whom all networks hear"
            );
            return Err(self.not_ours(&what));
        }
        Ok(self.control.put_network(options)?)
    }

    pub fn bindings(
        &self,
        vni: Option<Vni>,
        host: Option<IpAddr>,
    ) -> Done<impl Iterator<Item = Binding> + '_> {
        if let Some(vni) = vni {
            self.has_network(vni)?;
        }
        let control = &*self.control;
        let own = self.parts().filter(|_| vni.is_none());
        let own = own.map(|parts| control.bindings_of(parts, host));
        let all = own.is_none().then(|| control.bindings(vni, host));
        Ok(either(own, all))
    }

    pub fn binding(&self, key: BindingKey) -> Done<Binding> {
        self.has_network(key.0)?;
        Ok(self.control.binding(key)?)
    }

    /// A host that nobody knew changes how all networks hear others.
    fn may_bind<'b>(&self, bindings: impl Iterator<Item = &'b Binding>) -> Done<()> {
        if self.is_whole() {
            return Ok(());
        }
        for binding in bindings {
            self.has_network(binding.vni)?;
            if self.control.host(binding.host).is_err() {
                let what = format!(
                    "add host '{}', which the binding of {} in VNI {} names",
                    binding.host, binding.mac, binding.vni
                );
                return Err(self.not_ours(&what));
            }
        }
        Ok(())
    }

    pub fn put_bindings(&mut self, bindings: Vec<Binding>) -> Done<Diff> {
        self.may_bind(bindings.iter())?;
        Ok(self.control.put_bindings(bindings)?)
    }

    pub fn delete_bindings(&mut self, keys: &[BindingKey]) -> Done<Diff> {
        for (vni, _) in keys {
            self.has_network(*vni)?;
        }
        Ok(self.control.delete_bindings(keys)?)
    }

    pub fn set_bindings(
        &mut self,
        vni: Option<Vni>,
        bindings: BTreeMap<BindingKey, Binding>,
        dry_run: bool,
    ) -> Done<Diff> {
        match vni {
            Some(vni) => self.has_network(vni)?,
            // All bindings there are.
            None => drop(self.whole()?),
        }
        self.may_bind(bindings.values())?;
        Ok(self.control.set_bindings(vni, bindings, dry_run)?)
    }

    /// Whether events of these are the caller's.
    pub fn sees_group(&self, id: &GroupId) -> bool {
        self.reach().has_group(id)
    }

    pub fn sees_network(&self, vni: Vni) -> bool {
        self.reach().has_network(vni)
    }

    pub fn sees_all(&self) -> bool {
        self.is_whole()
    }

    /// The controller's own counters and graph, for who sees all; of what is shown to others
    /// nothing comes from here.
    pub fn unlimited(&self) -> Option<&Controller> {
        self.is_whole().then_some(&*self.control)
    }

    // Traces: names that are not the caller's are left out.

    pub fn nic_at(&self, slot: PortSlot) -> Option<NicId> {
        let id = self.control.nic_at(slot)?;
        self.nic(id).ok().map(|_| id.clone())
    }

    pub fn macs_with(&self, vni: Vni, address: IpAddr) -> Done<Vec<Mac>> {
        self.has_network(vni)?;
        Ok(self.control.macs_with(vni, address))
    }

    pub fn explain(&self, asked: &Asked, explained: &mut Explained) -> Option<GroupVerdict> {
        let group = self.control.group_of(asked.nic, asked.group?)?;
        if !self.sees_group(group) {
            return None;
        }
        let (question, answer) = (&asked.question, asked.answer);
        self.control.explain(group, question, answer, explained)
    }

    pub fn rule_of(&self, nic: &NicId, slot: RuleSlot) -> Option<(GroupId, Rule)> {
        let found = self.control.rule_of(nic, slot)?;
        self.sees_group(&found.0).then_some(found)
    }

    pub fn status(&self) -> control::Status {
        match self.parts() {
            None => self.control.status(),
            Some(parts) => self.control.status_of(parts),
        }
    }

    /// The configuration's part that is the caller's.
    pub fn config(&self) -> control::model::Config {
        match self.parts() {
            None => self.control.config(),
            Some(parts) => self.control.config_of(parts),
        }
    }

    pub fn subscribe(&self) -> tokio::sync::broadcast::Receiver<control::Event> {
        self.control.subscribe()
    }
}
