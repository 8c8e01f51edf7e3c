//! Uplinks that DPDK drives: two hosts joined by a cable, of which one or both have the cable's end
//! by a virtual device of DPDK's, which is a real driver with real queues. `make test-dpdk` builds
//! a daemon that has DPDK; with any other this skips.

use std::process::Command;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::{number, program};
use butterfly_tests::hosts::{Family, Host, Hosts, UPLINK, answers, cable, mac, serve, tool};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    let help = Command::new(program("butterflyd"))
        .arg("--dpdk-help")
        .output();
    let has = help.is_ok_and(|said| said.stdout.starts_with(b"This daemon has DPDK"));
    if !has && !std::env::args().any(|word| word == "--list") {
        eprintln!("skipped: this butterflyd has no DPDK: `make test-dpdk` builds one that has");
        std::process::exit(0);
    }
    run_each(trials![
        two_hosts_by_af_packet,
        two_hosts_by_af_packet_over_ipv6,
        one_host_by_af_packet_beside_one_by_xdp,
        two_hosts_by_pcap,
        one_host_by_tap,
        what_cannot_be_is_said,
        the_link_is_followed,
        larger_frames,
    ])
}

/// What DPDK is started with: memory of no kind that has to be reserved, and one device.
fn words(device: &str) -> String {
    format!("--no-huge -m 192 --no-pci --vdev={device}")
}

/// A host by this device of DPDK's, with its addresses on the kernel's end of it. The cable's end
/// would hear all that comes a second time, as no NIC of DPDK's does.
fn start(namespace: Namespace, host: u8, family: Family, device: &str) -> Result<Host> {
    namespace.ok(&format!(
        "ip addr flush dev {UPLINK}; sysctl -qw net.ipv6.conf.{UPLINK}.disable_ipv6=1
         ip link set {UPLINK} up
         nft 'table netdev alone {{ chain in {{ type filter hook ingress device {UPLINK} priority 0; policy drop; }}; }}'"
    ))?;
    let started = Host::start(namespace, host, family, &["--dpdk-args", &words(device)])?;
    started.namespace.ok(&format!(
        "set -e; sysctl -qw net.ipv6.conf.dpdk0.accept_dad=0
         ip addr add {}/24 dev dpdk0; ip addr add {}/64 dev dpdk0 nodad",
        Family::V4.address(host),
        Family::V6.address(host),
    ))?;
    Ok(started)
}

fn by_xdp(namespace: Namespace, host: u8) -> Result<Host> {
    Host::start(namespace, host, Family::V4, &[])
}

/// Runs a trial on two hosts, and explains its failure.
fn on(hosts: &Hosts, trial: impl FnOnce() -> Result<()>) -> Result<()> {
    trial().map_err(|e| format!("{e}\n{}", hosts.dump()))
}

/// The uplink of a host as it says itself.
fn uplink(daemon: &Daemon) -> Result<serde_json::Value> {
    let all = daemon.json("uplink list")?;
    let first = all["uplinks"].as_array().and_then(|list| list.first());
    first.cloned().ok_or_else(|| format!("no uplink in {all}"))
}

/// Frames that a host has sent and taken by its uplink.
fn moved(daemon: &Daemon) -> Result<(u64, u64)> {
    let uplink = uplink(daemon)?;
    let counted =
        |name: &str| number(&uplink[name]).ok_or_else(|| format!("no {name} in {uplink}"));
    Ok((counted("sent_frames")?, counted("received_frames")?))
}

