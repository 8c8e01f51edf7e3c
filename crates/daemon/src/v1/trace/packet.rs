//! A packet and a rule in words, for the steps of a trace.

use control::model::{Direction, Icmp, Peer, Rule, RuleMatch};
use wire::nd::{Nd, NdKind};
use wire::parse::{L4, Net, Packet, TcpFlags, protocol};

/// What a frame of `len` bytes is.
pub fn words(packet: &Packet, nd: Option<&Nd>, len: usize) -> String {
    let macs = format!("{} > {}", packet.src, packet.dst);
    let what = match &packet.net {
        Net::Arp(arp) if arp.op == 1 => {
            format!("ARP, who has {}? says {}", arp.target_ip, arp.sender_ip)
        }
        Net::Arp(arp) => format!("ARP, {} is at {}", arp.sender_ip, arp.sender_mac),
        Net::Other => format!("ethertype {:#06x}", packet.ethertype),
        Net::Ip(ip) => {
            let (src, dst) = (ip.src(), ip.dst());
            let name = protocol_name(ip.protocol);
            let fragment = match ip.fragment {
                Some(fragment) => format!(", fragment at {}", fragment.offset),
                None => String::new(),
            };
            let l4 = match (nd.map(|nd| nd.kind), &ip.l4_info) {
                (Some(kind), _) => format!("{src} > {dst}, {}", nd_words(kind)),
                (None, L4::Tcp { flags, .. }) => {
                    let ports = ends(ip.l4_info.ports(), src.to_string(), dst.to_string());
                    format!("{ports}, TCP {}", flag_words(*flags))
                }
                (None, L4::Icmp { kind, code, .. }) => {
                    format!("{src} > {dst}, {name} type {kind} code {code}")
                }
                (None, other) => {
                    format!(
                        "{}, {name}",
                        ends(other.ports(), src.to_string(), dst.to_string())
                    )
                }
            };
            format!("{l4}{fragment}")
        }
    };
    format!("{macs}, {what}, {len} bytes")
}

fn ends(ports: Option<(u16, u16)>, src: String, dst: String) -> String {
    let end = |address: &str, port: u16| match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    };
    match ports {
        Some((sport, dport)) => format!("{} > {}", end(&src, sport), end(&dst, dport)),
        None => format!("{src} > {dst}"),
    }
}

fn nd_words(kind: NdKind) -> String {
    match kind {
        NdKind::NeighbourSolicitation { target } => format!("ICMPv6, who has {target}?"),
        NdKind::NeighbourAdvertisement { target, .. } => format!("ICMPv6, {target} is here"),
        NdKind::RouterSolicitation => "ICMPv6 router solicitation".into(),
        NdKind::RouterAdvertisement => "ICMPv6 router advertisement".into(),
        NdKind::Redirect { .. } => "ICMPv6 redirect".into(),
    }
}

fn flag_words(flags: TcpFlags) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| flags.0 >> bit & 1 == 1);
    let names: Vec<&str> = set.map(|(_, name)| *name).collect();
    match names.is_empty() {
        true => "without flags".into(),
        false => names.join(" "),
    }
}

pub fn protocol_name(number: u8) -> String {
    match number {
        protocol::ICMP => "ICMP".into(),
        protocol::TCP => "TCP".into(),
        protocol::UDP => "UDP".into(),
        protocol::ICMPV6 => "ICMPv6".into(),
        protocol::SCTP => "SCTP".into(),
        other => format!("protocol {other}"),
    }
}

/// A rule as a few words: `in tcp 443 from 10.0.0.0/8`.
pub fn rule_words(rule: &Rule) -> String {
    let (direction, side) = match rule.direction() {
        Direction::Ingress => ("in", "from"),
        Direction::Egress => ("out", "to"),
    };
    let name = rule
        .protocol()
        .map_or("all".into(), |number| protocol_name(number).to_lowercase());
    let matching = match rule.matching() {
        RuleMatch::Any | RuleMatch::Icmp(Icmp { kind: None, .. }) => String::new(),
        RuleMatch::Ports(ports) if ports.start == ports.end => format!(" {}", ports.start),
        RuleMatch::Ports(ports) => format!(" {}-{}", ports.start, ports.end),
        RuleMatch::Icmp(Icmp {
            kind: Some(kind),
            code,
        }) => match code {
            Some(code) => format!(" {kind}/{code}"),
            None => format!(" {kind}"),
        },
    };
    let peer = match rule.peer() {
        Peer::Any => "anybody".into(),
        Peer::Net(net) => net.to_string(),
        Peer::Group(group) => format!("group '{group}'"),
    };
    format!("{direction} {name}{matching} {side} {peer}")
}
