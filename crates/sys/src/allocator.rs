//! What the memory allocator keeps.

/// Gives memory that was freed back to the system, of all threads' arenas: for after something
/// large. Takes the arenas' locks, milliseconds where much was freed; a worker that does not
/// allocate does not wait for it.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no precondition and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
