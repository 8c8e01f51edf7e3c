//! Copies between guest memory and private memory, and from guest to guest: the one copy.
//!
//! Guest memory is shared with a party that may write it at any time. Rust has no references to
//! such memory; all access is through raw pointers and plain copies. In the letter of the memory
//! model a racing plain copy is undefined; in practice (and in every VMM written in Rust) it is a
//! sequence of loads and stores whose result is some mixture of old and new bytes. What we rely on
//! is only that: no decision is made on bytes still in guest memory, and what is summed is read
//! once (`copy_sum`). A plain copy may read bytes twice, where its last block overlaps the one
//! before.
//!
//! Source and target may overlap: a guest may name one page in both of its rings, or two NICs of a
//! guest may share its memory. Which bytes come out is then that guest's problem, but it must not
//! be undefined: hence `ptr::copy`, which is the same code as `memcpy` on the machines we run on.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How wide the registers are that copies go through. A function that copies for a whole batch is
/// compiled once for each and picked by [`width`]: what is inlined into it (`bytes`, `blocks`) is
/// then as wide. Rings and copy of 64 bytes 29.3 cycles where it was 32.3, of 1518 109 and 118
/// (2026-11-21).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    /// What every processor has.
    Base,
    /// 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 64 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The widest that this processor has and that is worth it: those before AVX-512 VBMI2 came (Ice
/// Lake, Zen 4) slow down for 64 bytes.
#[inline]
pub(crate) fn width() -> Width {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::sync::LazyLock;
        static WIDTH: LazyLock<Width> = LazyLock::new(|| {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi2");
            match (avx2, avx512) {
                (true, true) => Width::Avx512,
                (true, false) => Width::Avx2,
                _ => Width::Base,
            }
        });
        *WIDTH
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    Width::Base
}

