//! The daemon's model in the words of crates/balancer, and back.

use std::num::NonZeroU16;

use balancer::{ServiceKey, State, Tunnel, Weight};

use crate::balancer::model::{Encapsulation, Key, Protocol, ServerState};
use crate::balancer::registry::Compiled;

pub(super) fn service(compiled: &Compiled) -> Result<balancer::Service, balancer::Error> {
    let mut service = balancer::Service::new(library_key(&compiled.key)?).sticky(compiled.sticky);
    let tunnel = tunnel(compiled.encapsulation);
    for (address, weight, state) in &compiled.servers {
        let state = match state {
            ServerState::Up => State::Up,
            ServerState::Draining => State::Draining,
            ServerState::Down => State::Down,
        };
        let server = balancer::Server::new(*address)?
            .weight(Weight::new(*weight)?)
            .state(state)
            .tunnel(tunnel);
        service.set(server);
    }
    Ok(service)
}

/// The library's key of a service. An error: its address is none of a host, which the model has
/// refused before.
pub fn library_key(key: &Key) -> Result<ServiceKey, balancer::Error> {
    let protocol = match key.protocol {
        Protocol::Tcp => balancer::Protocol::Tcp,
        Protocol::Udp => balancer::Protocol::Udp,
        Protocol::Sctp => balancer::Protocol::Sctp,
    };
    ServiceKey::new(key.vip, protocol, key.port.and_then(NonZeroU16::new))
}

pub(super) fn model_key(key: &ServiceKey) -> Key {
    let protocol = match key.protocol() {
        balancer::Protocol::Tcp => Protocol::Tcp,
        balancer::Protocol::Udp => Protocol::Udp,
        balancer::Protocol::Sctp => Protocol::Sctp,
    };
    Key {
        vip: key.vip(),
        protocol,
        port: key.port().map(NonZeroU16::get),
    }
}

fn tunnel(encapsulation: Encapsulation) -> Tunnel {
    // A port of zero is refused where encapsulations are read.
    let port = |port| NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN);
    match encapsulation {
        Encapsulation::L2 => Tunnel::None,
        Encapsulation::Ipip => Tunnel::Ipip,
        Encapsulation::Gre => Tunnel::Gre,
        Encapsulation::Fou(to) => Tunnel::Fou { port: port(to) },
        Encapsulation::Gue(to) => Tunnel::Gue { port: port(to) },
    }
}
