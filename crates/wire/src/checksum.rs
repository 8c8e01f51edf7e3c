//! The Internet checksum (RFC 1071): sums, their combination, and updates in place (RFC 1624).
//!
//! A *sum* here is a ones'-complement sum in host order that is not yet folded or inverted: sums
//! add up, which is how a checksum is put together from a pseudo-header, a header and the pieces of
//! a payload. [`Sum`] does so for pieces of any length, odd ones included. Called by the segmenter,
//! by ports that complete checksums while they copy, and by the frame builder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The ones'-complement sum of `bytes` as big-endian 16-bit words, at most 0xffff. An odd last byte
/// counts as the high half of a word.
///
/// Goes 32 bytes a step, in four independent lanes that the compiler turns into vector additions.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    let mut lanes = [0u64; 8];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (words, tail) = rest.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0u8; 4];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    // 2^32 additions of a 32-bit word fit in a lane; eight lanes of frames (64 KiB) are far below
    // that.
    let total = lanes
        .iter()
        .fold(u64::from(u32::from_ne_bytes(last)), |total, lane| {
            total.wrapping_add(*lane)
        });
    of_native(total)
}

/// The sum for whoever has added up words in the processor's own order, of 16 or of 32 bits: at
/// most 0xffff.
#[inline]
pub fn of_native(total: u64) -> u32 {
    // The sum of byte-swapped words is the byte-swapped sum (RFC 1071, section 2 (B)).
    u32::from(u16::from_be(fold64(total)))
}

/// Folds the carries of a sum into 16 bits.
#[inline]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[inline]
fn fold64(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    fold(sum as u32)
}

/// The ones'-complement sum of two sums (or of a sum and a word); it never wraps.
#[inline]
pub fn add(a: u32, b: u32) -> u32 {
    u32::from(fold(a)) + u32::from(fold(b))
}

/// The checksum of `bytes`: their folded sum, inverted. Over data that holds its own checksum it is
/// 0.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The checksum field for a sum that covers the pseudo-header too: inverted, and 0xffff for 0. UDP
/// needs the latter, for the others it is the same number; so a sender's checksum can be completed
/// without knowing which it is.
#[inline]
pub fn finish(sum: u32) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// The sum of an IPv4 pseudo-header (RFC 9293, section 3.1) for `len` bytes of `protocol`.
#[inline]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> u32 {
    let (src, dst) = (src.to_bits(), dst.to_bits());
    (src >> 16)
        + (src & 0xffff)
        + (dst >> 16)
        + (dst & 0xffff)
        + u32::from(protocol)
        + u32::from(fold(len))
}

/// The sum of an IPv6 pseudo-header (RFC 8200, section 8.1) for `len` bytes of `protocol`.
#[inline]
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> u32 {
    sum(&src.octets()) + sum(&dst.octets()) + u32::from(protocol) + u32::from(fold(len))
}

/// The sum of the pseudo-header of either kind; `None`: the addresses are not of one kind.
#[inline]
pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Option<u32> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(pseudo_v4(src, dst, protocol, len)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(pseudo_v6(src, dst, protocol, len)),
        _ => None,
    }
}

/// The checksum after one 16-bit word under it changed (RFC 1624, equation 3).
///
/// For UDP the caller keeps 0 (no checksum) as it is, and writes a result of 0 as 0xffff.
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!old) + u32::from(new))
}

/// The checksum after one 32-bit field under it changed, such as an IPv4 address.
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update_u16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(high, old as u16, new as u16)
}

/// The checksum after a field under it, at an even offset, changed from `old` to `new`.
#[inline]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let without = add(u32::from(!checksum), u32::from(!fold(sum(old))));
    !fold(add(without, sum(new)))
}

/// A sum over pieces that follow one another, each of any length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    total: u32,
    odd: bool,
}

impl Sum {
    /// Nothing summed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from a sum that is there already, such as a pseudo-header's; the next piece is at an
    /// even offset.
    pub fn from_partial(sum: u32) -> Self {
        Self {
            total: u32::from(fold(sum)),
            odd: false,
        }
    }

    /// Adds the next piece.
    #[inline]
    pub fn add(&mut self, piece: &[u8]) {
        self.append(sum(piece), piece.len());
    }

    /// Adds the next piece by its [`sum`], which somebody else has made, and its length in bytes.
    #[inline]
    pub fn append(&mut self, sum: u32, len: usize) {
        let mut sum = fold(sum);
        if self.odd {
            // At an odd offset every byte is in the other half of its word (RFC 1071, section 2
            // (A)).
            sum = sum.swap_bytes();
        }
        self.total = add(self.total, u32::from(sum));
        self.odd ^= len % 2 == 1;
    }

    /// The sum so far, at most 0xffff.
    pub fn folded(self) -> u16 {
        fold(self.total)
    }

    /// The checksum: the folded sum, inverted.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 by the letter, to measure the fast one against.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for (i, byte) in bytes.iter().enumerate() {
            sum += u64::from(*byte) << if i % 2 == 0 { 8 } else { 0 };
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes), 0xddf2);
        assert_eq!(checksum(&bytes), 0x220d);
    }

    #[test]
    fn a_header_with_its_checksum_sums_to_zero() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0);
    }

    #[test]
    fn the_example_of_rfc_1624_section_4() {
        // HC = 0xdd2f, m = 0x5555, m' = 0x3285: the result is 0x0000, where RFC 1141 gave 0xffff.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn the_largest_sums_do_not_wrap() {
        assert_eq!(sum(&vec![0xff; 70_000]), 0xffff);
        assert_eq!(fold(u32::MAX), 0xffff);
        assert_eq!(add(u32::MAX, u32::MAX), 0x1fffe);
        let all = Ipv4Addr::BROADCAST;
        assert_eq!(fold(pseudo_v4(all, all, 255, u32::MAX)), fold(255));
    }

    proptest! {
        #[test]
        fn agrees_with_the_letter_of_the_rfc(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert_eq!(sum(&bytes), u32::from(naive(&bytes)));
        }

        #[test]
        fn pieces_of_any_length_add_up(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cuts in proptest::collection::vec(0usize..300, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let (mut sum, mut from) = (Sum::new(), 0);
            for cut in cuts {
                sum.add(&bytes[from..cut]);
                from = cut;
            }
            sum.add(&bytes[from..]);
            // 0 and 0xffff are both zero in ones' complement; sums of the same bytes agree on
            // which.
            prop_assert_eq!(sum.folded(), naive(&bytes));
        }

        #[test]
        fn an_update_equals_a_recomputation(
            mut bytes in proptest::array::uniform20(any::<u8>()), new in any::<u32>(),
        ) {
            bytes[0] = 0x45; // A real header is never all zeros, where the two zeros would differ.
            let before = checksum(&bytes);
            let old = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
            bytes[12..16].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u32(before, old, new), checksum(&bytes));
            prop_assert_eq!(update_bytes(before, &old.to_be_bytes(), &new.to_be_bytes()),
                checksum(&bytes));
        }
    }
}
