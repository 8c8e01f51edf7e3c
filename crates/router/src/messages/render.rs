//! The router's state as messages.

use api::v1;
use netlink::{RouteKey, Snapshot};

use super::kernel_counters;
use super::refusal::Refusal;
use crate::acl::default_rule;
use crate::acl::loaded::Count;
use crate::layout::{Counter, Fate};
use crate::view::{HopView, RouteView, Selection, Treatment};
use crate::{AclReport, InterfaceReport, Report, Router, TableReport};

/// How a program is attached; none: it is not.
pub fn mode(mode: Option<xdp::Mode>) -> v1::XdpMode {
    match mode {
        None => v1::XdpMode::Unspecified,
        Some(xdp::Mode::Native) => v1::XdpMode::Native,
        Some(xdp::Mode::Generic) => v1::XdpMode::Generic,
        Some(xdp::Mode::Tc) => v1::XdpMode::Tc,
    }
}

/// All that is counted. `time_ns`: of a clock that only runs forward.
pub fn status(
    report: &Report,
    acl: Option<&AclReport>,
    members: Vec<v1::RouterInterface>,
    time_ns: u64,
) -> v1::RouterStatus {
    let [four, six] = report.tables;
    let interface = |member: v1::RouterInterface| {
        let counted = report.interfaces.iter().find(|one| one.name == member.name);
        let family = |at: usize| counted.map(|one: &InterfaceReport| counters(&one.counters[at]));
        v1::RouterInterfaceStatus {
            ipv4: family(0),
            ipv6: family(1),
            interface: Some(member),
        }
    };
    v1::RouterStatus {
        time_ns,
        interfaces: members.into_iter().map(interface).collect(),
        notes: report.notes.clone(),
        ipv4: Some(table(four)),
        ipv6: Some(table(six)),
        kernel: kernel_counters::read(),
        acl: acl.map(self::acl),
    }
}

fn acl(report: &AclReport) -> v1::RouterAcl {
    let rule = |rule: String, count: Count| v1::RouterAclRule {
        rule,
        packets: count.packets,
        bytes: count.bytes,
    };
    let rules = report.rules.iter();
    v1::RouterAcl {
        rules: rules
            .map(|(one, count)| rule(one.to_string(), *count))
            .collect(),
        default: Some(rule(
            default_rule(report.default_allows).into(),
            report.default,
        )),
        nftables: report.hooks.clone(),
    }
}

fn counters(values: &[u64]) -> v1::RouterCounters {
    let value = |counter: Counter| values[counter as usize];
    let reason = |counter: Counter| {
        let fate = match counter.fate() {
            Fate::Forwarded => return None,
            Fate::Dropped => v1::router_reason::Fate::Dropped,
            Fate::Kernel => v1::router_reason::Fate::Kernel,
        };
        (value(counter) > 0).then(|| v1::RouterReason {
            reason: counter.name().into(),
            description: counter.description().into(),
            fate: fate.into(),
            packets: value(counter),
        })
    };
    v1::RouterCounters {
        forwarded: value(Counter::Forwarded),
        forwarded_bytes: value(Counter::ForwardedBytes),
        sent: value(Counter::Sent),
        known: value(Counter::Known),
        reasons: Counter::ALL.into_iter().filter_map(reason).collect(),
    }
}

fn table(report: TableReport) -> v1::RouterTable {
    v1::RouterTable {
        prefixes: report.prefixes as u64,
        nodes: report.nodes as u64,
        nodes_max: report.nodes_max as u64,
    }
}

/// A route and what becomes of its packets.
pub fn route(view: &RouteView, snapshot: &Snapshot) -> v1::Route {
    let RouteKey {
        table,
        dst,
        tos,
        metric,
    } = view.key;
    let (treatment, why) = match &view.treatment {
        Treatment::Fast => (v1::RouteTreatment::Fast, ""),
        Treatment::Lookup(why) => (v1::RouteTreatment::Lookup, why.as_str()),
        Treatment::Kernel(why) => (v1::RouteTreatment::Kernel, why.as_str()),
        Treatment::Drop => (v1::RouteTreatment::Drop, ""),
        Treatment::Unused(why) => (v1::RouteTreatment::Unused, why.as_str()),
    };
    v1::Route {
        prefix: dst.to_string(),
        table,
        metric,
        tos: tos.into(),
        kind: view.route.kind.name().into(),
        protocol: view.route.protocol_name(),
        mtu: view.route.mtu.unwrap_or(0),
        hops: view
            .hops
            .iter()
            .map(|hop| self::hop(hop, snapshot))
            .collect(),
        treatment: treatment.into(),
        why: why.into(),
    }
}

