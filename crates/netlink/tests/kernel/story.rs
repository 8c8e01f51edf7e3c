//! One thing after the other changes, and the mirror says so: links, addresses, routes, rules,
//! neighbours, settings.

use crate::follow::{index, inside, ip, two_networks, wait};
use butterfly_netlink::{
    Family, ForwardingSettings, Kinds, Mirror, RouteKey, RouteKind, RuleAction, Snapshot,
};

fn route<'a>(
    snapshot: &'a Snapshot,
    table: u32,
    dst: &str,
) -> Option<&'a butterfly_netlink::Route> {
    let key = |metric| RouteKey {
        table,
        dst: dst.parse().expect("a prefix"),
        tos: 0,
        metric,
    };
    // What `ip` gives IPv6's routes when nothing is said.
    let set = [0, 1024]
        .into_iter()
        .find_map(|metric| snapshot.routes.get(&key(metric)))?;
    set.routes.first()
}

#[test]
fn what_was_there_before_is_read_at_once() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let now = mirror.snapshot();
        let a = now.link_named("east").expect("a link");
        assert!(a.up && a.carrier && a.ethernet && !a.loopback && a.mtu == 1500 && a.mac.is_some());
        assert_eq!(a.kind.as_deref(), Some("veth"));
        assert!(now.link_named("lo").expect("loopback").loopback);
        let addresses: Vec<_> = now
            .addresses_of(a.index)
            .map(|a| (a.ip.to_string(), a.prefix_len))
            .collect();
        assert!(
            addresses.contains(&("192.0.2.1".into(), 24)),
            "{addresses:?}"
        );
        assert!(
            addresses.contains(&("2001:db8:a::1".into(), 64)),
            "{addresses:?}"
        );

        let connected = route(&now, 254, "192.0.2.0/24").expect("a connected route");
        assert_eq!(connected.kind, RouteKind::Unicast);
        assert_eq!(
            connected.preferred_source,
            Some("192.0.2.1".parse().expect("an address"))
        );
        assert_eq!(now.hops(connected)[0].ifindex, a.index);
        assert_eq!(
            route(&now, 255, "192.0.2.1/32").expect("our own").kind,
            RouteKind::Local
        );
        assert_eq!(
            route(&now, 255, "192.0.2.255/32").expect("broadcast").kind,
            RouteKind::Broadcast
        );

        let rules: Vec<_> = now
            .rules
            .iter()
            .map(|r| (r.family, r.priority, r.action))
            .collect();
        let of = |family, priority, table| (family, priority, RuleAction::Table(table));
        assert_eq!(
            rules,
            [
                of(Family::V4, 0, 255),
                of(Family::V4, 32766, 254),
                of(Family::V4, 32767, 253),
                of(Family::V6, 0, 255),
                of(Family::V6, 32766, 254)
            ]
        );
        assert!(
            now.rules
                .iter()
                .all(|rule| !rule.more && rule.mark.is_none()),
            "{:?}",
            now.rules
        );
        assert!(
            now.settings
                .contains_key(&(Family::V4, ForwardingSettings::ALL))
        );
    });
}

