//! What tells one flow from another.
//!
//! A flow is between two attachment points, not just two addresses: its key holds the [`PortUid`]s of both
//! NICs, so that a guest that borrows another one's address can neither ride on nor reset the other's
//! connections, and networks with the same addresses never meet. The end with the smaller uid comes first
//! (a flow from a NIC to itself does not exist), so both directions make the same key, and the comparison of
//! two numbers says which direction a packet goes.

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use foldhash::quality::SeedableRandomState;
use wire::parse::protocol::{ICMP, ICMPV6};
use wire::parse::{IpPacket, L4, Quoted, QuotedL4};

use super::info::Endpoint;
use crate::snapshot::PortUid;

/// Which end of a key: 0 is the one with the smaller uid.
pub(crate) type Side = usize;

/// The key of a flow. IPv4 addresses are mapped; `kind` tells them from IPv6 ones that look alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub ip: [u128; 2],
    pub uid: [u32; 2],
    pub port: [u16; 2],
    pub protocol: u8,
    pub kind: u8,
}

/// `kind`: the addresses are IPv6.
pub(crate) const KIND_V6: u8 = 1;
/// `kind`: an ICMP query and its answers.
const KIND_QUERY: u8 = 2;
/// `kind`: that was asked by side 1.
const KIND_ASKED_BY_1: u8 = 4;

/// The part of a packet that a key is made of, in the packet's own direction.
#[derive(Clone, Copy)]
struct Tuple {
    src: u128,
    dst: u128,
    sport: u16,
    dport: u16,
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

impl Key {
    /// The key of a packet from one NIC to another, and which side sent it. `None` for ICMP that is not a
    /// query or its answer: errors and the like have no flow of their own.
    #[inline]
    pub(crate) fn of(packet: &IpPacket, from: PortUid, to: PortUid) -> Option<(Key, Side)> {
        let mut tuple = Tuple {
            src: packet.src_bits(),
            dst: packet.dst_bits(),
            sport: 0,
            dport: 0,
            protocol: packet.protocol,
            v6: packet.v6,
            query: None,
        };
        match packet.l4_info {
            L4::Tcp { sport, dport, .. } | L4::Udp { sport, dport } | L4::Sctp { sport, dport, .. } => {
                (tuple.sport, tuple.dport) = (sport, dport);
            }
            L4::Icmp { kind, code, id } => tuple.query(kind, code, id)?,
            L4::Other | L4::LaterFragment => {}
        }
        Some(tuple.between(from, to))
    }

    /// The key of a packet that an ICMP error quotes, which `from` sent to `to`.
    pub(crate) fn of_quoted(quoted: &Quoted, from: PortUid, to: PortUid) -> Option<(Key, Side)> {
        let mut tuple = Tuple {
            src: quoted.src_bits(),
            dst: quoted.dst_bits(),
            sport: 0,
            dport: 0,
            protocol: quoted.protocol,
            v6: quoted.v6,
            query: None,
        };
        match quoted.l4 {
            QuotedL4::Ports { sport, dport } => (tuple.sport, tuple.dport) = (sport, dport),
            QuotedL4::Icmp { kind, code, id } => tuple.query(kind, code, id)?,
            QuotedL4::Other => {}
        }
        Some(tuple.between(from, to))
    }

    /// The key of a flow between two ends, the first of which began it, and which side that is.
    pub(crate) fn between(protocol: u8, kind: u8, ends: (Endpoint, Endpoint)) -> (Key, Side) {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => 0xffff_0000_0000 | u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let v6 = kind & KIND_V6 != 0;
        let is_query = protocol == if v6 { ICMPV6 } else { ICMP };
        let tuple = Tuple {
            src: bits(ends.0.address),
            dst: bits(ends.1.address),
            sport: ends.0.port,
            dport: ends.1.port,
            protocol,
            v6,
            query: is_query.then_some(Query::Question),
        };
        tuple.between(ends.0.uid, ends.1.uid)
    }

    /// The keyed hash: guests choose most of what is in a key.
    #[inline]
    pub(crate) fn hash(&self, seed: &SeedableRandomState) -> u32 {
        let mut hasher = seed.build_hasher();
        hasher.write_u128(self.ip[0]);
        hasher.write_u128(self.ip[1]);
        hasher.write_u64(u64::from(self.uid[0]) << 32 | u64::from(self.uid[1]));
        hasher.write_u64(
            u64::from(self.port[0]) << 48
                | u64::from(self.port[1]) << 32
                | u64::from(self.protocol) << 8
                | u64::from(self.kind),
        );
        hasher.finish() as u32
    }

    /// True for the answer to an ICMP query: it belongs to the query's flow and begins none itself.
    pub(crate) fn is_answer(&self, sender: Side) -> bool {
        let asked_by = Side::from(self.kind & KIND_ASKED_BY_1 != 0);
        self.kind & KIND_QUERY != 0 && asked_by != sender
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.kind & KIND_V6 != 0
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
        // An extended echo answers with codes of its own (RFC 8335): the flow is by type alone there.
        let code = if matches!(asked, 42 | 160) { 0 } else { code };
        let what = u16::from_be_bytes([asked, code]);
        (self.sport, self.dport) = if answer { (what, id) } else { (id, what) };
        self.query = Some(if answer { Query::Answer } else { Query::Question });
        Some(())
    }

    #[inline]
    fn between(self, from: PortUid, to: PortUid) -> (Key, Side) {
        let sender: Side = usize::from(from.0 > to.0);
        let mut kind = if self.v6 { KIND_V6 } else { 0 };
        if let Some(query) = self.query {
            let asked_by_1 = (sender == 1) == (query == Query::Question);
            kind |= KIND_QUERY | if asked_by_1 { KIND_ASKED_BY_1 } else { 0 };
        }
        let key = Key {
            ip: order_of(sender, self.src, self.dst),
            uid: order_of(sender, from.0, to.0),
            port: order_of(sender, self.sport, self.dport),
            protocol: self.protocol,
            kind,
        };
        (key, sender)
    }
}

#[inline]
fn order_of<T>(sender: Side, src: T, dst: T) -> [T; 2] {
    if sender == 0 { [src, dst] } else { [dst, src] }
}
