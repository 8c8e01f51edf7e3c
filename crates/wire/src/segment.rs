//! Cuts a large frame (TSO, USO) into packets: the header of each, and which payload bytes go with
//! it.
//!
//! Pure arithmetic over a private copy of the frame's headers: the caller copies each payload where
//! it goes, has the header written before it, one segment at a time, and so segments during the one
//! copy:
//!
//! ```text
//! let segments = Segments::new(head, frame_len, &offload)?;
//! for index in 0..segments.count() {
//!     copy frame[segments.payload(index)] behind segments.header_len() bytes, summing it if need
//!     segments.write(index, Checksum::Full { payload_sum }, the bytes before it)
//! }
//! ```
//!
//! A header is a copy of what is the same in all of them, with the rest stored over it as numbers
//! that nobody reads back: a load of bytes that were just stored in other portions waits until all
//! that was stored before has reached the cache, and before a header that is a payload.
//!
//! What changes from segment to segment is what Linux's software segmentation changes: the IP
//! lengths, the IPv4 identification (plus one each) and header checksum; TCP's sequence number, PSH
//! and FIN (the last segment's), CWR (the first one's), the UDP length, and the layer-4 checksum.
//! Options and extension headers are repeated. The checksum is made of the IPv6 header's
//! destination: of packets with a routing header that is not done with yet no large frames are
//! sent.

use std::ops::Range;

use crate::bytes::{copy_header, put16, put32};
use crate::checksum;
use crate::offload::{Gso, Offload, PartialChecksum};
use crate::parse::{self, L4, Packet, ParseError, TcpFlags, protocol};

/// The longest headers that can be repeated before each segment.
pub const HEADER_MAX: usize = 256;

/// What the layer-4 checksum of a segment is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// The pseudo-header's sum, for the receiver to complete: see [`Segments::partial_checksum`].
    Partial,
    /// Complete, given the sum of the segment's payload ([`checksum::sum`] of it, folded or not).
    Full {
        /// The sum, the payload's first byte being the high half of a word.
        payload_sum: u32,
    },
}

/// A large frame on its way to being cut.
#[derive(Clone, Debug)]
pub struct Segments {
    /// The headers; the fields that change are zero.
    header: [u8; HEADER_MAX],
    header_len: usize,
    l3: usize,
    l4: usize,
    /// First byte behind the payload, in the large frame.
    end: usize,
    /// Payload bytes of each segment but the last.
    size: usize,
    count: usize,
    v6: bool,
    /// The large frame's TCP sequence number and flags; none for UDP.
    tcp: Option<(u32, TcpFlags)>,
    /// The large frame's IPv4 identification.
    id: u16,
    /// Sums of what stays the same: the IPv4 header, the layer-4 header, the pseudo-header but for
    /// its length.
    ip_sum: u32,
    l4_sum: u32,
    pseudo_sum: u32,
}

impl Segments {
    /// Looks at a frame of `frame_len` bytes that `offload` says is to be cut; `head` is as for
    /// [`parse::parse`]. Ethernet padding is not carried along. Fails as the parser does, with
    /// [`ParseError::Offload`] when the frame is not one to cut (`gso` is none, or another than the
    /// headers' kind).
    pub fn new(head: &[u8], frame_len: usize, offload: &Offload) -> Result<Self, ParseError> {
        let packet = parse::parse(head, frame_len)?;
        parse::check_offload(&packet, frame_len, offload)?;
        Self::of_packet(head, &packet, offload)
    }

