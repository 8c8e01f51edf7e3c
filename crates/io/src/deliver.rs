//! What a frame becomes on its way out: as it is, with its checksum completed, or cut into
//! segments.
//!
//! A sender leaves work undone ([`Offload`]) that a receiver may or may not take over. [`deliver`]
//! compares the two and hands the port one [`Piece`] per frame to write; a port is a [`Sink`] of
//! pieces and does not know what it took to make them. Between guests that both negotiated offloads
//! nothing is computed.

use wire::checksum::{Sum, finish};
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::segment::{Checksum, Segments};

use crate::copy::{self, Ahead};
use crate::copy_sum::copy_and_sum;
use crate::error::TransmitError;
use crate::frame::{Batch, Frame, HEAD_MAX};
use crate::segment::Segment;

/// What a receiver takes as the sender left it. `tso4`, `tso6` and `uso` mean nothing without
/// `checksum` (virtio 1.2, section 5.1.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accepts {
    /// Frames with a partial checksum (GUEST_CSUM).
    pub checksum: bool,
    /// TCP over IPv4 larger than the MTU (GUEST_TSO4).
    pub tso4: bool,
    /// TCP over IPv6 larger than the MTU (GUEST_TSO6).
    pub tso6: bool,
    /// Large TCP frames with CWR in the first segment (GUEST_ECN).
    pub ecn: bool,
    /// Large UDP frames (GUEST_USO4 and GUEST_USO6).
    pub uso: bool,
}

impl Accepts {
    /// Everything that exists.
    pub const ALL: Accepts = Accepts {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    };

    /// True when a frame with these fields may be passed on as it is.
    #[inline]
    pub(crate) fn whole(&self, offload: &Offload) -> bool {
        let checksum_fits = self.checksum || (offload.checksum.is_none() && !offload.data_valid);
        checksum_fits && self.gso(offload)
    }

    /// True when a frame with these fields may stay in one piece.
    #[inline]
    pub fn gso(&self, offload: &Offload) -> bool {
        let kind = match offload.gso {
            Gso::None => return true,
            Gso::Tcp4 => self.tso4,
            Gso::Tcp6 => self.tso6,
            Gso::Udp => self.uso,
        };
        kind && self.checksum && (self.ecn || !offload.ecn)
    }
}

/// A part of a frame's body: `len` bytes from `skip` in the first of `segments`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    segments: &'a [Segment],
    skip: usize,
    len: usize,
}

impl<'a> Body<'a> {
    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Splits the first `len` bytes off.
    fn take(&mut self, len: usize) -> Body<'a> {
        let front = Body { len, ..*self };
        self.len -= len;
        self.skip += len;
        while let Some(first) = self.segments.first()
            && self.skip >= first.len
        {
            self.skip -= first.len;
            self.segments = &self.segments[1..];
        }
        front
    }

    /// The pieces of memory it lies in, none of them empty, `len` bytes together.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = Segment> + 'a {
        let (mut skip, mut left) = (self.skip, self.len);
        self.segments.iter().map_while(move |segment| {
            let len = (segment.len - skip).min(left);
            let part = Segment {
                ptr: segment.ptr.wrapping_add(skip),
                len,
            };
            (skip, left) = (0, left - len);
            (len > 0).then_some(part)
        })
    }
}

/// The first bytes of a frame as the receiver is to get it; what they are made of is in private
/// memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Head<'a> {
    /// These.
    Whole(&'a [u8]),
    /// The headers of a segment, made where they are written, and what of its payload came with the
    /// large frame's head.
    Segment {
        segments: &'a Segments,
        index: usize,
        payload: &'a [u8],
    },
}

impl Head<'_> {
    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Head::Whole(head) => head.len(),
            Head::Segment {
                segments, payload, ..
            } => segments.header_len() + payload.len(),
        }
    }
}

/// One frame as the receiver is to get it.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    /// What the receiver is told; it accepts all of it.
    pub offload: Offload,
    /// The first bytes: no more than [`HEAD_MAX`].
    pub head: Head<'a>,
    /// The bytes behind them, in the sender's.
    pub body: Body<'a>,
    /// The checksum to complete over what is copied; its field lies inside the head.
    pub checksum: Option<PartialChecksum>,
    /// It goes to many (`Batch::for_many`).
    pub for_many: bool,
}