/// Makes a function of a ring that is another one, which has to be inlined always, compiled for
/// each [`Width`] and picked by [`width`]. The features here are those that are looked for there.
macro_rules! by_width {
    (
        $(#[$doc:meta])*
        $visible:vis fn $name:ident<$ring:ident: $trait:ident>(
            $($arg:ident: $type:ty),* $(,)?) -> $result:ty = $any:ident;
    ) => {
        $(#[$doc])*
        #[inline]
        $visible fn $name<$ring: $trait>($($arg: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2")]
            fn avx2<$ring: $trait>($($arg: $type),*) -> $result {
                $any($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl")]
            fn avx512<$ring: $trait>($($arg: $type),*) -> $result {
                $any($($arg),*)
            }
            match $crate::copy::width() {
                $crate::copy::Width::Base => $any($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the processor has what the function is compiled for (`copy::width`).
                $crate::copy::Width::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::copy::Width::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use by_width;

/// How far behind what is being copied that lies which will be copied next, bytes. A line of it is
/// asked for with each line that is copied: asked for all at once, they would keep what is copied
/// now waiting. Only a hint; nothing need be there. To a guest 300 cycles for 1518 bytes where it
/// was 312 to 316; a frame of 64 KiB to the wire 1.14 to 1.24 times the bare copy where it was 1.46
/// to 1.57 (docs/journal/2026-11-23-cycles.md, 2026-11-23-overlay.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ahead {
    pub read: usize,
    pub write: usize,
}

impl Ahead {
    /// From one copy to the next one.
    #[inline(always)]
    pub fn between(
        from: *const u8,
        to: *const u8,
        next_from: *const u8,
        next_to: *const u8,
    ) -> Ahead {
        Ahead {
            read: next_from.addr().wrapping_sub(from.addr()),
            write: next_to.addr().wrapping_sub(to.addr()),
        }
    }

    /// Asks for the lines that lie so far behind these two.
    #[inline(always)]
    pub fn ask(self, from: *const u8, to: *const u8) {
        prefetch(from.wrapping_add(self.read));
        prefetch_to_write(to.wrapping_add(self.write));
    }
}

/// What is no longer is copied without a call to `memcpy`.
const SHORT: usize = 256;

/// What is no longer is as fast through the caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAST_CACHES: usize = 1024;

/// How long a piece is that [`lines`] copies sooner than [`bytes`]: within a page, at whose end the
/// processor's own foresight ends.
pub(crate) const LINED: std::ops::RangeInclusive<usize> = SHORT + 1..=4096;

/// Copies `len` bytes; short copies, which heads and small frames are, without a call to `memcpy`.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[inline(always)]
pub(crate) unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each branch copies whole blocks inside `len`, the last one overlapping the one before
    // it; the caller vouches for the `len` bytes on both sides.
    unsafe {
        if len > SHORT {
            std::ptr::copy(from, to, len);
        } else if len >= 64 {
            let mut at = 0;
            while at + 64 < len {
                block::<64>(from.add(at), to.add(at));
                at += 64;
            }
            block::<64>(from.add(len - 64), to.add(len - 64));
        } else if len >= 32 {
            block::<32>(from, to);
            block::<32>(from.add(len - 32), to.add(len - 32));
        } else if len >= 16 {
            block::<16>(from, to);
            block::<16>(from.add(len - 16), to.add(len - 16));
        } else if len >= 8 {
            block::<8>(from, to);
            block::<8>(from.add(len - 8), to.add(len - 8));
        } else {
            for at in 0..len {
                *to.add(at) = *from.add(at);
            }
        }
    }
}

/// Copies `len` bytes, [`LINE`] at least, a line at a time, and asks for what lies `ahead` on the
/// way: while one frame's body waits for the second cache, the next one's comes nearer.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[inline(always)]
pub(crate) unsafe fn lines(from: *const u8, to: *mut u8, len: usize, ahead: Ahead) {
    let last = len - LINE;
    // SAFETY: each block is inside `len`, the first and the last one overlap others; the caller
    // vouches for the `len` bytes on both sides.
    unsafe {
        block::<LINE>(from, to);
        // From here on no store is across two lines.
        let mut at = LINE - to.addr() % LINE;
        while at < last {
            ahead.ask(from.add(at), to.add(at));
            block::<LINE>(from.add(at), to.add(at));
            at += LINE;
        }
        block::<LINE>(from.add(last), to.add(last));
    }
}

/// Copies `len` bytes without a place for them in the caches, of which a copy for one of many would
/// push what others work on out of there, and which would read memory that it writes whole. What is
/// short is copied as ever. 64 KiB to memory that is in no cache take 3.4 us (p99 5) where they
/// took 7.5 (p99 13 to 23; docs/journal/2026-11-28-neighbours.md). Before anybody is told of these
/// bytes comes a [`fence`].
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cold]
pub(crate) unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= PAST_CACHES {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        const PART: usize = size_of::<__m128i>();

        let front = to.addr().wrapping_neg() % LINE;
        let lines = (len - front) / LINE;
        // SAFETY: the lines lie inside `len`, in `to` each where a line of memory begins; the
        // caller vouches for the `len` bytes on both sides.
        unsafe {
            bytes(from, to, front);
            for line in 0..lines {
                let at = front + line * LINE;
                let part = |of| from.add(at + of * PART).cast();
                let read = [0, 1, 2, 3].map(|of| _mm_loadu_si128(part(of)));
                for (of, part) in read.into_iter().enumerate() {
                    _mm_stream_si128(to.add(at + of * PART).cast(), part);
                }
            }
            let done = front + lines * LINE;
            bytes(from.add(done), to.add(done), len - done);
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(from, to, len) }
}

/// What went [past the caches](past_caches) is there before what is stored from here on.
#[cold]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies `len` bytes and what follows up to a multiple of 64 (at least one block): no branch on
/// the exact length.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, rounded up.
#[inline(always)]
pub(crate) unsafe fn blocks(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    loop {
        // SAFETY: the caller's promise.
        unsafe { block::<64>(from.add(at), to.add(at)) };
        at += 64;
        if at >= len {
            return;
        }
    }
}

/// Copies `N` bytes through registers.
///
/// # Safety
/// As [`bytes`] with `len == N`.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; `[u8; N]` has alignment 1.
    unsafe { to.cast::<[u8; N]>().write(from.cast::<[u8; N]>().read()) }
}

/// Asks for a cache line that will be read soon. Any address will do: nothing happens at a bad one.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes nothing but the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Loads a cache line that will be read later, after much else: it comes as near as the second
/// cache.
#[inline(always)]
pub(crate) fn prefetch_for_later(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    prefetch(at);
}

/// Loads a cache line that will be written.
#[inline(always)]
pub(crate) fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above; a processor that does not know the instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    prefetch(at);
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_short_length_is_copied_exactly() {
        let from: Vec<u8> = (0..=255).cycle().take(700).collect();
        for len in 0..600 {
            let mut to = [0xa5u8; 700];
            // SAFETY: both vectors hold 700 bytes, offset and length stay below.
            unsafe { super::bytes(from.as_ptr().add(3), to.as_mut_ptr().add(50), len) };
            assert!(
                to[..50].iter().chain(&to[50 + len..]).all(|&b| b == 0xa5),
                "wrote outside at {len}"
            );
            assert_eq!(to[50..50 + len], from[3..3 + len]);
        }
    }

    #[test]
    fn lines_copy_exactly_and_need_nothing_ahead() {
        let from: Vec<u8> = (0..=255).cycle().take(700).collect();
        let ahead = super::Ahead {
            read: usize::MAX / 2,
            write: usize::MAX / 3,
        };
        for (len, start) in (super::LINE..600).flat_map(|len| [(len, 40), (len, 63), (len, 64)]) {
            let mut to = [0xa5u8; 700];
            // SAFETY: both hold 700 bytes, offset and length stay below.
            unsafe { super::lines(from.as_ptr().add(3), to.as_mut_ptr().add(start), len, ahead) };
            assert_eq!(to[start..start + len], from[3..3 + len]);
            let outside = to[..start].iter().chain(&to[start + len..]);
            assert!(
                outside.copied().all(|byte| byte == 0xa5),
                "wrote outside at {len}"
            );
        }
    }

    #[test]
    fn what_goes_past_the_caches_is_copied_exactly() {
        let from: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        let lens = (0..200).chain(1_000..1_300).chain([19_000]);
        for (len, start) in lens.flat_map(|len| [(len, 0), (len, 1), (len, 40), (len, 63)]) {
            let mut to = vec![0xa5u8; 20_000];
            // SAFETY: both hold 20,000 bytes, offset and length stay below.
            unsafe { super::past_caches(from.as_ptr().add(3), to.as_mut_ptr().add(start), len) };
            assert_eq!(to[start..start + len], from[3..3 + len]);
            let outside = to[..start].iter().chain(&to[start + len..]);
            assert!(
                outside.copied().all(|byte| byte == 0xa5),
                "wrote outside at {len}"
            );
        }
    }

    #[test]
    fn blocks_cover_the_length_and_end_with_a_block() {
        let from: Vec<u8> = (0..=255).cycle().take(700).collect();
        for len in [1usize, 63, 64, 65, 128, 129, 255, 256] {
            let mut to = [0xa5u8; 700];
            // SAFETY: both hold 700 bytes, offset and rounded length stay below.
            unsafe { super::blocks(from.as_ptr().add(3), to.as_mut_ptr().add(50), len) };
            let end = 50 + len.next_multiple_of(64);
            assert_eq!(to[50..end], from[3..3 + end - 50]);
            assert!(to[..50].iter().chain(&to[end..]).all(|&byte| byte == 0xa5));
        }
    }
}
