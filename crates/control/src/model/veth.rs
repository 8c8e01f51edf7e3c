//! What a NIC of kind veth is in its container: where, under which name, and what the kernel there
//! is told of it.

use super::nic::{Nic, is_host};
use super::parse::unmapped;
use crate::attach::is_interface_name;
use crate::error::{Error, quota};
use crate::limits;
use ipnet::IpNet;
use std::net::IpAddr;

/// The name of the interface in a container that says none.
pub const IFNAME: &str = "eth0";

/// The container's end of a pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Veth {
    /// The container's network namespace: a name of `ip netns`, an absolute path, or the number of
    /// a process.
    pub netns: String,
    /// The interface's name there.
    pub ifname: String,
    /// Networks that are on the link: an address of the NIC has the length of the smallest of them
    /// that it is in, and else is alone (/32, /128).
    pub subnets: Vec<IpNet>,
    /// The default routers, one of each family at the most.
    pub gateways: Vec<IpAddr>,
    /// Further routes.
    pub routes: Vec<VethRoute>,
}

/// A route in the container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VethRoute {
    /// The destinations.
    pub to: IpNet,
    /// The next hop; `None`: they are on the link.
    pub via: Option<IpAddr>,
}

impl std::fmt::Display for VethRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.via {
            Some(via) => write!(f, "{} via {via}", self.to),
            None => self.to.fmt(f),
        }
    }
}

impl Veth {
    /// An interface `eth0` without routes in that namespace.
    pub fn new(netns: &str) -> Veth {
        Veth {
            netns: netns.to_owned(),
            ifname: IFNAME.to_owned(),
            subnets: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// The addresses of the NIC as the container has them: each with the length of its prefix.
    pub fn addresses(&self, nic: &Nic) -> Vec<(IpAddr, u8)> {
        let prefix = |ip: IpAddr| {
            let around = self.subnets.iter().filter(|net| net.contains(&ip));
            let smallest = around.map(IpNet::prefix_len).max();
            smallest.unwrap_or(if ip.is_ipv4() { 32 } else { 128 })
        };
        nic.host_addresses().map(|ip| (ip, prefix(ip))).collect()
    }

    /// All routes, those of the gateways among them.
    pub fn all_routes(&self) -> Vec<VethRoute> {
        let any = |gateway: &IpAddr| VethRoute {
            to: if gateway.is_ipv4() {
                IpNet::V4(Default::default())
            } else {
                IpNet::V6(Default::default())
            },
            via: Some(*gateway),
        };
        let gateways = self.gateways.iter().map(any);
        self.routes.iter().copied().chain(gateways).collect()
    }

    /// Networks without host bits; fails with what cannot be.
    pub(crate) fn normalised(mut self, owner: &str) -> Result<Veth, Error> {
        let refuse = |field, value: &str, why: &str| Err(Error::value(owner, field, value, why));
        let netns = self.netns.as_str();
        if netns.is_empty() {
            return refuse(
                "netns",
                "",
                "is needed by a veth: a name, a path or a process",
            );
        }
        let is_name = !netns.contains('/') && netns != "." && netns != "..";
        if netns.len() > limits::TRACE_PATH
            || netns.contains('\0')
            || !(is_name || netns.starts_with('/'))
        {
            let why = "is neither a name of `ip netns` nor an absolute path nor a process";
            return refuse("netns", netns, why);
        }
        if self.ifname.is_empty() {
            self.ifname = IFNAME.to_owned();
        }
        if !is_interface_name(&self.ifname) {
            return refuse(
                "ifname",
                &self.ifname,
                "is not the name of a network interface",
            );
        }
        quota(
            owner,
            "subnets",
            self.subnets.len(),
            limits::SUBNETS_PER_NIC,
        )?;
        quota(owner, "routes", self.routes.len(), limits::ROUTES_PER_NIC)?;
        for net in &mut self.subnets {
            *net = net.trunc();
        }
        for (at, gateway) in self.gateways.iter().enumerate() {
            if !is_host(gateway) {
                unmapped(&owner, "gateway", &gateway.to_string(), *gateway)?;
                return refuse(
                    "gateway",
                    &gateway.to_string(),
                    "is not the address of one host",
                );
            }
            let same = |other: &&IpAddr| other.is_ipv4() == gateway.is_ipv4();
            if self.gateways[..at].iter().any(|other| same(&other)) {
                return refuse(
                    "gateway",
                    &gateway.to_string(),
                    "is a second one of its family",
                );
            }
        }
        for route in &mut self.routes {
            route.to = route.to.trunc();
            let Some(via) = route.via else { continue };
            if !is_host(&via) || via.is_ipv4() != matches!(route.to, IpNet::V4(_)) {
                let why = format!("is no next hop of {}", route.to);
                return refuse("route", &via.to_string(), &why);
            }
        }
        Ok(self)
    }
}
