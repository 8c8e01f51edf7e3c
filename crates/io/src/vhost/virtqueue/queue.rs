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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::deliver::{Accepts, Piece};
use crate::frame::{Batch, Segment};
use crate::guest_memory::GuestMemory;
use crate::port::QueueState;
use crate::vhost::features;
use crate::vhost::virtqueue::chain::Buffer;
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::index::Position;
use crate::vhost::virtqueue::notifier;
use crate::vhost::virtqueue::packed::PackedQueue;
use crate::vhost::virtqueue::receive::{self, Chains};
use crate::vhost::virtqueue::split::SplitQueue;
use crate::vhost::virtqueue::transmit::{self, Framing, PutError};

#[cfg(target_endian = "big")]
compile_error!("rings are little-endian and are read as they are");

/// What a queue is made of.
#[derive(Debug)]
pub struct QueueSetup {
    /// The guest's memory, where the rings lie.
    pub memory: Arc<GuestMemory>,
    /// Entries, up to 32768; of a split ring a power of two.
    pub size: u16,
    /// The descriptor table, or the packed ring, as an address of the VMM's.
    pub desc: u64,
    /// The available ring, or the driver's event structure, as an address of the VMM's.
    pub avail: u64,
    /// The used ring, or the device's event structure, as an address of the VMM's.
    pub used: u64,
    /// What was negotiated; RING_PACKED says which kind of ring it is.
    pub features: u64,
    /// Where to begin.
    pub begin: Begin,
    /// Where the guest notifies us.
    pub kick: Option<OwnedFd>,
    /// Where we notify the guest; without it the guest polls.
    pub call: Option<OwnedFd>,
}

/// Which entry of a ring is the next to take. In a packed ring bit 15 is the wrap counter of that
/// place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// This one.
    At(u16),
    /// The one that the ring itself shows: the used index of a split ring, what `resume` finds in a
    /// packed one. All that was given back was taken before, so that nothing is taken again, and
    /// what was taken and not given back is.
    AsItWas {
        /// What the VMM says, for a packed ring that does not show it.
        told: u16,
    },
}

impl Begin {
    /// A new ring, or any that was left by one of ours.
    pub const AS_IT_WAS: Begin = Begin::AsItWas {
        told: Position::START.bits(),
    };
}

/// What is left of a queue for the session to keep.
#[derive(Debug)]
pub struct QueueParts {
    /// Where the next queue begins ([`Begin::At`]), and what GET_VRING_BASE answers. All that was
    /// taken has been given back.
    pub last_avail: u16,
    /// See [`QueueSetup::kick`].
    pub kick: Option<OwnedFd>,
    /// See [`QueueSetup::call`].
    pub call: Option<OwnedFd>,
}

/// Why a queue cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A split ring whose size is not a power of two from 1 to 32768.
    #[error("a queue of {0} entries is not possible; powers of two up to 32768 are")]
    Size(u16),
    /// A packed ring of no entries or of more than 32768.
    #[error("a packed queue of {0} entries is not possible; 1 to 32768 are")]
    PackedSize(u16),
    /// A packed ring that is to begin behind its end.
    #[error("a packed queue of {size} entries cannot begin at entry {slot}")]
    Base {
        /// Where it was to begin.
        slot: u16,
        /// Its entries.
        size: u16,
    },
    /// A part of the ring does not lie in one region of the guest's memory.
    #[error("the {part} of {len} bytes at {addr:#x} is not in the guest's memory")]
    Outside {
        /// Which part.
        part: &'static str,
        /// The VMM's address of it.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// A part of the ring is not aligned as the specification asks.
    #[error("the {part} at {addr:#x} is not aligned to {align}")]
    Misaligned {
        /// Which part.
        part: &'static str,
        /// The VMM's address of it.
        addr: u64,
        /// What it has to be a multiple of.
        align: usize,
    },
    /// A kick or call descriptor that could make the worker wait.
    #[error("the {0} descriptor is not an eventfd")]
    NotEventfd(&'static str),
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
        self.state().fmt(f)
    }
}

