//! Which interfaces are to be uplinks, and which addresses VXLAN comes to, given what the kernel
//! knows now. Pure: no socket, no clock.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use netlink::{Link, Snapshot};

use crate::layout::UPLINKS;

/// What the operator asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UplinkSettings {
    /// The addresses of this host towards others (`-i`). None: all those of the named interfaces.
    pub addresses: Vec<IpAddr>,
    /// The interfaces that are named.
    pub interfaces: Vec<String>,
    /// Those that have the addresses are uplinks as well: no interface was named at the start
    /// (`--uplink`).
    pub by_address: bool,
    /// The TAP device to make while no interface is named and none has had an address. `None`: to
    /// wait for one.
    pub tap: Option<String>,
}

/// One interface that is to be an uplink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// What it is called by: the named interface, or the one that has an address; of a VLAN
    /// subinterface the one below.
    pub name: String,
    /// The interface, or a sentence on why there is none.
    pub link: Result<Arc<Link>, String>,
    /// Addresses of ours that are reached by it.
    pub addresses: Vec<IpAddr>,
    /// The NICs below it whose frames have VLAN tags that the kernel knows of, or that an address
    /// of ours is in: without its tag such a packet would look like one that is in none.
    pub trunks: BTreeSet<u32>,
    /// Why native mode would not do, where that is so.
    pub only_generic: Option<&'static str>,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub uplinks: Vec<Wanted>,
    /// Those of our addresses that are here, with the VLAN that each comes in; 0: none.
    pub endpoints: Vec<(IpAddr, u16)>,
    /// Addresses that no interface has.
    pub homeless: Vec<IpAddr>,
    /// No interface is named, and none has any of our addresses.
    pub nowhere: bool,
}

/// Makes the plan.
pub(crate) fn plan(settings: &UplinkSettings, kernel: &Snapshot) -> Plan {
    let mut plan = Plan::default();
    for name in &settings.interfaces {
        match kernel.link_named(name) {
            None => plan.want(name, Err(format!("there is no interface '{name}'"))),
            Some(link) => plan.want_below(kernel, link),
        }
    }
    for &ip in &settings.addresses {
        match owner(settings, kernel, ip) {
            None => plan.homeless.push(ip),
            Some(owner) => {
                // One on a loopback leads nowhere; it is that of those which are named.
                let elsewhere = owner.loopback && !settings.interfaces.is_empty();
                if settings.by_address && !elsewhere {
                    plan.want_below(kernel, owner);
                }
                plan.add_endpoint(kernel, owner, ip);
            }
        }
    }
    if settings.addresses.is_empty() {
        for (owner, ip) in addresses_of(settings, kernel) {
            plan.add_endpoint(kernel, owner, ip);
        }
    }
    for wanted in &mut plan.uplinks {
        let Ok(link) = &wanted.link else { continue };
        let mut endpoints = plan.endpoints.iter();
        let is_tagged = endpoints.any(|(ip, vlan)| *vlan != 0 && wanted.addresses.contains(ip));
        wanted.trunks = match is_tagged {
            true => kernel.nics_of(link.index).map(|nic| nic.index).collect(),
            false => kernel.nics_with_vlans(link.index),
        };
    }
    plan.nowhere = settings.by_address && plan.uplinks.is_empty() && !plan.homeless.is_empty();
    plan
}

impl Plan {
    /// Wants an interface, or what it is a VLAN of.
    fn want_below(&mut self, kernel: &Snapshot, link: &Arc<Link>) {
        let (below, _) = below(kernel, link);
        let usable = match below {
            None => Err(format!(
                "the interface below VLAN '{}' is not in this namespace",
                link.name
            )),
            Some(below) if below.loopback => Err(format!(
                "'{}' is a loopback: name the interfaces that lead to other hosts with --uplink",
                below.name
            )),
            Some(below) if !below.ethernet => {
                Err(format!("'{}' is not an Ethernet interface", below.name))
            }
            Some(below) => Ok(below.clone()),
        };
        let name = below.map_or(&link.name, |below| &below.name).clone();
        self.want(&name, usable);
    }

