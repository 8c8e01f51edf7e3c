//! Services and servers as they stand: what is configured, known and counted, in one message.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1;

use super::control::Control;
use super::error::Error;
use super::model::{Server, Service};
use super::plane::{Counters, Interface, ServerHop, Stats};
use super::registry::{Registry, Target};
use super::render;
use crate::v1::interface::mode_of;

/// What the data plane knows, read before the registry is locked.
pub struct Facts {
    stats: Stats,
    next_hops: BTreeMap<Target, ServerHop>,
}

impl Facts {
    pub fn of(control: &Control) -> Result<Facts, Error> {
        Ok(Facts {
            stats: control.plane().stats().map_err(Error::Unavailable)?,
            next_hops: control.plane().next_hops(),
        })
    }
}

pub fn service(
    registry: &Registry,
    service: &Service,
    facts: &Facts,
    now: Duration,
) -> v1::ServiceStatus {
    let standing = registry.standing(service);
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
            .map(|(address, server)| {
                self::server(registry, service, (*address, server), facts, now)
            })
            .collect(),
        counters: Some(counters(total)),
    }
}

fn server(
    registry: &Registry,
    service: &Service,
    (address, server): (IpAddr, &Server),
    facts: &Facts,
    now: Duration,
) -> v1::ServerStatus {
    let target = (service.key, address);
    let state = registry.state(&service.key, address);
    let (interface, mac, unreachable) = match facts.next_hops.get(&target) {
        Some(ServerHop::Known { interface, mac }) => {
            (interface.clone(), mac.clone(), String::new())
        }
        Some(ServerHop::Unknown(why)) => (String::new(), String::new(), why.clone()),
        None => Default::default(),
    };
    v1::ServerStatus {
        server: Some(render::server(address, server)),
        health: render::health(registry.health(service, address)).into(),
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

pub fn drop(
    &(reason, description, packets): &(&'static str, &'static str, u64),
) -> v1::BalancerDrop {
    v1::BalancerDrop {
        reason: reason.into(),
        description: description.into(),
        packets,
    }
}

pub fn interface(interface: Interface) -> v1::BalancerInterface {
    v1::BalancerInterface {
        name: interface.name,
        mode: mode_of(interface.mode).into(),
    }
}
