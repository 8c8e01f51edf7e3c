//! Whose a socket of this host is, by sock_diag(7): who is at the other end of a connection over
//! loopback, where everybody on the host can connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// A `struct nlmsghdr`, and behind it a `struct inet_diag_req_v2`.
const HEADER: usize = 16;
const ASKED: usize = HEADER + 56;
/// In an answer, behind the header, a `struct inet_diag_msg`: the other end's port and the user.
const PEER_PORT: usize = HEADER + 6;
const USER: usize = HEADER + 64;
const ANSWER: usize = HEADER + 72;

/// What a socket speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Asks the kernel.
#[derive(Debug)]
pub struct SocketOwners(OwnedFd);

impl SocketOwners {
    /// Ready to ask.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn new() -> io::Result<SocketOwners> {
        let family = AddressFamily::NETLINK;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
        Ok(SocketOwners(socket))
    }

    /// The user whose socket at `at` gets what `from` sends there; both are of one family. `None`:
    /// there is no such socket, or the kernel does not tell (it has no `inet_diag`).
    ///
    /// # Errors
    /// Those of netlink(7).
    pub fn of(
        &self,
        protocol: Protocol,
        at: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<Option<u32>> {
        retry_on_intr(|| send(&self.0, &question(protocol, at, from), SendFlags::empty()))?;
        // The kernel has answered when the question is sent.
        let mut answer = [0; 512];
        let (len, _) = retry_on_intr(|| recv(&self.0, &mut answer[..], RecvFlags::empty()))?;
        let answer = answer.get(..len).unwrap_or(&answer);
        match kind(answer) {
            Some(BY_FAMILY) => Ok(owner(protocol, answer, from)),
            Some(ERROR) => match -i32::from_ne_bytes(bytes(answer, HEADER).unwrap_or_default()) {
                errno if errno == Errno::NOENT.raw_os_error() => Ok(None),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn question(protocol: Protocol, at: SocketAddr, from: SocketAddr) -> [u8; ASKED] {
    let (number, ends) = match protocol {
        Protocol::Tcp => (6, [at, from]),
        // The kernel has them the other way round here (net/ipv4/udp_diag.c).
        Protocol::Udp => (17, [from, at]),
    };
    let mut asked = [0; ASKED];
    asked[..4].copy_from_slice(&(ASKED as u32).to_ne_bytes());
    asked[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    asked[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let asked_of = &mut asked[HEADER..];
    let family = if at.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    // Families fit a byte here.
    asked_of[0] = family.as_raw() as u8;
    asked_of[1] = number;
    // In any state.
    asked_of[4..8].fill(0xff);
    for (index, end) in ends.into_iter().enumerate() {
        let port = 8 + 2 * index;
        asked_of[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
        let address = 12 + 16 * index;
        match end.ip() {
            IpAddr::V4(ip) => asked_of[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => asked_of[address..address + 16].copy_from_slice(&ip.octets()),
        }
    }
    // Of any interface, and whatever its cookie is.
    asked_of[48..56].fill(0xff);
    asked
}

fn kind(answer: &[u8]) -> Option<u16> {
    bytes(answer, 4).map(u16::from_ne_bytes)
}

fn owner(protocol: Protocol, answer: &[u8], from: SocketAddr) -> Option<u32> {
    if answer.len() < ANSWER {
        return None;
    }
    // Where the connection's end is gone, one that listens at its port is found.
    let peer = u16::from_be_bytes(bytes(answer, PEER_PORT)?);
    let is_it = protocol == Protocol::Udp || peer == from.port();
    bytes(answer, USER)
        .map(u32::from_ne_bytes)
        .filter(|_| is_it)
}

fn bytes<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..at + N)?.try_into().ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

    /// Where the kernel has no `inet_diag` it tells of nobody.
    fn owners() -> Option<SocketOwners> {
        let (owners, socket) = (SocketOwners::new().unwrap(), local_udp());
        let tells = owners.of(Protocol::Udp, socket.local_addr().unwrap(), NOBODY);
        let tells = tells.unwrap().is_some();
        if !tells {
            eprintln!("skipped: the kernel does not tell whose a socket is");
        }
        tells.then_some(owners)
    }

    fn local_udp() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    #[test]
    fn a_socket_is_its_user_s() {
        let Some(owners) = owners() else { return };
        let own = Some(rustix::process::geteuid().as_raw());
        let (here, there) = (local_udp(), local_udp());
        let (at, from) = (there.local_addr().unwrap(), here.local_addr().unwrap());
        assert_eq!(owners.of(Protocol::Udp, at, from).unwrap(), own);
        there.connect(from).unwrap();
        assert_eq!(owners.of(Protocol::Udp, at, from).unwrap(), own);
        // What has both families.
        let both = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
        if let Ok(both) = both {
            let at = SocketAddr::new(
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                both.local_addr().unwrap().port(),
            );
            assert_eq!(owners.of(Protocol::Udp, at, from).unwrap(), own);
        }
        drop(there);
        assert_eq!(owners.of(Protocol::Udp, at, from).unwrap(), None);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let from = listener.local_addr().unwrap();
        assert_eq!(owners.of(Protocol::Tcp, from, NOBODY).unwrap(), own);
        let stream = TcpStream::connect(from).unwrap();
        let at = stream.local_addr().unwrap();
        assert_eq!(owners.of(Protocol::Tcp, at, from).unwrap(), own);
        // One who listens there is not the other end of a connection.
        let other = local_udp().local_addr().unwrap();
        assert_eq!(owners.of(Protocol::Tcp, from, other).unwrap(), None);
    }
}
