//! The snapshot in force, laid out for the path.
//!
//! The snapshot's vectors are trees that share structure, which suits control; a worker copies
//! their references into flat arrays when it takes a snapshot up, and remembers per NIC what every
//! packet asks: whether it is open (security-groups.md 12) and needs an egress rule.

use std::net::IpAddr;
use std::sync::Arc;

use wire::Vni;

use crate::drop_reason::DropReason;
use crate::flow::NONE;
use crate::ids::MAX_PORTS;
use crate::ids::{NetworkIdx, PortSlot, PortUid, RuleSlot};
use crate::overlay::{EndpointIdx, Overlay};
use crate::ruleset::Direction;
use crate::snapshot::{Group, Network, PortConfig, Snapshot};

pub(crate) struct View {
    snapshot: Arc<Snapshot>,
    ports: Vec<Option<Arc<PortConfig>>>,
    networks: Vec<Option<Arc<Network>>>,
    groups: Vec<Option<Arc<Group>>>,
    open: Vec<Open>,
    /// By [`NetworkIdx`]: what the network is on other hosts, as a partner of the NICs here.
    remotes: Vec<Option<Box<PortConfig>>>,
    vnis: Map<u32, NetworkIdx>,
    endpoints: Vec<Option<IpAddr>>,
    by_address: Map<IpAddr, EndpointIdx>,
    /// How many NICs of a network have an address.
    owned: Map<(NetworkIdx, IpAddr), u32>,
}

/// Keyed by what the configuration says: a fast unkeyed hash will do.
type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;

/// What a NIC allows without looking at a packet, by family: `[IPv4, IPv6]`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Open {
    /// Everything may come in.
    pub ingress: [Opening; 2],
    /// Everything (from its own addresses, when no rule says so) may go out.
    pub egress: [Opening; 2],
    /// Only what an egress rule allows may go out: a group of it has one, or is missing and might.
    pub needs_egress: bool,
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
    needs_egress: true,
};

/// What a network allows on other hosts, whose rules are asked there.
static UNFILTERED: Open = Open {
    ingress: [Opening::Free; 2],
    egress: [Opening::Free; 2],
    needs_egress: false,
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
            remotes: Vec::new(),
            vnis: Map::default(),
            endpoints: Vec::new(),
            by_address: Map::default(),
            owned: Map::default(),
        }
    }

    /// Puts a snapshot in force. Calls `changed` for each slot whose NIC is another one or none
    /// now. Gives back the snapshot before, so that whoever asked for this drops it, and not the
    /// worker.
    pub(crate) fn take_up(
        &mut self,
        snapshot: Arc<Snapshot>,
        mut changed: impl FnMut(PortSlot),
    ) -> Arc<Snapshot> {
        let uid = |port: Option<&Arc<PortConfig>>| port.map(|config| config.uid);
        let owned = &mut self.owned;
        refresh(
            &mut self.ports,
            &snapshot.ports,
            Arc::ptr_eq,
            |slot, before, after| {
                if before.is_some() && uid(before) != uid(after) {
                    changed(PortSlot(slot as u32));
                }
                own(owned, before, after);
            },
        );
        self.ports.truncate(MAX_PORTS);
        let (remotes, vnis) = (&mut self.remotes, &mut self.vnis);
        remotes.resize_with(snapshot.networks.len(), || None);
        refresh(
            &mut self.networks,
            &snapshot.networks,
            Arc::ptr_eq,
            |index, before, after| {
                let index = NetworkIdx(index as u32);
                if let Some(before) =
                    before.filter(|before| vnis.get(&before.vni.id()) == Some(&index))
                {
                    vnis.remove(&before.vni.id());
                }
                if let Some(after) = after.filter(|network| network.overlay.is_some()) {
                    vnis.insert(after.vni.id(), index);
                }
                if let Some(remote) = remotes.get_mut(index.0 as usize) {
                    *remote = after.and_then(|network| network.remote(index).map(Box::new));
                }
            },
        );
        let by_address = &mut self.by_address;
        refresh(
            &mut self.endpoints,
            &snapshot.endpoints,
            IpAddr::eq,
            |index, before, after| {
                let index = EndpointIdx(index as u32);
                if let Some(before) =
                    before.filter(|before| by_address.get(*before) == Some(&index))
                {
                    by_address.remove(before);
                }
                if let Some(after) = after {
                    by_address.insert(*after, index);
                }
            },
        );
        refresh(
            &mut self.groups,
            &snapshot.groups,
            Arc::ptr_eq,
            |_, _, _| {},
        );
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
        match self.ports.get(slot.0 as usize) {
            Some(port) => port.as_deref(),
            None => self.remote(slot.remote_of()?),
        }
    }

    /// What a network is on other hosts, if it is there.
    #[inline]
    pub(crate) fn remote(&self, network: NetworkIdx) -> Option<&PortConfig> {
        self.remotes.get(network.0 as usize)?.as_deref()
    }

    /// The network with this VNI, if it is one that other hosts have a part of.
    #[inline]
    pub(crate) fn by_vni(&self, vni: Vni) -> Option<NetworkIdx> {
        self.vnis.get(&vni.id()).copied()
    }

    /// An endpoint's address.
    #[inline]
    pub(crate) fn endpoint(&self, index: EndpointIdx) -> Option<IpAddr> {
        *self.endpoints.get(index.0 as usize)?
    }

    /// The endpoint with this address.
    #[inline]
    pub(crate) fn endpoint_at(&self, address: IpAddr) -> Option<EndpointIdx> {
        self.by_address.get(&address).copied()
    }

    /// Frames of a network are taken from this endpoint, or why not.
    #[inline]
    pub(crate) fn takes_from(&self, overlay: &Overlay, endpoint: IpAddr) -> Result<(), DropReason> {
        match self.endpoint_at(endpoint) {
            _ if overlay.any_endpoint => Ok(()),
            None => Err(DropReason::UnknownEndpoint),
            Some(index) if overlay.has(index) => Ok(()),
            Some(_) => Err(DropReason::EndpointNotInVni),
        }
    }

    /// A NIC of this host has the address in this network.
    #[inline]
    pub(crate) fn is_owned(&self, network: NetworkIdx, address: IpAddr) -> bool {
        self.owned.contains_key(&(network, address))
    }

    /// The NIC in a slot, if it is still the one with this uid.
    pub(crate) fn port_with_uid(&self, slot: PortSlot, uid: PortUid) -> Option<&PortConfig> {
        self.port(slot).filter(|config| config.uid == uid)
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = &PortConfig> {
        self.ports.iter().filter_map(|port| port.as_deref())
    }

    /// What all networks are on other hosts.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = &PortConfig> {
        self.remotes.iter().filter_map(|remote| remote.as_deref())
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
        match self.open.get(slot.0 as usize) {
            Some(open) => open,
            None if slot.remote_of().is_some() => &UNFILTERED,
            None => &CLOSED,
        }
    }

    /// security-groups.md 12: both NICs allow everything in both directions. Gives by what a packet
    /// leaves the first and enters the second.
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

