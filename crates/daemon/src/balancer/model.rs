//! What is configured of the balancer: services, their servers, and the check of their health.
//! Valid by construction: [`Service::validate`] has seen everything that is kept, whichever way it
//! came.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use health::Check;

use super::error::{Error, quota};

/// Servers that one service can have.
pub const SERVERS_MAX: usize = 4096;
/// Services there can be: each has 64 KiB of the kernel's memory set aside (balancer::Options).
pub const SERVICES_MAX: usize = 256;
/// Servers of all services together.
pub const ALL_SERVERS_MAX: usize = 4096;

/// The protocols that are balanced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// Its name, lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// What names a service: `192.0.2.1:80/tcp`, `[2001:db8::1]:all/udp`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    pub vip: IpAddr,
    pub protocol: Protocol,
    /// `None`: all ports that no other service of the address has.
    pub port: Option<u16>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vip {
            IpAddr::V4(vip) => write!(f, "{vip}:")?,
            IpAddr::V6(vip) => write!(f, "[{vip}]:")?,
        }
        match self.port {
            Some(port) => write!(f, "{port}")?,
            None => f.write_str("all")?,
        }
        write!(f, "/{}", self.protocol.name())
    }
}

/// How packets reach the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encapsulation {
    L2,
    Ipip,
    Gre,
    /// Foo over UDP, to this port.
    Fou(u16),
    /// Generic UDP encapsulation, to this port.
    Gue(u16),
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encapsulation::L2 => f.write_str("l2"),
            Encapsulation::Ipip => f.write_str("ipip"),
            Encapsulation::Gre => f.write_str("gre"),
            Encapsulation::Fou(port) => write!(f, "fou port {port}"),
            Encapsulation::Gue(port) => write!(f, "gue port {port}"),
        }
    }
}

/// A service and its servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    pub key: Key,
    pub encapsulation: Encapsulation,
    pub sticky: bool,
    pub min_healthy: u32,
    pub check: Option<Check>,
    pub servers: BTreeMap<IpAddr, Server>,
}

/// What is wanted of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerState {
    Up,
    Draining,
    Down,
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerState::Up => "up",
            ServerState::Draining => "draining",
            ServerState::Down => "down",
        })
    }
}

/// A server of a service; its address is its key there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// 1..=65535.
    pub weight: u16,
    pub state: ServerState,
    pub check_port: Option<u16>,
}

/// All services, by key.
pub type Services = BTreeMap<Key, Service>;

impl Service {
    /// Finds what contradicts itself.
    pub fn validate(&self) -> Result<(), Error> {
        let owner = format!("service {}", self.key);
        unicast(self.key.vip).map_err(|why| Error::value(&owner, "vip", self.key.vip, why))?;
        if let Some(check) = &self.check {
            check
                .validate()
                .map_err(|e| Error::value(&owner, format!("check.{}", e.field), e.value, e.why))?;
        }
        quota(&owner, "servers", self.servers.len(), SERVERS_MAX)?;
        for (address, server) in &self.servers {
            let refuse = |why: &str| Error::value(&owner, "server", address, why);
            unicast(*address).map_err(refuse)?;
            if *address == self.key.vip {
                return Err(refuse("is the service's own address"));
            }
            if self.check.is_some() && self.check_port(server).is_none() {
                return Err(refuse(
                    "has no port to be checked at: the service has all ports, and neither the check nor the server names one",
                ));
            }
        }
        Ok(())
    }

    /// Where a server's health is asked for.
    pub fn check_port(&self, server: &Server) -> Option<u16> {
        let check = self.check.as_ref();
        server
            .check_port
            .or(check.and_then(|check| check.port))
            .or(self.key.port)
    }
}

/// Refuses what is too much in all, beside what each service says of itself.
pub fn validate(services: &Services) -> Result<(), Error> {
    quota("the balancer", "services", services.len(), SERVICES_MAX)?;
    let servers = services.values().map(|service| service.servers.len()).sum();
    quota("the balancer", "servers", servers, ALL_SERVERS_MAX)
}

/// Addresses that packets can be sent to from far away.
fn unicast(address: IpAddr) -> Result<(), &'static str> {
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() {
        Err("is the unspecified address")
    } else if address.is_loopback() {
        Err("is a loopback address")
    } else if address.is_multicast() || broadcast {
        Err("is no unicast address")
    } else if mapped {
        Err("is an IPv4 address written as IPv6")
    } else {
        Ok(())
    }
}
