//! The network namespace of the checks' sockets. The namespace helper makes it and the sockets in
//! it; it goes with their descriptors, and the pair of interfaces with it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use container::namespace_helper::{Asker, SocketKind};
use netlink::change::{Changes, NewPair, PairKind};
use socket2::Socket;
use wire::Mac;

use crate::namespaces;

/// The MAC of the room's end of the pair: locally administered.
pub const MAC: [u8; 6] = [0x02, b'b', b'f', b'l', b'y', 0x01];
/// The room's end of the pair.
const INSIDE: &str = "checks";
/// The MTU of both ends.
const PAIR_MTU: u16 = 1500;
/// What checks send fits any tunnel of ours into 1500 bytes (IPv6 and GUE: 52).
const MTU: u16 = 1400;

/// An open room.
pub struct Room {
    /// The index of the host's end of the pair.
    pub ifindex: u32,
    /// The name that it was made by.
    pub name: String,
    namespace: OwnedFd,
    helper: Mutex<Asker>,
}

impl Room {
    /// Makes one. The error is a sentence.
    pub fn open() -> Result<Room, String> {
        let mut helper = namespaces::helper()?.asker();
        let namespace = helper
            .make_namespace()
            .map_err(|why| format!("health checks need a network namespace of their own: {why}"))?;
        // One a process: two daemons of one host have two rooms.
        let outside = format!("bfc{}", std::process::id());
        let failed = |e: netlink::Error| format!("the interface {outside} of health checks: {e}");
        let mut changes = Changes::new().map_err(failed)?;
        let pair = NewPair {
            kind: PairKind::Veth,
            near: &outside,
            far: INSIDE,
            far_mac: Mac(MAC),
            mtu: PAIR_MTU,
            namespace: namespace.as_fd(),
        };
        changes.make_pair(&pair).map_err(failed)?;
        let device = changes.by_name(&outside).map_err(failed)?;
        let device = device.ok_or_else(|| format!("the interface {outside} is gone"))?;
        // The host does not speak on it.
        changes.leave_unaddressed(device.index);
        changes.set_up(device.index, true).map_err(failed)?;
        helper.send_all_by(namespace.as_fd(), INSIDE, MTU)?;
        Ok(Room {
            ifindex: device.index,
            name: outside,
            namespace,
            helper: Mutex::new(helper),
        })
    }

    /// A socket in it, bound and not blocking.
    pub fn socket(&self, kind: SocketKind, source: SocketAddr) -> io::Result<Socket> {
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = helper.bound_socket(self.namespace.as_fd(), INSIDE, kind, source);
        let failed = |why| io::Error::other(format!("behind {}: {why}", self.name));
        socket.map(Socket::from).map_err(failed)
    }

    /// What is wrong with the host's end of the pair, as the kernel says now: anybody who may
    /// change the host's interfaces has access to it.
    pub fn trouble(&self) -> Option<Trouble> {
        let asked = Changes::new().and_then(|mut changes| changes.by_index(self.ifindex));
        match asked {
            Ok(None) => Some(Trouble::Gone),
            Ok(Some(device)) if !device.up => Some(Trouble::Down),
            // A kernel that does not answer says nothing of it.
            Ok(Some(_)) | Err(_) => None,
        }
    }

    /// Sets that end up. The error is a sentence.
    pub fn set_up(&self) -> Result<(), String> {
        let done = Changes::new().and_then(|mut changes| changes.set_up(self.ifindex, true));
        done.map_err(|e| e.to_string())
    }
}

/// Why nothing comes through the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It was removed, and what was behind it leads nowhere.
    Gone,
    /// It was set down.
    Down,
}
