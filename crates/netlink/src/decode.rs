//! From a message's body to the model: one function a kind of thing. `None` is a message that is
//! not for us, or that cannot be read; an attribute we do not know is passed over. Called by
//! `tables` and `request`.

use crate::message::{Attribute, Message, attributes, u16_at, u32_at};
use crate::model::*;
use crate::uapi::*;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Mac;

/// struct ifinfomsg: family, type, index, flags.
pub fn link(message: &Message) -> Option<Link> {
    const FIXED: usize = 16;
    // A bridge sends messages about its ports too, as AF_BRIDGE: those are not about the interface
    // itself.
    if *message.body.first()? != 0 {
        return None;
    }
    let flags = u32_at(message.body, 8)?;
    let mut link = Link {
        index: u32_at(message.body, 4)?,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        no_arp: flags & IFF_NOARP != 0,
        ethernet: u16_at(message.body, 2)? == ARPHRD_ETHER,
        kind: None,
        vlan: None,
        master: None,
        held_back: false,
        rx_queues: 1,
        tx_queues: 1,
        xdp_program: None,
    };
    let (mut parent, mut elsewhere, mut tag) = (None, false, None);
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            IFLA_IFNAME => link.name = attribute.text(),
            IFLA_ADDRESS => link.mac = mac(&attribute),
            IFLA_MTU => link.mtu = attribute.u32()?,
            IFLA_LINK => parent = attribute.u32(),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_MASTER => link.master = attribute.u32(),
            IFLA_NUM_RX_QUEUES => link.rx_queues = attribute.u32()?,
            IFLA_NUM_TX_QUEUES => link.tx_queues = attribute.u32()?,
            IFLA_XDP => {
                let id = attribute
                    .nested()
                    .find(|inner| inner.kind == IFLA_XDP_PROG_ID);
                link.xdp_program = id.and_then(|id| id.u32());
            }
            IFLA_LINKINFO => {
                (link.kind, tag) = link_info(&attribute);
                link.held_back = is_held_back(&attribute);
            }
            _ => {}
        }
    }
    // A VLAN whose parent lives in another namespace has no parent that we could name.
    if let (Some(tag), Some(parent), false) = (tag, parent, elsewhere) {
        link.vlan = Some(Vlan { parent, ..tag });
    }
    Some(link)
}

/// IFLA_LINKINFO: the kind, and a VLAN but for its parent.
fn link_info(info: &Attribute) -> (Option<String>, Option<Vlan>) {
    let kind = info.nested().find(|inner| inner.kind == IFLA_INFO_KIND);
    let kind = kind.map(|kind| kind.text());
    if kind.as_deref() != Some("vlan") {
        return (kind, None);
    }
    let (mut id, mut protocol, mut maps_priorities) = (None, 0x8100, false);
    let data = info.nested().find(|inner| inner.kind == IFLA_INFO_DATA);
    for attribute in data.iter().flat_map(|data| data.nested()) {
        match attribute.kind {
            IFLA_VLAN_ID => id = attribute.u16(),
            IFLA_VLAN_PROTOCOL => protocol = attribute.u16_be().unwrap_or(protocol),
            IFLA_VLAN_EGRESS_QOS => maps_priorities = attribute.nested().next().is_some(),
            _ => {}
        }
    }
    let vlan = id.map(|id| Vlan {
        parent: 0,
        id,
        protocol,
        maps_priorities,
    });
    (kind, vlan)
}

/// IFLA_LINKINFO of a bond's port: its state is 0 (active) or 1 (backup).
fn is_held_back(info: &Attribute) -> bool {
    let inner = |kind| info.nested().find(move |inner| inner.kind == kind);
    let of_bond = inner(IFLA_INFO_SLAVE_KIND).is_some_and(|kind| kind.text() == "bond");
    let data = inner(IFLA_INFO_SLAVE_DATA).filter(|_| of_bond);
    let state = data.and_then(|data| {
        data.nested()
            .find(|inner| inner.kind == IFLA_BOND_SLAVE_STATE)
    });
    state.is_some_and(|state| state.value.first() == Some(&1))
}

