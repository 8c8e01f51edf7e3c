//! NICs in the indices: their MACs, paths, slots, networks, groups and sniffers.

use super::{Staged, full};
use crate::attach::{DataPlane, HostSettings};
use crate::error::{Error, quota};
use crate::limits;
use crate::model::{MirrorKind, Nic, NicId};
use crate::state::{NetworkEntry, NicEntry, State};
use dataplane::snapshot::{NetworkIdx, PortSlot, PortUid};
use std::net::IpAddr;
use std::sync::Arc;

impl State {
    /// Unlinks all NICs that go or change before it links those that come or have changed: two NICs
    /// may exchange their MACs in one operation.
    pub(super) fn stage_nics(
        &mut self,
        epoch: u64,
        settings: &HostSettings,
        dataplane: &dyn DataPlane,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let mut nics = std::mem::take(&mut staged.nics);
        let gone = nics.values().filter(|(old, _)| old.is_some()).count();
        let come = nics.values().filter(|(_, new)| new.is_some()).count();
        quota(
            "the daemon",
            "NICs",
            self.nics.len() + come - gone,
            limits::NICS,
        )?;
        for (old, _) in nics.values() {
            if let Some(old) = old {
                self.unlink(old, settings, staged);
            }
        }
        for (old, new) in nics.values_mut() {
            let Some(new) = new else {
                if let Some(old) = old {
                    self.by_slot.remove(&old.slot.0);
                    self.port_slots.give(old.slot.0, epoch);
                }
                continue;
            };
            match old {
                Some(old)
                    if old.nic.kind.same_port(&new.nic.kind)
                        && old.nic.vhost_mode == new.nic.vhost_mode
                        && old.path == new.path =>
                {
                    new.slot = old.slot;
                    new.state = old.state.clone();
                    new.baseline = old.baseline.clone();
                    let moved = old.nic.mac != new.nic.mac || old.nic.vni != new.nic.vni;
                    new.uid = if moved { self.uid() } else { old.uid };
                }
                _ => {
                    if let Some(old) = old {
                        self.by_slot.remove(&old.slot.0);
                        self.port_slots.give(old.slot.0, epoch);
                    }
                    let taken = self.port_slots.take(epoch);
                    let taken = taken
                        .ok_or_else(|| full("ports, counting those replaced", limits::NICS))?;
                    new.slot = PortSlot(taken.slot);
                    new.uid = self.uid();
                    if taken.reused {
                        new.baseline = Arc::new(dataplane.port_counters(new.slot));
                    }
                }
            }
            self.link(new, settings, epoch, staged)?;
        }
        staged.nics = nics;
        Ok(())
    }

    /// Another host would take the copies for frames of the network whose number they have.
    pub(super) fn check_mirrors(&self) -> Result<(), Error> {
        let is_host = |collector: &&IpAddr| self.overlay.hosts.contains_key(*collector);
        let Some(&collector) = self.vxlan_mirrors.keys().find(is_host) else {
            return Ok(());
        };
        let nics = self.vxlan_mirrors.get(&collector);
        match nics.and_then(|nics| nics.get_min()) {
            Some(nic) => Err(Error::MirrorToHost {
                nic: nic.clone(),
                collector,
            }),
            None => Ok(()),
        }
    }

    fn uid(&mut self) -> PortUid {
        let uid = PortUid(self.next_uid);
        // Four thousand million NICs created by one daemon: then the first are long gone.
        self.next_uid = self.next_uid.wrapping_add(1).max(1);
        uid
    }

