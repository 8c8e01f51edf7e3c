//! Containers behind netkit devices, which this machine's kernel may lack: in a guest with the
//! kernel of Debian 13.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::{check, says, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::Result;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine};

fn main() {
    run_each(trials![the_router_forwards_between_containers])
}

/// Two containers, each behind a pair of netkit devices: packets as their sockets make them go
/// through the router in both families, and on when it ends.
fn the_router_forwards_between_containers() -> Result<()> {
    let machine = Machine::named("host")
        .with_tools()
        .with_programs(&[&program("butterfly")]);
    let host = Guest::start(&Image::of_suite("trixie")?, &machine)?;
    host.ok(
        "set -e; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
         for n in 1 2; do
             ip link add near$n type netkit; ip netns add c$n; ip link set nk0 netns c$n name eth0
             ip link set near$n up; ip -n c$n link set lo up; ip -n c$n link set eth0 up
             ip addr add 10.$n.0.1/24 dev near$n; ip addr add fd0$n::1/64 dev near$n nodad
             ip -n c$n addr add 10.$n.0.2/24 dev eth0; ip -n c$n addr add fd0$n::2/64 dev eth0 nodad
             ip -n c$n route add default via 10.$n.0.1; ip -n c$n -6 route add default via fd0$n::1
         done",
    )?;
    host.serve("ip netns exec c2 guest tcp-serve 80")?;
    host.ok(": >/run/said; butterfly forward near1 near2 >/run/said 2>&1 & echo $! >/run/pid")?;
    for line in [
        "taking over near1: at tc ingress (netkit).",
        "taking over near2: at tc ingress (netkit).",
    ] {
        says(&host, "/run/said", line)?;
    }
    for far in ["10.2.0.2", "fd02::2"] {
        soon(&host, &format!("ip netns exec c1 ping -q -c 1 -W 1 {far}"))?;
    }
    // Segments that are not cut, with checksums that are only begun.
    for far in ["10.2.0.2", "fd02::2"] {
        host.ok(&format!(
            "ip netns exec c1 guest tcp-get {far} 80 50000000 60"
        ))?;
    }
    host.ok("kill $(cat /run/pid)")?;
    let said = says(&host, "/run/said", "forwarded")?;
    // Of each direction and family.
    for line in said.lines().filter(|line| line.contains("forwarded ")) {
        let counts: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        check(
            counts.len() == 2 && counts.iter().all(|count| *count > 100),
            &format!("they went the fast way:\n{said}"),
        )?;
    }
    soon(&host, "ip netns exec c1 ping -q -c 1 -W 1 10.2.0.2")
}