    /// Plans the segments of a frame that has been parsed as `packet`, and whose offload has been
    /// checked against it.
    pub fn of_packet(head: &[u8], packet: &Packet, offload: &Offload) -> Result<Self, ParseError> {
        let ip = packet
            .ip()
            .filter(|_| offload.gso != Gso::None)
            .ok_or(ParseError::Offload)?;
        let (l3, l4, end) = (usize::from(ip.l3), usize::from(ip.l4), ip.end as usize);
        let (l4_header_len, tcp) = match ip.l4_info {
            L4::Tcp {
                header_len,
                seq,
                flags,
                ..
            } => (usize::from(header_len), Some((seq, flags))),
            L4::Udp { .. } => (8, None),
            _ => return Err(ParseError::Offload),
        };
        let header_len = l4 + l4_header_len;
        if header_len > HEADER_MAX {
            return Err(ParseError::HeadersTooLong);
        }
        let mut header = [0; HEADER_MAX];
        let template = head.get(..header_len).ok_or(ParseError::HeadersTooLong)?;
        header[..header_len].copy_from_slice(template);

        let size = usize::from(offload.gso_size).max(1);
        let protocol = if tcp.is_some() {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let pseudo_sum = checksum::pseudo(ip.src(), ip.dst(), protocol, 0);
        let pseudo_sum = pseudo_sum.ok_or(ParseError::Offload)?;
        let mut segments = Segments {
            header,
            header_len,
            l3,
            l4,
            end,
            size,
            count: end.saturating_sub(header_len).div_ceil(size).max(1),
            v6: ip.v6,
            tcp,
            id: u16::from_be_bytes([header[l3 + 4], header[l3 + 5]]),
            ip_sum: 0,
            l4_sum: 0,
            pseudo_sum,
        };
        segments.sum_what_stays();
        Ok(segments)
    }

    /// How many packets the frame is; at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of headers before each payload.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Which bytes of the large frame are the payload of segment `index`; none at or beyond
    /// [`Segments::count`].
    #[inline]
    pub fn payload(&self, index: usize) -> Range<usize> {
        let start = self
            .header_len
            .saturating_add(index.saturating_mul(self.size))
            .min(self.end);
        start..start.saturating_add(self.size).min(self.end)
    }

    /// Where a segment's checksum is to be completed when its header was made with
    /// [`Checksum::Partial`]: one place for all segments.
    pub fn partial_checksum(&self) -> PartialChecksum {
        PartialChecksum {
            start: self.l4 as u16,
            offset: self.checksum_offset() as u16,
        }
    }

    /// Writes the headers of segment `index`, Ethernet to layer 4, to `out`:
    /// [`Segments::header_len`] bytes.
    #[inline]
    pub fn write(&self, index: usize, checksum: Checksum, out: &mut [u8]) {
        copy_header(&self.header[..self.header_len], out);
        let (front, l4) = out.split_at_mut(self.l4);
        let l3 = &mut front[self.l3..];
        let l4_len = self.header_len - self.l4 + self.payload(index).len();
        let mut l4_sum = self.l4_sum;
        if let Some((first_seq, flags)) = self.tcp {
            let seq = first_seq.wrapping_add(index.wrapping_mul(self.size) as u32);
            let flags = self.flags(index, flags);
            put32(l4, 4, seq);
            l4[13] = flags.0;
            l4_sum += (seq >> 16) + (seq & 0xffff) + u32::from(flags.0);
        } else {
            put16(l4, 4, l4_len as u16);
            l4_sum += l4_len as u32;
        }

        if self.v6 {
            put16(l3, 4, (l3.len() - 40 + l4_len) as u16);
        } else {
            let (total_len, id) = (
                (l3.len() + l4_len) as u16,
                self.id.wrapping_add(index as u16),
            );
            put16(l3, 2, total_len);
            put16(l3, 4, id);
            put16(
                l3,
                10,
                !checksum::fold(self.ip_sum + u32::from(total_len) + u32::from(id)),
            );
        }

        let pseudo_sum = self.pseudo_sum + l4_len as u32;
        let field = match checksum {
            Checksum::Partial => checksum::fold(pseudo_sum),
            Checksum::Full { payload_sum } => checksum::finish(checksum::add(
                checksum::add(pseudo_sum, l4_sum),
                payload_sum,
            )),
        };
        put16(l4, self.checksum_offset(), field);
    }

    /// Clears the fields that change, and sums the rest.
    fn sum_what_stays(&mut self) {
        let checksum_offset = self.checksum_offset();
        let (front, l4) = self.header[..self.header_len].split_at_mut(self.l4);
        let l3 = &mut front[self.l3..];
        if self.v6 {
            put16(l3, 4, 0);
        } else {
            put32(l3, 2, 0); // total length, identification
            put16(l3, 10, 0);
            self.ip_sum = checksum::sum(l3);
        }
        if self.tcp.is_some() {
            put32(l4, 4, 0);
            l4[13] = 0;
        } else {
            put16(l4, 4, 0);
        }
        put16(l4, checksum_offset, 0);
        self.l4_sum = checksum::sum(l4);
    }

    #[inline]
    fn flags(&self, index: usize, mut flags: TcpFlags) -> TcpFlags {
        if index + 1 < self.count {
            flags.0 &= !(TcpFlags::PSH | TcpFlags::FIN).0;
        }
        if index > 0 {
            flags.0 &= !TcpFlags::CWR.0;
        }
        flags
    }

    #[inline]
    fn checksum_offset(&self) -> usize {
        if self.tcp.is_some() { 16 } else { 6 }
    }
}

#[cfg(test)]
mod tests;
