//! What happened to the balancer, for whoever watches, and in the log.

use std::net::IpAddr;

use health::Health;

use super::model::Key;
use crate::events;

pub type Event = events::Event<EventKind>;
pub type Events = events::Events<EventKind>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A service is there, or has other values or servers.
    Changed(Key),
    Deleted(Key),
    /// A server's health has turned; why, when it is not well.
    Health {
        key: Key,
        server: IpAddr,
        health: Health,
        detail: String,
    },
    /// A service has its minimum of healthy servers, or has not any more.
    InService {
        key: Key,
        in_service: bool,
        healthy: usize,
        min_healthy: u32,
    },
    /// An address is to be announced or withdrawn.
    Address {
        vip: IpAddr,
        announced: bool,
    },
}

impl events::Kind for EventKind {
    fn log(&self) {
        log(self);
    }
}

fn log(kind: &EventKind) {
    match kind {
        EventKind::Changed(key) => tracing::info!("service {key} is configured"),
        EventKind::Deleted(key) => tracing::info!("service {key} is deleted"),
        EventKind::Health {
            key,
            server,
            health: Health::Healthy,
            ..
        } => tracing::info!("service {key}: server {server} is healthy"),
        EventKind::Health {
            key,
            server,
            detail,
            ..
        } => tracing::warn!("service {key}: server {server} is not healthy: {detail}"),
        EventKind::InService {
            key,
            in_service: true,
            healthy,
            ..
        } => tracing::info!("service {key} is in service, healthy servers: {healthy}"),
        EventKind::InService {
            key,
            healthy,
            min_healthy,
            ..
        } => {
            tracing::warn!("service {key} is withdrawn: {healthy} of {min_healthy} healthy servers")
        }
        EventKind::Address {
            vip,
            announced: true,
        } => tracing::info!("address {vip} is announced"),
        EventKind::Address { vip, .. } => tracing::info!("address {vip} is withdrawn"),
    }
}
