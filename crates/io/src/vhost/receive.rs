//! From the guest: chains of the ring it transmits on become frames of a batch.
//!
//! Three passes over up to a batch of chains, each touching what the one before has prefetched: available
//! entries, then descriptors, then headers and heads. A head is copied here, once; a body stays behind as a
//! list of segments. The chains go back to the guest at [`SplitQueue::publish`], after their frames were
//! delivered.

use std::ops::Range;

use wire::offload::{Gso, Offload};
use wire::virtio_net;

use super::chain::{RingFault, Walk};
use super::split::{SplitQueue, Used};
use crate::copy;
use crate::deliver::{self, Accepts};
use crate::frame::{BATCH, Batch, FRAME_MAX, Fault, Frame, HEAD_MAX, Segment};

/// A chain between the passes.
#[derive(Clone, Copy)]
struct Chain {
    /// Its first buffer.
    first: Segment,
    /// Bytes of all its buffers; as many as `first` has when that is the only one.
    bytes: usize,
    /// All its buffers in the batch's segment list, when there are several.
    start: usize,
    end: usize,
}

const NO_CHAIN: Chain = Chain {
    first: copy::NOTHING,
    bytes: 0,
    start: 0,
    end: 0,
};

impl SplitQueue {
    /// Takes up to the batch's room of chains. `header_len` is that of the virtio-net header, `sends` what the
    /// guest has negotiated to leave undone. After an error the queue must not be used any more.
    pub(super) fn receive(
        &mut self,
        batch: &mut Batch,
        header_len: usize,
        sends: Accepts,
    ) -> Result<usize, RingFault> {
        let ready = usize::from(self.look()?);
        // `staged` has room for a ring: chains that are not given back yet limit what is taken.
        let count = ready
            .min(batch.room())
            .min(usize::from(self.size) - self.staged.len());
        if count == 0 {
            return Ok(0);
        }
        let mut heads = [0u16; BATCH];
        for (ahead, head) in heads[..count].iter_mut().enumerate() {
            *head = self.head_at(self.next_avail.wrapping_add(ahead as u16));
            copy::prefetch(self.table.hint(*head));
        }

        let mut chains = [NO_CHAIN; BATCH];
        let (_, segments) = batch.slots(0);
        let limit = FRAME_MAX + header_len;
        for (chain, &head) in chains.iter_mut().zip(&heads[..count]) {
            *chain = match self.table.only(head) {
                Some(first) if (header_len..=limit).contains(&first.len) => Chain {
                    first,
                    bytes: first.len,
                    ..NO_CHAIN
                },
                _ => self.chain(head, header_len, segments)?,
            };
            copy::prefetch(chain.first.ptr);
            copy::prefetch(chain.first.ptr.wrapping_add(64));
        }

        batch.hold(self.table.memory());
        let (frames, segments) = batch.slots(count);
        for (frame, chain) in frames.iter_mut().zip(&chains) {
            if chain.first.len == chain.bytes {
                pull(frame, segments, chain.first, header_len, sends);
            } else {
                pull_several(frame, segments, chain, header_len, sends);
            }
        }
        batch.commit(count);
        let used = heads[..count].iter().map(|&id| Used { id, len: 0 });
        self.staged.extend(used);
        self.next_avail = self.next_avail.wrapping_add(count as u16);
        Ok(count)
    }

    /// A chain of any kind, judged as a whole.
    #[inline(never)]
    fn chain(
        &mut self,
        head: u16,
        header_len: usize,
        segments: &mut Vec<Segment>,
    ) -> Result<Chain, RingFault> {
        let start = segments.len();
        let limit = (FRAME_MAX + header_len) as u64;
        let bytes = self.table.walk(head, Walk::Readable { limit }, segments)? as usize;
        if bytes < header_len {
            return Err(RingFault::NoHeader {
                head,
                len: bytes as u64,
            });
        }
        let first = segments[start];
        if first.len == bytes {
            segments.truncate(start);
        }
        Ok(Chain {
            first,
            bytes,
            start,
            end: segments.len(),
        })
    }
}

/// Copies header and head of a chain of one buffer, and leaves the rest as the frame's body.
#[inline(always)]
fn pull(frame: &mut Frame, segments: &mut Vec<Segment>, only: Segment, header_len: usize, sends: Accepts) {
    let frame_len = only.len - header_len;
    let head_len = frame_len.min(HEAD_MAX);
    let front = header_len + head_len;
    // SAFETY: `only` is valid for reads of its length (`Table`), of which `front` bytes are read: `header_len`,
    // which is 10 or 12, and `head_len`, for which `HEAD_MAX` bytes of private memory are enough.
    let header = unsafe {
        let head = frame.head_space().as_mut_ptr();
        copy::bytes(only.ptr.add(header_len), head, head_len);
        read_header(only.ptr, header_len)
    };
    let start = segments.len();
    if only.len > front {
        segments.push(Segment {
            ptr: only.ptr.wrapping_add(front),
            len: only.len - front,
        });
    }
    finish(frame, header, frame_len, start..segments.len(), sends);
}

/// The same of a chain of several buffers.
#[inline(never)]
fn pull_several(
    frame: &mut Frame,
    segments: &mut [Segment],
    chain: &Chain,
    header_len: usize,
    sends: Accepts,
) {
    let segments = &mut segments[chain.start..chain.end];
    let mut header = [0u8; size_of::<u128>()];
    let frame_len = chain.bytes - header_len;
    let head_len = frame_len.min(HEAD_MAX);
    let taken = gather(segments, &mut header[..header_len]);
    let taken = taken + gather(&mut segments[taken..], &mut frame.head_space()[..head_len]);
    let header = u128::from_le_bytes(header);
    finish(frame, header, frame_len, chain.start + taken..chain.end, sends);
}

/// The virtio-net header as a number, in registers: bytes that are stored in pieces and loaded together are waited for.
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

/// Fills `out` from the segments' beginning and takes those bytes off them; gives how many segments are empty.
/// The segments hold at least `out.len()` bytes together (their sum is what the lengths are made from).
#[cold]
fn gather(segments: &mut [Segment], out: &mut [u8]) -> usize {
    let (mut done, mut empty) = (0, 0);
    for segment in segments {
        if done == out.len() {
            break;
        }
        let len = segment.len.min(out.len() - done);
        // SAFETY: `segment` is valid for reads of its length (`Table::walk`), and `out` has `len` bytes left.
        unsafe { copy::bytes(segment.ptr, out[done..].as_mut_ptr(), len) };
        *segment = Segment {
            ptr: segment.ptr.wrapping_add(len),
            len: segment.len - len,
        };
        done += len;
        empty += usize::from(segment.len == 0);
    }
    debug_assert_eq!(done, out.len());
    empty
}

/// Fills in all but the head. The header comes as a number; most ask for nothing, and those ways are kept apart so that
/// what the other one finds is not put together in memory for both.
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
fn finish_asked(frame: &mut Frame, header: u128, frame_len: usize, body: Range<usize>, sends: Accepts) {
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
        && deliver::is_sound(&offload, frame_len);
    if negotiated {
        (offload, None)
    } else {
        (Offload::default(), Some(Fault::BadOffload))
    }
}
