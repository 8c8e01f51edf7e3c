//! From what the kernel would do with a packet to the next hops of the data plane. Pure: no socket,
//! no clock.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::PortSlot;
use dataplane::underlay::{HOPS_MAX, Hop, INNER_MTU_MIN};
use netlink::{Link, Resolution, RouteKind, Snapshot};
use uplink::Fact;
use wire::Mac;
use wire::parse::ETHERNET_LEN;

/// Bytes in front of an inner IP packet, behind the outer Ethernet header: IP, UDP, VXLAN (RFC
/// 7348, section 5), Ethernet.
const OVERHEAD_V4: u32 = 20 + 8 + 8 + ETHERNET_LEN as u32;
const OVERHEAD_V6: u32 = 40 + 8 + 8 + ETHERNET_LEN as u32;

/// One of the kernel's next hops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextHop {
    /// It can be sent to; whether its hardware address is still right is to be asked now and then,
    /// as the kernel does.
    Known { hop: Hop, ask: Option<Asked> },
    /// Its hardware address is to be found out.
    Ask(Asked),
}

/// A neighbour that the kernel is to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub ifindex: u32,
    pub neighbour: IpAddr,
}

/// An address of ours, and the interface that has it: a VLAN subinterface or an uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    pub address: IpAddr,
    pub ifindex: u32,
}

/// Our addresses as they are here: those that were named, or all of the uplinks.
pub fn homes(named: &[IpAddr], facts: &[Fact], kernel: &Snapshot) -> Vec<Home> {
    let ours = |address: IpAddr| match named {
        [] => facts.iter().any(|fact| fact.addresses.contains(&address)),
        named => named.contains(&address),
    };
    let all = kernel
        .addresses
        .keys()
        .filter(|(_, address)| ours(*address));
    all.map(|(ifindex, address)| Home {
        address: *address,
        ifindex: *ifindex,
    })
    .collect()
}

/// Our addresses, each with the VLANs that packets to it come in; 0: none. As the uplinks' program
/// is told them.
pub fn endpoints(homes: &[Home], facts: &[Fact], kernel: &Snapshot) -> BTreeSet<(IpAddr, u16)> {
    let is_uplink = |index| facts.iter().any(|fact| fact.ifindex == index);
    let each = homes.iter().filter_map(|home| {
        let link = kernel.links.get(&home.ifindex)?;
        let vlans = uplink::vlans_of(kernel, link, is_uplink);
        Some(vlans.into_iter().map(move |vlan| (home.address, vlan)))
    });
    each.flatten().collect()
}

/// A VLAN that packets to an address of ours come in, none where they may come in none.
pub fn vlan_of(address: IpAddr, facts: &[Fact], kernel: &Snapshot) -> Option<u16> {
    let homes = homes(&[address], facts, kernel);
    let least = endpoints(&homes, facts, kernel).into_iter().next()?;
    (least.1 != 0).then_some(least.1)
}

/// The next hops to a host. Those over interfaces that are no uplink are left out, and there
/// is none to ourselves.
pub fn next_hops(
    target: IpAddr,
    resolution: &Resolution,
    named: &[IpAddr],
    facts: &[Fact],
    kernel: &Snapshot,
) -> Vec<NextHop> {
    if resolution.kind != RouteKind::Unicast {
        return Vec::new();
    }
    let said = named
        .iter()
        .copied()
        .find(|ip| ip.is_ipv4() == target.is_ipv4());
    let Some(source) = said.or(resolution.source) else {
        return Vec::new();
    };
    let next_hop = |hop: &netlink::Hop| {
        let (fact, src_mac, vlan, mtu) = outgoing(hop.ifindex, facts, kernel)?;
        let neighbour = hop.gateway.unwrap_or(target);
        let known = kernel
            .neighbour(hop.ifindex, neighbour)
            .filter(|known| known.is_valid());
        let asked = Asked {
            ifindex: hop.ifindex,
            neighbour,
        };
        let Some(dst_mac) = known.and_then(|known| known.mac) else {
            return Some(NextHop::Ask(asked));
        };
        let ask = known
            .is_none_or(|known| !known.is_confirmed())
            .then_some(asked);
        carries(Hop {
            uplink: PortSlot::uplink(fact.number),
            src_mac,
            dst_mac,
            vlan,
            source,
            mtu: resolution.mtu.unwrap_or(mtu).min(mtu).min(u16::MAX.into()) as u16,
            weight: hop.weight.clamp(1, u16::MAX.into()) as u16,
            device: sending(fact, vlan),
        })
        .map(|hop| NextHop::Known { hop, ask })
    };
    resolution.hops.iter().filter_map(next_hop).collect()
}

