//! The rows of the table: which frames, of how many flows, by which way, to what end.

use std::num::NonZeroU16;

use butterfly_balancer::Tunnel;
use wire::parse::TcpFlags;
use xdp::Verdict;

use crate::stage;

/// One thing to measure.
pub struct Row {
    pub name: String,
    pub frame: Vec<u8>,
    /// A power of two.
    pub flows: u32,
    /// A flow's packets before the ones that are timed; none: they begin flows.
    pub warm: bool,
    pub tunnel: Tunnel,
    pub servers_v6: bool,
    pub remember_all: bool,
    pub verdict: Verdict,
    /// The usual design does it too.
    pub peer: bool,
    /// Net nanoseconds at the most: what the project has set itself.
    pub goal: Option<f64>,
}

/// All of them.
pub fn all() -> Vec<Row> {
    let mut rows = vec![
        Row {
            frame: stage::stranger(false),
            verdict: Verdict::Pass,
            goal: Some(20.0),
            ..hit("not_ours", false, 1)
        },
        Row {
            frame: stage::stranger(true),
            verdict: Verdict::Pass,
            goal: Some(20.0),
            ..hit("not_ours6", true, 1)
        },
    ];
    for (suffix, v6) in [("", false), ("6", true)] {
        for (count, flows, goal) in [
            ("1", 1, 60.0),
            ("128k", 1 << 17, 150.0),
            ("1m", 1 << 20, 150.0),
        ] {
            rows.push(Row {
                goal: Some(goal),
                ..hit(&format!("hit{suffix}_{count}"), v6, flows)
            });
        }
        rows.push(Row {
            goal: Some(150.0),
            ..new(&format!("new{suffix}"), v6)
        });
    }
    // With every flow in the table, as the peer has it always.
    for row in [
        hit("all_hit_1", false, 1),
        hit("all_hit_1m", false, 1 << 20),
        new("all_new", false),
    ] {
        rows.push(Row {
            remember_all: true,
            ..row
        });
    }
    rows.extend(tunnels());
    rows
}

/// Each tunnel with each family inside each.
fn tunnels() -> Vec<Row> {
    let port = NonZeroU16::new(5555).expect("not zero");
    let mut rows = Vec::new();
    for (name, tunnel) in [
        ("ipip", Tunnel::Ipip),
        ("gre", Tunnel::Gre),
        ("fou", Tunnel::Fou { port }),
        ("gue", Tunnel::Gue { port }),
    ] {
        for (inner, outer) in [(4, 4), (6, 4), (4, 6), (6, 6)] {
            rows.push(Row {
                tunnel,
                servers_v6: outer == 6,
                peer: name == "ipip" && (inner, outer) == (4, 4),
                ..hit(&format!("{name}_{inner}in{outer}"), inner == 6, 1)
            });
        }
    }
    rows
}

/// Packets of flows that are under way.
fn hit(name: &str, v6: bool, flows: u32) -> Row {
    Row {
        name: name.to_owned(),
        frame: stage::tcp(v6, TcpFlags::ACK),
        flows,
        warm: true,
        tunnel: Tunnel::None,
        servers_v6: v6,
        remember_all: false,
        verdict: Verdict::Transmit,
        peer: true,
        goal: None,
    }
}

/// Packets that begin a million flows.
fn new(name: &str, v6: bool) -> Row {
    Row {
        frame: stage::tcp(v6, TcpFlags::SYN),
        warm: false,
        ..hit(name, v6, 1 << 20)
    }
}
