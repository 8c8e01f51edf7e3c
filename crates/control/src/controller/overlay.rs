//! Operations on hosts, bindings and what is said of VNIs, and reading them. Each operation
//! gives back what it changed: an empty [`Diff`] when all was so already.

use super::Controller;
use crate::diff::Diff;
use crate::error::Error;
use crate::model::{Binding, BindingKey, Host, HostUpdate, NetworkOptions};
use crate::stage::{Change, OverlayChanges, Staged};
use crate::state::{NetworkMode, State};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use wire::{Mac, Vni};

/// A host and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostStatus {
    /// The host as it was declared.
    pub host: Arc<Host>,
    /// Bindings that name it.
    pub bindings: usize,
}

/// A virtual network and how it works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkStatus {
    /// What is said of it.
    pub options: NetworkOptions,
    /// What is in force.
    pub mode: NetworkMode,
    /// Its NICs on this host.
    pub nics: usize,
    /// Its hosts, those of every VNI not counted.
    pub hosts: usize,
    /// Its bindings.
    pub bindings: usize,
}

impl Controller {
    /// Makes a host be as given, whole.
    pub fn put_host(&mut self, host: Host) -> Result<Diff, Error> {
        let hosts = [(host.address, Some(host))].into();
        self.change_overlay(OverlayChanges {
            hosts,
            ..OverlayChanges::default()
        })
    }

    /// Replaces the given values of a host. If there is none it is made, unless it is only to leave
    /// networks: who is not known is in none.
    pub fn update_host(&mut self, address: IpAddr, update: HostUpdate) -> Result<Diff, Error> {
        let host = match self.state.overlay.hosts.get(&address) {
            Some(entry) => entry.host.updated(update)?,
            None if update.only_leaves() => return Ok(Diff::default()),
            None => Host::new(address).updated(update)?,
        };
        self.put_host(host)
    }

    /// Removes a host. One that is not there is removed already. One that bindings name is
    /// refused, unless they are to go with it.
    pub fn delete_host(&mut self, address: IpAddr, with_bindings: bool) -> Result<Diff, Error> {
        let overlay = &self.state.overlay;
        let named = overlay
            .hosts
            .get(&address)
            .is_some_and(|entry| entry.bindings > 0);
        let mut bindings: BTreeMap<_, _> = match with_bindings && named {
            true => overlay
                .bindings
                .iter()
                .filter(|(_, place)| place.host == address)
                .map(|(key, _)| (*key, None))
                .collect(),
            false => BTreeMap::new(),
        };
        if with_bindings {
            let unmade = self.state.unmade.bindings.iter();
            let own = unmade.filter(|(_, binding)| binding.host == address);
            bindings.extend(own.map(|(key, _)| (*key, None)));
        }
        self.change_overlay(OverlayChanges {
            hosts: [(address, None)].into(),
            bindings,
            ..OverlayChanges::default()
        })
    }

    /// Says something of a VNI in the place of what was said. Nothing said makes it work by its
    /// default again.
    pub fn put_network(&mut self, options: NetworkOptions) -> Result<Diff, Error> {
        self.change_overlay(OverlayChanges {
            networks: [(options.vni, options)].into(),
            ..OverlayChanges::default()
        })
    }

    /// Makes bindings be as given, all or nothing, and leaves all others. Hosts that they name
    /// are made.
    pub fn put_bindings(&mut self, bindings: Vec<Binding>) -> Result<Diff, Error> {
        let bindings = bindings
            .into_iter()
            .map(|binding| (binding.key(), Some(binding)));
        self.change_overlay(OverlayChanges {
            bindings: bindings.collect(),
            ..OverlayChanges::default()
        })
    }

    /// Removes bindings. One that is not there is removed already. Their hosts stay.
    pub fn delete_bindings(&mut self, keys: &[BindingKey]) -> Result<Diff, Error> {
        self.change_overlay(OverlayChanges {
            bindings: keys.iter().map(|key| (*key, None)).collect(),
            ..OverlayChanges::default()
        })
    }