impl Piece<'_> {
    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// How far behind this body the next one begins, if this is a segment of a large frame: right
    /// behind, as long as the sender's pieces of memory are.
    #[inline]
    pub fn next_body(&self) -> Option<usize> {
        match self.head {
            Head::Segment {
                segments, index, ..
            } if index + 1 < segments.count() => Some(self.body.len()),
            _ => None,
        }
    }

    /// Copies the body, and gives its sum if that is asked for: then what lies `ahead` is asked for
    /// on the way.
    ///
    /// # Safety
    /// `to` is valid for writes of as many bytes as the body has.
    #[inline]
    pub unsafe fn copy_body(&self, to: *mut u8, summed: bool, ahead: Option<Ahead>) -> Sum {
        let (mut at, mut sum) = (0, Sum::new());
        for segment in self.body.segments() {
            // SAFETY: the segment is valid for reads (`Segment`), and all of them together are as
            // long as the body.
            unsafe {
                match summed {
                    true => {
                        let part = copy_and_sum(segment.ptr, to.add(at), segment.len, ahead);
                        sum.append(part, segment.len);
                    }
                    false => copy::bytes(segment.ptr, to.add(at), segment.len),
                }
            }
            at += segment.len;
        }
        sum
    }

    /// Writes the head, complete, to `to`, which is as long. `body` is the sum of the body, if
    /// there is a checksum to complete.
    #[inline]
    pub fn write_head(&self, to: &mut [u8], body: Sum) {
        match self.head {
            Head::Whole(head) => {
                assert_eq!(to.len(), head.len());
                // SAFETY: both are as long. Not `copy_from_slice`, which calls `memcpy` for what is
                // short.
                unsafe { copy::bytes(head.as_ptr(), to.as_mut_ptr(), head.len()) };
                self.complete(to, body);
            }
            Head::Segment {
                segments,
                index,
                payload,
            } => {
                let (header, behind) = to.split_at_mut(segments.header_len());
                let checksum = match self.checksum {
                    None => Checksum::Partial,
                    Some(_) => Checksum::Full {
                        payload_sum: self.sum_behind(payload, body),
                    },
                };
                segments.write(index, checksum, header);
                if !payload.is_empty() {
                    behind.copy_from_slice(payload);
                }
            }
        }
    }

    /// The head, complete: where it is already, or in `room`.
    #[inline]
    pub fn head_in<'b>(&'b self, room: &'b mut [u8; HEAD_MAX], body: Sum) -> &'b [u8] {
        match (self.head, self.checksum) {
            (Head::Whole(head), None) => head,
            (head, _) => {
                let room = &mut room[..head.len()];
                self.write_head(room, body);
                room
            }
        }
    }

    /// Completes the checksum, where there is one to complete: in `head`, a copy of the piece's.
    #[inline]
    fn complete(&self, head: &mut [u8], body: Sum) {
        let Some(partial) = self.checksum else { return };
        let start = usize::from(partial.start);
        let field = start + usize::from(partial.offset);
        let sum = self.sum_behind(&head[start..], body);
        head[field..field + 2].copy_from_slice(&finish(sum).to_be_bytes());
    }

    /// The sum of `front` with the body behind it.
    #[inline]
    fn sum_behind(&self, front: &[u8], body: Sum) -> u32 {
        if front.is_empty() {
            return body.folded().into();
        }
        let mut sum = Sum::new();
        sum.add(front);
        sum.append(body.folded().into(), self.body.len());
        sum.folded().into()
    }

    /// The whole frame in private memory, its checksum completed. `out` is replaced.
    pub fn linearize(&self, out: &mut Vec<u8>) {
        out.resize(self.len(), 0);
        let (head, body) = out.split_at_mut(self.head.len());
        // SAFETY: `body` is what is left behind the head: as long as the piece's.
        let body = unsafe { self.copy_body(body.as_mut_ptr(), self.checksum.is_some(), None) };
        self.write_head(head, body);
    }
}

/// For the header of a large frame: how long the headers are that each segment repeats. Only a
/// hint, which the receiver has to check; what it is made of need not have been checked either.
#[inline]
pub(crate) fn header_hint(offload: &Offload, head: &[u8]) -> u16 {
    let start = match offload.checksum {
        Some(partial) if offload.gso != Gso::None => partial.start,
        _ => return 0,
    };
    let l4_len = match offload.gso {
        Gso::Udp => 8,
        _ => head
            .get(usize::from(start) + 12)
            .map_or(0, |offset| u16::from(offset >> 4) * 4),
    };
    start.saturating_add(l4_len)
}

