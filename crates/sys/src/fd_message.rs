//! Messages over Unix sockets that descriptors come with (unix(7), SCM_RIGHTS). A call that a
//! signal interrupts is made again.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors that the kernel lets one message have (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 253;

/// Sends the parts as one message, with these descriptors. Gives how many bytes went; with fewer
/// than all, on a stream, the descriptors have gone with them. No SIGPIPE is raised.
///
/// # Errors
/// `INVAL`: more descriptors than [`FDS_MAX`]. All that sendmsg(2) may say but `INTR`.
pub fn send(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(socket.as_fd(), parts, &mut control, flags))
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes. Zero: the other end has gone, where no message is empty.
    pub len: usize,
    /// What came along. Whoever drops it closes them; none is left to a program that is run.
    pub fds: Vec<OwnedFd>,
    /// Descriptors came that were not taken: more than were expected, or than this process may
    /// have open.
    pub fds_lost: bool,
}

/// Takes one message, or what there is of a stream, and at most `fds_max` descriptors.
///
/// # Errors
/// All that recvmsg(2) may say but `INTR`.
///
/// # Panics
/// `fds_max` is more than [`FDS_MAX`].
pub fn receive(
    socket: impl AsFd,
    into: &mut [u8],
    fds_max: usize,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut room[..cmsg_space!(ScmRights(fds_max))]);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(into)];
    let received = retry_on_intr(|| recvmsg(socket.as_fd(), &mut parts, &mut control, flags))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // There is room for whole words.
    let too_many = fds.len() > fds_max;
    fds.truncate(fds_max);
    Ok(Received {
        len: received.bytes,
        fds,
        fds_lost: too_many || received.flags.contains(ReturnFlags::CTRUNC),
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn descriptors_come_with_their_message() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let own: Vec<_> = std::iter::repeat_n(here.as_fd(), FDS_MAX + 1).collect();
        let parts = [IoSlice::new(b"so "), IoSlice::new(b"many")];
        let none = SendFlags::empty();
        let mut bytes = [0; 16];
        for count in [0, 1, 8, FDS_MAX] {
            assert_eq!(send(&here, &parts, &own[..count], none), Ok(7));
            let received = receive(&there, &mut bytes, count, RecvFlags::empty()).unwrap();
            assert_eq!(&bytes[..received.len], b"so many");
            assert_eq!((received.fds.len(), received.fds_lost), (count, false));
            for fd in received.fds {
                let flags = rustix::io::fcntl_getfd(&fd).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
        assert_eq!(send(&here, &parts, &own, none), Err(Errno::INVAL));
        let received = receive(&there, &mut bytes, 1, RecvFlags::DONTWAIT);
        assert_eq!(received.unwrap_err(), Errno::AGAIN, "nothing was sent");
    }

    #[test]
    fn more_descriptors_than_are_expected_are_lost_and_said_so() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let own: Vec<_> = std::iter::repeat_n(here.as_fd(), 4).collect();
        let mut bytes = [0; 16];
        for expected in [0, 1] {
            send(&here, &[IoSlice::new(b"four")], &own, SendFlags::empty()).unwrap();
            let received = receive(&there, &mut bytes, expected, RecvFlags::empty()).unwrap();
            assert!(received.fds_lost);
            assert!(received.fds.len() <= expected, "{received:?}");
        }
    }
}
