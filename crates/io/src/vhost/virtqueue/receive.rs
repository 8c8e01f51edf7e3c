//! From the guest: chains of the ring it transmits on become frames of a batch.
//!
//! Two or three passes over up to a batch of chains, each touching what the one before has
//! prefetched: the ring's own ([`Ring::take`]: entries, descriptors), then headers and heads. A
//! head is copied here, once; a body stays behind as a list of segments. The chains go back to the
//! guest at [`Queue::publish`](crate::vhost::virtqueue::queue::Queue::publish), after their frames
//! were delivered.

use std::ops::Range;

use wire::offload::{Gso, Offload};
use wire::virtio_net;

use crate::copy::{self, by_width};
use crate::deliver::{self, Accepts};
use crate::frame::{BATCH, Batch, Fault, Frame, HEAD_MAX, gather};
use crate::segment::Segment;
use crate::vhost::virtqueue::chains::{Chain, Chains, NO_CHAIN};
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::ring::Ring;

by_width! {
    /// Takes up to the batch's room of chains. `header_len` is that of the virtio-net header,
    /// `sends` what the guest has negotiated to leave undone. After an error the queue must not be
    /// used any more.
    pub(in crate::vhost) fn receive<R: Ring>(
        ring: &mut R,
        batch: &mut Batch,
        header_len: usize,
        sends: Accepts,
    ) -> Result<usize, RingFault> = receive_any;
}

#[inline(always)]
fn receive_any<R: Ring>(
    ring: &mut R,
    batch: &mut Batch,
    header_len: usize,
    sends: Accepts,
) -> Result<usize, RingFault> {
    if !ring.look()? {
        return Ok(0);
    }
    let mut list = [NO_CHAIN; BATCH];
    let room = batch.room();
    let (_, segments) = batch.slots(0);
    let mut chains = Chains {
        list: &mut list[..room],
        len: 0,
        segments,
        header_len,
        empty: 0,
    };
    let count = ring.take(&mut chains)?;
    let empty = chains.empty;
    batch.count_empty(empty);
    if count == 0 {
        return Ok(0);
    }
    batch.hold(ring.memory());
    let (frames, segments) = batch.slots(count);
    for (frame, chain) in frames.iter_mut().zip(&list) {
        if chain.start == chain.end {
            pull(frame, segments, chain, header_len, sends);
        } else {
            pull_several(frame, segments, chain, header_len, sends);
        }
    }
    batch.commit(count);
    batch.owe(count);
    Ok(count)
}

/// Copies header and head of a chain of one buffer, and leaves the rest as the frame's body.
#[inline(always)]
fn pull(
    frame: &mut Frame,
    segments: &mut Vec<Segment>,
    chain: &Chain,
    header_len: usize,
    sends: Accepts,
) {
    let bytes = chain.bytes as usize;
    let frame_len = bytes - header_len;
    let head_len = frame_len.min(HEAD_MAX);
    let front = header_len + head_len;
    // SAFETY: the chain's buffer is valid for reads of its length (`Buffers`), of which `front`
    // bytes are read: `header_len`, which is 10 or 12, and `head_len`, for which `HEAD_MAX` bytes
    // of private memory are enough. In whole blocks up to `HEAD_MAX` bytes are read and written: of
    // memory that is the same guest's (`ample`), into what is behind the head and never looked at.
    let header = unsafe {
        let head = frame.head_space().as_mut_ptr();
        let from = chain.ptr.add(header_len);
        if chain.ample {
            copy::blocks(from, head, head_len);
        } else {
            copy::bytes(from, head, head_len);
        }
        read_header(chain.ptr, header_len)
    };
    let start = segments.len();
    if bytes > front {
        segments.push(Segment {
            ptr: chain.ptr.wrapping_add(front),
            len: bytes - front,
        });
    }
    finish(frame, header, frame_len, start..segments.len(), sends);
}

/// Copies header and head of a chain of several buffers, and leaves the rest as the frame's body.
#[inline(never)]
fn pull_several(
    frame: &mut Frame,
    segments: &mut [Segment],
    chain: &Chain,
    header_len: usize,
    sends: Accepts,
) {
    let (start, end) = (chain.start as usize, chain.end as usize);
    let segments = &mut segments[start..end];
    let mut header = [0u8; size_of::<u128>()];
    let frame_len = chain.bytes as usize - header_len;
    let head_len = frame_len.min(HEAD_MAX);
    let taken = gather(segments, &mut header[..header_len]);
    let taken = taken + gather(&mut segments[taken..], &mut frame.head_space()[..head_len]);
    let header = u128::from_le_bytes(header);
    finish(frame, header, frame_len, start + taken..end, sends);
}

/// The virtio-net header as a number, in registers: bytes that are stored in pieces and loaded
/// together are waited for.
///
/// # Safety
/// `from` is valid for reads of `header_len` bytes, which is 10 or 12.
#[inline(always)]
unsafe fn read_header(from: *const u8, header_len: usize) -> u128 {
    // SAFETY: the caller's promise; the unaligned reads are inside those bytes.
    unsafe {
        let low = from.cast::<u64>().read_unaligned();
        let high = if header_len == virtio_net::HDR_LEN_MRG {
            from.add(8).cast::<u32>().read_unaligned()
        } else {
            u32::from(from.add(8).cast::<u16>().read_unaligned())
        };
        u128::from(low) | u128::from(high) << 64
    }
}

/// Fills in all but the head. The header comes as a number; most ask for nothing. The two cases are
/// separate, so that an offload is put together in memory only where there is one.
#[inline(always)]
fn finish(frame: &mut Frame, header: u128, frame_len: usize, body: Range<usize>, sends: Accepts) {
    // Neither flags nor a kind of segmentation: `virtio_net::decode` would say the same.
    if header as u16 == 0 {
        frame.fill(frame_len, body, Offload::default(), None);
    } else {
        finish_asked(frame, header, frame_len, body, sends);
    }
}

#[inline(never)]
fn finish_asked(
    frame: &mut Frame,
    header: u128,
    frame_len: usize,
    body: Range<usize>,
    sends: Accepts,
) {
    let (offload, fault) = judge(header, frame_len, sends);
    frame.fill(frame_len, body, offload, fault);
}

/// What the guest's header asks for, if it may: only what was negotiated, and inside the frame.
fn judge(header: u128, frame_len: usize, sends: Accepts) -> (Offload, Option<Fault>) {
    let [header @ .., _, _, _, _] = header.to_le_bytes();
    let Ok(mut offload) = virtio_net::decode(&header) else {
        return (Offload::default(), Some(Fault::BadOffload));
    };
    // A guest has no device that could have verified a checksum for it.
    offload.data_valid = false;
    let negotiated = (sends.checksum || offload.checksum.is_none())
        && (offload.gso == Gso::None || sends.gso(&offload))
        && deliver::is_sound(&offload, frame_len.min(HEAD_MAX));
    if negotiated {
        (offload, None)
    } else {
        (Offload::default(), Some(Fault::BadOffload))
    }
}
