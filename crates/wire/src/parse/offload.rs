//! Does what a sender left undone suit the headers of its frame?
//!
//! Completing a checksum writes two bytes into the frame after it has been judged. Were the place
//! the sender's free choice, it could turn an address that was judged into another. So the place is
//! either the field that the protocol has for it, or behind all that was judged (an inner header of
//! a tunnel, a tagged frame).

use super::{ETHERNET_LEN, L4, Net, Packet, ParseError};
use crate::offload::{Gso, Offload, PartialChecksum};

/// The most segments a frame may stand for. The smallest TCP segments that Linux sends (48 bytes)
/// make 1,365 of the largest frame; a guest that asks for one-byte segments is after the time of
/// its neighbours.
pub const SEGMENTS_MAX: usize = 2048;
/// What the shortest frames are padded to, without their check sequence (IEEE 802.3, 3.2.8).
const PADDED_LEN: usize = 60;

/// Fails with [`ParseError::Offload`] when the checksum's place or the kind of segments do not suit
/// `packet`, the result of parsing a frame of `frame_len` bytes. To be called once for every frame,
/// beside [`super::parse`].
#[inline]
pub fn check_offload(
    packet: &Packet,
    frame_len: usize,
    offload: &Offload,
) -> Result<(), ParseError> {
    if offload.checksum.is_none() && offload.gso == Gso::None {
        return Ok(());
    }
    let checksum_fits = offload
        .checksum
        .is_none_or(|partial| checksum_suits(packet, frame_len, partial));
    if checksum_fits && gso_suits(packet, frame_len, offload) {
        Ok(())
    } else {
        Err(ParseError::Offload)
    }
}

fn checksum_suits(packet: &Packet, frame_len: usize, partial: PartialChecksum) -> bool {
    let start = usize::from(partial.start);
    let (behind, end) = match &packet.net {
        Net::Arp(_) => return false,
        Net::Other => (ETHERNET_LEN, frame_len),
        Net::Ip(ip) => {
            let l4 = usize::from(ip.l4);
            let (field, header_len) = match ip.l4_info {
                L4::Tcp { header_len, .. } => (Some(16), usize::from(header_len)),
                L4::Udp { .. } => (Some(6), 8),
                L4::Icmp { .. } => (Some(2), 8),
                L4::Sctp { .. } => (None, 16),
                L4::Other | L4::LaterFragment => (None, 0),
            };
            let own = start == l4 && field == Some(partial.offset);
            if own || matches!(ip.l4_info, L4::Icmp { .. }) {
                return own;
            }
            (l4 + header_len, ip.end as usize)
        }
    };
    start >= behind && start + usize::from(partial.offset) + 2 <= end
}

