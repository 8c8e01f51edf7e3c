//! Next-hop objects: routes follow what their object becomes.

use crate::follow::{index, inside, ip, two_networks, wait};
use butterfly_netlink::{Mirror, RouteKey, Snapshot};

/// The interfaces and weights that the route to 10.0.0.0/8 leads to.
fn hops(now: &Snapshot) -> Option<Vec<(u32, u32)>> {
    let key = RouteKey {
        table: 254,
        dst: "10.0.0.0/8".parse().expect("a prefix"),
        tos: 0,
        metric: 0,
    };
    let hops = now.hops(&now.routes.get(&key)?.routes[0]);
    Some(hops.iter().map(|hop| (hop.ifindex, hop.weight)).collect())
}

#[test]
fn a_route_by_object_follows_its_object() {
    let namespace = two_networks();
    inside(&namespace, async || {
        let mirror = Mirror::start().await.expect("a mirror");
        let (a, b) = (
            index(&mirror.snapshot(), "east"),
            index(&mirror.snapshot(), "west"),
        );
        ip(&namespace, "nexthop add id 1 via 192.0.2.9 dev east");
        ip(&namespace, "nexthop add id 2 via 198.51.100.9 dev west");
        ip(&namespace, "nexthop add id 10 group 1,7/2,200");
        ip(&namespace, "route add 10.0.0.0/8 nhid 10");
        let first = wait(&mirror, "route by group", |now| {
            hops(now).filter(|hops| !hops.is_empty())
        })
        .await;
        assert_eq!(first, [(a, 7), (b, 200)]);
        ip(&namespace, "nexthop replace id 10 group 2");
        wait(&mirror, "smaller group", |now| {
            hops(now).filter(|hops| *hops == [(b, 1)])
        })
        .await;
        ip(&namespace, "nexthop add id 3 blackhole");
        wait(&mirror, "blackhole", |now| {
            now.nexthops
                .get(&3)
                .filter(|object| object.blackhole)
                .map(drop)
        })
        .await;
    });
}

#[test]
fn an_object_that_goes_with_the_carrier_goes_here_too() {
    let namespace = two_networks();
    inside(&namespace, async || {
        ip(&namespace, "nexthop add id 5 via 192.0.2.9 dev east");
        ip(&namespace, "route add 10.0.0.0/8 nhid 5");
        let mirror = Mirror::start().await.expect("a mirror");
        let east = index(&mirror.snapshot(), "east");
        assert_eq!(hops(&mirror.snapshot()), Some(vec![(east, 1)]));
        ip(&namespace, "link set east-peer down");
        wait(&mirror, "end of an object and its route", |now| {
            (now.nexthops.is_empty() && hops(now).is_none()).then_some(())
        })
        .await;
    });
}

#[test]
fn a_group_is_without_the_member_whose_interface_was_down() {
    for flap in [
        ["link set west-peer down", "link set west-peer up"],
        ["link set west down", "link set west up"],
    ] {
        let namespace = two_networks();
        inside(&namespace, async || {
            ip(&namespace, "nexthop add id 1 via 192.0.2.9 dev east");
            ip(&namespace, "nexthop add id 2 via 198.51.100.9 dev west");
            ip(&namespace, "nexthop add id 10 group 1/2");
            ip(&namespace, "route add 10.0.0.0/8 nhid 10");
            let mirror = Mirror::start().await.expect("a mirror");
            let east = index(&mirror.snapshot(), "east");
            let west = index(&mirror.snapshot(), "west");
            let both = vec![(east, 1), (west, 1)];
            assert_eq!(hops(&mirror.snapshot()), Some(both));
            ip(&namespace, flap[0]);
            wait(&mirror, "interface without carrier", |now| {
                (!now.links.get(&west)?.carrier).then_some(())
            })
            .await;
            ip(&namespace, flap[1]);
            wait(&mirror, "smaller group", |now| {
                let alone = !now.nexthops.contains_key(&2) && hops(now)? == [(east, 1)];
                (alone && now.links.get(&west)?.carrier).then_some(())
            })
            .await;
        });
    }
}
