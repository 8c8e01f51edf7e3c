//! What the two kinds of ring have in common: how they are set up, and the trait that frames pass
//! through.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::guest_memory::GuestMemory;
use crate::segment::Segment;
use crate::vhost::dirty_log::{LogSetup, LogTooSmall, RingLog};
use crate::vhost::virtqueue::chain::{Buffer, Buffers, Walked};
use crate::vhost::virtqueue::chains::Chains;
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::index::Position;
use crate::vhost::virtqueue::notifier::{self, NotifyFd};

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
    pub kick: Option<NotifyFd>,
    /// Where we notify the guest; without it the guest polls.
    pub call: Option<NotifyFd>,
    /// Where what is written into the guest's memory is to be noted.
    pub log: Option<LogSetup>,
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
    /// The log of written pages has no bit for one that is to be noted.
    #[error(transparent)]
    LogTooSmall(#[from] LogTooSmall),
    /// Memory that the ring needs was taken away by its VMM. What is in its place is the daemon's
    /// own memory, of which nothing more is to be used.
    #[error(
        "the file that holds {0} was cut short while it was in use, or has no page where one was"
    )]
    Lost(&'static str),
    /// A kick or call descriptor that could make the worker wait.
    #[error("the {0} descriptor is not an eventfd")]
    NotEventfd(&'static str),
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

    /// Takes chains that the guest transmits, judged, as many as `chains` has room for, and no
    /// further than to one that has yet to come from another host; gives how many. After an error
    /// the ring must not be used any more.
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
    /// written: adds buffers for these to `out`. `None` when there is none. After an error other
    /// than [`RingFault::NotThere`] the ring must not be used any more.
    fn take_writable(
        &mut self,
        want: u64,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Taken>, RingFault>;

    /// How far was taken, for [`back`](Self::back).
    fn mark(&self) -> Mark;

    /// Takes nothing behind `mark`.
    fn back(&mut self, mark: Mark);

    /// The memory that the buffers are in.
    fn memory(&self) -> &Arc<GuestMemory>;

    /// What finds the buffers there.
    fn buffers(&mut self) -> &mut Buffers;

    /// Where what is written is to be noted, if it is.
    fn log(&self) -> Option<&RingLog>;

    /// Room for the segments of the frame that is being written, kept for its allocation.
    fn scratch(&mut self) -> &mut Vec<Segment>;
}

/// A chain to receive in that was taken.
pub(in crate::vhost) struct Taken {
    /// Which it is, for who complains of it.
    pub head: u16,
    /// What it holds, as far as was looked.
    pub walked: Walked,
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
    pub kick: Option<NotifyFd>,
    pub call: Option<NotifyFd>,
    /// Whether the guest waits for a notification is not known to us: notify whatever it says.
    anyway: bool,
    pub calls: u64,
}

/// What a queue seldom looks at: in a place of its own, so that what each batch needs stays
/// together.
#[derive(Debug)]
pub(in crate::vhost) struct Seldom {
    /// What was negotiated.
    pub features: u64,
    /// Where what is written is noted, if it is: the queue itself knows whether.
    pub log: Option<RingLog>,
}

impl Bell {
    pub fn new(kick: Option<NotifyFd>, call: Option<NotifyFd>) -> Self {
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

/// A part of a ring, as the VMM says where it is.
pub(in crate::vhost) struct RingPart {
    pub name: &'static str,
    /// An address of the VMM's.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What its address has to be a multiple of.
    pub align: usize,
}

impl RingPart {
    /// Where it is in our memory.
    pub fn place(&self, memory: &GuestMemory) -> Result<*mut u8, QueueError> {
        let RingPart {
            name: part,
            addr,
            len,
            align,
        } = *self;
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
}
