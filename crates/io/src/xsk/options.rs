//! Which queue, on what link, and how its UMEM is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{HEADROOM, LINK_HEADER};

/// The chunk for frames of an ordinary MTU, and the one for larger ones: a page, more is not
/// possible.
const CHUNK: u32 = 2048;
const CHUNK_LARGE: u32 = 4096;

/// What an interface's ports have to know of it, told by whoever follows it: the MTU and whether it
/// is up.
#[derive(Debug)]
pub struct Link {
    mtu: AtomicU32,
    up: AtomicBool,
}

impl Link {
    /// A link as it is now.
    pub fn new(mtu: u32, up: bool) -> Link {
        Link {
            mtu: AtomicU32::new(mtu),
            up: AtomicBool::new(up),
        }
    }

    /// It has changed. Taken up by the ports with their next frame.
    pub fn change(&self, mtu: u32, up: bool) {
        self.mtu.store(mtu, Ordering::Relaxed);
        self.up.store(up, Ordering::Relaxed);
    }

    /// Bytes of IP packet that it carries.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// It is set up, and so is what is at its other end.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}

/// Which queue of what, and how.
#[derive(Clone, Debug)]
pub struct XskOptions {
    /// The interface's name, for messages.
    pub interface: String,
    /// Its index, in the network namespace of the calling thread.
    pub ifindex: u32,
    /// The queue, from 0.
    pub queue: u32,
    /// Frames that wait in each direction at most: a power of two, 64 to 32768.
    pub frames: u32,
    /// Let the NIC read and write the UMEM where its driver offers it.
    pub zero_copy: bool,
    /// Ask the kernel to do its part within our calls while the port is polled.
    pub busy_poll: bool,
    /// Packets may be the kernel's own, which were on no wire: what it has left undone in them is
    /// looked for.
    pub unfinished: bool,
    /// The interface's state.
    pub link: Arc<Link>,
}

/// How the UMEM of a queue is cut.
pub(super) struct Sizes {
    /// Chunks for each direction.
    pub frames: u32,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Every frame that the link brings fits in one chunk.
    pub one_chunk: bool,
    /// Chunks for each frame to be sent.
    pub slot_chunks: u32,
}

impl Sizes {
    /// Entries of a fill ring for so many chunks. A kernel shows a frame before it says that the
    /// entry of its buffer is free, so that for a moment all chunks may be in the ring once more
    /// than the kernel has said it took: each twice at most, since it says what it took before it
    /// looks for more.
    pub fn fill_ring(frames: u32) -> u32 {
        2 * frames
    }
}

impl XskOptions {
    pub(super) fn sizes(&self) -> Sizes {
        let longest = self.link.mtu().min(u32::from(u16::MAX)) + LINK_HEADER as u32;
        let chunk_len = if longest <= CHUNK - HEADROOM {
            CHUNK
        } else {
            CHUNK_LARGE
        };
        Sizes {
            frames: self.frames.clamp(64, 32_768).next_power_of_two(),
            chunk_len,
            one_chunk: longest <= chunk_len - HEADROOM,
            slot_chunks: longest.div_ceil(chunk_len).next_power_of_two(),
        }
    }
}
