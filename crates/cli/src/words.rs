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
        v1::NicKind::VmTap => "VM_TAP",
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

/// A moment for people, as `2026-11-24 08:22:49 UTC`; programs get the seconds by `--json`.
pub fn utc(unix_secs: u64) -> String {
    let (days, secs) = (unix_secs / 86_400, unix_secs % 86_400);
    // A year that begins in March ends with the day that may be missing; 400 of them are alike.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
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

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(secs), text);
        }
    }
}
