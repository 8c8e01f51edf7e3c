//! Uplinks that DPDK drives: two hosts joined by a cable, of which one or both have the cable's end
//! by a virtual device of DPDK's, which is a real driver with real queues. `make test-dpdk` builds
//! a daemon that has DPDK; with any other this skips.

use std::path::{Path, PathBuf};
use std::process::Command;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::{number, program};
use butterfly_tests::hosts::{
    Family, Host, Hosts, UPLINK, answers, cable, kernel_vxlan, mac, serve, tool,
};
use butterfly_tests::lab::check;
use butterfly_tests::testpmd::Testpmd;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::netns::Namespace;
use testkit::process;
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
        two_hosts_by_tap,
        one_host_by_tap_beside_the_kernel,
        one_host_by_ring,
        one_host_by_a_bond_beside_one_by_xdp,
        two_hosts_by_virtio_user_and_testpmd,
        several_queues_by_virtio_user_and_testpmd,
        several_queues_by_af_packet,
        several_queues_by_tap,
        what_cannot_be_is_said,
        the_link_is_followed,
        the_other_side_goes_and_returns,
        a_bond_goes_on_by_its_other_leg,
        what_a_device_does_not_take_is_lost,
        a_device_that_is_taken_out,
        larger_frames,
    ])
}

/// What DPDK is started with: memory of no kind that has to be reserved, and these devices.
fn words(devices: &[&str]) -> String {
    let devices = devices.iter().map(|device| format!(" --vdev={device}"));
    format!("--no-huge -m 192 --no-pci{}", devices.collect::<String>())
}

/// A host by this device of DPDK's, which has the cable's end.
fn start(namespace: Namespace, host: u8, family: Family, device: &str) -> Result<Host> {
    alone(&namespace)?;
    start_with(namespace, host, family, &[device], &[])
}

/// The cable's end would hear all that comes a second time, as no NIC of DPDK's does.
fn alone(namespace: &Namespace) -> Result<()> {
    bare(namespace, UPLINK)?;
    let table = format!(
        "nft 'table netdev alone {{ chain in {{ type filter hook ingress device {UPLINK} priority \
         0; policy drop; }}; }}'"
    );
    namespace.ok(&table).map(drop)
}

/// A host by these devices of DPDK's and further options, with its addresses on the kernel's end.
fn start_with(
    namespace: Namespace,
    host: u8,
    family: Family,
    devices: &[&str],
    more: &[&str],
) -> Result<Host> {
    let words = words(devices);
    let mut options = vec!["--dpdk-args", &words];
    options.extend(more);
    let started = Host::start(namespace, host, family, &options)?;
    started.namespace.ok(&format!(
        "set -e; sysctl -qw net.ipv6.conf.dpdk0.accept_dad=0
         ip addr add {}/24 dev dpdk0; ip addr add {}/64 dev dpdk0 nodad",
        Family::V4.address(host),
        Family::V6.address(host),
    ))?;
    Ok(started)
}

/// An interface that is up and that the kernel does not speak by.
fn bare(namespace: &Namespace, interface: &str) -> Result<()> {
    let quiet = format!(
        "set -e; sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=1
         ip addr flush dev {interface}; ip link set {interface} up"
    );
    namespace.ok(&quiet).map(drop)
}

/// Joins the kernel's end of a TAP device of DPDK's with a cable's end: what comes by one leaves by
/// the other, before the kernel sees it.
fn patch(namespace: &Namespace, wire: &str, cable: &str) -> Result<()> {
    bare(namespace, wire)?;
    let chain = |from: &str, to: &str| {
        format!(
            "chain {from} {{ type filter hook ingress device {from} priority 0; fwd to \"{to}\"; \
             }};"
        )
    };
    let (there, back) = (chain(wire, cable), chain(cable, wire));
    let table = format!("nft 'table netdev of_{wire} {{ {there} {back} }}'");
    namespace.ok(&table).map(drop)
}

