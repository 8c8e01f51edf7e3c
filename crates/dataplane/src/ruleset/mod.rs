//! The rules of one group, compiled for finding an allowing rule fast.
//!
//! Rules only allow and have no order, so the question is whether any rule matches, and a set of
//! hash tables answers it: rules are sorted by what they say of the protocol and the port
//! (everything; one protocol; one port; a range of ports), and each of these cells is a `PeerSet`,
//! which looks the other end's address up by prefix length. Ten thousand rules for ten thousand
//! ports or networks are one or two probes each; ranges are in an interval tree. Control compiles a
//! group once when it changes; workers only read.

mod peers;
mod ranges;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;
use wire::parse::protocol::{ICMP, ICMPV6};

use crate::address_set::AddressSet;
use crate::ids::{GroupIdx, RuleSlot};
use peers::PeerSet;
use ranges::Ranges;

type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;

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
    /// TCP, UDP, SCTP: destination ports. ICMP: `type << 8 | code`. `0..=65535` = any; another
    /// range matches nothing of a protocol that has no ports.
    pub selector: RangeInclusive<u16>,
    /// Whom.
    pub peer: Peer,
    /// Where its hits are counted.
    pub slot: RuleSlot,
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

/// The rules of a group. They only allow, so their order does not matter. A clone is a reference.
#[derive(Clone, Default)]
pub struct RuleSet {
    compiled: Arc<Compiled>,
}

#[derive(Default)]
struct Compiled {
    rules: Vec<RuleSpec>,
    ingress: Side,
    egress: Side,
    has_egress: bool,
}

/// The rules of one direction.
#[derive(Clone, Default)]
struct Side {
    /// Peers of rules for every protocol and port.
    everything: PeerSet,
    /// Peers of rules for one protocol and every port.
    protocols: Map<u8, PeerSet>,
    /// Peers of rules for one port of one protocol (or of `EVERY`).
    exact: Map<(u16, u16), PeerSet>,
    /// Peers of rules for ranges of ports, by protocol (or `EVERY`).
    ranges: Map<u16, Ranges>,
}

/// Whom groups stand for, asked for rules whose peer is a group.
pub trait GroupMembers {
    /// The members of a group; `None` when there is no such group, which matches nobody.
    fn members(&self, group: GroupIdx) -> Option<&AddressSet>;
}

/// Stands for "every protocol" where a protocol number is a key.
const EVERY: u16 = 256;

impl RuleSet {
    /// Compiles.
    pub fn new(rules: Vec<RuleSpec>) -> Self {
        let mut set = Compiled::default();
        for rule in &rules {
            let side = match rule.direction {
                Direction::Ingress => &mut set.ingress,
                Direction::Egress => {
                    set.has_egress = true;
                    &mut set.egress
                }
            };
            side.add(rule);
        }
        for side in [&mut set.ingress, &mut set.egress] {
            side.ranges.values_mut().for_each(Ranges::finish);
        }
        set.rules = rules;
        RuleSet {
            compiled: Arc::new(set),
        }
    }

    /// The rules it was made of, in their order.
    pub fn rules(&self) -> &[RuleSpec] {
        &self.compiled.rules
    }

    /// True when one of the rules is for egress: then only what egress rules allow leaves.
    #[inline]
    pub fn has_egress(&self) -> bool {
        self.compiled.has_egress
    }

    /// A rule that allows what is asked. `groups` are the snapshot's, for rules whose peer is a
    /// group.
    #[inline]
    pub fn decide(&self, asked: &Asked, groups: &(impl GroupMembers + ?Sized)) -> Option<RuleSlot> {
        match asked.direction {
            Direction::Ingress => self.compiled.ingress.find(asked, groups),
            Direction::Egress => self.compiled.egress.find(asked, groups),
        }
    }

    /// A rule that allows every protocol, port and address of a family (security-groups.md 12).
    pub fn open(&self, direction: Direction, v6: bool) -> Option<RuleSlot> {
        match direction {
            Direction::Ingress => self.compiled.ingress.everything.everybody(v6),
            Direction::Egress => self.compiled.egress.everything.everybody(v6),
        }
    }
}

impl Side {
    fn add(&mut self, rule: &RuleSpec) {
        let (low, high) = (*rule.selector.start(), *rule.selector.end());
        let protocol = rule.protocol.map_or(EVERY, u16::from);
        let peers = match (rule.protocol, low, high) {
            (None, 0, u16::MAX) => &mut self.everything,
            (Some(protocol), 0, u16::MAX) => self.protocols.entry(protocol).or_default(),
            _ if low == high => self.exact.entry((protocol, low)).or_default(),
            _ => self.ranges.entry(protocol).or_default().peers(low, high),
        };
        peers.add(&rule.peer, rule.slot);
    }

    fn find(&self, asked: &Asked, groups: &(impl GroupMembers + ?Sized)) -> Option<RuleSlot> {
        if let found @ Some(_) = self.everything.find(&asked.peer, groups) {
            return found;
        }
        // A rule for ICMP means ICMPv6 where the packet is IPv6, and then not protocol 1.
        let (first, second) = match (asked.protocol, asked.peer) {
            (ICMP, IpAddr::V6(_)) => (None, None),
            (ICMPV6, IpAddr::V6(_)) => (Some(ICMPV6), Some(ICMP)),
            (protocol, _) => (Some(protocol), None),
        };
        for protocol in [first, second].into_iter().flatten() {
            let found = self
                .protocols
                .get(&protocol)
                .and_then(|peers| peers.find(&asked.peer, groups))
                .or_else(|| self.find_selector(protocol.into(), asked, groups));
            if found.is_some() {
                return found;
            }
        }
        self.find_selector(EVERY, asked, groups)
    }

    fn find_selector(
        &self,
        protocol: u16,
        asked: &Asked,
        groups: &(impl GroupMembers + ?Sized),
    ) -> Option<RuleSlot> {
        let selector = asked.selector?;
        self.exact
            .get(&(protocol, selector))
            .and_then(|peers| peers.find(&asked.peer, groups))
            .or_else(|| {
                self.ranges
                    .get(&protocol)?
                    .find(selector, &asked.peer, groups)
            })
    }
}
