//! A name that one process of a network namespace holds: a listening socket in the namespace of
//! abstract names (unix(7)), which belongs to a network namespace as interfaces do, and goes with
//! its process, whatever ends it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

/// Those that ask who holds a name are never accepted: so many may ask.
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A name that is ours until this is dropped.
#[derive(Debug)]
pub struct HeldName {
    socket: OwnedFd,
}

/// Who listens on a unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

impl HeldName {
    /// Takes a name of at most 107 bytes.
    ///
    /// # Errors
    /// `EADDRINUSE`: somebody has it. Any user may bind any name: [`holder`] says who it is.
    pub fn take(name: &str) -> Result<HeldName, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(HeldName { socket })
    }

    /// A name that another process has taken and hands over: from now on this one is its holder.
    /// The name is there until both have dropped it.
    pub fn handed(socket: OwnedFd) -> Result<HeldName, Errno> {
        // Who listens last is whom others find there.
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(HeldName { socket })
    }

    /// For another process that is to hold the name.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

/// Who holds a name; `None`: nobody does, or whoever has it does not answer.
pub fn holder(name: &str) -> Option<Peer> {
    listener(&SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?)
}

/// Who listens at this address; `None` where nobody does, or too many wait to be asked. Does not
/// wait.
pub fn listener(address: &SocketAddrUnix) -> Option<Peer> {
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
    let probe = probe.ok()?;
    rustix::net::connect(&probe, address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&probe).ok()?;
    Some(Peer {
        pid: peer.pid.as_raw_nonzero().get(),
        uid: peer.uid.as_raw(),
    })
}

impl Peer {
    /// It is root, or our own user: others only pretend.
    pub fn is_trusted(self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_is_known() {
        let name = format!("butterfly/test/{}", std::process::id());
        assert_eq!(holder(&name), None);
        let held = HeldName::take(&name).unwrap();
        assert_eq!(HeldName::take(&name).unwrap_err(), Errno::ADDRINUSE);
        let us = holder(&name).unwrap();
        assert_eq!(us.pid, std::process::id() as i32);
        assert!(us.is_trusted());
        drop(held);
        assert_eq!(holder(&name), None);
        HeldName::take(&name).unwrap();
    }
}