fn hop(view: &HopView, snapshot: &Snapshot) -> v1::RouteHop {
    v1::RouteHop {
        gateway: view
            .hop
            .gateway
            .map(|ip| ip.to_string())
            .unwrap_or_default(),
        interface: interface_name(view.hop.ifindex, snapshot),
        weight: view.hop.weight,
        fast: view.fast,
        mac: view.mac.map(|mac| mac.to_string()).unwrap_or_default(),
    }
}

/// The route that packets to an address take.
///
/// # Errors
/// There is none.
pub fn route_to(router: &Router, ip: std::net::IpAddr) -> Result<v1::Route, Refusal> {
    let view = router.route_to(ip);
    let view = view.ok_or_else(|| Refusal::NotFound(format!("there is no route to {ip}")))?;
    Ok(route(&view, router.snapshot()))
}

/// Some routes, and behind which one the next page begins; none: these are the last.
pub fn page(
    router: &Router,
    selection: &Selection,
    after: Option<RouteKey>,
) -> (Vec<v1::Route>, Option<RouteKey>) {
    let page = router.routes(selection, after);
    let routes = page.routes.iter();
    let routes = routes.map(|view| route(view, router.snapshot())).collect();
    (routes, page.next)
}

/// An interface's name; its number where it has gone, nothing for none.
pub fn interface_name(ifindex: u32, snapshot: &Snapshot) -> String {
    match (ifindex, snapshot.links.get(&ifindex)) {
        (0, _) => String::new(),
        (_, Some(link)) => link.name.clone(),
        (_, None) => ifindex.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::List;

    #[test]
    fn counters_are_told_apart_by_what_became_of_the_packets() {
        let mut values = vec![0; Counter::ALL.len()];
        for (counter, packets) in [
            (Counter::Forwarded, 7),
            (Counter::ForwardedBytes, 700),
            (Counter::Sent, 5),
            (Counter::Known, 4),
            (Counter::Blackhole, 3),
            (Counter::NoRoute, 2),
        ] {
            values[counter as usize] = packets;
        }
        let reason = |counter: Counter, fate: v1::router_reason::Fate, packets| v1::RouterReason {
            reason: counter.name().into(),
            description: counter.description().into(),
            fate: fate.into(),
            packets,
        };
        let expected = v1::RouterCounters {
            forwarded: 7,
            forwarded_bytes: 700,
            sent: 5,
            known: 4,
            reasons: vec![
                reason(Counter::Blackhole, v1::router_reason::Fate::Dropped, 3),
                reason(Counter::NoRoute, v1::router_reason::Fate::Kernel, 2),
            ],
        };
        assert_eq!(counters(&values), expected);
    }

    /// One that is not attached has no counters, and says why.
    #[test]
    fn an_interface_that_is_away_is_shown_all_the_same() {
        let away = v1::RouterInterface {
            name: "eth1".into(),
            mode: mode(None).into(),
            why: "it has gone".into(),
        };
        let status = status(&Report::default(), None, vec![away], 9);
        let expected = v1::RouterInterfaceStatus {
            interface: Some(v1::RouterInterface {
                name: "eth1".into(),
                mode: v1::XdpMode::Unspecified.into(),
                why: "it has gone".into(),
            }),
            ipv4: None,
            ipv6: None,
        };
        assert_eq!((status.time_ns, status.interfaces), (9, vec![expected]));
    }

    #[test]
    fn an_access_list_is_its_rules_and_what_none_takes() {
        let list = List::parse("default deny\nallow proto tcp\n").expect("it is right");
        let count = |packets| Count {
            packets,
            bytes: 100 * packets,
        };
        let report = AclReport {
            rules: list.rules.into_iter().zip([count(7)]).collect(),
            default_allows: list.default_allows,
            default: count(3),
            hooks: Vec::new(),
        };
        let rule = |rule: &str, packets| v1::RouterAclRule {
            rule: rule.into(),
            packets,
            bytes: 100 * packets,
        };
        let expected = v1::RouterAcl {
            rules: vec![rule("allow proto tcp", 7)],
            default: Some(rule("default deny", 3)),
            nftables: Vec::new(),
        };
        let status = status(&Report::default(), Some(&report), Vec::new(), 9);
        assert_eq!(status.acl, Some(expected));
    }
}
