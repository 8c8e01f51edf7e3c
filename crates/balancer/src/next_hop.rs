//! What the kernel's tables mean for a balancer: the way to one server, and which packets an
//! interface gets.

use std::net::IpAddr;

use netlink::{Link, Requests, Resolution, RouteKind, Snapshot};
use wire::Mac;

use crate::balancer::Interface;
use crate::hop::Hop;

/// 802.1Q: the tag that the program writes.
const VLAN: u16 = 0x8100;
const MAX_VLANS: usize = 2;
/// The kernel lets no more devices lie on one another (MAX_NEST_DEV). What it says is of several
/// moments, and might lead in a circle.
const MAX_DEPTH: usize = 8;

/// The way to a target by the route that the kernel has for it. Next hops that are not confirmed
/// are asked for. Of a multipath route each target has one next hop of those that answer, by their
/// weights. `None`: none answers, or frames cannot go there.
pub(crate) async fn next_hop(
    requests: &Requests,
    snapshot: &Snapshot,
    target: IpAddr,
    resolution: &Resolution,
) -> Option<Hop> {
    if resolution.kind != RouteKind::Unicast {
        return None;
    }
    let mut open = Vec::new();
    for hop in resolution.hops.iter().filter(|hop| !hop.encapsulates) {
        let next = hop.gateway.unwrap_or(target);
        let neighbour = snapshot.neighbour(hop.ifindex, next);
        if !neighbour.is_some_and(|neighbour| neighbour.is_confirmed())
            && let Err(error) = requests.probe(hop.ifindex, next).await
        {
            tracing::debug!("cannot ask for neighbour {next}: {error}");
        }
        let valid = neighbour.filter(|neighbour| neighbour.is_valid());
        if let Some(mac) = valid.and_then(|neighbour| neighbour.mac) {
            open.push((hop, mac));
        }
    }
    let weights: Vec<u32> = open.iter().map(|(hop, _)| hop.weight.max(1)).collect();
    let (hop, mac) = open.get(share(target, &weights)?)?;
    let device = snapshot.links.get(&hop.ifindex)?;
    let (link, vlans) = carrier(requests, snapshot, device, *mac).await?;
    let mtu = resolution.mtu.unwrap_or(device.mtu);
    Some(Hop {
        ifindex: link.index,
        source_mac: device.mac?,
        mac: *mac,
        vlans,
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        direct: hop.gateway.is_none(),
        source: resolution.source,
    })
}

/// Which of these a target has its share in: the same one for as long as they stay the same.
/// `None`: there are none.
fn share(target: IpAddr, weights: &[u32]) -> Option<usize> {
    let bytes = match target {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    // FNV-1a: neighbouring addresses end far from each other, and nothing else is asked of it.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let mut point = (hash >> 16).checked_rem(all)?;
    weights
        .iter()
        .position(|weight| match point.checked_sub((*weight).into()) {
            Some(rest) => {
                point = rest;
                false
            }
            None => true,
        })
}

/// The device that takes frames to a MAC: below VLAN interfaces, with their tags from the outermost
/// on, and of a bridge the port behind which that MAC was seen. `None`: it is down, not Ethernet,
/// tagged otherwise than the program does, or the bridge has seen the MAC behind no port. Anybody
/// on a bridge's segment can answer with the bridge's own MAC.
async fn carrier<'a>(
    requests: &Requests,
    snapshot: &'a Snapshot,
    device: &'a Link,
    mac: Mac,
) -> Option<(&'a Link, Vec<u16>)> {
    let mut link = device;
    let mut vlans = Vec::new();
    for _ in 0..=MAX_DEPTH {
        if !link.up || !link.ethernet {
            return None;
        }
        link = if let Some(vlan) = link.vlan {
            if vlan.protocol != VLAN || vlans.len() == MAX_VLANS {
                return None;
            }
            vlans.insert(0, vlan.id);
            snapshot.links.get(&vlan.parent)?
        } else if link.is("bridge") {
            let port = requests.bridge_port(link.index, mac).await;
            let port = port
                .inspect_err(|error| tracing::debug!("cannot ask bridge {}: {error}", link.name));
            snapshot.links.get(&port.ok()??)?
        } else {
            return Some((link, vlans));
        };
    }
    None
}

/// An interface, and the ports of a bond that it takes packets from: what a backup port sees, the
/// active one sees too. `None`: it is gone or has no MAC.
pub(crate) fn interfaces_of(snapshot: &Snapshot, ifindex: u32) -> Option<Vec<Interface>> {
    let link = snapshot.links.get(&ifindex)?;
    let master = link.master.and_then(|master| snapshot.links.get(&master));
    // What is for a bridge's or a bond's host comes by its ports, to the bridge's or bond's own
    // MAC.
    let above = master.filter(|master| master.is("bridge") || master.is("bond"));
    let mac = above.map_or(link.mac, |above| above.mac)?;
    let own = Interface::new(ifindex, mac);
    let mut all = vec![own];
    let taking = snapshot.ports_of(ifindex).filter(|port| !port.held_back);
    all.extend(taking.map(|port| Interface {
        ifindex: port.index,
        ..own
    }));
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_shared_out_by_weight_and_stay() {
        let targets = || (0..1000u32).map(|n| IpAddr::from((0x0a01_0000 + n).to_be_bytes()));
        let light = targets()
            .filter(|target| share(*target, &[1, 3]) == Some(0))
            .count();
        assert!(
            (200..300).contains(&light),
            "{light} of 1000 for a weight of 1 in 4"
        );
        assert!(targets().all(|target| share(target, &[5]) == Some(0)));
        assert_eq!(share(IpAddr::from([10, 0, 0, 1]), &[]), None);
    }
}