/// Where pieces go: a ring, a TAP device, a queue in memory.
pub(crate) trait Sink {
    /// Writes one frame, or nothing of it.
    fn put(&mut self, piece: &Piece<'_>) -> Result<(), TransmitError>;
}

/// True when the offload fields describe something inside a frame that has `head` bytes in its
/// head, where the checksum can be completed: its field has to lie there. What was stripped of
/// outer headers has a shorter one than others.
#[inline]
pub(crate) fn is_sound(offload: &Offload, head: usize) -> bool {
    let fits = |c: PartialChecksum| {
        let field = c.start as usize + c.offset as usize;
        field + 2 <= head && c.start >= 14
    };
    match offload.checksum {
        Some(checksum) => fits(checksum) && (offload.gso == Gso::None || offload.gso_size > 0),
        None => offload.gso == Gso::None,
    }
}

/// True when nothing is left to do and nothing to tell the receiver: what every receiver takes as
/// it is.
#[inline(always)]
pub(crate) fn is_complete(offload: &Offload) -> bool {
    offload.checksum.is_none() && !offload.data_valid && offload.gso == Gso::None
}

/// Hands frame `index` of the batch to `sink`, whole when the receiver accepts what is left to do.
#[inline]
pub(crate) fn deliver(
    batch: &Batch,
    index: usize,
    accepts: Accepts,
    sink: &mut impl Sink,
) -> Result<(), TransmitError> {
    let frame = &batch.frames()[index];
    if !accepts.whole(&frame.offload) {
        return complete(batch, index, accepts, sink);
    }
    // Built where it is used and not copied: a copy of what was just stored stalls on the store.
    let mut one = [Segment::NOTHING];
    sink.put(&Piece {
        offload: frame.offload,
        head: Head::Whole(frame.head()),
        body: Body {
            segments: batch.body(index, &mut one),
            skip: 0,
            len: frame.len() - frame.head().len(),
        },
        checksum: None,
        for_many: batch.for_many,
    })
}

/// The way of a frame that is not passed on as it is.
#[cold]
fn complete(
    batch: &Batch,
    index: usize,
    accepts: Accepts,
    sink: &mut impl Sink,
) -> Result<(), TransmitError> {
    let frame = &batch.frames()[index];
    let mut one = [Segment::NOTHING];
    let segments = batch.body(index, &mut one);
    let body = Body {
        segments,
        skip: 0,
        len: frame.len() - frame.head().len(),
    };
    if frame.fault().is_some() || !is_sound(&frame.offload, frame.head().len()) {
        return Err(TransmitError::BadOffload);
    }
    if !accepts.gso(&frame.offload) {
        return cut(batch, frame, body, accepts, sink);
    }
    let offload = Offload {
        checksum: None,
        data_valid: false,
        ..frame.offload
    };
    sink.put(&Piece {
        offload,
        head: Head::Whole(frame.head()),
        body,
        checksum: frame.offload.checksum,
        for_many: batch.for_many,
    })
}

/// Cuts a large frame into the packets it stands for and delivers each. When the receiver runs out
/// of room the rest is lost, as it would be on a wire.
#[cold]
fn cut(
    batch: &Batch,
    frame: &Frame,
    mut rest: Body<'_>,
    accepts: Accepts,
    sink: &mut impl Sink,
) -> Result<(), TransmitError> {
    let whole = frame.head();
    let segments =
        Segments::new(whole, frame.len(), &frame.offload).map_err(|_| TransmitError::BadOffload)?;
    let partial = segments.partial_checksum();
    let offload = Offload {
        checksum: accepts.checksum.then_some(partial),
        ..Offload::default()
    };
    let checksum = (!accepts.checksum).then_some(partial);
    for index in 0..segments.count() {
        let payload = segments.payload(index);
        // The payload's beginning may have come with the large frame's head. Headers and that part
        // together are no longer than that head.
        let private = &whole[payload.start.min(whole.len())..payload.end.min(whole.len())];
        let body = rest.take(payload.len() - private.len());
        let written = sink.put(&Piece {
            offload,
            head: Head::Segment {
                segments: &segments,
                index,
                payload: private,
            },
            body,
            checksum,
            // A packet of a wire's length: through the caches, as all others of it.
            for_many: false,
        });
        if written.is_err() {
            batch.note_cut(index);
            return written;
        }
    }
    batch.note_cut(segments.count());
    Ok(())
}
