//! Merges TCP segments of one connection that follow each other, and likewise UDP datagrams of one
//! flow, into the large frame that they could have been cut from: the opposite of
//! [`segment`](crate::segment), done for a receiver that takes such frames (GRO).
//!
//! What [`segment`](crate::segment) would make of the merged frame are the very segments that came:
//! only such are merged that differ in nothing but their sequence number, length, IPv4
//! identification and checksums, are all as long as the first (the last may be shorter), and carry
//! no control bits but ACK and, the last one, PSH. Datagrams have no number: which of them follow
//! each other the caller knows; those without a checksum stay alone. Checksums are the caller's to
//! verify beforehand ([`Piece::header_sum`]): a merged frame has only a partial one.

use std::ops::Range;

use crate::checksum;
use crate::offload::{Gso, Offload, PartialChecksum};
use crate::parse::{self, ETHERNET_LEN, TcpFlags, ethertype, protocol};

/// The largest IP packet that is made.
const PACKET_MAX: usize = 65_535;
/// IPv4's flag DF, in the half word with the fragment's offset.
const DONT_FRAGMENT: u16 = 0x4000;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// A TCP segment or a datagram that may be one of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    v6: bool,
    /// TCP, else UDP.
    tcp: bool,
    l4: u16,
    /// Where the payload begins.
    payload: u16,
    /// Where it ends: with the frame.
    end: u32,
    /// IPv4's identification, where it matters: in packets that may be fragmented (RFC 6864).
    id: Option<u16>,
    seq: u32,
    psh: bool,
}

