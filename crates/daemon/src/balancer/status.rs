//! Services and servers as they stand: what is configured, known and counted, in one message.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use api::v1;
use balancer::Reason;
use control::model::{DeclaredServer, DeclaredService, Feature};
use control::{Controller, Error, InterfaceStatus, Target};

use super::engine::{Engine, loss};
use super::plane::{Counters, ServerHop, Stats};
use super::render;
use crate::v1::interface::mode_of;

/// What the data plane knows, read before the controller is locked.
pub struct Facts {
    stats: Stats,
    next_hops: BTreeMap<Target, ServerHop>,
    /// Whether they lose what is sent out of them, by name.
    losing: BTreeMap<String, bool>,
}

impl Facts {
    pub fn of(engine: &Engine) -> Result<Facts, Error> {
        let balanced = engine.interfaces().into_iter();
        let mut losing: BTreeMap<String, bool> = balanced.map(|one| (one.name, false)).collect();
        losing.extend(engine.losing().into_iter().map(|name| (name, true)));
        Ok(Facts {
            losing,
            stats: engine.stats().map_err(unavailable)?,
            next_hops: engine.next_hops(),
        })
    }

    /// Interfaces that are balanced on, and whether they, or others on the way to servers, lose
    /// what is sent out of them.
    pub fn losing(&self) -> &BTreeMap<String, bool> {
        &self.losing
    }

    /// Packets that did not just go to a server, by why.
    pub fn reasons(&self) -> &[(Reason, u64)] {
        &self.stats.reasons
    }
}

/// The data plane cannot be asked; why.
pub fn unavailable(why: String) -> Error {
    let feature = Feature::Balancer;
    Error::Feature { feature, why }
}

pub fn service(
    control: &Controller,
    service: &DeclaredService,
    facts: &Facts,
) -> v1::ServiceStatus {
    let standing = control.standing(service);
    let now = control.now();
    let mut total = Counters::default();
    for address in service.servers.keys() {
        total += facts.stats.server(&(service.key, *address));
    }
    let servers = service.servers.iter();
    v1::ServiceStatus {
        service: Some(render::service(service)),
        in_service: standing.in_service,
        announced: standing.announced,
        healthy: standing.healthy as u32,
        servers: servers
            .map(|(address, server)| self::server(control, service, (*address, server), facts, now))
            .collect(),
        counters: Some(counters(total)),
    }
}

fn server(
    control: &Controller,
    service: &DeclaredService,
    (address, server): (IpAddr, &DeclaredServer),
    facts: &Facts,
    now: Duration,
) -> v1::ServerStatus {
    let target = (service.key, address);
    let state = control.server_state(&service.key, address);
    let (interface, mac, unreachable) = match facts.next_hops.get(&target) {
        Some(ServerHop::Known {
            interface,
            mac,
            loss,
        }) => {
            let loss = loss.clone().unwrap_or_default();
            (interface.clone(), mac.clone(), loss)
        }
        Some(ServerHop::Unknown(why)) => (String::new(), String::new(), why.clone()),
        None => Default::default(),
    };
    v1::ServerStatus {
        server: Some(render::server(address, server)),
        health: render::health(control.server_health(service, address)).into(),
        detail: state.map_or(String::new(), |state| state.detail.clone()),
        since_ms: state.map_or(0, |state| {
            now.saturating_sub(state.since).as_millis() as u64
        }),
        check_us: state.map_or(0, |state| state.took.as_micros() as u64),
        interface,
        mac,
        unreachable,
        counters: Some(counters(facts.stats.server(&target))),
    }
}

pub fn counters(counters: Counters) -> v1::Counters {
    v1::Counters {
        packets: counters.packets,
        bytes: counters.bytes,
        flows: counters.flows,
    }
}

pub fn drop(&(reason, packets): &(Reason, u64)) -> v1::BalancerDrop {
    v1::BalancerDrop {
        reason: reason.name().into(),
        description: reason.description().into(),
        packets,
    }
}

/// An interface as it is, where these lose frames.
pub fn interface(interface: InterfaceStatus, losing: &BTreeSet<String>) -> v1::BalancerInterface {
    let loses = losing.contains(&interface.name);
    v1::BalancerInterface {
        detail: match interface.why.is_empty() && loses {
            true => loss(&interface.name),
            false => interface.why,
        },
        name: interface.name,
        mode: mode_of(interface.mode).into(),
    }
}
