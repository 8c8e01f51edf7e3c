//! Frames on their way to another host: what a frame becomes behind outer headers, in one piece of private memory.
//!
//! [`deliver`] cuts and completes as for every receiver; here each piece gets the headers of its own in front. What
//! is written is private until it is sent. Checksums are made while the body is copied, of the very bytes that are written
//! ([`Piece::copy_body`]), and the inner and the outer one share that sum. Used by every port that can be an uplink.

use wire::checksum::Sum;
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
    let outer_sum = outer.is_some_and(Outer::needs_sum);
    // SAFETY: `body` is what is left behind the head: as long as the piece's.
    let body_sum = unsafe { piece.copy_body(body.as_mut_ptr(), outer_sum || piece.checksum.is_some()) };
    piece.complete(head, body_sum);
    if let Some(outer) = outer {
        let mut sum = Sum::new();
        if outer_sum {
            sum.add(head);
            sum.append(body_sum.folded().into(), body.len());
        }
        outer.write(headers, inner.len(), sum.folded().into());
    }
}
