//! The cable: a veth between the namespace of the host under test and the far one, where nobody is
//! but two programs.
//!
//! What comes out at the far end is dropped by XDP and counted by the interface: so a frame costs
//! its sender what the veth costs, and nobody answers. Frames to the host are made by the kernel
//! itself (`BPF_F_TEST_XDP_LIVE_FRAMES`), the lightest sender there is. A program at the far end
//! also takes segmentation from the near one: what is counted is whole and of a wire's size,
//! whoever sent it.

use std::net::{IpAddr, Ipv4Addr};

use testkit::netns::Namespace;
use wire::Mac;
use xdp::{Attachment, Mode, Program, objects};

use crate::peers::PeerError;

/// The interface of the host under test.
pub const UPLINK: &str = "uplink0";
/// The far end.
const FAR: &str = "wire0";

/// The endpoint under test and the other one.
pub const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
];
/// Their MACs.
pub const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0xff, 1]), Mac([2, 0, 0, 0, 0xff, 2])];

/// MTU of the wire: inner frames of 1518 bytes fit.
const MTU: u16 = 1600;

/// Frames that are made with one call of the system.
pub const CHUNK: u32 = 256;

/// Both ends of a veth in two namespaces, gone when dropped.
pub struct Cable {
    /// The host under test.
    pub host: Namespace,
    far: Namespace,
    sender: Sender,
    _sink: Attachment,
}

impl Cable {
    /// Lays it. The near end has its address unless a bridge is to have it.
    pub fn lay(addressed: bool) -> Result<Cable, PeerError> {
        let (host, far) = (Namespace::new()?, Namespace::new()?);
        let [own, there] = MACS;
        for space in [&host, &far] {
            // Nobody but the guests is to say anything.
            space.ok("sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 \
                      net.ipv6.conf.default.disable_ipv6=1")?;
        }
        host.ok(&format!(
            "ip link add {UPLINK} mtu {MTU} address {own} type veth \
                peer name {FAR} mtu {MTU} address {there} netns {} && \
             ethtool -K {UPLINK} tx off gro on >/dev/null && ip link set {UPLINK} up",
            far.pid()
        ))?;
        far.ok(&format!("ip link set {FAR} up"))?;
        if addressed {
            let [here, other] = ADDRESSES;
            host.ok(&format!(
                "ip addr add {here}/24 dev {UPLINK} && \
                 ip neigh add {other} lladdr {there} dev {UPLINK} nud permanent"
            ))?;
        }
        let sink = sink(&far, FAR)?;
        let sender = Sender::new(&far, FAR)?;
        Ok(Cable {
            host,
            far,
            sender,
            _sink: sink,
        })
    }

    /// Frames that have come out at the far end.
    pub fn arrived(&self) -> Result<u64, PeerError> {
        received(&self.far, FAR)
    }

    /// Runs what sends frames to the host, on a thread at the far end.
    pub fn at_far_end<T: Send>(
        &self,
        what: impl FnOnce(&Sender) -> Result<T, PeerError> + Send,
    ) -> Result<T, PeerError> {
        self.far.inside(|| what(&self.sender))?
    }
}

/// Sends frames out of an interface.
pub struct Sender {
    program: Program,
    ifindex: u32,
    /// See [`Sender::new`].
    _elsewhere: Attachment,
}

impl Sender {
    /// Out of this one, which has to have a [sink].
    ///
    /// A program that is attached nowhere is made known to the kernel with each call and forgotten
    /// behind it, which waits for all processors: 20 ms. So it is attached to an interface that
    /// nothing comes to.
    pub fn new(space: &Namespace, device: &str) -> Result<Sender, PeerError> {
        let fail = |error: xdp::Error| PeerError(error.to_string());
        let program = Program::load("transmit", objects::TRANSMIT, |_| Ok(())).map_err(fail)?;
        space.ok("ip link add idle0 type veth peer name idle1")?;
        let idle = space.ifindex("idle0")?;
        let elsewhere = space.inside(|| xdp::attach(&program, idle, Some(Mode::Native)))?;
        Ok(Sender {
            _elsewhere: elsewhere.map_err(fail)?,
            program,
            ifindex: space.ifindex(device)?,
        })
    }

    /// `count` times the same frame. To be called on a thread in the interface's namespace.
    pub fn send(&self, frame: &[u8], count: u32) -> Result<(), PeerError> {
        let sent = xdp::send(&self.program, frame, self.ifindex, count);
        sent.map(drop).map_err(|error| PeerError(error.to_string()))
    }
}

/// Drops all that an interface receives; it counts them.
pub fn sink(space: &Namespace, device: &str) -> Result<Attachment, PeerError> {
    let ifindex = space.ifindex(device)?;
    let attach = || {
        let drop = Program::load("drop", objects::DROP, |_| Ok(()))?;
        xdp::attach(&drop, ifindex, Some(Mode::Native))
    };
    space
        .inside(attach)?
        .map_err(|error| PeerError(format!("{device}: {error}")))
}

/// Frames that an interface has received.
pub fn received(space: &Namespace, device: &str) -> Result<u64, PeerError> {
    let path = format!("/proc/{}/net/dev", space.pid());
    let text =
        std::fs::read_to_string(&path).map_err(|error| PeerError(format!("{path}: {error}")))?;
    packets(&text, device).ok_or_else(|| PeerError(format!("{path} says nothing of {device}")))
}

/// The second number behind the interface's name (proc(5): bytes, packets, …).
fn packets(text: &str, device: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn packets_of_an_interface_are_found() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets errs\n    lo: 1 2 3\n\
                    wire0: 640 10 0 0\nwire01: 9 9\n";
        assert_eq!(super::packets(text, "wire0"), Some(10));
        assert_eq!(super::packets(text, "lo"), Some(2));
        assert_eq!(super::packets(text, "eth0"), None);
    }
}
