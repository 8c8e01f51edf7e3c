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

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const TTL: u8 = 64;
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// Fills everything of a server's entry that says how packets get there. Without a hop, or without
/// a source address that an outer header needs, `ifindex` stays zero: the way is not known.
pub(crate) fn fill(
    entry: &mut layout::Server,
    server: &Server,
    hop: Option<&Hop>,
    vip_is_v6: bool,
) {
    let Some(hop) = hop else { return };
    let inner = if vip_is_v6 { IPV6 } else { IPIP };
    let inner_type = if vip_is_v6 {
        ETHERTYPE_IPV6
    } else {
        ETHERTYPE_IPV4
    };
    let carried = match server.tunnel {
        Tunnel::None if !hop.direct => return,
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
