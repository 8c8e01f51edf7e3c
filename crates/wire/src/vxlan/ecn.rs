//! Congestion marks in tunnels (RFC 6040), in the normal mode: what the inner packet says is said
//! outside, and what happened to it outside is told inside.
//!
//! An ECN field is the lower two bits of TOS or traffic class.

use crate::checksum;
use crate::parse::ethertype;

/// The ECN field of a TOS.
pub const MASK: u8 = 3;
/// The transport does not know ECN.
pub const NOT_ECT: u8 = 0;
/// ECN-capable, the second codepoint.
pub const ECT_1: u8 = 1;
/// ECN-capable, the first codepoint.
pub const ECT_0: u8 = 2;
/// Congestion was experienced.
pub const CE: u8 = 3;

/// The outer ECN field for an inner one: the same (section 4.1, normal mode).
#[inline]
pub fn encapsulate(inner: u8) -> u8 {
    inner & MASK
}

/// The inner ECN field after decapsulation, `None` for a packet that has to be dropped: congestion
/// was signalled, and its transport would not understand (section 4.2, figure 4).
#[inline]
pub fn decapsulate(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

/// The TOS (traffic class) of an inner frame that begins with `head`; 0 when it is not an untagged
/// IP packet, or not enough of one.
#[inline]
pub fn tos_of(head: &[u8]) -> u8 {
    let Some(&[a, b, c, d]) = head.get(12..).and_then(<[u8]>::first_chunk::<4>) else {
        return 0;
    };
    match u16::from_be_bytes([a, b]) {
        ethertype::IPV4 => d,
        ethertype::IPV6 => c << 4 | d >> 4,
        _ => 0,
    }
}

/// Applies [`decapsulate`] to an inner frame that begins with `head`, IPv4's checksum included.
/// False when the frame has to be dropped. What is not IP stays as it is.
#[inline]
pub fn decapsulate_frame(head: &mut [u8], outer_tos: u8) -> bool {
    if outer_tos & MASK == NOT_ECT {
        return true;
    }
    let kind = head.get(12..).and_then(<[u8]>::first_chunk::<2>);
    let v6 = match kind.map(|kind| u16::from_be_bytes(*kind)) {
        Some(ethertype::IPV4) => false,
        Some(ethertype::IPV6) => true,
        _ => return true,
    };
    if head.len() < if v6 { 54 } else { 34 } {
        return true;
    }
    let before = tos_of(head);
    let Some(ecn) = decapsulate(before, outer_tos) else {
        return false;
    };
    if ecn == before & MASK {
        return true;
    }
    if v6 {
        head[15] = head[15] & !(MASK << 4) | ecn << 4;
    } else {
        let word = u16::from_be_bytes([head[14], head[15]]);
        head[15] = head[15] & !MASK | ecn;
        let new = u16::from_be_bytes([head[14], head[15]]);
        let sum = u16::from_be_bytes([head[24], head[25]]);
        head[24..26].copy_from_slice(&checksum::update_u16(sum, word, new).to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;
    use crate::build;

    /// RFC 6040, figure 4: rows are inner, columns outer Not-ECT, ECT(0), ECT(1), CE.
    #[test]
    fn decapsulation_is_figure_4() {
        let outers = [NOT_ECT, ECT_0, ECT_1, CE];
        let table = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE); 4]),
        ];
        for (inner, row) in table {
            assert_eq!(encapsulate(0xfc | inner), inner);
            for (outer, expected) in outers.into_iter().zip(row) {
                assert_eq!(
                    decapsulate(inner, outer),
                    expected,
                    "inner {inner}, outer {outer}"
                );
                // What is beside the field does not matter, and stays.
                for v6 in [false, true] {
                    let frame = |ecn: u8| {
                        let frame = build::frame(Mac([2; 6]), Mac([4; 6])).tos(0xb8 | ecn);
                        let frame = match v6 {
                            false => frame.ip([10, 0, 0, 1], [10, 0, 0, 2]),
                            true => {
                                frame.ip([1u16, 0, 0, 0, 0, 0, 0, 1], [1u16, 0, 0, 0, 0, 0, 0, 2])
                            }
                        };
                        frame.udp(1, 2).build()
                    };
                    let mut bytes = frame(inner);
                    assert_eq!(tos_of(&bytes), 0xb8 | inner);
                    let goes = decapsulate_frame(&mut bytes, 0x48 | outer);
                    assert_eq!(goes, expected.is_some());
                    assert_eq!(bytes, frame(expected.unwrap_or(inner)));
                }
            }
        }
    }

    #[test]
    fn what_is_not_ip_or_too_short_stays_as_it_is() {
        let arp = build::arp_request(Mac([2; 6]), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for len in [0, 13, 14, 33, arp.len()] {
            let mut bytes = arp[..len].to_vec();
            assert!(decapsulate_frame(&mut bytes, CE));
            assert_eq!(bytes, arp[..len]);
        }
        let mut short = build::frame(Mac([2; 6]), Mac([4; 6]))
            .ip([1, 1, 1, 1], [1, 1, 1, 2])
            .build();
        short.truncate(33);
        let before = short.clone();
        assert!(decapsulate_frame(&mut short, CE));
        assert_eq!(short, before);
    }
}
