//! Large tables, zeroed and in huge pages: a lookup at random then misses the cache alone and not
//! the TLB besides.
//!
//! Not a `Box`: for what is aligned to a cache line the allocator gives zeroes by writing them, and
//! would commit all of a table that is meant to grow into its maximum.

use std::ops::Deref;

use bytemuck::Zeroable;
use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE: usize = 2 << 20;

/// A slice of zeroed memory that the kernel commits as it comes into use, in huge pages where it
/// has them.
pub struct Zeroed<T> {
    /// Valid for `len` of `T` while this lives.
    start: *const T,
    len: usize,
    /// What was mapped, to be unmapped.
    mapping: *mut core::ffi::c_void,
    mapped: usize,
}

// SAFETY: it owns its memory, as a `Box<[T]>` does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// `len` of `T`, all zero. Panics when there is no address space for them, as a `Vec` would.
    pub fn new(len: usize) -> Self {
        const { assert!(align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>()) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .expect("a table within the address space")
            .max(1);
        // Room to begin at a huge page, where one would be filled.
        let spare = if bytes >= PAGE { PAGE } else { 0 };
        let mapped = bytes + spare;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let mapping = mapping.expect("address space for a table");
        let skip = if spare > 0 {
            mapping.addr().wrapping_neg() % PAGE
        } else {
            0
        };
        let start = mapping.wrapping_byte_add(skip);
        if spare > 0 {
            // SAFETY: advice about our own new mapping. Where there are no huge pages nothing
            // changes.
            let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
        }
        Zeroed {
            start: start.cast_const().cast(),
            len,
            mapping,
            mapped,
        }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned to a page and valid for `len` of `T`, which were zeroed, as
        // `T` may be (`Zeroable` in `new`); the lifetime is that of the borrow, and nobody has a
        // mutable one.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: mapped once in `new`, with this length; nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping, self.mapped) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_table_is_zeroed_to_its_end_and_begins_at_its_page() {
        for len in [0, 1, 1000, (PAGE / 8) + 1] {
            let table: Zeroed<AtomicU64> = Zeroed::new(len);
            assert_eq!(table.len(), len);
            assert!(
                table
                    .iter()
                    .all(|cell| cell.swap(7, Ordering::Relaxed) == 0)
            );
            assert!(len * 8 < PAGE || table.as_ptr().addr().is_multiple_of(PAGE));
        }
    }
}
