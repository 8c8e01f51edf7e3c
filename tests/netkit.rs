//! Containers behind netkit devices, which this machine's kernel may lack: in a guest with the
//! kernel of Debian 13. The router forwards between some; the switch makes others.

use std::net::Ipv4Addr;
use std::time::Duration;

use butterfly_tests::daemon::{number, program};
use butterfly_tests::lab::{Download, check, says, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine};
use testkit::{Result, wait_for};
use wire::Mac;
use wire::build;

/// How long what is awaited may take in a guest without KVM.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    run_each(trials![
        the_router_forwards_between_containers,
        the_switch_joins_containers,
    ])
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

/// Two hosts, which are namespaces with a daemon each: `h1` with the containers `c1`, `c2` and, at
/// the end, `c4`; `h2` with `c3`.
const HOSTS: &str = "set -e; modprobe tun
    for name in h1 h2 c1 c2 c3 c4; do ip netns add $name; ip -n $name link set lo up; done
    ip link add u1 netns h1 type veth peer name u2 netns h2
    for n in 1 2; do
        ip -n h$n addr add 192.0.2.$n/24 dev u$n; ip -n h$n link set u$n up; mkdir /run/h$n
    done";

/// Starts the daemon of a host, whose pairs are of that kind.
fn daemon(guest: &Guest, host: u32, pairs: &str) -> Result<()> {
    guest.ok(&format!(
        ": >/run/h{host}/log; ip netns exec h{host} butterflyd --no-syslog -i 192.0.2.{host} \
         -s /run/h{host} --api unix:/run/h{host}/api.sock --store /run/h{host}/store \
         --keeper /run/h{host}/keeper --uplink-mode packet --container-pairs {pairs} \
         >/run/h{host}/log 2>&1 & echo $! >/run/h{host}/pid"
    ))?;
    says(guest, &format!("/run/h{host}/log"), "is ready").map(drop)
}

/// A command of `butterfly` on a host.
fn cli(guest: &Guest, host: u32, line: &str) -> Result<String> {
    guest.ok(&format!("butterfly -e unix:/run/h{host}/api.sock {line}"))
}

/// The line that adds a container's NIC.
fn add(container: u32) -> String {
    format!(
        "nic add --id c{container} --vni 7 --mac 52:54:00:00:07:0{container} \
         --ip 10.7.0.{container}/24 fd17::{container}/64 --sg web --type veth \
         --path near{container} --netns c{container}"
    )
}

/// What a container has sent, by a number's name in the API.
fn sent(guest: &Guest, (host, container): (u32, u32), name: &str) -> Result<u64> {
    let text = cli(guest, host, &format!("nic stats c{container} --json"))?;
    let stats: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let number = number(&stats[0][name]);
    number.ok_or_else(|| format!("c{container} has no {name}:\n{text}"))
}

/// Frames of a container's that the kernel has forwarded.
fn by_kernel(guest: &Guest, container: (u32, u32)) -> Result<u64> {
    sent(guest, container, "egress_kernel_frames")
}

/// One container fetches from another in both families, and the kernel forwards nearly all of it.
/// Both are given by their host and their number.
fn fetches(guest: &Guest, from: (u32, u32), to: (u32, u32)) -> Result<()> {
    for far in [format!("10.7.0.{}", to.1), format!("fd17::{}", to.1)] {
        let within = format!("ip netns exec c{}", from.1);
        soon(guest, &format!("{within} ping -q -c 1 -W 1 {far}"))?;
        let before = [by_kernel(guest, from)?, by_kernel(guest, to)?];
        guest.ok(&format!("{within} guest tcp-get {far} 80 30000000 60"))?;
        for (side, before) in [from, to].into_iter().zip(before) {
            // Numbers are half a second late.
            wait_for("the kernel to forward", PATIENCE, || {
                Ok((by_kernel(guest, side)? > before + 100).then_some(()))
            })
            .map_err(|e| format!("c{} fetches from {far}, c{}: {e}", from.1, side.1))?;
        }
    }
    Ok(())
}

/// A packet socket of `c1` sends packets of a connection that the kernel forwards to `c2`. One that
/// it says is of another protocol than the frame has goes to the worker, who goes by the frame.
fn what_lies_beside_a_frame_is_not_believed(guest: &Guest) -> Result<()> {
    const SOURCE: u16 = 40_000;
    cli(guest, 1, "sg rule add web --ip-proto udp")?;
    guest.serve("ip netns exec c2 guest udp-serve 53")?;
    // Enough for the kernel to be told of it, until it is quiet for some seconds.
    let talk = || {
        guest.ok(&format!(
            "ip netns exec c1 guest udp-ping 10.7.0.2 53 40 100 {SOURCE}"
        ))
    };
    let mac = |number| Mac([0x52, 0x54, 0, 0, 7, number]);
    let ends = [1, 2].map(|number| Ipv4Addr::new(10, 7, 0, number));
    let frame = build::frame(mac(1), mac(2)).ip(ends[0], ends[1]);
    let frame = frame.udp(SOURCE, 53).payload(b"hello").build();
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let send = |protocol: &str, by_the_kernel: u64| {
        let before = (
            sent(guest, (1, 1), "egress_frames")?,
            by_kernel(guest, (1, 1))?,
        );
        guest.ok(&format!(
            "ip netns exec c1 guest frame eth0 {protocol} {hex}"
        ))?;
        wait_for("the frame to be counted", PATIENCE, || {
            Ok((sent(guest, (1, 1), "egress_frames")? > before.0).then_some(()))
        })?;
        // The kernel's part is half a second late.
        std::thread::sleep(Duration::from_secs(2));
        let forwarded = by_kernel(guest, (1, 1))? - before.1;
        check(
            forwarded == by_the_kernel,
            &format!("said to be of {protocol}, {forwarded} by the kernel, not {by_the_kernel}"),
        )
    };
    for protocol in ["8100", "86dd"] {
        talk()?;
        send("0800", 1)?;
        send(protocol, 0)?;
    }
    talk()?;
    send("0800", 1)
}

