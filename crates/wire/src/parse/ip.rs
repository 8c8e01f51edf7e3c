//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::extensions::Chain;
use super::head::Head;
use super::l4::{self, L4};
use super::{ETHERNET_LEN, Fragment, Packet, ParseError, extensions, fragment, protocol};

/// An IP packet within a frame. Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpPacket {
    /// The addresses as numbers, IPv4 ones mapped into `::ffff:0:0/96`: one width for both
    /// families, so that a flow key is made without a branch.
    pub(super) src: u128,
    pub(super) dst: u128,
    /// Where the IP packet ends; what is behind in the frame is Ethernet padding.
    pub end: u32,
    /// Where the IP header starts.
    pub l3: u16,
    /// Where the layer-4 header starts; in a later fragment, where the fragment's bytes start.
    pub l4: u16,
    /// The protocol after all extension headers (for a later IPv6 fragment: after those that are in
    /// it, which can be the number of an extension header that was in the first).
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// Set when the packet is one of several fragments. An IPv6 atomic fragment (RFC 6946) is a
    /// whole packet.
    pub fragment: Option<Fragment>,
    /// What layer 4 says.
    pub l4_info: L4,
}

impl IpPacket {
    /// The source address.
    #[inline]
    pub fn src(&self) -> IpAddr {
        address(self.v6, self.src)
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> IpAddr {
        address(self.v6, self.dst)
    }

    /// The source address as a number, IPv4 mapped into `::ffff:0:0/96`. A key needs
    /// [`IpPacket::v6`] beside it: a guest can send such addresses in IPv6 too.
    #[inline]
    pub fn src_bits(&self) -> u128 {
        self.src
    }

    /// The destination address as a number; see [`IpPacket::src_bits`].
    #[inline]
    pub fn dst_bits(&self) -> u128 {
        self.dst
    }

    /// Bytes from the layer-4 header to the packet's end: header and payload, or a later fragment's
    /// bytes.
    #[inline]
    pub fn l4_len(&self) -> usize {
        (self.end as usize).saturating_sub(usize::from(self.l4))
    }

    /// True for ICMP errors: messages that quote the packet they are about (RFC 792, RFC 4443).
    #[inline]
    pub fn is_icmp_error(&self) -> bool {
        match self.l4_info {
            L4::Icmp { kind, .. } if self.v6 => kind < 128,
            L4::Icmp { kind, .. } => matches!(kind, 3 | 4 | 5 | 11 | 12),
            _ => false,
        }
    }

    /// It is a fragment and not the first of its datagram: it has no header of layer 4.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.offset != 0)
    }

    /// What of the packet behind an 8-byte layer-4 header (ICMP, UDP) can be seen in `head`; for
    /// [`super::quoted`]. `head` is the slice that was parsed.
    #[inline]
    pub fn message<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let end = head.len().min(self.end as usize);
        head.get(usize::from(self.l4) + 8..end).unwrap_or(&[])
    }
}

#[inline]
pub(super) fn address(v6: bool, bits: u128) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(bits as u32))
    }
}

/// An IPv4 address as one of the numbers above.
#[inline]
pub(super) fn map_v4(bytes: [u8; 4]) -> u128 {
    0xffff_0000_0000 | u128::from(u32::from_be_bytes(bytes))
}

/// The address at `at` of an IPv6 header as one of the numbers above.
#[inline]
pub(super) fn bits_v6(header: &[u8; 40], at: usize) -> u128 {
    let octets = header[at..].first_chunk::<16>();
    octets.map_or(0, |octets| u128::from_be_bytes(*octets))
}

