//! To the guest: a frame becomes the contents of one chain, or several, of the ring that it
//! receives from.
//!
//! This is where the one copy happens. Room is collected first and only then is anything written;
//! chains are taken for good when the frame is complete, so that a frame that does not fit leaves
//! no trace. What was taken waits for
//! [`Queue::publish`](crate::vhost::virtqueue::queue::Queue::publish).

use wire::checksum::Sum;
use wire::virtio_net;

use crate::copy::{self, Ahead, by_width};
use crate::copy_sum::copy_and_sum;
use crate::deliver::{self, Accepts, Piece};
use crate::error::TransmitError;
use crate::frame::{BATCH, Batch, Frame, HEAD_MAX};
use crate::segment::Segment;
use crate::vhost::limits::{CHAIN_MAX, scatter_max};
use crate::vhost::virtqueue::fault::RingFault;
use crate::vhost::virtqueue::ring::Ring;
use crate::vhost::virtqueue::ring::Room;
use crate::vhost::virtqueue::ring::Taken;

/// How the receiver wants its frames.
#[derive(Clone, Copy, Debug)]
pub(in crate::vhost) struct Framing {
    /// Bytes of the virtio-net header: 12, or 10 for a legacy guest.
    pub header_len: usize,
    /// A frame may take several chains (MRG_RXBUF).
    pub mergeable: bool,
}

/// Why a frame was not written: an ordinary loss, or a guest that broke the protocol.
#[derive(Clone, Copy)]
pub(in crate::vhost) enum PutError {
    Transmit(TransmitError),
    Ring(RingFault),
}

impl From<RingFault> for PutError {
    fn from(fault: RingFault) -> Self {
        PutError::Ring(fault)
    }
}

by_width! {
    /// Writes frames that the receiver takes as they are, each into the first buffer of the next
    /// chain, as nearly all go. Gives how many: the frame behind them takes more, and is to be
    /// [`put`]. What is written is not noted in a log.
    pub(in crate::vhost) fn put_whole<R: Ring>(
        ring: &mut R,
        batch: &Batch,
        frames: &[u8],
        framing: Framing,
        accepts: Accepts,
    ) -> usize = put_whole_any;
}

#[inline(always)]
fn put_whole_any<R: Ring>(
    ring: &mut R,
    batch: &Batch,
    frames: &[u8],
    framing: Framing,
    accepts: Accepts,
) -> usize {
    let mut rooms = [Room::NONE; BATCH];
    let count = ring.rooms(&mut rooms[..frames.len().min(BATCH)]);
    let (frames, rooms) = (&frames[..count], &mut rooms[..count]);
    let mut done = 0;
    // Not `find`, which becomes a function of its own, with registers of the base width.
    while done < count && put_one_whole(batch, frames, rooms, done, framing.header_len, accepts) {
        done += 1;
    }
    ring.fill(&rooms[..done]);
    done
}

/// True when frame `at` of these was written, and its room says how long it is; else nothing was
/// done.
#[inline(always)]
fn put_one_whole(
    batch: &Batch,
    frames: &[u8],
    rooms: &mut [Room],
    at: usize,
    header_len: usize,
    accepts: Accepts,
) -> bool {
    let index = usize::from(frames[at]);
    let room = &rooms[at];
    let frame = &batch.frames()[index];
    let header = if deliver::is_complete(&frame.offload) {
        ONE_CHAIN
    } else if accepts.whole(&frame.offload) {
        encode(frame)
    } else {
        return false;
    };
    let need = header_len + frame.len();
    if (room.len as usize) < need {
        return false;
    }
    let head = frame.head();
    let (front, body_len) = (header_len + head.len(), frame.len() - head.len());
    // SAFETY: `room` is a writable buffer of `need` bytes at least (`Ring::rooms`): `header_len`,
    // which is 10 or 12, the head's, and the body's.
    unsafe {
        write_header(room.ptr, header, header_len);
        copy::bytes(head.as_ptr(), room.ptr.add(header_len), head.len());
        if body_len > 0 {
            put_body(batch, frames, rooms, at, front, body_len);
        }
    }
    rooms[at].len = need as u32;
    true
}

