//! How things of the API are called where people read them: as the options call them.

use api::v1;
use api::v1::rule::{Match, Peer};

/// IANA protocol numbers that have a name here.
pub const ICMP: u32 = 1;
/// See [`ICMP`].
pub const TCP: u32 = 6;
/// See [`ICMP`].
pub const UDP: u32 = 17;
/// See [`ICMP`].
pub const ICMPV6: u32 = 58;
/// See [`ICMP`].
pub const SCTP: u32 = 132;

/// A rule in four words, as the options say them: direction, protocol, ports (or ICMP type), peer.
pub fn rule_words(rule: &v1::Rule) -> [String; 4] {
    let direction = match rule.direction() {
        v1::Direction::Egress => "out",
        v1::Direction::Ingress | v1::Direction::Unspecified => "in",
    };
    let ports = match &rule.r#match {
        Some(Match::Ports(v1::PortRange {
            start: 0,
            end: 65535,
        }))
        | None => "all".into(),
        Some(Match::Ports(range)) if range.start == range.end => range.start.to_string(),
        Some(Match::Ports(range)) => format!("{}-{}", range.start, range.end),
        Some(Match::Icmp(icmp)) => match (icmp.r#type, icmp.code) {
            (Some(kind), Some(code)) => format!("type={kind},code={code}"),
            (Some(kind), None) => format!("type={kind}"),
            (None, _) => "all".into(),
        },
    };
    let peer = match &rule.peer {
        Some(Peer::Cidr(cidr)) => cidr.clone(),
        Some(Peer::Group(group)) => format!("sg:{group}"),
        None => "all".into(),
    };
    [direction.into(), protocol_name(rule.protocol), ports, peer]
}

/// A protocol by its name, else its number.
pub fn protocol_name(protocol: Option<u32>) -> String {
    match protocol {
        None => "all".into(),
        Some(TCP) => "tcp".into(),
        Some(UDP) => "udp".into(),
        Some(SCTP) => "sctp".into(),
        Some(ICMP) => "icmp".into(),
        Some(ICMPV6) => "icmpv6".into(),
        Some(number) => number.to_string(),
    }
}

/// A NIC's type, by the original's name.
pub fn kind_name(kind: v1::NicKind) -> &'static str {
    match kind {
        v1::NicKind::Unspecified | v1::NicKind::VhostUser => "VHOST_USER_SERVER",
        v1::NicKind::Tap => "TAP",
        v1::NicKind::Bench => "BENCH",
        v1::NicKind::Veth => "VETH",
    }
}

/// A direction, as the options say it; empty when the API does not say.
pub fn direction_name(direction: v1::Direction) -> &'static str {
    match direction {
        v1::Direction::Egress => "out",
        v1::Direction::Ingress => "in",
        v1::Direction::Unspecified => "",
    }
}

/// A time in its largest whole unit: `70 us`, `3 s`.
pub fn span(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{} us", nanos / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

/// Where an attachment stands, in a word; empty when the API does not say.
pub fn state_name(state: v1::PortState) -> &'static str {
    match state {
        v1::PortState::Unspecified => "",
        v1::PortState::Down => "down",
        v1::PortState::Up => "up",
        v1::PortState::Broken => "broken",
    }
}