/// Leaves no more next hops to a host than the data plane takes: those of the largest weight, and
/// of the same weight those that the kernel tells first. True when there were more.
pub fn keep_heaviest(hops: &mut Vec<Hop>) -> bool {
    let are_too_many = hops.len() > HOPS_MAX;
    if are_too_many {
        hops.sort_by_key(|hop| Reverse(hop.weight));
        hops.truncate(HOPS_MAX);
    }
    are_too_many
}

/// The way to a multicast group: by the interface that has our address of its family.
pub fn to_group(group: IpAddr, homes: &[Home], facts: &[Fact], kernel: &Snapshot) -> Option<Hop> {
    let mut candidates = homes
        .iter()
        .filter(|home| home.address.is_ipv4() == group.is_ipv4());
    candidates.find_map(|home| {
        let (fact, src_mac, vlan, mtu) = outgoing(home.ifindex, facts, kernel)?;
        carries(Hop {
            uplink: PortSlot::uplink(fact.number),
            src_mac,
            dst_mac: Mac::of_group(group),
            vlan,
            source: home.address,
            mtu: mtu.min(u16::MAX.into()) as u16,
            weight: 1,
            device: sending(fact, vlan),
        })
    })
}

/// The way to a host or a group over the TAP device, where it has this MAC. None without an
/// address of ours of its family.
pub fn over_tap(target: IpAddr, mac: Mac, tap: &Fact) -> Option<Hop> {
    let mut ours = tap.addresses.iter().copied();
    let source = ours.find(|ip| ip.is_ipv4() == target.is_ipv4())?;
    let hop = Hop {
        uplink: PortSlot::uplink(tap.number),
        src_mac: tap.mac?,
        dst_mac: mac,
        vlan: None,
        source,
        mtu: tap.mtu.min(u16::MAX.into()) as u16,
        weight: 1,
        device: sending(tap, None),
    };
    carries(hop).filter(|_| tap.up)
}

/// The uplink that an interface is, or is a VLAN of: with its MAC, VLAN and MTU.
fn outgoing<'a>(
    ifindex: u32,
    facts: &'a [Fact],
    kernel: &Snapshot,
) -> Option<(&'a Fact, Mac, Option<u16>, u32)> {
    let link: &Link = kernel.links.get(&ifindex)?;
    let (below, vlan) = match &link.vlan {
        Some(vlan) => (vlan.parent, Some(vlan.id)),
        None => (ifindex, None),
    };
    let fact = facts
        .iter()
        .find(|fact| fact.joined && fact.ifindex == below)?;
    let mac = link.mac.or(fact.mac)?;
    (link.up && fact.up).then_some((fact, mac, vlan, link.mtu.min(fact.mtu)))
}

/// The interface by which the kernel itself may send on an uplink: untagged. 0: there is none.
fn sending(fact: &Fact, vlan: Option<u16>) -> u32 {
    match fact.of_kernel && vlan.is_none() {
        true => fact.ifindex,
        false => 0,
    }
}

/// A hop that is too narrow for any inner packet is none.
fn carries(hop: Hop) -> Option<Hop> {
    let overhead = overhead(hop.source.is_ipv4());
    (u32::from(hop.mtu) >= overhead + INNER_MTU_MIN as u32).then_some(hop)
}

fn overhead(ipv4: bool) -> u32 {
    if ipv4 { OVERHEAD_V4 } else { OVERHEAD_V6 }
}

/// The largest inner packet that every uplink carries; `None` while there is none. What an uplink's
/// addresses are says how long outer headers are; of both families, the longer.
pub fn inner_mtu(named: &[IpAddr], facts: &[Fact]) -> Option<u16> {
    let joined = facts.iter().filter(|fact| fact.joined);
    let each = joined.filter_map(|fact| {
        let addresses = if named.is_empty() {
            &fact.addresses
        } else {
            named
        };
        let longest = addresses.iter().map(|ip| overhead(ip.is_ipv4())).max();
        fact.mtu.checked_sub(longest.unwrap_or(OVERHEAD_V4))
    });
    let least = each.min()?;
    (least >= INNER_MTU_MIN as u32).then_some(least.min(u16::MAX.into()) as u16)
}
