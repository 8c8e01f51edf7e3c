//! A port's socket for others than its worker: for the program's map, and for what the kernel
//! counts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::net::sockopt;

/// What the kernel counted for a socket: frames that it could not give us, or that we gave it
/// wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XskStatistics {
    /// Lost for other reasons than a full ring: longer than the buffers.
    pub dropped: u64,
    /// Lost because the receive ring was full.
    pub ring_full: u64,
    /// Lost because no buffer was in the fill ring.
    pub no_buffer: u64,
    /// Descriptors that the kernel refused to send.
    pub invalid: u64,
}

/// A port's socket, for whoever puts it into the program's map and reads what the kernel counts. It
/// does not keep the socket: the queue is free again when the port goes.
#[derive(Clone, Debug)]
pub struct XskHandle(Weak<OwnedFd>);

impl XskHandle {
    /// Of a port that has this socket, if it has one yet.
    pub(super) fn new(socket: Option<&Arc<OwnedFd>>) -> XskHandle {
        XskHandle(socket.map_or_else(Weak::new, Arc::downgrade))
    }

    /// What the kernel has counted; `None` when the port is gone.
    pub fn statistics(&self) -> Option<XskStatistics> {
        let counted = sockopt::xdp_statistics(&*self.0.upgrade()?).ok()?;
        Some(XskStatistics {
            dropped: counted.rx_dropped,
            ring_full: counted.rx_ring_full.unwrap_or(0),
            no_buffer: counted.rx_fill_ring_empty_descs.unwrap_or(0),
            invalid: counted.tx_invalid_descs,
        })
    }

    /// Calls `what` with the socket; `None` when the port is gone. Not to be kept.
    pub fn with<T>(&self, what: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        Some(what(self.0.upgrade()?.as_fd()))
    }
}
