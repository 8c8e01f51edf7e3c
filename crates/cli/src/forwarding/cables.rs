//! Two cables (veth pairs) between the host that forwards and the one that sends and counts, each a
//! network namespace that a thread has made for itself.
//!
//! The addresses are of the networks for measurements (RFC 2544, section C.2.2): what is sent goes
//! from 198.18.0.0/24 to 198.19.0.0/16, by the gateway 198.18.1.2.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};

use ipnet::Ipv4Net;
use netlink::change::{Changes, Device, NewPair, PairKind, WantedRoute};
use nix::sched::{CloneFlags, unshare};
use wire::Mac;

/// The interfaces of the host that forwards.
pub const INSIDE: [&str; 2] = ["in", "out"];
/// Their far ends: where frames are sent, and where they are counted.
pub const OUTSIDE: [&str; 2] = ["source", "sink"];

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const MTU: u16 = 1500;
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
/// The first address of each cable is the forwarding host's.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 1, 1)];
/// Bits of the cables' networks.
const PREFIX: u8 = 24;

/// Gives the calling thread a network namespace of its own.
///
/// # Errors
/// It may not (CAP_SYS_ADMIN). The text is for people.
pub fn enter_own() -> Result<OwnedFd, String> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|e| format!("a network namespace of its own: {e} (root is needed)"))?;
    let own = File::open("/proc/thread-self/ns/net");
    own.map(OwnedFd::from)
        .map_err(|e| format!("/proc/thread-self/ns/net: {e}"))
}

/// Makes the cables, in a namespace of the calling thread's own, which forwards to `to` then; their
/// far ends are in `outside`, and down. Gives the address where it takes packets.
///
/// # Errors
/// The kernel refuses. The text is for people.
pub fn make(outside: &OwnedFd, to: Ipv4Net) -> Result<Mac, String> {
    enter_own()?;
    let failed = |e: netlink::Error| format!("the cables: {e}");
    let mut changes = Changes::new().map_err(failed)?;
    for ((near, far), far_mac) in INSIDE.into_iter().zip(OUTSIDE).zip(MACS) {
        let pair = NewPair {
            kind: PairKind::Veth,
            near,
            far,
            far_mac,
            mtu: MTU,
            namespace: outside.as_fd(),
        };
        changes.make_pair(&pair).map_err(failed)?;
    }
    let forwards = "/proc/sys/net/ipv4/ip_forward";
    std::fs::write(forwards, "1").map_err(|e| format!("{forwards}: {e}"))?;
    let [inner, outer] = INSIDE.map(|name| set_up(&mut changes, name));
    let (inner, outer) = (inner?, outer?);
    for (device, address) in [&inner, &outer].into_iter().zip(ADDRESSES) {
        let done = changes.add_address(device.index, IpAddr::from(address), PREFIX);
        done.map_err(failed)?;
    }
    let route = WantedRoute {
        to: to.into(),
        via: Some(GATEWAY.into()),
        onlink: false,
        mtu: None,
    };
    changes.add_route(outer.index, &route).map_err(failed)?;
    Ok(inner.mac)
}

/// Sets up the far ends, in the calling thread's namespace: the sink has the gateway's address, and
/// the kernel answers who asks for it. Gives both.
///
/// # Errors
/// The kernel refuses. The text is for people.
pub fn set_up_outside() -> Result<[Device; 2], String> {
    let failed = |e: netlink::Error| format!("the cables: {e}");
    let mut changes = Changes::new().map_err(failed)?;
    let [source, sink] = OUTSIDE.map(|name| set_up(&mut changes, name));
    let (source, sink) = (source?, sink?);
    let done = changes.add_address(sink.index, GATEWAY.into(), PREFIX);
    done.map_err(failed)?;
    Ok([source, sink])
}

/// As a NIC is: up, and with what it receives merged.
fn set_up(changes: &mut Changes, name: &str) -> Result<Device, String> {
    let failed = |e: netlink::Error| format!("interface {name}: {e}");
    let device = find(changes, name)?;
    changes.leave_unaddressed(device.index);
    if sys::ethtool::merge_received(name).is_none() {
        return Err(format!("interface {name}: it does not merge packets (GRO)"));
    }
    changes.set_up(device.index, true).map_err(failed)?;
    Ok(device)
}

/// The interface of a name, in the namespace that `changes` is of.
///
/// # Errors
/// There is none. The text is for people.
pub fn find(changes: &mut Changes, name: &str) -> Result<Device, String> {
    let found = changes.by_name(name);
    let found = found.map_err(|e| format!("interface {name}: {e}"))?;
    found.ok_or_else(|| format!("interface {name}: there is no such interface"))
}