/// The piece in a frame of `frame_len` bytes that begins with `head`, if it is one to merge: plain
/// TCP with a payload and no control bits but ACK and PSH, or plain UDP with a payload and a
/// checksum, and nothing behind the packet.
pub fn piece(head: &[u8], frame_len: usize) -> Option<Piece> {
    let v6 = match parse::ethertype_of(head) {
        ethertype::IPV4 => false,
        ethertype::IPV6 => true,
        _ => return None,
    };
    let plain = match v6 {
        false => parse::plain::<false>(head, frame_len)?,
        true => parse::plain::<true>(head, frame_len)?,
    };
    let (l4, payload) = (if v6 { 54 } else { 34 }, plain.transport.header_end(head));
    if payload > head.len() || payload >= frame_len {
        return None;
    }
    let len = frame_len - payload;
    let field = |at: usize| Some(u16::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let id = match v6 || field(20)? & DONT_FRAGMENT != 0 {
        true => None,
        false => Some(field(18)?),
    };
    let (seq, psh) = match plain.transport.tcp(head) {
        Some(tcp) => {
            let bits = tcp.flags.0 & !TcpFlags::PSH.0;
            if bits != TcpFlags::ACK.0 || tcp.payload_len as usize != len {
                return None;
            }
            (tcp.seq, tcp.flags.contains(TcpFlags::PSH))
        }
        None => {
            // A length that is less than the packet's, or none; a checksum that is none (RFC 768).
            if usize::from(field(l4 + 4)?) != len + UDP_LEN || field(l4 + 6)? == 0 {
                return None;
            }
            (0, false)
        }
    };
    Some(Piece {
        v6,
        tcp: plain.transport.tcp,
        l4: l4 as u16,
        payload: payload as u16,
        end: frame_len as u32,
        id,
        seq,
        psh,
    })
}

impl Piece {
    fn protocol(&self) -> u8 {
        if self.tcp {
            protocol::TCP
        } else {
            protocol::UDP
        }
    }

    /// Where the header of TCP or UDP begins.
    pub fn l4(&self) -> usize {
        self.l4.into()
    }

    /// Where the payload is in the frame.
    pub fn payload(&self) -> Range<usize> {
        usize::from(self.payload)..self.end as usize
    }

    /// The sum of the pseudo-header, or `None` if the IPv4 header's own checksum is wrong. With
    /// that of the frame from [`l4`](Self::l4) on it folds to 0xffff when the segment's checksum is
    /// right.
    pub fn header_sum(&self, head: &[u8]) -> Option<u32> {
        let len = self.end - u32::from(self.l4);
        let addresses = match self.v6 {
            false => {
                let header = head.get(ETHERNET_LEN..34)?;
                if checksum::checksum(header) != 0 {
                    return None;
                }
                &header[12..]
            }
            true => head.get(22..54)?,
        };
        let sum = checksum::add(checksum::sum(addresses), u32::from(self.protocol()));
        Some(checksum::add(sum, len))
    }

    /// `next`, which begins with `next_head`, may be merged behind `taken` bytes of payload that
    /// begin with this segment, which begins with `head`.
    pub fn takes(&self, head: &[u8], taken: usize, next: &Piece, next_head: &[u8]) -> bool {
        let size = self.payload().len();
        let ip_len = usize::from(self.payload) - ETHERNET_LEN + taken + next.payload().len();
        let in_order = !self.tcp || next.seq == self.seq.wrapping_add(taken as u32);
        // Those before were all as long as the first, or it would not be asked. Who cuts them again
        // numbers them in a row.
        let count = taken / size;
        in_order
            && self.id.map(|id| id.wrapping_add(count as u16)) == next.id
            && taken.is_multiple_of(size)
            && next.payload().len() <= size
            && ip_len <= PACKET_MAX
            && (self.v6, self.tcp, self.payload) == (next.v6, next.tcp, next.payload)
            && self.same(head, next_head)
    }

    /// The headers differ only where segments of one frame do.
    fn same(&self, a: &[u8], b: &[u8]) -> bool {
        let l4 = self.l4();
        let alike: [Range<usize>; 4] = match self.v6 {
            // MACs, type, version, TOS; flags, TTL, protocol; addresses; ports.
            false => [0..16, 20..24, 26..34, l4..l4 + 4],
            // MACs, type, version, class, label; next header, hop limit; addresses; ports.
            true => [0..18, 20..22, 22..54, l4..l4 + 4],
        };
        // Acknowledgement, header length; window; urgent pointer and options.
        let of_tcp = [
            l4 + 8..l4 + 13,
            l4 + 14..l4 + 16,
            l4 + 18..usize::from(self.payload),
        ];
        let equal = |range: Range<usize>| {
            let pair = (a.get(range.clone()), b.get(range));
            matches!(pair, (Some(a), Some(b)) if a == b)
        };
        alike.into_iter().all(equal) && (!self.tcp || of_tcp.into_iter().all(equal))
    }

    /// What merged ones are to whoever takes them.
    pub fn gso(&self) -> Gso {
        match (self.tcp, self.v6) {
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
            (false, _) => Gso::Udp,
        }
    }

    /// The frames that begin with these heads are of one connection or flow, and direction.
    pub fn same_flow(&self, a: &[u8], b: &[u8]) -> bool {
        let (protocol, addresses) = if self.v6 { (20, 22..54) } else { (23, 26..34) };
        let equal = |range: Range<usize>| a.get(range.clone()) == b.get(range);
        let l4 = self.l4();
        equal(12..14) && equal(protocol..protocol + 1) && equal(addresses) && equal(l4..l4 + 4)
    }

    /// This segment ends a large frame: it is pushed, or shorter than the first.
    pub fn ends(&self, first: &Piece) -> bool {
        self.psh || self.payload().len() < first.payload().len()
    }

    /// Makes `head`, which is this segment's, that of a frame with `payload` bytes, the last of
    /// which came with `last`. Gives what is left to do in it.
    pub fn finish(&self, head: &mut [u8], payload: usize, last: &Piece) -> Offload {
        let l4 = self.l4();
        let l4_len = usize::from(self.payload) - l4 + payload;
        if self.v6 {
            head[18..20].copy_from_slice(&(l4_len as u16).to_be_bytes());
        } else {
            let total = (l4 - ETHERNET_LEN + l4_len) as u16;
            head[16..18].copy_from_slice(&total.to_be_bytes());
            head[24..26].fill(0);
            let sum = checksum::checksum(&head[ETHERNET_LEN..34]);
            head[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if last.psh {
            head[l4 + 13] |= TcpFlags::PSH.0;
        }
        if !self.tcp {
            head[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
        }
        let field = if self.tcp { 16 } else { 6 };
        let addresses = if self.v6 {
            &head[22..54]
        } else {
            &head[26..34]
        };
        let pseudo = checksum::add(checksum::sum(addresses), u32::from(self.protocol()));
        let pseudo = checksum::fold(checksum::add(pseudo, l4_len as u32));
        head[l4 + field..l4 + field + 2].copy_from_slice(&pseudo.to_be_bytes());
        Offload {
            checksum: Some(PartialChecksum {
                start: self.l4,
                offset: field as u16,
            }),
            gso: self.gso(),
            gso_size: self.payload().len() as u16,
            ..Offload::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;
    use crate::build::{self, Builder};
    use crate::segment::{Checksum, Segments};

    fn connection(v6: bool) -> Builder {
        let frame = build::frame(Mac([2; 6]), Mac([4; 6])).dont_fragment().id(7);
        let frame = match v6 {
            false => frame.ip([10, 0, 0, 1], [10, 0, 0, 2]),
            true => frame.ip([1u16, 2, 3, 4, 5, 6, 7, 8], [1u16, 2, 3, 4, 9, 10, 11, 12]),
        };
        frame.tcp(1, 2, TcpFlags::ACK).ack(9)
    }

    /// The segments of a large frame, and that frame.
    fn cut(v6: bool, len: usize, size: u16, flags: TcpFlags) -> (Vec<Vec<u8>>, Vec<u8>, Offload) {
        let payload: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        let mut large = connection(v6).seq(u32::MAX - 100);
        if flags != TcpFlags::ACK {
            large = connection(v6).tcp(1, 2, flags).ack(9).seq(u32::MAX - 100);
        }
        let (large, offload) = large.payload(&payload).gso(size).build_with_offload();
        let segments = Segments::new(&large, large.len(), &offload).unwrap();
        let pieces = (0..segments.count()).map(|index| {
            let range = segments.payload(index);
            let sum = checksum::sum(&large[range.clone()]);
            let mut piece = vec![0xa5; segments.header_len()];
            segments.write(index, Checksum::Full { payload_sum: sum }, &mut piece);
            piece.extend_from_slice(&large[range]);
            piece
        });
        (pieces.collect(), large, offload)
    }

    #[test]
    fn what_was_cut_is_merged_into_what_it_was() {
        for v6 in [false, true] {
            for (len, size) in [(3000, 1000), (2500, 1000), (1001, 1000)] {
                let (segments, large, offload) = cut(v6, len, size, TcpFlags::ACK | TcpFlags::PSH);
                let first = piece(&segments[0], segments[0].len()).unwrap();
                let mut merged = segments[0].clone();
                let mut last = first;
                for segment in &segments {
                    let next = piece(segment, segment.len()).unwrap();
                    let sum = next.header_sum(segment).unwrap();
                    assert_eq!(
                        checksum::fold(checksum::add(sum, checksum::sum(&segment[next.l4()..]))),
                        0xffff
                    );
                    if segment == &segments[0] {
                        continue;
                    }
                    let taken = merged.len() - first.payload().start;
                    assert!(first.takes(&merged, taken, &next, segment));
                    assert!(!last.ends(&first));
                    merged.extend_from_slice(&segment[next.payload()]);
                    last = next;
                }
                assert!(last.ends(&first));
                let payload = merged.len() - first.payload().start;
                assert_eq!(first.finish(&mut merged, payload, &last), offload);
                assert_eq!(merged, large);
            }
        }
    }

    #[test]
    fn datagrams_are_merged_into_what_they_could_have_been_cut_from() {
        for v6 in [false, true] {
            let flow = build::frame(Mac([2; 6]), Mac([4; 6])).dont_fragment().id(7);
            let flow = match v6 {
                false => flow.ip([10, 0, 0, 1], [10, 0, 0, 2]),
                true => flow.ip([1u16, 2, 3, 4, 5, 6, 7, 8], [1u16, 2, 3, 4, 9, 10, 11, 12]),
            };
            let payload: Vec<u8> = (0..2500).map(|n| (n * 7) as u8).collect();
            let flow = flow.udp(1, 2);
            let (large, offload) = flow
                .clone()
                .payload(&payload)
                .gso(1000)
                .build_with_offload();
            let datagrams: Vec<Vec<u8>> = payload
                .chunks(1000)
                .map(|chunk| flow.clone().payload(chunk).build())
                .collect();
            let pieces: Vec<Piece> = datagrams
                .iter()
                .map(|d| piece(d, d.len()).unwrap())
                .collect();
            let mut merged = datagrams[0].clone();
            for (next, bytes) in pieces.iter().zip(&datagrams).skip(1) {
                let taken = merged.len() - pieces[0].payload().start;
                assert!(pieces[0].takes(&datagrams[0], taken, next, bytes));
                let sum = checksum::add(
                    next.header_sum(bytes).unwrap(),
                    checksum::sum(&bytes[next.l4()..]),
                );
                assert_eq!(checksum::fold(sum), 0xffff);
                merged.extend_from_slice(&bytes[next.payload()]);
            }
            assert!(pieces[2].ends(&pieces[0]) && !pieces[1].ends(&pieces[0]));
            assert_eq!(pieces[0].finish(&mut merged, 2500, &pieces[2]), offload);
            assert_eq!(merged, large);

            // Without a checksum, longer than the first, behind a shorter one, of another flow, or
            // TCP's.
            let first = &pieces[0];
            let takes = |taken: usize, bytes: &[u8]| {
                let next = piece(bytes, bytes.len());
                next.is_some_and(|next| first.takes(&datagrams[0], taken, &next, bytes))
            };
            let mut bare = datagrams[1].clone();
            bare[first.l4() + 6..first.l4() + 8].fill(0);
            assert!(!takes(1000, &bare));
            let longer = flow.clone().payload(&payload[..1001]).build();
            assert!(!takes(1000, &longer) && !takes(1500, &datagrams[1]));
            let mut other = datagrams[1].clone();
            other[first.l4() + 1] ^= 1;
            assert!(!takes(1000, &other) && !first.same_flow(&datagrams[0], &other));
            let segment = cut(v6, 1000, 1000, TcpFlags::ACK).0.remove(0);
            assert!(!takes(1000, &segment) && !first.same_flow(&datagrams[0], &segment));
            let empty = flow.clone().build();
            assert_eq!(piece(&empty, empty.len()), None);
        }
    }

    #[test]
    fn what_does_not_belong_together_stays_apart() {
        for v6 in [false, true] {
            let (segments, ..) = cut(v6, 3000, 1000, TcpFlags::ACK);
            let first = piece(&segments[0], 1000 + first_len(v6)).unwrap();
            let takes = |segment: &[u8]| {
                let next = piece(segment, segment.len());
                next.is_some_and(|next| first.takes(&segments[0], 1000, &next, segment))
            };
            assert!(takes(&segments[1]));
            assert!(!takes(&segments[2]) && !takes(&segments[0]), "out of order");
            let l4 = first.l4();
            // MACs, TOS or label, TTL, addresses, ports, acknowledgement, window, urgent pointer.
            let ttl = if v6 { 21 } else { 22 };
            for at in [0, 6, 15, ttl, 30, l4 + 1, l4 + 8, l4 + 15, l4 + 19] {
                let mut other = segments[1].clone();
                other[at] ^= 1;
                assert!(!takes(&other), "byte {at}");
            }
            for flags in [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST, TcpFlags::CWR] {
                let mut other = segments[1].clone();
                other[l4 + 13] |= flags.0;
                assert!(!takes(&other), "{flags:?}");
            }
            let mut padded = segments[1].clone();
            padded.push(0);
            assert!(!takes(&padded));
        }
    }

    #[test]
    fn packets_that_may_be_fragmented_are_merged_as_they_are_numbered() {
        let numbered = |id: u16| {
            let frame = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
            frame.id(id).udp(1, 2).payload(&[7; 100]).build()
        };
        let first = numbered(u16::MAX);
        let takes = |taken: usize, next: &[u8]| {
            let (a, b) = (
                piece(&first, first.len()).unwrap(),
                piece(next, next.len()).unwrap(),
            );
            a.takes(&first, taken, &b, next)
        };
        assert!(takes(100, &numbered(0)) && takes(200, &numbered(1)));
        assert!(!takes(100, &numbered(1)) && !takes(100, &first));
        // One that may not.
        let frame = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
        assert!(!takes(
            100,
            &frame.dont_fragment().udp(1, 2).payload(&[7; 100]).build()
        ));
    }

    fn first_len(v6: bool) -> usize {
        if v6 { 74 } else { 54 }
    }
}
