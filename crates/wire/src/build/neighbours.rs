//! ARP (RFC 826) and neighbour discovery (RFC 4861) frames.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::frame;
use crate::Mac;
use crate::nd;
use crate::parse::{ArpPacket, ethertype};

/// The EtherType of RARP, whose packets are those of ARP.
const RARP: u16 = 0x8035;

/// An ARP frame from `src` to `dst` that says what `arp` does.
pub fn arp(src: Mac, dst: Mac, arp: ArpPacket) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4];
    body.extend_from_slice(&arp.op.to_be_bytes());
    body.extend_from_slice(&arp.sender_mac.0);
    body.extend_from_slice(&arp.sender_ip.octets());
    body.extend_from_slice(&arp.target_mac.0);
    body.extend_from_slice(&arp.target_ip.octets());
    frame(src, dst)
        .ethertype(ethertype::ARP)
        .payload(&body)
        .build()
}

/// Who has `target`? Asked of everybody by `mac`, which has `sender`.
pub fn arp_request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let unknown = Mac::default();
    let request = ArpPacket {
        op: 1,
        sender_mac: mac,
        sender_ip: sender,
        target_mac: unknown,
        target_ip: target,
    };
    arp(mac, Mac::BROADCAST, request)
}

/// `mac` has `sender`: told to the one who asked.
pub fn arp_reply(mac: Mac, sender: Ipv4Addr, to: Mac, target: Ipv4Addr) -> Vec<u8> {
    arp(
        mac,
        to,
        ArpPacket {
            op: 2,
            sender_mac: mac,
            sender_ip: sender,
            target_mac: to,
            target_ip: target,
        },
    )
}

/// What is broadcast for a guest that has come here from another host, so that switches learn where
/// it is: a RARP request (RFC 903, operation 3) from and about `mac`, which nobody answers. 60
/// bytes, as on a wire.
pub fn rarp_announcement(mac: Mac) -> Vec<u8> {
    let nowhere = Ipv4Addr::UNSPECIFIED;
    let about = ArpPacket {
        op: 3,
        sender_mac: mac,
        sender_ip: nowhere,
        target_mac: mac,
        target_ip: nowhere,
    };
    let mut bytes = arp(mac, Mac::BROADCAST, about);
    bytes[12..14].copy_from_slice(&RARP.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// The solicited-node multicast address of `target` (RFC 4291, section 2.7.1) and the MAC it maps
/// to (RFC 2464).
pub fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., x, y, z] = target.octets();
    let address = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]);
    (address, Mac([0x33, 0x33, 0xff, x, y, z]))
}

/// A source (1) or target (2) link-layer address option.
pub fn link_option(kind: u8, mac: Mac) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [kind, 1, a, b, c, d, e, f]
}

/// Who has `target`? Asked of its solicited-node group by `mac`; from `::` it is a duplicate
/// address detection and names no link-layer address.
pub fn neighbour_solicitation(mac: Mac, src: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let (dst, dst_mac) = solicited_node(target);
    let mut body = target.octets().to_vec();
    if !src.is_unspecified() {
        body.extend_from_slice(&link_option(nd::SOURCE_LINK, mac));
    }
    frame(mac, dst_mac)
        .ip(src, dst)
        .ttl(255)
        .icmp(nd::NEIGHBOUR_SOLICITATION, 0, 0)
        .payload(&body)
        .build()
}

/// `mac` has `target`: told to `dst`, who asked (override; solicited when it is told to one alone,
/// RFC 4861, section 7.2.4).
pub fn neighbour_advertisement(mac: Mac, target: Ipv6Addr, dst_mac: Mac, dst: Ipv6Addr) -> Vec<u8> {
    let mut body = target.octets().to_vec();
    body.extend_from_slice(&link_option(nd::TARGET_LINK, mac));
    let flags = if dst.is_multicast() {
        0x2000_0000
    } else {
        0x6000_0000
    };
    frame(mac, dst_mac)
        .ip(target, dst)
        .ttl(255)
        .icmp(nd::NEIGHBOUR_ADVERTISEMENT, 0, flags)
        .payload(&body)
        .build()
}

/// A router advertisement to all nodes from `mac` at its link-local address: lifetime 1800 s, hop
/// limit 64.
pub fn router_advertisement(mac: Mac) -> Vec<u8> {
    let mut body = vec![0; 8]; // reachable time, retransmission timer: unspecified
    body.extend_from_slice(&link_option(nd::SOURCE_LINK, mac));
    let rest = 64 << 24 | 1800;
    frame(mac, nd::ALL_NODES_MAC)
        .ip(mac.link_local(), nd::ALL_NODES)
        .ttl(255)
        .icmp(nd::ROUTER_ADVERTISEMENT, 0, rest)
        .payload(&body)
        .build()
}
