//! Next-hop objects: routes follow what their object becomes.

use crate::follow::{index, inside, ip, two_networks, wait};
use butterfly_netlink::{Mirror, RouteKey, Snapshot};

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
        let key = RouteKey {
            table: 254,
            dst: "10.0.0.0/8".parse().expect("a prefix"),
            tos: 0,
            metric: 0,
        };
        let hops = |now: &Snapshot| {
            let set = now.routes.get(&key)?;
            Some(
                now.hops(&set.routes[0])
                    .iter()
                    .map(|hop| (hop.ifindex, hop.weight))
                    .collect::<Vec<_>>(),
            )
        };
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
