//! Step 5: what passes whatever the rules say (ARP, neighbour discovery, DHCP), and what never does (a guest
//! as DHCP server or router, unless it may). security-groups.md 13.

use wire::dhcp;
use wire::nd::NdKind;
use wire::parse::{IpPacket, L4, Net};

use crate::drop_reason::DropReason;
use crate::round::{Item, Round};
use crate::snapshot::PortConfig;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.items.len() {
        if !round.items[index].is_going() {
            continue;
        }
        match judge(round.nic, &round.items[index]) {
            Ok(always) => round.items[index].always = always,
            Err(reason) => round.drop_item(index, reason),
        }
    }
}

#[inline]
fn judge(nic: &PortConfig, item: &Item) -> Result<bool, DropReason> {
    let ip = match item.packet.as_ref().map(|packet| &packet.net) {
        Some(Net::Arp(_)) => return Ok(true),
        Some(Net::Ip(ip)) => ip,
        _ => return Ok(false),
    };
    if let Some(nd) = &item.nd {
        let routes = matches!(nd.kind, NdKind::RouterAdvertisement | NdKind::Redirect { .. });
        return if routes && !nic.allow_router_advertisements && !nic.bypass {
            Err(DropReason::RouterAdvertisement)
        } else {
            Ok(true)
        };
    }
    if is_router_v4(ip) && !nic.allow_router_advertisements && !nic.bypass {
        return Err(DropReason::RouterAdvertisement);
    }
    if dhcp::is_to_client(ip) && !nic.allow_dhcp_server && !nic.bypass {
        return Err(DropReason::DhcpServer);
    }
    Ok(dhcp::is_server_answer(ip) || dhcp::is_client_request(ip))
}

/// What routers tell hosts in IPv4: redirects (RFC 792) and advertisements (RFC 1256). The rules are asked besides.
#[inline]
fn is_router_v4(ip: &IpPacket) -> bool {
    !ip.v6 && matches!(ip.l4_info, L4::Icmp { kind: 5 | 9, .. })
}