#[inline(always)]
pub(super) fn parse_v4(head: Head, ethernet: &[u8; ETHERNET_LEN]) -> Result<Packet, ParseError> {
    let l3 = ETHERNET_LEN;
    let ip: &[u8; 20] = head.array(l3, ParseError::TruncatedIp)?;
    if ip[0] >> 4 != 4 {
        return Err(ParseError::IpVersion);
    }
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let header_len = usize::from(ip[0] & 15) * 4;
    let total_len = usize::from(word(2));
    let end = l3 + total_len;
    if end > head.end() || total_len < 20 {
        return Err(ParseError::IpLength);
    }
    let head = head.cut(end);
    if header_len != 20 {
        if header_len < 20 {
            return Err(ParseError::Ipv4HeaderLength);
        }
        check_options(head.slice(l3 + 20, header_len - 20, ParseError::Ipv4HeaderLength)?)?;
    }

    let l4 = l3 + header_len;
    let (protocol, flags_offset) = (ip[9], word(6));
    let mut fragment = None;
    if flags_offset & 0x3fff != 0 {
        let (offset, more) = ((flags_offset & 0x1fff) << 3, flags_offset & 0x2000 != 0);
        let found = Fragment {
            id: u32::from(word(4)),
            offset,
            more,
        };
        fragment::check(found, protocol, header_len, end - l4)?;
        fragment = Some(found);
    }
    let ip = IpPacket {
        src: map_v4([ip[12], ip[13], ip[14], ip[15]]),
        dst: map_v4([ip[16], ip[17], ip[18], ip[19]]),
        end: end as u32,
        l3: l3 as u16,
        l4: l4 as u16,
        protocol,
        ttl: ip[8],
        tos: ip[1],
        v6: false,
        fragment,
        l4_info: L4::Other,
    };
    l4::parse(head, ethernet, ip)
}

/// Checks that each IPv4 option lies within the header (RFC 791, section 3.1).
#[cold]
fn check_options(options: &[u8]) -> Result<(), ParseError> {
    match are_whole(options) {
        true => Ok(()),
        false => Err(ParseError::Ipv4Options),
    }
}

/// Whether each option of a header of IPv4 or TCP lies within the bytes for them: of one byte (0,
/// the end, and 1, nothing) or of as many as its second says.
#[inline]
pub(super) fn are_whole(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        let behind = match (kind, rest) {
            (0, _) => return true,
            (1, _) => Some(rest),
            (_, [len, ..]) if *len >= 2 => options.get(usize::from(*len)..),
            _ => None,
        };
        match behind {
            Some(behind) => options = behind,
            None => return false,
        }
    }
    true
}

#[inline(always)]
pub(super) fn parse_v6(head: Head, ethernet: &[u8; ETHERNET_LEN]) -> Result<Packet, ParseError> {
    let l3 = ETHERNET_LEN;
    let ip: &[u8; 40] = head.array(l3, ParseError::TruncatedIp)?;
    if ip[0] >> 4 != 6 {
        return Err(ParseError::IpVersion);
    }
    let (payload_len, next) = (usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip[6]);
    let end = l3 + 40 + payload_len;
    if end > head.end() {
        return Err(ParseError::IpLength);
    }
    if payload_len == 0 && next == extensions::HOP_BY_HOP {
        return Err(ParseError::Ipv6Jumbogram);
    }
    if payload_len == 0 && next != protocol::NO_NEXT_HEADER {
        return Err(ParseError::IpLength);
    }
    let head = head.cut(end);
    if extensions::is_extension(next) {
        return parse_v6_extended(head, ethernet, ip);
    }
    finish_v6(
        head,
        ethernet,
        ip,
        Chain {
            protocol: next,
            l4: l3 + 40,
            fragment: None,
            fragment_start: 0,
        },
    )
}

/// The rest of a packet with extension headers: kept apart so that the common one does not carry a
/// chain along (28 cycles for UDP over IPv6 where it was 43, 2026-11-20).
#[cold]
fn parse_v6_extended(
    head: Head,
    ethernet: &[u8; ETHERNET_LEN],
    ip: &[u8; 40],
) -> Result<Packet, ParseError> {
    let first = ETHERNET_LEN + 40;
    let chain = extensions::walk(head, first, ip[6])?;
    if let Some(fragment) = chain.fragment {
        // The fragment header itself is not part of the packet that the fragments make.
        let before = chain.fragment_start - (first + 8);
        fragment::check(
            fragment,
            chain.protocol,
            before,
            head.end() - chain.fragment_start,
        )?;
    }
    finish_v6(head, ethernet, ip, chain)
}

#[inline(always)]
fn finish_v6(
    head: Head,
    ethernet: &[u8; ETHERNET_LEN],
    ip: &[u8; 40],
    chain: Chain,
) -> Result<Packet, ParseError> {
    let ip = IpPacket {
        src: bits_v6(ip, 8),
        dst: bits_v6(ip, 24),
        end: head.end() as u32,
        l3: ETHERNET_LEN as u16,
        l4: chain.l4 as u16,
        protocol: chain.protocol,
        ttl: ip[7],
        tos: (ip[0] << 4) | (ip[1] >> 4),
        v6: true,
        fragment: chain.fragment,
        l4_info: L4::Other,
    };
    l4::parse(head, ethernet, ip)
}
