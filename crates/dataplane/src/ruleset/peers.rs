//! Which addresses the rules of one cell allow: everybody, networks by prefix length, members of
//! groups.

use std::net::IpAddr;

use super::small_map::SmallMap;
use super::{GroupMembers, Peer};
use crate::ids::{GroupIdx, RuleSlot};

/// The peers of all rules that say the same of protocol and port.
#[derive(Clone, Default)]
pub(super) struct PeerSet {
    any: Option<Slots>,
    v4: Networks,
    v6: Networks,
    groups: SmallMap<GroupIdx, Slots>,
}

/// The rules that say the same of everything, in the order in which they came; never none.
#[derive(Clone)]
struct Slots {
    first: RuleSlot,
    /// Two rules that are written differently may mean the same: it is seldom.
    more: Vec<RuleSlot>,
}

/// Networks of one family by prefix length and address, and which lengths to try.
#[derive(Clone, Default)]
struct Networks {
    /// Each with how many networks have it.
    lengths: Vec<(u8, u32)>,
    slots: SmallMap<(u8, u128), Slots>,
}

impl PeerSet {
    /// Adds a rule's peer; of rules for the same peer the first one counts.
    pub(super) fn add(&mut self, peer: &Peer, slot: RuleSlot) {
        self.alter(peer, |slots| Some(Slots::with(slots, slot)));
    }

    /// Takes a rule's peer out that was added.
    pub(super) fn remove(&mut self, peer: &Peer, slot: RuleSlot) {
        self.alter(peer, |slots| slots?.without(slot));
    }

    fn alter(&mut self, peer: &Peer, change: impl FnOnce(Option<Slots>) -> Option<Slots>) {
        match peer {
            Peer::Any => self.any = change(self.any.take()),
            Peer::Net(net) => {
                let (networks, bits) = match net.network() {
                    IpAddr::V4(address) => (&mut self.v4, left_aligned_v4(address)),
                    IpAddr::V6(address) => (&mut self.v6, address.to_bits()),
                };
                networks.alter(net.prefix_len(), bits, change);
            }
            Peer::Group(group) => self.groups.alter(*group, change),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.any.is_none()
            && self.v4.slots.is_empty()
            && self.v6.slots.is_empty()
            && self.groups.is_empty()
    }

    /// The rule that allows `address`. A group that does not exist matches nobody. How many places
    /// that is looked for in is added to `looked`.
    #[inline]
    pub(super) fn find(
        &self,
        address: &IpAddr,
        groups: &(impl GroupMembers + ?Sized),
        looked: &mut u64,
    ) -> Option<RuleSlot> {
        if let Some(slots) = &self.any {
            return Some(slots.first);
        }
        let (networks, bits) = match address {
            IpAddr::V4(v4) => (&self.v4, left_aligned_v4(*v4)),
            IpAddr::V6(v6) => (&self.v6, v6.to_bits()),
        };
        *looked += networks.lengths.len() as u64;
        networks.find(bits).or_else(|| {
            self.groups.find_map(|group, slots| {
                *looked += 1;
                let allows = groups.members(*group)?.contains(address);
                allows.then_some(slots.first)
            })
        })
    }

    /// The rule that allows every address of a family.
    pub(super) fn everybody(&self, v6: bool) -> Option<RuleSlot> {
        let networks = if v6 { &self.v6 } else { &self.v4 };
        let slots = self.any.as_ref().or_else(|| networks.slots.get(&(0, 0)));
        slots.map(|slots| slots.first)
    }
}

impl Slots {
    fn with(before: Option<Slots>, slot: RuleSlot) -> Slots {
        match before {
            Some(mut slots) => {
                slots.more.push(slot);
                slots
            }
            None => Slots {
                first: slot,
                more: Vec::new(),
            },
        }
    }

    fn without(mut self, slot: RuleSlot) -> Option<Slots> {
        if self.first != slot {
            self.more.retain(|other| *other != slot);
            return Some(self);
        }
        if self.more.is_empty() {
            return None;
        }
        self.first = self.more.remove(0);
        Some(self)
    }
}

impl Networks {
    fn alter(
        &mut self,
        length: u8,
        bits: u128,
        change: impl FnOnce(Option<Slots>) -> Option<Slots>,
    ) {
        let (mut before, mut after) = (false, false);
        self.slots.alter((length, bits), |slots| {
            before = slots.is_some();
            let slots = change(slots);
            after = slots.is_some();
            slots
        });
        let known = self.lengths.iter().position(|(known, _)| *known == length);
        match (known, before, after) {
            (Some(at), false, true) => self.lengths[at].1 += 1,
            (None, false, true) => self.lengths.push((length, 1)),
            (Some(at), true, false) => {
                self.lengths[at].1 -= 1;
                if self.lengths[at].1 == 0 {
                    self.lengths.remove(at);
                }
            }
            _ => {}
        }
    }

    #[inline]
    fn find(&self, bits: u128) -> Option<RuleSlot> {
        self.lengths.iter().find_map(|(length, _)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
            let slots = self.slots.get(&(*length, bits & mask))?;
            Some(slots.first)
        })
    }
}

/// IPv4 addresses at the high end, so that one mask does for both families.
#[inline]
fn left_aligned_v4(address: std::net::Ipv4Addr) -> u128 {
    u128::from(address.to_bits()) << 96
}
