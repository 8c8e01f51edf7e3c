//! Asks the processor for what will be read soon, for code that is all safe.

/// Begins to bring the cache line of `what` nearer. Does not wait and changes nothing that a
/// program can see.
#[inline(always)]
pub fn soon<T>(what: &T) {
    crate::copy::prefetch(std::ptr::from_ref(what).cast());
}

/// Has the processor load what will be read after some dozens of other cache lines.
#[inline(always)]
pub fn later<T>(what: &T) {
    crate::copy::prefetch_for_later(std::ptr::from_ref(what).cast());
}
