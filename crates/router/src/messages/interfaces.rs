//! The interfaces of this host, and what of ours runs on them.

use api::v1;
use netlink::{Link, Snapshot};
use xdp::Interfaces;

use super::refusal::Refusal;
use super::render::{interface_name, mode};

/// Those named, in this order, or all by index.
pub fn interfaces(
    names: &[String],
    snapshot: &Snapshot,
    attached: &Interfaces,
) -> Result<Vec<v1::Interface>, Refusal> {
    let one = |link: &Link| interface(link, snapshot, attached);
    if names.is_empty() {
        return Ok(snapshot.links.values().map(|link| one(link)).collect());
    }
    let named = |name: &String| {
        let link = snapshot.link_named(name).map(|link| one(link));
        link.ok_or_else(|| {
            Refusal::NotFound(format!("interface {name}: there is no such interface"))
        })
    };
    names.iter().map(named).collect()
}

fn interface(link: &Link, snapshot: &Snapshot, attached: &Interfaces) -> v1::Interface {
    // A VLAN's packets meet the programs of the device below.
    let device = snapshot.device_of(link);
    let (vlan, vlan_protocol, parent) = match link.vlan {
        None => (0, 0, String::new()),
        Some(vlan) => (
            vlan.id.into(),
            vlan.protocol.into(),
            interface_name(vlan.parent, snapshot),
        ),
    };
    let addresses = snapshot.addresses_of(link.index);
    v1::Interface {
        name: link.name.clone(),
        ifindex: link.index,
        up: link.up,
        running: link.carrier,
        loopback: link.loopback,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        kind: link.kind.clone().unwrap_or_default(),
        vlan,
        vlan_protocol,
        parent,
        master: interface_name(link.master.unwrap_or(0), snapshot),
        addresses: addresses
            .map(|address| format!("{}/{}", address.ip, address.prefix_len))
            .collect(),
        features: attached
            .features(device)
            .iter()
            .map(ToString::to_string)
            .collect(),
        mode: mode(attached.mode(device)).into(),
        xdp_program: link.xdp_program.unwrap_or(0),
    }
}
