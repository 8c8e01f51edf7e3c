//! Sixteen services, of each family by each way, and one server: a guest in which Linux itself takes the tunnels off. Clients and
//! the daemon are in namespaces of this machine.

use std::time::Duration;

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::lan::Lan;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic};
use testkit::{Result, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// A way to the server.
struct Way {
    /// As the command line has it; `%` is the port that the server listens on for what is inside.
    options: &'static str,
    server: &'static str,
    /// The server's devices that packets come out of: those of IPv4, those of IPv6.
    devices: [&'static str; 2],
}

const V4: &str = "10.1.2.10";
const V6: &str = "fd01::10";

const WAYS: [Way; 8] = [
    Way {
        options: "ipip",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Way {
        options: "gre",
        server: V4,
        devices: ["gre0", "gre0"],
    },
    Way {
        options: "fou --tunnel-port %",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Way {
        options: "gue",
        server: V4,
        devices: ["tunl0", "sit0"],
    },
    Way {
        options: "ipip",
        server: V6,
        devices: ["six", "six"],
    },
    Way {
        options: "gre",
        server: V6,
        devices: ["gre6", "gre6"],
    },
    Way {
        options: "fou --tunnel-port %",
        server: V6,
        devices: ["six", "six"],
    },
    Way {
        options: "gue",
        server: V6,
        devices: ["six", "six"],
    },
];

/// What the server sets up: Linux's tunnels, and its addresses.
const SERVER: &str = "set -e
    ip addr add 10.1.2.10/24 dev eth0 && ip addr add fd01::10/64 dev eth0 nodad
    sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
    for n in 1 2 3 4 5 6 7 8; do ip addr add 192.168.101.$n dev lo; ip addr add fd99::$n dev lo; done
    for module in ipip sit ip_gre ip6_tunnel ip6_gre fou fou6; do modprobe $module; done
    for device in tunl0 sit0 gre0; do ip link set $device up; done
    ip link add six type ip6tnl mode any local fd01::10 remote fd01::3 && ip link set six up
    ip link add gre6 type ip6gre local fd01::10 remote fd01::3 && ip link set gre6 up
    ip fou add port 5555 ipproto 4 && ip fou add port 5556 ipproto 41 && ip fou add port 6080 gue
    ip fou add port 5555 ipproto 4 -6 && ip fou add port 5556 ipproto 41 -6 && ip fou add port 6080 gue -6
    mkdir -p /www && echo served >/www/index.html && httpd -h /www";

/// A client reaches the server by each, and the server's kernel counts it at the tunnel that was meant.
pub fn every_one() -> Result<()> {
    let lan = Lan::new()?;
    let client = lan.host("client", &["10.1.2.1/24", "fd01::1/64"])?;
    client.ok("ip route add 192.168.101.0/24 via 10.1.2.3 && ip route add fd99::/64 via fd01::3")?;
    let balancer = lan.host("balancer", &["10.1.2.3/24", "fd01::3/64"])?;
    let nic = Nic::new(lan.wire("server"), "52:54:00:00:00:10");
    let server = Guest::start(&Image::ready()?, &Machine::named("server").with(nic).with_tools())?;
    lan.join("server")?;
    server.ok(SERVER)?;
    let daemon = Daemon::start_on(Some(balancer.pid()), &[])?;
    daemon.cli("service interface add eth0 --mode generic")?;
    for (n, way) in (1..).zip(&WAYS) {
        for (vip, port) in [
            (format!("192.168.101.{n}:80"), "5555"),
            (format!("[fd99::{n}]:80"), "5556"),
        ] {
            // A check goes through the tunnel as clients' packets do.
            daemon.cli(&format!(
                "service add {vip} --server {} --encapsulation {} --check http --check-interval 5000 --check-timeout 5000",
                way.server,
                way.options.replace('%', port),
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
    for (n, way) in (1..).zip(&WAYS) {
        for (url, device) in [format!("192.168.101.{n}"), format!("[fd99::{n}]")]
            .iter()
            .zip(way.devices)
        {
            let before = server.counter(device, "rx_packets")?;
            let page = client.ok(&format!("timeout 20 busybox wget -q -O - http://{url}/"))?;
            let what = format!("{url} by {} to {}", way.options, way.server);
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