/// Guests of two hosts: all that they say passes, in both directions and whole; who is in no group
/// that lets it in hears nothing; and the kernels speak past it all.
fn speak(hosts: &Hosts) -> Result<()> {
    let (left, right) = (&hosts.left, &hosts.right);
    let a = left.guest("a", 42, 1)?;
    let b = right.guest("b", 42, 2)?;
    for to in ["10.1.0.2", "fd01::2"] {
        answers(&a, to)?;
    }
    let _servers = [serve(&b, "tcp-serve 80")?, serve(&b, "tcp-sink 81")?];
    for to in ["10.1.0.2", "fd01::2"] {
        a.ok(&tool(&format!("tcp-get {to} 80 3000000 30")))?;
        a.ok(&tool(&format!("tcp-put {to} 81 3000000 30")))?;
        // In fragments.
        a.ok(&format!("ping -q -c 3 -i 0.2 -W 5 -s 4000 {to}"))?;
    }
    let server = b.start("iperf3", "iperf3 -s --forceflush")?;
    wait_for("iperf3 to listen", PATIENCE, || {
        Ok(server.log().contains("listening").then_some(()))
    })?;
    let said = a.ok("iperf3 -c 10.1.0.2 -t 2 -J")?;
    let said: serde_json::Value =
        serde_json::from_str(&said).map_err(|e| format!("{e}: {said}"))?;
    let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
    println!("iperf3: {:.0} Mbit/s", rate.unwrap_or_default() / 1e6);
    check(rate.is_some_and(|rate| rate > 1e6), "iperf3 has a rate")?;
    // A guest without a group that lets anything in.
    let hidden = "nic add --id c --vni 42 --ip 10.1.0.3 --type tap --path bf-c --sg closed";
    right.daemon.cli("sg add closed")?;
    right.daemon.cli(&format!("{hidden} --mac {}", mac(3)))?;
    let c = Namespace::new()?;
    c.adopt_from(&right.namespace, "bf-c", &mac(3), &["10.1.0.3/24"])?;
    check(
        !a.succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.3")?,
        "a closed group is closed",
    )?;
    c.ok("ping -q -c 2 -i 0.2 -W 5 10.1.0.1")?;
    // The kernels of both.
    for to in [Family::V4.address(2), Family::V6.address(2)] {
        answers(&left.namespace, &to)?;
        left.namespace
            .ok(&format!("ping -q -c 2 -i 0.2 -W 5 {to}"))?;
    }
    Ok(())
}

/// A daemon that ends leaves nothing: its interface is gone, and it says nothing bad.
fn end(mut hosts: Hosts) -> Result<()> {
    for host in [&mut hosts.left, &mut hosts.right] {
        host.daemon.stop()?;
        let log = host.daemon.log();
        check(!log.contains("ERROR"), &format!("no errors:\n{log}"))?;
        let there = host.namespace.succeeds("ip link show dpdk0")?;
        check(!there, "the kernel's end is gone")?;
    }
    Ok(())
}

fn pair(family: Family, device: &str) -> Result<Hosts> {
    let (left, right) = cable(1500)?;
    Ok(Hosts {
        left: start(left, 1, family, device)?,
        right: start(right, 2, family, device)?,
    })
}

fn two_hosts_by_af_packet() -> Result<()> {
    let hosts = pair(Family::V4, &format!("net_af_packet0,iface={UPLINK}"))?;
    on(&hosts, || {
        speak(&hosts)?;
        let shown = uplink(&hosts.left.daemon)?.to_string();
        check(
            shown.contains("DPDK, net_af_packet, net_af_packet0"),
            &format!("it says by what: {shown}"),
        )?;
        // Counted one by one: as many as go are taken at the other end.
        let before = (moved(&hosts.left.daemon)?, moved(&hosts.right.daemon)?);
        check(
            before.0.0 > 1000 && before.1.1 > 1000,
            &format!("frames are counted: {before:?}"),
        )
    })?;
    end(hosts)
}

fn two_hosts_by_af_packet_over_ipv6() -> Result<()> {
    let hosts = pair(Family::V6, &format!("net_af_packet0,iface={UPLINK}"))?;
    on(&hosts, || speak(&hosts))?;
    end(hosts)
}

fn one_host_by_af_packet_beside_one_by_xdp() -> Result<()> {
    let (left, right) = cable(1500)?;
    let device = format!("net_af_packet0,iface={UPLINK}");
    let hosts = Hosts {
        left: start(left, 1, Family::V4, &device)?,
        right: by_xdp(right, 2)?,
    };
    on(&hosts, || speak(&hosts))?;
    end(hosts)
}

fn two_hosts_by_pcap() -> Result<()> {
    let hosts = pair(Family::V4, &format!("net_pcap0,iface={UPLINK}"))?;
    on(&hosts, || speak(&hosts))?;
    end(hosts)
}

