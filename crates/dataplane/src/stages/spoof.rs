//! Step 3: nobody sends over a link that is down, or in another one's name. The source MAC always; the source address, the ARP sender and
//! the ND target when the NIC asks for it (security-groups.md 14).

use std::net::IpAddr;

use wire::nd::{Nd, NdKind};
use wire::parse::{IpPacket, L4, Net, Packet};
use wire::{Mac, dhcp};

use crate::drop_reason::DropReason;
use crate::judge::{is_unspecified, owns, owns_mac};
use crate::round::{Round, owns_source};
use crate::snapshot::NetworkIdx;
use crate::stages::destination::{Learnt, learned};
use crate::view::View;

pub(crate) fn run(round: &mut Round) {
    if round.nic.link_down {
        for index in 0..round.items.len() {
            round.drop_item(index, DropReason::LinkDown);
        }
        return;
    }
    for index in 0..round.items.len() {
        let item = &round.items[index];
        let Some(packet) = item.packet.as_ref().filter(|_| item.is_going()) else {
            continue;
        };
        let checked = match round.endpoint(item.frame) {
            None => check(round, packet, item.nd.as_ref()),
            Some(endpoint) => check_remote(round, endpoint, packet, item.nd.as_ref()),
        };
        if let Err(reason) = checked {
            round.drop_item(index, reason);
        }
    }
}

/// Who sends from another host is neither a NIC of this one nor bound elsewhere. Whether it may send from its address was
/// judged there.
fn check_remote(round: &Round, endpoint: IpAddr, packet: &Packet, nd: Option<&Nd>) -> Result<(), DropReason> {
    let index = round.nic.network;
    let named = match (&packet.net, nd.map(|nd| nd.kind)) {
        (_, Some(NdKind::NeighbourAdvertisement { target, .. })) => Some(target.into()),
        (Net::Arp(arp), _) => Some(arp.sender_ip.into()),
        _ => None,
    };
    let source = packet.ip().map(IpPacket::src);
    let owned = |address: Option<IpAddr>| address.is_some_and(|address| round.view.is_owned(index, address));
    let honest = remote_has_mac(round.view, index, endpoint, packet.src) && !owned(source) && !owned(named);
    if honest {
        Ok(())
    } else {
        Err(DropReason::RemoteSpoofed)
    }
}

/// A frame from this MAC address may come from this endpoint: see [`check_remote`].
pub(crate) fn remote_has_mac(view: &View, network: NetworkIdx, endpoint: IpAddr, mac: Mac) -> bool {
    let Some(network) = view.network(network) else {
        return false;
    };
    let bound = network
        .overlay
        .as_ref()
        .and_then(|overlay| overlay.bindings.get(&mac));
    let elsewhere = bound.is_some_and(|index| view.endpoint(*index) != Some(endpoint));
    !mac.is_multicast() && !network.macs.contains_key(&mac) && !elsewhere
}

#[inline]
fn check(round: &Round, packet: &Packet, nd: Option<&Nd>) -> Result<(), DropReason> {
    if packet.src != round.nic.mac && !may_use_mac(round, packet.src) {
        return Err(DropReason::MacSpoofed);
    }
    if !round.nic.anti_spoof || round.nic.bypass {
        return Ok(());
    }
    match &packet.net {
        Net::Ip(ip) => check_ip(round, packet, ip, nd),
        Net::Arp(arp) => {
            let mac = (!round.nic.learn_macs).then_some(packet.src);
            // A probe from nowhere for an address claims it (RFC 5227), as in IPv6.
            let named = match (arp.op, arp.sender_ip.is_unspecified()) {
                (1, true) => arp.target_ip,
                _ => arp.sender_ip,
            };
            let own = named.is_unspecified() || owns(round.nic, mac, named.into());
            let honest = arp.sender_mac == packet.src && own;
            if honest {
                Ok(())
            } else {
                Err(DropReason::ArpSpoofed)
            }
        }
        Net::Other => Ok(()),
    }
}

/// Another MAC than the NIC's: an allowed pair's, or one behind a learning NIC that nobody was given and that
/// is not in use as a pair's.
fn may_use_mac(round: &Round, mac: Mac) -> bool {
    if owns_mac(round.nic, mac) {
        return true;
    }
    let taken = || {
        let network = round.view.network(round.nic.network);
        network.is_some_and(|network| network.macs.contains_key(&mac))
            || matches!(learned(round, mac), Some(Learnt::Nic(holder)) if owns_mac(holder, mac))
    };
    round.nic.learn_macs && !mac.is_multicast() && !taken()
}

fn check_ip(round: &Round, packet: &Packet, ip: &IpPacket, nd: Option<&Nd>) -> Result<(), DropReason> {
    let own = owns_source(round.nic, packet, ip);
    let nobody_yet = is_unspecified(ip.src()) && may_be_unspecified(ip, nd);
    if !own && !nobody_yet {
        return Err(DropReason::IpSpoofed);
    }
    let Some(nd) = nd else { return Ok(()) };
    let mac = (!round.nic.learn_macs).then_some(packet.src);
    let own_target = match nd.kind {
        NdKind::NeighbourAdvertisement { target, .. } => owns(round.nic, mac, target.into()),
        // Duplicate address detection: who asks for an address from none wants to have it.
        NdKind::NeighbourSolicitation { target } if !own => owns(round.nic, mac, target.into()),
        _ => true,
    };
    let redirect = matches!(nd.kind, NdKind::Redirect { .. });
    let own_links = nd.source_link.is_none_or(|link| link == packet.src)
        && (redirect || nd.target_link.is_none_or(|link| link == packet.src));
    if own_target && own_links {
        Ok(())
    } else {
        Err(DropReason::NdSpoofed)
    }
}

/// Who has no address yet asks for one, or tells routers what multicast it listens to (RFC 3590).
fn may_be_unspecified(ip: &IpPacket, nd: Option<&Nd>) -> bool {
    if !ip.v6 {
        return dhcp::is_client_request(ip);
    }
    match nd.map(|nd| nd.kind) {
        Some(NdKind::NeighbourSolicitation { .. } | NdKind::RouterSolicitation) => true,
        Some(_) => false,
        None => matches!(
            ip.l4_info,
            L4::Icmp {
                kind: 131 | 132 | 143,
                ..
            }
        ),
    }
}
