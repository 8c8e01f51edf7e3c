//! What can be asked of what some parts of the networks have. It costs what they have, and not
//! what the whole host has: their networks and groups are walked, and no others. NICs are in no
//! order of their networks; of all of them is looked whose they are, which is next to nothing, and
//! no more is made of others.

use super::{Controller, NetworkStatus, NicStatus, Status};
use crate::model::{
    Binding, Config, Group, NetworkOptions, Nic, NicId, Part, networks_of, patterns_of,
};
use crate::state::NicEntry;
use dataplane::snapshot::PortUid;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use wire::Mac;

/// The last address there is, as [`IpAddr`] orders them.
const LAST: [u8; 16] = [0xff; 16];

impl Controller {
    fn entries_of<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = &'a NicEntry> {
        let is_own = move |nic: &Nic| parts.iter().any(|part| part.has_network(nic.vni));
        let entries = self.state.nics.values();
        entries.filter(move |entry| is_own(&entry.nic))
    }

    /// The NICs of these parts, sorted by id.
    pub fn nics_of<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = NicStatus> + 'a {
        self.entries_of(parts)
            .map(move |entry| self.nic_status(entry))
    }

    /// Their ids, sorted.
    pub fn nic_ids_of(&self, parts: &[Part]) -> Vec<NicId> {
        let entries = self.entries_of(parts);
        entries.map(|entry| entry.nic.id.clone()).collect()
    }

    /// The same by the identity that flows have of them.
    pub fn nics_by_uid_of(&self, parts: &[Part]) -> BTreeMap<PortUid, NicId> {
        let entries = self.entries_of(parts);
        entries
            .map(|entry| (entry.uid, entry.nic.id.clone()))
            .collect()
    }

    /// Those groups of these parts that exist, sorted by id.
    pub fn groups_of<'a>(&'a self, parts: &'a [Part]) -> impl Iterator<Item = Arc<Group>> + 'a {
        let patterns = patterns_of(parts).into_iter();
        patterns.flat_map(move |pattern| self.state.groups_by(pattern).cloned())
    }

    /// Every VNI of these parts that anything speaks of, sorted.
    pub fn networks_of(&self, parts: &[Part]) -> impl Iterator<Item = NetworkStatus> + '_ {
        let vnis = &self.state.overlay.vnis;
        let own = networks_of(parts).into_iter();
        own.flat_map(move |range| vnis.range(range))
            .map(move |(vni, _)| self.network(*vni))
    }

    /// What is said of VNIs of these parts, sorted.
    pub fn networks_said_of(&self, parts: &[Part]) -> impl Iterator<Item = &NetworkOptions> {
        let options = &self.state.overlay.options;
        let own = networks_of(parts).into_iter();
        own.flat_map(move |range| options.range(range))
            .map(|(_, options)| options)
    }

    /// The bindings of these parts, sorted by VNI and MAC: all, or those behind one host.
    pub fn bindings_of(
        &self,
        parts: &[Part],
        host: Option<IpAddr>,
    ) -> impl Iterator<Item = Binding> + '_ {
        let bindings = &self.state.overlay.bindings;
        let own = networks_of(parts).into_iter().flat_map(move |range| {
            bindings.range((*range.start(), Mac([0; 6]))..=(*range.end(), Mac::BROADCAST))
        });
        own.filter(move |(_, place)| host.is_none_or(|host| place.host == host))
            .map(|(key, place)| place.binding(*key))
    }

    /// The daemon at a glance, as far as it is about these parts: how busy others are is theirs,
    /// and so are hosts.
    pub fn status_of(&self, parts: &[Part]) -> Status {
        let overlay = &self.state.overlay;
        let mut status = Status {
            requests: 0,
            nics: 0,
            networks: 0,
            groups: 0,
            rules: 0,
            vnis: 0,
            hosts: 0,
            bindings: 0,
            ..self.status()
        };
        for range in networks_of(parts) {
            let first = (*range.start(), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let last = (*range.end(), IpAddr::from(LAST));
            let members = overlay.members.range(first..=last);
            let bindings: u32 = members.map(|(_, member)| member.bindings).sum();
            status.bindings += bindings as usize;
            for (vni, _) in overlay.vnis.range(range) {
                status.vnis += 1;
                if let Some(network) = self.state.networks.get(vni) {
                    status.networks += 1;
                    status.nics += network.nics;
                }
            }
        }
        for group in self.groups_of(parts) {
            status.groups += 1;
            status.rules += group.rules.len();
        }
        status
    }

    /// Everything that is declared of these parts, and nothing of the host.
    pub fn config_of(&self, parts: &[Part]) -> Config {
        let groups = self.groups_of(parts);
        Config {
            nics: self
                .entries_of(parts)
                .map(|entry| (entry.nic.id.clone(), (*entry.nic).clone()))
                .collect(),
            groups: groups
                .map(|group| (group.id.clone(), (*group).clone()))
                .collect(),
            networks: self
                .networks_said_of(parts)
                .map(|options| (options.vni, options.clone()))
                .collect(),
            bindings: self
                .bindings_of(parts, None)
                .map(|binding| (binding.key(), binding))
                .collect(),
            ..Config::default()
        }
    }
}
