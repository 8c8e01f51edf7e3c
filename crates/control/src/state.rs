//! Everything a controller knows, in persistent maps: a copy costs nothing, so an operation works
//! on one, which either becomes the state or is dropped. `stage.rs` makes the changes to the
//! indices and checks them; `compile.rs` then builds what they touch.

mod overlay;

use crate::event::NicState;
use crate::limits;
use crate::model::{
    AccessList, Config, DeclaredServices, Group, GroupId, Interfaces, Nic, NicId, Rule,
};
use crate::slots::Slots;
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::snapshot::{GroupIdx, NetworkIdx, PortSlot, PortUid, RuleSlot, Snapshot};
use io::trace::Trace;
use io::trace::capture::Tap;
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Mac, Vni};

pub use overlay::NetworkMode;
pub(crate) use overlay::{BindingValue, Overlay};

/// The model and what it compiles to.
#[derive(Clone)]
pub(crate) struct State {
    pub nics: imbl::OrdMap<NicId, NicEntry>,
    /// Every name that is a group, has NICs in it, or is named by a rule.
    pub groups: imbl::OrdMap<GroupId, GroupEntry>,
    pub networks: imbl::HashMap<Vni, NetworkEntry>,
    /// Other hosts, and what is behind them.
    pub overlay: Overlay,
    /// The load balancer's services.
    pub services: Arc<DeclaredServices>,
    /// The interfaces that features work on.
    pub interfaces: Arc<Interfaces>,
    /// What the router judges packets by.
    pub router_acl: Option<Arc<AccessList>>,
    /// What is stored and was not made.
    pub unmade: Arc<Config>,
    /// Who has a port's slot.
    pub by_slot: imbl::HashMap<u32, NicId>,
    /// Who sniffs a NIC, which need not exist.
    pub sniffers: imbl::HashMap<NicId, imbl::OrdSet<NicId>>,
    /// Groups that exist.
    pub group_count: usize,
    /// Rules of all groups.
    pub rule_count: usize,
    /// The last one compiled; the one in force once the operation has succeeded.
    pub snapshot: Snapshot,
    /// Who has a MAC: one NIC, or several that are lenient. Sniffers are not in it: they send
    /// nothing.
    pub macs: imbl::HashMap<(Vni, Mac), Arc<[NicId]>>,
    /// Who has an address: one NIC, or several that share it or are lenient. Sniffers are not in
    /// it.
    pub addresses: imbl::HashMap<(Vni, IpAddr), Arc<[NicId]>>,
    /// Sockets, interfaces and trace files in use.
    pub paths: imbl::HashMap<Arc<str>, NicId>,
    /// NICs whose mirror is VXLAN, by its collector.
    pub vxlan_mirrors: imbl::OrdMap<IpAddr, imbl::OrdSet<NicId>>,
    pub next_uid: u32,
    pub port_slots: Slots,
    pub network_slots: Slots,
    pub group_slots: Slots,
    pub host_slots: Slots,
    pub rule_slots: Slots,
}

/// A NIC that exists.
#[derive(Clone)]
pub(crate) struct NicEntry {
    pub nic: Arc<Nic>,
    pub slot: PortSlot,
    pub uid: PortUid,
    pub network: NetworkIdx,
    pub path: Arc<str>,
    pub trace: Option<Trace>,
    /// Where its mirror takes frames.
    pub mirror: Option<Tap>,
    pub state: NicState,
    /// What the slot had counted when the NIC got it.
    pub baseline: Arc<PortCounters>,
}

/// A group's name that something refers to.
#[derive(Clone)]
pub(crate) struct GroupEntry {
    pub idx: GroupIdx,
    /// `None`: it does not exist (yet, or any more).
    pub group: Option<Arc<Group>>,
    /// Where the rules of the group are counted.
    pub counters: imbl::HashMap<Rule, RuleCounter>,
    pub nics: imbl::OrdSet<NicId>,
    /// Addresses of those NICs, and how many have each.
    pub addresses: imbl::HashMap<IpAddr, u32>,
    /// Rules, of any group, that name this one.
    pub referrers: usize,
}

/// Where a rule is counted.
#[derive(Clone, Copy)]
pub(crate) struct RuleCounter {
    pub slot: RuleSlot,
    /// What the slot had counted when the rule got it.
    pub baseline: RuleCounters,
}

/// A virtual network with at least one NIC.
#[derive(Clone, Copy)]
pub(crate) struct NetworkEntry {
    pub idx: NetworkIdx,
    /// NICs in it, sniffers included.
    pub nics: usize,
    /// What it is on other hosts, as a partner of flows.
    pub uid: PortUid,
}

impl GroupEntry {
    /// True when the group, if it exists, stands for the address.
    pub fn stands_for(&self, address: &IpAddr) -> bool {
        self.addresses.contains_key(address)
            || self
                .group
                .as_ref()
                .is_some_and(|group| group.members.contains(address))
    }
}

impl NicEntry {
    /// True when its port stays as it is: the guest's connection is kept.
    pub fn same_port(&self, other: &NicEntry) -> bool {
        self.slot == other.slot
    }
}

impl State {
    pub fn new() -> State {
        State {
            nics: imbl::OrdMap::new(),
            groups: imbl::OrdMap::new(),
            networks: imbl::HashMap::new(),
            overlay: Overlay::default(),
            services: Arc::default(),
            interfaces: Arc::default(),
            router_acl: None,
            unmade: Arc::default(),
            by_slot: imbl::HashMap::new(),
            sniffers: imbl::HashMap::new(),
            group_count: 0,
            rule_count: 0,
            snapshot: Snapshot::default(),
            macs: imbl::HashMap::new(),
            addresses: imbl::HashMap::new(),
            paths: imbl::HashMap::new(),
            vxlan_mirrors: imbl::OrdMap::new(),
            next_uid: 1,
            port_slots: Slots::new(limits::NICS),
            // A network or a name may end and another begin in one operation: twice what can be in
            // use.
            network_slots: Slots::new(2 * limits::NICS),
            group_slots: Slots::new(usize::MAX),
            host_slots: Slots::new(2 * limits::HOSTS),
            rule_slots: Slots::new(limits::RULES),
        }
    }

    /// The networks with a NIC that are deaf ([`Overlay::is_deaf`]), in no order.
    pub fn deaf_networks(&self) -> impl Iterator<Item = Vni> {
        let deaf = self.networks.keys().copied();
        deaf.filter(|vni| self.overlay.is_deaf(*vni))
    }

    /// The group, if it exists.
    pub fn group(&self, id: &GroupId) -> Option<&Arc<Group>> {
        self.groups.get(id)?.group.as_ref()
    }
}