fn mac(attribute: &Attribute) -> Option<Mac> {
    attribute.value.try_into().ok().map(Mac)
}

/// struct ifaddrmsg: family, prefixlen, flags, scope, index.
pub fn address(message: &Message) -> Option<Address> {
    const FIXED: usize = 8;
    let [family, prefix_len, flags, scope, ..] = *message.body else {
        return None;
    };
    Family::from_code(family)?;
    let (mut local, mut other, mut broadcast) = (None, None, None);
    let (mut flags, mut label) = (u32::from(flags), String::new());
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            IFA_LOCAL => local = attribute.ip(),
            IFA_ADDRESS => other = attribute.ip(),
            IFA_BROADCAST => broadcast = attribute.ip(),
            IFA_FLAGS => flags = attribute.u32()?,
            IFA_LABEL => label = attribute.text(),
            _ => {}
        }
    }
    // IPv4 gives both, the same unless there is a peer; IPv6 gives a local one only with a peer.
    let ip = local.or(other)?;
    Some(Address {
        ifindex: u32_at(message.body, 4)?,
        ip,
        prefix_len,
        peer: other.filter(|other| *other != ip),
        broadcast,
        scope,
        flags,
        label,
    })
}

/// struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
const RTMSG: usize = 12;

/// A route and its key, for the tables: what its next-hop object says is left to the object, or it
/// would go stale.
pub fn route(message: &Message) -> Option<(RouteKey, Route)> {
    // The kernel's own cached clones are no routes.
    if u32_at(message.body, 8)? & RTM_F_CLONED != 0 {
        return None;
    }
    let (key, mut route) = route_as_told(message)?;
    if route.nexthop_id.is_some() {
        route.hops.clear();
    }
    Some((key, route))
}

/// A route and its key, whole.
pub fn route_as_told(message: &Message) -> Option<(RouteKey, Route)> {
    let [
        family,
        dst_len,
        src_len,
        tos,
        table,
        protocol,
        scope,
        kind,
        ..,
    ] = *message.body
    else {
        return None;
    };
    let family = Family::from_code(family)?;
    let mut key = RouteKey {
        table: u32::from(table),
        dst: prefix(family, None, dst_len)?,
        tos,
        metric: 0,
    };
    let mut route = Route {
        kind: RouteKind::from_code(kind),
        protocol,
        scope,
        src: None,
        preferred_source: None,
        mtu: None,
        hops: Vec::new(),
        nexthop_id: None,
        rest: Vec::new(),
    };
    let mut single = no_hop(*message.body.get(8)?);
    let mut rest_of_hops = Vec::new();
    for attribute in message.attributes(RTMSG) {
        match attribute.kind {
            RTA_TABLE => key.table = attribute.u32()?,
            RTA_DST => key.dst = prefix(family, attribute.ip(), dst_len)?,
            RTA_SRC => route.src = prefix(family, attribute.ip(), src_len),
            RTA_PRIORITY => key.metric = attribute.u32()?,
            RTA_PREFSRC => route.preferred_source = attribute.ip(),
            RTA_METRICS => {
                for metric in attribute.nested() {
                    match metric.kind {
                        RTAX_MTU => route.mtu = metric.u32(),
                        _ => keep(&mut route.rest, &metric),
                    }
                }
            }
            RTA_MULTIPATH => route.hops = multipath(attribute.value, &mut rest_of_hops)?,
            RTA_NH_ID => route.nexthop_id = attribute.u32(),
            _ => hop_attribute(&mut single, &mut rest_of_hops, &attribute)?,
        }
    }
    if route.hops.is_empty() && (single.gateway.is_some() || single.ifindex != 0) {
        route.hops.push(single);
    }
    if route.nexthop_id.is_none() {
        route.rest.append(&mut rest_of_hops);
    }
    Some((key, route))
}

