//! The model as messages of the API; defaults are filled in.

use api::v1;
use api::v1::health_check::Kind as ProtoKind;
use health::{Check, Health, Kind};
use std::net::IpAddr;

use super::model::{Encapsulation, Key, Server, ServerState, Service, Services};

pub fn key(key: &Key) -> v1::ServiceKey {
    v1::ServiceKey {
        vip: key.vip.to_string(),
        protocol: key.protocol.number().into(),
        port: key.port.unwrap_or_default().into(),
        all_ports: key.port.is_none(),
    }
}

pub fn config(services: &Services) -> v1::BalancerConfig {
    v1::BalancerConfig {
        services: services.values().map(service).collect(),
    }
}

pub fn service(service: &Service) -> v1::Service {
    let (encapsulation, tunnel_port) = encapsulation(service.encapsulation);
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
pub fn encapsulation(encapsulation: Encapsulation) -> (v1::Encapsulation, u16) {
    match encapsulation {
        Encapsulation::L2 => (v1::Encapsulation::L2, 0),
        Encapsulation::Ipip => (v1::Encapsulation::Ipip, 0),
        Encapsulation::Gre => (v1::Encapsulation::Gre, 0),
        Encapsulation::Fou(port) => (v1::Encapsulation::Fou, port),
        Encapsulation::Gue(port) => (v1::Encapsulation::Gue, port),
    }
}

pub fn server(address: IpAddr, server: &Server) -> v1::Server {
    let state = match server.state {
        ServerState::Up => v1::ServerState::Up,
        ServerState::Draining => v1::ServerState::Draining,
        ServerState::Down => v1::ServerState::Down,
    };
    v1::Server {
        address: address.to_string(),
        weight: Some(server.weight.into()),
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
