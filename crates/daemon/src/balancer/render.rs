//! The model as messages of the API; defaults are filled in.

use api::v1;
use api::v1::health_check::Kind as ProtoKind;
use control::ServiceChange;
use control::model::{
    DeclaredServer, DeclaredService, DeclaredServices, Interface, ServiceKey, State, Tunnel,
};
use health::{Check, Health, Kind};
use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::v1::interface::mode_of;
use crate::v1::render::field;

pub fn key(key: &ServiceKey) -> v1::ServiceKey {
    v1::ServiceKey {
        vip: key.vip().to_string(),
        protocol: key.protocol().number().into(),
        port: key.port().map_or(0, NonZeroU16::get).into(),
        all_ports: key.port().is_none(),
    }
}

/// All that is declared of the balancer; of interfaces the mode that was asked for.
pub fn config(services: &DeclaredServices, interfaces: &[Interface]) -> v1::BalancerConfig {
    let interface = |one: &Interface| v1::BalancerInterface {
        name: one.name.clone(),
        mode: mode_of(one.mode).into(),
        detail: String::new(),
    };
    v1::BalancerConfig {
        services: services.values().map(|one| service(one)).collect(),
        interfaces: Some(v1::BalancerInterfaces {
            interfaces: interfaces.iter().map(interface).collect(),
        }),
    }
}

/// A change of a service.
pub fn change(change: &ServiceChange) -> v1::ServiceChange {
    use v1::service_change::Action;
    let action = match (&change.from, &change.to) {
        (None, _) => Action::Create,
        (_, None) => Action::Delete,
        _ => Action::Update,
    };
    v1::ServiceChange {
        action: action.into(),
        key: Some(key(&change.key)),
        details: change.fields().iter().map(field).collect(),
    }
}

pub fn service(service: &DeclaredService) -> v1::Service {
    let (encapsulation, tunnel_port) = encapsulation(service.tunnel);
    let servers = service.servers.iter();
    v1::Service {
        key: Some(key(&service.key)),
        encapsulation: encapsulation.into(),
        tunnel_port: tunnel_port.into(),
        sticky: service.sticky,
        min_healthy: Some(service.min_healthy),
        check: service.check.as_ref().map(check),
        servers: servers
            .map(|(address, server)| self::server(*address, server))
            .collect(),
    }
}

/// The encapsulation, and its UDP port or 0.
pub fn encapsulation(tunnel: Tunnel) -> (v1::Encapsulation, u16) {
    match tunnel {
        Tunnel::None => (v1::Encapsulation::L2, 0),
        Tunnel::Ipip => (v1::Encapsulation::Ipip, 0),
        Tunnel::Gre => (v1::Encapsulation::Gre, 0),
        Tunnel::Fou { port } => (v1::Encapsulation::Fou, port.get()),
        Tunnel::Gue { port } => (v1::Encapsulation::Gue, port.get()),
    }
}

pub fn server(address: IpAddr, server: &DeclaredServer) -> v1::Server {
    let state = match server.state {
        State::Up => v1::ServerState::Up,
        State::Draining => v1::ServerState::Draining,
        State::Down => v1::ServerState::Down,
    };
    v1::Server {
        address: address.to_string(),
        weight: Some(server.weight.get().into()),
        state: state.into(),
        check_port: server.check_port.unwrap_or_default().into(),
    }
}

pub fn health(health: Health) -> v1::Health {
    match health {
        Health::Unknown => v1::Health::Unknown,
        Health::Healthy => v1::Health::Healthy,
        Health::Unhealthy => v1::Health::Unhealthy,
    }
}

fn check(check: &Check) -> v1::HealthCheck {
    let ms = |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    v1::HealthCheck {
        interval_ms: ms(check.policy.interval),
        timeout_ms: ms(check.policy.timeout),
        rise: check.policy.rise,
        fall: check.policy.fall,
        port: check.port.unwrap_or_default().into(),
        kind: Some(kind(&check.kind)),
    }
}

fn kind(kind: &Kind) -> ProtoKind {
    match kind {
        Kind::Tcp => ProtoKind::Tcp(v1::TcpCheck {}),
        Kind::Http(http) => ProtoKind::Http(v1::HttpCheck {
            tls: http.tls,
            method: if http.head { "HEAD" } else { "GET" }.into(),
            path: http.path.clone(),
            host: http.host.clone().unwrap_or_default(),
            statuses: http
                .statuses
                .iter()
                .map(|status| u32::from(*status))
                .collect(),
        }),
        Kind::Dns(dns) => ProtoKind::Dns(v1::DnsCheck {
            tcp: dns.tcp,
            name: dns.name.clone(),
            r#type: dns.record.clone(),
        }),
        Kind::Command(command) => ProtoKind::Command(v1::CommandCheck {
            words: command.0.clone(),
        }),
    }
}
