//! What tells one flow from another.
//!
//! A flow is between two attachment points, not just two addresses: its key holds the [`PortUid`]s
//! of both NICs, so that a guest that borrows another one's address can neither ride on nor reset
//! the other's connections, and networks with the same addresses never meet. The end with the
//! smaller uid comes first (a flow from a NIC to itself does not exist), so both directions make
//! the same key, and the comparison of two numbers says which direction a packet goes.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::SeedableRandomState;
use wire::parse::protocol::{ICMP, ICMPV6, TCP, UDP};
use wire::parse::{IpPacket, L4, Plain, Quoted, QuotedL4};

use super::info::Party;
use crate::ids::PortUid;

/// Which end of a key: 0 is the one with the smaller uid.
pub(crate) type Side = usize;

/// The key of a flow, as the words that are compared: two of each side's IPv6 address (or both IPv4
/// addresses in the first word and zeros), the uids, and last both ports, the protocol and the
/// `kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub words: [u64; Key::WORDS],
}

/// The two NICs of a flow as its key has them, and which of them a packet comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    uids: u64,
    pub sender: Side,
}

/// `kind`: the addresses are IPv6.
pub(super) const KIND_V6: u8 = 1;
/// `kind`: an ICMP query and its answers.
const KIND_QUERY: u8 = 2;
/// `kind`: that was asked by side 1.
const KIND_ASKED_BY_1: u8 = 4;

/// The part of a packet that a key is made of, in the packet's own direction. IPv4 addresses are
/// numbers of 32 bits.
#[derive(Clone, Copy)]
struct Tuple {
    ip: [u128; 2],
    port: [u16; 2],
    protocol: u8,
    v6: bool,
    /// An ICMP query or the answer to one.
    query: Option<Query>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Query {
    Question,
    Answer,
}

impl Ends {
    /// The ends of packets from one NIC to another.
    #[inline]
    pub(crate) fn new(from: PortUid, to: PortUid) -> Ends {
        let sender = usize::from(from.0 > to.0);
        let [low, high] = order_of(sender, [from.0, to.0]);
        Ends {
            uids: u64::from(low) << 32 | u64::from(high),
            sender,
        }
    }
}

impl Key {
    pub(crate) const WORDS: usize = 6;

    /// The key of a packet from one NIC to another, and which side sent it. `None` for ICMP that is
    /// not a query or its answer: errors and the like have no flow of their own.
    #[inline]
    pub(crate) fn of(packet: &IpPacket, from: PortUid, to: PortUid) -> Option<(Key, Side)> {
        let mut tuple = Tuple {
            ip: [address_bits(packet.src()), address_bits(packet.dst())],
            port: [0; 2],
            protocol: packet.protocol,
            v6: packet.v6,
            query: None,
        };
        match packet.l4_info {
            L4::Tcp { sport, dport, .. }
            | L4::Udp { sport, dport }
            | L4::Sctp { sport, dport, .. } => {
                tuple.port = [sport, dport];
            }
            L4::Icmp { kind, code, id } => tuple.query(kind, code, id)?,
            L4::Other | L4::LaterFragment => {}
        }
        Some(tuple.between(Ends::new(from, to)))
    }

    /// The key of a plain packet, whose NICs are known.
    #[inline(always)]
    pub(crate) fn of_plain<const V6: bool>(packet: &Plain, ends: &Ends) -> Key {
        let [a, b, c, d] = packet.ip;
        // What side 1 sends is turned around, half a word or two words.
        let turned = ends.sender as u32;
        let [a, b, c, d] = match (V6, turned) {
            (false, _) => [a.rotate_left(32 * turned), 0, 0, 0],
            (true, 0) => [a, b, c, d],
            (true, _) => [c, d, a, b],
        };
        let ports = u64::from(packet.ports.rotate_left(16 * turned));
        let protocol = if packet.transport.tcp { TCP } else { UDP };
        let kind = if V6 { KIND_V6 } else { 0 };
        let rest = ports << 32 | u64::from(protocol) << 8 | u64::from(kind);
        Key {
            words: [a, b, c, d, ends.uids, rest],
        }
    }