/// Writes the body of frame `at` of these behind the `front` bytes of its room, and asks on the way
/// for what is copied next.
///
/// # Safety
/// The room is valid for writes of `front + left` bytes.
#[inline(always)]
unsafe fn put_body(
    batch: &Batch,
    frames: &[u8],
    rooms: &[Room],
    at: usize,
    front: usize,
    mut left: usize,
) {
    let (mut one, mut next_one) = ([Segment::NOTHING], [Segment::NOTHING]);
    let body = batch.body(usize::from(frames[at]), &mut one);
    let mut to = rooms[at].ptr.wrapping_add(front);
    for (place, segment) in body.iter().enumerate() {
        let (from, len) = (segment.ptr, segment.len.min(left));
        // SAFETY: the segment is valid for reads (`Segment`), and `left` bytes from `to` on for
        // writes.
        unsafe {
            if copy::LINED.contains(&len) {
                let (next_from, next_to) = match (body.get(place + 1), frames.get(at + 1)) {
                    (Some(next), _) => (Some(next), to.add(len)),
                    // The ring has asked for the first line of the next room. Its last lines, as
                    // many as its front has, follow of themselves. 276 cycles for 1518 bytes where
                    // it was 289 from the first line on (docs/journal/2026-11-23-cycles.md).
                    (None, Some(&next)) => (
                        batch.body(usize::from(next), &mut next_one).first(),
                        rooms[at + 1].ptr.wrapping_add(copy::LINE),
                    ),
                    (None, None) => (None, to),
                };
                let next_from = next_from.map_or(from, |next| next.ptr);
                copy::lines(from, to, len, Ahead::between(from, to, next_from, next_to));
            } else {
                copy::bytes(from, to, len);
            }
            to = to.add(len);
        }
        left -= len;
    }
}

/// Writes one frame into the guest's buffers. After [`PutError::Ring`] the queue must not be used
/// any more.
pub(in crate::vhost) fn put<R: Ring>(
    ring: &mut R,
    piece: &Piece<'_>,
    framing: Framing,
) -> Result<(), PutError> {
    let mark = ring.mark();
    let mut buffers = std::mem::take(ring.scratch());
    buffers.clear();
    let need = framing.header_len + piece.len();
    let taken = collect(ring, need as u64, framing, &mut buffers);
    match taken {
        Ok(chains) => {
            write(&buffers, chains, piece, framing);
            if let Some(log) = ring.log() {
                log.buffers(ring.memory(), &buffers, need as u64);
            }
        }
        Err(_) => ring.back(mark),
    }
    let taken = match taken {
        Err(PutError::Ring(RingFault::NotThere { .. })) => {
            ask_ahead(ring, &mut buffers);
            Err(PutError::Transmit(TransmitError::Full))
        }
        taken => taken.map(drop),
    };
    *ring.scratch() = buffers;
    taken
}

/// Chains that are asked for ahead at most, and bytes of each.
const AHEAD: usize = 256;
const AHEAD_LEN: u64 = 2048;

/// Asks for what the guest receives in next, as far as that has yet to come from another host:
/// for one after the other, as frames come, would be a wait for each.
#[cold]
fn ask_ahead<R: Ring>(ring: &mut R, buffers: &mut Vec<Segment>) {
    let mark = ring.mark();
    if !ring.buffers().begin_asking(mark.next) {
        return;
    }
    let mut descriptors = 0;
    for _ in 0..AHEAD {
        let Ok(Some(taken)) = ring.take_writable(AHEAD_LEN, buffers) else {
            break;
        };
        buffers.clear();
        descriptors += taken.walked.descriptors;
        if descriptors > CHAIN_MAX {
            break;
        }
    }
    ring.buffers().end_asking();
    ring.back(mark);
}

/// Takes chains that hold `need` bytes; gives how many, and their buffers in `buffers`.
#[inline]
fn collect<R: Ring>(
    ring: &mut R,
    need: u64,
    framing: Framing,
    buffers: &mut Vec<Segment>,
) -> Result<u16, PutError> {
    let (mut room, mut chains, mut descriptors) = (0, 0u16, 0);
    loop {
        let want = need - room;
        let Some(Taken { head, walked }) = ring.take_writable(want, buffers)? else {
            return Err(PutError::Transmit(TransmitError::Full));
        };
        let len = walked.bytes;
        if chains == 0 && len < framing.header_len as u64 {
            return Err(RingFault::NoHeader { head, len }.into());
        }
        room += len.min(want);
        chains += 1;
        // Buffers that hold next to nothing cost the worker much for each frame, and those of a
        // frame that finds no room in the end are looked at again for the next.
        descriptors += u64::from(walked.descriptors);
        if descriptors > scatter_max(need) {
            return Err(RingFault::Scattered { head, len: need }.into());
        }
        if room == need {
            return Ok(chains);
        }
        if !framing.mergeable {
            return Err(PutError::Transmit(TransmitError::TooSmall));
        }
    }
}

