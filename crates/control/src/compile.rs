//! Builds what an operation touches into the next snapshot; everything else is shared with the one
//! before. What it costs is counted in [`Work`], which tests compare: a rule added to a group of a
//! thousand NICs and ten thousand rules compiles one rule.

mod overlay;

use crate::attach::HostSettings;
use crate::model::{Direction, Icmp, NicId, Peer, Removal, Rule, RuleMatch};
use crate::stage::{RuleEdit, Staged};
use crate::state::{GroupEntry, NicEntry, State};
use dataplane::limits::Meters;
use dataplane::ruleset::{self, RuleSet, RuleSpec};
use dataplane::snapshot::{
    Changed, Group, MacMap, Network, NetworkIdx, PortConfig, PortSlot, RuleSlot, SharedMacs,
};
use imbl::Vector;
use io::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{Mac, Vni};

/// What an operation had to compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// NICs.
    pub ports: usize,
    /// Networks that got or lost a NIC or changed one.
    pub networks: usize,
    /// Groups whose rules or settings were compiled.
    pub rule_sets: usize,
    /// Rules that came or went, in all groups.
    pub rules: usize,
    /// Addresses that groups came or ceased to stand for.
    pub members: usize,
    /// Bindings of networks that this host is in.
    pub bindings: usize,
}

impl State {
    /// Makes [`State::snapshot`] what the indices say, and its epoch one larger.
    pub fn compile(&mut self, staged: &Staged, settings: &HostSettings) -> Work {
        let mut work = Work::default();
        let mut changed = self.changed(staged);
        self.snapshot.epoch.0 += 1;
        self.compile_groups(staged, &mut work);
        let fresh = self.compile_networks(staged, &mut work);
        self.compile_overlay(staged, &fresh, settings, (&mut work, &mut changed));
        self.compile_ports(staged, settings, &mut work);
        self.snapshot.changed = Some(Arc::new(changed));
        work
    }

    /// What an operation touches, but for what other hosts have a part in: the workers look at
    /// nothing else.
    fn changed(&self, staged: &Staged) -> Changed {
        let entries = || staged.nics.values().flat_map(|(old, new)| [old, new]);
        let sniffed = staged.sniffed.iter().filter_map(|id| self.nics.get(id));
        let slots = entries().flatten().chain(sniffed).map(|entry| entry.slot);
        let networks = entries().flatten().map(|entry| entry.network);
        let groups = staged.groups.keys().filter_map(|id| self.groups.get(id));
        Changed {
            since: self.snapshot.epoch,
            ports: slots.collect(),
            // A network once, however many of its NICs change.
            networks: networks
                .chain(staged.dropped_networks.iter().copied())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            groups: groups
                .map(|entry| entry.idx)
                .chain(staged.dropped_groups.iter().copied())
                .collect(),
            hosts: Vec::new(),
        }
    }

    fn compile_groups(&mut self, staged: &Staged, work: &mut Work) {
        let State {
            groups, snapshot, ..
        } = self;
        for idx in &staged.dropped_groups {
            set(&mut snapshot.groups, idx.0, None);
        }
        for (id, touch) in &staged.groups {
            let Some(entry) = groups.get(id) else {
                continue;
            };
            let Some(model) = &entry.group else {
                set(&mut snapshot.groups, entry.idx.0, None);
                continue;
            };
            let before = snapshot
                .groups
                .get_mut(entry.idx.0 as usize)
                .and_then(Option::as_mut);
            let Some(compiled) = before else {
                let listed = model.members.iter().copied();
                let group = Group {
                    rules: rule_set(entry, &model.rules, groups),
                    members: listed.chain(entry.addresses.keys().copied()).collect(),
                    drain: model.removal == Removal::Drain,
                    unknown_tcp: model.unknown_tcp(),
                };
                work.rule_sets += 1;
                work.rules += model.rules.len();
                work.members += group.members.len();
                set(&mut snapshot.groups, entry.idx.0, Some(Arc::new(group)));
                continue;
            };
            let moved: Vec<_> = touch
                .members
                .iter()
                .filter(|(ip, before)| entry.stands_for(ip) != **before)
                .collect();
            if !touch.whole && touch.rules.is_empty() && moved.is_empty() {
                continue;
            }
            let compiled = Arc::make_mut(compiled);
            for (ip, before) in &moved {
                if **before {
                    compiled.members.remove(ip)
                } else {
                    compiled.members.insert(**ip)
                };
            }
            work.members += moved.len();
            for edit in &touch.rules {
                match edit {
                    RuleEdit::Add(rule) => compiled.rules.add(rule),
                    RuleEdit::Remove(rule) => compiled.rules.remove(rule),
                }
            }
            if touch.whole || !touch.rules.is_empty() {
                compiled.drain = model.removal == Removal::Drain;
                compiled.unknown_tcp = model.unknown_tcp();
                work.rule_sets += 1;
                work.rules += touch.rules.len();
            }
        }
    }

