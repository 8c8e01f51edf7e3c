//! Hosts, networks and bindings of the model to v1's, and what changes about them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::v1;
use api::v1::change::{Action, Subject};
use control::model::{
    Binding, BindingKey, Flood, Host, Membership, NetworkOptions, NicId, multicast_group,
};
use control::{Diff, HostStatus, NetworkStatus};
use dataplane::{LearnedMac, Location, PortUid};

use super::field;

/// Bindings that an answer lists at most: what a person reads.
const BINDINGS_LISTED: usize = 10_000;

/// A host as declared.
pub fn host(host: &Host) -> v1::Endpoint {
    let (vnis, every_vni) = match &host.vnis {
        Membership::Every => (vec![], true),
        Membership::Listed(vnis) => (vnis.iter().map(|vni| vni.id()).collect(), false),
    };
    v1::Endpoint {
        address: host.address.to_string(),
        name: host.name.clone(),
        vnis,
        every_vni,
    }
}

/// A host and what is known of it.
pub fn host_status(status: &HostStatus) -> v1::EndpointStatus {
    v1::EndpointStatus {
        endpoint: Some(host(&status.host)),
        bindings: status.bindings as u32,
    }
}

/// What was said of a network.
pub fn network(options: &NetworkOptions) -> v1::Network {
    let (flood, group) = options.flood.map_or((v1::Flood::Unspecified, None), flood);
    v1::Network {
        vni: options.vni.id(),
        learning: options.learning,
        flood: flood.into(),
        multicast_group: group.map(|group| group.to_string()).unwrap_or_default(),
        from_anybody: options.from_anybody,
        dhcp_servers: options.dhcp_servers.iter().map(IpAddr::to_string).collect(),
        routers: options.routers.iter().map(IpAddr::to_string).collect(),
    }
}

/// A network and how it works; `ipv6` says over what, for the group that its VNI makes.
pub fn network_status(status: &NetworkStatus, ipv6: bool) -> v1::NetworkStatus {
    let (in_force, said) = flood(status.mode.flood);
    let vni = status.options.vni;
    let group = (in_force == v1::Flood::Multicast)
        .then(|| said.unwrap_or_else(|| multicast_group(vni, ipv6)));
    v1::NetworkStatus {
        network: Some(network(&status.options)),
        learning: status.mode.learning,
        flood: in_force.into(),
        multicast_group: group.map(|group| group.to_string()).unwrap_or_default(),
        from_anybody: status.mode.from_anybody,
        any_dhcp_server: status.mode.any_dhcp_server,
        any_router: status.mode.any_router,
        nics: status.nics as u32,
        endpoints: status.hosts as u32,
        bindings: status.bindings as u32,
        endpoint_addresses: vec![],
        learned: vec![],
    }
}

/// A MAC that was learnt. One behind a NIC that is gone by now is nowhere.
pub fn learned(learned: &LearnedMac, names: &BTreeMap<PortUid, NicId>) -> v1::LearnedMac {
    use v1::learned_mac::Place as Shown;
    v1::LearnedMac {
        mac: learned.mac.to_string(),
        place: match learned.location {
            Location::Host(address) => Some(Shown::Endpoint(address.to_string())),
            Location::Nic(_, uid) => names.get(&uid).map(|nic| Shown::Nic(nic.to_string())),
        },
        age_secs: learned.age_secs,
    }
}

fn flood(flood: Flood) -> (v1::Flood, Option<IpAddr>) {
    match flood {
        Flood::HeadEnd => (v1::Flood::HeadEnd, None),
        Flood::Multicast(group) => (v1::Flood::Multicast, group),
        Flood::Off => (v1::Flood::Off, None),
    }
}

/// A binding.
pub fn binding(binding: &Binding) -> v1::Binding {
    v1::Binding {
        vni: binding.vni.id(),
        mac: binding.mac.to_string(),
        addresses: binding.ips.iter().map(IpAddr::to_string).collect(),
        endpoint: binding.host.to_string(),
    }
}

/// What names a binding.
pub fn binding_key((vni, mac): BindingKey) -> v1::BindingKey {
    v1::BindingKey {
        vni: vni.id(),
        mac: mac.to_string(),
    }
}

/// What changes about hosts, networks and bindings, in this order.
pub fn changes(diff: &Diff) -> Vec<v1::Change> {
    let hosts = diff.hosts.iter().map(|change| v1::Change {
        action: action(change.from.is_some(), change.to.is_some()),
        subject: Some(Subject::Endpoint(change.address.to_string())),
        details: change.fields().iter().map(field).collect(),
    });
    let networks = diff.networks.iter().map(|change| v1::Change {
        action: Action::Update.into(),
        subject: Some(Subject::Network(change.vni().id())),
        details: change.fields().iter().map(field).collect(),
    });
    let listed = diff.bindings.iter().take(BINDINGS_LISTED);
    let bindings = listed.map(|change| v1::Change {
        action: action(change.from.is_some(), change.to.is_some()),
        subject: Some(Subject::Binding(binding_key(change.key))),
        details: change.fields().iter().map(field).collect(),
    });
    hosts.chain(networks).chain(bindings).collect()
}

/// What an operation on bindings did.
pub fn bindings_response(diff: &Diff) -> v1::BindingsResponse {
    let count = |was: bool, is: bool| {
        let same = diff
            .bindings
            .iter()
            .filter(|change| (change.from.is_some(), change.to.is_some()) == (was, is));
        same.count() as u64
    };
    v1::BindingsResponse {
        created: count(false, true),
        updated: count(true, true),
        deleted: count(true, false),
        changes: changes(diff),
    }
}

fn action(was: bool, is: bool) -> i32 {
    match (was, is) {
        (false, _) => Action::Create,
        (_, false) => Action::Delete,
        _ => Action::Update,
    }
    .into()
}
