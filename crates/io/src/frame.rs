//! A frame on its way through the switch, and a batch of them.
//!
//! A [`Frame`] is a private *head* (copied out of the sender's memory once; what is judged and what
//! is delivered) and a *body* that stays where the sender put it. A [`Batch`] owns the frames, the
//! list of body segments, the buffers of frames that have no sender's memory, and keeps that memory
//! mapped until [`Batch::clear`]. A port fills it, the data plane judges and rewrites heads, other
//! ports read it. Nothing here is allocated per frame: everything is reused from batch to batch.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use wire::offload::Offload;
use wire::vxlan::Outer;

use crate::copy;
use crate::guest_memory::GuestMemory;
use crate::segment::Segment;
use crate::xsk::umem::Umem;

/// Frames handled together; a step is done for the whole batch before the next step begins.
///
/// What is done once a batch (indices shared with a guest on another core, fences, notifications)
/// is spread over this many frames. Flush and complete take 0.4 cycles a frame each where they took
/// 0.8 with 32 (2026-11-21).
pub const BATCH: usize = 64;

/// A bit for each frame of a batch.
pub type Bits = u64;

/// The bits of the first `count` frames.
#[inline]
pub fn first_bits(count: usize) -> Bits {
    Bits::MAX
        .checked_shr((BATCH - count.min(BATCH)) as u32)
        .unwrap_or(0)
}

/// The most header bytes of a frame that are copied to private memory and can be judged. A frame
/// whose headers do not fit is dropped (`headers_too_long`).
pub const HEAD_MAX: usize = 256;

/// The largest frame, Ethernet header included: a 64 KiB TSO frame with its headers.
pub const FRAME_MAX: usize = 65536 + 64;

/// So many lines of a body come while the fast path judges a head: with more, it would wait for
/// them. Its part of 1518 bytes is 27 to 34 cycles where it was 50 to 54
/// (docs/journal/2026-11-23-cycles.md).
const BODY_FETCH: usize = 6;

/// Why a frame that came cannot be delivered. It is in the batch all the same, so that it is
/// dropped and counted where every other drop is; its `offload` is the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The virtio header asks for what does not exist, was not negotiated or lies outside the
    /// frame.
    BadOffload,
    /// It was sent on a ring that its VMM has turned off.
    RingOff,
}

/// Where the bytes behind a frame's head are.
#[derive(Clone, Copy, Debug)]
enum Body {
    /// `count` entries of the batch's segment list from `start`.
    Segments { start: u32, count: u32 },
    /// In the batch's own buffer of this number, from this offset.
    Owned { buffer: u16, offset: u16 },
}

/// One frame of a batch.
///
/// `head` comes first and the struct is aligned to a cache line so that copies of the head are
/// aligned.
#[repr(C, align(64))]
pub struct Frame {
    head: [u8; HEAD_MAX],
    /// What the sender left undone: see [`Offload`].
    pub offload: Offload,
    fault: Option<Fault>,
    len: u32,
    /// Where the head begins in `head`: 0 but for a frame that was [stripped](Frame::strip_front).
    head_start: u16,
    /// Where it ends.
    head_end: u16,
    body: Body,
}

impl Frame {
    fn empty() -> Self {
        Frame {
            head: [0; HEAD_MAX],
            offload: Offload::default(),
            fault: None,
            len: 0,
            head_start: 0,
            head_end: 0,
            body: Body::Segments { start: 0, count: 0 },
        }
    }

