//! To the guest: a frame becomes the contents of one chain, or several, of the ring that it receives from.
//!
//! This is where the one copy happens. Room is collected first and only then is anything written; chains are
//! taken by moving `next_avail` when the frame is complete, so that a frame that does not fit leaves no trace.
//! The used entries wait in `staged` for [`SplitQueue::publish`].

use wire::checksum::{Sum, finish};
use wire::offload::{Gso, Offload};
use wire::virtio_net;

use super::chain::{RingFault, Walk};
use super::split::{SplitQueue, Used};
use crate::copy;
use crate::deliver::Piece;
use crate::frame::{HEAD_MAX, Segment};
use crate::port::TransmitError;

/// How the receiver wants its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    /// Bytes of the virtio-net header: 12, or 10 for a legacy guest.
    pub header_len: usize,
    /// A frame may take several chains (MRG_RXBUF).
    pub mergeable: bool,
}

/// Why a frame was not written: an ordinary loss, or a guest that broke the protocol.
pub(super) enum PutError {
    Transmit(TransmitError),
    Ring(RingFault),
}

impl From<RingFault> for PutError {
    fn from(fault: RingFault) -> Self {
        PutError::Ring(fault)
    }
}

impl SplitQueue {
    /// Writes one frame into the guest's buffers. After [`PutError::Ring`] the queue must not be used any more.
    #[inline]
    pub(super) fn put(&mut self, piece: &Piece<'_>, framing: Framing) -> Result<(), PutError> {
        let next = self.next_avail;
        let need = framing.header_len + piece.len();
        if piece.checksum.is_some() || self.known(next) == 0 || self.staged.len() >= usize::from(self.size) {
            return self.put_anyhow(piece, framing);
        }
        let head = self.head_at(next);
        let Some(room) = self.table.roomy(head, need) else {
            return self.put_anyhow(piece, framing);
        };
        // Ahead of the copy, so that the next frame's buffer comes while this one is written.
        self.look_ahead(next.wrapping_add(1));
        let header = encode(piece, 1);
        // SAFETY: `room` is a writable buffer of `need` bytes at least (`Table::roomy`).
        unsafe { write_frame(room.ptr.cast_mut(), &header, framing.header_len, piece) };
        self.staged.push(Used {
            id: head,
            len: need as u32,
        });
        self.next_avail = next.wrapping_add(1);
        Ok(())
    }

    /// The same, whatever it takes: several buffers, several chains, a checksum, a fresh look at the ring.
    #[inline(never)]
    fn put_anyhow(&mut self, piece: &Piece<'_>, framing: Framing) -> Result<(), PutError> {
        let staged = self.staged.len();
        let taken = self.collect(framing.header_len + piece.len(), framing);
        let chains = match taken {
            Ok(chains) => chains,
            Err(error) => {
                self.staged.truncate(staged);
                return Err(error);
            }
        };
        let header = encode(piece, chains);
        self.look_ahead(self.next_avail.wrapping_add(chains));

        let first = self.buffers[0];
        if piece.checksum.is_some() {
            put_summed(&self.buffers, &header[..framing.header_len], piece);
        } else if first.len >= framing.header_len + piece.len() {
            // SAFETY: `first` is a writable buffer (`Table::walk`), and large enough.
            unsafe { write_frame(first.ptr.cast_mut(), &header, framing.header_len, piece) };
        } else {
            let mut scatter = Scatter::new(&self.buffers);
            scatter.write(&header[..framing.header_len]);
            scatter.write(piece.head);
            for segment in piece.body.segments() {
                scatter.write_segment(segment);
            }
        }
        self.next_avail = self.next_avail.wrapping_add(chains);
        Ok(())
    }

    /// Finds buffers for `need` bytes and stages the chains they are in; gives how many chains.
    #[inline]
    fn collect(&mut self, need: usize, framing: Framing) -> Result<u16, PutError> {
        self.buffers.clear();
        let (mut room, mut chains) = (0, 0u16);
        loop {
            let next = self.next_avail.wrapping_add(chains);
            // Fewer than were there a moment ago is what a guest that takes its index back makes us see. And a guest
            // that offers chains again before it got them back fills `staged`, not our memory.
            let none = self.known(next) == 0 && self.look()? <= chains;
            if none || self.staged.len() >= usize::from(self.size) {
                return Err(PutError::Transmit(TransmitError::Full));
            }
            let head = self.head_at(next);
            let want = (need - room) as u64;
            let holds = self
                .table
                .walk(head, Walk::Writable { want }, &mut self.buffers)?;
            if chains == 0 && holds < framing.header_len as u64 {
                return Err(RingFault::NoHeader { head, len: holds }.into());
            }
            let used = holds.min(want) as usize;
            self.staged.push(Used {
                id: head,
                len: used as u32,
            });
            room += used;
            chains += 1;
            if room == need {
                return Ok(chains);
            }
            if !framing.mergeable {
                return Err(PutError::Transmit(TransmitError::TooSmall));
            }
        }
    }

