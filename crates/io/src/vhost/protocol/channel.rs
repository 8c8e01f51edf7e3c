//! The channel on which this side asks its VMM (SET_BACKEND_REQ_FD): one end of a pair of sockets,
//! the VMM has the other.
//!
//! One thing is said on it: that the device's configuration space has changed (CONFIG_CHANGE_MSG),
//! upon which the VMM reads it and interrupts the guest. The message carries nothing, so that one
//! which the VMM has not read yet says all that another would: at most one waits to be
//! acknowledged, and one that finds no room need not be sent again. A VMM that reads nothing
//! therefore costs nothing, and nothing here waits for it.
//!
//! The VMM has made the socket and can do with it what it likes. Nothing of this process is at
//! stake but time and memory: every call is told not to wait, what is read is one acknowledgement
//! at a time, and descriptors that come along are not taken, which closes them. Anything that is
//! not an acknowledgement ends the channel and no more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketType, sockopt};

use crate::vhost::protocol::message::{HEADER_LEN, word};

/// Messages of this side have numbers of their own.
const CONFIG_CHANGE_MSG: u32 = 2;
const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Header and a number.
const ACK_LEN: usize = HEADER_LEN + 8;

/// Our end.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// What has come of the acknowledgement that is waited for.
    ack: [u8; ACK_LEN],
    filled: usize,
    /// The VMM has been told and has not acknowledged it.
    waiting: bool,
    /// There was another change since.
    again: bool,
}

/// Why a channel cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end is closed, or the socket fails.
    #[error("{0}")]
    Gone(Errno),
    /// Something else came than the acknowledgement of what was sent.
    #[error("what came is no acknowledgement of a change of the configuration")]
    Unasked,
    /// Not all of a message found room, so that the next would have no beginning.
    #[error("it takes parts of messages")]
    Torn,
}

/// Sockets that can be a channel: streams without names, as a pair has them. A socket with a name
/// could be the VMM's own end of the session: kept open here, it would let the session outlive the
/// VMM. Any other kind may do with what is written to it whatever the kernel has for a process of
/// our rights.
pub fn is_channel(socket: BorrowedFd<'_>) -> bool {
    // An address that is its family alone.
    let unnamed = |address: SocketAddrAny| address.addr_len() as usize == size_of::<u16>();
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && rustix::net::getsockname(socket).is_ok_and(unnamed)
        && rustix::net::getpeername(socket).is_ok_and(|address| address.is_none_or(unnamed))
}

impl Channel {
    /// Over a socket that [`is_channel`].
    pub fn new(socket: OwnedFd) -> Self {
        Channel {
            socket,
            ack: [0; ACK_LEN],
            filled: 0,
            waiting: false,
            again: false,
        }
    }

    /// Tells the VMM that the configuration space has changed; with `acks` it acknowledges that.
    pub fn config_changed(&mut self, acks: bool) -> Result<(), ChannelError> {
        if self.waiting {
            self.again = true;
            return Ok(());
        }
        let need_reply = if acks { FLAG_NEED_REPLY } else { 0 };
        let header = [CONFIG_CHANGE_MSG, VERSION | need_reply, 0];
        let bytes = header.map(u32::to_ne_bytes).concat();
        match rustix::net::send(
            &self.socket,
            &bytes,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(sent) if sent == bytes.len() => self.waiting = acks,
            Ok(_) => return Err(ChannelError::Torn),
            // What fills the queue says the same.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(ChannelError::Gone(error)),
        }
        Ok(())
    }

    /// Takes what has come, once.
    pub fn read(&mut self) -> Result<(), ChannelError> {
        let mut room = [0; ACK_LEN];
        let want = if self.waiting {
            ACK_LEN - self.filled
        } else {
            1
        };
        let got = match rustix::net::recv(&self.socket, &mut room[..want], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(ChannelError::Gone(Errno::PIPE)),
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(ChannelError::Gone(error)),
        };
        if !self.waiting {
            return Err(ChannelError::Unasked);
        }
        self.ack[self.filled..self.filled + got].copy_from_slice(&room[..got]);
        self.filled += got;
        if self.filled < ACK_LEN {
            return Ok(());
        }
        let header = [0, 4, 8].map(|at| word(&self.ack, at));
        if header != [CONFIG_CHANGE_MSG, VERSION | FLAG_REPLY, 8] {
            return Err(ChannelError::Unasked);
        }
        // Whether the VMM could make use of it is its business.
        (self.filled, self.waiting) = (0, false);
        if std::mem::take(&mut self.again) {
            return self.config_changed(true);
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
