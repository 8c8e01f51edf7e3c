//! A port's socket for others than its worker: for the program's map, and for what the kernel
//! counts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::net::sockopt;
use sys::handed::Handed;

use super::adopted::Cut;
use super::umem::Umem;

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
pub struct XskHandle {
    socket: Weak<OwnedFd>,
    umem: Weak<Umem>,
    cut: Cut,
}

impl XskHandle {
    /// Of a port that has this socket, if it has one yet.
    pub(super) fn new(socket: Option<&Arc<OwnedFd>>, umem: &Arc<Umem>, cut: Cut) -> XskHandle {
        XskHandle {
            socket: socket.map_or_else(Weak::new, Arc::downgrade),
            umem: Arc::downgrade(umem),
            cut,
        }
    }

    /// What another process [adopts](super::XskPort::adopt) the queue by; `None` when the port is
    /// gone.
    pub fn hand_over(&self) -> Option<std::io::Result<Handed>> {
        let (socket, umem) = (self.socket.upgrade()?, self.umem.upgrade()?);
        let fds = [socket.try_clone(), umem.memory().try_clone_to_owned()];
        let fds = fds.into_iter().collect::<Result<_, _>>();
        Some(fds.map(|fds| Handed {
            note: self.cut.to_note(),
            fds,
        }))
    }

    /// What the kernel has counted; `None` when the port is gone.
    pub fn statistics(&self) -> Option<XskStatistics> {
        let counted = sockopt::xdp_statistics(&*self.socket.upgrade()?).ok()?;
        Some(XskStatistics {
            dropped: counted.rx_dropped,
            ring_full: counted.rx_ring_full.unwrap_or(0),
            no_buffer: counted.rx_fill_ring_empty_descs.unwrap_or(0),
            invalid: counted.tx_invalid_descs,
        })
    }

    /// Calls `what` with the socket; `None` when the port is gone. Not to be kept.
    pub fn with<T>(&self, what: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        Some(what(self.socket.upgrade()?.as_fd()))
    }
}
