//! The configuration as a graph in the DOT language: each VNI a box with its NICs in it, dashed
//! lines to their groups (grey where the group does not exist), dotted ones from a sniffer to its
//! target. What v0's `app_status` answers.

use crate::state::State;
use std::collections::BTreeMap;
use std::fmt::Write;

pub(crate) fn graph(state: &State) -> String {
    let mut networks: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for entry in state.nics.values() {
        networks
            .entry(entry.nic.vni.id())
            .or_default()
            .push(&entry.nic);
    }
    let mut out = String::from("graph butterfly {\n    node [shape=box];\n");
    for (vni, nics) in networks {
        line(
            &mut out,
            format_args!("    subgraph cluster_{vni} {{\n        label=\"VNI {vni}\";"),
        );
        for nic in nics {
            let ips: String = nic.ips.iter().map(|ip| format!("\\n{ip}")).collect();
            let id = quoted(nic.id.as_str());
            line(
                &mut out,
                format_args!("        \"nic {id}\" [label=\"{id}\\n{}{ips}\"];", nic.mac),
            );
        }
        out.push_str("    }\n");
    }
    for (id, entry) in &state.groups {
        let id = quoted(id.as_str());
        let colour = if entry.group.is_some() {
            "black"
        } else {
            "grey"
        };
        let rules = entry.counters.len();
        line(
            &mut out,
            format_args!(
                "    \"sg {id}\" [shape=ellipse, color={colour}, label=\"{id}\\n{rules} rules\"];"
            ),
        );
    }
    for entry in state.nics.values() {
        let id = quoted(entry.nic.id.as_str());
        for group in &entry.nic.security_groups {
            line(
                &mut out,
                format_args!(
                    "    \"nic {id}\" -- \"sg {}\" [style=dashed];",
                    quoted(group.as_str())
                ),
            );
        }
        if let Some(target) = &entry.nic.sniff_target {
            line(
                &mut out,
                format_args!(
                    "    \"nic {id}\" -- \"nic {}\" [style=dotted];",
                    quoted(target.as_str())
                ),
            );
        }
    }
    out.push_str("}\n");
    out
}

/// Ids have no control characters; quotes and backslashes are what is left to escape.
fn quoted(id: &str) -> String {
    id.replace('\\', "\\\\").replace('"', "\\\"")
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{text}");
}
