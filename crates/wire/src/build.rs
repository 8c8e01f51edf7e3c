//! Makes frames: for tests, for the bench NIC and for what the switch answers itself.
//!
//! A [`Builder`] starts at the Ethernet header and is told upwards; lengths and checksums are
//! filled in at the end. Fields that were not told have ordinary values. It never fails: what does
//! not fit a length field is cut to the largest that does, and the tests that want a malformed
//! frame build a good one and spoil it.
//!
//! ```
//! use butterfly_wire::{Mac, build, parse::TcpFlags};
//! # let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
//! let syn = build::frame(a, b).ip([10, 0, 0, 1], [10, 0, 0, 2]).tcp(40000, 80,
//! TcpFlags::SYN).build(); assert_eq!(syn.len(), 54); ```

mod dhcp;
mod emit;
mod fragment;
mod l4;
mod neighbours;
#[cfg(test)]
mod tests;

pub use dhcp::{dhcp_answer, dhcp_request, dhcpv6_answer, dhcpv6_request};
pub use fragment::{fragment_at, fragments};
pub use l4::crc32c;
pub use neighbours::{
    arp, arp_reply, arp_request, link_option, neighbour_advertisement, neighbour_solicitation,
    rarp_announcement, router_advertisement, solicited_node,
};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Mac;
use crate::parse::{TcpFlags, protocol};
use l4::Transport;

/// Starts a frame from `src` to `dst`.
pub fn frame(src: Mac, dst: Mac) -> Builder {
    Builder {
        src,
        dst,
        tags: Vec::new(),
        ethertype: None,
        addresses: None,
        ttl: 64,
        tos: 0,
        id: 0,
        dont_fragment: false,
        ip_options: Vec::new(),
        extensions: Vec::new(),
        transport: Transport::Raw(protocol::NO_NEXT_HEADER),
        payload: Vec::new(),
        partial_checksum: false,
        gso_size: 0,
        pad_to: 0,
    }
}

/// A frame being described.
#[derive(Clone, Debug)]
pub struct Builder {
    src: Mac,
    dst: Mac,
    tags: Vec<u16>,
    ethertype: Option<u16>,
    addresses: Option<Addresses>,
    ttl: u8,
    tos: u8,
    id: u16,
    dont_fragment: bool,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    transport: Transport,
    payload: Vec<u8>,
    partial_checksum: bool,
    gso_size: u16,
    pad_to: usize,
}