    /// Makes the bindings, all or those of one VNI, exactly these, in one step. With `dry_run` only
    /// says what would change. Hosts stay, and those that are named are made.
    pub fn set_bindings(
        &mut self,
        vni: Option<Vni>,
        bindings: BTreeMap<BindingKey, Binding>,
        dry_run: bool,
    ) -> Result<Diff, Error> {
        if let Some(vni) = vni
            && let Some((other, mac)) = bindings.keys().find(|(other, _)| *other != vni)
        {
            let owner = format!("binding of {mac}");
            let why = format!("is not {vni}, whose bindings are to be replaced");
            return Err(Error::value(&owner, "VNI", &other.to_string(), &why));
        }
        let bindings = self.replace_bindings(vni, bindings)?;
        let changes = OverlayChanges {
            bindings,
            ..OverlayChanges::default()
        };
        self.commit_overlay(changes, dry_run)
    }

    /// The networks with NICs here that hear nobody on other hosts though nothing says that they
    /// are not to: something is declared of some network, no host is, and of these not whom they
    /// hear. None where this host reaches no other.
    pub fn deaf_networks(&self) -> Vec<Vni> {
        let mut deaf: Vec<Vni> = match self.settings.overlay {
            true => self.state.deaf_networks().collect(),
            false => Vec::new(),
        };
        deaf.sort_unstable();
        deaf
    }

    /// A change has made the first network such a one. Of one that concerns few networks no more
    /// are looked at, unless it has.
    pub(super) fn deafens(&self, before: &State, staged: &Staged) -> bool {
        let is_deaf =
            |vni: Vni| self.state.networks.contains_key(&vni) && self.state.overlay.is_deaf(vni);
        let diff = &staged.diff;
        let is_any = match staged.overlay.everywhere || !diff.hosts.is_empty() {
            true => self.state.deaf_networks().next().is_some(),
            false => {
                let networks = diff.networks.iter().map(|change| change.to.vni);
                let nics = staged.nics.values().filter_map(|(_, new)| new.as_ref());
                let mut concerned = networks.chain(nics.map(|new| new.nic.vni));
                concerned.any(is_deaf)
            }
        };
        let begins = || staged.overlay.begins || before.deaf_networks().next().is_none();
        self.settings.overlay && is_any && begins()
    }

    fn change_overlay(&mut self, changes: OverlayChanges) -> Result<Diff, Error> {
        self.commit_overlay(changes, false)
    }

    fn commit_overlay(&mut self, changes: OverlayChanges, dry_run: bool) -> Result<Diff, Error> {
        let forget = self.forget_overlay(&changes);
        self.commit(vec![Change::Overlay(Box::new(changes)), forget], dry_run)
    }

    /// What makes the overlay exactly this.
    pub(super) fn replace_overlay(
        &self,
        hosts: BTreeMap<IpAddr, Host>,
        networks: BTreeMap<Vni, NetworkOptions>,
        bindings: BTreeMap<BindingKey, Binding>,
    ) -> Result<OverlayChanges, Error> {
        if let Some((key, host)) = hosts.iter().find(|(key, host)| **key != host.address) {
            return Err(Error::value(
                &host.owner(),
                "key",
                &key.to_string(),
                "is not its address",
            ));
        }
        if let Some((key, options)) = networks.iter().find(|(key, options)| **key != options.vni) {
            let owner = format!("VNI {}", options.vni);
            return Err(Error::value(
                &owner,
                "key",
                &key.to_string(),
                "is not its VNI",
            ));
        }
        let overlay = &self.state.overlay;
        // A host that is not listed and that a binding names stays, or comes, as one that only
        // bindings speak of.
        let named: BTreeSet<IpAddr> = bindings.values().map(|binding| binding.host).collect();
        let gone = overlay
            .hosts
            .keys()
            .filter(|address| !hosts.contains_key(*address));
        let gone = gone.map(|address| {
            (
                *address,
                named.contains(address).then(|| Host::new(*address)),
            )
        });
        let mut all: BTreeMap<_, _> = gone.collect();
        all.extend(
            hosts
                .into_iter()
                .map(|(address, host)| (address, Some(host))),
        );
        let unsaid = overlay
            .options
            .keys()
            .filter(|vni| !networks.contains_key(*vni));
        let mut said: BTreeMap<_, _> = unsaid
            .map(|vni| (*vni, NetworkOptions::new(*vni)))
            .collect();
        said.extend(networks);
        Ok(OverlayChanges {
            hosts: all,
            networks: said,
            bindings: self.replace_bindings(None, bindings)?,
        })
    }

