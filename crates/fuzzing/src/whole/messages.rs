//! What the client says of NICs and rules, as messages of both APIs.

use std::net::IpAddr;

use api::v0::message_v0 as v0;
use api::v1;
use control::model::{Direction, GroupId, Nic, Peer, Ports, Rule, RuleMatch, parse_cidr};
use wire::parse::protocol;

use super::{GROUPS, group_id};
use crate::fixture::{v4, v6};
use crate::input::Input;

/// Which API a step is said through. v0 knows nothing of other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    V0,
    V1,
}

/// The addresses of a machine, one of each family.
pub fn addresses(machine: u8) -> [IpAddr; 2] {
    [v4(machine).into(), v6(machine).into()]
}

pub fn groups_of(bits: u8) -> Vec<GroupId> {
    let groups = (0..GROUPS).filter(|group| bits >> group & 1 != 0);
    groups.map(group_id).collect()
}

/// A rule of API v1. v0 has none for everybody: it takes one for each family.
pub fn rules(api: Api, input: &mut Input<'_>) -> Vec<Rule> {
    let (choice, peer) = (input.u8(), input.u8());
    let direction = match choice & 1 {
        0 => Direction::Ingress,
        _ => Direction::Egress,
    };
    let port = |port| {
        RuleMatch::Ports(Ports {
            start: port,
            end: port,
        })
    };
    let (protocol, matching) = match choice >> 1 & 7 {
        0 => (None, RuleMatch::Any),
        1 | 2 => (Some(protocol::TCP), port(80)),
        3 | 4 => (Some(protocol::UDP), port(53)),
        5 => (Some(protocol::UDP), RuleMatch::Any),
        _ => (Some(protocol::ICMP), RuleMatch::Any),
    };
    let net = |text: &str| Peer::Net(parse_cidr(&"rule", text).expect("a network"));
    let (machine, is_v6, is_wide) = (peer >> 2 & 7, peer & 0x20 != 0, peer & 0x40 != 0);
    let peers = match (peer & 3, api) {
        (0 | 1, Api::V1) => vec![Peer::Any],
        (0 | 1, Api::V0) => vec![net("0.0.0.0/0"), net("::/0")],
        (2, _) => vec![Peer::Group(group_id(peer >> 2 & 3))],
        // A machine, or both of a pair.
        (_, _) if is_v6 => {
            let (first, bits) = (machine & !u8::from(is_wide), 128 - u8::from(is_wide));
            vec![net(&format!("{}/{bits}", v6(first)))]
        }
        (_, _) => {
            let (first, bits) = (machine & !u8::from(is_wide), 32 - u8::from(is_wide));
            vec![net(&format!("{}/{bits}", v4(first)))]
        }
    };
    let rule =
        |peer| Rule::new(direction, protocol, matching, peer).expect("a rule that can match");
    peers.into_iter().map(rule).collect()
}

pub fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

pub fn v0_nic(nic: &Nic) -> v0::Nic {
    v0::Nic {
        id: nic.id.to_string(),
        mac: nic.mac.to_string(),
        vni: nic.vni.id(),
        ip: texts(&nic.ips),
        security_group: texts(&nic.security_groups),
        ip_anti_spoof: Some(nic.anti_spoof),
        bypass_filtering: Some(nic.bypass_filtering),
        ..Default::default()
    }
}

pub fn v1_nic(nic: &Nic) -> v1::Nic {
    v1::Nic {
        id: nic.id.to_string(),
        mac: nic.mac.to_string(),
        vni: nic.vni.id(),
        addresses: texts(&nic.ips),
        security_groups: texts(&nic.security_groups),
        anti_spoof: Some(nic.anti_spoof),
        bypass_filtering: nic.bypass_filtering,
        link_down: nic.link_down,
        ..Default::default()
    }
}

pub fn v0_rule(rule: &Rule) -> v0::Rule {
    let has_ports = matches!(rule.protocol(), Some(protocol::TCP | protocol::UDP));
    let ports = rule.ports().filter(|_| has_ports);
    let (cidr, security_group) = match rule.peer() {
        Peer::Any => (None, None),
        Peer::Net(net) => {
            let cidr = v0::Cidr {
                address: net.addr().to_string(),
                mask_size: net.prefix_len().into(),
            };
            (Some(cidr), None)
        }
        Peer::Group(group) => (None, Some(group.to_string())),
    };
    let direction = match rule.direction() {
        Direction::Ingress => v0::rule::Direction::Inbound,
        Direction::Egress => v0::rule::Direction::Outbound,
    };
    v0::Rule {
        direction: direction.into(),
        protocol: rule.protocol().map_or(-1, i32::from),
        port_start: ports.map(|ports| ports.start.into()),
        port_end: ports.map(|ports| ports.end.into()),
        cidr,
        security_group,
    }
}

pub fn v1_rule(rule: &Rule) -> v1::Rule {
    let matching = match rule.matching() {
        RuleMatch::Ports(Ports { start, end }) => Some(v1::rule::Match::Ports(v1::PortRange {
            start: start.into(),
            end: end.into(),
        })),
        RuleMatch::Any | RuleMatch::Icmp(_) => None,
    };
    let peer = match rule.peer() {
        Peer::Any => None,
        Peer::Net(net) => Some(v1::rule::Peer::Cidr(net.to_string())),
        Peer::Group(group) => Some(v1::rule::Peer::Group(group.to_string())),
    };
    let direction = match rule.direction() {
        Direction::Ingress => v1::Direction::Ingress,
        Direction::Egress => v1::Direction::Egress,
    };
    v1::Rule {
        direction: direction.into(),
        protocol: rule.protocol().map(u32::from),
        r#match: matching,
        peer,
    }
}
