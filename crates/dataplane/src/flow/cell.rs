//! Numbers that several workers read and write: relaxed atomics, which cost what plain memory
//! costs.
//!
//! None of them orders anything, but for [`U8::take`]. An entry's contents are published by its
//! slot in the index (a release store), and are not used for another flow before every worker has
//! let go of it (see `table`).

use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release,
};

use bytemuck::Zeroable;

macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident($atomic:ident, $number:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Zeroable, Debug)]
        #[repr(transparent)]
        pub(crate) struct $name($atomic);

        impl $name {
            #[inline(always)]
            pub fn get(&self) -> $number {
                self.0.load(Relaxed)
            }

            #[inline(always)]
            pub fn set(&self, number: $number) {
                self.0.store(number, Relaxed);
            }
        }
    )*};
}

cells! {
    U8(AtomicU8, u8);
    U16(AtomicU16, u16);
    U32(AtomicU32, u32);
    U64(AtomicU64, u64);
}

impl U8 {
    /// Puts 0 here and gives what was here. Who sees the 0, and has a fence behind that, sees what
    /// was done before.
    #[inline(always)]
    pub fn take(&self) -> u8 {
        self.0.swap(0, Release)
    }

    /// Puts `to` here if `from` still is.
    #[inline(always)]
    pub fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }
}

impl U32 {
    /// Puts `to` here if `from` still is.
    #[inline(always)]
    pub fn change(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }
}

impl U64 {
    /// Adds without a locked instruction: for a number with one writer at a time.
    #[inline(always)]
    pub fn add(&self, by: u64) {
        self.set(self.get().wrapping_add(by));
    }
}
