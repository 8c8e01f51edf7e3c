//! The one check of all header lengths of a frame.
//!
//! [`parse`] reads a private copy of a frame's first bytes and says what the frame is, in a
//! [`Packet`] of plain numbers; whatever does not fit is a [`ParseError`], never a guess. Nothing
//! after it checks a length again. It is on the path of every frame: no allocation, fixed-size
//! reads through checked slices, and a short way for the common frame (no IP options, no extension
//! headers, TCP or UDP).
//!
//! What it does not judge: addresses, checksums, TTL (policy and the receiver's business), and what
//! is inside VLAN tags or tunnels: such frames are [`Net::Other`] and [`L4::Other`].

mod error;
mod extensions;
mod fragment;
mod head;
mod ip;
mod l4;
mod offload;
mod plain;
mod quoted;
#[cfg(test)]
mod tests;

pub use error::ParseError;
pub use extensions::EXTENSIONS_MAX;
pub use fragment::Fragment;
pub use ip::IpPacket;
pub use l4::{L4, TcpFlags};
pub use offload::{SEGMENTS_MAX, check_offload};
pub use plain::{Plain, PlainTcp, Transport, echo, ethertype_of, mac_bits, mac_of, plain};
pub use quoted::{Quoted, QuotedL4, quoted};

use std::net::Ipv4Addr;

use crate::Mac;
use head::Head;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: usize = 14;

/// EtherTypes that matter here.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// An 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
}

/// IP protocol numbers that matter here (IPv6 next header values are the same numbers).
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The Ethernet destination.
    pub dst: Mac,
    /// The Ethernet source.
    pub src: Mac,
    /// The EtherType as it stands at offset 12 (below 1536 it is an 802.3 length).
    pub ethertype: u16,
    /// The network layer.
    pub net: Net,
}

impl Packet {
    /// The IP packet inside, if it is one.
    #[inline]
    pub fn ip(&self) -> Option<&IpPacket> {
        if let Net::Ip(ip) = &self.net {
            Some(ip)
        } else {
            None
        }
    }
}

/// The network layer of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// IPv4 or IPv6.
    Ip(IpPacket),
    /// ARP for IPv4 over Ethernet.
    Arp(ArpPacket),
    /// Anything else, VLAN tags included: not looked into.
    Other,
}

/// An ARP packet for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpPacket {
    /// 1 request, 2 reply; others are passed on as they are.
    pub op: u16,
    /// Sender hardware address.
    pub sender_mac: Mac,
    /// Sender protocol address; 0.0.0.0 in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Target hardware address; anything in a request.
    pub target_mac: Mac,
    /// Target protocol address.
    pub target_ip: Ipv4Addr,
}

/// Says what the frame is, or what is wrong with it.
///
/// `head` holds the first bytes of the frame: all of it, or enough for any headers that are to pass
/// (a frame with longer ones is [`ParseError::HeadersTooLong`]). `frame_len` is the length of the
/// whole frame; a `head` longer than that is cut. Offsets in the result count from the start of
/// `head`, and every header that the result describes lies within `head`.
#[inline]
pub fn parse(head: &[u8], frame_len: usize) -> Result<Packet, ParseError> {
    let head = Head::new(head, frame_len);
    let ethernet: &[u8; ETHERNET_LEN] = head.array(0, ParseError::TruncatedEthernet)?;
    let ethertype = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    match ethertype {
        ethertype::IPV4 => ip::parse_v4(head, ethernet),
        ethertype::IPV6 => ip::parse_v6(head, ethernet),
        ethertype::ARP => Ok(frame(ethernet, Net::Arp(parse_arp(head)?))),
        _ => Ok(frame(ethernet, Net::Other)),
    }
}

/// The frame with what was found in it. Every way through the parser ends in a call of its own, so
/// that a result is written once, where it is wanted: put together layer by layer it took the whole
/// twice as long (moves of half-written enums, which stall on store forwarding).
#[inline(always)]
fn frame(ethernet: &[u8; ETHERNET_LEN], net: Net) -> Packet {
    let (dst, rest) = split_mac(ethernet);
    let (src, _) = split_mac(rest);
    Packet {
        dst,
        src,
        ethertype: u16::from_be_bytes([ethernet[12], ethernet[13]]),
        net,
    }
}

/// The MAC that `bytes` begin with, and the rest. Copied whole: octet by octet it is six loads and
/// spills.
#[inline(always)]
fn split_mac(bytes: &[u8]) -> (Mac, &[u8]) {
    match bytes.split_first_chunk::<6>() {
        Some((mac, rest)) => (Mac(*mac), rest),
        None => (Mac::default(), &[]),
    }
}

fn parse_arp(head: Head) -> Result<ArpPacket, ParseError> {
    let arp: &[u8; 28] = head.array(ETHERNET_LEN, ParseError::Arp)?;
    // Hardware type Ethernet, protocol type IPv4, and the address lengths that go with them.
    if arp[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(ParseError::Arp);
    }
    let mac = |at: usize| {
        Mac([
            arp[at],
            arp[at + 1],
            arp[at + 2],
            arp[at + 3],
            arp[at + 4],
            arp[at + 5],
        ])
    };
    let ip = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
    Ok(ArpPacket {
        op: u16::from_be_bytes([arp[6], arp[7]]),
        sender_mac: mac(8),
        sender_ip: ip(14),
        target_mac: mac(18),
        target_ip: ip(24),
    })
}