    fn replace_bindings(
        &self,
        vni: Option<Vni>,
        bindings: BTreeMap<BindingKey, Binding>,
    ) -> Result<BTreeMap<BindingKey, Option<Binding>>, Error> {
        if let Some((_, binding)) = bindings
            .iter()
            .find(|(key, binding)| **key != binding.key())
        {
            let owner = format!("binding of {}", binding.mac);
            return Err(Error::value(
                &owner,
                "key",
                &binding.vni.to_string(),
                "is not its VNI and MAC",
            ));
        }
        let mut all: BTreeMap<_, _> = match vni {
            None => self
                .state
                .overlay
                .bindings
                .keys()
                .map(|key| (*key, None))
                .collect(),
            Some(vni) => self
                .state
                .overlay
                .bindings_of(vni)
                .map(|(key, _)| (*key, None))
                .collect(),
        };
        let unmade = self.state.unmade.bindings.keys();
        let unmade = unmade.filter(|(other, _)| vni.is_none_or(|vni| vni == *other));
        all.extend(unmade.map(|key| (*key, None)));
        all.extend(
            bindings
                .into_iter()
                .map(|(key, binding)| (key, Some(binding))),
        );
        Ok(all)
    }

    /// All hosts, sorted by address.
    pub fn hosts(&self) -> impl Iterator<Item = HostStatus> + '_ {
        let entries = self.state.overlay.hosts.values();
        entries.map(|entry| HostStatus {
            host: entry.host.clone(),
            bindings: entry.bindings as usize,
        })
    }

    /// One host.
    pub fn host(&self, address: IpAddr) -> Result<HostStatus, Error> {
        let entry = self.state.overlay.hosts.get(&address);
        let entry = entry.ok_or(Error::NoHost(address))?;
        Ok(HostStatus {
            host: entry.host.clone(),
            bindings: entry.bindings as usize,
        })
    }

    /// Every VNI that anything speaks of, sorted.
    pub fn networks(&self) -> impl Iterator<Item = NetworkStatus> + '_ {
        self.state.overlay.vnis.keys().map(|vni| self.network(*vni))
    }

    /// What is said of VNIs, sorted; nothing of those of which nothing is.
    pub fn networks_said(&self) -> impl Iterator<Item = &NetworkOptions> {
        self.state.overlay.options.values()
    }

    /// Whether these options, if they were put, would be the first thing that is declared of who is
    /// out there, or take away the last one: that changes how all networks work of which nothing is
    /// said.
    pub fn turns_all_networks(&self, options: &NetworkOptions) -> bool {
        let overlay = &self.state.overlay;
        let others = overlay.options.keys().any(|vni| *vni != options.vni);
        let is_said = overlay.options.contains_key(&options.vni);
        overlay.hosts.is_empty() && !others && is_said == options.is_default()
    }

    /// How a VNI works; any VNI does.
    pub fn network(&self, vni: Vni) -> NetworkStatus {
        let overlay = &self.state.overlay;
        let options = overlay.options.get(&vni).cloned();
        let members = overlay.members_of(vni);
        NetworkStatus {
            options: options.unwrap_or_else(|| NetworkOptions::new(vni)),
            mode: overlay.mode(vni),
            nics: self
                .state
                .networks
                .get(&vni)
                .map_or(0, |network| network.nics),
            hosts: overlay.members_of(vni).count(),
            bindings: members.map(|(_, member)| member.bindings as usize).sum(),
        }
    }

    /// All hosts of a VNI, those of every VNI included, IPv4 first.
    pub fn network_hosts(&self, vni: Vni) -> BTreeSet<IpAddr> {
        let overlay = &self.state.overlay;
        let members = overlay.members_of(vni).map(|(address, _)| address);
        members.chain(overlay.everywhere.iter().copied()).collect()
    }

    /// Bindings, sorted by VNI and MAC: all, or those of one VNI, and of them those behind one
    /// host.
    pub fn bindings(
        &self,
        vni: Option<Vni>,
        host: Option<IpAddr>,
    ) -> impl Iterator<Item = Binding> + '_ {
        let bounds = match vni {
            Some(vni) => (
                Bound::Included((vni, Mac([0; 6]))),
                Bound::Included((vni, Mac::BROADCAST)),
            ),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        let all = self.state.overlay.bindings.range(bounds);
        all.filter(move |(_, place)| host.is_none_or(|host| place.host == host))
            .map(|(key, place)| place.binding(*key))
    }

    /// One binding.
    pub fn binding(&self, (vni, mac): BindingKey) -> Result<Binding, Error> {
        let place = self.state.overlay.bindings.get(&(vni, mac));
        place
            .map(|place| place.binding((vni, mac)))
            .ok_or(Error::NoBinding { vni, mac })
    }
}
