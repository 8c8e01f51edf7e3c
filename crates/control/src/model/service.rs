//! What is declared of the load balancer: services, their servers, and the check of their health.
//! Valid by construction: [`DeclaredService::validate`] has seen everything that is kept, whichever
//! way it came. What the balancer gets of it is a [`::model::Service`] (`crate::services` compiles
//! it): without checks, and with the state of each server that they came to.

use crate::error::{Error, quota};
use crate::limits;
use ::model::{Protocol, ServiceKey, State, Tunnel, Weight};
use health::Check;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

/// A service and its servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredService {
    /// What it is known by.
    pub key: ServiceKey,
    /// How packets reach the servers.
    pub tunnel: Tunnel,
    /// All flows of a client go to one server, chosen by the client's address alone.
    pub sticky: bool,
    /// Healthy servers that it takes to be in service.
    pub min_healthy: u32,
    /// How the servers' health is asked for; `None`: all are taken for healthy.
    pub check: Option<Check>,
    /// Its servers by address.
    pub servers: BTreeMap<IpAddr, DeclaredServer>,
}

/// A server of a service; its address is its key there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclaredServer {
    /// Its share.
    pub weight: Weight,
    /// What is wanted of it.
    pub state: State,
    /// Where it is checked; `None`: where the check or the service says.
    pub check_port: Option<u16>,
}

/// All services, by key.
pub type DeclaredServices = BTreeMap<ServiceKey, Arc<DeclaredService>>;

/// The key of a service: an address that packets can be sent to from far away, a protocol, and a
/// port or all ports that no other service of the address has.
pub fn service_key(
    vip: IpAddr,
    protocol: Protocol,
    port: Option<NonZeroU16>,
) -> Result<ServiceKey, Error> {
    let refused = |why: &str| {
        let port = port.map_or("all".to_owned(), |port| port.to_string());
        let owner = match vip {
            IpAddr::V4(vip) => format!("service {vip}:{port}/{protocol}"),
            IpAddr::V6(vip) => format!("service [{vip}]:{port}/{protocol}"),
        };
        Error::value(&owner, "vip", &vip.to_string(), why)
    };
    unicast(vip).map_err(refused)?;
    ServiceKey::new(vip, protocol, port).map_err(|e| refused(&e.to_string()))
}

impl DeclaredService {
    /// The service in error messages.
    pub fn owner(&self) -> String {
        format!("service {:#}", self.key)
    }

    /// Finds what contradicts itself.
    pub fn validate(&self) -> Result<(), Error> {
        let owner = self.owner();
        if let Some(check) = &self.check {
            check.validate().map_err(|e| Error::check(&owner, e))?;
        }
        quota(
            &owner,
            "servers",
            self.servers.len(),
            limits::SERVERS_PER_SERVICE,
        )?;
        for (address, server) in &self.servers {
            let refuse = |why: &str| Error::value(&owner, "server", &address.to_string(), why);
            unicast(*address).map_err(refuse)?;
            if *address == self.key.vip() {
                return Err(refuse("is the service's own address"));
            }
            if self.check.is_some() && self.check_port(server).is_none() {
                return Err(refuse(
                    "has no port to be checked at: the service has all ports, and neither the \
                     check nor the server names one",
                ));
            }
        }
        Ok(())
    }

    /// Where a server's health is asked for.
    pub fn check_port(&self, server: &DeclaredServer) -> Option<u16> {
        let check = self.check.as_ref();
        server
            .check_port
            .or(check.and_then(|check| check.port))
            .or(self.key.port().map(NonZeroU16::get))
    }
}

/// Refuses what is too much in all, beside what each service says of itself.
pub(crate) fn validate(services: &DeclaredServices) -> Result<(), Error> {
    quota("the balancer", "services", services.len(), limits::SERVICES)?;
    let servers = services.values().map(|service| service.servers.len()).sum();
    quota("the balancer", "servers", servers, limits::SERVERS)
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
