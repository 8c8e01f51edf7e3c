//! Endpoints, bindings and what is said of VNIs in the indices. Endpoints come before bindings,
//! which name them, and go after them.

use super::{Staged, full};
use crate::diff::{BindingChange, EndpointChange, NetworkChange};
use crate::error::{Error, quota};
use crate::limits;
use crate::model::{Binding, BindingKey, Endpoint, NetworkOptions};
use crate::slots::Slots;
use crate::state::{BindingValue, Overlay};
use dataplane::overlay::EndpointIdx;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Vni;

/// What of the overlay an operation changes. Each list is a map already: the last that is said of a
/// thing holds.
#[derive(Default)]
pub(crate) struct OverlayChanges {
    /// `None` removes.
    pub endpoints: BTreeMap<IpAddr, Option<Endpoint>>,
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
    /// Endpoints came or went.
    pub endpoints: bool,
    /// Those of every VNI did, or the first or the last one.
    pub everywhere: bool,
    /// VNIs whose options, endpoints or bindings changed.
    pub networks: BTreeSet<Vni>,
    /// Those of them whose bindings changed, with these MACs and addresses.
    pub bindings: BTreeSet<BindingKey>,
    pub neighbours: BTreeSet<(Vni, IpAddr)>,
}

impl OverlayTouch {
    /// True when no snapshot has to be made of it.
    pub fn is_empty(&self) -> bool {
        !self.endpoints && !self.everywhere && self.networks.is_empty()
    }
}

impl OverlayChanges {
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.networks.is_empty() && self.bindings.is_empty()
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
            .endpoints
            .into_iter()
            .partition(|(_, new)| new.is_none());
        for endpoint in come.into_iter().filter_map(|(_, new)| new) {
            self.stage_endpoint(endpoint.checked()?, &local, (slots, epoch), staged)?;
        }
        for options in changes.networks.into_values() {
            self.stage_network(options.normalised()?, &local, staged);
        }
        for (key, new) in changes.bindings {
            self.stage_binding(key, new, &local, (slots, epoch), staged)?;
        }
        for (address, _) in gone {
            self.stage_endpoint_gone(address, &local, (slots, epoch), staged)?;
        }
        self.check_quotas()?;
        staged.diff.endpoints.sort_by_key(|change| change.address);
        Ok(())
    }

    fn stage_endpoint(
        &mut self,
        endpoint: Endpoint,
        local: &impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let old = self
            .endpoints
            .get(&endpoint.address)
            .map(|entry| entry.endpoint.clone());
        if old.as_deref() == Some(&endpoint) {
            return Ok(());
        }
        let new = Arc::new(endpoint);
        touch_members(old.as_deref(), Some(&new), local, staged);
        let idx = match self.index(new.address) {
            Some(idx) => idx,
            None => {
                let full = || full("endpoints, counting those replaced", 2 * limits::ENDPOINTS);
                EndpointIdx(slots.take(epoch).ok_or_else(full)?.slot)
            }
        };
        // The first host that is known changes how networks work of which nothing is.
        staged.overlay.everywhere |= self.endpoints.is_empty();
        self.put_endpoint(new.clone(), idx);
        staged.diff.endpoints.push(EndpointChange {
            address: new.address,
            from: old,
            to: Some(new),
        });
        Ok(())
    }

    fn stage_endpoint_gone(
        &mut self,
        address: IpAddr,
        local: &impl Fn(Vni) -> bool,
        (slots, epoch): (&mut Slots, u64),
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let Some(entry) = self.endpoints.get(&address).cloned() else {
            return Ok(());
        };
        if entry.bindings > 0 {
            let bindings = entry.bindings as usize;
            return Err(Error::EndpointInUse { address, bindings });
        }
        touch_members(Some(&entry.endpoint), None, local, staged);
        self.remove_endpoint(address);
        staged.overlay.everywhere |= self.endpoints.is_empty();
        slots.give(entry.idx.0, epoch);
        staged.diff.endpoints.push(EndpointChange {
            address,
            from: Some(entry.endpoint),
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
            self.put_options(to.clone());
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
            endpoint: new.endpoint,
        });
        if self.bindings.get(&key) == place.as_ref() {
            return Ok(());
        }
        let from = self.unlink(key).map(|old| old.binding(key));
        if let Some(place) = place {
            // Naming an endpoint makes it, just as naming a group does.
            if !self.endpoints.contains_key(&place.endpoint) {
                self.stage_endpoint(Endpoint::new(place.endpoint), local, (slots, epoch), staged)?;
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
        quota(daemon, "endpoints", self.endpoints.len(), limits::ENDPOINTS)?;
        quota(daemon, "bindings", self.bindings.len(), limits::BINDINGS)?;
        let (addresses, memberships) = (self.addresses, self.memberships);
        quota(daemon, "IPs of bindings", addresses, limits::BINDING_IPS)?;
        quota(
            daemon,
            "VNIs of endpoints",
            memberships,
            limits::MEMBERSHIPS,
        )
    }
}

/// VNIs that an endpoint comes to or leaves, of those that this host has.
fn touch_members(
    old: Option<&Endpoint>,
    new: Option<&Endpoint>,
    local: &impl Fn(Vni) -> bool,
    staged: &mut Staged,
) {
    use crate::model::Membership::{Every, Listed};
    let touch = &mut staged.overlay;
    touch.endpoints |= old.is_none() || new.is_none();
    let every =
        |endpoint: Option<&Endpoint>| endpoint.is_some_and(|endpoint| endpoint.vnis == Every);
    touch.everywhere |= every(old) != every(new);
    for endpoint in [old, new].into_iter().flatten() {
        if let Listed(vnis) = &endpoint.vnis {
            touch
                .networks
                .extend(vnis.iter().copied().filter(|vni| local(*vni)));
        }
    }
}