    fn unlink(&mut self, entry: &NicEntry, settings: &HostSettings, staged: &mut Staged) {
        let nic = &entry.nic;
        self.nics.remove(&nic.id);
        self.paths.remove(&entry.path);
        if nic.packet_trace {
            self.paths.remove(settings.trace_path(nic).as_str());
        }
        if let Some(collector) = vxlan_collector(nic)
            && let Some(nics) = self.vxlan_mirrors.get_mut(&collector)
        {
            nics.remove(&nic.id);
            if nics.is_empty() {
                self.vxlan_mirrors.remove(&collector);
            }
        }
        match &nic.sniff_target {
            None => {
                let key = (nic.vni, nic.mac);
                let holders = self.macs.get(&key).into_iter().flat_map(|ids| ids.iter());
                let others: Arc<[NicId]> = holders.filter(|id| **id != nic.id).cloned().collect();
                match others.is_empty() {
                    true => self.macs.remove(&key),
                    false => self.macs.insert(key, others),
                };
                for ip in nic.host_addresses() {
                    let key = (nic.vni, ip);
                    let holders = self.addresses.get(&key).into_iter();
                    let others: Arc<[NicId]> = holders
                        .flat_map(|ids| ids.iter())
                        .filter(|id| **id != nic.id)
                        .cloned()
                        .collect();
                    match others.is_empty() {
                        true => self.addresses.remove(&key),
                        false => self.addresses.insert(key, others),
                    };
                }
            }
            Some(target) => {
                staged.sniffed.insert(target.clone());
                if let Some(sniffers) = self.sniffers.get_mut(target) {
                    sniffers.remove(&nic.id);
                    if sniffers.is_empty() {
                        self.sniffers.remove(target);
                    }
                }
            }
        }
        if let Some(network) = self.networks.get_mut(&nic.vni) {
            network.nics -= 1;
        }
        for id in &nic.security_groups {
            let Some(entry) = self.groups.get_mut(id) else {
                continue;
            };
            let touch = staged.groups.entry(id.clone()).or_default();
            for ip in &nic.host_addresses().collect::<Vec<_>>() {
                touch
                    .members
                    .entry(*ip)
                    .or_insert_with(|| entry.stands_for(ip));
                match entry.addresses.get_mut(ip) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => {
                        entry.addresses.remove(ip);
                    }
                }
            }
            entry.nics.remove(&nic.id);
        }
    }

    fn link(
        &mut self,
        entry: &mut NicEntry,
        settings: &HostSettings,
        epoch: u64,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let nic = entry.nic.clone();
        let trace = nic.packet_trace.then(|| settings.trace_path(&nic).into());
        for path in [Some(entry.path.clone()), trace]
            .into_iter()
            .flatten()
            .filter(|path| !path.is_empty())
        {
            if let Some(other) = self.paths.insert(path.clone(), nic.id.clone()) {
                return Err(Error::PathTaken {
                    nic: nic.id.clone(),
                    path: path.to_string(),
                    other,
                });
            }
        }
        if let Some(collector) = vxlan_collector(&nic) {
            let nics = self.vxlan_mirrors.entry(collector).or_default();
            nics.insert(nic.id.clone());
        }
        match &nic.sniff_target {
            None => {
                let key = (nic.vni, nic.mac);
                let others = self.macs.get(&key).map_or(&[][..], |ids| ids);
                let strict = |id: &&NicId| {
                    !(nic.lenient && self.nics.get(*id).is_some_and(|e| e.nic.lenient))
                };
                if let Some(other) = others.iter().find(strict) {
                    return Err(Error::MacTaken {
                        nic: nic.id.clone(),
                        mac: nic.mac,
                        other: other.clone(),
                        vni: nic.vni,
                    });
                }
                // By id, whatever order they came in.
                let mut holders: Vec<NicId> = others.iter().chain([&nic.id]).cloned().collect();
                holders.sort();
                self.macs.insert(key, holders.into());
                self.link_addresses(&nic)?;
            }
            Some(target) => {
                staged.sniffed.insert(target.clone());
                self.sniffers
                    .entry(target.clone())
                    .or_default()
                    .insert(nic.id.clone());
            }
        }
        entry.network = match self.networks.get_mut(&nic.vni) {
            Some(network) => {
                network.nics += 1;
                network.idx
            }
            None => {
                let taken = self
                    .network_slots
                    .take(epoch)
                    .ok_or_else(|| full("networks", 2 * limits::NICS))?;
                let (idx, uid) = (NetworkIdx(taken.slot), self.uid());
                self.networks
                    .insert(nic.vni, NetworkEntry { idx, nics: 1, uid });
                self.overlay.hold(nic.vni);
                idx
            }
        };
        for id in &nic.security_groups {
            let entry = self.group_entry(id, epoch)?;
            let touch = staged.groups.entry(id.clone()).or_default();
            for ip in &nic.host_addresses().collect::<Vec<_>>() {
                touch
                    .members
                    .entry(*ip)
                    .or_insert_with(|| entry.stands_for(ip));
                *entry.addresses.entry(*ip).or_insert(0) += 1;
            }
            entry.nics.insert(nic.id.clone());
        }
        self.by_slot.insert(entry.slot.0, nic.id.clone());
        self.nics.insert(nic.id.clone(), entry.clone());
        Ok(())
    }

    /// An address is one NIC's in a VNI, unless all that have it share it, or are lenient.
    fn link_addresses(&mut self, nic: &Nic) -> Result<(), Error> {
        for ip in nic.host_addresses() {
            let key = (nic.vni, ip);
            let others = self.addresses.get(&key).map_or(&[][..], |ids| ids);
            let is_alone = |id: &&NicId| {
                let other = self.nics.get(*id).map(|entry| &entry.nic);
                !other
                    .is_some_and(|other| nic.shared && other.shared || nic.lenient && other.lenient)
            };
            if let Some(other) = others.iter().find(is_alone) {
                return Err(Error::AddressTaken {
                    nic: nic.id.clone(),
                    ip,
                    other: other.clone(),
                    vni: nic.vni,
                });
            }
            let holders: Arc<[NicId]> = others.iter().chain([&nic.id]).cloned().collect();
            self.addresses.insert(key, holders);
        }
        Ok(())
    }
}

fn vxlan_collector(nic: &Nic) -> Option<IpAddr> {
    let mirror = nic.mirror.as_ref()?;
    matches!(mirror.kind, MirrorKind::Vxlan { .. }).then_some(mirror.address)
}
