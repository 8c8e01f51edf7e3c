//! Whose a socket of this host is, by sock_diag(7): who is at the other end of a connection over
//! loopback, where everybody on the host can connect, and who listens by a name that everybody may
//! take.

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
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `NLM_F_REQUEST`, and `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x301;
/// A `struct nlmsghdr`, and behind it a `struct inet_diag_req_v2`.
const HEADER: usize = 16;
const ASKED: usize = HEADER + 56;
/// In an answer, behind the header, a `struct inet_diag_msg`: the other end's port and the user.
const PEER_PORT: usize = HEADER + 6;
const USER: usize = HEADER + 64;
const ANSWER: usize = HEADER + 72;
/// Of unix sockets, a `struct unix_diag_req` behind the header, and in an answer a `struct
/// unix_diag_msg`, with attributes behind it.
const UNIX_ASKED: usize = HEADER + 24;
const UNIX_ANSWER: usize = HEADER + 16;
/// `TCP_LISTEN`.
const LISTENS: u32 = 10;
/// `UDIAG_SHOW_NAME | UDIAG_SHOW_UID`, and what is in the attributes then.
const SHOWN: u32 = 0x41;
const UNIX_NAME: u16 = 0;
const UNIX_USER: u16 = 7;

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
            Some(ERROR) => refused(answer),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The user whose socket listens by this abstract name (unix(7)) in our network namespace.
    /// `None`: nobody's does, or the kernel does not tell (it has no `unix_diag`, or is older than
    /// Linux 5.3).
    ///
    /// # Errors
    /// Those of netlink(7).
    pub fn of_name(&self, name: &[u8]) -> io::Result<Option<u32>> {
        let question = question_of_listeners();
        retry_on_intr(|| send(&self.0, &question, SendFlags::empty()))?;
        let (mut part, mut found) = (vec![0; 64 << 10], None);
        loop {
            let (len, _) = retry_on_intr(|| recv(&self.0, &mut part[..], RecvFlags::empty()))?;
            let mut rest = part.get(..len).unwrap_or(&part);
            while !rest.is_empty() {
                let (answer, behind) = first(rest).ok_or(io::ErrorKind::InvalidData)?;
                match kind(answer) {
                    Some(DONE) => return Ok(found),
                    Some(ERROR) => return refused(answer),
                    _ => found = found.or_else(|| owner_of_name(answer, name)),
                }
                rest = behind;
            }
        }
    }
}

fn question_of_listeners() -> [u8; UNIX_ASKED] {
    let mut asked = [0; UNIX_ASKED];
    asked[..4].copy_from_slice(&(UNIX_ASKED as u32).to_ne_bytes());
    asked[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    asked[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    let asked_of = &mut asked[HEADER..];
    asked_of[0] = AddressFamily::UNIX.as_raw() as u8;
    asked_of[4..8].copy_from_slice(&(1u32 << LISTENS).to_ne_bytes());
    asked_of[12..16].copy_from_slice(&SHOWN.to_ne_bytes());
    asked
}

/// The first one of messages or attributes that begin with their length and are padded to four
/// bytes, and those behind it.
fn padded(all: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    let behind = all.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((all.get(..length)?, behind))
}

fn first(messages: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes(messages, 0)?) as usize;
    padded(messages, length).filter(|_| length >= HEADER)
}

fn owner_of_name(answer: &[u8], name: &[u8]) -> Option<u32> {
    let (mut is_it, mut user) = (false, None);
    let mut rest = answer.get(UNIX_ANSWER..)?;
    while let (Some(length), Some(kind)) = (bytes(rest, 0), bytes(rest, 2)) {
        let length = usize::from(u16::from_ne_bytes(length));
        let (attribute, behind) = padded(rest, length)?;
        let value = attribute.get(4..)?;
        match u16::from_ne_bytes(kind) {
            UNIX_NAME => is_it = value.split_first() == Some((&0, name)),
            UNIX_USER => user = bytes(value, 0).map(u32::from_ne_bytes),
            _ => (),
        }
        rest = behind;
    }
    user.filter(|_| is_it)
}

/// What an error of the kernel's says; `None`: there is no such socket.
fn refused(answer: &[u8]) -> io::Result<Option<u32>> {
    match -i32::from_ne_bytes(bytes(answer, HEADER).unwrap_or_default()) {
        errno if errno == Errno::NOENT.raw_os_error() => Ok(None),
        errno => Err(io::Error::from_raw_os_error(errno)),
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
