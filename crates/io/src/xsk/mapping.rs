//! A mapping of our own, unmapped with its last owner: the UMEM's memory, and the rings that the
//! kernel shares with us.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

const HUGE_PAGE: usize = 2 << 20;

/// `start` is valid for reads and writes of `len` bytes while this lives.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    /// It lies in pages of 2 MiB that were reserved for such (hugetlb).
    huge: bool,
}

// SAFETY: a mapping belongs to no thread; who may touch which of its bytes is its users' to say
// (`Umem`, `Ring`).
unsafe impl Send for Mapping {}
// SAFETY: as above; the struct itself never changes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone.
    pub fn anonymous(len: usize) -> Result<Mapping, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        Ok(Mapping::kept_private(start, len))
    }

    /// Zeroed memory that another process can [map](Self::of_memory) by its descriptor, in reserved
    /// huge pages where there are some, else in pages that the kernel may join to huge ones.
    pub fn shared(len: usize) -> Result<(Mapping, OwnedFd), Errno> {
        let new = |flags: MemfdFlags| {
            let memory = memfd_create("butterfly-umem", MemfdFlags::CLOEXEC | flags)?;
            ftruncate(&memory, len as u64)?;
            Ok((Self::of_memory(memory.as_fd(), len)?, memory))
        };
        if len.is_multiple_of(HUGE_PAGE)
            && let Ok((mut mapping, memory)) = new(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
        {
            // In place: what a new value is made of is unmapped behind it, copied or not.
            mapping.huge = true;
            return Ok((mapping, memory));
        }
        let (mapping, memory) = new(MemfdFlags::empty())?;
        // SAFETY: advice about our own new mapping. Where there are no huge pages nothing changes.
        let _ = unsafe { rustix::mm::madvise(mapping.start.cast(), len, Advice::LinuxHugepage) };
        Ok((mapping, memory))
    }

    /// `len` bytes of memory that was made to be [shared](Self::shared): it has to be so long.
    pub fn of_memory(memory: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        if fstat(memory)?.st_size as u64 != len as u64 {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: as above.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, memory, 0) }?;
        Ok(Mapping::kept_private(start, len))
    }

    /// `len` bytes of a socket's ring; `offset` says which ring.
    pub fn of_socket(socket: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above; what is mapped is shared with the kernel, and read and written as such
        // (`Ring`).
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, socket, offset)
        }?;
        Ok(Mapping {
            start: start.cast(),
            len,
            huge: false,
        })
    }

    /// Other people's packets are for no core dump. A child gets no copy: pages that are pinned for
    /// a device must stay ours.
    fn kept_private(start: *mut c_void, len: usize) -> Mapping {
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: advice about our own new mapping, as a whole.
            let _ = unsafe { rustix::mm::madvise(start, len, advice) };
        }
        Mapping {
            start: start.cast(),
            len,
            huge: false,
        }
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, with this length; whoever points into it holds the mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
        debug_assert!(
            unmapped.is_ok(),
            "munmap({:p}, {:#x}): {unmapped:?}",
            self.start,
            self.len
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of reserved huge pages, put back when dropped.
    struct Reserved(String);

    const SETTING: &str = "/proc/sys/vm/nr_hugepages";

    impl Drop for Reserved {
        fn drop(&mut self) {
            let _ = std::fs::write(SETTING, &self.0);
        }
    }

    #[test]
    fn memory_in_reserved_huge_pages_stays_mapped() {
        let before = std::fs::read_to_string(SETTING).unwrap_or_default();
        let count: u64 = before.trim().parse().unwrap_or(0);
        let _reserved = Reserved(before);
        if std::fs::write(SETTING, (count + 2).to_string()).is_err() {
            eprintln!("skipped: no huge pages can be reserved here");
            return;
        }
        let (mapping, _memory) = Mapping::shared(HUGE_PAGE).unwrap();
        if !mapping.is_huge() {
            eprintln!("skipped: none of the reserved huge pages is free");
            return;
        }
        // Nobody else is to be given the same addresses.
        let (other, _others) = Mapping::shared(HUGE_PAGE).unwrap();
        assert_ne!(mapping.start(), other.start());
        // SAFETY: the mapping is ours alone and of that length.
        unsafe { mapping.start().write_bytes(0xa5, mapping.len()) };
    }
}