/// An attribute that is compared alone: kind, length and value.
fn keep(rest: &mut Vec<u8>, attribute: &Attribute) {
    rest.extend(attribute.kind.to_ne_bytes());
    rest.extend(attribute.value.len().to_ne_bytes());
    rest.extend(attribute.value);
}

fn no_hop(flags: u8) -> Hop {
    Hop {
        gateway: None,
        ifindex: 0,
        weight: 1,
        onlink: flags & RTNH_F_ONLINK != 0,
        encapsulates: false,
    }
}

/// Attributes that a route with one next hop and each member of a multipath route have alike.
fn hop_attribute(hop: &mut Hop, rest: &mut Vec<u8>, attribute: &Attribute) -> Option<()> {
    match attribute.kind {
        RTA_OIF => hop.ifindex = attribute.u32()?,
        RTA_GATEWAY => hop.gateway = attribute.ip(),
        // struct rtvia: a family in front of the address.
        RTA_VIA => hop.gateway = crate::message::address(attribute.value.get(2..)?),
        RTA_ENCAP_TYPE => {
            hop.encapsulates = attribute.u16()? != 0;
            keep(rest, attribute);
        }
        RTA_ENCAP | RTA_FLOW => keep(rest, attribute),
        _ => {}
    }
    Some(())
}

/// A run of struct rtnexthop: len, flags, hops (the weight less one), ifindex; each with its
/// attributes.
fn multipath(mut bytes: &[u8], rest: &mut Vec<u8>) -> Option<Vec<Hop>> {
    let mut hops = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16_at(bytes, 0)?);
        let own = bytes.get(..len).filter(|own| own.len() >= 8)?;
        let mut hop = no_hop(own[2]);
        hop.weight = u32::from(own[3]) + 1;
        hop.ifindex = u32_at(own, 4)?;
        for attribute in attributes(&own[8..]) {
            hop_attribute(&mut hop, rest, &attribute)?;
        }
        hops.push(hop);
        bytes = bytes.get((len + 3) & !3..).unwrap_or_default();
    }
    Some(hops)
}

/// A prefix; no address is the family's zero.
fn prefix(family: Family, ip: Option<IpAddr>, len: u8) -> Option<IpNet> {
    let zero = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNet::new(ip.unwrap_or(zero), len).ok()
}

/// struct nhmsg: family, scope, protocol, unused, flags.
pub fn nexthop(message: &Message) -> Option<NextHop> {
    const FIXED: usize = 8;
    let mut object = NextHop {
        id: 0,
        hop: None,
        group: Vec::new(),
        resilient: false,
        blackhole: false,
    };
    let mut hop = no_hop(*message.body.get(4)?);
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            NHA_ID => object.id = attribute.u32()?,
            NHA_GROUP => {
                object.group = attribute
                    .value
                    .chunks_exact(8)
                    .filter_map(group_member)
                    .collect()
            }
            NHA_GROUP_TYPE => object.resilient = attribute.u16()? == 1,
            NHA_BLACKHOLE => object.blackhole = true,
            NHA_OIF => hop.ifindex = attribute.u32()?,
            NHA_GATEWAY => hop.gateway = attribute.ip(),
            NHA_ENCAP_TYPE => hop.encapsulates = attribute.u16()? != 0,
            // For bridges and VXLAN, not for routes.
            NHA_FDB => return None,
            _ => {}
        }
    }
    if object.group.is_empty() && !object.blackhole {
        object.hop = Some(hop);
    }
    Some(object)
}

/// struct nexthop_grp: id, weight less one, its high byte, unused.
fn group_member(bytes: &[u8]) -> Option<(u32, u32)> {
    let weight = u32::from(bytes[4]) | u32::from(bytes[5]) << 8;
    Some((u32_at(bytes, 0)?, weight + 1))
}