/// DPDK's TAP device, whose other end is the kernel's: the kernel's own VXLAN is the other host.
fn one_host_by_tap() -> Result<()> {
    let namespace = Namespace::new()?;
    let far = Namespace::new()?;
    let options = words("net_tap0,iface=wire0");
    let daemon = Daemon::start_on(
        Some(namespace.pid()),
        &["-i", "192.0.2.1", "--dpdk-args", &options],
    )?;
    let host = Host { daemon, namespace };
    host.daemon.cli("sg rule add open --ip-proto all")?;
    let near = &host.namespace;
    near.ok("ip addr add 192.0.2.1/24 dev dpdk0")?;
    let to = far.pid();
    near.ok(&format!("ip link set wire0 netns {to}"))?;
    far.ok("ip link set wire0 up && ip addr add 192.0.2.2/24 dev wire0")?;
    let explained = |e: String| format!("{e}\n{}", host.daemon.dump());
    answers(near, "192.0.2.2").map_err(explained)?;
    let said = near.ok("ping -c 3 -i 0.2 -W 5 192.0.2.2")?;
    check(!said.contains("DUP"), &format!("once each:\n{said}"))?;
    check(
        near.ok("ip neigh show dev dpdk0")?.contains("192.0.2.2"),
        "the neighbour is the kernel's, on its end",
    )
}

/// Each message names what is wrong.
fn what_cannot_be_is_said() -> Result<()> {
    let namespace = Namespace::new()?;
    for (options, parts) in [
        (
            vec!["--dpdk-args", "--frobnicate"],
            vec!["--dpdk-args", "--frobnicate"],
        ),
        (
            vec![
                "--dpdk-args",
                "--no-huge --no-pci --vdev=net_af_packet0,iface=nowhere0",
            ],
            vec!["--dpdk-args", "net_af_packet0", "nowhere0"],
        ),
        (
            vec!["--dpdk-args", "--no-huge --no-pci --vdev=net_nothing0"],
            vec!["--dpdk-args", "net_nothing0"],
        ),
        (
            vec!["--dpdk-args", "--no-huge --no-pci"],
            vec!["--dpdk-args", "has found no device"],
        ),
        (
            vec![
                "--dpdk-args",
                "--no-huge --no-pci --vdev=net_null0",
                "--dpdk-port",
                "7",
            ],
            vec!["--dpdk-port 7", "0 (net_null0)"],
        ),
        (
            vec!["--dpdk-args", "-n x --no-huge --no-pci --vdev=net_null0"],
            vec!["--dpdk-args", "-n x"],
        ),
    ] {
        let mut all = vec!["-i", "192.0.2.1"];
        all.extend(&options);
        let why = match Daemon::start_on(Some(namespace.pid()), &all) {
            Ok(_) => return Err(format!("it starts with {options:?}")),
            Err(why) => why,
        };
        for part in parts {
            check(
                why.contains(part),
                &format!("'{part}' is named for {options:?}:\n{why}"),
            )?;
        }
    }
    let left = namespace.succeeds("ip link show dpdk0")?;
    check(!left, "nothing is left")
}

/// A link that goes down is seen by the kernel at its end, and in what the daemon says. Of DPDK's
/// virtual devices its TAP device looks.
fn the_link_is_followed() -> Result<()> {
    let namespace = Namespace::new()?;
    let options = words("net_tap0,iface=wire0");
    let daemon = Daemon::start_on(
        Some(namespace.pid()),
        &["-i", "192.0.2.1", "--dpdk-args", &options],
    )?;
    for up in [true, false, true] {
        let state = if up { "up" } else { "down" };
        namespace.ok(&format!("ip link set wire0 {state}"))?;
        wait_for(&format!("a carrier that is {state}"), PATIENCE, || {
            let now = namespace.ok("ip link show dpdk0")?;
            Ok((now.contains("NO-CARRIER") != up).then_some(()))
        })?;
        wait_for(&format!("its word that it is {state}"), PATIENCE, || {
            let said = daemon.cli("status")?;
            Ok((said.contains("dpdk0: link down") != up).then_some(()))
        })?;
    }
    Ok(())
}

/// The MTU that is set at the kernel's end is the device's: its queues are made anew.
fn larger_frames() -> Result<()> {
    let (left, right) = cable(1500)?;
    let device = format!("net_pcap0,iface={UPLINK}");
    let host = start(left, 1, Family::V4, &device)?;
    let _right = right;
    host.namespace.ok("ip link set dpdk0 mtu 1400")?;
    wait_for("an MTU of 1400", PATIENCE, || {
        let shown = uplink(&host.daemon)?;
        Ok((number(&shown["mtu"]) == Some(1400)).then_some(()))
    })
}
