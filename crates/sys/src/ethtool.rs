//! What an interface's driver says of it (SIOCETHTOOL, linux/ethtool.h) and netlink does not.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_value`.
#[repr(C)]
#[derive(Default)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    cmd: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

const GET_DRIVER: u32 = 0x3;
const GET_RX_CHECKSUM: u32 = 0x14;
const GET_CHANNELS: u32 = 0x3c;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const SET_TX_CHECKSUM: u32 = 0x17;
const SET_GRO: u32 = 0x2c;
/// ETH_FLAG_RXVLAN.
const RX_VLAN: u32 = 1 << 8;
/// ETH_FLAG_LRO.
const LRO: u32 = 1 << 15;

/// How many queues the interface receives from now, in the network namespace of the calling thread.
/// `None`: its driver does not say, or there is none of this name.
pub fn receive_queues(interface: &str) -> Option<u32> {
    let mut channels = Channels {
        cmd: GET_CHANNELS,
        ..Channels::default()
    };
    // SAFETY: `Channels` is what this command reads and writes.
    unsafe { ask(interface, (&raw mut channels).cast()) }?;
    Some(channels.rx + channels.combined).filter(|count| *count > 0)
}

/// The name of an interface's driver, in the network namespace of the calling thread. `None`: it
/// does not say.
pub fn driver(interface: &str) -> Option<String> {
    let mut driver = Driver {
        cmd: GET_DRIVER,
        name: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: `Driver` is what this command reads and writes.
    unsafe { ask(interface, (&raw mut driver).cast()) }?;
    let name = driver.name.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// The device vouches for checksums of what it receives. `None`: its driver does not say.
pub fn vouches_for_checksums(interface: &str) -> Option<bool> {
    let mut on = Value {
        cmd: GET_RX_CHECKSUM,
        data: 0,
    };
    // SAFETY: `Value` is what this command reads and writes.
    unsafe { ask(interface, (&raw mut on).cast()) }?;
    Some(on.data != 0)
}

/// The NIC takes VLAN tags out of what it receives, so that an XDP program does not see them.
/// `None`: its driver does not say.
pub fn strips_vlan_tags(interface: &str) -> Option<bool> {
    Some(flags(interface)? & RX_VLAN != 0)
}

/// The NIC merges TCP segments that it receives (LRO). `None`: its driver does not say.
pub fn merges_segments(interface: &str) -> Option<bool> {
    Some(flags(interface)? & LRO != 0)
}

/// Has the NIC take VLAN tags out of what it receives, or leave them in. `None`: its driver does
/// not let us.
pub fn strip_vlan_tags(interface: &str, strip: bool) -> Option<()> {
    let others = flags(interface)? & !RX_VLAN;
    let mut wanted = Value {
        cmd: SET_FLAGS,
        data: others | if strip { RX_VLAN } else { 0 },
    };
    // SAFETY: `Value` is what this command reads.
    unsafe { ask(interface, (&raw mut wanted).cast()) }
}

fn flags(interface: &str) -> Option<u32> {
    let mut flags = Value {
        cmd: GET_FLAGS,
        data: 0,
    };
    // SAFETY: `Value` is what this command reads and writes.
    unsafe { ask(interface, (&raw mut flags).cast()) }?;
    Some(flags.data)
}

/// Has the kernel compute the checksums of all that goes out of an interface, and segment it,
/// instead of leaving both to the device: a program that takes frames from a veth sees them as they
/// are. `None`: its driver does not let us.
pub fn compute_checksums(interface: &str) -> Option<()> {
    let mut off = Value {
        cmd: SET_TX_CHECKSUM,
        data: 0,
    };
    // SAFETY: `Value` is what this command reads.
    unsafe { ask(interface, (&raw mut off).cast()) }
}

/// Has the kernel merge packets that an interface receives (GRO), as NICs have it at the start and
/// a veth has not. `None`: its driver does not let us.
pub fn merge_received(interface: &str) -> Option<()> {
    let mut on = Value {
        cmd: SET_GRO,
        data: 1,
    };
    // SAFETY: `Value` is what this command reads.
    unsafe { ask(interface, (&raw mut on).cast()) }
}

/// # Safety
/// `what` is valid for reads and writes of the struct of its command.
unsafe fn ask(interface: &str, what: *mut libc::c_char) -> Option<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .ok()?;
    if interface.len() >= libc::IFNAMSIZ {
        return None;
    }
    // SAFETY: all zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = what;
    // SAFETY: the request is complete, its name ends with a zero, and its data is what the caller
    // vouches for.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    (done == 0).then_some(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_interface_that_is_not_there_says_nothing() {
        for name in ["", "no-such-device", "a-name-that-is-far-too-long"] {
            assert_eq!(
                (super::receive_queues(name), super::strips_vlan_tags(name)),
                (None, None)
            );
            assert_eq!(
                (super::driver(name), super::vouches_for_checksums(name)),
                (None, None)
            );
            assert_eq!(super::strip_vlan_tags(name, false), None);
            assert_eq!(super::merge_received(name), None);
        }
    }
}
