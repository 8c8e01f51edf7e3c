//! The copy and the Internet checksum (RFC 1071) in one pass: each byte is read once, and what is
//! summed is what is written.
//!
//! Called where a checksum is completed over what is copied: towards the wire (`outer.rs`), and to
//! a guest that takes no partial checksums. It costs little more than the copy, which waits for
//! memory: a frame of 64 KiB to the wire took 4.9 times the bare copy with the sum in a second
//! pass, 1.2 to 2.0 times so (docs/journal/2026-11-23-overlay.md). As [`crate::copy`] it may be
//! pointed at memory that somebody else writes: the sum is then that of the mixture that was
//! written, since both are made of the same registers.

use wire::checksum;

use crate::copy::{Ahead, Width, width};

/// Copies `len` bytes and gives their ones'-complement sum as [`checksum::sum`] would.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[inline]
pub(crate) unsafe fn copy_and_sum(
    from: *const u8,
    to: *mut u8,
    len: usize,
    ahead: Option<Ahead>,
) -> u32 {
    // SAFETY: the caller's promise; the processor has AVX2 where `width` says so.
    let total = unsafe {
        match (width(), ahead) {
            (Width::Base, _) => base(from, to, len),
            #[cfg(target_arch = "x86_64")]
            (Width::Avx2 | Width::Avx512, None) => avx2(from, to, len, |_| {}),
            #[cfg(target_arch = "x86_64")]
            (Width::Avx2 | Width::Avx512, Some(ahead)) => avx2(from, to, len, move |at| {
                ahead.ask(from.wrapping_add(at), to.wrapping_add(at));
            }),
        }
    };
    checksum::of_native(total)
}

/// Bytes of a step.
const STEP: usize = 32;

/// What every processor can: the sum of native words of 32 bits. The lanes become vector additions
/// of 16 bytes.
///
/// # Safety
/// As [`copy_and_sum`].
#[inline(always)]
unsafe fn base(from: *const u8, to: *mut u8, len: usize) -> u64 {
    let mut lanes = [0u64; STEP / 4];
    let (mut at, mut last) = (0, [0u8; 4]);
    // SAFETY: every access is inside `len` bytes; arrays of bytes have alignment 1.
    unsafe {
        while len - at >= STEP {
            let block = from.add(at).cast::<[[u8; 4]; STEP / 4]>().read();
            to.add(at).cast::<[[u8; 4]; STEP / 4]>().write(block);
            for (lane, word) in lanes.iter_mut().zip(block) {
                *lane += u64::from(u32::from_ne_bytes(word));
            }
            at += STEP;
        }
        while len - at >= 4 {
            let word = from.add(at).cast::<[u8; 4]>().read();
            to.add(at).cast::<[u8; 4]>().write(word);
            lanes[0] += u64::from(u32::from_ne_bytes(word));
            at += 4;
        }
        for (behind, last) in last.iter_mut().enumerate().take(len - at) {
            *last = from.add(at + behind).read();
            to.add(at + behind).write(*last);
        }
    }
    let last = u64::from(u32::from_ne_bytes(last));
    lanes.iter().fold(last, |total, lane| total + lane)
}

/// Copies and sums through registers of 32 bytes, two at a time: each is split into its odd and its
/// even words. `ask` is called for each line.
///
/// # Safety
/// As [`copy_and_sum`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(from: *const u8, to: *mut u8, len: usize, ask: impl Fn(usize)) -> u64 {
    use std::arch::x86_64::*;
    let even = _mm256_set1_epi64x(0xffff_ffff);
    let mut lanes = [_mm256_setzero_si256(); 4];
    let mut at = 0;
    while len - at >= 2 * STEP {
        ask(at);
        // SAFETY: 64 bytes from `at` are inside `len`; the loads and stores are for any alignment.
        let (first, second) = unsafe {
            let first = _mm256_loadu_si256(from.add(at).cast());
            let second = _mm256_loadu_si256(from.add(at + STEP).cast());
            _mm256_storeu_si256(to.add(at).cast(), first);
            _mm256_storeu_si256(to.add(at + STEP).cast(), second);
            (first, second)
        };
        // Lanes of 64 bits hold 2^32 additions of 32 bits.
        lanes[0] = _mm256_add_epi64(lanes[0], _mm256_and_si256(first, even));
        lanes[1] = _mm256_add_epi64(lanes[1], _mm256_srli_epi64::<32>(first));
        lanes[2] = _mm256_add_epi64(lanes[2], _mm256_and_si256(second, even));
        lanes[3] = _mm256_add_epi64(lanes[3], _mm256_srli_epi64::<32>(second));
        at += 2 * STEP;
    }
    let sum = _mm256_add_epi64(
        _mm256_add_epi64(lanes[0], lanes[1]),
        _mm256_add_epi64(lanes[2], lanes[3]),
    );
    let mut words = [0u64; 4];
    // SAFETY: the array holds 32 bytes, and what is left is `len - at` bytes from `at` on.
    unsafe {
        _mm256_storeu_si256(words.as_mut_ptr().cast(), sum);
        words.iter().sum::<u64>() + base(from.add(at), to.add(at), len - at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every way this processor has.
    fn ways() -> Vec<unsafe fn(*const u8, *mut u8, usize) -> u64> {
        let mut ways: Vec<unsafe fn(*const u8, *mut u8, usize) -> u64> = vec![base];
        #[cfg(target_arch = "x86_64")]
        if width() != Width::Base {
            // SAFETY: the processor has AVX2 where `width` says so, and the caller keeps the rest.
            ways.push(|from, to, len| unsafe { avx2(from, to, len, |_| {}) });
        }
        ways
    }

    fn is_exact(bytes: &[u8], skip: usize) {
        for way in ways() {
            let mut to = vec![0xa5; bytes.len() + 64];
            let len = bytes.len() - skip;
            // SAFETY: `len` bytes are behind `skip` in the source, and in the target with as many
            // before as behind.
            let total = unsafe { way(bytes[skip..].as_ptr(), to[skip..].as_mut_ptr(), len) };
            assert_eq!(checksum::of_native(total), checksum::sum(&bytes[skip..]));
            assert_eq!(to[skip..skip + len], bytes[skip..]);
            let outside = to[..skip].iter().chain(&to[skip + len..]);
            assert!(
                outside.copied().all(|byte| byte == 0xa5),
                "wrote outside of {len}"
            );
        }
    }

    #[test]
    fn nothing_need_be_there_ahead() {
        let bytes: Vec<u8> = (0..1448).map(|at| (at * 7 + at / 251) as u8).collect();
        let far = [
            (0, 0),
            (1448, 2048),
            (usize::MAX, 1 << 46),
            (1 << 46, usize::MAX),
        ];
        for (read, write) in far {
            let mut to = vec![0xa5; bytes.len()];
            let ahead = Some(Ahead { read, write });
            // SAFETY: both are as long.
            let sum = unsafe { copy_and_sum(bytes.as_ptr(), to.as_mut_ptr(), bytes.len(), ahead) };
            assert_eq!((sum, &to), (checksum::sum(&bytes), &bytes), "{ahead:?}");
        }
    }

    #[test]
    fn the_largest_sum_of_the_largest_frame() {
        is_exact(&[0xff; 65_550], 1);
        is_exact(&[0; 65_550], 0);
    }

    proptest! {
        #[test]
        fn copies_exactly_and_sums_as_the_slow_way_does(
            bytes in proptest::collection::vec(any::<u8>(), 0..700),
            skip in 0usize..70,
        ) {
            is_exact(&bytes, skip.min(bytes.len()));
        }
    }
}
