//! Who is where, for the networks that this host is in: of all others the workers need to know
//! nothing.

use super::{Work, set};
use crate::attach::HostSettings;
use crate::model::{Flood, multicast_group};
use crate::stage::Staged;
use crate::state::{Overlay, State};
use dataplane::overlay::{self, HostIdx, Trust};
use dataplane::snapshot::{Changed, Network, PortUid};
use imbl::Vector;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Mac, Vni};

impl State {
    /// After the networks: `fresh` are those that were not in the snapshot before.
    pub(super) fn compile_overlay(
        &mut self,
        staged: &Staged,
        fresh: &BTreeSet<Vni>,
        settings: &HostSettings,
        (work, changed): (&mut Work, &mut Changed),
    ) {
        let touch = &staged.overlay;
        if !settings.overlay && !touch.begins {
            return;
        }
        if touch.begins {
            for (address, entry) in &self.overlay.hosts {
                changed.hosts.push(entry.idx);
                set(&mut self.snapshot.hosts, entry.idx.0, Some(*address));
            }
        }
        for change in &staged.diff.hosts {
            match (&change.to, self.overlay.index(change.address)) {
                (Some(_), Some(idx)) => {
                    changed.hosts.push(idx);
                    set(&mut self.snapshot.hosts, idx.0, Some(change.address))
                }
                _ => {
                    let gone = forget(&mut self.snapshot.hosts, change.address);
                    changed.hosts.extend(gone);
                }
            }
        }
        if touch.everywhere {
            self.overlay.everywhere_list = self
                .overlay
                .indices(self.overlay.everywhere.iter().copied());
        }
        // What is touched, by VNI; a network whose everything is new needs no list.
        let mut todo: BTreeMap<Vni, (Vec<Mac>, Vec<IpAddr>)> = BTreeMap::new();
        if touch.everywhere {
            todo.extend(self.networks.keys().map(|vni| (*vni, Default::default())));
        }
        todo.extend(
            fresh
                .iter()
                .chain(&touch.networks)
                .map(|vni| (*vni, Default::default())),
        );
        for (vni, mac) in &touch.bindings {
            todo.entry(*vni).or_default().0.push(*mac);
        }
        for (vni, ip) in &touch.neighbours {
            todo.entry(*vni).or_default().1.push(*ip);
        }
        for (vni, (macs, ips)) in todo {
            let Some(entry) = self.networks.get(&vni).copied() else {
                continue;
            };
            changed.networks.push(entry.idx);
            let networks = &mut self.snapshot.networks;
            let network = networks
                .get_mut(entry.idx.0 as usize)
                .and_then(Option::as_mut);
            if let Some(network) = network.map(Arc::make_mut) {
                work.bindings +=
                    self.overlay
                        .compile(network, entry.uid, (&macs, &ips), settings.underlay_ipv6);
            }
        }
    }
}

impl Overlay {
    /// Builds the overlay of a network; how many bindings that took.
    fn compile(
        &self,
        network: &mut Network,
        uid: PortUid,
        (macs, ips): (&[Mac], &[IpAddr]),
        ipv6: bool,
    ) -> usize {
        let vni = network.vni;
        let bind = |overlay: &mut overlay::Overlay, mac: Mac| {
            let place = self.bindings.get(&(vni, mac));
            match place.and_then(|place| self.index(place.host)) {
                Some(idx) => overlay.bindings.insert(mac, idx),
                None => overlay.bindings.remove(&mac),
            };
        };
        let name = |overlay: &mut overlay::Overlay, ip: IpAddr| {
            match self.holder(vni, ip) {
                Some(holder) => overlay.neighbours.insert(ip, holder),
                None => overlay.neighbours.remove(&ip),
            };
        };
        let (mut compiled, bound) = match network.overlay.take() {
            Some(before) => {
                let mut overlay = Arc::unwrap_or_clone(before);
                macs.iter().for_each(|mac| bind(&mut overlay, *mac));
                ips.iter().for_each(|ip| name(&mut overlay, *ip));
                (overlay, macs.len())
            }
            None => {
                let mut overlay = overlay::Overlay::new(uid);
                let mut bound = 0;
                for ((_, mac), place) in self.bindings_of(vni) {
                    bind(&mut overlay, *mac);
                    place.ips.iter().for_each(|ip| name(&mut overlay, *ip));
                    bound += 1;
                }
                (overlay, bound)
            }
        };
        let mode = self.mode(vni);
        compiled.learn = mode.learning;
        compiled.any_host = mode.from_anybody;
        compiled.members = self.compiled_members(vni);
        let options = self.options.get(&vni);
        let trust = |any: bool, named: Option<&Arc<[IpAddr]>>| match named
            .filter(|named| !named.is_empty())
        {
            _ if any => Trust::Anybody,
            Some(named) => Trust::Only(named.clone()),
            None => Trust::Nobody,
        };
        compiled.dhcp_servers = trust(mode.any_dhcp_server, options.map(|o| &o.dhcp_servers));
        compiled.routers = trust(mode.any_router, options.map(|o| &o.routers));
        compiled.flood = match mode.flood {
            Flood::Off => overlay::Flood::No,
            Flood::Multicast(group) => {
                overlay::Flood::Group(group.unwrap_or_else(|| multicast_group(vni, ipv6)))
            }
            Flood::HeadEnd => overlay::Flood::Hosts(compiled.members.clone()),
        };
        network.overlay = Some(Arc::new(compiled));
        bound
    }

    /// Its hosts, each once, sorted. Networks that have those of every VNI alone share one
    /// list.
    fn compiled_members(&self, vni: Vni) -> Arc<[HostIdx]> {
        let own = self.members_of(vni).map(|(address, _)| address);
        let own: Vec<IpAddr> = own
            .filter(|address| !self.everywhere.contains(address))
            .collect();
        match own.is_empty() {
            true => self.everywhere_list.clone(),
            false => self.indices(self.everywhere.iter().copied().chain(own)),
        }
    }

    fn indices(&self, addresses: impl Iterator<Item = IpAddr>) -> Arc<[HostIdx]> {
        let mut indices: Vec<_> = addresses
            .filter_map(|address| self.index(address))
            .collect();
        indices.sort_unstable();
        indices.into()
    }
}

/// A host that is gone has no index any more to find it by; and it goes seldom.
fn forget(hosts: &mut Vector<Option<IpAddr>>, address: IpAddr) -> Option<HostIdx> {
    let at = hosts.iter().position(|known| *known == Some(address))?;
    hosts.set(at, None);
    Some(HostIdx(at as u32))
}
