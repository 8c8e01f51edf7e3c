//! A guest with another kernel than this machine's: as a peer on a cable, with devices that this
//! machine's kernel may lack, and as the host that our programs run on.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::{check, says};
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::Result;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};

fn main() {
    run_each(trials![
        a_peer_with_its_own_kernel,
        our_programs_on_its_kernel,
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
    // The XDP programs of the router and the load balancer pass that kernel's verifier; the
    // uplink's is in `devices.rs`.
    host.ok(
        "ip link add near0 type veth peer name far0 && ip addr add 10.1.2.3/24 dev near0 && ip link set near0 up && \
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