    /// Length in bytes from the Ethernet header to the end, without the FCS.
    #[inline]
    #[allow(
        clippy::len_without_is_empty,
        reason = "a frame of no bytes is not a frame"
    )]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The first `min(len, HEAD_MAX)` bytes, in private memory.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[self.head_start as usize..self.head_end as usize]
    }

    /// The head, to rewrite. What is written here is what is delivered.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head[self.head_start as usize..self.head_end as usize]
    }

    /// Takes the first `front` bytes off, and what is behind the next `len`: the headers around an
    /// inner frame, and the padding behind it. Nothing is copied, so that the head becomes as much
    /// shorter. False, and nothing is changed, when the head has not that many bytes or the frame
    /// not that many behind them.
    #[inline]
    pub fn strip(&mut self, front: usize, len: usize) -> bool {
        let head_len = self.head().len();
        if front > head_len || len == 0 || len > self.len() - front {
            return false;
        }
        self.head_start += front as u16;
        self.head_end = self.head_start + (head_len - front).min(len) as u16;
        self.len = len as u32;
        true
    }

    /// Why the frame cannot be delivered although it was received: count it and drop it.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Marks the frame as not deliverable.
    pub(crate) fn set_fault(&mut self, fault: Fault) {
        self.offload = Offload::default();
        self.fault = Some(fault);
    }

    /// Says what was received: `head_space` holds the first `min(len, HEAD_MAX)` bytes, these
    /// entries of the segment list are the body, `len` bytes together with the head.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        len: usize,
        body: Range<usize>,
        offload: Offload,
        fault: Option<Fault>,
    ) {
        self.offload = offload;
        self.fault = fault;
        self.len = len as u32;
        self.head_start = 0;
        self.head_end = len.min(HEAD_MAX) as u16;
        self.body = Body::Segments {
            start: body.start as u32,
            count: body.len() as u32,
        };
    }

    /// All of `head`, to be filled by a port before [`Frame::fill`].
    #[inline]
    pub(crate) fn head_space(&mut self) -> &mut [u8; HEAD_MAX] {
        &mut self.head
    }
}

/// The outer headers that a frame is to be sent in by another worker than the one that has judged
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Wrap {
    /// The frame's index in the batch.
    pub frame: u8,
    /// What goes in front of it.
    pub outer: Outer,
    /// Index of the next one in [`Batch::wraps`] for the same queue; [`Wrap::LAST`] behind the
    /// last.
    pub next: u32,
}

impl Wrap {
    /// There is no next one.
    pub const LAST: u32 = u32::MAX;
}

