//! The packet that nearly all are: untagged, whole, IPv4 without options or IPv6 without extension
//! headers, TCP or UDP.
//!
//! [`plain`] reads it with a handful of loads at fixed places and says yes or nothing. A yes means
//! that [`parse`](super::parse()) says the same, with the same numbers (a property test holds it to
//! that); of everything else, faulty packets included, it says nothing: they are for the parser.

use super::l4::check_tcp_options;
use super::{ETHERNET_LEN, TcpFlags, protocol};
use crate::Mac;
use crate::offload::{Gso, Offload};

/// Where layer 4 begins.
const L4_V4: usize = ETHERNET_LEN + 20;
const L4_V6: usize = ETHERNET_LEN + 40;

/// The bits of a MAC address.
const MAC: u64 = 0xffff_ffff_ffff;

/// What tells the flow of a plain packet, in the packet's own direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// The Ethernet destination: octets 0 to 5 of the frame as a number ([`mac_bits`]).
    pub dst: u64,
    /// The Ethernet source, likewise.
    pub src: u64,
    /// The addresses. IPv4: the source in the upper half of the first word, the destination in the
    /// lower; zeros. IPv6: the source in two words, upper half first, then the destination.
    pub ip: [u64; 4],
    /// The source port in the upper half, the destination port in the lower.
    pub ports: u32,
    /// What is behind the ports.
    pub transport: Transport,
}

/// Where the transport header of a plain packet is and where the packet ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transport {
    l4: u16,
    /// TCP, else UDP.
    pub tcp: bool,
    end: u32,
}

/// What tracking needs of a plain TCP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainTcp {
    /// Control bits.
    pub flags: TcpFlags,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The window as it stands.
    pub window: u16,
    /// Payload bytes.
    pub payload_len: u32,
}