#[test]
fn each_change_is_told() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let a = index(&mirror.snapshot(), "east");
        let b = index(&mirror.snapshot(), "west");

        ip(
            &namespace,
            "route add 203.0.113.0/24 via 192.0.2.9 metric 0 mtu 1400",
        );
        let found = wait(&mirror, "route", |now| {
            route(now, 254, "203.0.113.0/24").cloned()
        })
        .await;
        assert_eq!((found.mtu, found.hops[0].ifindex), (Some(1400), a));
        assert_eq!(
            found.hops[0].gateway,
            Some("192.0.2.9".parse().expect("an address"))
        );

        ip(
            &namespace,
            "route replace 203.0.113.0/24 nexthop via 192.0.2.9 weight 3 nexthop via 198.51.100.9",
        );
        let hops = wait(&mirror, "multipath", |now| {
            route(now, 254, "203.0.113.0/24")
                .map(|route| now.hops(route))
                .filter(|hops| hops.len() == 2)
        });
        let hops: Vec<_> = hops
            .await
            .iter()
            .map(|hop| (hop.ifindex, hop.weight))
            .collect();
        assert_eq!(hops, [(a, 3), (b, 1)]);

        for (kind, is) in [
            ("blackhole", RouteKind::Blackhole),
            ("unreachable", RouteKind::Unreachable),
            ("prohibit", RouteKind::Prohibit),
            ("throw", RouteKind::Throw),
        ] {
            ip(
                &namespace,
                &format!("route replace {kind} 203.0.113.0/24 table 77"),
            );
            wait(&mirror, kind, |now| {
                route(now, 77, "203.0.113.0/24")
                    .filter(|r| r.kind == is)
                    .map(drop)
            })
            .await;
        }
        ip(&namespace, "route flush table 77");
        wait(&mirror, "empty table", |now| {
            now.routes.keys().all(|key| key.table != 77).then_some(())
        })
        .await;

        ip(&namespace, "-6 route add 2001:db8:f::/48 via 2001:db8:a::9");
        ip(
            &namespace,
            "-6 route append 2001:db8:f::/48 via 2001:db8:a::8",
        );
        let hops =
            |now: &Snapshot| route(now, 254, "2001:db8:f::/48").map(|route| now.hops(route).len());
        wait(&mirror, "joined route", |now| hops(now).filter(|n| *n == 2)).await;
        ip(&namespace, "-6 route del 2001:db8:f::/48 via 2001:db8:a::9");
        wait(&mirror, "single route", |now| hops(now).filter(|n| *n == 1)).await;

        ip(
            &namespace,
            "rule add pref 100 from 10.1.0.0/16 fwmark 7/0xff iif east table 77",
        );
        let rule = wait(&mirror, "rule", |now| {
            now.rules.iter().find(|r| r.priority == 100).cloned()
        })
        .await;
        assert_eq!(rule.src, Some("10.1.0.0/16".parse().expect("a prefix")));
        assert_eq!(
            (rule.mark, rule.iif.as_deref(), rule.more),
            (Some((7, 0xff)), Some("east"), false)
        );
        ip(
            &namespace,
            "rule add pref 101 ipproto tcp dport 80 table 77",
        );
        wait(&mirror, "rule with more", |now| {
            now.rules
                .iter()
                .find(|r| r.priority == 101 && r.more)
                .map(drop)
        })
        .await;
        ip(&namespace, "rule del pref 100");
        wait(&mirror, "less rules", |now| {
            now.rules.iter().all(|r| r.priority != 100).then_some(())
        })
        .await;

        ip(
            &namespace,
            "neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev east",
        );
        let ip9 = "192.0.2.9".parse().expect("an address");
        let neighbour = wait(&mirror, "neighbour", |now| now.neighbour(a, ip9).copied()).await;
        assert!(neighbour.is_permanent() && neighbour.is_valid() && neighbour.is_confirmed());
        assert_eq!(
            neighbour.mac.map(|mac| mac.to_string()).as_deref(),
            Some("02:00:00:00:00:09")
        );
        ip(
            &namespace,
            "neigh change 192.0.2.9 lladdr 02:00:00:00:00:0a nud stale dev east",
        );
        wait(&mirror, "stale neighbour", |now| {
            now.neighbour(a, ip9)
                .filter(|n| n.state_name() == "stale")
                .map(drop)
        })
        .await;
        ip(&namespace, "neigh del 192.0.2.9 dev east");
        wait(&mirror, "no neighbour", |now| {
            now.neighbour(a, ip9)
                .is_none_or(|n| !n.is_valid())
                .then_some(())
        })
        .await;

        namespace
            .ok("sysctl -qw net.ipv4.conf.east.forwarding=1 net.ipv4.conf.east.rp_filter=2")
            .expect("sysctl");
        let settings = |now: &Snapshot| now.settings.get(&(Family::V4, a as i32)).copied();
        wait(&mirror, "settings", |now| {
            settings(now).filter(|s| s.forwarding && s.rp_filter == 2)
        })
        .await;

        ip(&namespace, "link set east mtu 9000");
        wait(&mirror, "mtu", |now| {
            now.links.get(&a).filter(|link| link.mtu == 9000).map(drop)
        })
        .await;
        ip(&namespace, "link set east-peer down");
        wait(&mirror, "no carrier", |now| {
            now.links
                .get(&a)
                .filter(|link| link.up && !link.carrier)
                .map(drop)
        })
        .await;
    });
}

#[test]
fn routes_that_go_without_a_word_go_here_too() {
    let namespace = two_networks();
    inside(&namespace, async || {
        ip(&namespace, "addr add 192.0.2.2/24 dev east");
        ip(&namespace, "route add 10.1.0.0/16 via 198.51.100.9");
        ip(
            &namespace,
            "route add 10.2.0.0/16 via 198.51.100.9 src 192.0.2.2",
        );
        ip(&namespace, "nexthop add id 5 via 192.0.2.9 dev east");
        ip(&namespace, "route add 10.3.0.0/16 nhid 5");
        let mirror = Mirror::start().await.expect("a mirror");
        let gone =
            |dst: &'static str| move |now: &Snapshot| route(now, 254, dst).is_none().then_some(());
        assert!(
            ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]
                .iter()
                .all(|dst| route(&mirror.snapshot(), 254, dst).is_some())
        );
        ip(&namespace, "addr del 192.0.2.2/24 dev east");
        wait(&mirror, "end of a route by its source", gone("10.2.0.0/16")).await;
        ip(&namespace, "nexthop del id 5");
        wait(&mirror, "end of a route by its object", gone("10.3.0.0/16")).await;
        ip(&namespace, "link set west down");
        wait(&mirror, "end of a route by its link", gone("10.1.0.0/16")).await;
    });
}

