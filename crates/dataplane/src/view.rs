//! The snapshot in force, laid out for the path. Worked out once for all workers by the thread that
//! publishes, which shares what a change does not touch with the view before: a worker swaps a
//! pointer.
//!
//! Beside what the snapshot says it has what would be asked for every packet and follows from it:
//! whom a NIC is open to (security-groups.md 12), which addresses are here, which network a VNI is.

use std::net::IpAddr;
use std::sync::Arc;

use io::trace::Trace;
use io::trace::capture::Tap;
use wire::{Mac, Vni};

use crate::address_set::AddressSet;
use crate::drop_reason::DropReason;
use crate::ids::{GroupIdx, MAX_PORTS, NetworkIdx, PortSlot, PortUid};
use crate::limits::Meters;
use crate::opening::{GroupOpen, Open, Opening};
use crate::overlay::{HostIdx, Overlay, SharedMap};
use crate::ruleset::GroupMembers;
use crate::snapshot::{Changed, Epoch, Group, Network, PortConfig, Snapshot};
use crate::table::Table;
use crate::trial::live::Live;
use crate::uplink_taps::UplinkTaps;

/// A copy costs nothing.
#[derive(Clone, Default)]
pub(crate) struct View {
    epoch: Epoch,
    ports: Table<Option<Arc<PortConfig>>>,
    open: Table<Open>,
    networks: Table<Option<Arc<Network>>>,
    groups: Groups,
    hosts: Table<Option<IpAddr>>,
    /// By [`NetworkIdx`]: what the network is on other hosts, as a partner of the NICs here.
    remotes: Table<Option<Arc<PortConfig>>>,
    vnis: SharedMap<u32, NetworkIdx>,
    by_address: SharedMap<IpAddr, HostIdx>,
    /// How many NICs of a network have an address.
    owned: SharedMap<(NetworkIdx, IpAddr), u32>,
    /// Which NICs are in a group.
    users: imbl::OrdSet<(GroupIdx, PortSlot)>,
    uplink_taps: UplinkTaps,
    /// Live traces of NICs, mostly none.
    lives: Arc<[(PortSlot, PortUid, Arc<Live>)]>,
}

/// Groups by their index.
#[derive(Clone, Default)]
pub(crate) struct Groups(Table<Option<Arc<Group>>>);

impl Groups {
    #[inline]
    pub(crate) fn get(&self, index: GroupIdx) -> Option<&Group> {
        self.0.get(index.0 as usize)?.as_deref()
    }
}

impl GroupMembers for Groups {
    #[inline]
    fn members(&self, group: GroupIdx) -> Option<&AddressSet> {
        Some(&self.get(group)?.members)
    }
}

/// What a new view has to do with the one before.
#[derive(Default)]
pub(crate) struct Difference {
    /// Slots whose NIC is another one or none now.
    pub gone: Vec<PortSlot>,
    /// The MACs of NICs that have come into a network or left it.
    pub moved: Vec<(NetworkIdx, Mac)>,
    /// NICs for which it was worked out whom they are open to.
    pub opened: usize,
}

impl View {
    /// The view of a snapshot that follows this one's. What costs time is what differs, if the
    /// snapshot says what that is; else all of it is compared.
    pub(crate) fn next(&self, snapshot: &Snapshot) -> (View, Difference) {
        let mut view = self.clone();
        let mut difference = Difference::default();
        view.epoch = snapshot.epoch;
        match &snapshot.changed {
            Some(changed) if changed.since == self.epoch => {
                view.take_changed(snapshot, changed, &mut difference);
            }
            _ => view.take_all(snapshot, &mut difference),
        }
        debug_assert!(view.is_of(snapshot), "what has changed was not all named");
        (view, difference)
    }

    fn take_changed(&mut self, snapshot: &Snapshot, changed: &Changed, noted: &mut Difference) {
        for &index in &changed.hosts {
            let host = snapshot.hosts.get(index.0 as usize);
            self.set_host(index.0 as usize, host.copied().flatten());
        }
        for &index in &changed.networks {
            let network = snapshot.networks.get(index.0 as usize);
            self.set_network(index.0 as usize, network.cloned().flatten());
        }
        // Each NIC is asked once, after its groups and itself are what they will be.
        let mut ask = Vec::new();
        for &index in &changed.groups {
            let group = snapshot.groups.get(index.0 as usize);
            self.set_group(index.0 as usize, group.cloned().flatten(), &mut ask);
        }
        for &slot in &changed.ports {
            let port = snapshot.ports.get(slot.0 as usize);
            self.set_port(slot.0 as usize, port.cloned().flatten(), &mut ask, noted);
        }
        self.open(ask, noted);
    }

