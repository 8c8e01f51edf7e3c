//! Step 5: what passes whatever the rules say (ARP, neighbour discovery, DHCP), and what never does
//! (a guest as DHCP server or router, unless it may, or one on a host that is not trusted with it).
//! security-groups.md 13.

use std::net::IpAddr;

use wire::dhcp;
use wire::nd::NdKind;
use wire::parse::{IpPacket, L4, Net};

use crate::drop_reason::DropReason;
use crate::overlay::{Overlay, Trust};
use crate::round::{Item, Round};
use crate::snapshot::PortConfig;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.items.len() {
        if !round.items[index].is_going() {
            continue;
        }
        let item = &round.items[index];
        let rights = match round.host(item.frame) {
            None => Rights::of_nic(round.nic),
            Some(host) => Rights::of_remote(round, host),
        };
        match judge(&rights, item) {
            Ok(always) => round.items[index].always = always,
            Err(reason) => round.drop_item(index, reason),
        }
    }
}

/// What a sender may do that guests may not.
struct Rights {
    routes: Result<(), DropReason>,
    serves_dhcp: Result<(), DropReason>,
}

impl Rights {
    #[inline]
    fn of_nic(nic: &PortConfig) -> Rights {
        let may = |allowed: bool, reason| {
            if allowed || nic.bypass {
                Ok(())
            } else {
                Err(reason)
            }
        };
        Rights {
            routes: may(
                nic.allow_router_advertisements,
                DropReason::RouterAdvertisement,
            ),
            serves_dhcp: may(nic.allow_dhcp_server, DropReason::DhcpServer),
        }
    }

    /// The rights of machines on another host: which of them may was judged there, whether that
    /// host is to be trusted is judged here.
    fn of_remote(round: &Round, host: IpAddr) -> Rights {
        let network = round.view.network(round.nic.network);
        let overlay = network.and_then(|network| network.overlay.as_deref());
        let may = |trust: fn(&Overlay) -> &Trust, reason| match overlay.map(trust) {
            Some(trust) if trust.includes(host) => Ok(()),
            _ => Err(reason),
        };
        Rights {
            routes: may(|overlay| &overlay.routers, DropReason::RemoteRouter),
            serves_dhcp: may(
                |overlay| &overlay.dhcp_servers,
                DropReason::RemoteDhcpServer,
            ),
        }
    }
}

#[inline]
fn judge(rights: &Rights, item: &Item) -> Result<bool, DropReason> {
    let ip = match item.packet.as_ref().map(|packet| &packet.net) {
        Some(Net::Arp(_)) => return Ok(true),
        Some(Net::Ip(ip)) => ip,
        _ => return Ok(false),
    };
    if let Some(nd) = &item.nd {
        let routes = matches!(
            nd.kind,
            NdKind::RouterAdvertisement | NdKind::Redirect { .. }
        );
        if routes {
            rights.routes?;
        }
        return Ok(true);
    }
    if is_router_v4(ip) {
        rights.routes?;
    }
    if dhcp::is_to_client(ip) {
        rights.serves_dhcp?;
    }
    Ok(dhcp::is_server_answer(ip) || dhcp::is_client_request(ip))
}

/// What routers tell hosts in IPv4: redirects (RFC 792) and advertisements (RFC 1256). The rules
/// are asked besides.
#[inline]
fn is_router_v4(ip: &IpPacket) -> bool {
    !ip.v6 && matches!(ip.l4_info, L4::Icmp { kind: 5 | 9, .. })
}