/// What a container's interface is made of, and its index there.
fn interface(guest: &Guest, host: u32, container: u32) -> Result<(String, String)> {
    let kind = guest.ok(&format!(
        "ip -d -n h{host} link show near{container} | grep -owE 'veth|netkit' | head -n 1"
    ))?;
    let index = guest.ok(&format!(
        "ip netns exec c{container} cat /sys/class/net/eth0/ifindex"
    ))?;
    Ok((kind.trim().to_owned(), index.trim().to_owned()))
}

/// Containers whose interfaces are netkit pairs, on one host and over the overlay: packets of known
/// connections go by the kernel, a rule that goes is in force at once, pairs and connections
/// outlive a daemon that is killed, and beside them is a container of the other kind.
fn the_switch_joins_containers() -> Result<()> {
    let machine = Machine::named("host")
        .with_tools()
        .with_programs(&[&program("butterfly"), &program("butterflyd")]);
    let guest = Guest::start(&Image::of_suite("trixie")?, &machine)?;
    let done = join_containers(&guest);
    done.map_err(|e| {
        let logs = guest.ok("tail -n 40 /run/h1/log /run/h2/log; true");
        format!("{e}\n{}", logs.unwrap_or_else(|e| e))
    })
}

fn join_containers(guest: &Guest) -> Result<()> {
    guest.ok(HOSTS)?;
    for host in [1, 2] {
        guest.ok(&format!(
            "butterflyd --no-syslog --as-keeper /run/h{host}/keeper >/run/h{host}/kept 2>&1 &"
        ))?;
        soon(guest, &format!("test -S /run/h{host}/keeper"))?;
        daemon(guest, host, "netkit")?;
        let far = 3 - host;
        let line = format!(
            "sg rule add web --ip-proto tcp + sg rule add web --ip-proto icmp + sg rule add web \
             --ip-proto icmpv6 + host add 192.0.2.{far} --vni 7"
        );
        cli(guest, host, &line)?;
    }
    for (host, container) in [(1, 1), (1, 2), (2, 3)] {
        cli(guest, host, &add(container))?;
        let (kind, _) = interface(guest, host, container)?;
        check(
            kind == "netkit",
            &format!("the interface of c{container} is of netkit, not {kind:?}"),
        )?;
    }
    for container in [1, 2, 3] {
        guest.serve(&format!("ip netns exec c{container} guest tcp-serve 80"))?;
    }
    fetches(guest, (1, 1), (1, 2))?;
    fetches(guest, (1, 1), (2, 3))?;
    what_lies_beside_a_frame_is_not_believed(guest)?;

    let download = Download::start_in(guest, "c1", "fd17::2", 80)?;
    cli(guest, 1, "sg rule del web --ip-proto tcp")?;
    download
        .stops()
        .map_err(|e| format!("without the rule: {e}"))?;
    cli(guest, 1, "sg rule add web --ip-proto tcp")?;

    // Killed: nothing passes while nobody judges, and then all goes on as it was.
    let download = Download::start_in(guest, "c1", "10.7.0.2", 80)?;
    let before = interface(guest, 1, 1)?;
    guest.ok("kill -9 $(cat /run/h1/pid)")?;
    download.stops().map_err(|e| format!("killed: {e}"))?;
    daemon(guest, 1, "veth")?;
    download.goes_on()?;
    check(
        interface(guest, 1, 1)? == before,
        "the container's interface is the one that it was",
    )?;
    fetches(guest, (1, 2), (2, 3))?;

    cli(guest, 1, &add(4))?;
    guest.serve("ip netns exec c4 guest tcp-serve 80")?;
    let (kind, _) = interface(guest, 1, 4)?;
    check(
        kind == "veth",
        &format!("a new one is of veth, not {kind:?}"),
    )?;
    fetches(guest, (1, 1), (1, 4))?;
    fetches(guest, (1, 4), (1, 1))?;

    cli(guest, 1, "nic del c1 c2 c4")?;
    guest
        .ok("! ip -n h1 link show near1 && ! ip -n c1 link show eth0")
        .map(drop)
}