    /// Brings what the next frames will need: the descriptor of one, the buffer of another.
    #[inline]
    fn look_ahead(&self, next: u16) {
        let known = self.known(next);
        if known > 3 {
            copy::prefetch(self.table.hint(self.head_at(next.wrapping_add(3))));
        }
        if known > 1
            && let Some(buffer) = self.table.buffer_hint(self.head_at(next.wrapping_add(1)))
        {
            copy::prefetch(buffer);
            copy::prefetch(buffer.wrapping_add(64));
        }
    }
}

/// The virtio-net header. That of a frame with nothing left to do is made of whole words: bytes that are stored one
/// by one and loaded together are waited for.
#[inline(always)]
fn encode(piece: &Piece<'_>, chains: u16) -> [u8; virtio_net::HDR_LEN_MRG] {
    let Offload {
        checksum,
        data_valid,
        gso,
        ..
    } = piece.offload;
    if checksum.is_none() && !data_valid && gso == Gso::None {
        let [low, high] = chains.to_le_bytes();
        return [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low, high];
    }
    virtio_net::encode(&piece.offload, piece.header_hint(), chains)
}

/// Writes header, head and body one after the other.
///
/// # Safety
/// `to` is valid for writes of `header_len`, which is 10 or 12, and `piece.len()` bytes.
#[inline(always)]
unsafe fn write_frame(
    to: *mut u8,
    header: &[u8; virtio_net::HDR_LEN_MRG],
    header_len: usize,
    piece: &Piece<'_>,
) {
    // SAFETY: the caller's promise; `header` and `head` are private, body segments are valid for reads (`Segment`)
    // and have `piece.body.len()` bytes together.
    unsafe {
        let [low @ .., a, b, c, d] = *header;
        to.cast::<[u8; 8]>().write(low);
        to.add(8).cast::<[u8; 2]>().write([a, b]);
        if header_len == virtio_net::HDR_LEN_MRG {
            to.add(10).cast::<[u8; 2]>().write([c, d]);
        }
        let mut to = to.add(header_len);
        copy::bytes(piece.head.as_ptr(), to, piece.head.len());
        if piece.body.len() > 0 {
            to = to.add(piece.head.len());
            for segment in piece.body.segments() {
                copy::bytes(segment.ptr, to, segment.len);
                to = to.add(segment.len);
            }
        }
    }
}

/// Writes a frame whose checksum is to be completed: the body first, summed as it passes through a private
/// buffer (the sum is over the very bytes that are delivered), then the head with the result in it.
#[cold]
fn put_summed(buffers: &[Segment], header: &[u8], piece: &Piece<'_>) {
    let Some(partial) = piece.checksum else { return };
    let start = usize::from(partial.start);
    let mut head = [0u8; HEAD_MAX];
    let head = &mut head[..piece.head.len()];
    head.copy_from_slice(piece.head);
    let mut sum = Sum::new();
    sum.add(&head[start..]);

    let mut front = Scatter::new(buffers);
    let mut behind = Scatter::new(buffers);
    behind.skip(header.len() + head.len());
    let mut bounce = [0u8; 2048];
    for segment in piece.body.segments() {
        let mut at = 0;
        while at < segment.len {
            let part = &mut bounce[..(segment.len - at).min(2048)];
            // SAFETY: `at + part.len() <= segment.len`, for which the segment is valid (`Segment`).
            unsafe { copy::bytes(segment.ptr.add(at), part.as_mut_ptr(), part.len()) };
            sum.add(part);
            behind.write(part);
            at += part.len();
        }
    }
    let field = start + usize::from(partial.offset);
    head[field..field + 2].copy_from_slice(&finish(u32::from(sum.folded())).to_be_bytes());
    front.write(header);
    front.write(head);
}

/// Writes one after the other into a list of buffers. What does not fit is not written; `collect` has made
/// sure that everything does.
struct Scatter<'a> {
    buffers: &'a [Segment],
    /// Bytes of the first buffer that are taken.
    taken: usize,
}

impl<'a> Scatter<'a> {
    fn new(buffers: &'a [Segment]) -> Self {
        Scatter { buffers, taken: 0 }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.write_segment(Segment {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
        });
    }

    /// `from` has to be valid for reads: a body segment, or private bytes as in `write`.
    fn write_segment(&mut self, from: Segment) {
        let mut at = 0;
        self.each(from.len, |to, len| {
            // SAFETY: `to` has room for `len` bytes (`each`), and `at + len <= from.len` as the lengths that
            // `each` gives add up to `from.len` at most.
            unsafe { copy::bytes(from.ptr.add(at), to, len) };
            at += len;
        });
    }

    fn skip(&mut self, len: usize) {
        self.each(len, |_, _| {});
    }

    /// Calls `f` with the pieces of the next `len` bytes of room.
    fn each(&mut self, mut len: usize, mut f: impl FnMut(*mut u8, usize)) {
        while len > 0
            && let Some(buffer) = self.buffers.first()
        {
            let here = (buffer.len - self.taken).min(len);
            f(buffer.ptr.cast_mut().wrapping_add(self.taken), here);
            self.taken += here;
            len -= here;
            if self.taken == buffer.len {
                self.buffers = &self.buffers[1..];
                self.taken = 0;
            }
        }
    }
}
