//! What a person is shown: interfaces, routes and neighbours in the words of BSD's tools, as
//! netmap-fwd printed them. Strings from a snapshot; whoever calls prints them.

use std::fmt::Write;

use netlink::{Hop, Link, Neighbour, Route, RouteKey, RouteKind, Snapshot};

use crate::acl::default_rule;
use crate::acl_in_use::AclReport;
use crate::layout::Counter;
use crate::report::{InterfaceReport, Report};

/// An interface: flags, MTU, addresses.
pub fn interface(link: &Link, snapshot: &Snapshot) -> String {
    let flags = [(link.up, "UP"), (link.carrier, "RUNNING")];
    let flags: Vec<&str> = flags
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let mut text = format!(
        "{}: flags=<{}> mtu {}\n",
        link.name,
        flags.join(","),
        link.mtu
    );
    if let Some(mac) = link.mac {
        let _ = writeln!(text, "       ether {mac}");
    }
    if let Some(vlan) = link.vlan {
        let parent = name_of(vlan.parent, snapshot);
        let _ = writeln!(text, "       vlan {} parent {parent}", vlan.id);
    }
    for address in snapshot.addresses_of(link.index) {
        let word = if address.ip.is_ipv4() {
            "inet"
        } else {
            "inet6"
        };
        let _ = writeln!(text, "       {word} {}/{}", address.ip, address.prefix_len);
    }
    text
}

/// The routes of the main table and those of one's own that rules name: destination, gateway,
/// flags, interface.
pub fn routes(snapshot: &Snapshot) -> String {
    let mut text = String::from("Routing tables\n");
    for (title, v4) in [("Internet", true), ("Internet6", false)] {
        let _ = writeln!(text, "\n{title}:");
        let _ = writeln!(
            text,
            "{:<26} {:<26} {:<8} Netif",
            "Destination", "Gateway", "Flags"
        );
        let listed = |key: &RouteKey| key.dst.addr().is_ipv4() == v4 && key.table != LOCAL_TABLE;
        for (key, set) in snapshot.routes.iter().filter(|(key, _)| listed(key)) {
            for route in &set.routes {
                route_lines(&mut text, key, route, snapshot);
            }
        }
    }
    text
}

/// The kernel's table of its own addresses: every interface shows them already.
const LOCAL_TABLE: u32 = 255;

fn route_lines(text: &mut String, key: &RouteKey, route: &Route, snapshot: &Snapshot) {
    let hops = snapshot.hops(route);
    let none = [Hop {
        gateway: None,
        ifindex: 0,
        weight: 1,
        onlink: false,
        encapsulates: false,
    }];
    let hops = if hops.is_empty() {
        none.as_slice()
    } else {
        hops.as_slice()
    };
    for hop in hops {
        let gateway = hop.gateway.map(|ip| ip.to_string()).unwrap_or_default();
        let flags = flags(key, route, hop);
        let netif = name_of(hop.ifindex, snapshot);
        let line = format!(
            "{:<26} {gateway:<26} {flags:<8} {netif}",
            key.dst.to_string()
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// U: usable, G: by a gateway, H: one address, S: not the kernel's own, B: blackhole, R: refused.
fn flags(key: &RouteKey, route: &Route, hop: &Hop) -> String {
    const KERNEL: u8 = 2;
    let flags = [
        (true, 'U'),
        (hop.gateway.is_some(), 'G'),
        (key.dst.prefix_len() == key.dst.max_prefix_len(), 'H'),
        (route.protocol != KERNEL, 'S'),
        (route.kind == RouteKind::Blackhole, 'B'),
        (
            matches!(route.kind, RouteKind::Unreachable | RouteKind::Prohibit),
            'R',
        ),
    ];
    flags
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, letter)| *letter)
        .collect()
}

/// The neighbours, as `arp` prints them.
pub fn neighbours(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for neighbour in snapshot.neighbours.values() {
        let Neighbour { ip, ifindex, .. } = neighbour;
        let mac = neighbour
            .mac
            .map_or_else(|| "(incomplete)".to_owned(), |mac| mac.to_string());
        let netif = name_of(*ifindex, snapshot);
        let _ = writeln!(
            text,
            "? ({ip}) at {mac} on {netif} {}",
            neighbour.state_name()
        );
    }
    text
}

/// What an interface counted, a line a counter that is not zero, with both families.
pub fn counters(report: &Report) -> String {
    let mut text = String::new();
    for InterfaceReport {
        name,
        counters: [four, six],
        ..
    } in &report.interfaces
    {
        let _ = writeln!(text, "{name:<24} {:>16} {:>16}", "IPv4", "IPv6");
        for counter in Counter::ALL {
            let (four, six) = (four[counter as usize], six[counter as usize]);
            if four != 0 || six != 0 {
                let _ = writeln!(text, "  {:<22} {four:>16} {six:>16}", counter.name());
            }
        }
    }
    text
}

/// What each rule of the access list took.
pub fn acl(report: &AclReport) -> String {
    let mut text = format!("{:>12} {:>16} rule\n", "packets", "bytes");
    for (rule, count) in &report.rules {
        let _ = writeln!(text, "{:>12} {:>16} {rule}", count.packets, count.bytes);
    }
    let (default, count) = (default_rule(report.default_allows), report.default);
    let _ = writeln!(text, "{:>12} {:>16} {default}", count.packets, count.bytes);
    text
}

fn name_of(ifindex: u32, snapshot: &Snapshot) -> String {
    snapshot
        .links
        .get(&ifindex)
        .map(|link| link.name.clone())
        .unwrap_or_default()
}
