//! A guest with another kernel than this machine's: as a peer on a cable, with devices that this
//! machine's kernel may lack, and as the host that our programs run on.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::{check, says};
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use std::time::Duration;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{Result, wait_for};

fn main() {
    run_each(trials![
        a_peer_with_its_own_kernel,
        our_programs_on_its_kernel,
        a_virtio_nic_of_buffers_is_at_tc_ingress,
    ])
}

/// On a cable with a namespace of this machine; its modules come when somebody asks for them.
fn a_peer_with_its_own_kernel() -> Result<()> {
    let host = Namespace::new()?;
    let nic = Nic::new(Wire::tap(&host, "to-peer"), "52:54:00:00:00:01");
    let machine = Machine::named("peer").with(nic).with_tools();
    let peer = Guest::start(&Image::ready()?, &machine)?;
    host.ok("ip addr add 10.9.0.1/24 dev to-peer && ip addr add fd09::1/64 dev to-peer nodad")?;
    peer.ok("ip addr add 10.9.0.2/24 dev eth0 && ip addr add fd09::2/64 dev eth0 nodad")?;
    for to in ["10.9.0.2", "fd09::2"] {
        host.ok(&format!("ping -q -c 2 -i 0.2 -W 5 {to}"))?;
    }
    peer.ok("mkdir /www && echo peer > /www/index.html && httpd -h /www")?;
    let page = host.ok("busybox wget -q -O - http://10.9.0.2/")?;
    check(page == "peer\n", &format!("it serves HTTP: {page:?}"))?;
    peer.ok("set -e
         ip link add link eth0 name vlan5 type vlan id 5
         ip link add link vlan5 name vlan5-6 type vlan id 6
         ip link add aggregate type bond mode active-backup
         ip link add bridge0 type bridge
         ip link add ipip1 type ipip local 10.9.0.2 remote 10.9.0.1
         ip link add sit1 type sit local 10.9.0.2 remote 10.9.0.1
         ip link add gre1 type gre local 10.9.0.2 remote 10.9.0.1
         ip link add six1 type ip6tnl local fd09::2 remote fd09::1 mode any
         ip link add gre6 type ip6gre local fd09::2 remote fd09::1
         modprobe fou && ip fou add port 5555 ipproto 4 && ip fou add port 5556 gue
         modprobe fou6 && ip fou add port 5555 ipproto 41 -6")
        .map(drop)
}

/// The daemon and the command line, on a kernel that is older than this machine's or newer, but
/// another.
fn our_programs_on_its_kernel() -> Result<()> {
    let programs = [program("butterfly"), program("butterflyd")];
    let machine = Machine::named("host")
        .with_tools()
        .with_programs(&programs.each_ref().map(String::as_str));
    let host = Guest::start(&Image::ready()?, &machine)?;
    host.ok(
        ": >/run/log; butterflyd --no-syslog -s /run --api unix:/run/api.sock >/run/log 2>&1 &",
    )?;
    says(&host, "/run/log", "is ready")?;
    let status = host.ok("butterfly -e unix:/run/api.sock status && uname -r")?;
    check(
        status.contains("worker 0:"),
        &format!("the daemon answers:\n{status}"),
    )?;
    // So does the program at containers' interfaces.
    host.ok("modprobe tun && ip netns add c1")?;
    let nic = host.ok(
        "butterfly -e unix:/run/api.sock nic add --id c1 --vni 7 --mac 52:54:00:00:00:01 \
         --ip 10.0.0.1/24 --type veth --netns c1 && butterfly -e unix:/run/api.sock --json nic \
         details c1",
    )?;
    check(
        nic.contains("UP\"") && !host.ok("cat /run/log")?.contains("forwards no flows"),
        &format!("a container has its interface: {nic}"),
    )?;
    // The XDP programs of the router and the load balancer pass that kernel's verifier; the
    // uplink's is in `devices.rs`.
    host.ok(
        "ip link add near0 type veth peer name far0 && ip addr add 10.1.2.3/24 dev near0 && \
         ip link set near0 up && \
         ip link set far0 up",
    )?;
    for (command, text) in [
        (
            "forward near0 far0 --mode native",
            "taking over far0: native XDP.",
        ),
        (
            "balance --mode native near0 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11",
            "balancing 192.168.101.1:80/tcp on near0: native XDP",
        ),
        // Before Linux 6.6 by a filter.
        (
            "forward near0 far0",
            "taking over far0: at tc ingress (veth).",
        ),
        (
            "forward near0 far0 --acl /run/acl",
            "taking over far0: at tc ingress (veth).",
        ),
        (
            "balance near0 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11",
            "balancing 192.168.101.1:80/tcp on near0: at tc ingress (veth)",
        ),
    ] {
        host.ok("echo 'default deny' >/run/acl")?;
        host.ok(&format!(
            ": >/run/said; butterfly {command} >/run/said 2>&1 & echo $! >/run/pid"
        ))?;
        says(&host, "/run/said", text)?;
        host.ok("kill -9 $(cat /run/pid)")?;
    }
    Ok(())
}

/// A router whose two NICs are virtio's, with TAP devices of this machine behind them: they receive
/// what its sockets send, segments that are not cut and checksums that are only begun.
fn a_virtio_nic_of_buffers_is_at_tc_ingress() -> Result<()> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    let mut machine = Machine::named("router")
        .with_tools()
        .with_programs(&[&program("butterfly")]);
    for (n, host) in (1..).zip(&hosts) {
        let wire = Wire::tap(host, "cable");
        machine = machine.with(Nic::new(wire, &format!("52:54:00:00:00:0{n}")));
    }
    let router = Guest::start(&Image::ready()?, &machine)?;
    router.ok(
        "set -e; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
         for n in 1 2; do
             nic=eth$((n - 1)); ip link set $nic up
             ip addr add 10.$n.0.1/24 dev $nic; ip addr add fd0$n::1/64 dev $nic nodad
         done",
    )?;
    for (n, host) in (1..).zip(&hosts) {
        host.ok(&format!(
            "ip addr add 10.{n}.0.2/24 dev cable && ip addr add fd0{n}::2/64 dev cable nodad &&
             ip route add default via 10.{n}.0.1 && ip -6 route add default via fd0{n}::1"
        ))?;
    }
    router.ok(": >/run/said; butterfly forward eth0 eth1 >/run/said 2>&1 & echo $! >/run/pid")?;
    says(&router, "/run/said", "are followed")?;
    let [near, far] = &hosts;
    let server = far.start("iperf3", "iperf3 -s --forceflush")?;
    wait_for("iperf3 to listen", Duration::from_secs(30), || {
        Ok(server.log().contains("listening").then_some(()))
    })?;
    for to in ["10.2.0.2", "fd02::2"] {
        near.ok(&format!("ping -q -c 3 -i 0.2 -W 5 {to}"))?;
        near.ok(&format!("iperf3 -c {to} -n 20M"))?;
    }
    router.ok("kill $(cat /run/pid)")?;
    let said = says(&router, "/run/said", "forwarded")?;
    for nic in ["eth0", "eth1"] {
        let line = format!("taking over {nic}: at tc ingress (virtio_net).");
        check(said.contains(&line), &format!("it says '{line}':\n{said}"))?;
    }
    // Segments of at least some of 40 MB, in each family.
    let forwarded = said.lines().filter(|line| line.contains("forwarded "));
    let counts: Vec<u64> = forwarded
        .flat_map(|line| line.split_whitespace().flat_map(str::parse))
        .collect();
    check(
        counts.len() == 4 && counts.iter().all(|count| *count > 100),
        &format!("they went the fast way:\n{said}"),
    )
}
