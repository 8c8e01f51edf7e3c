//! From the guest: chains of the ring it transmits on become frames of a batch.
//!
//! Three passes over up to a batch of chains, each touching what the one before has prefetched: available
//! entries, then descriptors, then headers and heads. A head is copied here, once; a body stays behind as a
//! list of segments. The chains go back to the guest at [`SplitQueue::publish`], after their frames were
//! delivered.

use wire::offload::{Gso, Offload};
use wire::virtio_net;

use super::chain::{RingFault, Walk};
use super::split::{SplitQueue, Used};
use crate::copy;
use crate::deliver::{self, Accepts};
use crate::frame::{BATCH, Batch, FRAME_MAX, Fault, HEAD_MAX, Segment};

/// A chain between the passes: its entries of the batch's segment list, and its bytes.
#[derive(Clone, Copy, Default)]
struct Chain {
    start: usize,
    end: usize,
    bytes: usize,
}

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

        let mut chains = [Chain::default(); BATCH];
        let (_, segments) = batch.slot();
        let limit = (FRAME_MAX + header_len) as u64;
        for (chain, &head) in chains.iter_mut().zip(&heads[..count]) {
            let start = segments.len();
            let bytes = self.table.walk(head, Walk::Readable { limit }, segments)? as usize;
            if bytes < header_len {
                return Err(RingFault::NoHeader {
                    head,
                    len: bytes as u64,
                });
            }
            *chain = Chain {
                start,
                end: segments.len(),
                bytes,
            };
            copy::prefetch(segments[start].ptr);
            copy::prefetch(segments[start].ptr.wrapping_add(64));
        }

        batch.hold(self.table.memory());
        for (chain, &head) in chains.iter().zip(&heads[..count]) {
            pull(batch, chain, header_len, sends);
            self.staged.push(Used { id: head, len: 0 });
        }
        self.next_avail = self.next_avail.wrapping_add(count as u16);
        Ok(count)
    }
}

/// Copies a chain's header and head, and leaves the rest as the frame's body.
#[inline]
fn pull(batch: &mut Batch, chain: &Chain, header_len: usize, sends: Accepts) {
    let (frame, segments) = batch.slot();
    let segments = &mut segments[chain.start..chain.end];
    let mut header = [0u8; virtio_net::HDR_LEN_MRG];
    let frame_len = chain.bytes - header_len;
    let head_len = frame_len.min(HEAD_MAX);
    let front = header_len + head_len;
    let taken = if segments[0].len >= front {
        let first = &mut segments[0];
        // SAFETY: `first` is valid for reads of its length (`Table::walk`), of which `front` bytes are read; the
        // targets hold 12 and `HEAD_MAX` bytes, and `header_len` is 10 or 12.
        unsafe {
            copy::bytes(first.ptr, header.as_mut_ptr(), header_len);
            copy::bytes(
                first.ptr.add(header_len),
                frame.head_space().as_mut_ptr(),
                head_len,
            );
        }
        *first = Segment {
            ptr: first.ptr.wrapping_add(front),
            len: first.len - front,
        };
        usize::from(first.len == 0)
    } else {
        let taken = gather(segments, &mut header[..header_len]);
        taken + gather(&mut segments[taken..], &mut frame.head_space()[..head_len])
    };
    let (offload, fault) = judge(&header, frame_len, sends);
    batch.commit(frame_len, chain.start + taken..chain.end, offload, fault);
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

/// What the guest's header asks for, if it may: only what was negotiated, and inside the frame.
#[inline]
fn judge(
    header: &[u8; virtio_net::HDR_LEN_MRG],
    frame_len: usize,
    sends: Accepts,
) -> (Offload, Option<Fault>) {
    if header[..2] == [0, 0] {
        return (Offload::default(), None);
    }
    let Ok(mut offload) = virtio_net::decode(header) else {
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