    fn take_all(&mut self, snapshot: &Snapshot, noted: &mut Difference) {
        let hosts = self.hosts.len();
        for (index, host) in all(&snapshot.hosts, hosts) {
            if self.hosts.get(index).copied().flatten() != host.copied() {
                self.set_host(index, host.copied());
            }
        }
        let networks = self.networks.len();
        for (index, network) in all(&snapshot.networks, networks) {
            if !is_same(self.networks.get(index), network) {
                self.set_network(index, network.cloned());
            }
        }
        let mut ask = Vec::new();
        let groups = self.groups.0.len();
        for (index, group) in all(&snapshot.groups, groups) {
            if !is_same(self.groups.0.get(index), group) {
                self.set_group(index, group.cloned(), &mut ask);
            }
        }
        let ports = self.ports.len();
        for (index, port) in all(&snapshot.ports, ports) {
            if !is_same(self.ports.get(index), port) {
                self.set_port(index, port.cloned(), &mut ask, noted);
            }
        }
        self.open(ask, noted);
    }

    /// Nothing differs from what the snapshot says.
    fn is_of(&self, snapshot: &Snapshot) -> bool {
        let ports = all(&snapshot.ports, self.ports.len()).take(MAX_PORTS);
        let ports = ports.into_iter().all(|(index, port)| {
            let open = port.map_or(Open::CLOSED, |config| self.open_of(config));
            is_same(self.ports.get(index), port)
                && self.open.get(index).copied().unwrap_or_default() == open
        });
        let hosts = |(index, host): (usize, Option<&IpAddr>)| {
            self.hosts.get(index).copied().flatten() == host.copied()
        };
        ports
            && all(&snapshot.networks, self.networks.len())
                .all(|(index, network)| is_same(self.networks.get(index), network))
            && all(&snapshot.groups, self.groups.0.len())
                .all(|(index, group)| is_same(self.groups.0.get(index), group))
            && all(&snapshot.hosts, self.hosts.len()).all(hosts)
    }

    fn set_host(&mut self, index: usize, host: Option<IpAddr>) {
        let before = self.hosts.set(index, host);
        let index = HostIdx(index as u32);
        if let Some(before) = before
            && self.by_address.get(&before) == Some(&index)
        {
            self.by_address.remove(&before);
        }
        if let Some(address) = host {
            self.by_address.insert(address, index);
        }
    }

    fn set_network(&mut self, index: usize, network: Option<Arc<Network>>) {
        let idx = NetworkIdx(index as u32);
        let remote = network.as_ref().and_then(|network| network.remote(idx));
        self.remotes.set(index, remote.map(Arc::new));
        let vni = network
            .as_ref()
            .filter(|network| network.overlay.is_some())
            .map(|network| network.vni.id());
        if let Some(before) = self.networks.set(index, network)
            && self.vnis.get(&before.vni.id()) == Some(&idx)
        {
            self.vnis.remove(&before.vni.id());
        }
        if let Some(vni) = vni {
            self.vnis.insert(vni, idx);
        }
    }

    /// `ask` gets the NICs that may be open to others than before.
    fn set_group(&mut self, index: usize, group: Option<Arc<Group>>, ask: &mut Vec<PortSlot>) {
        let after = GroupOpen::of(group.as_deref());
        let before = self.groups.0.set(index, group);
        if GroupOpen::of(before.as_deref()) != after {
            let idx = GroupIdx(index as u32);
            let users = self
                .users
                .range((idx, PortSlot(0))..=(idx, PortSlot(u32::MAX)));
            ask.extend(users.map(|(_, slot)| *slot));
        }
    }

