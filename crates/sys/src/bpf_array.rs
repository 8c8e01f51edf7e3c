//! A memory-mapped BPF array (BPF_F_MMAPABLE) as 32-bit words: tables that a program reads and we
//! write without a system call. Used by the router's tries, paths and hops, and for what programs
//! find without a search; as numbers of 64 bits for the states of flows that a program forwards.
//!
//! A word changes as a whole, for the program too; what is longer than a word is written before a
//! word points to it, or has a word that says whether it is there ([`put`]).

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The mapping; gone when dropped, while the map lives on with its program.
#[derive(Debug)]
pub struct BpfArray {
    base: NonNull<AtomicU32>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and all access to it is atomic.
unsafe impl Send for BpfArray {}
// SAFETY: as above.
unsafe impl Sync for BpfArray {}

impl BpfArray {
    /// Maps the first `words` words of a BPF array, as its values lie one behind the other.
    ///
    /// # Errors
    /// EINVAL: the descriptor is no BPF map, the map is shorter, or was made without
    /// BPF_F_MMAPABLE.
    pub fn new(map: BorrowedFd<'_>, words: usize) -> Result<Self, Error> {
        if !is_bpf_map(map) || words == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice: no memory of ours changes.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                words * size_of::<AtomicU32>(),
                prot,
                flags,
                map,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(BpfArray { base, words })
    }

    /// All words of the map.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the kernel mapped that many words (it refuses what is longer than the map) at a
        // page's start, so they are aligned; a BPF map never shrinks (`is_bpf_map`), so they stay;
        // zeroed memory is a valid AtomicU32; and others who write, programs and processes, are
        // what atomics are for. They live until drop, which `&self` outlasts.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// All words of the map, two by two, as numbers of 64 bits, each of which changes as a whole;
    /// an odd word at the end is in none.
    pub fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: as in `words`: the mapping begins at a page's start, so that it is aligned for
        // these too, and half as many of twice the size end where the words do or before.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.words / 2) }
    }
}

impl Drop for BpfArray {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours alone, and no reference into it outlives `self`.
        let done = unsafe {
            munmap(
                self.base.as_ptr().cast(),
                self.words * size_of::<AtomicU32>(),
            )
        };
        debug_assert!(done.is_ok(), "a mapping of ours can be unmapped: {done:?}");
    }
}

/// Writes an entry of several words. The word at `mark` says that the entry is in use, unless it is
/// 0: it is written last when the entry comes, and first when it goes.
pub fn put(place: &[AtomicU32], words: &[u32], mark: usize) {
    if words[mark] == 0 {
        place[mark].store(0, Ordering::Release);
    }
    for (at, (word, new)) in place.iter().zip(words).enumerate() {
        if at != mark {
            word.store(*new, Ordering::Release);
        }
    }
    place[mark].store(words[mark], Ordering::Release);
}

/// A file in its place could be cut short, and reading beyond its end would end the process.
fn is_bpf_map(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|target| target.as_os_str() == "anon_inode:bpf-map")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_a_bpf_map_is_mapped() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("a page");
        let refused = BpfArray::new(file.as_fd(), 16).expect_err("a file is no BPF map");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}
