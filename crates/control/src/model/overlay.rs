//! Who is where: the other hosts, what is behind them, and how a virtual network reaches them.
//!
//! A *host* is another machine with virtual networks, named by its underlay address. A *binding*
//! says that a MAC of a VNI, with its addresses, is behind a host. A VNI's hosts are those declared
//! for it, those declared for every VNI, and those its bindings name. What is not said of a VNI has
//! a default that depends on them, see [`NetworkOptions`].

use crate::error::{Error, quota};
use crate::limits;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use wire::{Mac, Vni};

/// Another host, by its address in the underlay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Where its VXLAN comes from and goes to: the address of one host, IPv4 or IPv6. Its key.
    pub address: IpAddr,
    /// For people. May be empty.
    pub name: String,
    /// The VNIs that it takes part in, beside those that bindings put it into.
    pub vnis: Membership,
}

/// Which VNIs a host is declared for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Each that there is.
    Every,
    /// These. None is a host that only bindings speak of.
    Listed(BTreeSet<Vni>),
}

impl Default for Membership {
    fn default() -> Self {
        Membership::Listed(BTreeSet::new())
    }
}

/// Replaces the given values of a host and keeps the others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostUpdate {
    /// Another name.
    pub name: Option<String>,
    /// Whether it takes part in every VNI. `false` leaves those listed by `join`.
    pub every_vni: Option<bool>,
    /// VNIs to take part in no more.
    pub leave: Vec<Vni>,
    /// VNIs to take part in beside the others.
    pub join: Vec<Vni>,
}

impl HostUpdate {
    /// It takes a host out of VNIs and says nothing else: no reason to make one.
    pub(crate) fn only_leaves(&self) -> bool {
        let HostUpdate {
            name,
            every_vni,
            leave,
            join,
        } = self;
        let says_more = name.is_some() || *every_vni == Some(true) || !join.is_empty();
        !leave.is_empty() && !says_more
    }
}

impl Host {
    /// A host that only bindings speak of.
    pub fn new(address: IpAddr) -> Host {
        Host {
            address,
            name: String::new(),
            vnis: Membership::default(),
        }
    }

    /// How many VNIs it is declared for one by one.
    pub fn listed(&self) -> usize {
        match &self.vnis {
            Membership::Every => 0,
            Membership::Listed(vnis) => vnis.len(),
        }
    }

    /// True when it is declared for the VNI.
    pub fn is_in(&self, vni: Vni) -> bool {
        match &self.vnis {
            Membership::Every => true,
            Membership::Listed(vnis) => vnis.contains(&vni),
        }
    }

    /// This host with the given values replaced. Who is in every VNI is not taken out of one.
    pub fn updated(&self, update: HostUpdate) -> Result<Host, Error> {
        let mut new = self.clone();
        if let Some(name) = update.name {
            new.name = name;
        }
        match update.every_vni {
            Some(true) => new.vnis = Membership::Every,
            Some(false) if new.vnis == Membership::Every => new.vnis = Membership::default(),
            _ => (),
        }
        match &mut new.vnis {
            Membership::Listed(vnis) => {
                vnis.retain(|vni| !update.leave.contains(vni));
                vnis.extend(update.join);
            }
            Membership::Every => {
                if let Some(vni) = update.leave.first() {
                    let why = "cannot be left by a host that is in every VNI";
                    return Err(Error::value(&new.owner(), "VNI", &vni.to_string(), why));
                }
            }
        }
        Ok(new)
    }

    /// How messages name it.
    pub(crate) fn owner(&self) -> String {
        format!("host '{}'", self.address)
    }

    /// Fails with what can be seen to be wrong without looking at others.
    pub(crate) fn checked(self) -> Result<Host, Error> {
        check_host(&self.owner(), self.address)?;
        quota(
            format!("the name of {}", self.owner()),
            "bytes",
            self.name.len(),
            limits::HOST_NAME,
        )?;
        if let Some(bad) = self.name.chars().find(|c| c.is_control()) {
            let why = format!("has the control character {bad:?}");
            return Err(Error::value(&self.owner(), "name", &self.name, &why));
        }
        Ok(self)
    }
}

/// Refuses what cannot be the address of another host that a packet is routed to.
fn check_host(owner: &str, address: IpAddr) -> Result<(), Error> {
    let link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let why =
        if address.is_unspecified() || address.is_multicast() || address == Ipv4Addr::BROADCAST {
            "is not the address of one host"
        } else if address.is_loopback() {
            "is this host itself"
        } else if link_local {
            "is link-local: it says nothing without an interface, use a routed address"
        } else {
            return Ok(());
        };
    Err(Error::value(&owner, "address", &address.to_string(), why))
}

/// A MAC of a VNI is behind a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The virtual network.
    pub vni: Vni,
    /// The machine's MAC. Together with the VNI its key. A NIC of this host with that MAC wins over
    /// the binding.
    pub mac: Mac,
    /// The machine's addresses, sorted, each once: ARP and ND for them are answered here. One that
    /// several bindings of a VNI have is not answered for.
    pub ips: Arc<[IpAddr]>,
    /// The host it is on. Declared by this when it is not yet.
    pub host: IpAddr,
}

