//! Packet sockets (packet(7)): what an address of theirs takes, for which `rustix` has no type.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Binds a socket of AF_PACKET to an interface of the caller's network namespace. What it is sent
/// without an address is of the Ethernet type `protocol`, and so is what it receives, if that is
/// not 0.
///
/// # Errors
/// ENODEV: no such interface; ENETDOWN: it is down.
pub fn bind(socket: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> Result<(), Errno> {
    // SAFETY: all zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    // SAFETY: the address is complete and of this length.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
