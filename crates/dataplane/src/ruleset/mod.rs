//! The rules of one group, compiled for finding an allowing rule fast.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::snapshot::{GroupIdx, RuleSlot};

/// Seen from the guest: egress leaves it, ingress enters it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Into the NIC that is in the group.
    Ingress,
    /// Out of it.
    Egress,
}

/// Whom a rule allows: the source of ingress, the destination of egress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// Every address, of both families.
    Any,
    /// The addresses of a network.
    Net(IpNet),
    /// The members of a group.
    Group(GroupIdx),
}

/// One rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleSpec {
    /// Which way.
    pub direction: Direction,
    /// IP protocol number; `None` = every one. 1 (ICMP) stands for ICMPv6 where the packet is IPv6.
    pub protocol: Option<u8>,
    /// TCP, UDP, SCTP: destination ports. ICMP: `type << 8 | code`. `0..=65535` = any; another range matches
    /// nothing of a protocol that has no ports.
    pub selector: RangeInclusive<u16>,
    /// Whom.
    pub peer: Peer,
    /// Where its hits are counted.
    pub slot: RuleSlot,
}

/// The rules of a group. They only allow, so their order does not matter.
#[derive(Clone, Default)]
pub struct RuleSet {
    rules: Vec<RuleSpec>,
}

/// What of a packet the rules look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Which way the packet goes for the NIC that is in the group.
    pub direction: Direction,
    /// IP protocol, after extension headers.
    pub protocol: u8,
    /// Destination port, or `type << 8 | code`; `None` for protocols without either.
    pub selector: Option<u16>,
    /// The other end.
    pub peer: IpAddr,
}

impl RuleSet {
    /// Compiles.
    pub fn new(rules: Vec<RuleSpec>) -> Self {
        RuleSet { rules }
    }

    /// True when one of the rules is for egress: then only what egress rules allow leaves.
    pub fn has_egress(&self) -> bool {
        self.rules.iter().any(|rule| rule.direction == Direction::Egress)
    }
}
