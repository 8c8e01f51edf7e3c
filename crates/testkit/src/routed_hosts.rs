//! A host in the east, a router, a host in the west: three namespaces with the kernel's stack, and
//! veths between them. The kernel forwards; whoever is tested takes that over.

use sys::bpf::{TcSide, tc_programs};

use crate::netns::Namespace;
use crate::process::Process;
use crate::{PATIENCE, Result, wait_for};

/// The west's addresses, which the east reaches by the router.
pub const WEST: [&str; 2] = ["10.2.0.2", "2001:db8:2::2"];

/// `east` has 10.1.0.2 and 2001:db8:1::2, `west` 10.2.0.2 and 2001:db8:2::2, each on its `eth0`;
/// the router has .1 of both networks, on `east0` and `west0`.
#[derive(Debug)]
pub struct RoutedHosts {
    /// The host that asks.
    pub east: Namespace,
    /// The router between the two.
    pub router: Namespace,
    /// The host that answers.
    pub west: Namespace,
}

impl RoutedHosts {
    /// All of it, up, and a packet of each family has passed.
    pub fn new() -> Result<RoutedHosts> {
        let hosts = RoutedHosts::unwired()?;
        hosts.wire("east0", &hosts.east, 1)?;
        hosts.wire("west0", &hosts.west, 2)?;
        hosts.first_answers()?;
        Ok(hosts)
    }

    /// Routed hosts whose router has interfaces of these names, and all offloads as the kernel sets
    /// them: what the hosts' sockets send comes with checksums that are begun, in segments that are
    /// not cut.
    pub fn with_default_offloads(east: &str, west: &str) -> Result<RoutedHosts> {
        let hosts = RoutedHosts::unwired()?;
        hosts.cable(east, &hosts.east, 1)?;
        hosts.cable(west, &hosts.west, 2)?;
        hosts.first_answers()?;
        Ok(hosts)
    }

    fn unwired() -> Result<RoutedHosts> {
        let hosts = RoutedHosts {
            east: Namespace::new()?,
            router: Namespace::new()?,
            west: Namespace::new()?,
        };
        hosts
            .router
            .ok("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        Ok(hosts)
    }

    /// Waits for an answer from the west in each family: until neighbours are known the kernel
    /// loses packets.
    pub fn first_answers(&self) -> Result<()> {
        WEST.iter().try_for_each(|address| {
            wait_for("a first answer", PATIENCE, || {
                let answered = self
                    .east
                    .succeeds(&format!("ping -q -c 1 -W 1 {address}"))?;
                Ok(answered.then_some(()))
            })
        })
    }

    /// Makes an interface of the router's, and the host's `eth0` at its other end, which takes
    /// frames that XDP sends.
    pub fn wire(&self, name: &str, host: &Namespace, n: u8) -> Result<()> {
        self.cable(name, host, n)?;
        // GRO: a veth without it, or a program, takes no frames that are redirected to its other
        // end.
        host.ok("ethtool -K eth0 gro on").map(drop)
    }

    /// Joins a host to the router by a veth pair with the kernel's default offloads.
    fn cable(&self, name: &str, host: &Namespace, n: u8) -> Result<()> {
        self.router.ok(&format!(
            "ip link add {name} type veth peer name far && ip link set far netns {} name eth0 &&
             ip addr add 10.{n}.0.1/24 dev {name} &&
             ip addr add 2001:db8:{n}::1/64 dev {name} nodad && ip link set {name} up",
            host.pid()
        ))?;
        host.ok(&format!(
            "ip addr add 10.{n}.0.2/24 dev eth0 && ip addr add 2001:db8:{n}::2/64 dev eth0 nodad &&
             ip link set eth0 up && ip route add default via 10.{n}.0.1 &&
             ip -6 route add default via 2001:db8:{n}::1"
        ))
        .map(drop)
    }

    /// Runs `meanwhile` with the hosts joined by a cable of their own, a veth pair with the
    /// kernel's default offloads: what no router between them can be better than. The addresses
    /// stay.
    pub fn without_router<T>(&self, meanwhile: impl FnOnce() -> T) -> Result<T> {
        self.east.ok(&format!(
            "ip link add direct address 02:00:00:00:00:01 type veth peer name direct \
                address 02:00:00:00:00:02 netns {}",
            self.west.pid()
        ))?;
        for (host, n, mac) in [(&self.east, 2, "02"), (&self.west, 1, "01")] {
            host.ok(&format!(
                "ip link set direct up
                for address in 10.{n}.0.2 2001:db8:{n}::2; do
                    ip neigh add $address lladdr 02:00:00:00:00:{mac} dev direct
                    ip route add $address dev direct
                done"
            ))?;
        }
        let done = meanwhile();
        self.east.ok("ip link del direct")?;
        Ok(done)
    }

    /// Echo requests at 2 ms, in both families, while `meanwhile` happens: all of them are
    /// answered.
    pub fn pinging(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = |address: &str| -> Result<Process> {
            let command = format!("ping -q -i 0.002 -c 500 {address}");
            self.east
                .start(&format!("ping-{}", address.len()), &command)
        };
        let mut pings = [start(WEST[0])?, start(WEST[1])?];
        meanwhile()?;
        for ping in &mut pings {
            let ended = ping.wait(PATIENCE)?;
            if !ended.success() || !ping.log().contains("500 received") {
                return Err(format!("echo requests were lost:\n{}", ping.log()));
            }
        }
        Ok(())
    }

    /// Has the west count the echo requests that reach it: see [`seen`](Self::seen).
    pub fn count_requests(&self) -> Result<()> {
        let rules =
            "nft 'add table inet seen; add counter inet seen four; add counter inet seen six;
            add chain inet seen in { type filter hook input priority 0; };
            add rule inet seen in icmp type echo-request counter name four;
            add rule inet seen in icmpv6 type echo-request counter name six'";
        self.west.ok(rules).map(drop)
    }

    /// Packets and bytes of echo requests to one of [`WEST`]'s addresses that the west's nftables
    /// counted.
    pub fn seen(&self, address: &str) -> Result<(u64, u64)> {
        let name = if address.contains(':') { "six" } else { "four" };
        let json = self
            .west
            .ok(&format!("nft -j list counter inet seen {name}"))?;
        let said: serde_json::Value =
            serde_json::from_str(&json).map_err(|e| format!("nft said {json}: {e}"))?;
        let last = said["nftables"].as_array().and_then(|all| all.last());
        let counter = &last.ok_or("nft says nothing")?["counter"];
        let value = |name: &str| {
            counter[name]
                .as_u64()
                .ok_or_else(|| format!("no {name} in {counter}"))
        };
        Ok((value("packets")?, value("bytes")?))
    }

    /// Whether an interface of the router's has a program, in XDP or at tc.
    pub fn has_program(&self, interface: &str) -> Result<bool> {
        let in_xdp = self.router.ok(&format!("ip link show {interface}"))?;
        let ifindex = self.router.ifindex(interface)?;
        let at_tc = self
            .router
            .inside(|| tc_programs(ifindex, TcSide::Ingress))?;
        Ok(in_xdp.contains("xdp") || !at_tc.map_err(|error| error.to_string())?.is_empty())
    }
}
