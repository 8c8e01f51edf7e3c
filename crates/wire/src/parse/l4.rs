//! Layer 4: TCP (RFC 9293), UDP (RFC 768), SCTP (RFC 9260), ICMP (RFC 792, RFC 4443).

use super::head::Head;
use super::ip::are_whole;
use super::{ETHERNET_LEN, IpPacket, Net, Packet, ParseError, frame, protocol};

/// What the layer-4 header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum L4 {
    /// TCP.
    Tcp {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
        /// Control bits, CWR to FIN.
        flags: TcpFlags,
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number; means something with [`TcpFlags::ACK`].
        ack: u32,
        /// The window as it stands, unscaled.
        window: u16,
        /// Header bytes, options included: 20 to 60.
        header_len: u8,
        /// Payload bytes (of this fragment, when it is one).
        payload_len: u32,
    },
    /// UDP.
    Udp {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
    },
    /// SCTP.
    Sctp {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
        /// Verification tag.
        verification_tag: u32,
        /// Type of the first chunk; a packet without any is malformed.
        first_chunk: u8,
    },
    /// ICMP or ICMPv6: which one follows from [`super::IpPacket::v6`].
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier of echo, extended echo, timestamp, information and mask messages; else 0.
        id: u16,
    },
    /// Any other protocol.
    Other,
    /// A fragment that is not the first: there is no layer-4 header in it.
    LaterFragment,
}

impl L4 {
    /// Source and destination port of TCP, UDP and SCTP.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        match *self {
            L4::Tcp { sport, dport, .. }
            | L4::Udp { sport, dport }
            | L4::Sctp { sport, dport, .. } => Some((sport, dport)),
            _ => None,
        }
    }
}

/// The TCP control bits (RFC 9293, section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgement number is significant.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is significant.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// All of `other` are set.
    #[inline]
    pub fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// At least one of `other` is set.
    #[inline]
    pub fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for TcpFlags {
    type Output = TcpFlags;

    fn bitor(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

/// Reads the layer-4 header of `ip`, which ends where `head` does, and completes the packet with
/// it.
#[inline(always)]
pub(super) fn parse(
    head: Head,
    ethernet: &[u8; ETHERNET_LEN],
    ip: IpPacket,
) -> Result<Packet, ParseError> {
    let with = |l4_info| frame(ethernet, Net::Ip(IpPacket { l4_info, ..ip }));
    if ip.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return Ok(with(L4::LaterFragment));
    }
    let (at, fragmented) = (usize::from(ip.l4), ip.fragment.is_some());
    let short = if fragmented {
        ParseError::TinyFragment
    } else {
        ParseError::TruncatedL4
    };
    match ip.protocol {
        protocol::TCP => Ok(with(parse_tcp(head, at, short, fragmented)?)),
        protocol::UDP => Ok(with(parse_udp(head, at, short, fragmented)?)),
        protocol::SCTP => Ok(with(parse_sctp(head, at, short)?)),
        protocol::ICMP if !ip.v6 => Ok(with(parse_icmp(head, at, short)?)),
        protocol::ICMPV6 if ip.v6 => Ok(with(parse_icmpv6(head, at, short)?)),
        _ => Ok(with(L4::Other)),
    }
}

#[inline(always)]
fn parse_tcp(head: Head, at: usize, short: ParseError, fragmented: bool) -> Result<L4, ParseError> {
    let tcp: &[u8; 20] = head.array(at, short)?;
    let header_len = usize::from(tcp[12] >> 4) * 4;
    if header_len < 20 {
        return Err(ParseError::TcpHeaderLength);
    }
    if header_len > 20 {
        let short = if fragmented {
            short
        } else {
            ParseError::TcpHeaderLength
        };
        check_tcp_options(head.slice(at + 20, header_len - 20, short)?)?;
    }
    Ok(L4::Tcp {
        sport: u16::from_be_bytes([tcp[0], tcp[1]]),
        dport: u16::from_be_bytes([tcp[2], tcp[3]]),
        flags: TcpFlags(tcp[13]),
        seq: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        ack: u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]),
        window: u16::from_be_bytes([tcp[14], tcp[15]]),
        header_len: header_len as u8,
        payload_len: (head.end() - at - header_len) as u32,
    })
}

#[inline]
pub(super) fn check_tcp_options(options: &[u8]) -> Result<(), ParseError> {
    // What nearly every data segment has: two no-operations and a timestamp (RFC 7323, appendix A).
    if options.len() == 12 && options.starts_with(&[1, 1, 8, 10]) {
        return Ok(());
    }
    match are_whole(options) {
        true => Ok(()),
        false => Err(ParseError::TcpOptions),
    }
}

#[inline(always)]
fn parse_udp(head: Head, at: usize, short: ParseError, fragmented: bool) -> Result<L4, ParseError> {
    let &[s0, s1, d0, d1, l0, l1, _, _] = head.array(at, short)?;
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    // A first fragment's length is the whole datagram's. One that ends before the packet does is
    // odd but defined.
    if len < 8 || (!fragmented && len > head.end() - at) {
        return Err(ParseError::UdpLength);
    }
    Ok(L4::Udp {
        sport: u16::from_be_bytes([s0, s1]),
        dport: u16::from_be_bytes([d0, d1]),
    })
}

fn parse_sctp(head: Head, at: usize, short: ParseError) -> Result<L4, ParseError> {
    // The common header and the first chunk's.
    let sctp: &[u8; 16] = head.array(at, short)?;
    Ok(L4::Sctp {
        sport: u16::from_be_bytes([sctp[0], sctp[1]]),
        dport: u16::from_be_bytes([sctp[2], sctp[3]]),
        verification_tag: u32::from_be_bytes([sctp[4], sctp[5], sctp[6], sctp[7]]),
        first_chunk: sctp[12],
    })
}

fn parse_icmp(head: Head, at: usize, short: ParseError) -> Result<L4, ParseError> {
    let &[kind, code, _, _, i0, i1, _, _] = head.array(at, short)?;
    let id = if is_query_v4(kind) {
        u16::from_be_bytes([i0, i1])
    } else {
        0
    };
    Ok(L4::Icmp { kind, code, id })
}

fn parse_icmpv6(head: Head, at: usize, short: ParseError) -> Result<L4, ParseError> {
    let &[kind, code, _, _] = head.array(at, short)?;
    if kind >= 128 && !is_query_v6(kind) {
        return Ok(L4::Icmp { kind, code, id: 0 });
    }
    // Errors and queries have four more bytes, the others see to their own bodies.
    let &[_, _, _, _, i0, i1, _, _] = head.array(at, short)?;
    let id = if is_query_v6(kind) {
        u16::from_be_bytes([i0, i1])
    } else {
        0
    };
    Ok(L4::Icmp { kind, code, id })
}

/// Echo, timestamp, information, address mask, extended echo (RFC 792, 950, 8335): the types with
/// an identifier.
#[inline]
pub(super) fn is_query_v4(kind: u8) -> bool {
    matches!(kind, 0 | 8 | 13..=18 | 42 | 43)
}

/// Echo and extended echo (RFC 4443, 8335).
#[inline]
pub(super) fn is_query_v6(kind: u8) -> bool {
    matches!(kind, 128 | 129 | 160 | 161)
}
