//! Who is where, in persistent maps that one key orders: all of a VNI lies together, so that there
//! is no map a VNI, which a third of a million of them would pay for. The methods keep the maps in
//! step; what may be is checked before.

use crate::model::{Binding, BindingKey, Flood, Host, Membership, NetworkOptions};
use dataplane::overlay::{Holder, HostIdx};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use wire::{Mac, Vni};

/// Hosts, bindings and what is said of VNIs.
#[derive(Clone, Default)]
pub(crate) struct Overlay {
    pub hosts: imbl::OrdMap<IpAddr, HostEntry>,
    pub options: imbl::OrdMap<Vni, NetworkOptions>,
    pub bindings: imbl::OrdMap<BindingKey, BindingValue>,
    /// Who has an address of a VNI.
    pub neighbours: imbl::OrdSet<(Vni, IpAddr, Mac)>,
    /// The hosts of a VNI but for those of every VNI.
    pub members: imbl::OrdMap<(Vni, IpAddr), Member>,
    /// How many things speak of a VNI: NICs (one for all of them), options, declared hosts and
    /// bindings.
    pub vnis: imbl::OrdMap<Vni, u32>,
    /// Hosts of every VNI.
    pub everywhere: imbl::OrdSet<IpAddr>,
    /// Hosts of every VNI, compiled: as workers' snapshots name them.
    pub everywhere_list: Arc<[HostIdx]>,
    /// VNIs that hosts are declared for one by one, all hosts together.
    pub memberships: usize,
    /// Addresses of all bindings.
    pub addresses: usize,
}

/// A host that exists.
#[derive(Clone)]
pub(crate) struct HostEntry {
    pub host: Arc<Host>,
    /// Bindings that name it.
    pub bindings: u32,
    pub idx: HostIdx,
}

/// A binding's value: the rest is its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BindingValue {
    pub ips: Arc<[IpAddr]>,
    pub host: IpAddr,
}

/// Why a host is one of a VNI's.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub declared: bool,
    pub bindings: u32,
}

/// How a VNI works: what was said, and what follows where nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkMode {
    /// MACs are learnt from traffic, and frames to unknown ones flooded.
    pub learning: bool,
    /// Where frames for all go.
    pub flood: Flood,
    /// VXLAN is taken from whoever sends it, and not from the VNI's hosts alone.
    pub from_anybody: bool,
    /// DHCP servers on every host are trusted, and not those on named ones alone.
    pub any_dhcp_server: bool,
    /// Routers on every host are trusted, and not those on named ones alone.
    pub any_router: bool,
}

impl BindingValue {
    pub fn binding(&self, (vni, mac): BindingKey) -> Binding {
        Binding {
            vni,
            mac,
            ips: self.ips.clone(),
            host: self.host,
        }
    }
}

impl Overlay {
    /// Nothing is declared that says who is out there: no host, and nothing of any VNI.
    pub fn is_undeclared(&self) -> bool {
        self.hosts.is_empty() && self.options.is_empty()
    }

    /// Nobody is heard in the VNI, and nothing says that it is to be so: something is declared of
    /// some VNI, and no host at all. One whose frames stay on this host says so.
    pub fn is_deaf(&self, vni: Vni) -> bool {
        let unsaid = |options: &NetworkOptions| {
            options.from_anybody.is_none() && options.flood != Some(Flood::Off)
        };
        let declares_no_host = self.hosts.is_empty() && !self.options.is_empty();
        declares_no_host && self.options.get(&vni).is_none_or(unsaid)
    }

    /// How the VNI works.
    pub fn mode(&self, vni: Vni) -> NetworkMode {
        let options = self.options.get(&vni);
        let bound = self.bindings_of(vni).next().is_some();
        let known = bound || !self.everywhere.is_empty() || self.members_of(vni).next().is_some();
        // Once anything is declared, of whichever VNI, to hear anybody is to be asked for by name.
        let original = self.is_undeclared();
        let from_anybody = options.and_then(|o| o.from_anybody).unwrap_or(original);
        let flood = match from_anybody && !known {
            true => Flood::Multicast(None),
            false => Flood::HeadEnd,
        };
        NetworkMode {
            learning: options.and_then(|o| o.learning).unwrap_or(!bound),
            flood: options.and_then(|o| o.flood).unwrap_or(flood),
            from_anybody,
            any_dhcp_server: original,
            any_router: original,
        }
    }

    /// The bindings of a VNI, by MAC.
    pub fn bindings_of(&self, vni: Vni) -> impl Iterator<Item = (&BindingKey, &BindingValue)> {
        self.bindings
            .range((vni, Mac([0; 6]))..=(vni, Mac::BROADCAST))
    }