fn gso_suits(packet: &Packet, frame_len: usize, offload: &Offload) -> bool {
    if offload.gso == Gso::None {
        return true;
    }
    let Net::Ip(ip) = &packet.net else {
        return false;
    };
    // The kernel cuts all of a frame, what is behind its packet included: into more segments than
    // are counted here, of bytes that nobody has judged. Padding is no reason to have more.
    let is_all = ip.end as usize == frame_len || frame_len <= PADDED_LEN;
    let too_many = ip.l4_len() > usize::from(offload.gso_size) * SEGMENTS_MAX;
    if ip.fragment.is_some() || offload.gso_size == 0 || too_many || !is_all {
        return false;
    }
    let field = match (offload.gso, ip.l4_info) {
        (Gso::Tcp4, L4::Tcp { .. }) if !ip.v6 => 16,
        (Gso::Tcp6, L4::Tcp { .. }) if ip.v6 => 16,
        (Gso::Udp, L4::Udp { .. }) => 6,
        _ => return false,
    };
    // Each segment has its own checksum to complete, and whoever cuts it looks for the headers
    // where that begins.
    let own = PartialChecksum {
        start: ip.l4,
        offset: field,
    };
    offload.checksum.is_none_or(|partial| partial == own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{self, Builder};
    use crate::{Mac, parse, parse::TcpFlags};

    fn v4() -> Builder {
        build::frame(Mac([2; 6]), Mac([4; 6]))
            .ip([10, 0, 0, 1], [10, 0, 0, 2])
            .payload(&[0; 100])
    }

    fn suits(builder: &Builder, start: u16, offset: u16) -> bool {
        let frame = builder.build();
        let packet = parse::parse(&frame, frame.len()).unwrap();
        let offload = Offload {
            checksum: Some(PartialChecksum { start, offset }),
            ..Offload::default()
        };
        check_offload(&packet, frame.len(), &offload).is_ok()
    }

    #[test]
    fn a_checksum_goes_into_its_field_or_behind_the_headers() {
        let (tcp, udp) = (v4().tcp(1, 2, TcpFlags::ACK), v4().udp(1, 2));
        assert!(
            suits(&tcp, 34, 16) && suits(&udp, 34, 6) && suits(&v4().echo_request(1, 1), 34, 2)
        );
        // The destination address, a port, the sequence number, TCP's place in UDP: what has been
        // judged.
        for (builder, start, offset) in [
            (&tcp, 14, 16),
            (&tcp, 34, 2),
            (&tcp, 34, 4),
            (&tcp, 0, 50),
            (&udp, 34, 16),
        ] {
            assert!(!suits(builder, start, offset), "{start} + {offset}");
        }
        // An inner header, up to the end of the packet; not beyond it into padding or nothing.
        let end = 34 + 8 + 100;
        assert!(
            suits(&udp, 42, 0)
                && suits(&udp, 42, 98)
                && !suits(&udp, 42, 99)
                && !suits(&udp, end, 0)
        );
        assert!(!suits(&udp.pad_to(200), 42, 99) && !suits(&tcp, u16::MAX, u16::MAX));
    }

    #[test]
    fn nothing_of_icmp_is_written_to_but_its_checksum() {
        let (a, b) = (Mac([2; 6]), Mac([4; 6]));
        let advertisement = build::neighbour_advertisement(a, a.link_local(), b, b.link_local());
        let packet = parse::parse(&advertisement, advertisement.len()).unwrap();
        let checksum = |start, offset| Offload {
            checksum: Some(PartialChecksum { start, offset }),
            ..Offload::default()
        };
        let len = advertisement.len();
        assert_eq!(check_offload(&packet, len, &checksum(54, 2)), Ok(()));
        // The last bytes of the target, of the option's address.
        for (start, offset) in [(62, 14), (76, 0), (78, 6), (84, 0)] {
            let refused = check_offload(&packet, len, &checksum(start, offset));
            assert_eq!(refused, Err(ParseError::Offload), "{start} + {offset}");
        }
        // The ports in what an error quotes.
        let quote = v4().udp(1, 2).build();
        let error = build::frame(a, b)
            .ip([10, 0, 0, 1], [10, 0, 0, 2])
            .icmp(3, 3, 0);
        let error = error.payload(&quote[14..]);
        assert!(suits(&error, 34, 2) && !suits(&error, 62, 2) && !suits(&error, 42, 0));
    }

    #[test]
    fn what_is_to_be_cut_has_its_own_checksum_to_complete() {
        let large = v4().udp(1, 2).payload(&[0; 3000]).gso(1000);
        let (frame, offload) = large.build_with_offload();
        let packet = parse::parse(&frame, frame.len()).unwrap();
        assert_eq!(check_offload(&packet, frame.len(), &offload), Ok(()));
        // One more byte, behind the packet.
        let longer = check_offload(&packet, frame.len() + 1, &offload);
        assert_eq!(longer, Err(ParseError::Offload));
        let checksum = Some(PartialChecksum {
            start: 60,
            offset: 6,
        });
        let inner = Offload {
            checksum,
            ..offload
        };
        let refused = check_offload(&packet, frame.len(), &inner);
        assert_eq!(refused, Err(ParseError::Offload));
    }

    #[test]
    fn frames_that_are_not_looked_into_and_arp() {
        let tagged = v4().tag(5).tcp(1, 2, TcpFlags::ACK);
        assert!(suits(&tagged, 38, 16) && !suits(&tagged, 12, 0));
        let arp = build::arp_request(Mac([2; 6]), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let packet = parse::parse(&arp, arp.len()).unwrap();
        let checksum = Some(PartialChecksum {
            start: 20,
            offset: 2,
        });
        let offload = Offload {
            checksum,
            ..Offload::default()
        };
        assert_eq!(
            check_offload(&packet, arp.len(), &offload),
            Err(ParseError::Offload)
        );
        assert_eq!(
            check_offload(&packet, arp.len(), &Offload::default()),
            Ok(())
        );
    }
}
