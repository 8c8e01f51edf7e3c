//! Frames on their way to another host: what a frame becomes behind outer headers, in one piece of
//! private memory.
//!
//! [`deliver`] cuts and completes as for every receiver; here each piece gets the headers of its
//! own in front. What is written is private until it is sent. Checksums are made while the body is
//! copied, of the very bytes that are written ([`Piece::copy_body`]), and the inner and the outer
//! one share that sum. Used by every port that can be an uplink.

use wire::checksum::Sum;
use wire::vxlan::Outer;

use crate::copy::{self, Ahead};
use crate::deliver::{self, Accepts, Piece, Sink};
use crate::error::TransmitError;
use crate::frame::Batch;

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

/// Hands frame `index` of the batch to `sink`, cut, each part behind `outer`. No receiver out on
/// the wire takes anything that is left to do: `accepts` is what the sink itself does.
#[inline]
pub(crate) fn deliver(
    batch: &Batch,
    index: usize,
    outer: Option<&Outer>,
    accepts: Accepts,
    sink: &mut impl OuterSink,
) -> Result<(), TransmitError> {
    deliver::deliver(batch, index, accepts, &mut Behind { outer, sink })
}

/// How long a piece is behind these headers.
#[inline]
pub(crate) fn len(outer: Option<&Outer>, piece: &Piece<'_>) -> usize {
    outer.map_or(0, Outer::len) + piece.len()
}

