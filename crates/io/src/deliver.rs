//! What a frame becomes on its way out: as it is, with its checksum completed, or cut into segments.
//!
//! A sender leaves work undone ([`Offload`]) that a receiver may or may not take over. [`deliver`] compares
//! the two and hands the port one [`Piece`] per frame to write; a port is a [`Sink`] of pieces and does not
//! know what it took to make them. Between guests that both negotiated offloads nothing is computed.

use wire::checksum::{Sum, finish};
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::segment::{Checksum, Segments};

use crate::copy;
use crate::copy_sum::copy_and_sum;
use crate::frame::{Batch, Frame, HEAD_MAX, Segment};
use crate::port::TransmitError;

/// What a receiver takes as the sender left it. `tso4`, `tso6` and `uso` mean nothing without `checksum`
/// (virtio 1.2, section 5.1.3.1).
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
    pub(crate) fn gso(&self, offload: &Offload) -> bool {
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

/// One frame as the receiver is to get it.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    /// What the receiver is told; it accepts all of it.
    pub offload: Offload,
    /// The first bytes, in private memory.
    pub head: &'a [u8],
    /// The bytes behind them, in the sender's.
    pub body: Body<'a>,
    /// The checksum to complete over what is copied; its field lies inside `head`.
    pub checksum: Option<PartialChecksum>,
}

impl Piece<'_> {
    /// Length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Copies the body, and gives its sum if that is asked for.
    ///
    /// # Safety
    /// `to` is valid for writes of as many bytes as the body has.
    #[inline]
    pub unsafe fn copy_body(&self, to: *mut u8, summed: bool) -> Sum {
        let (mut at, mut sum) = (0, Sum::new());
        for segment in self.body.segments() {
            // SAFETY: the segment is valid for reads (`Segment`), and all of them together are as long as the body.
            unsafe {
                match summed {
                    true => sum.append(copy_and_sum(segment.ptr, to.add(at), segment.len), segment.len),
                    false => copy::bytes(segment.ptr, to.add(at), segment.len),
                }
            }
            at += segment.len;
        }
        sum
    }

    /// Completes the checksum, where there is one to complete: in `head`, a copy of the piece's. `body` is the sum of the body.
    #[inline]
    pub fn complete(&self, head: &mut [u8], body: Sum) {
        let Some(partial) = self.checksum else { return };
        let start = usize::from(partial.start);
        let field = start + usize::from(partial.offset);
        let mut sum = Sum::new();
        sum.add(&head[start..]);
        sum.append(body.folded().into(), self.body.len());
        head[field..field + 2].copy_from_slice(&finish(sum.folded().into()).to_be_bytes());
    }

    /// The whole frame in private memory, its checksum completed. `out` is replaced.
    pub fn linearize(&self, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.len());
        out.extend_from_slice(self.head);
        // SAFETY: `reserve` made room for `len()` bytes, of which `out.len()` are used, and the length is raised over bytes
        // just written.
        let body = unsafe {
            let body = self.copy_body(out.as_mut_ptr().add(out.len()), self.checksum.is_some());
            out.set_len(self.len());
            body
        };
        self.complete(&mut out[..self.head.len()], body);
    }
}

/// For the header of a large frame: how long the headers are that each segment repeats. Only a hint, which
/// the receiver has to check; what it is made of need not have been checked either.
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

/// True when the offload fields describe something inside a frame of `len` bytes. The checksum's field has to
/// lie in the head, where it can be completed.
#[inline]
pub(crate) fn is_sound(offload: &Offload, len: usize) -> bool {
    let fits = |c: PartialChecksum| {
        let field = c.start as usize + c.offset as usize;
        field + 2 <= len.min(HEAD_MAX) && c.start >= 14
    };
    match offload.checksum {
        Some(checksum) => fits(checksum) && (offload.gso == Gso::None || offload.gso_size > 0),
        None => offload.gso == Gso::None,
    }
}

/// True when nothing is left to do and nothing to tell the receiver: what every receiver takes as it is.
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
    let mut one = [copy::NOTHING];
    sink.put(&Piece {
        offload: frame.offload,
        head: frame.head(),
        body: Body {
            segments: batch.body(index, &mut one),
            skip: 0,
            len: frame.len() - frame.head().len(),
        },
        checksum: None,
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
    let mut one = [copy::NOTHING];
    let segments = batch.body(index, &mut one);
    let body = Body {
        segments,
        skip: 0,
        len: frame.len() - frame.head().len(),
    };
    if frame.fault().is_some() || !is_sound(&frame.offload, frame.len()) {
        return Err(TransmitError::BadOffload);
    }
    if !accepts.gso(&frame.offload) {
        return cut(frame, body, accepts, sink);
    }
    let offload = Offload {
        checksum: None,
        data_valid: false,
        ..frame.offload
    };
    sink.put(&Piece {
        offload,
        head: frame.head(),
        body,
        checksum: frame.offload.checksum,
    })
}

/// Cuts a large frame into the packets it stands for and delivers each. When the receiver runs out of room
/// the rest is lost, as it would be on a wire.
#[cold]
fn cut(
    frame: &Frame,
    mut rest: Body<'_>,
    accepts: Accepts,
    sink: &mut impl Sink,
) -> Result<(), TransmitError> {
    let whole = frame.head();
    let mut segments =
        Segments::new(whole, frame.len(), &frame.offload).map_err(|_| TransmitError::BadOffload)?;
    let partial = segments.partial_checksum();
    let offload = Offload {
        checksum: accepts.checksum.then_some(partial),
        ..Offload::default()
    };
    let checksum = (!accepts.checksum).then_some(partial);
    let mut head = [0u8; HEAD_MAX];
    for index in 0..segments.count() {
        let payload = segments.payload(index);
        let header = segments.header(index, Checksum::Partial);
        // The payload's beginning may have come with the large frame's head. Headers and that part together are
        // no longer than that head.
        let private = &whole[payload.start.min(whole.len())..payload.end.min(whole.len())];
        let (first, second) = head.split_at_mut(header.len());
        first.copy_from_slice(header);
        second[..private.len()].copy_from_slice(private);
        let head_len = header.len() + private.len();
        let body = rest.take(payload.len() - private.len());
        sink.put(&Piece {
            offload,
            head: &head[..head_len],
            body,
            checksum,
        })?;
    }
    Ok(())
}
