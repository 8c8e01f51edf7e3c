//! A virtqueue of either kind, as the driver has chosen with its features.
//!
//! [`VhostPort`](crate::vhost::virtqueue::port::VhostPort) owns two and drives them:
//! [`Queue::receive`] on the ring that the guest transmits on, [`Queue::put_whole`] and
//! [`Queue::put`] on the one it receives from. Which kind a queue is, is asked once a batch. What
//! is the same for both kinds is in `receive.rs` (pulling frames out) and `transmit.rs` (writing
//! frames in); they are written once, over the trait [`Ring`], and compiled for [`SplitQueue`] and
//! for [`PackedQueue`].
//!
//! While we poll, the guest is told not to notify us, on both rings: a guest also kicks after it
//! has refilled the ring it receives from, and there we never need to know.

use std::os::fd::{AsFd, BorrowedFd};

use crate::deliver::{Accepts, Piece};
use crate::frame::Batch;
use crate::port_info::QueueInfo;
use crate::vhost::dirty_log::RingLog;
use crate::vhost::features;
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::index::Position;
pub use crate::vhost::virtqueue::notifier::NotifyFd;
use crate::vhost::virtqueue::packed::PackedQueue;
use crate::vhost::virtqueue::receive;
pub use crate::vhost::virtqueue::ring::{Begin, QueueError, QueueSetup};
use crate::vhost::virtqueue::ring::{Bell, Ring};
use crate::vhost::virtqueue::split::SplitQueue;
use crate::vhost::virtqueue::transmit::{self, Framing, PutError};

#[cfg(target_endian = "big")]
compile_error!("rings are little-endian and are read as they are");

/// What is left of a queue for the session to keep.
#[derive(Debug)]
pub struct QueueParts {
    /// Where the next queue begins ([`Begin::At`]), and what GET_VRING_BASE answers. All that was
    /// taken has been given back.
    pub last_avail: u16,
    /// See [`QueueSetup::kick`].
    pub kick: Option<NotifyFd>,
    /// See [`QueueSetup::call`].
    pub call: Option<NotifyFd>,
}

/// One ring, of the kind that was negotiated.
pub enum Queue {
    /// Virtio 1.2, section 2.7.
    Split(SplitQueue),
    /// Virtio 1.2, section 2.8.
    Packed(PackedQueue),
}

/// Evaluates an expression with a queue of either kind.
macro_rules! either {
    ($queue:expr, $ring:ident => $what:expr) => {
        match $queue {
            Queue::Split($ring) => $what,
            Queue::Packed($ring) => $what,
        }
    };
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.info().fmt(f)
    }
}

impl Queue {
    /// Checks everything about the ring that does not change, and tells the guest that we poll.
    pub fn new(mut setup: QueueSetup) -> Result<Self, QueueError> {
        Queue::make(&mut setup)
    }

    /// [`new`](Queue::new) of a setup that keeps its descriptors if nothing comes of it.
    pub(in crate::vhost) fn make(setup: &mut QueueSetup) -> Result<Self, QueueError> {
        for (name, fd) in [("kick", &setup.kick), ("call", &setup.call)] {
            if fd.as_ref().is_some_and(|fd| !fd.is_eventfd()) {
                return Err(QueueError::NotEventfd(name));
            }
        }
        if setup.memory.is_lost() {
            return Err(QueueError::Lost("the guest's memory"));
        }
        if setup.log.as_ref().is_some_and(|log| log.log.is_lost()) {
            return Err(QueueError::Lost("the log of written pages"));
        }
        let packed = setup.features & features::RING_PACKED != 0;
        let mut queue = match packed {
            true => Queue::Packed(PackedQueue::new(setup)?),
            false => Queue::Split(SplitQueue::new(setup)?),
        };
        let begins = queue.last_avail();
        let bell = either!(&mut queue, ring => ring.bell_mut());
        (bell.kick, bell.call) = (setup.kick.take(), setup.call.take());
        // Who had this ring before may have been killed when it had given chains back and had not
        // said so.
        let beginning = if packed { Position::START.bits() } else { 0 };
        if begins != beginning {
            bell.call(false);
        }
        Ok(queue)
    }

    /// All of the ring itself is there, or is where none can be, which is for [`new`](Queue::new)
    /// to say. What has yet to come from another host is asked for.
    pub(in crate::vhost) fn is_there(setup: &QueueSetup) -> bool {
        let parts = match setup.features & features::RING_PACKED != 0 {
            true => PackedQueue::parts(setup),
            false => SplitQueue::parts(setup),
        };
        // All are asked for at once.
        let missing = parts.iter().filter(|part| {
            let host = setup.memory.user(part.addr, part.len);
            host.is_some_and(|host| !setup.memory.has(host, part.len))
        });
        missing.count() == 0
    }

    /// Takes the queue apart; what was taken from the guest and not given back yet is given back.
    pub fn into_parts(mut self) -> QueueParts {
        self.publish(usize::MAX);
        let last_avail = self.last_avail();
        let Bell { kick, call, .. } = either!(self, ring => ring.into_bell());
        QueueParts {
            last_avail,
            kick,
            call,
        }
    }

    /// The next entry that will be taken, as in [`Begin::At`].
    pub fn last_avail(&self) -> u16 {
        either!(self, ring => ring.last_avail())
    }

    /// Readable when the guest has notified us.
    pub fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        either!(self, ring => ring.bell())
            .kick
            .as_ref()
            .map(AsFd::as_fd)
    }

    /// Asks the guest to notify us of new chains. True when there are some already, and always when
    /// there is no descriptor to be notified on: such a ring has to be polled.
    pub fn arm(&mut self) -> bool {
        self.kick_fd().is_none() || either!(self, ring => ring.arm())
    }

    /// Tells the guest that we poll. It may have notified us before it sees this.
    pub fn disarm(&mut self) {
        either!(self, ring => ring.disarm())
    }

    /// Makes the first `count` chains of those taken and not given back visible to the guest, and
    /// notifies it if it wants that.
    #[inline]
    pub fn publish(&mut self, count: usize) {
        either!(self, ring => ring.publish(count))
    }

    /// What it writes is noted: frames have to be written by [`put`](Self::put).
    pub(in crate::vhost) fn is_logged(&self) -> bool {
        either!(self, ring => ring.log()).is_some()
    }

    /// True when the log in which its writes are noted was cut short while it was in use.
    pub(in crate::vhost) fn is_log_lost(&self) -> bool {
        either!(self, ring => ring.log()).is_some_and(RingLog::is_lost)
    }

    /// Indices at this moment.
    pub fn info(&self) -> QueueInfo {
        either!(self, ring => ring.info())
    }

    /// See [`receive::receive`].
    #[inline]
    pub(in crate::vhost) fn receive(
        &mut self,
        batch: &mut Batch,
        header_len: usize,
        sends: Accepts,
    ) -> Result<usize, RingFault> {
        either!(self, ring => receive::receive(ring, batch, header_len, sends))
    }

    /// See [`transmit::put_whole`].
    #[inline]
    pub(in crate::vhost) fn put_whole(
        &mut self,
        batch: &Batch,
        frames: &[u8],
        framing: Framing,
        accepts: Accepts,
    ) -> usize {
        either!(self, ring => transmit::put_whole(ring, batch, frames, framing, accepts))
    }

    /// See [`transmit::put`].
    pub(in crate::vhost) fn put(
        &mut self,
        piece: &Piece<'_>,
        framing: Framing,
    ) -> Result<(), PutError> {
        either!(self, ring => transmit::put(ring, piece, framing))
    }
}
