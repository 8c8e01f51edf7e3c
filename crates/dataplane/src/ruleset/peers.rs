//! Which addresses the rules of one cell allow: everybody, networks by prefix length, members of
//! groups.

use std::net::IpAddr;

use super::{GroupMembers, Map, Peer};
use crate::ids::{GroupIdx, RuleSlot};

/// The peers of all rules that say the same of protocol and port.
#[derive(Clone, Default)]
pub(super) struct PeerSet {
    any: Option<RuleSlot>,
    v4: Networks,
    v6: Networks,
    groups: Vec<(GroupIdx, RuleSlot)>,
}

/// Networks of one family: a hash table, and which prefix lengths to try.
#[derive(Clone, Default)]
struct Networks {
    lengths: Vec<u8>,
    slots: Map<(u8, u128), RuleSlot>,
}

impl PeerSet {
    /// Adds a rule's peer; of rules for the same peer the first one counts.
    pub(super) fn add(&mut self, peer: &Peer, slot: RuleSlot) {
        match peer {
            Peer::Any => self.any = self.any.or(Some(slot)),
            Peer::Net(net) => {
                let (networks, bits) = match net.network() {
                    IpAddr::V4(address) => (&mut self.v4, left_aligned_v4(address)),
                    IpAddr::V6(address) => (&mut self.v6, address.to_bits()),
                };
                networks.add(net.prefix_len(), bits, slot);
            }
            Peer::Group(group) => {
                if self.groups.iter().all(|(known, _)| known != group) {
                    self.groups.push((*group, slot));
                }
            }
        }
    }

    /// The rule that allows `address`. A group that does not exist matches nobody.
    #[inline]
    pub(super) fn find(
        &self,
        address: &IpAddr,
        groups: &(impl GroupMembers + ?Sized),
    ) -> Option<RuleSlot> {
        if self.any.is_some() {
            return self.any;
        }
        let network = match address {
            IpAddr::V4(v4) => self.v4.find(left_aligned_v4(*v4)),
            IpAddr::V6(v6) => self.v6.find(v6.to_bits()),
        };
        network.or_else(|| {
            self.groups.iter().find_map(|(group, slot)| {
                groups.members(*group)?.contains(address).then_some(*slot)
            })
        })
    }

    /// The rule that allows every address of a family.
    pub(super) fn everybody(&self, v6: bool) -> Option<RuleSlot> {
        let networks = if v6 { &self.v6 } else { &self.v4 };
        self.any.or_else(|| networks.slots.get(&(0, 0)).copied())
    }
}

impl Networks {
    fn add(&mut self, length: u8, bits: u128, slot: RuleSlot) {
        if !self.lengths.contains(&length) {
            self.lengths.push(length);
        }
        self.slots.entry((length, bits)).or_insert(slot);
    }

    #[inline]
    fn find(&self, bits: u128) -> Option<RuleSlot> {
        self.lengths.iter().find_map(|length| {
            let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
            self.slots.get(&(*length, bits & mask)).copied()
        })
    }
}

/// IPv4 addresses at the high end, so that one mask does for both families.
#[inline]
fn left_aligned_v4(address: std::net::Ipv4Addr) -> u128 {
    u128::from(address.to_bits()) << 96
}