/// Writes a piece behind its headers. `out` is private memory of [`len`] bytes. `next` is how far
/// behind `out` the piece that comes next will be written, if that is known: most are alike, and
/// lines that are on their way while one is written cost the next one nothing.
#[inline]
pub(crate) fn write(out: &mut [u8], outer: Option<&Outer>, piece: &Piece<'_>, next: Option<usize>) {
    debug_assert_eq!(out.len(), len(outer, piece));
    let outer_sum = outer.is_some_and(Outer::needs_sum);
    let summed = outer_sum || piece.checksum.is_some();
    let ahead = next.map(|write| Ahead {
        read: piece.next_body().unwrap_or(0),
        write,
    });
    if let Some(next) = next {
        // What is summed asks for the rest on the way.
        let asked = if summed {
            out.len() - piece.body.len()
        } else {
            out.len()
        };
        for line in (0..asked).step_by(copy::LINE) {
            copy::prefetch_to_write(out.as_ptr().wrapping_add(line).wrapping_add(next));
        }
    }
    let (headers, inner) = out.split_at_mut(outer.map_or(0, Outer::len));
    let (head, body) = inner.split_at_mut(piece.head.len());
    // SAFETY: `body` is what is left behind the head: as long as the piece's.
    let body_sum = unsafe { piece.copy_body(body.as_mut_ptr(), summed, ahead) };
    piece.write_head(head, body_sum);
    if let Some(outer) = outer {
        let mut sum = Sum::new();
        if outer_sum {
            sum.add(head);
            sum.append(body_sum.folded().into(), body.len());
        }
        outer.write(headers, inner.len(), sum.folded().into());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use wire::build::{self, Builder};
    use wire::parse::TcpFlags;
    use wire::vxlan::{self, Ends, UdpChecksum};
    use wire::{Mac, Vni};

    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// Everything that was written, in buffers in which forgotten bytes show.
    #[derive(Default)]
    struct Written(Vec<Vec<u8>>);

    impl OuterSink for Written {
        fn put_outer(
            &mut self,
            outer: Option<&Outer>,
            piece: &Piece<'_>,
        ) -> Result<(), TransmitError> {
            let mut out = vec![0xa5; len(outer, piece)];
            write(&mut out, outer, piece, None);
            self.0.push(out);
            Ok(())
        }
    }

    fn inner(v6: bool) -> Builder {
        let frame = build::frame(A, B).tos(2).ttl(9);
        match v6 {
            false => frame.ip([10, 0, 0, 1], [10, 0, 0, 2]),
            true => frame.ip([1u16, 2, 3, 4, 5, 6, 7, 8], [1u16, 2, 3, 4, 9, 10, 11, 12]),
        }
    }

    /// RFC 1071 by the letter.
    fn naive_sum(bytes: &[u8]) -> u64 {
        let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(word).sum()
    }

    /// True for a sum over bytes that hold their own checksum.
    fn is_ones(mut sum: u64) -> bool {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum == 0xffff
    }

    /// Takes the outer headers off, all their lengths and checksums being right.
    fn unwrap(frame: &[u8], v6: bool, checksum: UdpChecksum) -> &[u8] {
        let (ip, addresses, udp) = if v6 {
            (14, 22..54, 54)
        } else {
            (14, 26..34, 34)
        };
        let field = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let ip_len = if v6 {
            field(ip + 4) + 40
        } else {
            field(ip + 2)
        };
        assert_eq!(
            (ip_len, field(udp + 4)),
            (frame.len() - ip, frame.len() - udp)
        );
        assert!(v6 || is_ones(naive_sum(&frame[ip..udp])));
        match checksum {
            UdpChecksum::Zero => assert_eq!(field(udp + 6), 0),
            UdpChecksum::Full => {
                let pseudo = naive_sum(&frame[addresses]) + 17 + (frame.len() - udp) as u64;
                assert!(is_ones(pseudo + naive_sum(&frame[udp..])));
            }
        }
        &frame[udp + 16..]
    }

    proptest! {
        #[test]
        fn a_large_frame_becomes_what_a_sender_would_have_made_one_by_one(
            (v6, udp, outer_v6, full) in any::<(bool, bool, bool, bool)>(),
            options in 0usize..=10, len in 0usize..20_000, size in 190usize..3000,
                seed in any::<u32>(),
        ) {
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let count = len.div_ceil(size).max(1);
            let options = vec![1; options * 4];
            let part = |index: usize, flags: TcpFlags| {
                let id = (seed as u16).wrapping_add(index as u16);
                let frame = if v6 { inner(v6) } else { inner(v6).id(id) };
                match udp {
                    true => frame.udp(seed as u16, 53),
                    false => frame
                        .tcp(seed as u16, 80, flags)
                        .seq(seed.wrapping_add((index * size) as u32))
                        .ack(seed)
                        .tcp_options(&options),
                }
            };
            let always = TcpFlags::ACK | TcpFlags::ECE;
            let last = TcpFlags::PSH | TcpFlags::FIN;
            let expected: Vec<Vec<u8>> = (0..count)
                .map(|index| {
                    let first = if index == 0 { always | TcpFlags::CWR } else { always };
                    let flags = if index + 1 == count { first | last } else { first };
                    let bytes = &payload[(index * size).min(len)..((index + 1) * size).min(len)];
                    let mut frame = part(index, flags).payload(bytes).build();
                    if !udp {
                        // 0 and 0xffff are the same number, and segments have the latter (see
                        // `checksum::finish`).
                        let field = frame.len() - bytes.len() - options.len() - 4;
                        if frame[field..field + 2] == [0, 0] {
                            frame[field..field + 2].fill(0xff);
                        }
                    }
                    frame
                })
                .collect();

            let checksum = if full { UdpChecksum::Full } else { UdpChecksum::Zero };
            let ends = match outer_v6 {
                false => Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)),
                true => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED),
            };
            let mut outer = Outer::new((A, B), None, ends, 64, vxlan::PORT, checksum);
            outer.set_flow(Vni::new(77).unwrap(), seed as u16, seed as u8);
            let large = part(0, always | TcpFlags::CWR | last).payload(&payload).gso(size as u16);
            let (frame, offload) = large.build_with_offload();
            let mut batch = Batch::new();
            batch.push_bytes(&frame, offload).unwrap();
            let mut written = Written::default();
            prop_assert_eq!(deliver(&batch, 0, Some(&outer), Accepts::default(), &mut written),
                Ok(()));
            let inner: Vec<&[u8]> =
                written.0.iter().map(|frame| unwrap(frame, outer_v6, checksum)).collect();
            prop_assert_eq!(inner, expected);
        }
    }
}