/// Names a binding.
pub type BindingKey = (Vni, Mac);

impl Binding {
    /// A binding without addresses.
    pub fn new(vni: Vni, mac: Mac, host: IpAddr) -> Binding {
        Binding {
            vni,
            mac,
            ips: Arc::default(),
            host,
        }
    }

    /// The key that names it.
    pub fn key(&self) -> BindingKey {
        (self.vni, self.mac)
    }

    fn owner(&self) -> String {
        format!("binding of {} in VNI {}", self.mac, self.vni)
    }

    /// Addresses sorted, repeated ones dropped; fails with what can be seen to be wrong without
    /// looking at others.
    pub(crate) fn normalised(mut self) -> Result<Binding, Error> {
        if !self.ips.is_sorted_by(|a, b| a < b) {
            let sorted: BTreeSet<IpAddr> = self.ips.iter().copied().collect();
            self.ips = sorted.into_iter().collect();
        }
        quota(self.owner(), "IPs", self.ips.len(), limits::IPS_PER_NIC)?;
        if self.mac.is_multicast() || self.mac == Mac([0; 6]) {
            let why = "is not the address of one machine";
            return Err(Error::value(
                &self.owner(),
                "MAC",
                &self.mac.to_string(),
                why,
            ));
        }
        for ip in self.ips.iter() {
            if ip.is_unspecified() || ip.is_multicast() || *ip == Ipv4Addr::BROADCAST {
                let why = "is not the address of one host";
                return Err(Error::value(&self.owner(), "IP", &ip.to_string(), why));
            }
        }
        check_host(&self.owner(), self.host)?;
        Ok(self)
    }
}

/// What is said of a virtual network. What is `None` follows from who is known of it:
///
/// | the VNI has | `learning` | `flood` | VXLAN is taken from |
/// |---|---|---|---|
/// | neither host nor binding, and nothing is declared of any VNI | on | multicast to its group, as the original | anybody |
/// | neither, and something is | on | head-end replication: to nobody | nobody |
/// | hosts | on | head-end replication to them | its hosts |
/// | bindings | off | head-end replication to its hosts | its hosts |
///
/// Something is declared of a VNI by a host, of whichever VNI, or by options that say anything. Who
/// takes VXLAN from anybody floods to its group if it has no host. While nothing is declared at
/// all, DHCP servers and routers of all hosts are trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkOptions {
    /// The virtual network: its key.
    pub vni: Vni,
    /// Whether MACs are learnt from where their frames come from. Off, frames to a MAC that neither
    /// a NIC here nor a binding has are dropped; on, they are flooded.
    pub learning: Option<bool>,
    /// Where broadcast, multicast and unknown unicast frames go.
    pub flood: Option<Flood>,
    /// Whether VXLAN is taken from whoever sends it, and not from the VNI's hosts alone.
    pub from_anybody: Option<bool>,
    /// The hosts on which a machine may answer as a DHCP or DHCPv6 server, sorted, each once. They
    /// need not be declared.
    pub dhcp_servers: Arc<[IpAddr]>,
    /// The hosts on which a machine may send router advertisements and redirects, likewise.
    pub routers: Arc<[IpAddr]>,
}

/// How frames reach all hosts of a virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flood {
    /// A copy to each of its hosts.
    HeadEnd,
    /// One copy to an IP multicast group; `None`: the one that the VNI makes, [`multicast_group`].
    Multicast(Option<IpAddr>),
    /// They stay on this host.
    Off,
}

impl NetworkOptions {
    /// Options that leave everything to its default.
    pub fn new(vni: Vni) -> NetworkOptions {
        NetworkOptions {
            vni,
            learning: None,
            flood: None,
            from_anybody: None,
            dhcp_servers: Arc::default(),
            routers: Arc::default(),
        }
    }

    /// True when nothing is said: as if there were none.
    pub fn is_default(&self) -> bool {
        *self == NetworkOptions::new(self.vni)
    }

    /// Lists sorted, repeated hosts dropped; fails when the multicast group is none or a host
    /// cannot be one.
    pub(crate) fn normalised(mut self) -> Result<NetworkOptions, Error> {
        let owner = format!("VNI {}", self.vni);
        for (what, hosts) in [
            ("DHCP servers' hosts", &mut self.dhcp_servers),
            ("routers' hosts", &mut self.routers),
        ] {
            let sorted: BTreeSet<IpAddr> = hosts.iter().copied().collect();
            quota(owner.clone(), what, sorted.len(), limits::TRUSTED_HOSTS)?;
            sorted
                .iter()
                .try_for_each(|host| check_host(&owner, *host))?;
            *hosts = sorted.into_iter().collect();
        }
        match self.flood {
            Some(Flood::Multicast(Some(group))) if !group.is_multicast() => {
                let why = "is not an IP multicast group (224.0.0.0/4, ff00::/8)";
                Err(Error::value(
                    &owner,
                    "multicast group",
                    &group.to_string(),
                    why,
                ))
            }
            Some(Flood::Multicast(Some(group))) if is_of_one_link(group) => {
                let why = "is of one link, where routers and hosts speak to each other \
                           (224.0.0.0/24, ff01::/16, ff02::/16)";
                let group = group.to_string();
                Err(Error::value(&owner, "multicast group", &group, why))
            }
            _ => Ok(self),
        }
    }
}

