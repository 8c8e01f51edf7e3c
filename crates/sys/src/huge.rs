//! Large tables, zeroed and in huge pages: a lookup at random then misses the cache alone and not
//! the TLB besides.
//!
//! Not a `Box`: for what is aligned to a cache line the allocator gives zeroes by writing them, and
//! would commit all of a table that is meant to grow into its maximum.

use std::io;
use std::ops::Deref;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::shared_memory::SharedMemory;

/// A huge page, bytes.
pub const PAGE: usize = 2 << 20;

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
        Zeroed::mapped(len, true)
    }

    /// As [`new`](Self::new), in pages as small as the system has: for a table of which little
    /// comes into use.
    pub fn sparse(len: usize) -> Self {
        Zeroed::mapped(len, false)
    }

    fn mapped(len: usize, huge: bool) -> Self {
        const { assert!(align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>()) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .expect("a table within the address space")
            .max(1);
        // Room to begin at a huge page, where one would be filled.
        let spare = if huge && bytes >= PAGE { PAGE } else { 0 };
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

impl<T: Zeroable> Zeroed<T> {
    /// `len` of `T` in memory that outlives the process, from byte `from` of it on, which is a
    /// multiple of a huge page. Nobody else may write there while this lives; a process that holds
    /// a descriptor does not. An error: they do not fit, or there is no address space.
    pub fn shared(memory: &SharedMemory, from: u64, len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>()) };
        let refuse = || io::Error::other("a table that does not fit into its memory");
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(refuse)?.max(1);
        let end = from.checked_add(bytes as u64).ok_or_else(refuse)?;
        if end > memory.len() || !from.is_multiple_of(PAGE as u64) {
            return Err(refuse());
        }
        // Huge pages are those of the file, and are mapped as such only where file and address
        // space agree on where they begin.
        let bytes = mapped_of(memory, from, bytes);
        let mapped = bytes + PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = mapping.wrapping_byte_add(mapping.addr().wrapping_neg() % PAGE);
        // SAFETY: it takes the place of a part of our own new mapping, which nobody refers to, and
        // lies within it: `start` is less than a huge page behind its beginning.
        let placed = unsafe {
            rustix::mm::mmap(
                start,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                memory,
                from,
            )
        };
        if let Err(error) = placed {
            // SAFETY: mapped above, and nobody refers to it.
            let _ = unsafe { rustix::mm::munmap(mapping, mapped) };
            return Err(error.into());
        }
        // SAFETY: advice about our own new mapping; where it is not taken nothing changes.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
        Ok(Zeroed {
            start: start.cast_const().cast(),
            len,
            mapping,
            mapped,
        })
    }

    /// From now on what is written is this process's alone, and what there is by now is left as it
    /// is in the memory, of which this is the table from byte `from` on ([`shared`](Self::shared)).
    /// Nobody else may be writing. An error: it is as before.
    pub fn leave(&self, memory: &SharedMemory, from: u64) -> io::Result<()> {
        let bytes = mapped_of(memory, from, (self.len * size_of::<T>()).max(1));
        // SAFETY: it takes the place of the whole of our own mapping of the same part of the same
        // file, so that all that is read stays what it was, and stays there to be read and written.
        let placed = unsafe {
            rustix::mm::mmap(
                self.start.cast_mut().cast(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                memory,
                from,
            )
        };
        placed.map(drop).map_err(io::Error::from)
    }

    /// Makes huge pages of what lies between two elements, also where the system gives memory that
    /// outlives the process none by itself (`shmem_enabled` of the kernel's is `never`). Takes some
    /// hundred microseconds for each page that is not huge yet, and its memory. Before each page
    /// `go_on` is told how long the one before took, and says whether to go on. True when all of
    /// it is done.
    pub fn collapse(
        &self,
        elements: std::ops::Range<usize>,
        mut go_on: impl FnMut(Duration) -> bool,
    ) -> bool {
        /// Linux 6.1.
        const COLLAPSE: libc::c_int = 25;
        let end = elements.end.min(self.len) * size_of::<T>();
        let begin = elements.start * size_of::<T>() / PAGE * PAGE;
        let mut took = Duration::ZERO;
        for at in (begin..end).step_by(PAGE) {
            if !go_on(took) {
                return false;
            }
            let began = Instant::now();
            let page = self.start.cast::<u8>().wrapping_byte_add(at);
            // Nothing is made of a page of which nothing is there.
            // SAFETY: `at` is before `end`, so that the byte is one of ours; others may write to it
            // meanwhile, and what is read is not used.
            let _ = unsafe { page.read_volatile() };
            // SAFETY: advice about our own mapping, whose content stays the same. Where it is not
            // possible (behind the end the mapping may have none) nothing changes.
            let _ = unsafe { libc::madvise(page.cast_mut().cast(), PAGE, COLLAPSE) };
            took = began.elapsed();
        }
        true
    }
}

/// Of a table of so many bytes as many as are mapped: the last huge page is huge only as a whole.
fn mapped_of(memory: &SharedMemory, from: u64, bytes: usize) -> usize {
    let whole = bytes.next_multiple_of(PAGE);
    match from + whole as u64 <= memory.len() {
        true => whole,
        false => bytes,
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned to a page and valid for `len` of `T`, which were zeroed, as
        // `T` may be (`Zeroable` in `new` and `shared`); the lifetime is that of the borrow, and
        // nobody has a mutable one. A file cannot become shorter (`SharedMemory`), and nobody but
        // this process writes into it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: mapped once in `new` or `shared`, with this length; nothing refers to it any
        // more.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping, self.mapped) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_is_left_stays_and_what_follows_is_one_s_own() {
        let memory = SharedMemory::new("test", 2 * PAGE as u64).unwrap();
        let from = PAGE as u64;
        let [one, other]: [Zeroed<AtomicU64>; 2] =
            [(); 2].map(|()| Zeroed::shared(&memory, from, 1000).unwrap());
        let at = |table: &Zeroed<AtomicU64>, index: usize| table[index].load(Ordering::Relaxed);
        one[7].store(1, Ordering::Relaxed);
        one.leave(&memory, from).unwrap();
        assert_eq!(at(&one, 7), 1);
        one[7].store(2, Ordering::Relaxed);
        one[999].store(3, Ordering::Relaxed);
        assert_eq!([at(&one, 7), at(&one, 999)], [2, 3]);
        assert_eq!([at(&other, 7), at(&other, 999)], [1, 0]);
    }

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