    fn want(&mut self, name: &str, link: Result<Arc<Link>, String>) {
        if self.uplinks.iter().any(|wanted| wanted.name == name)
            || self.uplinks.len() >= UPLINKS as usize
        {
            return;
        }
        let kind = link.as_ref().ok().and_then(|link| link.kind.as_deref());
        self.uplinks.push(Wanted {
            name: name.to_owned(),
            only_generic: kind.and_then(only_generic),
            link,
            addresses: Vec::new(),
            trunks: BTreeSet::new(),
        });
    }

    fn add_endpoint(&mut self, kernel: &Snapshot, owner: &Arc<Link>, ip: IpAddr) {
        let (below, _) = below(kernel, owner);
        let here = |wanted: &Wanted| below.is_some_and(|below| below.name == wanted.name);
        let anywhere = is_anywhere(below);
        for vlan in vlans_of(kernel, owner, |index| self.is_uplink(index)) {
            if !self.endpoints.contains(&(ip, vlan)) {
                self.endpoints.push((ip, vlan));
            }
        }
        for wanted in &mut self.uplinks {
            if (anywhere || here(wanted)) && !wanted.addresses.contains(&ip) {
                wanted.addresses.push(ip);
            }
        }
    }

    fn is_uplink(&self, index: u32) -> bool {
        let mut links = self
            .uplinks
            .iter()
            .filter_map(|wanted| wanted.link.as_ref().ok());
        links.any(|link| link.index == index)
    }
}

/// The VLANs that packets to an address of this interface come in; 0: none. `is_uplink` knows the
/// uplinks by their indices.
pub fn vlans_of(kernel: &Snapshot, owner: &Arc<Link>, is_uplink: impl Fn(u32) -> bool) -> Vec<u16> {
    let (below, vlan) = below(kernel, owner);
    let mut vlans = vec![vlan];
    if is_anywhere(below) {
        let all = kernel.links.values().filter_map(|link| link.vlan);
        vlans.extend(
            all.filter(|vlan| is_uplink(vlan.parent))
                .map(|vlan| vlan.id),
        );
    }
    vlans
}

/// An address on a loopback, as of hosts with several interfaces to the outside, comes in by any of
/// them, and in the VLANs that the kernel has on them.
fn is_anywhere(below: Option<&Arc<Link>>) -> bool {
    below.is_none_or(|below| below.loopback)
}

/// Sockets of these are reached in generic mode alone: in native mode packets belong to the queues
/// of the interfaces below.
fn only_generic(kind: &str) -> Option<&'static str> {
    match kind {
        "bond" | "team" => Some(
            "packets of a bond in native mode belong to its members' queues: name the members for \
             that",
        ),
        "bridge" => Some("a bridge has no native XDP"),
        _ => None,
    }
}

/// The interface that has an address. What is on our own TAP device is at its other end, and no way
/// out.
fn owner<'a>(settings: &UplinkSettings, kernel: &'a Snapshot, ip: IpAddr) -> Option<&'a Arc<Link>> {
    let having = kernel.addresses.keys().filter(|(_, had)| *had == ip);
    let mut owners = having.filter_map(|(ifindex, _)| kernel.links.get(ifindex));
    owners.find(|link| settings.tap.as_ref() != Some(&link.name))
}

/// What an interface's packets come in by, and in which VLAN: itself and none, or of a VLAN
/// subinterface the one below it.
fn below<'a>(kernel: &'a Snapshot, link: &'a Arc<Link>) -> (Option<&'a Arc<Link>>, u16) {
    match &link.vlan {
        None => (Some(link), 0),
        Some(vlan) => (kernel.links.get(&vlan.parent), vlan.id),
    }
}

/// The addresses of the named interfaces but for those of their link alone.
fn addresses_of<'a>(
    settings: &'a UplinkSettings,
    kernel: &'a Snapshot,
) -> impl Iterator<Item = (&'a Arc<Link>, IpAddr)> {
    const UNIVERSE: u8 = 0;
    let links = settings
        .interfaces
        .iter()
        .filter_map(|name| kernel.link_named(name));
    links.flat_map(|link| {
        let addresses = kernel
            .addresses_of(link.index)
            .filter(|address| address.scope == UNIVERSE);
        addresses.map(move |address| (link, address.ip))
    })
}

#[cfg(test)]
mod tests;
