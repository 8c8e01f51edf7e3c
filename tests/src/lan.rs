//! Hosts on one Ethernet: namespaces, each with an `eth0` on a bridge in a namespace of its own.

use testkit::Result;
use testkit::netns::Namespace;
use testkit::qemu::Wire;
use xdp::{Attachment, Mode, Program, objects};

/// A bridge that hosts are plugged into.
#[derive(Debug)]
pub struct Lan {
    bridge: Namespace,
    /// Hosts leave checksums and segments to whoever needs them.
    offloads: bool,
}

impl Lan {
    /// A bridge without hosts.
    pub fn new() -> Result<Self> {
        let bridge = Namespace::new()?;
        bridge.ok("ip link add br0 type bridge && ip link set br0 up")?;
        Ok(Self {
            bridge,
            offloads: false,
        })
    }

    /// A LAN whose hosts' interfaces are as the kernel makes them: checksums only begun, segments
    /// not cut.
    pub fn with_default_offloads() -> Result<Self> {
        Ok(Self {
            offloads: true,
            ..Self::new()?
        })
    }

    /// A cable to it for a guest, to be [plugged in](Self::join) when that has started.
    pub fn wire(&self, device: &str) -> Wire {
        Wire::tap(&self.bridge, device)
    }

    /// Plugs a guest's cable in.
    pub fn join(&self, device: &str) -> Result<()> {
        self.bridge
            .ok(&format!("ip link set {device} master br0"))
            .map(drop)
    }

    /// A host with these addresses (with their prefix lengths) on its `eth0`. It computes its
    /// checksums itself, as what XDP takes from a veth has to be a frame as it is on a wire, unless
    /// the network is one with default offloads.
    pub fn host(&self, name: &str, addresses: &[&str]) -> Result<Namespace> {
        let host = Namespace::new()?;
        self.plug(&host, name, addresses)?;
        Ok(host)
    }

    /// Gives a host its `eth0`; a second one takes the place of one that was removed.
    pub fn plug(&self, host: &Namespace, name: &str, addresses: &[&str]) -> Result<()> {
        let pid = host.pid();
        self.bridge.ok(&format!(
            "ip link add to-{name} type veth peer name eth0 netns {pid} && \
             ip link set to-{name} master br0 && ip link set to-{name} up"
        ))?;
        host.ok(
            "sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.eth0.accept_dad=0 && \
             ip link set eth0 up",
        )?;
        if !self.offloads {
            host.ok("ethtool -K eth0 tx off >/dev/null")?;
        }
        for address in addresses {
            host.ok(&format!("ip addr add {address} dev eth0"))?;
        }
        Ok(())
    }

    /// Makes the bridge take what an XDP program in native mode sends from a host's `eth0`, until
    /// the answer is dropped: veth wakes the end that such frames come to only if that runs a
    /// program itself.
    pub fn take_from_xdp(&self, name: &str) -> Result<(Program, Attachment)> {
        let failed = |e: xdp::Error| format!("the bridge's end of {name}'s cable: {e}");
        let program = Program::load("pass", objects::PASS, |_| Ok(())).map_err(failed)?;
        let ifindex = self.bridge.ifindex(&format!("to-{name}"))?;
        let attach = || xdp::attach(&program, ifindex, Some(Mode::Native));
        let attachment = self.bridge.inside(attach)?.map_err(failed)?;
        Ok((program, attachment))
    }
}

/// Gives a server a service's address, as direct server return wants it: on `lo`, and nobody is
/// told by ARP.
pub fn take_vip(server: &Namespace, vip: &str) -> Result<()> {
    server.ok("sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")?;
    // Else it is tentative for a moment, on lo as well, and cannot be bound.
    let nodad = if vip.contains(':') { "nodad" } else { "" };
    server
        .ok(&format!("ip addr add {vip} dev lo {nodad}"))
        .map(drop)
}