/// A MAC address as [`Plain`] has it.
#[inline(always)]
pub fn mac_bits(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The MAC address of such a number.
#[inline]
pub fn mac_of(bits: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = bits.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// The EtherType of a frame that begins with `head`; 0 without one.
#[inline(always)]
pub fn ethertype_of(head: &[u8]) -> u16 {
    match head.first_chunk::<ETHERNET_LEN>() {
        Some(ethernet) => u16::from_be_bytes([ethernet[12], ethernet[13]]),
        None => 0,
    }
}

/// The packet in a frame of `frame_len` bytes whose first bytes are in `head` and whose EtherType
/// is that of IPv6 or else IPv4, if it is a plain one.
#[inline(always)]
pub fn plain<const V6: bool>(head: &[u8], frame_len: usize) -> Option<Plain> {
    if V6 {
        v6(head, frame_len)
    } else {
        v4(head, frame_len)
    }
}

#[inline(always)]
fn v4(head: &[u8], frame_len: usize) -> Option<Plain> {
    let start: &[u8; L4_V4 + 8] = head.first_chunk()?;
    let ip: &[u8; 20] = start.get(ETHERNET_LEN..)?.first_chunk()?;
    let end = ETHERNET_LEN + usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    if ip[0] != 0x45 || fragment != 0 || end > frame_len {
        return None;
    }
    let addresses = word(ip, 12)?.swap_bytes();
    layer_4::<L4_V4>(head, start, end, ip[9], [addresses, 0, 0, 0])
}

#[inline(always)]
fn v6(head: &[u8], frame_len: usize) -> Option<Plain> {
    let start: &[u8; L4_V6 + 8] = head.first_chunk()?;
    let ip: &[u8; 40] = start.get(ETHERNET_LEN..)?.first_chunk()?;
    let end = L4_V6 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if ip[0] >> 4 != 6 || end > frame_len {
        return None;
    }
    let half = |at: usize| Some(word(ip, at)?.swap_bytes());
    let addresses = [half(8)?, half(16)?, half(24)?, half(32)?];
    layer_4::<L4_V6>(head, start, end, ip[6], addresses)
}

/// An ICMP echo request or reply of the same family in a frame that is otherwise a plain one: in
/// place of the ports its identifier, and below it type and code. `None` for everything else.
#[inline(never)]
pub fn echo<const V6: bool>(head: &[u8], frame_len: usize) -> Option<Plain> {
    let l4 = if V6 { L4_V6 } else { L4_V4 };
    let next = *head.get(if V6 {
        ETHERNET_LEN + 6
    } else {
        ETHERNET_LEN + 9
    })?;
    let &[kind, code, _, _, i0, i1, ..] = head.get(l4..)?.first_chunk::<8>()?;
    let is_echo = match V6 {
        true => next == protocol::ICMPV6 && matches!(kind, 128 | 129),
        false => next == protocol::ICMP && matches!(kind, 8 | 0),
    };
    if !is_echo {
        return None;
    }
    // What holds of a datagram in its place holds of it: the address, the end, no fragment.
    let mut as_datagram = [0; L4_V6 + 8];
    let start = as_datagram.get_mut(..l4 + 8)?;
    start.copy_from_slice(head.get(..l4 + 8)?);
    start[if V6 {
        ETHERNET_LEN + 6
    } else {
        ETHERNET_LEN + 9
    }] = protocol::UDP;
    start[l4..].copy_from_slice(&[i0, i1, kind, code, 0, 8, 0, 0]);
    plain::<V6>(start, frame_len)
}

#[inline(always)]
fn layer_4<const L4: usize>(
    head: &[u8],
    start: &[u8],
    end: usize,
    next: u8,
    ip: [u64; 4],
) -> Option<Plain> {
    let l4: &[u8; 8] = start.get(L4..)?.first_chunk()?;
    let tcp = next == protocol::TCP;
    if tcp {
        tcp_header_len::<L4>(head, end)?;
    } else {
        let len = usize::from(u16::from_be_bytes([l4[4], l4[5]]));
        if next != protocol::UDP || len < 8 || L4 + len > end {
            return None;
        }
    }
    Some(Plain {
        dst: word(start, 0)? & MAC,
        src: word(start, 6)? & MAC,
        ip,
        ports: u32::from_be_bytes([l4[0], l4[1], l4[2], l4[3]]),
        transport: Transport {
            l4: L4 as u16,
            tcp,
            end: end as u32,
        },
    })
}

/// Eight bytes as they stand.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Bytes of the TCP header at `L4`, if its options are sound; mostly it has none, or what nearly
/// every data segment has: two no-operations and a timestamp (RFC 7323, appendix A).
#[inline(always)]
fn tcp_header_len<const L4: usize>(head: &[u8], end: usize) -> Option<usize> {
    let tcp: &[u8; 20] = head.get(L4..)?.first_chunk()?;
    let len = usize::from(tcp[12] >> 4) * 4;
    let with_timestamp = || {
        len == 32
            && head
                .get(L4 + 20..L4 + 32)
                .is_some_and(|options| options.starts_with(&[1, 1, 8, 10]))
    };
    let sound = len == 20 || with_timestamp() || has_sound_options(head, L4 + 20, L4 + len);
    (sound && L4 + len <= end).then_some(len)
}

/// Those of a SYN, and of who has lost a segment.
#[inline(never)]
fn has_sound_options(head: &[u8], start: usize, end: usize) -> bool {
    head.get(start..end)
        .is_some_and(|options| check_tcp_options(options).is_ok())
}

impl Transport {
    /// Where the transport header ends; `head` is what [`plain`] was given.
    #[inline(always)]
    pub fn header_end(&self, head: &[u8]) -> usize {
        let l4 = usize::from(self.l4);
        match self.tcp {
            true => {
                l4 + head
                    .get(l4 + 12)
                    .map_or(20, |offset| usize::from(offset >> 4) * 4)
            }
            false => l4 + 8,
        }
    }

    /// What the TCP header says; `head` is what [`plain`] was given. `None` for UDP.
    #[inline(always)]
    pub fn tcp(&self, head: &[u8]) -> Option<PlainTcp> {
        if !self.tcp {
            return None;
        }
        let tcp: &[u8; 20] = head.get(usize::from(self.l4)..)?.first_chunk()?;
        let number =
            |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        Some(PlainTcp {
            flags: TcpFlags(tcp[13]),
            seq: number(4),
            ack: number(8),
            window: u16::from_be_bytes([tcp[14], tcp[15]]),
            payload_len: self.end - u32::from(self.l4) - u32::from(tcp[12] >> 4) * 4,
        })
    }

    /// The options of a TCP header; `head` is what [`plain`] was given.
    pub fn tcp_options<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.l4) + 20;
        head.get(start..self.header_end(head)).unwrap_or_default()
    }
}

impl Plain {
    /// What the sender left undone is what such a packet can have undone: its own checksum, and
    /// cutting it into segments of its own kind, not too many of them, all `frame_len` bytes of its
    /// frame. A yes is one of [`check_offload`](super::check_offload) too.
    #[inline]
    pub fn suits(&self, frame_len: usize, offload: &Offload) -> bool {
        let l4 = usize::from(self.transport.l4);
        let (tcp, v6) = (self.transport.tcp, l4 == L4_V6);
        let field = if tcp { 16 } else { 6 };
        let own = |partial: crate::offload::PartialChecksum| {
            usize::from(partial.start) == l4 && partial.offset == field
        };
        let kind = match offload.gso {
            Gso::None => return offload.checksum.is_none_or(own),
            Gso::Tcp4 => tcp && !v6,
            Gso::Tcp6 => tcp && v6,
            Gso::Udp => !tcp,
        };
        let few = offload.gso_size > 0
            && self.transport.end as usize == frame_len
            && self.transport.end as usize - l4
                <= usize::from(offload.gso_size) * super::SEGMENTS_MAX;
        kind && few && offload.checksum.is_none_or(own)
    }
}
