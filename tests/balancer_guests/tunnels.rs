//! Sixteen services, of each family by each tunnel, and one server: a guest in which Linux itself
//! takes the tunnels off. Clients and the daemon are in namespaces of this machine.

use std::time::Duration;

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::lan::Lan;
use butterfly_tests::tunnels::{SERVER, TUNNELS};
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic};
use testkit::{Result, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client reaches the server by each, and the server's kernel counts it at the tunnel that was
/// meant.
pub fn every_tunnel_is_understood_by_linux() -> Result<()> {
    let lan = Lan::new()?;
    let client = lan.host("client", &["10.1.2.1/24", "fd01::1/64"])?;
    client
        .ok("ip route add 192.168.101.0/24 via 10.1.2.3 && ip route add fd99::/64 via fd01::3")?;
    let balancer = lan.host("balancer", &["10.1.2.3/24", "fd01::3/64"])?;
    let nic = Nic::new(lan.wire("server"), "52:54:00:00:00:10");
    let server = Guest::start(
        &Image::ready()?,
        &Machine::named("server").with(nic).with_tools(),
    )?;
    lan.join("server")?;
    server.ok(&format!("in=; {SERVER}"))?;
    let daemon = Daemon::start_on(Some(balancer.pid()), &[])?;
    daemon.cli("service interface add eth0 --mode generic")?;
    for (n, tunnel) in (1..).zip(&TUNNELS) {
        for (vip, port) in [
            (format!("192.168.101.{n}:80"), "5555"),
            (format!("[fd99::{n}]:80"), "5556"),
        ] {
            // A check goes through the tunnel as clients' packets do.
            daemon.cli(&format!(
                "service add {vip} --server {} --encapsulation {} --check http --check-interval \
                 5000 --check-timeout 5000",
                tunnel.server,
                tunnel.options.replace('%', port),
            ))?;
        }
    }
    wait_for("all checks to succeed", PATIENCE, || {
        let services = daemon.json("service show")?;
        let services = services.as_array().ok_or("no list of services")?;
        Ok(services
            .iter()
            .all(|service| service["healthy"] == 1)
            .then_some(()))
    })
    .map_err(|e| {
        format!(
            "{e}\n{}\n{}",
            daemon.cli("service show").unwrap_or_else(|e| e),
            daemon.dump()
        )
    })?;
    for (n, tunnel) in (1..).zip(&TUNNELS) {
        for (url, device) in [format!("192.168.101.{n}"), format!("[fd99::{n}]")]
            .iter()
            .zip(tunnel.devices)
        {
            let before = server.counter(device, "rx_packets")?;
            let page = client.ok(&format!("timeout 20 busybox wget -q -O - http://{url}/"))?;
            let what = format!("{url} by {} to {}", tunnel.options, tunnel.server);
            check(page == "served\n", &format!("{what}: {page:?}"))?;
            let packets = server.counter(device, "rx_packets")? - before;
            // SYN, ACK, request, FIN at least.
            check(
                packets >= 4,
                &format!("{what}: {packets} packets came out of {device}"),
            )?;
        }
    }
    Ok(())
}
