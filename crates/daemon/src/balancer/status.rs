//! Services and servers as they stand: what is configured, known and counted, in one message.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1;
use control::model::{Feature, Server, Service};
use control::{Controller, Error, InterfaceStatus, Target};

use super::engine::Engine;
use super::plane::{Counters, ServerHop, Stats};
use super::render;
use crate::v1::interface::mode_of;

/// What the data plane knows, read before the controller is locked.
pub struct Facts {
    stats: Stats,
    next_hops: BTreeMap<Target, ServerHop>,
}

impl Facts {
    pub fn of(engine: &Engine) -> Result<Facts, Error> {
        Ok(Facts {
            stats: engine.stats().map_err(unavailable)?,
            next_hops: engine.next_hops(),
        })
    }

    /// Packets that were dropped, by reason.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let drops = self.stats.drops.iter();
        drops.map(|(reason, _, packets)| (*reason, *packets))
    }
}

/// The data plane cannot be asked; why.
pub fn unavailable(why: String) -> Error {
    let feature = Feature::Balancer;
    Error::Feature { feature, why }
}

pub fn service(control: &Controller, service: &Service, facts: &Facts) -> v1::ServiceStatus {
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
    service: &Service,
    (address, server): (IpAddr, &Server),
    facts: &Facts,
    now: Duration,
) -> v1::ServerStatus {
    let target = (service.key, address);
    let state = control.server_state(&service.key, address);
    let (interface, mac, unreachable) = match facts.next_hops.get(&target) {
        Some(ServerHop::Known { interface, mac }) => {
            (interface.clone(), mac.clone(), String::new())
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

pub fn drop(
    &(reason, description, packets): &(&'static str, &'static str, u64),
) -> v1::BalancerDrop {
    v1::BalancerDrop {
        reason: reason.into(),
        description: description.into(),
        packets,
    }
}

pub fn interface(interface: InterfaceStatus) -> v1::BalancerInterface {
    v1::BalancerInterface {
        name: interface.name,
        mode: mode_of(interface.mode).into(),
    }
}
