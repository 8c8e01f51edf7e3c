//! What OVS does with a frame, and the same rules that ours has as its flows.

use crate::flood::FLOODER;
use crate::peers::{PeerError, Setup, guest_mac};

/// What it does with a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Learns MACs, looks at nothing else.
    Normal,
    /// Connection tracking, both guests in one zone.
    OneZone,
    /// Connection tracking, out through the sender's zone and in through the receiver's.
    ZonePerGuest,
}

/// Security groups as a pipeline: established connections pass, new ones when one of the ingress
/// rules allows them, of which the last two allow the benchmark's traffic. The first two guests are
/// each other's, and so are the others. Where there is a crowd, the third sends to all of it,
/// untracked.
pub fn flows(pipeline: Pipeline, setup: Setup) -> Result<String, PeerError> {
    let mut flows =
        String::from("table=0,priority=0,actions=drop\ntable=0,priority=50,arp,actions=NORMAL\n");
    if setup.has_crowd() {
        let (port, mac) = (FLOODER + 1, guest_mac(FLOODER)?);
        let crowd = (port + 1..=setup.guests()).map(|port| format!("output:{port}"));
        let crowd = crowd.collect::<Vec<_>>().join(",");
        flows += &format!("table=0,priority=100,in_port={port},dl_src={mac},actions={crowd}\n");
    }
    for guest in 0..setup.judged() {
        let (port, mac) = (guest + 1, guest_mac(guest)?);
        let out = (guest ^ 1) + 1;
        // The zone of the ingress rules, and how a frame gets there.
        let (zone, first) = match pipeline {
            Pipeline::ZonePerGuest => (out, format!("ct(table=1,zone={port})")),
            _ => (1, "ct(table=2,zone=1)".to_owned()),
        };
        flows += &format!(
            "table=0,priority=100,ip,in_port={port},dl_src={mac},actions={first}\n\
             table=2,priority=100,ip,in_port={port},ct_state=+trk+est,actions=output:{out}\n"
        );
        if pipeline == Pipeline::ZonePerGuest {
            flows += &format!(
                "table=1,priority=100,ip,in_port={port},ct_state=+trk+new,actions=ct(commit,zone={port}),ct(table=2,zone={zone})\n\
                 table=1,priority=100,ip,in_port={port},ct_state=+trk+est,actions=ct(table=2,zone={zone})\n"
            );
        }
        let new = format!("in_port={port},ct_state=+trk+new");
        let allow = format!("actions=ct(commit,zone={zone}),output:{out}\n");
        for rule in 2..setup.rules() {
            flows += &format!(
                "table=2,priority=90,tcp,{new},tp_dst={},{allow}",
                crate::FIRST_RULE_PORT + rule
            );
        }
        let mask = !(crate::TRAFFIC_PORTS - 1);
        for protocol in ["tcp", "udp"] {
            flows += &format!(
                "table=2,priority=90,{protocol},{new},tp_dst={:#x}/{mask:#x},{allow}",
                crate::TRAFFIC_PORT
            );
        }
    }
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipelines_have_the_rules_that_ours_has() {
        for (pipeline, zones) in [(Pipeline::OneZone, 1), (Pipeline::ZonePerGuest, 2)] {
            for setup in Setup::ALL {
                let flows = flows(pipeline, setup).unwrap();
                let rules = flows.lines().filter(|line| line.contains("tp_dst")).count();
                assert_eq!(rules, setup.judged() * usize::from(setup.rules()));
                let heard = flows.matches("output:27").count();
                assert_eq!(heard, usize::from(setup.has_crowd()));
                assert_eq!(flows.contains("zone=2"), zones == 2);
            }
        }
    }
}
