//! A namespace with a mirror in it.

use butterfly_netlink::{Mirror, Snapshot};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use testkit::netns::Namespace;

/// Runs a story inside the namespace, on a runtime of its own.
pub fn inside<F: Future<Output = ()>>(namespace: &Namespace, story: impl FnOnce() -> F + Send) {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(story());
    };
    namespace.inside(work).expect("enter the namespace");
}

/// Waits until the mirror shows what `seen` looks for.
pub async fn wait<T>(
    mirror: &Mirror,
    what: &str,
    mut seen: impl FnMut(&Snapshot) -> Option<T>,
) -> T {
    let mut watch = mirror.watch();
    let look = async {
        loop {
            if let Some(found) = seen(&mirror.snapshot()) {
                return found;
            }
            watch.changed().await.expect("the mirror goes on");
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), look).await;
    found.unwrap_or_else(|_| panic!("no {what}: {:#?}", mirror.snapshot()))
}

/// A command of a namespace that must succeed.
pub fn ip(namespace: &Namespace, command: &str) {
    namespace.ok(&format!("ip {command}")).expect("ip");
}

/// Two veth pairs, one end of each up: `east` with 192.0.2.1/24 and 2001:db8:a::1/64, `west` with
/// 198.51.100.1/24.
pub fn two_networks() -> Namespace {
    let namespace = Namespace::new().expect("a namespace");
    namespace
        .ok("sysctl -qw net.ipv6.conf.default.accept_dad=0")
        .expect("sysctl");
    for name in ["east", "west"] {
        ip(
            &namespace,
            &format!("link add {name} type veth peer name {name}-peer"),
        );
        ip(&namespace, &format!("link set {name}-peer up"));
        ip(&namespace, &format!("link set {name} up"));
    }
    ip(&namespace, "addr add 192.0.2.1/24 dev east");
    ip(&namespace, "addr add 2001:db8:a::1/64 dev east");
    ip(&namespace, "addr add 198.51.100.1/24 dev west");
    namespace
}

/// The index of an interface.
pub fn index(snapshot: &Arc<Snapshot>, name: &str) -> u32 {
    snapshot
        .link_named(name)
        .unwrap_or_else(|| panic!("no interface {name}"))
        .index
}
