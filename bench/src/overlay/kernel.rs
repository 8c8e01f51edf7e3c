//! The kernel's own overlay: a bridge, a vxlan device and nftables with the same rules.
//!
//! Its guest is on two ports: a veth, as a container's, for frames of up to 1518 bytes, sent by the
//! kernel itself, and a TAP device for frames of 64 KiB. What they send and what the uplink
//! receives is steered to the core that the other switches have (RPS): so it has two cores as they
//! have, one of them busy with sending.

use std::time::{Duration, Instant};

use io::frame::Batch;
use io::port::Port;
use io::tap::{TapOptions, TapPort};
use testkit::netns::Namespace;
use wire::offload::{Gso, Offload};
use xdp::Attachment;

use super::cable::{self, ADDRESSES, CHUNK, Cable, Sender, UPLINK};
use crate::interrupt;
use crate::peers::{GUEST_MACS, PeerError, guest_ip};

/// The guest's end of the veth, in a namespace of its own.
const GUEST: &str = "guest0";

/// The guest: both its ports.
pub struct Ports {
    space: Namespace,
    veth: Sender,
    tap: Port,
    batch: Batch,
    _sink: Attachment,
}

/// Builds it on the host.
pub fn start(cable: &Cable, core: usize) -> Result<Ports, PeerError> {
    let space = Namespace::new()?;
    space
        .ok("sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
    let [here, there] = ADDRESSES;
    let [mac, far] = GUEST_MACS;
    let host = &cable.host;
    host.ok(&format!(
        "ip link add br0 type bridge && ip link set br0 up && \
         ip link add port0 type veth peer name {GUEST} address {mac} netns {} && \
         ethtool -K port0 gro on >/dev/null && \
         ip link add tunnel type vxlan id 1 dstport 4789 local {here} remote {there} dev {UPLINK} \
         noudpcsum",
        space.pid()
    ))?;
    let options = TapOptions {
        name: "tap0".to_owned(),
        mac: "52:54:00:00:00:fe"
            .parse()
            .map_err(|error| PeerError(format!("{error}")))?,
        mtu: None,
        offloads: true,
    };
    let tap = host.inside(|| TapPort::open(&options))?;
    let tap = tap.map_err(|error| PeerError(error.to_string()))?;
    for port in ["port0", "tap0", "tunnel"] {
        host.ok(&format!("ip link set {port} mtu 1550 master br0 up"))?;
    }
    space.ok(&format!("ip link set {GUEST} mtu 1550 up"))?;
    // Who is where is known, as it is to the other switches.
    host.ok(&format!(
        "bridge fdb replace {mac} dev port0 master static && bridge fdb replace {far} dev tunnel \
         master static"
    ))?;
    host.ok(&format!("nft '{}'", rules()))?;
    host.ok(&steer(core))?;
    Ok(Ports {
        _sink: cable::sink(&space, GUEST)?,
        veth: Sender::new(&space, GUEST)?,
        tap: tap.into(),
        batch: Batch::new(),
        space,
    })
}

impl Ports {
    /// Sends a frame from the veth so many times.
    pub fn send(&self, frame: &[u8], count: u32) -> Result<(), PeerError> {
        let veth = &self.veth;
        self.space.inside(|| veth.send(frame, count))?
    }

    /// Sends a frame for so long: from the veth, or a large one from the TAP device.
    pub fn flood(
        &mut self,
        frame: &[u8],
        offload: &Offload,
        time: Duration,
    ) -> Result<(), PeerError> {
        let start = Instant::now();
        if offload.gso == Gso::None {
            let veth = &self.veth;
            return self.space.inside(|| {
                while start.elapsed() < time {
                    interrupt::check()?;
                    veth.send(frame, CHUNK)?;
                }
                Ok(())
            })?;
        }
        self.batch.clear();
        if self.batch.push_bytes(frame, *offload).is_none() {
            return Err(PeerError(format!(
                "a frame of {} bytes is too large",
                frame.len()
            )));
        }
        while start.elapsed() < time {
            interrupt::check()?;
            let sent = self.tap.transmit(&self.batch, 0);
            sent.map_err(|error| PeerError(format!("tap0: {error:?}")))?;
        }
        Ok(())
    }

    /// Frames that have come to the veth.
    pub fn arrived(&self) -> Result<u64, PeerError> {
        cable::received(&self.space, GUEST)
    }
}

/// The rules that the other switches have. The bridge hands its packets to the IP hooks
/// (br_netfilter): tracking in the bridge's own hooks is a module that not every kernel has.
fn rules() -> String {
    let guest = guest_ip(0);
    let (first, last) = (
        crate::TRAFFIC_PORT,
        crate::TRAFFIC_PORT + crate::TRAFFIC_PORTS - 1,
    );
    let others: Vec<String> = (2..crate::RULES)
        .map(|number| {
            let port = crate::FIRST_RULE_PORT + number;
            format!("add rule ip bench forward ip daddr {guest} tcp dport {port} accept;")
        })
        .collect();
    let allowed = ["tcp", "udp"].map(|protocol| {
        format!(
            "add rule ip bench forward ip daddr {guest} {protocol} dport {first}-{last} accept;"
        )
    });
    format!(
        "add table ip bench; \
         add chain ip bench forward {{ type filter hook forward priority 0; policy drop; }}; \
         add rule ip bench forward ct state established,related accept; \
         add rule ip bench forward ip saddr {guest} accept; {} {}",
        others.concat(),
        allowed.concat()
    )
}

/// A shell command that has another core do what the interfaces receive; sysfs shows the namespace
/// it was mounted in.
fn steer(core: usize) -> String {
    let set = |device: &str| {
        format!(
            "echo {:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus",
            1u64 << core
        )
    };
    let all = [UPLINK, "port0", "tap0"].map(set).join(" && ");
    format!("unshare --mount sh -c 'mount -t sysfs none /sys && {all}'")
}
