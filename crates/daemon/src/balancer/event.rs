//! What happened to the balancer, for whoever watches, and in the log. Numbered without gaps; a subscriber that is more
//! than [`EVENTS`] behind is told how many it missed.

use std::net::IpAddr;

use health::Health;
use tokio::sync::broadcast;

use super::model::Key;

/// Events kept for a slow watcher.
const EVENTS: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// 1 for the first since the daemon started, then one more each.
    pub sequence: u64,
    pub kind: EventKind,
}

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

/// Numbers events, logs and sends them.
pub struct Events {
    sequence: u64,
    sender: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            sequence: 0,
            sender: broadcast::Sender::new(EVENTS),
        }
    }
}

impl Events {
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    pub fn send(&mut self, kind: EventKind) {
        log(&kind);
        self.sequence += 1;
        let sequence = self.sequence;
        // An error only says that nobody listens.
        let _ = self.sender.send(Event { sequence, kind });
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
            key, server, detail, ..
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
        } => tracing::warn!("service {key} is withdrawn: {healthy} of {min_healthy} healthy servers"),
        EventKind::Address { vip, announced: true } => tracing::info!("address {vip} is announced"),
        EventKind::Address { vip, .. } => tracing::info!("address {vip} is withdrawn"),
    }
}