/// Up to [`BATCH`] frames and all that their bodies need.
pub struct Batch {
    frames: Box<[Frame]>,
    len: usize,
    /// How many it takes.
    most: usize,
    /// Body segments of all frames; each frame has a range of it.
    segments: Vec<Segment>,
    /// Buffers of [`FRAME_MAX`] bytes for frames that own their bytes: allocated at first use, then
    /// kept.
    buffers: Vec<Box<[u8]>>,
    buffers_used: usize,
    /// Keeps the memory mapped that `segments` points into.
    memory: Vec<Arc<GuestMemory>>,
    /// What came with the heads of frames that were [joined](Batch::join) to others: room for all
    /// of it, which is not allocated anew while segments point there.
    spill: Vec<u8>,
    /// Each of its frames goes to many: their long bodies are copied past the caches.
    pub for_many: bool,
    /// How its frames are sent over an uplink by another worker.
    pub wraps: Vec<Wrap>,
    /// The uplink's memory that its segments point into.
    umem: Option<Arc<Umem>>,
    /// Chains that its port has taken for it and is to give back when it is done with.
    owed: usize,
    /// Buffers that came with its frames and were empty.
    empty: usize,
    /// See [`others`](Self::others).
    others: usize,
    /// Packets that its frames were cut into, by every worker that has done so. Elsewhere in
    /// memory, so that nothing of a batch changes under who only reads it, as the compiler sees it:
    /// a frame takes 2 cycles less to transmit.
    cut: Box<AtomicU32>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch {
            frames: (0..BATCH).map(|_| Frame::empty()).collect(),
            len: 0,
            most: BATCH,
            segments: Vec::with_capacity(BATCH * 4),
            buffers: Vec::new(),
            buffers_used: 0,
            spill: Vec::new(),
            for_many: false,
            wraps: Vec::new(),
            memory: Vec::with_capacity(1),
            umem: None,
            owed: 0,
            empty: 0,
            others: 0,
            cut: Box::default(),
        }
    }

    /// How many frames are in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when it holds no frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many frames still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.len)
    }

    /// Pieces of other memory that came with its frames: those that their bodies are in, and those
    /// that held nothing, which took a look all the same. There may be such without a frame.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.segments.len() + self.empty
    }

    /// So many buffers were looked at that held nothing.
    #[inline]
    pub(crate) fn count_empty(&mut self, buffers: usize) {
        self.empty += buffers;
    }

    /// What frames have taken that came with its own and are not for the switch, in small frames
    /// that take as long. There may be such without a frame.
    #[inline]
    pub fn others(&self) -> usize {
        self.others
    }

    /// So many small frames would have taken as long.
    #[inline]
    pub(crate) fn count_others(&mut self, frames: usize) {
        self.others += frames;
    }

    /// Has it take this many frames from now on, [`BATCH`] at most: for who is to receive only a
    /// part of what waits.
    #[inline]
    pub fn take_at_most(&mut self, frames: usize) {
        self.most = frames.min(BATCH);
    }

    /// The frames, in the order they were received.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// The frames, to rewrite their heads.
    #[inline]
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames[..self.len]
    }

    /// Forgets all frames and lets go of the senders' memory. Buffers are kept for the next batch.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.segments.clear();
        self.buffers_used = 0;
        self.spill.clear();
        self.for_many = false;
        self.wraps.clear();
        self.memory.clear();
        self.umem = None;
        self.owed = 0;
        self.empty = 0;
        self.others = 0;
        *self.cut.get_mut() = 0;
    }

    /// A frame of it was cut into so many packets.
    pub(crate) fn note_cut(&self, packets: usize) {
        self.cut.fetch_add(packets as u32, Ordering::Relaxed);
    }

    /// How many packets its frames were cut into for receivers that take no larger ones.
    #[inline]
    pub fn cut(&self) -> usize {
        self.cut.load(Ordering::Relaxed) as usize
    }

    /// As many, since this was asked last.
    #[inline]
    pub fn take_cut(&mut self) -> usize {
        std::mem::take(self.cut.get_mut()) as usize
    }

    /// Adds a frame that owns its bytes (generated here, held back, or of a test). Gives its index,
    /// or `None` when the batch is full or `bytes` is longer than [`FRAME_MAX`].
    pub fn push_bytes(&mut self, bytes: &[u8], offload: Offload) -> Option<usize> {
        if bytes.len() > FRAME_MAX || self.room() == 0 {
            return None;
        }
        let filled = self.push_with(|buffer| {
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok::<_, std::convert::Infallible>(Some((bytes.len(), offload)))
        });
        match filled {
            Ok(pushed) => pushed.then(|| self.len - 1),
        }
    }

    /// Adds a frame that `fill` writes into a buffer of [`FRAME_MAX`] bytes that the batch owns:
    /// how a port reads from a file descriptor without a buffer of its own. `fill` says how long
    /// the frame became, or `None` for no frame. True when one was added; false also when the batch
    /// is full (`fill` is not called).
    pub fn push_with<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<(usize, Offload)>, E>,
    ) -> Result<bool, E> {
        if self.room() == 0 {
            return Ok(false);
        }
        if self.buffers_used == self.buffers.len() {
            self.buffers.push(vec![0; FRAME_MAX].into_boxed_slice());
        }
        let buffer = &mut self.buffers[self.buffers_used];
        let Some((len, offload)) = fill(buffer)? else {
            return Ok(false);
        };
        let len = len.min(FRAME_MAX);
        let head_len = len.min(HEAD_MAX);
        let frame = &mut self.frames[self.len];
        frame.head[..head_len].copy_from_slice(&buffer[..head_len]);
        frame.offload = offload;
        frame.fault = None;
        frame.len = len as u32;
        frame.head_start = 0;
        frame.head_end = head_len as u16;
        frame.body = Body::Segments { start: 0, count: 0 };
        if len > head_len {
            frame.body = Body::Owned {
                buffer: self.buffers_used as u16,
                offset: head_len as u16,
            };
            self.buffers_used += 1;
        }
        self.len += 1;
        Ok(true)
    }

    /// Copies the frame's first bytes (head as it is now, then body) to `out`; gives how many were
    /// copied. For traces and for frames that have to be kept; delivery does not go through here.
    pub fn copy_to(&self, index: usize, out: &mut [u8]) -> usize {
        let frame = &self.frames()[index];
        let head = frame.head();
        let mut done = head.len().min(out.len());
        out[..done].copy_from_slice(&head[..done]);
        let mut one = [Segment::NOTHING];
        for segment in self.body(index, &mut one) {
            let len = segment.len.min(out.len() - done);
            // SAFETY: the segment is valid for reads while the batch is not cleared (`Segment`),
            // `out` has `len` bytes left by the line above.
            unsafe { copy::bytes(segment.ptr, out[done..].as_mut_ptr(), len) };
            done += len;
        }
        done
    }

    /// Puts the bytes of `others`, each without its first `skip`, behind those of frame `first`:
    /// its body is theirs then too. The others stay as they are. False, and nothing is changed,
    /// when the whole would be longer than [`FRAME_MAX`], a head has not that many bytes, or the
    /// first is joined already.
    pub fn join(&mut self, first: usize, others: &[u8], skip: usize) -> bool {
        self.spill
            .reserve(BATCH * HEAD_MAX - self.spill.len().min(BATCH * HEAD_MAX));
        let frames = self.frames();
        let added: usize = others
            .iter()
            .map(|other| frames[usize::from(*other)].len().saturating_sub(skip))
            .sum();
        let short = others
            .iter()
            .any(|other| frames[usize::from(*other)].head().len() < skip);
        let spilt: usize = others
            .iter()
            .map(|other| frames[usize::from(*other)].head().len())
            .sum();
        let len = frames[first].len() + added;
        if short || len > FRAME_MAX || self.spill.len() + spilt > BATCH * HEAD_MAX {
            return false;
        }
        let start = self.segments.len();
        self.add_body(first);
        for &other in others {
            let at = self.spill.len();
            self.spill
                .extend_from_slice(&self.frames[usize::from(other)].head()[skip..]);
            if self.spill.len() > at {
                self.segments.push(Segment {
                    ptr: self.spill[at..].as_ptr(),
                    len: self.spill.len() - at,
                });
            }
            self.add_body(usize::from(other));
        }
        self.frames[first].body = Body::Segments {
            start: start as u32,
            count: (self.segments.len() - start) as u32,
        };
        self.frames[first].len = len as u32;
        true
    }

    /// Adds the segments of a frame's body to the end of the list, as far as the frame goes.
    fn add_body(&mut self, index: usize) {
        let mut left = self.frames[index].len() - self.frames[index].head().len();
        let mut one = [Segment::NOTHING];
        let count = self.body(index, &mut one).len();
        for number in 0..count {
            let segment = self.body(index, &mut one)[number];
            let len = segment.len.min(left);
            if len > 0 {
                self.segments.push(Segment { len, ..segment });
            }
            left -= len;
        }
    }

    /// The ones'-complement sum of a frame's bytes from `from` on, which is in its head.
    pub fn sum_from(&self, index: usize, from: usize) -> u32 {
        let head = self.frames()[index].head();
        let before = wire::checksum::sum(&head[..from.min(head.len())]);
        // From an even place on a sum is the difference of two.
        debug_assert!(from.is_multiple_of(2));
        wire::checksum::add(self.sum(index), u32::from(!wire::checksum::fold(before)))
    }

    /// The ones'-complement sum of all of a frame's bytes, as [`wire::checksum::sum`] makes it.
    pub fn sum(&self, index: usize) -> u32 {
        let mut sum = wire::checksum::Sum::new();
        sum.add(self.frames()[index].head());
        let mut left = self.frames()[index].len() - self.frames()[index].head().len();
        let (mut one, mut bounce) = ([Segment::NOTHING], [0u8; 2048]);
        for segment in self.body(index, &mut one) {
            let mut at = 0;
            while at < segment.len && left > 0 {
                let part = &mut bounce[..(segment.len - at).min(left).min(2048)];
                // SAFETY: `at + part.len() <= segment.len`, for which the segment is valid
                // (`Segment`).
                unsafe { copy::bytes(segment.ptr.add(at), part.as_mut_ptr(), part.len()) };
                sum.add(part);
                (at, left) = (at + part.len(), left - part.len());
            }
        }
        sum.folded().into()
    }

    /// The whole frame in memory of its own.
    pub fn to_bytes(&self, index: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.frames()[index].len()];
        self.copy_to(index, &mut bytes);
        bytes
    }

    /// The body of a frame as segments; `one` is room for the single segment of a frame that owns
    /// its bytes.
    #[inline]
    pub(crate) fn body<'a>(&'a self, index: usize, one: &'a mut [Segment; 1]) -> &'a [Segment] {
        let frame = &self.frames()[index];
        match frame.body {
            Body::Segments { start, count } => {
                &self.segments[start as usize..(start + count) as usize]
            }
            Body::Owned { buffer, offset } => {
                let start = usize::from(offset);
                let bytes = &self.buffers[usize::from(buffer)]
                    [start..start + frame.len() - frame.head().len()];
                one[0] = Segment {
                    ptr: bytes.as_ptr(),
                    len: bytes.len(),
                };
                &one[..]
            }
        }
    }

    /// Asks for the first lines of a frame's body, for who judges its head meanwhile: that waits
    /// for nothing, and to deliver a body is to wait for its lines. Of a frame in the sender's
    /// memory only.
    #[inline(always)]
    pub fn fetch_body(&self, index: usize) {
        if let Body::Segments { start, count: 1.. } = self.frames[index].body {
            let Segment { ptr, len } = self.segments[start as usize];
            for line in 0..BODY_FETCH.min(len / copy::LINE) {
                copy::prefetch(ptr.wrapping_add(line * copy::LINE));
            }
        }
    }

    /// The next `count` free frames and the segment list, for a port that [fills](Frame::fill) them
    /// all and then calls [`commit`](Self::commit). `count` is at most [`room`](Self::room).
    #[inline]
    pub(crate) fn slots(&mut self, count: usize) -> (&mut [Frame], &mut Vec<Segment>) {
        (
            &mut self.frames[self.len..self.len + count],
            &mut self.segments,
        )
    }

    /// Makes the first `count` slots frames of the batch.
    #[inline]
    pub(crate) fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }

    /// Notes that a port has taken `chains` for this batch.
    #[inline]
    pub(crate) fn owe(&mut self, chains: usize) {
        self.owed += chains;
    }

    /// How many chains the port that filled the batch has taken for it.
    #[inline]
    pub(crate) fn owed(&self) -> usize {
        self.owed
    }

    /// Keeps `memory` mapped until [`clear`](Self::clear): to be called by whoever adds segments of
    /// it.
    #[inline]
    pub(crate) fn hold(&mut self, memory: &Arc<GuestMemory>) {
        self.memory.push(Arc::clone(memory));
    }

    /// Keeps an uplink's memory mapped until [`clear`](Self::clear). A batch is filled by one port.
    #[inline]
    pub(crate) fn hold_umem(&mut self, umem: &Arc<Umem>) {
        debug_assert!(
            self.umem
                .as_ref()
                .is_none_or(|held| Arc::ptr_eq(held, umem))
        );
        self.umem = Some(Arc::clone(umem));
    }
}