/// struct fib_rule_hdr: family, dst_len, src_len, tos, table, two unused, action, flags.
pub fn rule(message: &Message) -> Option<Rule> {
    const FIXED: usize = 12;
    let [family, dst_len, src_len, tos, table, _, _, action, ..] = *message.body else {
        return None;
    };
    let family = Family::from_code(family)?;
    let mut rule = Rule {
        family,
        priority: 0,
        action: RuleAction::Nop,
        src: None,
        dst: None,
        tos,
        iif: None,
        oif: None,
        mark: None,
        invert: u32_at(message.body, 8)? & FIB_RULE_INVERT != 0,
        suppress_prefix_len: None,
        more: false,
    };
    let (mut table, mut target, mut vrf) = (u32::from(table), 0, false);
    let (mut mark, mut mask) = (None, None);
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            FRA_DST => rule.dst = prefix(family, attribute.ip(), dst_len),
            FRA_SRC => rule.src = prefix(family, attribute.ip(), src_len),
            FRA_PRIORITY => rule.priority = attribute.u32()?,
            FRA_TABLE => table = attribute.u32()?,
            FRA_GOTO => target = attribute.u32()?,
            FRA_L3MDEV => vrf = attribute.value.first() == Some(&1),
            FRA_IIFNAME => rule.iif = Some(attribute.text()),
            FRA_OIFNAME => rule.oif = Some(attribute.text()),
            FRA_FWMARK => mark = attribute.u32(),
            FRA_FWMASK => mask = attribute.u32(),
            // -1 is "nothing is suppressed", which is always told.
            FRA_SUPPRESS_PREFIXLEN => {
                rule.suppress_prefix_len = attribute.u32().filter(|len| *len != u32::MAX)
            }
            FRA_SUPPRESS_IFGROUP => rule.more |= attribute.u32()? != u32::MAX,
            // Who made it, and filling.
            FRA_PROTOCOL | FRA_PAD => {}
            _ => rule.more = true,
        }
    }
    if mark.is_some() || mask.is_some_and(|mask| mask != 0) {
        rule.mark = Some((mark.unwrap_or(0), mask.unwrap_or(u32::MAX)));
    }
    rule.action = match action {
        1 if vrf => RuleAction::Vrf,
        1 => RuleAction::Table(table),
        2 => RuleAction::Goto(target),
        3 => RuleAction::Nop,
        6 => RuleAction::Blackhole,
        7 => RuleAction::Unreachable,
        8 => RuleAction::Prohibit,
        other => RuleAction::Other(other),
    };
    Some(rule)
}

/// struct ndmsg: family, three unused, ifindex, state, flags, type.
pub fn neighbour(message: &Message) -> Option<Neighbour> {
    const FIXED: usize = 12;
    // AF_BRIDGE tells of forwarding databases on the same group.
    Family::from_code(*message.body.first()?)?;
    let flags = *message.body.get(10)?;
    if flags & NTF_PROXY != 0 {
        return None;
    }
    let (mut ip, mut hardware) = (None, None);
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            NDA_DST => ip = attribute.ip(),
            NDA_LLADDR => hardware = mac(&attribute),
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: u32_at(message.body, 4)?,
        ip: ip?,
        mac: hardware,
        state: u16_at(message.body, 8)?,
        router: flags & NTF_ROUTER != 0,
    })
}

/// struct netconfmsg: family. The index, and what the message says; what it does not say is left
/// out.
pub fn settings(
    message: &Message,
    before: impl Fn(&(Family, i32)) -> ForwardingSettings,
) -> Option<((Family, i32), ForwardingSettings)> {
    const FIXED: usize = 4;
    let family = Family::from_code(*message.body.first()?)?;
    let index = message
        .attributes(FIXED)
        .find(|attribute| attribute.kind == NETCONFA_IFINDEX)?;
    let key = (family, index.u32()? as i32);
    // A change names only what changed.
    let mut settings = before(&key);
    for attribute in message.attributes(FIXED) {
        match attribute.kind {
            NETCONFA_FORWARDING => settings.forwarding = attribute.u32()? != 0,
            NETCONFA_RP_FILTER => settings.rp_filter = attribute.u32()?,
            NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN => {
                settings.ignore_routes_with_linkdown = attribute.u32()? != 0
            }
            _ => {}
        }
    }
    Some((key, settings))
}
