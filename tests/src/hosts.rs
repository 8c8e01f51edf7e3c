//! Two hosts as network namespaces joined by a cable, a `butterflyd` on each, and containers as
//! their guests.
//!
//! The hosts have 192.0.2.1 and 192.0.2.2, fd0c::1 and fd0c::2 on `uplink0`; more of them on one
//! Ethernet ([`ethernet`]) the addresses that follow. A guest is a namespace
//! behind a TAP NIC whose id is its name, in the group `open`, which lets everything in.

use crate::Daemon;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

/// The interface that joins the hosts, on both.
pub const UPLINK: &str = "uplink0";

/// Over which addresses the hosts speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// 192.0.2.0/24.
    V4,
    /// fd0c::/64.
    V6,
}

impl Family {
    /// The address of a host, from 1 on.
    pub fn address(self, host: u8) -> String {
        match self {
            Family::V4 => format!("192.0.2.{host}"),
            Family::V6 => format!("fd0c::{host}"),
        }
    }
}

/// One host.
#[derive(Debug)]
pub struct Host {
    /// Its daemon, before the namespace: that is how they go.
    pub daemon: Daemon,
    /// Its network.
    pub namespace: Namespace,
}

/// Two of them.
#[derive(Debug)]
pub struct Hosts {
    /// Host 1.
    pub left: Host,
    /// Host 2.
    pub right: Host,
}

/// Two namespaces with a cable between them, addresses on both ends.
pub fn cable(mtu: u16) -> Result<(Namespace, Namespace)> {
    cable_of_queues(mtu, 1)
}

/// A cable whose ends have so many queues in each direction: what is sent by one of them is
/// received by the same one.
pub fn cable_of_queues(mtu: u16, queues: u16) -> Result<(Namespace, Namespace)> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    let [a, b] = [left.pid().to_string(), right.pid().to_string()];
    let end = |pid: &str| {
        format!("name {UPLINK} mtu {mtu} numrxqueues {queues} numtxqueues {queues} netns {pid}")
    };
    let made = format!("ip link add {} type veth peer {}", end(&a), end(&b));
    process::run(&made.split(' ').collect::<Vec<_>>())?;
    for (namespace, host) in [(&left, 1), (&right, 2)] {
        address(namespace, host)?;
    }
    Ok((left, right))
}

/// As many namespaces as asked for, on one Ethernet, addresses on their ends. The first of what is
/// given back holds the bridge that joins them.
pub fn ethernet(hosts: u8) -> Result<(Namespace, Vec<Namespace>)> {
    let bridge = Namespace::new()?;
    bridge.ok("ip link add br0 type bridge && ip link set br0 up")?;
    let plugged = |host| {
        let namespace = Namespace::new()?;
        let pid = namespace.pid();
        bridge.ok(&format!(
            "ip link add port{host} type veth peer name {UPLINK} netns {pid} && \
             ip link set port{host} master br0 up"
        ))?;
        address(&namespace, host)?;
        Ok(namespace)
    };
    let namespaces = (1..=hosts).map(plugged).collect::<Result<_>>()?;
    Ok((bridge, namespaces))
}

/// Gives the uplink of a host its addresses, and takes it up.
pub fn address(namespace: &Namespace, host: u8) -> Result<()> {
    namespace.ok(&format!(
        "sysctl -q -w net.ipv6.conf.{UPLINK}.accept_dad=0; ip link set {UPLINK} up; \
         ip addr add {}/24 dev {UPLINK}; ip addr add {}/64 dev {UPLINK} nodad",
        Family::V4.address(host),
        Family::V6.address(host),
    ))?;
    Ok(())
}

impl Host {
    /// Starts the daemon of a host.
    pub fn start(namespace: Namespace, host: u8, family: Family, options: &[&str]) -> Result<Self> {
        let address = family.address(host);
        let mut all = vec!["-i", address.as_str()];
        all.extend(options);
        let daemon = Daemon::start_on(Some(namespace.pid()), &all)?;
        daemon.cli("sg rule add open --ip-proto all")?;
        Ok(Self { daemon, namespace })
    }

