//! Step 3: nobody sends over a link that is down, or in another one's name. The source MAC always;
//! the source address, the ARP sender and the ND target when the NIC asks for it
//! (security-groups.md 14).

use std::net::IpAddr;

use wire::nd::{Nd, NdKind};
use wire::parse::{ArpPacket, IpPacket, L4, Net, Packet};
use wire::{Mac, dhcp};

use crate::drop_reason::DropReason;
use crate::judge::{is_unspecified, owns, owns_mac};
use crate::overlay::TunnelSource;
use crate::round::{Round, owns_source};
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
        let checked = match round.host(item.frame) {
            None => check(round, packet, item.nd.as_ref()),
            Some(host) => check_remote(round, host, packet, item.nd.as_ref()),
        };
        if let Err(reason) = checked {
            round.drop_item(index, reason);
        }
    }
}

/// Who sends from another host is neither a NIC of this one nor bound elsewhere, and uses no
/// address of either. Whether it may send from an address that is bound to nobody was judged there.
fn check_remote(
    round: &Round,
    host: IpAddr,
    packet: &Packet,
    nd: Option<&Nd>,
) -> Result<(), DropReason> {
    let from = TunnelSource {
        network: round.nic.network,
        host,
    };
    check_remote_mac(round.view, from, packet.src)?;
    let source = packet.ip().map(IpPacket::src);
    let claimed = match (&packet.net, nd.map(|nd| nd.kind)) {
        (Net::Arp(arp), _) => Some(claimed_by_arp(arp)),
        (_, Some(NdKind::NeighbourAdvertisement { target, .. })) => Some(target.into()),
        // Duplicate address detection: who asks for an address from none wants to have it.
        (_, Some(NdKind::NeighbourSolicitation { target }))
            if source.is_some_and(is_unspecified) =>
        {
            Some(target.into())
        }
        _ => None,
    };
    [source, claimed]
        .into_iter()
        .flatten()
        .try_for_each(|address| check_remote_ip(round.view, from, address))
}

/// Whether a frame from this MAC address may come from there.
pub(crate) fn check_remote_mac(
    view: &View,
    from: TunnelSource,
    mac: Mac,
) -> Result<(), DropReason> {
    let network = view
        .network(from.network)
        .ok_or(DropReason::RemoteSpoofed)?;
    if mac.is_multicast() || network.macs.contains_key(&mac) {
        return Err(DropReason::RemoteSpoofed);
    }
    let overlay = network.overlay.as_ref();
    match overlay.and_then(|overlay| overlay.bindings.get(&mac)) {
        Some(index) if view.host(*index) == Some(from.host) => Ok(()),
        Some(_) => Err(DropReason::RemoteSpoofed),
        None if overlay.is_some_and(|overlay| overlay.learn) => Ok(()),
        None => Err(DropReason::RemoteUnbound),
    }
}

/// Whether a frame from there may have, or claim, this IP address.
pub(crate) fn check_remote_ip(
    view: &View,
    from: TunnelSource,
    address: IpAddr,
) -> Result<(), DropReason> {
    let network = view.network(from.network);
    let Some((network, overlay)) = network.and_then(|it| Some((it, it.overlay.as_ref()?))) else {
        return Err(DropReason::RemoteSpoofed);
    };
    let given_by = link_local_of(address);
    let is_here = given_by.is_some_and(|mac| network.macs.contains_key(&mac));
    if is_here || view.is_owned(from.network, address) {
        return Err(DropReason::RemoteSpoofed);
    }
    let host_of = |mac: &Mac| view.host(*overlay.bindings.get(mac)?);
    let is_there = |mac: &Mac| host_of(mac) == Some(from.host);
    let may = match (overlay.neighbours.get(&address), given_by) {
        (Some(holder), _) => holder.macs().iter().any(is_there),
        (None, Some(mac)) => host_of(&mac).is_none_or(|host| host == from.host),
        (None, None) => true,
    };
    match may {
        true => Ok(()),
        false => Err(DropReason::RemoteIpSpoofed),
    }
}

/// The MAC that gives this link-local address, which is its NIC's without being declared.
fn link_local_of(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Mac::of_link_local(address),
    }
}

/// The address that an ARP message says is its sender's. A probe from nowhere claims the one that
/// it asks for (RFC 5227), as in IPv6.
fn claimed_by_arp(arp: &ArpPacket) -> IpAddr {
    match (arp.op, arp.sender_ip.is_unspecified()) {
        (1, true) => arp.target_ip.into(),
        _ => arp.sender_ip.into(),
    }
}

#[inline]
fn check(round: &Round, packet: &Packet, nd: Option<&Nd>) -> Result<(), DropReason> {
    // Any MAC and any address.
    if round.nic.bypass {
        return Ok(());
    }
    if packet.src != round.nic.mac && !may_use_mac(round, packet.src) {
        return Err(DropReason::MacSpoofed);
    }
    if !round.nic.anti_spoof {
        return Ok(());
    }
    match &packet.net {
        Net::Ip(ip) => check_ip(round, packet, ip, nd),
        Net::Arp(arp) => {
            let mac = (!round.nic.learn_macs).then_some(packet.src);
            let claimed = claimed_by_arp(arp);
            let own = is_unspecified(claimed) || owns(round.nic, mac, claimed);
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

/// Another MAC than the NIC's: an allowed pair's, or one behind a learning NIC that nobody was
/// given and that is not in use as a pair's.
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

fn check_ip(
    round: &Round,
    packet: &Packet,
    ip: &IpPacket,
    nd: Option<&Nd>,
) -> Result<(), DropReason> {
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