impl Queue {
    /// Checks everything about the ring that does not change, and tells the guest that we poll.
    pub fn new(setup: QueueSetup) -> Result<Self, QueueError> {
        for (name, fd) in [("kick", &setup.kick), ("call", &setup.call)] {
            if fd.as_ref().is_some_and(|fd| !notifier::is_eventfd(fd)) {
                return Err(QueueError::NotEventfd(name));
            }
        }
        let packed = setup.features & features::RING_PACKED != 0;
        let mut queue = match packed {
            true => Queue::Packed(PackedQueue::new(setup)?),
            false => Queue::Split(SplitQueue::new(setup)?),
        };
        // Who had this ring before may have been killed when it had given chains back and had not
        // said so.
        let beginning = if packed { Position::START.bits() } else { 0 };
        if queue.last_avail() != beginning {
            either!(&mut queue, ring => ring.bell_mut()).call(false);
        }
        Ok(queue)
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

    /// Indices at this moment.
    pub fn state(&self) -> QueueState {
        either!(self, ring => ring.state())
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

/// What a kind of ring has to do for frames to pass through it.
///
/// A chain is *taken* when we will not look at it again, and *pending* until
/// [`publish`](Self::publish) has given it back. What was taken is given back in the same order,
/// always. Nothing that is pending is visible to the guest, so that [`back`](Self::back) can undo
/// it.
pub(in crate::vhost) trait Ring {
    /// True when the guest has offered a chain that is not taken.
    fn look(&mut self) -> Result<bool, RingFault>;

    /// Takes chains that the guest transmits, judged, as many as `chains` has room for; gives how
    /// many. After an error the ring must not be used any more.
    ///
    /// To be called after [`look`](Self::look), whose knowledge it uses.
    fn take(&mut self, chains: &mut Chains<'_>) -> Result<usize, RingFault>;

    /// The first buffers of the next chains to receive in, as far as they are simple: none longer
    /// than one buffer in the near region, or nothing after it that matters. Takes nothing; a fault
    /// is found again, and told, by [`take_writable`](Self::take_writable).
    fn rooms(&mut self, rooms: &mut [Room]) -> usize;

    /// Takes the chains of the first rooms that [`rooms`](Self::rooms) gave, into each of which
    /// `len` bytes were written.
    fn fill(&mut self, rooms: &[Room]);

    /// Takes the next chain to receive in, of whatever kind, of which `want` bytes at most will be
    /// written: adds buffers for these to `out`. Gives which chain it is and how many bytes its
    /// buffers hold, as far as was looked; `None` when there is none.
    fn take_writable(
        &mut self,
        want: u64,
        out: &mut Vec<Segment>,
    ) -> Result<Option<(u16, u64)>, RingFault>;

    /// How far was taken, for [`back`](Self::back).
    fn mark(&self) -> Mark;

    /// Takes nothing behind `mark`.
    fn back(&mut self, mark: Mark);

    /// The memory that the buffers are in.
    fn memory(&self) -> &Arc<GuestMemory>;

    /// Room for the segments of the frame that is being written, kept for its allocation.
    fn scratch(&mut self) -> &mut Vec<Segment>;
}

/// A place in a ring; see [`Ring::mark`].
#[derive(Clone, Copy)]
pub(in crate::vhost) struct Mark {
    /// The next to be taken, as in [`Begin::At`].
    pub next: u16,
    /// Where the next pending entry goes.
    pub pending_end: u16,
    /// Slots of a packed ring that pending chains take.
    pub slots: u16,
}

/// A buffer to receive in.
#[derive(Clone, Copy)]
pub(in crate::vhost) struct Room {
    /// Valid for writes of `len` bytes while the ring lives.
    pub ptr: *mut u8,
    /// Its length; then how many bytes were written.
    pub len: u32,
    /// What the guest knows its chain by.
    pub id: u16,
}

impl Room {
    pub const NONE: Room = Room {
        ptr: std::ptr::null_mut(),
        len: 0,
        id: 0,
    };

    #[inline(always)]
    pub fn new(buffer: Buffer, id: u16) -> Room {
        Room {
            ptr: buffer.ptr,
            len: buffer.len,
            id,
        }
    }
}

/// Both notifications of a ring.
#[derive(Debug)]
pub(in crate::vhost) struct Bell {
    pub kick: Option<OwnedFd>,
    pub call: Option<OwnedFd>,
    /// Whether the guest waits for a notification is not known to us: notify whatever it says.
    anyway: bool,
    pub calls: u64,
}

impl Bell {
    pub fn new(kick: Option<OwnedFd>, call: Option<OwnedFd>) -> Self {
        Bell {
            kick,
            call,
            anyway: true,
            calls: 0,
        }
    }

    /// Notifies the guest if it wants that, and the first time in any case.
    #[inline]
    pub fn call(&mut self, wanted: bool) {
        if (wanted || self.anyway)
            && let Some(call) = &self.call
        {
            self.anyway = false;
            self.calls += 1;
            notifier::raise(call.as_fd());
        }
    }
}

/// Where a part of a ring is in our memory.
pub(in crate::vhost) fn place(
    memory: &GuestMemory,
    part: &'static str,
    addr: u64,
    len: u64,
    align: usize,
) -> Result<*mut u8, QueueError> {
    let host = memory
        .user(addr, len)
        .ok_or(QueueError::Outside { part, addr, len })?;
    // A region may begin anywhere, so that it is the pointer that has to be aligned.
    if host.addr().is_multiple_of(align) {
        Ok(host)
    } else {
        Err(QueueError::Misaligned { part, addr, align })
    }
}
