//! A VMM's file in memory, mapped here: a region of its guest's memory, or the log of pages that
//! were written.
//!
//! A file is taken only if it is in memory and as long as what is to be mapped of it. One that is
//! cut short *after* that makes its pages fault: see `fault_guard`.
//!
//! A page of such a file that nobody has used yet is made by the kernel for who touches it first,
//! and charged to that one. So a VMM that shares much and uses little has the daemon pay for its
//! guest's memory; and it can give back pages at any time, which a look at the file would not tell
//! of. With [`MissingPages::Refused`] the kernel is asked to fault instead, by userfaultfd(2): no
//! page is ever made for us, whoever touches it, an instruction or a system call.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::FileType;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use sys::userfault::{PAGE, Userfault};

use crate::fault_guard::Guard;

/// What becomes of a page of the file that is touched here first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MissingPages {
    /// The kernel makes it, and charges it to this process.
    #[default]
    Made,
    /// It counts as one that was taken back: whose memory it is loses its port.
    Refused,
}

/// Why a file was not mapped; to be read behind the name of what it was to be.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The descriptor is not of a file in memory.
    #[error("is not in a memfd or a file on tmpfs or hugetlbfs")]
    Kind,
    /// The file ends before what is to be mapped of it.
    #[error("ends at {end:#x} of a file of {size:#x} bytes")]
    Short {
        /// The first offset behind it.
        end: u64,
        /// How long the file is.
        size: u64,
    },
    /// It has no bytes, or does not fit into an address space.
    #[error("has {size:#x} bytes from {offset:#x} on: none, or more than can be mapped")]
    Size {
        /// Where it starts in the file.
        offset: u64,
        /// Its length in bytes.
        size: u64,
    },
    /// What all guests have mapped leaves no room for it.
    #[error(
        "cannot be mapped: its {size:#x} bytes and what all guests have mapped already are more \
         than the daemon has room for ({BYTES_MAX:#x} bytes, {} mappings)",
        mappings_max()
    )]
    Room {
        /// Its length in bytes, widened to pages of the file.
        size: u64,
    },
    /// The kernel does not watch for pages that are missing.
    #[error("cannot be watched for pages that are missing (userfaultfd): {0}")]
    Watch(std::io::Error),
    /// The kernel refused.
    #[error("cannot be mapped: {0}")]
    Map(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for FileError {
    fn from(error: rustix::io::Errno) -> Self {
        FileError::Map(error.into())
    }
}

/// What all files that are mapped here may take of the address space, of which a process has 128
/// TiB, and of the areas that the kernel lets it have: an empty file of any length costs a VMM
/// nothing, and this process its end. Without room to map, memory is out.
const BYTES_MAX: u64 = 96 << 40;

/// Half of what the kernel lets a process have (vm.max_map_count). It is read once, which a process
/// that may open nothing does before.
pub(crate) fn mappings_max() -> u64 {
    static MOST: OnceLock<u64> = OnceLock::new();
    *MOST.get_or_init(|| {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let most = most.ok().and_then(|most| most.trim().parse().ok());
        most.unwrap_or(65_530u64) / 2
    })
}

/// Half of either is taken. What is left is for guests as there are many.
pub(crate) fn room_is_short() -> bool {
    let [bytes, mappings] = [&BYTES, &MAPPINGS].map(|all| all.load(Ordering::Relaxed));
    bytes > BYTES_MAX / 2 || mappings > mappings_max() / 2
}

static BYTES: AtomicU64 = AtomicU64::new(0);
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

/// A mapping's part of what all may take, until it is dropped.
#[derive(Debug)]
struct Room {
    bytes: u64,
}

impl Room {
    fn take(bytes: u64) -> Option<Room> {
        take(&MAPPINGS, 1, mappings_max())?;
        // Given back if there are not as many bytes.
        let mut room = Room { bytes: 0 };
        take(&BYTES, bytes, BYTES_MAX)?;
        room.bytes = bytes;
        Some(room)
    }
}

fn take(all: &AtomicU64, some: u64, most: u64) -> Option<()> {
    let taken = |all: u64| all.checked_add(some).filter(|all| *all <= most);
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    all.fetch_update(set, fetch, taken).ok().map(drop)
}

impl Drop for Room {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What was mapped, to be unmapped: the part of the file, widened to its page size.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: *mut u8,
    len: usize,
    /// From `addr` to what was asked for.
    skip: usize,
    /// Has pages that are missing not made, until it is closed.
    watch: Option<Arc<Userfault>>,
    /// Taken out and dropped before the memory is unmapped.
    guard: Option<Guard>,
    /// Given back once it is.
    _room: Room,
}

impl Mapping {
    /// Maps `size` bytes of a file from `offset` on, for reads and writes.
    pub fn new(
        fd: OwnedFd,
        offset: u64,
        size: u64,
        missing: MissingPages,
    ) -> Result<Mapping, FileError> {
        let watch = match missing {
            MissingPages::Made => None,
            MissingPages::Refused => Some(Userfault::refusing().map_err(FileError::Watch)?),
        };
        Mapping::watched(fd, offset, size, watch.map(Arc::new))
    }

    /// As [`new`](Self::new); `watch` says what becomes of who touches a page that is missing.
    pub fn watched(
        fd: OwnedFd,
        offset: u64,
        size: u64,
        watch: Option<Arc<Userfault>>,
    ) -> Result<Mapping, FileError> {
        let impossible = FileError::Size { offset, size };
        let Some(end) = offset.checked_add(size).filter(|_| size > 0) else {
            return Err(impossible);
        };
        let file = File::from(fd);
        let stat = rustix::fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_in_memory(file.as_fd()) {
            return Err(FileError::Kind);
        }
        if end > stat.st_size as u64 {
            return Err(FileError::Short {
                end,
                size: stat.st_size as u64,
            });
        }
        // A hugetlbfs mapping starts, ends and is unmapped at huge-page boundaries; st_blksize is
        // that page's size.
        let page = (stat.st_blksize as u64)
            .max(4096)
            .next_power_of_two()
            .min(1 << 30);
        let from = offset & !(page - 1);
        let len = (end - from)
            .checked_next_multiple_of(page)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|&len| len <= isize::MAX as usize)
            .ok_or(impossible)?;
        let size = len as u64;
        let room = Room::take(size).ok_or(FileError::Room { size })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let addr = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &file,
                from,
            )
        }?
        .cast::<u8>();
        // SAFETY: just mapped, as a whole, and only what its VMM shares is in it.
        let guard = unsafe { Guard::new(addr, len) };
        // SAFETY: advice about our own new mapping; a core dump of the switch must not hold a
        // guest's memory.
        let _ = unsafe { rustix::mm::madvise(addr.cast(), len, Advice::LinuxDontDump) };
        let mapping = Mapping {
            addr,
            len,
            skip: (offset - from) as usize,
            watch,
            guard: Some(guard),
            _room: room,
        };
        if let Some(watch) = &mapping.watch {
            // SAFETY: just mapped, as a whole; what comes of a touch is in the caller's hands.
            unsafe { watch.register(addr, len) }.map_err(FileError::Watch)?;
        }
        Ok(mapping)
    }

    /// Pages that are missing are not made.
    pub fn refuses_missing(&self) -> bool {
        self.watch.is_some()
    }

    /// The first byte that was asked for: valid for reads and writes of as many as were, while this
    /// lives.
    pub fn host(&self) -> *mut u8 {
        self.addr.wrapping_add(self.skip)
    }

    /// A page of it by number, counted from the one that [`host`](Self::host) is in.
    pub fn page(&self, number: u64) -> Option<*mut u8> {
        let first = self.addr.wrapping_add(self.skip / PAGE * PAGE);
        let at = usize::try_from(number).ok()?.checked_mul(PAGE)?;
        (at < self.len - self.skip / PAGE * PAGE).then(|| first.wrapping_add(at))
    }

    /// True when the file was cut short while it was mapped, and what was in it is gone.
    pub fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: `addr` and `len` are those of the mmap in `new`, done once; everybody who holds
        // pointers into it holds what owns this mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.addr.cast(), self.len) };
        debug_assert!(
            unmapped.is_ok(),
            "munmap({:p}, {:#x}): {unmapped:?}",
            self.addr,
            self.len
        );
    }
}

/// A page of a file on a disk or behind a network or FUSE comes when its server pleases, and until
/// then the worker, and every guest on it, would stand still: only memory is taken.
fn is_in_memory(file: impl AsFd) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [TMPFS, HUGETLBFS, RAMFS].contains(&fs.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_mapped_than_there_is_room_for() {
        let all = AtomicU64::new(5);
        assert_eq!(take(&all, 3, 8), Some(()));
        assert_eq!((take(&all, 1, 8), take(&all, u64::MAX, 8)), (None, None));
        assert_eq!(all.into_inner(), 8);

        assert!(Room::take(BYTES_MAX + 1).is_none());
        // Other tests of this process have little mapped.
        let room = Room::take(1 << 40).unwrap();
        assert!(BYTES.load(Ordering::Relaxed) >= 1 << 40 && !room_is_short());
        drop(room);
    }
}
