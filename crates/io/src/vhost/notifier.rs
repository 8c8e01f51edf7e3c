//! The two eventfds of a ring: the guest kicks us, we call the guest.
//!
//! They come from the VMM, which keeps descriptors of the same open files.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

/// True for what can be notified with. One that blocks is made not to, for the sake of the fallback.
pub(super) fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let is_eventfd = link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]");
    let flags = rustix::fs::fcntl_getfl(fd).map(|flags| flags | OFlags::NONBLOCK);
    is_eventfd && flags.and_then(|flags| rustix::fs::fcntl_setfl(fd, flags)).is_ok()
}

/// Resets a non-blocking eventfd's counter.
pub(crate) fn drain(fd: BorrowedFd<'_>) {
    // An error means that it was at zero already.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

/// Raises a non-blocking eventfd's counter by one.
#[cold]
pub(super) fn raise(fd: BorrowedFd<'_>) {
    // A full counter (EAGAIN) is a notification that is still to be read.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