/// Makes `flat` what `tree` is, and tells what has changed: the index, what was there and what is.
/// Most of it is the same after a change: references that did not change are compared, not counted.
fn refresh<T: Clone>(
    flat: &mut Vec<Option<T>>,
    tree: &imbl::Vector<Option<T>>,
    same: impl Fn(&T, &T) -> bool,
    mut changed: impl FnMut(usize, Option<&T>, Option<&T>),
) {
    for (index, gone) in flat.iter().enumerate().skip(tree.len()) {
        if gone.is_some() {
            changed(index, gone.as_ref(), None);
        }
    }
    flat.resize(tree.len(), None);
    for (index, (mine, theirs)) in flat.iter_mut().zip(tree).enumerate() {
        let unchanged = match (&mine, theirs) {
            (Some(mine), Some(theirs)) => same(mine, theirs),
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        };
        if !unchanged {
            changed(index, mine.as_ref(), theirs.as_ref());
            mine.clone_from(theirs);
        }
    }
}

/// Counts the addresses of a NIC that has changed.
fn own(
    owned: &mut Map<(NetworkIdx, IpAddr), u32>,
    before: Option<&Arc<PortConfig>>,
    after: Option<&Arc<PortConfig>>,
) {
    let all = |port: Option<&Arc<PortConfig>>| {
        let keys = port.map(|port| {
            port.addresses
                .iter()
                .map(|address| (port.network, *address))
        });
        keys.into_iter().flatten().collect::<Vec<_>>()
    };
    for key in all(after) {
        *owned.entry(key).or_default() += 1;
    }
    for key in all(before) {
        if let Some(count) = owned.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                owned.remove(&key);
            }
        }
    }
}

impl Open {
    fn of(config: &PortConfig, groups: &[Option<Arc<Group>>]) -> Open {
        if config.bypass {
            return UNFILTERED;
        }
        let all = config
            .groups
            .iter()
            .map(|group| groups.get(group.0 as usize)?.as_deref());
        let mine = || all.clone().flatten();
        // A group that drains keeps the state of its flows: they are to outlive its rules.
        let opening = |direction, v6| {
            let by = mine()
                .filter(|group| !group.drain)
                .find_map(|group| group.rules.open(direction, v6));
            by.map_or(Opening::No, Opening::Rule)
        };
        // What a missing group would not have let out is not known: it is taken for one with egress
        // rules.
        let needs_egress = all
            .clone()
            .any(|group| group.is_none_or(|group| group.rules.has_egress()));
        let egress = |v6| match needs_egress {
            true => opening(Direction::Egress, v6),
            false => Opening::Free,
        };
        Open {
            ingress: [
                opening(Direction::Ingress, false),
                opening(Direction::Ingress, true),
            ],
            egress: [egress(false), egress(true)],
            needs_egress,
        }
    }
}
