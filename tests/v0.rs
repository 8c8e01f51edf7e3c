//! API v0 spoken by a client that shares nothing with ours (`v0_client.py`): libzmq, a protobuf
//! written by hand, another AES. It ends with the request that stops the daemon. And what a guest
//! may do on a NIC that was made over v0.

use butterfly_tests::Daemon;
use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::image::repository;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, process, wait_for};

/// 32 bytes of key in base64, as `openssl rand -base64 32` writes them.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

fn main() {
    let trials = vec![
        Trial::test("a_foreign_client_in_clear", || {
            run(false).map_err(Failed::from)
        }),
        Trial::test("a_foreign_client_encrypted", || {
            run(true).map_err(Failed::from)
        }),
        Trial::test("a_nic_of_v0_may_serve_dhcp_and_announce_routes", || {
            serves_its_neighbours().map_err(Failed::from)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn run(encrypted: bool) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let key = dir.path().join("key").display().to_string();
    std::fs::write(&key, KEY).map_err(|e| format!("cannot write {key}: {e}"))?;
    process::run(&["chmod", "600", &key])?;
    let options: &[&str] = &["-k", &key];
    let mut daemon = Daemon::start(if encrypted { options } else { &[] })?;

    let client = repository()
        .join("tests/v0_client.py")
        .display()
        .to_string();
    let (endpoint, folder) = (daemon.endpoint_v0(), daemon.dir().display().to_string());
    // Debian's own, whichever python comes first on the path: the packages of tools/setup.sh are
    // for this one.
    let mut words = vec!["/usr/bin/python3", &client, &endpoint, &folder];
    if encrypted {
        words.push(&key);
    }
    process::run(&words).map_err(|e| format!("{e}\n{}", daemon.log()))?;
    wait_for("the daemon to stop as it was told", PATIENCE, || {
        Ok((!daemon.is_running()).then_some(()))
    })
}

/// docs/v0.md D2: dnsmasq on a NIC that was made over v0 gives its neighbour a lease and, by router
/// advertisements, an IPv6 address, whatever the rules say; over v1 both rights are taken away.
fn serves_its_neighbours() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    let outcome = lease_and_advertisement(&daemon);
    outcome.map_err(|e| format!("{e}\n{}", daemon.dump()))
}

fn lease_and_advertisement(daemon: &Daemon) -> Result<()> {
    let server = container_over_v0(daemon, "server", 1)?;
    let client = container_over_v0(daemon, "client", 2)?;
    server.ok("ip addr add 10.7.0.1/24 dev eth0; ip addr add fd07::1/64 dev eth0")?;
    let leases = daemon.dir().join("leases");
    let _dnsmasq = server.start(
        "dnsmasq",
        &format!(
            "dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --port=0 --pid-file= \
             --interface=eth0 --bind-interfaces --dhcp-leasefile={} --no-ping \
             --dhcp-range=10.7.0.50,10.7.0.60,255.255.255.0,1h \
             --enable-ra --ra-param=eth0,4 --dhcp-range=::,constructor:eth0,ra-only",
            leases.display()
        ),
    )?;
    let lease = "busybox udhcpc -i eth0 -n -q -t 5 -T 1 -s /bin/true";
    client.ok(lease)?;
    let written = std::fs::read_to_string(&leases).map_err(|e| format!("no leases: {e}"))?;
    check(written.contains("52:54:00:00:07:02 10.7.0.5"), &written)?;

    client.ok("sysctl -q -w net.ipv6.conf.eth0.accept_ra=1 net.ipv6.conf.eth0.autoconf=1")?;
    let announced = || client.ok("ip -6 addr show dev eth0 scope global");
    wait_for("an address of the announced prefix", PATIENCE, || {
        Ok(announced()?.contains("inet6 fd07:").then_some(()))
    })?;

    // Over v1 the rights can be taken from it.
    daemon
        .cli("nic update server --allow-dhcp-server=false --allow-router-advertisements=false")?;
    check(!client.succeeds(lease)?, "its answers are dropped")?;
    let reasons = ["dhcp_server"];
    check(
        daemon.drops("server", "EGRESS", &reasons)? > 0,
        "and counted",
    )?;
    let reasons = ["router_advertisement"];
    wait_for("an advertisement to be dropped", PATIENCE, || {
        let drops = daemon.drops("server", "EGRESS", &reasons)?;
        Ok((drops > 0).then_some(()))
    })
}

/// A container behind a TAP NIC that our command line made over v0. Its group has no rules.
fn container_over_v0(daemon: &Daemon, name: &str, last: u8) -> Result<Namespace> {
    let (butterfly, endpoint) = (program("butterfly"), daemon.endpoint_v0());
    let (mac, device) = (format!("52:54:00:00:07:0{last}"), format!("bf-{name}"));
    let over_v0 = |words: &str| {
        let mut line = vec![butterfly.as_str(), "-e", &endpoint];
        line.extend(words.split(' '));
        process::run(&line)
    };
    over_v0(&format!("sg add {name}"))?;
    over_v0(&format!(
        "nic add --id {name} --mac {mac} --vni 7 --sg {name} --type tap --path {device}"
    ))?;
    let container = Namespace::new()?;
    container.adopt(&device, &mac, &[])?;
    Ok(container)
}
