//! Changes in great numbers: none is lost, whether they come before, during or after the dump.

use crate::follow::{inside, ip, two_networks, wait};
use butterfly_netlink::{Mirror, Snapshot};
use std::collections::BTreeSet;
use std::fmt::Write;
use testkit::netns::Namespace;

const ROUTES: u32 = 100_000;

fn batch(
    namespace: &Namespace,
    verb: &str,
    numbers: impl Iterator<Item = u32>,
) -> testkit::process::Process {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut text = String::new();
    for n in numbers {
        let [_, x, y, z] = n.to_be_bytes();
        writeln!(
            text,
            "route {verb} 10.{x}.{y}.{z}/32 via 192.0.2.{}",
            2 + n % 200
        )
        .expect("a string grows");
    }
    std::fs::write(file.path(), text).expect("write");
    let (_, path) = file.keep().expect("keep");
    let path = path.display();
    namespace
        .start("batch", &format!("sh -c 'ip -batch {path}; rm {path}'"))
        .expect("ip -batch")
}

fn tens(snapshot: &Snapshot) -> usize {
    let ten = |key: &&butterfly_netlink::RouteKey| {
        key.table == 254 && key.dst.to_string().starts_with("10.")
    };
    snapshot.routes.keys().filter(ten).count()
}

/// What the kernel itself lists in table main.
fn listed(namespace: &Namespace) -> BTreeSet<String> {
    let text = namespace.ok("ip route show").expect("ip route");
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The main table's prefixes in the mirror, as `ip` prints them: hosts without their length.
fn mirrored(snapshot: &Snapshot) -> BTreeSet<String> {
    let main = snapshot
        .routes
        .keys()
        .filter(|key| key.table == 254 && key.dst.addr().is_ipv4());
    main.map(|key| key.dst.to_string().trim_end_matches("/32").to_owned())
        .collect()
}

#[test]
fn a_flood_of_routes_is_followed() {
    let namespace = two_networks();
    let mut adding = batch(&namespace, "add", 0..ROUTES);
    inside(&namespace, async || {
        // The flood is under way while the mirror reads what there is.
        let mirror = Mirror::start().await.expect("a mirror");
        adding
            .wait(std::time::Duration::from_secs(60))
            .expect("all added");
        wait(&mirror, "all routes", |now| {
            (tens(now) == ROUTES as usize).then_some(())
        })
        .await;
        let before = mirror.snapshot();
        let sets: BTreeSet<_> = before.routes.values().map(std::sync::Arc::as_ptr).collect();
        assert!(
            sets.len() < 300,
            "equal routes are stored once, not {} times",
            sets.len()
        );

        // Half of it goes, and comes back elsewhere, in one go.
        let odd = || (0..ROUTES).filter(|n| n % 2 == 1);
        let mut removing = batch(&namespace, "del", odd());
        removing
            .wait(std::time::Duration::from_secs(60))
            .expect("half removed");
        wait(&mirror, "half of them", |now| {
            (tens(now) == ROUTES as usize / 2).then_some(())
        })
        .await;
        assert_eq!(mirrored(&mirror.snapshot()), listed(&namespace));

        // One change among many is found without looking at the rest.
        let quiet = mirror.snapshot();
        ip(&namespace, "route add 172.16.0.0/16 via 192.0.2.9");
        wait(&mirror, "one more", |now| {
            (now.routes.len() == quiet.routes.len() + 1).then_some(())
        })
        .await;
        let after = mirror.snapshot();
        assert_eq!(quiet.routes.diff(&after.routes).count(), 1);
    });
}