    /// The key of an [echo](wire::parse::echo), likewise.
    pub(crate) fn of_echo<const V6: bool>(packet: &Plain, ends: &Ends) -> Option<Key> {
        let [a, b, c, d] = packet.ip;
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let [i0, i1, kind, code] = packet.ports.to_be_bytes();
        let mut tuple = Tuple {
            ip: match V6 {
                true => [wide(a, b), wide(c, d)],
                false => [(a >> 32).into(), (a as u32).into()],
            },
            port: [0; 2],
            protocol: if V6 { ICMPV6 } else { ICMP },
            v6: V6,
            query: None,
        };
        tuple.query(kind, code, u16::from_be_bytes([i0, i1]))?;
        Some(tuple.between(*ends).0)
    }

    /// Whether both keys are equal. Unlike `==` it goes word by word, so that a key that was made
    /// just now is compared in registers, and begins with the last word, where flows of the same
    /// two NICs differ.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Key) -> bool {
        let [mine @ .., my_rest] = &self.words;
        let [theirs @ .., their_rest] = &other.words;
        let pairs = mine.iter().zip(theirs);
        my_rest == their_rest
            && pairs.fold(0, |differ, (mine, theirs)| differ | (mine ^ theirs)) == 0
    }

    /// The key of a packet that an ICMP error quotes, which `from` sent to `to`.
    pub(crate) fn of_quoted(quoted: &Quoted, from: PortUid, to: PortUid) -> Option<(Key, Side)> {
        let mut tuple = Tuple {
            ip: [address_bits(quoted.src()), address_bits(quoted.dst())],
            port: [0; 2],
            protocol: quoted.protocol,
            v6: quoted.v6,
            query: None,
        };
        match quoted.l4 {
            QuotedL4::Ports { sport, dport } => tuple.port = [sport, dport],
            QuotedL4::Icmp { kind, code, id } => tuple.query(kind, code, id)?,
            QuotedL4::Other => {}
        }
        Some(tuple.between(Ends::new(from, to)))
    }

    /// The key of a flow between two ends, the first of which began it, and which side that is.
    pub(crate) fn between(protocol: u8, v6: bool, ends: (Party, Party)) -> (Key, Side) {
        let is_query = protocol == if v6 { ICMPV6 } else { ICMP };
        let tuple = Tuple {
            ip: [address_bits(ends.0.address), address_bits(ends.1.address)],
            port: [ends.0.port, ends.1.port],
            protocol,
            v6,
            query: is_query.then_some(Query::Question),
        };
        tuple.between(Ends::new(ends.0.uid, ends.1.uid))
    }

    /// The key of the same flow between two others: who is side 0 here, and who is side 1.
    pub(crate) fn between_others(&self, uids: [PortUid; 2]) -> Key {
        let [one, other] = uids;
        let [a, b, c, d, _, rest] = self.words;
        let ends = u64::from(one.0) << 32 | u64::from(other.0);
        if one.0 <= other.0 {
            return Key {
                words: [a, b, c, d, ends, rest],
            };
        }
        let [a, b, c, d] = match self.is_v6() {
            true => [c, d, a, b],
            false => [a.rotate_left(32), 0, 0, 0],
        };
        let asked_by = match self.kind() & KIND_QUERY != 0 {
            true => u64::from(KIND_ASKED_BY_1),
            false => 0,
        };
        let ports = ((rest >> 32) as u32).rotate_left(16);
        let rest = u64::from(ports) << 32 | u64::from(rest as u32) ^ asked_by;
        Key {
            words: [a, b, c, d, ends.rotate_left(32), rest],
        }
    }

    /// The keyed hash: guests choose most of what is in a key.
    ///
    /// The ports are in both factors of its last multiplication. In one alone they would be so many
    /// steps of the same length, which with one random key in fifty meet in a few buckets; another
    /// multiplication ([`foldhash::quality`]) would take five cycles more of a packet's way.
    #[inline(always)]
    pub(crate) fn hash(&self, seed: &SeedableRandomState) -> u64 {
        let mut hasher = seed.build_hasher();
        let [a, b, c, d, uids, rest] = self.words;
        let again = rest ^ rest.rotate_right(29) ^ rest.rotate_right(43);
        hasher.write_u64(a);
        if self.is_v6() {
            hasher.write_u64(b);
            hasher.write_u64(c);
            hasher.write_u64(d);
            hasher.write_u64(uids ^ again);
            hasher.write_u64(rest);
        } else {
            hasher.write_u64(uids);
            hasher.write_u64(rest);
            hasher.write_u64(again);
        }
        hasher.finish()
    }

