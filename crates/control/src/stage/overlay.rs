//! Hosts, bindings and what is said of VNIs in the indices. Hosts come before bindings,
//! which name them, and go after them.

use super::{Staged, full};
use crate::diff::{BindingChange, HostChange, NetworkChange};
use crate::error::{Error, quota};
use crate::limits;
use crate::model::{Binding, BindingKey, Host, NetworkOptions};
use crate::slots::Slots;
use crate::state::{BindingValue, Overlay};
use dataplane::overlay::HostIdx;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Vni;

/// What of the overlay an operation changes. Each list is a map already: the last that is said of a
/// thing holds.
#[derive(Default)]
pub(crate) struct OverlayChanges {
    /// `None` removes.
    pub hosts: BTreeMap<IpAddr, Option<Host>>,
    /// Options that say nothing remove.
    pub networks: BTreeMap<Vni, NetworkOptions>,
    /// `None` removes.
    pub bindings: BTreeMap<BindingKey, Option<Binding>>,
}

/// What has to be compiled anew where a NIC of the VNI is.
#[derive(Default)]
pub(crate) struct OverlayTouch {
    /// The first uplink is named: until then nothing of it was compiled, so that all is touched.
    pub begins: bool,
    /// Hosts came or went.
    pub hosts: bool,
    /// Those of every VNI did; or what is declared is the first thing, or was the last one.
    pub everywhere: bool,
    /// VNIs whose options, hosts or bindings changed.
    pub networks: BTreeSet<Vni>,
    /// Those of them whose bindings changed, with these MACs and addresses.
    pub bindings: BTreeSet<BindingKey>,
    pub neighbours: BTreeSet<(Vni, IpAddr)>,
}

impl OverlayTouch {
    /// True when no snapshot has to be made of it.
    pub fn is_empty(&self) -> bool {
        !self.hosts && !self.everywhere && self.networks.is_empty()
    }
}

impl OverlayChanges {
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.networks.is_empty() && self.bindings.is_empty()
    }
}

impl Overlay {
    /// Makes the changes and checks them. After an error it is half changed and to be dropped.
    /// `local` says of which VNIs this host has NICs: only those are compiled.
    pub fn stage(
        &mut self,
        changes: OverlayChanges,
        local: impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let (gone, come): (Vec<_>, Vec<_>) = changes
            .hosts
            .into_iter()
            .partition(|(_, new)| new.is_none());
        for host in come.into_iter().filter_map(|(_, new)| new) {
            self.stage_host(host.checked()?, &local, (slots, epoch), staged)?;
        }
        for options in changes.networks.into_values() {
            self.stage_network(options.normalised()?, &local, staged);
        }
        for (key, new) in changes.bindings {
            self.stage_binding(key, new, &local, (slots, epoch), staged)?;
        }
        for (address, _) in gone {
            self.stage_host_gone(address, &local, (slots, epoch), staged)?;
        }
        self.check_quotas()?;
        staged.diff.hosts.sort_by_key(|change| change.address);
        Ok(())
    }

    fn stage_host(
        &mut self,
        host: Host,
        local: &impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let old = self
            .hosts
            .get(&host.address)
            .map(|entry| entry.host.clone());
        if old.as_deref() == Some(&host) {
            return Ok(());
        }
        let new = Arc::new(host);
        touch_members(old.as_deref(), Some(&new), local, staged);
        let idx = match self.index(new.address) {
            Some(idx) => idx,
            None => {
                let full = || full("hosts, counting those replaced", 2 * limits::HOSTS);
                HostIdx(slots.take(epoch).ok_or_else(full)?.slot)
            }
        };
        // The first thing that is declared changes how networks work of which nothing is.
        staged.overlay.everywhere |= self.is_undeclared();
        self.put_host(new.clone(), idx);
        staged.diff.hosts.push(HostChange {
            address: new.address,
            from: old,
            to: Some(new),
        });
        Ok(())
    }

    fn stage_host_gone(
        &mut self,
        address: IpAddr,
        local: &impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let Some(entry) = self.hosts.get(&address).cloned() else {
            return Ok(());
        };
        if entry.bindings > 0 {
            let bindings = entry.bindings as usize;
            return Err(Error::HostInUse { address, bindings });
        }
        touch_members(Some(&entry.host), None, local, staged);
        self.remove_host(address);
        staged.overlay.everywhere |= self.is_undeclared();
        slots.give(entry.idx.0, epoch);
        staged.diff.hosts.push(HostChange {
            address,
            from: Some(entry.host),
            to: None,
        });
        Ok(())
    }

    fn stage_network(
        &mut self,
        to: NetworkOptions,
        local: &impl Fn(Vni) -> bool,
        staged: &mut Staged,
    ) {
        let from = self.options.get(&to.vni).cloned();
        let from = from.unwrap_or_else(|| NetworkOptions::new(to.vni));
        if from != to {
            if local(to.vni) {
                staged.overlay.networks.insert(to.vni);
            }
            let before = self.is_undeclared();
            self.put_options(to.clone());
            staged.overlay.everywhere |= self.is_undeclared() != before;
            staged.diff.networks.push(NetworkChange { from, to });
        }
    }

    fn stage_binding(
        &mut self,
        key: BindingKey,
        new: Option<Binding>,
        local: &impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let new = new.map(Binding::normalised).transpose()?;
        let place = new.as_ref().map(|new| BindingValue {
            ips: new.ips.clone(),
            host: new.host,
        });
        if self.bindings.get(&key) == place.as_ref() {
            return Ok(());
        }
        let from = self.unlink(key).map(|old| old.binding(key));
        if let Some(place) = place {
            // Naming a host makes it, just as naming a group does.
            if !self.hosts.contains_key(&place.host) {
                self.stage_host(Host::new(place.host), local, (slots, epoch), staged)?;
            }
            self.link(key, place);
        }
        if local(key.0) {
            let touch = &mut staged.overlay;
            touch.networks.insert(key.0);
            touch.bindings.insert(key);
            let ips = [&from, &new]
                .into_iter()
                .flatten()
                .flat_map(|binding| binding.ips.iter());
            touch.neighbours.extend(ips.map(|ip| (key.0, *ip)));
        }
        staged
            .diff
            .bindings
            .push(BindingChange { key, from, to: new });
        Ok(())
    }

    fn check_quotas(&self) -> Result<(), Error> {
        let daemon = "the daemon";
        quota(daemon, "hosts", self.hosts.len(), limits::HOSTS)?;
        quota(daemon, "bindings", self.bindings.len(), limits::BINDINGS)?;
        let (addresses, memberships) = (self.addresses, self.memberships);
        quota(daemon, "IPs of bindings", addresses, limits::BINDING_IPS)?;
        quota(daemon, "VNIs of hosts", memberships, limits::MEMBERSHIPS)
    }
}

/// VNIs that a host comes to or leaves, of those that this host has.
fn touch_members(
    old: Option<&Host>,
    new: Option<&Host>,
    local: &impl Fn(Vni) -> bool,
    staged: &mut Staged,
) {
    use crate::model::Membership::{Every, Listed};
    let touch = &mut staged.overlay;
    touch.hosts |= old.is_none() || new.is_none();
    let every = |host: Option<&Host>| host.is_some_and(|host| host.vnis == Every);
    touch.everywhere |= every(old) != every(new);
    for host in [old, new].into_iter().flatten() {
        if let Listed(vnis) = &host.vnis {
            touch
                .networks
                .extend(vnis.iter().copied().filter(|vni| local(*vni)));
        }
    }
}