/// Source and destination of one family.
#[derive(Clone, Copy, Debug)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Builder {
    /// An 802.1Q tag with this TCI; called again, the next tag inwards.
    pub fn tag(mut self, tci: u16) -> Self {
        self.tags.push(tci);
        self
    }

    /// An EtherType of one's own, with the payload right behind it unless an IP layer is told too.
    pub fn ethertype(mut self, ethertype: u16) -> Self {
        self.ethertype = Some(ethertype);
        self
    }

    /// An IP header, of the family of the addresses; of two different ones, IPv6 with the IPv4 one
    /// mapped into it.
    pub fn ip(mut self, src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        let v6 = |address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.addresses = Some(match (src.into(), dst.into()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4(src, dst),
            (src, dst) => Addresses::V6(v6(src), v6(dst)),
        });
        self
    }

    /// TTL or hop limit; 64 if not told.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// TOS or traffic class.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// The IPv4 identification.
    pub fn id(mut self, id: u16) -> Self {
        self.id = id;
        self
    }

    /// Sets IPv4's DF.
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// IPv4 options, padded with zeros to four bytes; at most 40 bytes of them.
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        self.ip_options = padded(options, 4, 40);
        self
    }

    /// An IPv6 extension header of type `kind` whose bytes from the third on are `body`, padded
    /// with zeros to eight bytes (Pad1 where options are); called again, the next one. The first
    /// two bytes are made here. For AH (51) the length counts as that header wants it.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        let mut header = vec![0, 0];
        header.extend_from_slice(body);
        let mut header = padded(&header, 8, if kind == 51 { 1024 } else { 2048 });
        header[1] = if kind == 51 {
            (header.len() / 4).saturating_sub(2) as u8
        } else {
            (header.len() / 8 - 1) as u8
        };
        self.extensions.push((kind, header));
        self
    }

    /// TCP. Window 65535, sequence and acknowledgement number 0 if not told.
    pub fn tcp(mut self, sport: u16, dport: u16, flags: TcpFlags) -> Self {
        self.transport = Transport::Tcp {
            sport,
            dport,
            flags,
            seq: 0,
            ack: 0,
            window: 65535,
            options: Vec::new(),
        };
        self
    }

    /// The TCP sequence number.
    pub fn seq(mut self, number: u32) -> Self {
        if let Transport::Tcp { seq, .. } = &mut self.transport {
            *seq = number;
        }
        self
    }

    /// The TCP acknowledgement number.
    pub fn ack(mut self, number: u32) -> Self {
        if let Transport::Tcp { ack, .. } = &mut self.transport {
            *ack = number;
        }
        self
    }

    /// The TCP window.
    pub fn window(mut self, bytes: u16) -> Self {
        if let Transport::Tcp { window, .. } = &mut self.transport {
            *window = bytes;
        }
        self
    }

    /// TCP options, padded with zeros to four bytes; at most 40 bytes of them.
    pub fn tcp_options(mut self, bytes: &[u8]) -> Self {
        if let Transport::Tcp { options, .. } = &mut self.transport {
            *options = padded(bytes, 4, 40);
        }
        self
    }

    /// UDP.
    pub fn udp(mut self, sport: u16, dport: u16) -> Self {
        self.transport = Transport::Udp { sport, dport };
        self
    }

    /// SCTP with one chunk of type `chunk`, whose value is the payload.
    pub fn sctp(mut self, sport: u16, dport: u16, verification_tag: u32, chunk: u8) -> Self {
        self.transport = Transport::Sctp {
            sport,
            dport,
            verification_tag,
            chunk,
        };
        self
    }

    /// ICMP, or ICMPv6 over IPv6. `rest` is the second half of the 8-byte header: identifier and
    /// sequence number of an echo, the MTU of a "packet too big"; an error's payload is the packet
    /// it quotes, from its IP header.
    pub fn icmp(mut self, kind: u8, code: u8, rest: u32) -> Self {
        self.transport = Transport::Icmp { kind, code, rest };
        self
    }

    /// An ICMP or ICMPv6 echo request, by the family of the addresses told before.
    pub fn echo_request(self, id: u16, sequence: u16) -> Self {
        let kind = if self.is_v6() { 128 } else { 8 };
        self.icmp(kind, 0, u32::from(id) << 16 | u32::from(sequence))
    }

    /// The answer to [`Builder::echo_request`].
    pub fn echo_reply(self, id: u16, sequence: u16) -> Self {
        let kind = if self.is_v6() { 129 } else { 0 };
        self.icmp(kind, 0, u32::from(id) << 16 | u32::from(sequence))
    }

    fn is_v6(&self) -> bool {
        matches!(self.addresses, Some(Addresses::V6(..)))
    }

    /// Any other protocol: its header is part of the payload.
    pub fn protocol(mut self, number: u8) -> Self {
        self.transport = Transport::Raw(number);
        self
    }

    /// What is behind the headers.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Leaves the TCP or UDP checksum to be completed: the field holds the pseudo-header's sum.
    pub fn partial_checksum(mut self) -> Self {
        self.partial_checksum = true;
        self
    }

    /// Makes the frame one to be cut into segments of `size` payload bytes, with a partial
    /// checksum.
    pub fn gso(mut self, size: u16) -> Self {
        self.gso_size = size;
        self.partial_checksum()
    }

    /// Zeros behind the packet up to this frame length: Ethernet padding.
    pub fn pad_to(mut self, frame_len: usize) -> Self {
        self.pad_to = frame_len;
        self
    }
}

/// A length for a 16-bit field.
fn len16(len: usize) -> [u8; 2] {
    (len.min(0xffff) as u16).to_be_bytes()
}

/// At most `max` of `bytes`, with zeros up to a multiple of `unit`.
fn padded(bytes: &[u8], unit: usize, max: usize) -> Vec<u8> {
    let mut out = bytes[..bytes.len().min(max)].to_vec();
    out.resize(out.len().next_multiple_of(unit), 0);
    out
}
