//! Frames on their way to another host: what a frame becomes behind outer headers, in one piece of private memory.
//!
//! [`deliver`] cuts and completes as for every receiver; here each piece gets the headers of its own in front. What
//! is written is private until it is sent, so that checksums are made over the very bytes that were written, after they were
//! copied: they are in the cache then. Used by every port that can be an uplink.

use wire::checksum::{self, finish};
use wire::vxlan::Outer;

use crate::copy;
use crate::deliver::{self, Accepts, Piece, Sink};
use crate::frame::Batch;
use crate::port::TransmitError;

/// Where frames with outer headers go.
pub(crate) trait OuterSink {
    /// Writes one frame, or nothing of it: `piece` behind `outer`, if there are outer headers.
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError>;
}

/// A sink of pieces that puts the same headers in front of each.
struct Behind<'a, S> {
    outer: Option<&'a Outer>,
    sink: &'a mut S,
}

impl<S: OuterSink> Sink for Behind<'_, S> {
    #[inline]
    fn put(&mut self, piece: &Piece<'_>) -> Result<(), TransmitError> {
        self.sink.put_outer(self.outer, piece)
    }
}

/// Hands frame `index` of the batch to `sink`, cut and complete, each part behind `outer`. No receiver out on the wire takes
/// anything that is left to do.
#[inline]
pub(crate) fn deliver(
    batch: &Batch,
    index: usize,
    outer: Option<&Outer>,
    sink: &mut impl OuterSink,
) -> Result<(), TransmitError> {
    deliver::deliver(batch, index, Accepts::default(), &mut Behind { outer, sink })
}

/// How long a piece is behind these headers.
#[inline]
pub(crate) fn len(outer: Option<&Outer>, piece: &Piece<'_>) -> usize {
    outer.map_or(0, Outer::len) + piece.len()
}

/// Writes a piece behind its headers. `out` is private memory of [`len`] bytes.
#[inline]
pub(crate) fn write(out: &mut [u8], outer: Option<&Outer>, piece: &Piece<'_>) {
    debug_assert_eq!(out.len(), len(outer, piece));
    let (headers, inner) = out.split_at_mut(outer.map_or(0, Outer::len));
    let (head, body) = inner.split_at_mut(piece.head.len());
    // SAFETY: both are as long. Not `copy_from_slice`, which calls `memcpy` for what is short.
    unsafe { copy::bytes(piece.head.as_ptr(), head.as_mut_ptr(), head.len()) };
    let mut at = 0;
    for segment in piece.body.segments() {
        let part = &mut body[at..at + segment.len];
        // SAFETY: the segment is valid for reads (`Segment`), `part` is as long.
        unsafe { copy::bytes(segment.ptr, part.as_mut_ptr(), part.len()) };
        at += segment.len;
    }
    if let Some(partial) = piece.checksum {
        let start = usize::from(partial.start);
        let field = start + usize::from(partial.offset);
        let sum = checksum::sum(&inner[start..]);
        inner[field..field + 2].copy_from_slice(&finish(sum).to_be_bytes());
    }
    if let Some(outer) = outer {
        let sum = if outer.needs_sum() {
            checksum::sum(inner)
        } else {
            0
        };
        outer.write(headers, inner.len(), sum);
    }
}