    /// Sniffers are in no network's tables: nothing is sent to them, they get copies. Gives back
    /// the networks that were not there before.
    fn compile_networks(&mut self, staged: &Staged, work: &mut Work) -> BTreeSet<Vni> {
        let networks = &mut self.snapshot.networks;
        for idx in &staged.dropped_networks {
            set(networks, idx.0, None);
        }
        let (mut touched, mut fresh) = (BTreeSet::new(), BTreeSet::new());
        // MACs that come or go, and where.
        let mut macs: BTreeMap<(Vni, Mac), NetworkIdx> = BTreeMap::new();
        let place = |entry: &NicEntry| {
            let nic = &entry.nic;
            (
                entry.network,
                entry.slot,
                nic.mac,
                nic.learn_macs,
                nic.sniff_target.is_some(),
            )
        };
        let moved = |(old, new): &&(Option<NicEntry>, Option<NicEntry>)| {
            old.as_ref().map(place) != new.as_ref().map(place)
        };
        for (old, _) in staged.nics.values().filter(moved) {
            let Some(old) = old.as_ref().filter(|old| old.nic.sniff_target.is_none()) else {
                continue;
            };
            let network = networks
                .get_mut(old.network.0 as usize)
                .and_then(Option::as_mut);
            if let Some(network) = network.map(Arc::make_mut) {
                macs.insert((old.nic.vni, old.nic.mac), old.network);
                network.ports.retain(|slot| *slot != old.slot);
                network.learners.retain(|slot| *slot != old.slot);
                touched.insert(old.network);
            }
        }
        for (_, new) in staged.nics.values().filter(moved) {
            let Some(new) = new else { continue };
            let (vni, idx) = (new.nic.vni, new.network);
            if networks.get(idx.0 as usize).is_none_or(Option::is_none) {
                let empty = Network {
                    vni,
                    macs: MacMap::default(),
                    shared: SharedMacs::default(),
                    ports: Vec::new(),
                    learners: Vec::new(),
                    overlay: None,
                };
                set(networks, idx.0, Some(Arc::new(empty)));
                touched.insert(idx);
                fresh.insert(vni);
            }
            if new.nic.sniff_target.is_some() {
                continue;
            }
            let network = networks.get_mut(idx.0 as usize).and_then(Option::as_mut);
            if let Some(network) = network.map(Arc::make_mut) {
                macs.insert((vni, new.nic.mac), idx);
                network.ports.push(new.slot);
                if new.nic.learn_macs {
                    network.learners.push(new.slot);
                }
                touched.insert(idx);
            }
        }
        for ((vni, mac), idx) in macs {
            let Some(network) = networks.get_mut(idx.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            let holders = self
                .macs
                .get(&(vni, mac))
                .into_iter()
                .flat_map(|ids| ids.iter());
            let slots: Vec<PortSlot> = holders
                .filter_map(|id| Some(self.nics.get(id)?.slot))
                .collect();
            let network = Arc::make_mut(network);
            match slots.first() {
                Some(first) => network.macs.insert(mac, *first),
                None => network.macs.remove(&mac),
            };
            match slots.len() {
                0 | 1 => network.shared.remove(&mac),
                _ => network.shared.insert(mac, slots),
            };
        }
        work.networks += touched.len();
        fresh
    }

    fn compile_ports(&mut self, staged: &Staged, settings: &HostSettings, work: &mut Work) {
        for old in staged.nics.values().filter_map(|(old, _)| old.as_ref()) {
            set(&mut self.snapshot.ports, old.slot.0, None);
        }
        let changed: BTreeSet<&NicId> = staged.nics.keys().chain(&staged.sniffed).collect();
        // A sniffer's slot is part of its target's configuration: compiled after all slots are
        // known.
        for entry in changed.into_iter().filter_map(|id| self.nics.get(id)) {
            let config = self.port(entry, settings);
            set(
                &mut self.snapshot.ports,
                entry.slot.0,
                Some(Arc::new(config)),
            );
            work.ports += 1;
        }
    }

    /// Builds the NICs again that have the daemon's MTU; false when there is none.
    pub fn recompile_mtu(&mut self, settings: &HostSettings) -> bool {
        let entries: Vec<NicEntry> = self
            .nics
            .values()
            .filter(|e| e.nic.mtu.is_none())
            .cloned()
            .collect();
        self.snapshot.changed = Some(Arc::new(Changed {
            since: self.snapshot.epoch,
            ports: entries.iter().map(|entry| entry.slot).collect(),
            ..Changed::default()
        }));
        for entry in &entries {
            let config = self.port(entry, settings);
            set(
                &mut self.snapshot.ports,
                entry.slot.0,
                Some(Arc::new(config)),
            );
        }
        self.snapshot.epoch.0 += u64::from(!entries.is_empty());
        !entries.is_empty()
    }

    fn port(&self, entry: &NicEntry, settings: &HostSettings) -> PortConfig {
        let nic = &entry.nic;
        let sniffers = self.sniffers.get(&nic.id).into_iter().flatten();
        PortConfig {
            slot: entry.slot,
            uid: entry.uid,
            name: nic.id.shared(),
            vni: nic.vni,
            network: entry.network,
            mac: nic.mac,
            addresses: nic.host_addresses().collect(),
            anti_spoof: nic.anti_spoof,
            pairs: nic.allowed_address_pairs.clone(),
            // Every group of a NIC has an entry, be it for this reference alone.
            groups: nic
                .security_groups
                .iter()
                .filter_map(|id| Some(self.groups.get(id)?.idx))
                .collect(),
            bypass: nic.bypass_filtering,
            // Of who has taken the id of a NIC of another network they hear nothing.
            sniffers: sniffers
                .filter_map(|id| self.nics.get(id))
                .filter(|sniffer| sniffer.nic.sniffs_in(nic.vni))
                .map(|sniffer| sniffer.slot)
                .collect(),
            is_sniffer: nic.sniff_target.is_some(),
            allow_dhcp_server: nic.allow_dhcp_server,
            allow_router_advertisements: nic.allow_router_advertisements,
            learn_macs: nic.learn_macs,
            link_down: nic.link_down,
            sample_rate: nic.sflow_rate,
            timeouts: nic.timeouts,
            flow_share: settings.flow_share,
            mtu: settings.mtu(nic),
            meters: self.meters(entry),
            trace: Trace::mirrored(entry.trace.as_ref(), entry.mirror.as_ref()),
        }
    }
}

impl State {
    /// The NIC's limits: what it had before where they are the same, so that another change of the
    /// NIC does not fill its buckets.
    fn meters(&self, entry: &NicEntry) -> Option<Arc<Meters>> {
        let (out, into) = (&entry.nic.limit_out, &entry.nic.limit_in);
        let before = self.snapshot.ports.get(entry.slot.0 as usize);
        before
            .and_then(Option::as_ref)
            .filter(|port| port.uid == entry.uid)
            .and_then(|port| port.meters.clone())
            .filter(|meters| meters.egress.limits() == out && meters.ingress.limits() == into)
            .or_else(|| Meters::new(*out, *into).map(Arc::new))
    }
}

/// The rules of a group; a peer group's members are looked up by its index when a packet asks.
fn rule_set(
    entry: &GroupEntry,
    rules: &Vector<Rule>,
    groups: &imbl::OrdMap<crate::model::GroupId, GroupEntry>,
) -> RuleSet {
    let spec = |rule| rule_spec(rule, entry.counters.get(rule)?.slot, groups);
    RuleSet::new(rules.iter().filter_map(spec).collect())
}

/// `None` only for a peer group without an entry, which every rule's reference makes: never, and
/// then safe.
pub(crate) fn rule_spec(
    rule: &Rule,
    slot: RuleSlot,
    groups: &imbl::OrdMap<crate::model::GroupId, GroupEntry>,
) -> Option<RuleSpec> {
    let direction = match rule.direction() {
        Direction::Ingress => ruleset::Direction::Ingress,
        Direction::Egress => ruleset::Direction::Egress,
    };
    let selector = match rule.matching() {
        RuleMatch::Any | RuleMatch::Icmp(Icmp { kind: None, .. }) => 0..=u16::MAX,
        RuleMatch::Ports(ports) => ports.start..=ports.end,
        RuleMatch::Icmp(Icmp {
            kind: Some(kind),
            code,
        }) => {
            let (first, last) = code.map_or((0, u8::MAX), |code| (code, code));
            u16::from_be_bytes([kind, first])..=u16::from_be_bytes([kind, last])
        }
    };
    let peer = match rule.peer() {
        Peer::Any => ruleset::Peer::Any,
        Peer::Net(net) => ruleset::Peer::Net(net.trunc()),
        Peer::Group(id) => ruleset::Peer::Group(groups.get(id)?.idx),
    };
    Some(RuleSpec {
        direction,
        protocol: rule.protocol(),
        selector,
        peer,
        slot,
    })
}

fn set<T: Clone>(vector: &mut Vector<Option<T>>, index: u32, value: Option<T>) {
    let index = index as usize;
    if index >= vector.len() {
        if value.is_none() {
            return;
        }
        while vector.len() < index {
            vector.push_back(None);
        }
        vector.push_back(value);
    } else {
        vector.set(index, value);
    }
}