    /// The hosts of a VNI but for those of every VNI, IPv4 first.
    pub fn members_of(&self, vni: Vni) -> impl Iterator<Item = (IpAddr, &Member)> {
        let first = (vni, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let last = (vni, IpAddr::from([0xff; 16]));
        self.members
            .range(first..=last)
            .map(|((_, address), member)| (*address, member))
    }

    /// Who has an address of a VNI, by the bindings.
    pub fn holder(&self, vni: Vni, ip: IpAddr) -> Option<Holder> {
        let range = (vni, ip, Mac([0; 6]))..=(vni, ip, Mac::BROADCAST);
        let mut macs = self.neighbours.range(range).map(|(_, _, mac)| *mac);
        let first = macs.next()?;
        Some(match macs.next() {
            None => Holder::One(first),
            Some(second) => Holder::Several([first, second].into_iter().chain(macs).collect()),
        })
    }

    /// The number that the data plane has for a host.
    pub fn index(&self, address: IpAddr) -> Option<HostIdx> {
        Some(self.hosts.get(&address)?.idx)
    }

    /// One thing more speaks of the VNI.
    pub fn hold(&mut self, vni: Vni) {
        *self.vnis.entry(vni).or_insert(0) += 1;
    }

    /// One thing less.
    pub fn release(&mut self, vni: Vni) {
        if let Some(count) = self.vnis.get_mut(&vni) {
            *count -= 1;
            if *count == 0 {
                self.vnis.remove(&vni);
            }
        }
    }

    /// Says something of a VNI, or nothing any more.
    pub fn put_options(&mut self, options: NetworkOptions) {
        let vni = options.vni;
        let before = match options.is_default() {
            true => self.options.remove(&vni).is_some(),
            false => self.options.insert(vni, options).is_some(),
        };
        match (before, self.options.contains_key(&vni)) {
            (false, true) => self.hold(vni),
            (true, false) => self.release(vni),
            _ => (),
        }
    }

    /// Puts a host in the place of one of its address, whose index it keeps.
    pub fn put_host(&mut self, host: Arc<Host>, idx: HostIdx) {
        let address = host.address;
        let bindings = self.remove_host(address);
        self.memberships += host.listed();
        match &host.vnis {
            Membership::Every => drop(self.everywhere.insert(address)),
            Membership::Listed(vnis) => {
                for vni in vnis {
                    self.members.entry((*vni, address)).or_default().declared = true;
                    self.hold(*vni);
                }
            }
        }
        let entry = HostEntry {
            host,
            bindings,
            idx,
        };
        self.hosts.insert(address, entry);
    }

    /// Removes a host; how many bindings name it.
    pub fn remove_host(&mut self, address: IpAddr) -> u32 {
        let Some(old) = self.hosts.remove(&address) else {
            return 0;
        };
        self.memberships -= old.host.listed();
        self.everywhere.remove(&address);
        if let Membership::Listed(vnis) = &old.host.vnis {
            for vni in vnis {
                self.change_member((*vni, address), |member| member.declared = false);
                self.release(*vni);
            }
        }
        old.bindings
    }

    /// Adds a binding that there is none of, to a host that there is.
    pub fn link(&mut self, (vni, mac): BindingKey, place: BindingValue) {
        for ip in place.ips.iter() {
            self.neighbours.insert((vni, *ip, mac));
        }
        self.addresses += place.ips.len();
        self.members.entry((vni, place.host)).or_default().bindings += 1;
        if let Some(entry) = self.hosts.get_mut(&place.host) {
            entry.bindings += 1;
        }
        self.hold(vni);
        self.bindings.insert((vni, mac), place);
    }

    /// Takes a binding away.
    pub fn unlink(&mut self, key: BindingKey) -> Option<BindingValue> {
        let place = self.bindings.remove(&key)?;
        let (vni, mac) = key;
        for ip in place.ips.iter() {
            self.neighbours.remove(&(vni, *ip, mac));
        }
        self.addresses -= place.ips.len();
        self.change_member((vni, place.host), |member| member.bindings -= 1);
        if let Some(entry) = self.hosts.get_mut(&place.host) {
            entry.bindings -= 1;
        }
        self.release(vni);
        Some(place)
    }

    fn change_member(&mut self, key: (Vni, IpAddr), change: impl FnOnce(&mut Member)) {
        let Some(member) = self.members.get_mut(&key) else {
            return;
        };
        change(member);
        if *member == Member::default() {
            self.members.remove(&key);
        }
    }
}