/// Groups that no router forwards to (RFC 5771, section 4; RFC 4291, section 2.7).
fn is_of_one_link(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => matches!(group.segments()[0] & 0xff0f, 0xff01 | 0xff02),
    }
}

/// The group that the original Butterfly sends a VNI's broadcasts to: 230.x.y.z with the VNI in
/// network order, and in IPv6 `ff00::<vni>`. The latter has the reserved scope 0, which kernels
/// take for nothing (RFC 4291, section 2.7): where another implementation or a switch is to hear of
/// it, name a group of a wider scope.
pub fn multicast_group(vni: Vni, ipv6: bool) -> IpAddr {
    let [_, a, b, c] = vni.id().to_be_bytes();
    match ipv6 {
        false => Ipv4Addr::new(230, a, b, c).into(),
        true => Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, a.into(), u16::from_be_bytes([b, c])).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vni(id: u32) -> Vni {
        Vni::new(id).unwrap()
    }

    #[test]
    fn a_vni_has_its_group() {
        let text = |ipv6| multicast_group(vni(0x0a0b0c), ipv6).to_string();
        assert_eq!(
            (text(false).as_str(), text(true).as_str()),
            ("230.10.11.12", "ff00::a:b0c")
        );
    }

    #[test]
    fn a_network_floods_to_no_protocol_of_the_link() {
        let flooding = |group: &str| NetworkOptions {
            flood: Some(Flood::Multicast(Some(group.parse().unwrap()))),
            ..NetworkOptions::new(vni(42))
        };
        for group in ["224.0.0.5", "224.0.0.255", "ff02::5", "ff12::1", "ff01::1"] {
            let error = flooding(group).normalised().unwrap_err().to_string();
            assert!(
                error.contains(group) && error.contains("one link"),
                "{error}"
            );
        }
        for group in [
            "224.0.1.0",
            "230.0.0.42",
            "239.1.1.1",
            "ff00::2a",
            "ff05::1",
        ] {
            flooding(group).normalised().unwrap();
        }
    }

    #[test]
    fn what_is_no_host_is_no_host() {
        for (address, why) in [
            ("0.0.0.0", "not the address of one host"),
            ("230.0.0.1", "not the address of one host"),
            ("255.255.255.255", "not the address of one host"),
            ("ff02::1", "not the address of one host"),
            ("127.0.0.1", "this host itself"),
            ("::1", "this host itself"),
            ("fe80::1", "link-local"),
        ] {
            let error = Host::new(address.parse().unwrap())
                .checked()
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("host '{address}': address '{address}' is "))
                    && error.contains(why),
                "{error}"
            );
        }
        assert!(Host::new("fd00::1".parse().unwrap()).checked().is_ok());
    }

    #[test]
    fn a_host_joins_and_leaves() {
        let mut host = Host::new([10, 0, 0, 2].into());
        let update = |join: &[u32], leave: &[u32]| HostUpdate {
            join: join.iter().map(|id| vni(*id)).collect(),
            leave: leave.iter().map(|id| vni(*id)).collect(),
            ..HostUpdate::default()
        };
        host = host.updated(update(&[42, 43], &[])).unwrap();
        host = host.updated(update(&[44], &[42])).unwrap();
        assert_eq!(host.vnis, Membership::Listed([vni(43), vni(44)].into()));
        assert!(host.is_in(vni(43)) && !host.is_in(vni(42)));
        let every = HostUpdate {
            every_vni: Some(true),
            ..HostUpdate::default()
        };
        host = host.updated(every).unwrap();
        assert!(host.is_in(vni(1)) && host.listed() == 0);
        let error = host.updated(update(&[], &[42])).unwrap_err().to_string();
        assert_eq!(
            error,
            "host '10.0.0.2': VNI '42' cannot be left by a host that is in every VNI"
        );
    }

    #[test]
    fn a_binding_s_addresses_are_sorted() {
        let mut binding = Binding::new(vni(1), Mac([2, 0, 0, 0, 0, 1]), [10, 0, 0, 2].into());
        let ips: [IpAddr; 3] = [
            [42, 0, 0, 9].into(),
            [42, 0, 0, 1].into(),
            [42, 0, 0, 9].into(),
        ];
        binding.ips = ips.into();
        assert_eq!(*binding.clone().normalised().unwrap().ips, [ips[1], ips[0]]);
        binding.mac = Mac::BROADCAST;
        assert_eq!(
            binding.normalised().unwrap_err().to_string(),
            "binding of ff:ff:ff:ff:ff:ff in VNI 1: MAC 'ff:ff:ff:ff:ff:ff' is not the address of \
             one machine"
        );
    }
}
