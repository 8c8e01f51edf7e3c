//! The guest's own view of its memory, for those who play a guest: tests, benchmarks, the ring
//! driver.
//!
//! Safe: every access is checked against the view, is a plain copy or an atomic, and the worst that
//! an access at the wrong moment does is what a real guest would do. An access outside the view
//! panics: whoever plays the guest has a bug then.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use crate::copy;
use crate::guest_memory::GuestMemory;

/// A range of guest memory in one region; offsets are from its beginning.
#[derive(Clone)]
pub struct GuestView {
    /// Valid for reads and writes of `len` bytes while `_memory` lives.
    host: *mut u8,
    len: usize,
    _memory: Arc<GuestMemory>,
}

// SAFETY: the pointer leads into a mapping that belongs to no thread, and is only copied through.
unsafe impl Send for GuestView {}
// SAFETY: as above; concurrent copies give mixtures of bytes, which is what guest memory is like.
unsafe impl Sync for GuestView {}

impl GuestView {
    /// A view of `len` bytes at a guest address; `None` when they do not lie in one region.
    pub fn new(memory: &Arc<GuestMemory>, addr: u64, len: usize) -> Option<Self> {
        let (host, left) = memory.region(addr)?.guest(addr)?;
        (len as u64 <= left).then(|| GuestView {
            host,
            len,
            _memory: Arc::clone(memory),
        })
    }

    /// How many bytes it shows.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a view of nothing is of no use"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        let from = self.at(at, out.len());
        // SAFETY: `at` has checked the range, `out` is as long.
        unsafe { copy::bytes(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes out into a vector.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(at, &mut out);
        out
    }

    /// Copies bytes in.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: `at` has checked the range, `bytes` is as long.
        unsafe { copy::bytes(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Sets `len` bytes to `value`.
    pub fn fill(&self, at: usize, len: usize, value: u8) {
        let to = self.at(at, len);
        // SAFETY: `at` has checked the range.
        unsafe { std::ptr::write_bytes(to, value, len) }
    }

    /// A 16-bit word of a ring, which both sides use as an atomic.
    pub fn word(&self, at: usize) -> &AtomicU16 {
        let word = self.at(at, 2).cast::<u16>();
        assert!(word.is_aligned(), "offset {at:#x} is not aligned to 2");
        // SAFETY: in range and aligned by the two lines above; `self` keeps the mapping.
        unsafe { AtomicU16::from_ptr(word) }
    }

    #[inline]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at:#x} of a view of {:#x}",
            self.len
        );
        self.host.wrapping_add(at)
    }
}