/// Writes a frame into buffers that have room for it.
fn write(buffers: &[Segment], chains: u16, piece: &Piece<'_>, framing: Framing) {
    let header = |hint| virtio_net::encode(&piece.offload, hint, chains);
    if piece.checksum.is_some() {
        // What has a checksum completed is not large.
        return put_summed(buffers, &header(0)[..framing.header_len], piece);
    }
    let mut room = [0; HEAD_MAX];
    let head = piece.head_in(&mut room, Sum::new());
    let header = header(deliver::header_hint(&piece.offload, head));
    let mut scatter = Scatter::new(buffers);
    scatter.write(&header[..framing.header_len]);
    scatter.write(head);
    for segment in piece.body.segments() {
        scatter.write_segment(segment, piece.for_many);
    }
    if piece.for_many {
        copy::fence();
    }
}

/// The virtio-net header of a frame in one chain with which nothing is left to do, as a number.
const ONE_CHAIN: u128 = 1 << 80;

/// The virtio-net header of a frame in one chain, as a number, with what is left to do.
#[inline(never)]
fn encode(frame: &Frame) -> u128 {
    let hint = deliver::header_hint(&frame.offload, frame.head());
    let mut header = [0; size_of::<u128>()];
    header[..virtio_net::HDR_LEN_MRG].copy_from_slice(&virtio_net::encode(&frame.offload, hint, 1));
    u128::from_le_bytes(header)
}

/// Writes the virtio-net header, which comes as a number so that it stays in registers.
///
/// # Safety
/// `to` is valid for writes of `header_len` bytes, which is 10 or 12.
#[inline(always)]
unsafe fn write_header(to: *mut u8, header: u128, header_len: usize) {
    let (low, high) = (header as u64, (header >> 64) as u32);
    // SAFETY: the caller's promise; unaligned writes are inside those bytes.
    unsafe {
        to.cast::<u64>().write_unaligned(low.to_le());
        if header_len == virtio_net::HDR_LEN_MRG {
            to.add(8).cast::<u32>().write_unaligned(high.to_le());
        } else {
            to.add(8)
                .cast::<u16>()
                .write_unaligned((high as u16).to_le());
        }
    }
}

/// Writes a frame whose checksum is to be completed: the body first, summed as it is copied, then
/// the head with the result in it.
#[cold]
fn put_summed(buffers: &[Segment], header: &[u8], piece: &Piece<'_>) {
    let (mut front, mut behind) = (Scatter::new(buffers), Scatter::new(buffers));
    behind.skip(header.len() + piece.head.len());
    let mut sum = Sum::new();
    for segment in piece.body.segments() {
        let mut at = 0;
        behind.each(segment.len, |to, len| {
            // SAFETY: as in `Scatter::write_segment`.
            sum.append(
                unsafe { copy_and_sum(segment.ptr.add(at), to, len, None) },
                len,
            );
            at += len;
        });
    }
    let mut room = [0; HEAD_MAX];
    front.write(header);
    front.write(piece.head_in(&mut room, sum));
}

/// Writes one after the other into a list of buffers. What does not fit is not written; `collect`
/// has made sure that everything does.
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
        let segment = Segment {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
        };
        self.write_segment(segment, false);
    }

    /// `from` has to be valid for reads: a body segment, or private bytes as in `write`.
    /// What goes to many is copied past the caches.
    fn write_segment(&mut self, from: Segment, for_many: bool) {
        let mut at = 0;
        self.each(from.len, |to, len| {
            // SAFETY: `to` has room for `len` bytes (`each`), and `at + len <= from.len` as the
            // lengths that `each` gives add up to `from.len` at most.
            unsafe {
                let from = from.ptr.add(at);
                match for_many {
                    true => copy::past_caches(from, to, len),
                    false => copy::bytes(from, to, len),
                }
            }
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
