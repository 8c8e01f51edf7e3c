//! The rules of one group, compiled for finding an allowing rule fast.
//!
//! Rules only allow and have no order, so the question is whether any rule matches, and a set of
//! hash tables answers it: rules are sorted by what they say of the protocol and the port
//! (everything; one protocol; one port; a range of ports), and each of these cells is a `PeerSet`,
//! which looks the other end's address up by prefix length. Ten thousand rules for ten thousand
//! ports or networks are one or two probes each; ranges are in an interval tree. All of it is
//! persistent: control changes what a rule touches in a copy; workers only read.

mod peers;
mod ranges;
mod small_map;
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
use small_map::SmallMap;

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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

/// The rules of a group. They only allow, so their order does not matter. A copy shares what is not
/// changed afterwards, so that a rule more or less costs the same in a set of ten thousand as in
/// one of ten.
#[derive(Clone, Default)]
pub struct RuleSet {
    ingress: Side,
    egress: Side,
    /// How many are for ingress, and for egress.
    ingress_rules: usize,
    egress_rules: usize,
}

/// The rules of one direction.
#[derive(Clone, Default)]
struct Side {
    /// Peers of rules for every protocol and port.
    everything: PeerSet,
    /// Peers of rules for one protocol and every port.
    protocols: SmallMap<u8, Arc<PeerSet>>,
    /// Peers of rules for one port of one protocol (or of `EVERY`).
    exact: SmallMap<(u16, u16), Arc<PeerSet>>,
    /// Peers of rules for ranges of ports, by protocol (or `EVERY`).
    ranges: SmallMap<u16, Ranges>,
}

/// Whom groups stand for, asked for rules whose peer is a group.
pub trait GroupMembers {
    /// The members of a group; `None` when there is no such group, which matches nobody.
    fn members(&self, group: GroupIdx) -> Option<&AddressSet>;
}

/// Stands for "every protocol" where a protocol number is a key.
const EVERY: u16 = 256;

impl RuleSet {
    /// A set of these rules.
    pub fn new(rules: Vec<RuleSpec>) -> Self {
        let mut set = RuleSet::default();
        rules.iter().for_each(|rule| set.add(rule));
        set
    }

    /// Adds a rule. Of rules that mean the same the first one counts.
    pub fn add(&mut self, rule: &RuleSpec) {
        *self.count(rule.direction) += 1;
        self.side(rule.direction)
            .alter(rule, |peers| peers.add(&rule.peer, rule.slot));
    }

    /// Takes a rule out that was added.
    pub fn remove(&mut self, rule: &RuleSpec) {
        *self.count(rule.direction) -= 1;
        self.side(rule.direction)
            .alter(rule, |peers| peers.remove(&rule.peer, rule.slot));
    }

    fn count(&mut self, direction: Direction) -> &mut usize {
        match direction {
            Direction::Ingress => &mut self.ingress_rules,
            Direction::Egress => &mut self.egress_rules,
        }
    }

    fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }

    /// True when one of the rules is for egress: then only what egress rules allow leaves.
    #[inline]
    pub fn has_egress(&self) -> bool {
        self.egress_rules > 0
    }

    /// A rule that allows what is asked. `groups` are the snapshot's, for rules whose peer is a
    /// group.
    #[inline]
    pub fn decide(&self, asked: &Asked, groups: &(impl GroupMembers + ?Sized)) -> Option<RuleSlot> {
        self.find(asked, groups, &mut 0)
    }

    /// What [`decide`](Self::decide) says. In how many places a rule was looked for is added to
    /// `looked`: ranges of ports, lengths of prefixes and groups.
    #[inline]
    pub(crate) fn find(
        &self,
        asked: &Asked,
        groups: &(impl GroupMembers + ?Sized),
        looked: &mut u64,
    ) -> Option<RuleSlot> {
        match asked.direction {
            Direction::Ingress => self.ingress.find(asked, groups, looked),
            Direction::Egress => self.egress.find(asked, groups, looked),
        }
    }

    /// In how many places is looked for a rule of this direction at the most: each is in one range,
    /// and there by the length of its prefix or by its group.
    pub(crate) fn most_looks(&self, direction: Direction) -> u64 {
        let rules = match direction {
            Direction::Ingress => self.ingress_rules,
            Direction::Egress => self.egress_rules,
        };
        2 * rules as u64
    }

    /// A rule that allows every protocol, port and address of a family (security-groups.md 12).
    pub fn open(&self, direction: Direction, v6: bool) -> Option<RuleSlot> {
        match direction {
            Direction::Ingress => self.ingress.everything.everybody(v6),
            Direction::Egress => self.egress.everything.everybody(v6),
        }
    }
}

impl Side {
    /// Changes the peers of the cell that a rule is of; a cell without any is gone.
    fn alter(&mut self, rule: &RuleSpec, change: impl FnOnce(&mut PeerSet)) {
        let (low, high) = (*rule.selector.start(), *rule.selector.end());
        let protocol = rule.protocol.map_or(EVERY, u16::from);
        match (rule.protocol, low, high) {
            (None, 0, u16::MAX) => change(&mut self.everything),
            (Some(protocol), 0, u16::MAX) => {
                self.protocols.alter(protocol, |peers| cell(peers, change));
            }
            _ if low == high => {
                self.exact
                    .alter((protocol, low), |peers| cell(peers, change));
            }
            _ => self.ranges.alter(protocol, |ranges| {
                let mut ranges = ranges.unwrap_or_default();
                ranges.alter(low, high, change);
                (!ranges.is_empty()).then_some(ranges)
            }),
        }
    }

    fn find(
        &self,
        asked: &Asked,
        groups: &(impl GroupMembers + ?Sized),
        looked: &mut u64,
    ) -> Option<RuleSlot> {
        if let found @ Some(_) = self.everything.find(&asked.peer, groups, looked) {
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
                .and_then(|peers| peers.find(&asked.peer, groups, looked))
                .or_else(|| self.find_selector(protocol.into(), asked, groups, looked));
            if found.is_some() {
                return found;
            }
        }
        self.find_selector(EVERY, asked, groups, looked)
    }

    fn find_selector(
        &self,
        protocol: u16,
        asked: &Asked,
        groups: &(impl GroupMembers + ?Sized),
        looked: &mut u64,
    ) -> Option<RuleSlot> {
        let selector = asked.selector?;
        self.exact
            .get(&(protocol, selector))
            .and_then(|peers| peers.find(&asked.peer, groups, looked))
            .or_else(|| {
                self.ranges
                    .get(&protocol)?
                    .find(selector, &asked.peer, groups, looked)
            })
    }
}

/// The peers of a cell after a change; `None` when there are none.
fn cell(before: Option<Arc<PeerSet>>, change: impl FnOnce(&mut PeerSet)) -> Option<Arc<PeerSet>> {
    let mut peers = before.unwrap_or_default();
    change(Arc::make_mut(&mut peers));
    (!peers.is_empty()).then_some(peers)
}