    fn set_port(
        &mut self,
        index: usize,
        port: Option<Arc<PortConfig>>,
        ask: &mut Vec<PortSlot>,
        noted: &mut Difference,
    ) {
        // Frames of NICs behind the last slot are not switched.
        if index >= MAX_PORTS {
            return;
        }
        let slot = PortSlot(index as u32);
        let addresses = |port: &PortConfig| {
            let network = port.network;
            let keys = port.addresses.iter().map(|address| (network, *address));
            keys.collect::<Vec<_>>()
        };
        if let Some(after) = &port {
            for key in addresses(after) {
                let count = self.owned.get(&key).copied().unwrap_or(0);
                self.owned.insert(key, count + 1);
            }
        }
        let uid = port.as_ref().map(|port| port.uid);
        let place = |port: &PortConfig| (port.uid, port.network, port.mac);
        let is_at = port.as_deref().map(place);
        let groups = port.as_ref().map_or(Vec::new(), |port| port.groups.clone());
        let before = self.ports.set(index, port);
        let was_at = before.as_deref().map(place);
        if was_at != is_at {
            let both = [was_at, is_at].into_iter().flatten();
            noted
                .moved
                .extend(both.map(|(_, network, mac)| (network, mac)));
        }
        if let Some(before) = before {
            for key in addresses(&before) {
                match self.owned.get(&key).copied() {
                    Some(count) if count > 1 => self.owned.insert(key, count - 1),
                    _ => self.owned.remove(&key),
                };
            }
            for group in before.groups.iter().filter(|group| !groups.contains(group)) {
                self.users.remove(&(*group, slot));
            }
            if uid != Some(before.uid) {
                noted.gone.push(slot);
            }
        }
        for group in groups {
            self.users.insert((group, slot));
        }
        ask.push(slot);
    }

    fn open(&mut self, mut ask: Vec<PortSlot>, noted: &mut Difference) {
        ask.sort_unstable();
        ask.dedup();
        for slot in &ask {
            let port = self.ports.get(slot.0 as usize).and_then(Option::as_ref);
            let open = port.map_or(Open::CLOSED, |config| self.open_of(config));
            if self.open.get(slot.0 as usize) != Some(&open) {
                self.open.set(slot.0 as usize, open);
            }
        }
        noted.opened += ask.len();
    }

    /// This view with captures of some NICs and uplinks: a NIC's configuration is the declared one
    /// but for its trace. It is no change of the configuration, the epoch stays, and no flow is
    /// decided again.
    pub(crate) fn tapped<'a>(
        &self,
        taps: impl Iterator<Item = (PortSlot, PortUid, &'a [Tap])>,
        lives: Vec<(PortSlot, PortUid, Arc<Live>)>,
    ) -> View {
        let mut view = self.clone();
        let mut uplinks = Vec::new();
        for (slot, uid, taps) in taps {
            let taps: Arc<[Tap]> = taps.into();
            if slot.is_uplink() {
                uplinks.push((slot, taps));
            } else if let Some(config) = self.port_with_uid(slot, uid) {
                let config = PortConfig {
                    trace: Trace::tapped(config.trace.as_ref(), &taps),
                    ..config.clone()
                };
                view.ports.set(slot.0 as usize, Some(Arc::new(config)));
            }
        }
        view.uplink_taps = UplinkTaps::new(uplinks.into_iter());
        view.lives = lives.into();
        view
    }

    /// Who traces the frames of a NIC live, which has a capture then, too.
    #[cold]
    pub(crate) fn live(&self, nic: &PortConfig) -> Option<Arc<Live>> {
        let mut lives = self.lives.iter();
        let (.., live) = lives.find(|(slot, uid, _)| (*slot, *uid) == (nic.slot, nic.uid))?;
        Some(live.clone())
    }

    #[inline]
    pub(crate) fn uplink_taps(&self) -> &UplinkTaps {
        &self.uplink_taps
    }