#[test]
fn routes_of_one_key_are_in_the_order_that_the_kernel_uses_them() {
    let namespace = two_networks();
    inside(&namespace, async || {
        ip(&namespace, "addr add 192.0.2.2/24 dev east");
        ip(
            &namespace,
            "route add 10.2.0.0/16 via 198.51.100.9 src 192.0.2.2",
        );
        ip(&namespace, "route add 10.1.0.0/16 via 192.0.2.9");
        ip(&namespace, "route append 10.1.0.0/16 via 198.51.100.9");
        let mirror = Mirror::start().await.expect("a mirror");
        let gateways = |now: &Snapshot| -> Vec<String> {
            let to = "10.1.0.0/16".parse().expect("a prefix");
            let sets = now.routes.iter().filter(|(key, _)| key.dst == to);
            let routes = sets.flat_map(|(_, set)| &set.routes);
            let gateway = |route: &butterfly_netlink::Route| route.hops[0].gateway;
            routes
                .filter_map(gateway)
                .map(|ip| ip.to_string())
                .collect()
        };
        assert_eq!(
            gateways(&mirror.snapshot()),
            ["192.0.2.9", "198.51.100.9"],
            "of the first dump"
        );
        ip(&namespace, "route prepend 10.1.0.0/16 via 192.0.2.8");
        let all = ["192.0.2.8", "192.0.2.9", "198.51.100.9"];
        wait(&mirror, "a route in front of the others", |now| {
            (gateways(now) == all).then_some(())
        })
        .await;
        // All routes are asked for again.
        ip(&namespace, "addr del 192.0.2.2/24 dev east");
        wait(&mirror, "end of a route by its source", |now| {
            route(now, 254, "10.2.0.0/16").is_none().then_some(())
        })
        .await;
        assert_eq!(gateways(&mirror.snapshot()), all);
    });
}

#[test]
fn of_two_rules_that_look_alike_one_is_left() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let rules = |now: &Snapshot| now.rules.iter().filter(|r| r.priority == 100).count();
        let rule = |verb, port| format!("rule {verb} pref 100 ipproto tcp dport {port} table 77");
        for (verb, port, left) in [("add", 80, 1), ("add", 443, 2), ("del", 80, 1)] {
            ip(&namespace, &rule(verb, port));
            wait(&mirror, "as many rules as the kernel's", |now| {
                (rules(now) == left).then_some(())
            })
            .await;
        }
        ip(&namespace, &rule("del", 443));
        wait(&mirror, "no rule", |now| (rules(now) == 0).then_some(())).await;
    });
}

#[test]
fn routes_that_differ_in_a_metric_are_two() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let to = "10.1.0.0/16".parse().expect("a prefix");
        let routes = |now: &Snapshot| {
            let sets = now.routes.iter().filter(|(key, _)| key.dst == to);
            sets.map(|(_, set)| set.routes.len()).sum::<usize>()
        };
        for (verb, window, left) in [("add", 1000, 1), ("append", 2000, 2), ("del", 1000, 1)] {
            let route = format!("route {verb} 10.1.0.0/16 via 192.0.2.9 window {window}");
            ip(&namespace, &route);
            wait(&mirror, "as many routes as the kernel's", |now| {
                (routes(now) == left).then_some(())
            })
            .await;
        }
    });
}

#[test]
fn a_watch_says_what_kinds_changed_since_it_looked() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let a = index(&mirror.snapshot(), "east");
        let (mut early, mut late) = (mirror.watch(), mirror.watch());
        ip(&namespace, "rule add pref 100 from 10.1.0.0/16 table 77");
        loop {
            let (now, kinds) = early.changed().await.expect("a change");
            assert!(!kinds.is_empty());
            if kinds.any(Kinds::RULES) {
                assert!(now.rules.iter().any(|rule| rule.priority == 100));
                break;
            }
        }
        ip(&namespace, "link set east mtu 1400");
        wait(&mirror, "mtu", |now| {
            now.links.get(&a).filter(|link| link.mtu == 1400).map(drop)
        })
        .await;
        let (_, kinds) = late.changed().await.expect("a change");
        assert!(
            kinds.any(Kinds::RULES) && kinds.any(Kinds::LINKS) && !kinds.any(Kinds::NEXTHOPS),
            "{kinds:?}"
        );
    });
}