    /// A guest in a VNI: 10.1.0.`last`, fd01::`last`.
    pub fn guest(&self, name: &str, vni: u32, last: u8) -> Result<Namespace> {
        let mac = mac(last);
        self.daemon.cli(&format!(
            "nic add --id {name} --mac {mac} --vni {vni} --ip 10.1.0.{last} fd01::{last} --sg open \
             --type tap --path bf-{name}"
        ))?;
        let guest = Namespace::new()?;
        guest.adopt_from(
            &self.namespace,
            &format!("bf-{name}"),
            &mac,
            &[&format!("10.1.0.{last}/24"), &format!("fd01::{last}/64")],
        )?;
        // The MTU that a guest is told, which is what the underlay carries.
        let shown = self.daemon.json(&format!("nic details {name}"))?;
        let mtu =
            crate::daemon::number(&shown[0]["mtu"]).ok_or_else(|| format!("no MTU in {shown}"))?;
        guest.ok(&format!("ip link set eth0 mtu {mtu}"))?;
        Ok(guest)
    }

    /// All that explains a failure, under a name.
    pub fn dump(&self, name: &str) -> String {
        let network = self
            .namespace
            .ok("ip addr; ip route; ip neigh; ip maddr show dev uplink0; ip -s link");
        let network = network.unwrap_or_else(|e| e);
        format!("=== {name}\n{network}\n{}", self.daemon.dump())
    }
}

impl Hosts {
    /// Two hosts that nobody has told of each other.
    pub fn start(family: Family, options: &[&str]) -> Result<Self> {
        let (left, right) = cable(1500)?;
        Ok(Self {
            left: Host::start(left, 1, family, options)?,
            right: Host::start(right, 2, family, options)?,
        })
    }

    /// All that explains a failure.
    pub fn dump(&self) -> String {
        self.left.dump("left") + &self.right.dump("right")
    }
}

/// The MAC of the guest with this last octet.
pub fn mac(last: u8) -> String {
    format!("52:54:00:00:07:{last:02x}")
}

/// Waits until a ping is answered.
pub fn answers(from: &Namespace, to: &str) -> Result<()> {
    wait_for(&format!("{to} to answer"), PATIENCE, || {
        Ok(from
            .succeeds(&format!("ping -q -c 1 -W 1 {to}"))?
            .then_some(()))
    })
}

/// A vxlan device of the kernel's over `device`, for VNI 42, and 10.1.0.2 behind it.
pub fn kernel_vxlan(host: &Namespace, device: &str, local: &str, remote: &str) -> Result<()> {
    host.ok(&format!(
        "ip link add vx type vxlan id 42 dstport 4789 local {local} remote {remote} dev {device}; \
         ip link add br0 type bridge; ip link set vx master br0; ip link set vx up; \
         sysctl -q -w net.ipv6.conf.br0.accept_dad=0; ip link set br0 address {} mtu 1430 up; \
         ip addr add 10.1.0.2/24 dev br0; ip addr add fd01::2/64 dev br0 nodad",
        mac(2)
    ))
    .map(drop)
}

/// The command line of the program of our own that speaks protocols for which there is no other.
pub fn tool(words: &str) -> String {
    format!("{} {words}", crate::daemon::program("guest"))
}

/// Starts a server of that program in a namespace, and waits until it listens. Its name is its
/// log's: one of a kind in each.
pub fn serve(guest: &Namespace, words: &str) -> Result<Process> {
    let server = guest.start(words.split(' ').next().unwrap_or("server"), &tool(words))?;
    wait_for("a server to listen", PATIENCE, || {
        Ok(server.log().contains("listening").then_some(()))
    })?;
    Ok(server)
}