    /// True for the answer to an ICMP query: it belongs to the query's flow and begins none itself.
    #[inline]
    pub(crate) fn is_answer(&self, sender: Side) -> bool {
        let asked_by = Side::from(self.kind() & KIND_ASKED_BY_1 != 0);
        self.kind() & KIND_QUERY != 0 && asked_by != sender
    }

    #[inline(always)]
    pub(crate) fn is_v6(&self) -> bool {
        self.kind() & KIND_V6 != 0
    }

    #[inline]
    pub(crate) fn address(&self, side: Side) -> IpAddr {
        let [a, b, c, d, ..] = self.words;
        match (self.is_v6(), side) {
            (false, 0) => IpAddr::V4(Ipv4Addr::from_bits((a >> 32) as u32)),
            (false, _) => IpAddr::V4(Ipv4Addr::from_bits(a as u32)),
            (true, 0) => IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b))),
            (true, _) => IpAddr::V6(Ipv6Addr::from_bits(u128::from(c) << 64 | u128::from(d))),
        }
    }

    #[inline]
    pub(crate) fn uid(&self, side: Side) -> PortUid {
        PortUid((self.words[4] >> (32 * (1 - side))) as u32)
    }

    #[inline]
    pub(crate) fn port(&self, side: Side) -> u16 {
        (self.words[5] >> (48 - 16 * side)) as u16
    }

    #[inline(always)]
    pub(crate) fn protocol(&self) -> u8 {
        Key::protocol_in(self.words[5])
    }

    /// The protocol in the last word of a key.
    #[inline(always)]
    pub(super) fn protocol_in(word: u64) -> u8 {
        (word >> 8) as u8
    }

    #[inline(always)]
    fn kind(&self) -> u8 {
        self.words[5] as u8
    }
}

impl Tuple {
    /// A query's id is the asker's port and its type and code the other's, in the answer too.
    fn query(&mut self, kind: u8, code: u8, id: u16) -> Option<()> {
        let (asked, answer) = match (self.v6, kind) {
            (false, 8 | 13 | 15 | 17 | 42) | (true, 128 | 160) => (kind, false),
            (false, 0) => (8, true),
            (false, 14 | 16 | 18 | 43) | (true, 129 | 161) => (kind - 1, true),
            _ => return None,
        };
        // An extended echo answers with codes of its own (RFC 8335): the flow is by type alone
        // there.
        let code = if matches!(asked, 42 | 160) { 0 } else { code };
        let what = u16::from_be_bytes([asked, code]);
        self.port = if answer { [what, id] } else { [id, what] };
        self.query = Some(if answer {
            Query::Answer
        } else {
            Query::Question
        });
        Some(())
    }

    #[inline(always)]
    fn between(self, ends: Ends) -> (Key, Side) {
        let sender = ends.sender;
        let mut kind = if self.v6 { KIND_V6 } else { 0 };
        if let Some(query) = self.query {
            let asked_by_1 = (sender == 1) == (query == Query::Question);
            kind |= KIND_QUERY | if asked_by_1 { KIND_ASKED_BY_1 } else { 0 };
        }
        let [ip_0, ip_1] = order_of(sender, self.ip);
        let [port_0, port_1] = order_of(sender, self.port);
        let rest = u64::from(port_0) << 48
            | u64::from(port_1) << 32
            | u64::from(self.protocol) << 8
            | u64::from(kind);
        let [a, b, c, d] = match self.v6 {
            false => [
                u64::from(ip_0 as u32) << 32 | u64::from(ip_1 as u32),
                0,
                0,
                0,
            ],
            true => [
                (ip_0 >> 64) as u64,
                ip_0 as u64,
                (ip_1 >> 64) as u64,
                ip_1 as u64,
            ],
        };
        let key = Key {
            words: [a, b, c, d, ends.uids, rest],
        };
        (key, sender)
    }
}

/// An address as a number, IPv4 in 32 bits.
#[inline(always)]
fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[inline(always)]
fn order_of<T>(sender: Side, [src, dst]: [T; 2]) -> [T; 2] {
    if sender == 0 { [src, dst] } else { [dst, src] }
}
