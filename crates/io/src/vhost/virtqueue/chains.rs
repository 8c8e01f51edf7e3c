//! The chains that a ring has taken from the guest, on their way to become frames.

use wire::virtio_net;

use crate::copy;
use crate::frame::{FRAME_MAX, HEAD_MAX};
use crate::segment::Segment;
use crate::vhost::limits::CHAIN_MAX;
use crate::vhost::virtqueue::chain::{Buffer, Walk, Walked};
use crate::vhost::virtqueue::fault::RingFault;

/// A chain between the passes.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    /// Its first buffer.
    pub ptr: *const u8,
    /// Bytes of all its buffers, which is those of the first when there is only that.
    pub bytes: u32,
    /// All its buffers in the batch's segment list, when there are several.
    pub start: u32,
    pub end: u32,
    /// The guest's memory goes on behind the longest head, so that more than the head may be read.
    pub ample: bool,
}

pub(super) const NO_CHAIN: Chain = Chain {
    ptr: std::ptr::null(),
    bytes: 0,
    start: 0,
    end: 0,
    ample: false,
};

/// The chains that a ring is taking.
pub(in crate::vhost) struct Chains<'a> {
    pub(super) list: &'a mut [Chain],
    pub(super) len: usize,
    pub(super) segments: &'a mut Vec<Segment>,
    pub(super) header_len: usize,
    /// Buffers of all of them that were looked at and hold nothing.
    pub(super) empty: usize,
}

impl Chains<'_> {
    /// How many more there is room for; never more than [`BATCH`].
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.list.len() - self.len
    }

    /// Adds a chain of this one buffer. False, and nothing done, when there is none or it is no
    /// frame.
    #[inline(always)]
    pub fn add_only(&mut self, only: Option<Buffer>) -> bool {
        let Some(only) = only else { return false };
        if !(self.header_len..=FRAME_MAX + self.header_len).contains(&(only.len as usize)) {
            return false;
        }
        self.list[self.len] = Chain {
            ptr: only.ptr,
            bytes: only.len,
            start: 0,
            end: 0,
            ample: only.left >= (virtio_net::HDR_LEN_MRG + HEAD_MAX) as u64,
        };
        self.len += 1;
        copy::prefetch(only.ptr);
        copy::prefetch(only.ptr.wrapping_add(64));
        true
    }

    /// What a chain of any other kind is to be walked for, and where its buffers will begin in
    /// [`segments`](Self::segments).
    pub fn walk(&self) -> (Walk, usize) {
        let limit = (FRAME_MAX + self.header_len) as u64;
        (Walk::Readable { limit }, self.segments.len())
    }

    /// Where a walk adds the buffers that it finds.
    pub fn segments(&mut self) -> &mut Vec<Segment> {
        self.segments
    }

    /// Adds the chain at `head` that was walked: what it holds is in the segments from `start` on.
    pub fn add(&mut self, head: u16, walked: Walked, start: usize) -> Result<(), RingFault> {
        let Walked { bytes, descriptors } = walked;
        if bytes < self.header_len as u64 {
            return Err(RingFault::NoHeader { head, len: bytes });
        }
        self.empty += (descriptors as usize).saturating_sub(self.segments.len() - start);
        let first = self.segments[start];
        let mut chain = Chain {
            ptr: first.ptr,
            bytes: bytes as u32,
            ..NO_CHAIN
        };
        if first.len as u64 == bytes {
            self.segments.truncate(start);
        } else {
            (chain.start, chain.end) = (start as u32, self.segments.len() as u32);
        }
        self.list[self.len] = chain;
        self.len += 1;
        copy::prefetch(first.ptr);
        Ok(())
    }

    /// Gives up a chain that is not all there: its buffers were from `start` on. How far its walk
    /// came is not told; it is looked at again and again, and counts as one of the longest.
    #[cold]
    pub fn give_up(&mut self, start: usize) {
        self.segments.truncate(start);
        self.empty += CHAIN_MAX as usize;
    }
}