/// A host by DPDK's TAP device, whose other end is patched to the cable's.
fn start_by_tap(namespace: Namespace, host: u8, family: Family, more: &[&str]) -> Result<Host> {
    bare(&namespace, UPLINK)?;
    let host = start_with(namespace, host, family, &["net_tap0,iface=wire0"], more)?;
    patch(&host.namespace, "wire0", UPLINK)?;
    Ok(host)
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
    let _servers = [
        serve(&b, "tcp-serve 80")?,
        serve(&b, "tcp-sink 81")?,
        serve(&b, "udp-serve 53")?,
    ];
    for to in ["10.1.0.2", "fd01::2"] {
        a.ok(&tool(&format!("udp-ping {to} 53 30 1000")))?;
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
    // Whoever has made them.
    for guest in [&a, &b] {
        let said = guest.ok("grep -E 'Tcp:|Udp:' /proc/net/snmp")?;
        for protocol in ["Tcp", "Udp"] {
            let (came, wrong) = (
                counter(&said, protocol, "In"),
                counter(&said, protocol, "InCsumErrors"),
            );
            check(
                came > Some(0) && wrong == Some(0),
                &format!("checksums of {protocol} are right:\n{said}"),
            )?;
        }
    }
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

/// The first counter of /proc/net/snmp whose name begins so.
fn counter(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let found = both.find(|(one, _)| one.starts_with(name));
    found.and_then(|(_, value)| value.parse().ok())
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
        let shown = uplink(&hosts.left.daemon)?;
        let mode = "DPDK, net_af_packet, net_af_packet0";
        check(shown["mode"] == mode, &format!("it says by what: {shown}"))?;
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

fn two_hosts_by_tap() -> Result<()> {
    let (left, right) = cable(1500)?;
    let hosts = Hosts {
        left: start_by_tap(left, 1, Family::V4, &[])?,
        right: start_by_tap(right, 2, Family::V4, &[])?,
    };
    on(&hosts, || {
        speak(&hosts)?;
        let shown = uplink(&hosts.left.daemon)?;
        let mode = "DPDK, net_tap, net_tap0, checksum offload";
        check(shown["mode"] == mode, &format!("it makes them: {shown}"))
    })?;
    end(hosts)
}

/// A guest of a host and the kernel's own VXLAN as the other host, which has `device` in `far` on
/// the same wire: all that they say passes, and so does what the kernels say.
fn speak_with_the_kernel(host: &Host, far: &Namespace, device: &str) -> Result<()> {
    let near = &host.namespace;
    far.ok(&format!(
        "set -e; sysctl -qw net.ipv6.conf.{device}.accept_dad=0; ip link set {device} up
         ip addr replace 192.0.2.2/24 dev {device}
         ip addr replace fd0c::2/64 dev {device} nodad"
    ))?;
    for to in ["192.0.2.2", "fd0c::2"] {
        answers(near, to)?;
    }
    let said = near.ok("ping -c 3 -i 0.2 -W 5 192.0.2.2")?;
    check(!said.contains("DUP"), &format!("once each:\n{said}"))?;
    check(
        near.ok("ip neigh show dev dpdk0")?.contains("192.0.2.2"),
        "the neighbour is the kernel's, on its end",
    )?;
    kernel_vxlan(far, device, "192.0.2.2", "192.0.2.1")?;
    // It hears no group: it is told to us as a host.
    host.daemon.cli("host add 192.0.2.2 --vni 42")?;
    let a = host.guest("a", 42, 1)?;
    a.ok("ip link set eth0 mtu 1430")?;
    let _servers = [serve(far, "tcp-serve 80")?, serve(&a, "tcp-serve 80")?];
    for (from, to) in [(&a, "10.1.0.2"), (far, "10.1.0.1"), (&a, "fd01::2")] {
        answers(from, to)?;
        from.ok(&tool(&format!("tcp-get {to} 80 3000000 30")))?;
    }
    let (sent, received) = moved(&host.daemon)?;
    check(
        sent > 200 && received > 2000,
        &format!("it all went by the uplink: {sent} sent, {received} received"),
    )
}

/// DPDK's TAP device, whose other end is a cable's to the kernel of another host.
fn one_host_by_tap_beside_the_kernel() -> Result<()> {
    let (near, far) = cable(1500)?;
    let host = start_by_tap(near, 1, Family::V4, &[])?;
    speak_with_the_kernel(&host, &far, UPLINK).map_err(|e| format!("{e}\n{}", host.daemon.dump()))
}

/// A ring brings back whatever is sent by it, as a wire with a hub does. So the other host, which
/// has an address of its own on the kernel's end, hears us by it, and we hear that.
fn one_host_by_ring() -> Result<()> {
    let far = Namespace::new()?;
    let host = start_with(Namespace::new()?, 1, Family::V4, &["net_ring0"], &[])?;
    // VEPA: also what is for the host below leaves by the wire.
    host.namespace.ok(&format!(
        "ip link add hub link dpdk0 type macvlan mode vepa && ip link set hub netns {}",
        far.pid()
    ))?;
    speak_with_the_kernel(&host, &far, "hub").map_err(|e| format!("{e}\n{}", host.daemon.dump()))
}

/// A bond of two TAP devices of DPDK's, one active, each patched to a cable. The other host has a
/// bridge over both. (DPDK's TAP device tells a bond of no link that goes.)
fn one_host_by_a_bond_beside_one_by_xdp() -> Result<()> {
    let (left, right) = cable(1500)?;
    let [a, b] = [left.pid(), right.pid()];
    process::run(&[
        "sh",
        "-c",
        &format!("ip link add name uplink1 netns {a} type veth peer name uplink1 netns {b}"),
    ])?;
    for interface in [UPLINK, "uplink1"] {
        bare(&left, interface)?;
        bare(&right, interface)?;
    }
    right.ok(&format!(
        "set -e; ip link add both type bridge; ip link set {UPLINK} master both
         ip link set uplink1 master both
         sysctl -qw net.ipv6.conf.both.accept_dad=0; ip link set both up
         ip addr add 192.0.2.2/24 dev both; ip addr add fd0c::2/64 dev both nodad"
    ))?;
    let devices = [
        "net_tap0,iface=wire0",
        "net_tap1,iface=wire1",
        "net_bonding0,mode=1,slave=net_tap0,slave=net_tap1",
    ];
    let hosts = Hosts {
        left: start_with(left, 1, Family::V4, &devices, &[])?,
        right: by_xdp(right, 2)?,
    };
    patch(&hosts.left.namespace, "wire0", UPLINK)?;
    patch(&hosts.left.namespace, "wire1", "uplink1")?;
    on(&hosts, || {
        let shown = uplink(&hosts.left.daemon)?.to_string();
        check(
            shown.contains("DPDK, net_bonding, net_bonding0"),
            &format!("it is the bond and no member: {shown}"),
        )?;
        speak(&hosts)
    })?;
    end(hosts)
}

/// testpmd as the wire: what comes by one vhost-user socket leaves by the other.
struct Wire {
    testpmd: Testpmd,
    dir: tempfile::TempDir,
    queues: u16,
    listens: Listens,
}

/// Who makes the vhost-user sockets.
#[derive(Clone, Copy, PartialEq)]
enum Listens {
    Testpmd,
    Hosts,
}

impl Wire {
    fn start(queues: u16, listens: Listens) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butterfly-wire-").tempdir();
        let dir = dir.map_err(|e| format!("cannot make a folder: {e}"))?;
        let wire = Self {
            testpmd: Self::launch(dir.path(), queues, listens)?,
            dir,
            queues,
            listens,
        };
        for end in [1, 2].into_iter().filter(|_| listens == Listens::Testpmd) {
            wait_for("testpmd to listen", PATIENCE, || {
                Ok(wire.end(end).exists().then_some(()))
            })
            .map_err(|e| format!("{e}\n{}", wire.testpmd.log()))?;
        }
        Ok(wire)
    }

    fn launch(dir: &Path, queues: u16, listens: Listens) -> Result<Testpmd> {
        let client = u8::from(listens == Listens::Hosts);
        let vdevs = [1, 2].map(|end| {
            let socket = dir.join(format!("end{end}"));
            let socket = socket.display();
            format!("net_vhost{end},iface={socket},queues={queues},client={client}")
        });
        let each = ["rxq", "txq"].map(|queue| format!("--{queue}={queues}"));
        // What happens to its ports it would say in the midst of answers.
        let events = ["--mask-event=intr_lsc", "--mask-event=queue_state"];
        let mut options = vec!["--port-topology=paired", "--total-num-mbufs=16384"];
        options.extend(events);
        options.extend(each.each_ref().map(String::as_str));
        let memory = ["--no-huge", "-m", "256", "--log-level=error"];
        Testpmd::launch(dir, &memory, &vdevs, &options)
    }

    fn end(&self, end: u8) -> PathBuf {
        self.dir.path().join(format!("end{end}"))
    }

    /// A device at one end, which gets this number.
    fn device(&self, number: usize, end: u8) -> String {
        format!(
            "net_virtio_user{number},path={},mac=52:54:00:00:0{number}:0{end},queues={},server={}",
            self.end(end).display(),
            self.queues,
            u8::from(self.listens == Listens::Hosts),
        )
    }

    /// A host at one end.
    fn host(&self, end: u8, more: &[&str]) -> Result<Host> {
        let device = self.device(0, end);
        let namespace = Namespace::new()?;
        start_with(namespace, end, Family::V4, &[&device], more)
            .map_err(|e| format!("{e}\n{}", self.testpmd.log()))
    }

    /// Lets frames pass.
    fn begin(&mut self) -> Result<()> {
        self.testpmd.wait_ready()?;
        self.testpmd.ask("start").map(drop)
    }

    /// Another one in the place of one that has ended.
    fn restart(&mut self) -> Result<()> {
        self.testpmd = Self::launch(self.dir.path(), self.queues, self.listens)?;
        self.begin()
    }
}

/// Another driver, another device, and a program between them that shares no code with ours.
fn two_hosts_by_virtio_user_and_testpmd() -> Result<()> {
    let mut wire = Wire::start(1, Listens::Testpmd)?;
    let hosts = Hosts {
        left: wire.host(1, &[])?,
        right: wire.host(2, &[])?,
    };
    wire.begin()?;
    on(&hosts, || {
        speak(&hosts)?;
        let shown = uplink(&hosts.left.daemon)?;
        let mode = "DPDK, net_virtio_user, net_virtio_user0, checksum offload";
        check(shown["mode"] == mode, &format!("it says by what: {shown}"))
    })
    .map_err(|e| format!("{e}\n--- testpmd\n{}", wire.testpmd.log()))?;
    end(hosts)
}

/// A guest on each worker of both hosts, which all speak at once.
fn speak_by_all_workers(hosts: &Hosts) -> Result<()> {
    speak(hosts)?;
    let (left, right) = (&hosts.left, &hosts.right);
    let mut guests = Vec::new();
    for last in [11, 13, 15, 17] {
        let there = left.guest(&format!("l{last}"), 42, last)?;
        let here = right.guest(&format!("r{last}"), 42, last + 1)?;
        let to = format!("10.1.0.{}", last + 1);
        answers(&there, &to)?;
        guests.push((there, here, to));
    }
    for (from, _, to) in &guests {
        let said = from.ok(&format!("ping -q -c 300 -i 0.002 -W 5 {to}"))?;
        check(
            said.contains("300 received"),
            &format!("all of them:\n{said}"),
        )?;
    }
    Ok(())
}

/// How many queues the uplink of each host has.
fn check_queues(hosts: &Hosts, counts: [u64; 2]) -> Result<()> {
    for (host, count) in [&hosts.left, &hosts.right].into_iter().zip(counts) {
        let shown = uplink(&host.daemon)?;
        check(
            number(&shown["queues"]) == Some(count),
            &format!("it has {count} queues: {shown}"),
        )?;
    }
    Ok(())
}

/// testpmd says by which queues it has heard from each host and has spoken to it.
fn several_queues_by_virtio_user_and_testpmd() -> Result<()> {
    let mut wire = Wire::start(2, Listens::Testpmd)?;
    let hosts = Hosts {
        left: wire.host(1, &["--workers", "2"])?,
        right: wire.host(2, &["--workers", "2"])?,
    };
    wire.begin()?;
    on(&hosts, || {
        check_queues(&hosts, [2, 2])?;
        speak_by_all_workers(&hosts)
    })
    .map_err(|e| format!("{e}\n--- testpmd\n{}", wire.testpmd.log()))?;
    for port in [0, 1] {
        let said = wire.testpmd.ask(&format!("show port xstats {port}"))?;
        for queue in ["rx_q0", "rx_q1", "tx_q0", "tx_q1"] {
            let name = format!("{queue}_packets: ");
            let count = said.lines().find_map(|line| line.strip_prefix(&name));
            let count = count.and_then(|count| count.trim().parse::<u64>().ok());
            check(
                count.is_some_and(|count| count > 100),
                &format!("{queue} of port {port} is used:\n{said}"),
            )?;
        }
    }
    end(hosts)
}

/// The kernel spreads over all queues of the device: of the host with one worker that has them all.
fn several_queues_by_af_packet() -> Result<()> {
    let (left, right) = cable(1500)?;
    let device = format!("net_af_packet0,iface={UPLINK},qpairs=2");
    let by = |namespace: Namespace, host, workers| {
        alone(&namespace)?;
        start_with(
            namespace,
            host,
            Family::V4,
            &[&device],
            &["--workers", workers],
        )
    };
    let hosts = Hosts {
        left: by(left, 1, "2")?,
        right: by(right, 2, "1")?,
    };
    on(&hosts, || {
        check_queues(&hosts, [2, 2])?;
        speak_by_all_workers(&hosts)
    })?;
    end(hosts)
}

/// As many queues as workers.
fn several_queues_by_tap() -> Result<()> {
    let (left, right) = cable(1500)?;
    let hosts = Hosts {
        left: start_by_tap(left, 1, Family::V4, &["--workers", "3"])?,
        right: start_by_tap(right, 2, Family::V4, &["--workers", "1"])?,
    };
    on(&hosts, || {
        check_queues(&hosts, [3, 1])?;
        speak_by_all_workers(&hosts)
    })?;
    end(hosts)
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
    let options = words(&["net_tap0,iface=wire0"]);
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

/// A TAP device refuses what is sent while the kernel's end is down, and its driver is asked for
/// the link once a second. It is not tried for ever: the worker sleeps, and what comes later
/// passes.
fn what_a_device_does_not_take_is_lost() -> Result<()> {
    let (near, _far) = cable(1500)?;
    let host = start_by_tap(near, 1, Family::V4, &[])?;
    let near = &host.namespace;
    answers(near, "192.0.2.2")?;
    wait_for("frames that were lost", PATIENCE, || {
        near.ok("ip link set wire0 up")?;
        wait_for("a carrier", PATIENCE, || {
            let now = near.ok("ip link show dpdk0")?;
            Ok((!now.contains("NO-CARRIER")).then_some(()))
        })?;
        near.ok("ip link set wire0 down")?;
        near.succeeds("ping -q -c 50 -i 0.005 -W 1 192.0.2.2")?;
        let lost = number(&uplink(&host.daemon)?["lost_by_kernel"]);
        Ok((lost > Some(0)).then_some(()))
    })?;
    let asleep = || -> Result<(u64, u64)> {
        let all = host.daemon.json("worker list")?;
        let worker = &all["workers"][0];
        let read = |name: &str| number(&worker[name]).ok_or_else(|| format!("no {name}: {all}"));
        Ok((read("asleep_ns")?, read("time_ns")?))
    };
    wait_for("a worker that sleeps", PATIENCE, || {
        let before = asleep()?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = asleep()?;
        // Of half of the time it would be awake that polls a queue without end.
        Ok((2 * (now.0 - before.0) > now.1 - before.1).then_some(()))
    })?;
    near.ok("ip link set wire0 up")?;
    answers(near, "192.0.2.2").map_err(|e| format!("{e}\n{}", host.daemon.dump()))
}

/// testpmd ends and another one comes: the link is down and up again, and all passes as before. For
/// that the hosts' drivers listen.
fn the_other_side_goes_and_returns() -> Result<()> {
    let mut wire = Wire::start(1, Listens::Hosts)?;
    let hosts = Hosts {
        left: wire.host(1, &[])?,
        right: wire.host(2, &[])?,
    };
    wire.begin()?;
    on(&hosts, || {
        both_up(&hosts, true)?;
        let (a, _b) = (
            hosts.left.guest("a", 42, 1)?,
            hosts.right.guest("b", 42, 2)?,
        );
        answers(&a, "10.1.0.2")?;
        wire.testpmd.kill();
        both_up(&hosts, false)?;
        let said = hosts.left.daemon.cli("status")?;
        check(said.contains("dpdk0: link down"), &said)?;
        wire.restart()?;
        both_up(&hosts, true)?;
        answers(&a, "10.1.0.2")
    })
    .map_err(|e| format!("{e}\n--- testpmd\n{}", wire.testpmd.log()))?;
    end(hosts)
}

/// Waits until both uplinks have a link, or none, and their kernels know.
fn both_up(hosts: &Hosts, up: bool) -> Result<()> {
    wait_for(&format!("links that are up: {up}"), PATIENCE, || {
        let mut all = true;
        for host in [&hosts.left, &hosts.right] {
            let kernel = host.namespace.ok("ip link show dpdk0")?;
            all &= uplink(&host.daemon)?["up"] == up && kernel.contains("NO-CARRIER") != up;
        }
        Ok(all.then_some(()))
    })
}

/// Bonds of two virtio devices, one of them active, each on a wire of its own. Where a wire ends
/// all goes by the other one, in either order; the bond has a link as long as one of them has.
fn a_bond_goes_on_by_its_other_leg() -> Result<()> {
    let wire = || Wire::start(1, Listens::Hosts);
    let mut wires = [wire()?, wire()?];
    let host = |end| {
        let [one, other] = [0, 1].map(|leg| wires[leg].device(leg, end));
        let bond = "net_bonding0,mode=1,slave=net_virtio_user0,slave=net_virtio_user1";
        start_with(
            Namespace::new()?,
            end,
            Family::V4,
            &[&one, &other, bond],
            &[],
        )
    };
    let hosts = Hosts {
        left: host(1)?,
        right: host(2)?,
    };
    for wire in &mut wires {
        wire.begin()?;
    }
    let tried = on(&hosts, || {
        both_up(&hosts, true)?;
        let (a, b) = (
            hosts.left.guest("a", 42, 1)?,
            hosts.right.guest("b", 42, 2)?,
        );
        let _server = serve(&b, "tcp-serve 80")?;
        answers(&a, "10.1.0.2")?;
        for leg in [0, 1] {
            wires[leg].testpmd.kill();
            answers(&a, "10.1.0.2")?;
            a.ok(&tool("tcp-get 10.1.0.2 80 3000000 30"))?;
            both_up(&hosts, true)?;
            wires[leg].restart()?;
        }
        // What is said of the bond is what holds for both.
        wires.iter_mut().for_each(|wire| wire.testpmd.kill());
        both_up(&hosts, false)?;
        let said = hosts.left.daemon.cli("status")?;
        check(said.contains("dpdk0: link down"), &said)?;
        wires[1].restart()?;
        both_up(&hosts, true)?;
        answers(&a, "10.1.0.2")
    });
    let logs = wires.each_ref().map(|wire| wire.testpmd.log());
    tried.map_err(|e| format!("{e}\n--- testpmd\n{}", logs.join("\n---\n")))?;
    end(hosts)
}

/// The kernel says that a device was taken out of its slot: here the test says so in its place, of
/// a device that has none. The uplink is gone and says why, and all else goes on.
fn a_device_that_is_taken_out() -> Result<()> {
    let device = ["net_tap0,iface=wire0"];
    let host = start_with(Namespace::new()?, 1, Family::V4, &device, &[])?;
    let (a, _b) = (host.guest("a", 42, 1)?, host.guest("b", 42, 2)?);
    answers(&a, "10.1.0.2")?;
    check(
        uplink(&host.daemon)?["joined"] == true,
        "it is joined at first",
    )?;
    let message = "b'\\0'.join([b'remove@/net_tap0', b'ACTION=remove', b'SUBSYSTEM=pci', \
                   b'PCI_SLOT_NAME=net_tap0', b''])";
    host.namespace.ok(&format!(
        "python3 -c \"import socket as s; u = s.socket(s.AF_NETLINK, s.SOCK_DGRAM, 15); \
         u.bind((0, 0)); u.sendto({message}, (0, 1))\""
    ))?;
    let shown = wait_for("an uplink that is gone", PATIENCE, || {
        let shown = uplink(&host.daemon)?;
        Ok((shown["joined"] == false).then_some(shown))
    })
    .map_err(|e| format!("{e}\n{}", host.daemon.dump()))?;
    let why = "DPDK's device net_tap0 was taken away";
    check(shown["why"] == why, &format!("it says why: {shown}"))?;
    check(
        host.daemon.log().contains(why),
        &format!("and so does the log:\n{}", host.daemon.log()),
    )?;
    let kernel = host.namespace.ok("ip link show dpdk0")?;
    check(kernel.contains("NO-CARRIER"), &format!("no link: {kernel}"))?;
    a.ok("ping -q -c 3 -i 0.2 -W 5 10.1.0.2").map(drop)
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
