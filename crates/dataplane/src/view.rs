//! The snapshot in force, laid out for the path.
//!
//! The snapshot's vectors are trees that share structure, which suits control; a worker copies their
//! references into flat arrays when it takes a snapshot up, and remembers per NIC what every packet asks:
//! whether it is open (contract, item 12) and has egress rules.

use std::sync::Arc;

use crate::counters::MAX_PORTS;
use crate::flow::NONE;
use crate::ruleset::Direction;
use crate::snapshot::{Group, Network, NetworkIdx, PortConfig, PortSlot, PortUid, RuleSlot, Snapshot};

pub(crate) struct View {
    snapshot: Arc<Snapshot>,
    ports: Vec<Option<Arc<PortConfig>>>,
    networks: Vec<Option<Arc<Network>>>,
    groups: Vec<Option<Arc<Group>>>,
    open: Vec<Open>,
}

/// What a NIC allows without looking at a packet, by family: `[IPv4, IPv6]`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Open {
    /// Everything may come in.
    pub ingress: [Opening; 2],
    /// Everything (from its own addresses, when no rule says so) may go out.
    pub egress: [Opening; 2],
    /// A group of it has an egress rule.
    pub has_egress: bool,
}

/// Whether everything passes, and by which rule.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Opening {
    /// The rules have to be asked.
    #[default]
    No,
    /// The NIC bypasses filtering, or has no egress rule: only the source address is to be checked.
    Free,
    /// A rule allows everything.
    Rule(RuleSlot),
}

/// What a slot without a NIC allows.
static CLOSED: Open = Open {
    ingress: [Opening::No; 2],
    egress: [Opening::No; 2],
    has_egress: true,
};

impl View {
    /// The empty configuration.
    pub(crate) fn new() -> Self {
        View {
            snapshot: Arc::default(),
            ports: Vec::new(),
            networks: Vec::new(),
            groups: Vec::new(),
            open: Vec::new(),
        }
    }

    /// Puts a snapshot in force. Calls `changed` for each slot whose NIC is another one or none now. Gives
    /// back the snapshot before, so that whoever asked for this drops it, and not the worker.
    pub(crate) fn take_up(
        &mut self,
        snapshot: Arc<Snapshot>,
        mut changed: impl FnMut(PortSlot),
    ) -> Arc<Snapshot> {
        let uid = |port: &Option<Arc<PortConfig>>| port.as_ref().map(|config| config.uid);
        for (slot, before) in self.ports.iter().enumerate() {
            let after = snapshot.ports.get(slot).and_then(uid);
            if before.is_some() && uid(before) != after {
                changed(PortSlot(slot as u32));
            }
        }
        refresh(&mut self.ports, &snapshot.ports);
        self.ports.truncate(MAX_PORTS);
        refresh(&mut self.networks, &snapshot.networks);
        refresh(&mut self.groups, &snapshot.groups);
        self.open.clear();
        let groups = &self.groups;
        let open = |port: &Option<Arc<PortConfig>>| {
            port.as_ref()
                .map_or(Open::default(), |config| Open::of(config, groups))
        };
        self.open.extend(self.ports.iter().map(open));
        std::mem::replace(&mut self.snapshot, snapshot)
    }

    /// The epoch as flows note it.
    #[inline]
    pub(crate) fn epoch_mark(&self) -> u32 {
        self.snapshot.epoch.0 as u32
    }

    #[inline]
    pub(crate) fn port(&self, slot: PortSlot) -> Option<&PortConfig> {
        self.ports.get(slot.0 as usize)?.as_deref()
    }

    /// The NIC in a slot, if it is still the one with this uid.
    pub(crate) fn port_with_uid(&self, slot: PortSlot, uid: PortUid) -> Option<&PortConfig> {
        self.port(slot).filter(|config| config.uid == uid)
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = &PortConfig> {
        self.ports.iter().filter_map(|port| port.as_deref())
    }

    #[inline]
    pub(crate) fn network(&self, index: NetworkIdx) -> Option<&Network> {
        self.networks.get(index.0 as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn groups(&self) -> &[Option<Arc<Group>>] {
        &self.groups
    }

    #[inline]
    pub(crate) fn open(&self, slot: PortSlot) -> &Open {
        self.open.get(slot.0 as usize).unwrap_or(&CLOSED)
    }

    /// Contract, item 12: both NICs allow everything in both directions. Gives by what a packet leaves the first and enters
    /// the second.
    pub(crate) fn stateless(&self, from: PortSlot, to: PortSlot, v6: bool) -> Option<[Opening; 2]> {
        let family = usize::from(v6);
        let (from, to) = (self.open(from), self.open(to));
        let there = [from.egress[family], to.ingress[family]];
        let back = [to.egress[family], from.ingress[family]];
        let open = |openings: [Opening; 2]| !openings.contains(&Opening::No);
        (open(there) && open(back)).then_some(there)
    }
}

impl Opening {
    /// The rule's slot, or [`NONE`].
    #[inline]
    pub(crate) fn rule_slot(self) -> u32 {
        match self {
            Opening::Rule(rule) => rule.0,
            Opening::No | Opening::Free => NONE,
        }
    }
}

/// Makes `flat` what `tree` is. Most of it is the same after a change: references that did not change are
/// compared, not counted.
fn refresh<T>(flat: &mut Vec<Option<Arc<T>>>, tree: &imbl::Vector<Option<Arc<T>>>) {
    flat.truncate(tree.len());
    let known = flat.len();
    for (mine, theirs) in flat.iter_mut().zip(tree) {
        let same = match (&mine, theirs) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        };
        if !same {
            mine.clone_from(theirs);
        }
    }
    flat.extend(tree.iter().skip(known).cloned());
}

impl Open {
    fn of(config: &PortConfig, groups: &[Option<Arc<Group>>]) -> Open {
        if config.bypass {
            return Open {
                ingress: [Opening::Free; 2],
                egress: [Opening::Free; 2],
                has_egress: false,
            };
        }
        let mine = || {
            config
                .groups
                .iter()
                .filter_map(|group| groups.get(group.0 as usize)?.as_deref())
        };
        // A group that drains keeps the state of its flows: they are to outlive its rules.
        let opening = |direction, v6| {
            let by = mine()
                .filter(|group| !group.drain)
                .find_map(|group| group.rules.open(direction, v6));
            by.map_or(Opening::No, Opening::Rule)
        };
        let has_egress = mine().any(|group| group.rules.has_egress());
        let egress = |v6| match has_egress {
            true => opening(Direction::Egress, v6),
            false => Opening::Free,
        };
        Open {
            ingress: [
                opening(Direction::Ingress, false),
                opening(Direction::Ingress, true),
            ],
            egress: [egress(false), egress(true)],
            has_egress,
        }
    }
}