    fn open_of(&self, config: &PortConfig) -> Open {
        Open::of(
            config,
            config.groups.iter().map(|group| self.groups.get(*group)),
        )
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The epoch as flows note it.
    #[inline]
    pub(crate) fn epoch_mark(&self) -> u32 {
        self.epoch.0 as u32
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

    /// All networks and their VNIs.
    pub(crate) fn networks(&self) -> impl Iterator<Item = (NetworkIdx, Vni)> {
        let all = (0..).map(NetworkIdx).zip(self.networks.iter());
        all.filter_map(|(index, network)| Some((index, network.as_ref()?.vni)))
    }

    /// A host's address.
    #[inline]
    pub(crate) fn host(&self, index: HostIdx) -> Option<IpAddr> {
        *self.hosts.get(index.0 as usize)?
    }

    /// The host with this address.
    #[inline]
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<HostIdx> {
        self.by_address.get(&address).copied()
    }

    /// Frames of a network are taken from this host, or why not.
    #[inline]
    pub(crate) fn takes_from(&self, overlay: &Overlay, host: IpAddr) -> Result<(), DropReason> {
        match self.host_at(host) {
            _ if overlay.any_host => Ok(()),
            None => Err(DropReason::UnknownHost),
            Some(index) if overlay.has(index) => Ok(()),
            Some(_) => Err(DropReason::HostNotInVni),
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
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    #[inline]
    pub(crate) fn open_to(&self, slot: PortSlot) -> &Open {
        match self.open.get(slot.0 as usize) {
            Some(open) => open,
            None if slot.remote_of().is_some() => &Open::UNFILTERED,
            None => &Open::CLOSED,
        }
    }

    /// security-groups.md 12: both NICs allow everything in both directions. Gives by what a packet
    /// leaves the first and enters the second.
    pub(crate) fn both_open(&self, from: PortSlot, to: PortSlot, v6: bool) -> Option<[Opening; 2]> {
        let family = usize::from(v6);
        let (from, to) = (self.open_to(from), self.open_to(to));
        let there = [from.egress[family], to.ingress[family]];
        let back = [to.egress[family], from.ingress[family]];
        let open = |openings: [Opening; 2]| !openings.contains(&Opening::No);
        (open(there) && open(back)).then_some(there)
    }

    /// And neither counts its connections, so that nothing has to be remembered.
    pub(crate) fn stateless(&self, from: PortSlot, to: PortSlot, v6: bool) -> Option<[Opening; 2]> {
        let openings = self.both_open(from, to, v6)?;
        let counts = |slot| {
            let meters = self.port(slot).and_then(|nic| nic.meters.as_deref());
            meters.is_some_and(Meters::count_connections)
        };
        (!counts(from) && !counts(to)).then_some(openings)
    }
}

/// The entries of a snapshot's vector, and behind them nothing as far as `len`.
fn all<T: Clone>(
    entries: &imbl::Vector<Option<T>>,
    len: usize,
) -> impl Iterator<Item = (usize, Option<&T>)> {
    let behind = (entries.len()..len).map(|_| None);
    let entries = entries.iter().map(Option::as_ref);
    entries.chain(behind).enumerate()
}

fn is_same<T>(mine: Option<&Option<Arc<T>>>, theirs: Option<&Arc<T>>) -> bool {
    match (mine.and_then(Option::as_ref), theirs) {
        (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
        (mine, theirs) => mine.is_none() && theirs.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RuleSlot;
    use crate::ruleset::{Direction, Peer, RuleSet, RuleSpec};

    const NICS: u32 = 1000;

    fn port(slot: u32, uid: u32, groups: Vec<GroupIdx>) -> Option<Arc<PortConfig>> {
        let mac = wire::Mac([2, 0, 0, 0, (slot >> 8) as u8, slot as u8]);
        let (vni, network) = (Vni::new(7).unwrap(), NetworkIdx(0));
        Some(Arc::new(PortConfig {
            name: "nic".into(),
            addresses: vec![IpAddr::from((0x0a00_0000 + slot).to_be_bytes())],
            groups,
            flow_share: 1,
            ..PortConfig::new(PortSlot(slot), PortUid(uid), vni, network, mac)
        }))
    }

    fn rule(port: u16, slot: u32) -> RuleSpec {
        RuleSpec {
            direction: Direction::Ingress,
            protocol: (port != 0).then_some(6),
            selector: if port == 0 { 0..=u16::MAX } else { port..=port },
            peer: Peer::Any,
            slot: RuleSlot(slot),
        }
    }

    fn group(rules: Vec<RuleSpec>) -> Option<Arc<Group>> {
        Some(Arc::new(Group {
            rules: RuleSet::new(rules),
            ..Group::default()
        }))
    }

    /// A thousand NICs in group 0, one of them in group 1 as well.
    fn snapshot() -> Snapshot {
        let groups = |slot| match slot {
            5 => vec![GroupIdx(0), GroupIdx(1)],
            _ => vec![GroupIdx(0)],
        };
        Snapshot {
            epoch: Epoch(1),
            ports: (0..NICS)
                .map(|slot| port(slot, slot + 1, groups(slot)))
                .collect(),
            groups: [group(vec![rule(80, 0)]), group(Vec::new())]
                .into_iter()
                .collect(),
            ..Snapshot::default()
        }
    }

    fn then(before: &Snapshot, changed: Changed, change: impl FnOnce(&mut Snapshot)) -> Snapshot {
        let mut next = before.clone();
        change(&mut next);
        next.epoch.0 += 1;
        next.changed = Some(Arc::new(Changed {
            since: before.epoch,
            ..changed
        }));
        next
    }

    #[test]
    fn only_a_rule_that_opens_its_group_asks_the_groups_nics() {
        let first = snapshot();
        let (view, difference) = View::default().next(&first);
        assert_eq!(difference.opened, NICS as usize);
        let groups = |index| Changed {
            groups: vec![GroupIdx(index)],
            ..Changed::default()
        };
        let second = then(&first, groups(0), |next| {
            next.groups.set(0, group(vec![rule(80, 0), rule(81, 1)]));
        });
        let (view, difference) = view.next(&second);
        assert_eq!((difference.opened, difference.gone.len()), (0, 0));
        let open = |view: &View, slot| view.open_to(PortSlot(slot)).ingress;
        let third = then(&second, groups(1), |next| {
            next.groups.set(1, group(vec![rule(0, 2)]));
        });
        let (one_open, difference) = view.next(&third);
        assert_eq!(difference.opened, 1, "the one that is in it");
        assert_eq!(open(&one_open, 5), [Opening::Rule(RuleSlot(2)); 2]);
        assert_eq!(
            (open(&one_open, 4), open(&view, 5)),
            ([Opening::No; 2], [Opening::No; 2])
        );
        let fourth = then(&third, groups(0), |next| {
            next.groups.set(0, group(vec![rule(0, 3)]));
        });
        let (all_open, difference) = one_open.next(&fourth);
        assert_eq!(difference.opened, NICS as usize);
        assert_eq!(open(&all_open, 5), [Opening::Rule(RuleSlot(3)); 2]);
        // One that is gone is one that might have egress rules.
        let fifth = then(&fourth, groups(0), |next| {
            next.groups.set(0, None);
        });
        let (closed, _) = all_open.next(&fifth);
        assert!(closed.open_to(PortSlot(4)).needs_egress);
        assert!(!all_open.open_to(PortSlot(4)).needs_egress);
    }

    #[test]
    fn a_slot_whose_nic_is_another_is_told_and_its_addresses_are_not_here_any_more() {
        let first = snapshot();
        let (view, _) = View::default().next(&first);
        let address = |slot: u32| IpAddr::from((0x0a00_0000 + slot).to_be_bytes());
        let ports = Changed {
            ports: vec![PortSlot(3), PortSlot(4), PortSlot(5)],
            ..Changed::default()
        };
        let second = then(&first, ports, |next| {
            next.ports.set(3, None);
            next.ports.set(4, port(4, 5000, vec![GroupIdx(1)]));
            // This NIC stays, with other values.
            next.ports.set(5, port(5, 6, Vec::new()));
        });
        let (next, difference) = view.next(&second);
        assert_eq!(difference.gone, [PortSlot(3), PortSlot(4)]);
        let at = |slot: u8| (NetworkIdx(0), Mac([2, 0, 0, 0, 0, slot]));
        assert_eq!(difference.moved, [at(3), at(4), at(4)]);
        let network = NetworkIdx(0);
        assert!(!next.is_owned(network, address(3)) && view.is_owned(network, address(3)));
        assert!(next.is_owned(network, address(4)) && next.is_owned(network, address(5)));
        assert!(next.port(PortSlot(3)).is_none());
        // Compared whole, as where a snapshot was left out, the same comes of it.
        let (whole, difference) = View::default().next(&second);
        assert!(difference.gone.is_empty());
        assert_eq!(whole.ports().count(), next.ports().count());
        assert!(next.is_of(&second) && whole.is_of(&second) && !view.is_of(&second));
    }
}
