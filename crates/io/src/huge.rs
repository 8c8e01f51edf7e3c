//! Large tables in huge pages: a lookup at random then misses the cache alone and not the TLB besides.

use rustix::mm::Advice;

/// Asks the kernel to back the memory of `table` with huge pages as it comes into use. A wish: where transparent huge
/// pages are off nothing changes.
pub fn wish<T>(table: &[T]) {
    const PAGE: usize = 2 << 20;
    let (start, len) = (table.as_ptr().addr(), size_of_val(table));
    let first = start.next_multiple_of(PAGE);
    let end = (start + len) & !(PAGE - 1);
    if first < end {
        let at = table
            .as_ptr()
            .cast_mut()
            .cast::<core::ffi::c_void>()
            .wrapping_byte_add(first - start);
        // SAFETY: advice about whole pages of the table's own memory, which changes nothing that a program can see.
        let _ = unsafe { rustix::mm::madvise(at, end - first, Advice::LinuxHugepage) };
    }
}
