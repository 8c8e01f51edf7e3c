//! The way to a server: next hop, interface, VLAN tags; and with its tunnel, the bytes that go in
//! front of a packet.

use std::net::IpAddr;

use wire::{Mac, checksum};

use crate::layout;
use model::{Server, Tunnel};

/// How frames get to an address: what a route and a neighbour entry say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The device that sends: below a VLAN interface, the one that carries it.
    pub ifindex: u32,
    /// Its MAC.
    pub source_mac: Mac,
    /// The next hop's MAC.
    pub mac: Mac,
    /// VLAN tags from the outermost on, two at the most; 802.1Q.
    pub vlans: Vec<u16>,
    /// The longest IP packet that fits.
    pub mtu: u16,
    /// The next hop is the server itself: layer 2 reaches no other.
    pub direct: bool,
    /// Our address towards there, of the server's family: the source of outer headers.
    pub source: Option<IpAddr>,
}

/// Why no packet of a service gets to one of its servers: a sentence's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// The kernel knows no way, or not yet.
    #[error("no route to it, or its next hop does not answer")]
    NoHop,
    /// A router would send the packet back: it is addressed to the service.
    #[error("it is behind a router, where only a tunnel gets to it")]
    BehindRouter,
    /// Outer headers would have no source.
    #[error("this host has no address of its family that its tunnel could begin at")]
    NoSource,
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const TTL: u8 = 64;
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// The way of a server's packets, if the hop to its address is one.
pub(crate) fn way<'a>(server: &Server, hop: Option<&'a Hop>) -> Result<&'a Hop, NoWay> {
    let hop = hop.ok_or(NoWay::NoHop)?;
    let begins = |source: IpAddr| source.is_ipv6() == server.address().is_ipv6();
    match server.tunnel {
        Tunnel::None if hop.direct => Ok(hop),
        Tunnel::None => Err(NoWay::BehindRouter),
        _ if hop.source.is_some_and(begins) => Ok(hop),
        _ => Err(NoWay::NoSource),
    }
}

/// Fills everything of a server's entry that says how packets get there. Without a [`way`]
/// `ifindex` stays zero.
pub(crate) fn fill(
    entry: &mut layout::Server,
    server: &Server,
    hop: Option<&Hop>,
    vip_is_v6: bool,
) {
    let Ok(hop) = way(server, hop) else { return };
    let inner = if vip_is_v6 { IPV6 } else { IPIP };
    let inner_type = if vip_is_v6 {
        ETHERTYPE_IPV6
    } else {
        ETHERTYPE_IPV4
    };
    let carried = match server.tunnel {
        Tunnel::None => {
            fill_link(entry, hop, inner_type);
            entry.ifindex = hop.ifindex;
            return;
        }
        Tunnel::Ipip => inner,
        Tunnel::Gre => {
            entry.shim_len = 4;
            entry.shim[2..4].copy_from_slice(&inner_type.to_be_bytes());
            GRE
        }
        Tunnel::Fou { port } => {
            entry.shim_len = 8;
            entry.shim[2..4].copy_from_slice(&port.get().to_be_bytes());
            UDP
        }
        Tunnel::Gue { port } => {
            entry.shim_len = 12;
            entry.shim[2..4].copy_from_slice(&port.get().to_be_bytes());
            entry.shim[9] = inner;
            UDP
        }
    };
    match (hop.source, server.address()) {
        (Some(IpAddr::V4(source)), IpAddr::V4(address)) => {
            let header = &mut entry.header;
            header[0] = 0x45;
            header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
            header[8] = TTL;
            header[9] = carried;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&address.octets());
            entry.outer_sum = u32::from(checksum::fold(checksum::sum(&header[..20])).to_be());
            entry.outer = 4;
            fill_link(entry, hop, ETHERTYPE_IPV4);
        }
        (Some(IpAddr::V6(source)), IpAddr::V6(address)) => {
            let header = &mut entry.header;
            header[0] = 0x60;
            header[6] = carried;
            header[7] = TTL;
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&address.octets());
            entry.outer = 6;
            fill_link(entry, hop, ETHERTYPE_IPV6);
        }
        _ => return,
    }
    entry.ifindex = hop.ifindex;
}

fn fill_link(entry: &mut layout::Server, hop: &Hop, ethertype: u16) {
    let mut link = Vec::with_capacity(entry.link.len());
    link.extend(hop.mac.0);
    link.extend(hop.source_mac.0);
    for vlan in &hop.vlans {
        link.extend(ETHERTYPE_VLAN.to_be_bytes());
        link.extend(vlan.to_be_bytes());
    }
    link.extend(ethertype.to_be_bytes());
    entry.link[..link.len()].copy_from_slice(&link);
    entry.tags = hop.vlans.len() as u8;
    entry.mtu = hop.mtu;
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn what_is_said_of_a_way_is_what_packets_see() {
        let server = Server::new([10, 0, 0, 1].into()).expect("a host");
        let (v4, v6) = (IpAddr::from([10, 0, 0, 9]), IpAddr::from([0; 16]));
        let rows = [
            (Tunnel::None, true, None, Ok(())),
            (Tunnel::None, false, Some(v4), Err(NoWay::BehindRouter)),
            (Tunnel::Ipip, false, Some(v4), Ok(())),
            (Tunnel::Gre, true, None, Err(NoWay::NoSource)),
            (Tunnel::Ipip, false, Some(v6), Err(NoWay::NoSource)),
        ];
        for (tunnel, direct, source, expected) in rows {
            let server = server.tunnel(tunnel);
            let hop = Hop {
                ifindex: 7,
                source_mac: Mac([2; 6]),
                mac: Mac([4; 6]),
                vlans: Vec::new(),
                mtu: 1500,
                direct,
                source,
            };
            let said = way(&server, Some(&hop)).map(|_| ());
            assert_eq!(said, expected, "{hop:?}");
            let mut entry = layout::Server::zeroed();
            fill(&mut entry, &server, Some(&hop), false);
            assert_eq!(entry.ifindex != 0, expected.is_ok(), "{hop:?}");
            assert_eq!(way(&server, None), Err(NoWay::NoHop));
        }
    }
}