/// Fills `out` from the segments' beginning and takes those bytes off them; gives how many segments
/// are empty. The segments hold at least `out.len()` bytes together.
#[cold]
pub(crate) fn gather(segments: &mut [Segment], out: &mut [u8]) -> usize {
    let (mut done, mut empty) = (0, 0);
    for segment in segments {
        if done == out.len() {
            break;
        }
        let len = segment.len.min(out.len() - done);
        // SAFETY: `segment` is valid for reads of its length (`Segment`), and `out` has `len` bytes
        // left.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
    }

    #[test]
    fn an_owned_frame_is_its_bytes_whatever_its_length() {
        let mut batch = Batch::new();
        for len in [
            1,
            14,
            60,
            HEAD_MAX - 1,
            HEAD_MAX,
            HEAD_MAX + 1,
            1514,
            FRAME_MAX,
        ] {
            let bytes = pattern(len);
            let index = batch.push_bytes(&bytes, Offload::default()).unwrap();
            assert_eq!(batch.frames()[index].len(), len);
            assert_eq!(batch.frames()[index].head(), &bytes[..len.min(HEAD_MAX)]);
            assert_eq!(batch.to_bytes(index), bytes);
        }
        let mut short = [0xa5; 20];
        assert_eq!(batch.copy_to(2, &mut short), 20);
        assert_eq!(short, pattern(60)[..20]);
    }

    #[test]
    fn a_rewritten_head_is_what_is_read() {
        let mut batch = Batch::new();
        let mut bytes = pattern(400);
        let index = batch.push_bytes(&bytes, Offload::default()).unwrap();
        batch.frames_mut()[index].head_mut()[..6].copy_from_slice(&[9; 6]);
        bytes[..6].copy_from_slice(&[9; 6]);
        assert_eq!(batch.to_bytes(index), bytes);
    }

    #[test]
    fn a_stripped_frame_is_what_is_left() {
        let mut batch = Batch::new();
        for (len, front, left) in [
            (60, 50, 10),
            (60, 50, 3),
            (60, 0, 60),
            (300, 50, 250),
            (300, 50, 100),
            (1514, 74, 1440),
            (1514, 256, 1258),
            (1514, 50, 700),
        ] {
            let bytes = pattern(len);
            let index = batch.push_bytes(&bytes, Offload::default()).unwrap();
            let frame = &mut batch.frames_mut()[index];
            for (front, left) in [
                (257, 1),
                (61, usize::MAX - 61),
                (front, len - front + 1),
                (front, 0),
            ] {
                assert!(!frame.strip(front, left), "{len}: {front}, {left}");
            }
            assert!(frame.strip(front, left));
            assert_eq!(batch.frames()[index].len(), left);
            let head = left.min(len.min(HEAD_MAX) - front);
            assert_eq!(batch.frames()[index].head(), &bytes[front..front + head]);
            let sum = wire::checksum::sum(&bytes[front..front + left]);
            assert_eq!(batch.sum(index), sum, "{len}: {front}, {left}");
            assert_eq!(
                batch.to_bytes(index),
                bytes[front..front + left],
                "{len}: {front}, {left}"
            );
        }
        // Nothing of it is left in the next frame in its place.
        batch.clear();
        batch.push_bytes(&pattern(400), Offload::default()).unwrap();
        assert_eq!(batch.to_bytes(0), pattern(400));
    }

    #[test]
    fn joined_frames_are_one_behind_the_other() {
        let mut batch = Batch::new();
        for lens in [
            [60, 60, 60],
            [60, 1514, 300],
            [1514, 1514, 700],
            [HEAD_MAX, 54, HEAD_MAX + 1],
        ] {
            let frames = lens.map(pattern);
            for frame in &frames {
                batch.push_bytes(frame, Offload::default()).unwrap();
            }
            // What is around them goes first, as with frames from the wire.
            batch
                .frames_mut()
                .iter_mut()
                .for_each(|frame| assert!(frame.strip(20, frame.len() - 20)));
            assert!(
                !batch.join(0, &[1, 2], HEAD_MAX),
                "nothing has so long a head"
            );
            assert!(batch.join(0, &[1, 2], 34));
            let expected = [&frames[0][20..], &frames[1][54..], &frames[2][54..]].concat();
            assert_eq!(batch.to_bytes(0), expected, "{lens:?}");
            assert_eq!(batch.to_bytes(1), frames[1][20..]);
            let from = wire::checksum::sum(&expected[34..]);
            assert_eq!(
                wire::checksum::fold(batch.sum_from(0, 34)),
                wire::checksum::fold(from)
            );
            batch.clear();
        }
        let large = pattern(40_000);
        batch.push_bytes(&large, Offload::default()).unwrap();
        batch.push_bytes(&large, Offload::default()).unwrap();
        assert!(!batch.join(0, &[1], 0), "too long together");
        assert_eq!(batch.to_bytes(0), large);
    }

    #[test]
    fn a_full_batch_and_a_frame_too_long_are_refused() {
        let mut batch = Batch::new();
        assert_eq!(
            batch.push_bytes(&vec![0; FRAME_MAX + 1], Offload::default()),
            None
        );
        for index in 0..BATCH {
            assert_eq!(batch.push_bytes(&[1; 300], Offload::default()), Some(index));
        }
        assert_eq!(batch.push_bytes(&[1; 60], Offload::default()), None);
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.push_bytes(&pattern(600), Offload::default()), Some(0));
        assert_eq!(batch.to_bytes(0), pattern(600));
    }
}
