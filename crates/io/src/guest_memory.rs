//! The memory of one guest, mapped into the switch: regions, translation of addresses, unmapping.
//!
//! A session maps what the VMM hands over (SET_MEM_TABLE, ADD_MEM_REG) into one [`GuestMemory`];
//! its rings and the batches that hold its frames share it through an `Arc`, and the mappings go
//! with the last of them. Two address spaces lead into a region: the guest's physical addresses
//! (descriptors), and the VMM's own virtual ones (the rings, as vhost-user gives them).
//!
//! What keeps an access inside the guest's memory is here and nowhere else: [`GuestMemory::new`]
//! refuses regions that wrap, overlap or are longer than their file, and [`GuestMemory::translate`]
//! gives pointers with the number of bytes that follow in the same region. A file that is cut short
//! *after* it was mapped makes its pages fault: see `fault_guard`.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fault_guard::Guard;

/// The most regions a guest may have: what QEMU announces at most as memory slots.
pub const MAX_REGIONS: usize = 512;

/// One region as the VMM describes it; the file descriptor is closed once it is mapped.
#[derive(Debug)]
pub struct RegionSpec {
    /// Where the guest sees it (guest-physical address).
    pub guest_addr: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Where the VMM sees it (its virtual address).
    pub user_addr: u64,
    /// Where it starts in the file, in bytes.
    pub mmap_offset: u64,
    /// A memfd, or a file on tmpfs or hugetlbfs.
    pub fd: OwnedFd,
}

impl RegionSpec {
    /// Another description of this region, with a file descriptor of its own.
    pub fn try_clone(&self) -> Result<RegionSpec, MemoryError> {
        let fd = self.fd.try_clone().map_err(|error| MemoryError::Map {
            guest_addr: self.guest_addr,
            error,
        })?;
        Ok(RegionSpec { fd, ..*self })
    }
}

/// Why memory was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The count is not 1 to [`MAX_REGIONS`].
    #[error("memory table has {0} regions; 1 to {MAX_REGIONS} are possible")]
    Count(usize),
    /// A field of a region is zero or its end does not fit in 64 bits.
    #[error(
        "memory region at guest address {guest_addr:#x}: {what} {value:#x} is empty or wraps around"
    )]
    Range {
        /// Where the region was to be.
        guest_addr: u64,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Two regions claim the same address.
    #[error("memory regions at {what} {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Which address space.
        what: &'static str,
        /// Start of the lower region.
        first: u64,
        /// Start of the upper region.
        second: u64,
    },
    /// The descriptor is not of a file in memory.
    #[error(
        "memory region at guest address {guest_addr:#x}: its descriptor is not a memfd or a file on tmpfs or hugetlbfs"
    )]
    File {
        /// Where the region was to be.
        guest_addr: u64,
    },
    /// The file ends before the region.
    #[error(
        "memory region at guest address {guest_addr:#x} ends at {end:#x} of a file of {size:#x} bytes"
    )]
    ShortFile {
        /// Where the region was to be.
        guest_addr: u64,
        /// The first offset behind the region.
        end: u64,
        /// How long the file is.
        size: u64,
    },
    /// The kernel refused.
    #[error("memory region at guest address {guest_addr:#x} cannot be mapped: {error}")]
    Map {
        /// Where the region was to be.
        guest_addr: u64,
        /// What it said.
        error: std::io::Error,
    },
}

/// A mapped region. `host` is valid for reads and writes of `size` bytes while the mapping lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub guest_addr: u64,
    pub user_addr: u64,
    pub size: u64,
    pub host: *mut u8,
}

impl Region {
    /// A region that holds nothing: what a translation cache starts with.
    pub const NONE: Region = Region {
        guest_addr: 0,
        user_addr: 0,
        size: 0,
        host: std::ptr::null_mut(),
    };

    /// The pointer for a guest address, and how many bytes follow it in the region.
    #[inline]
    pub fn guest(&self, addr: u64) -> Option<(*mut u8, u64)> {
        self.at(addr.wrapping_sub(self.guest_addr))
    }

    #[inline]
    fn at(&self, offset: u64) -> Option<(*mut u8, u64)> {
        (offset < self.size).then(|| (self.host.wrapping_add(offset as usize), self.size - offset))
    }
}

/// What was mapped, to be unmapped: the region, widened to the file's page size.
#[derive(Debug)]
struct Mapping {
    addr: *mut u8,
    len: usize,
    /// Taken out and dropped before the memory is unmapped.
    guard: Option<Guard>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: `addr` and `len` are those of the mmap in `map`, done once; everybody who holds
        // pointers into it holds the `Arc<GuestMemory>` that owns this mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.addr.cast(), self.len) };
        debug_assert!(
            unmapped.is_ok(),
            "munmap({:p}, {:#x}): {unmapped:?}",
            self.addr,
            self.len
        );
    }
}

/// All regions of a guest.
#[derive(Debug)]
pub struct GuestMemory {
    /// By guest address, ascending.
    regions: Vec<Region>,
    mappings: Vec<Mapping>,
}

// SAFETY: the pointers lead into shared mappings that belong to no thread and live until Drop;
// whoever copies through them treats the bytes as changing under its hands anyway (see `copy`).
unsafe impl Send for GuestMemory {}
// SAFETY: as above; the struct itself is never changed after `new`.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps all regions, or none.
    pub fn new(specs: Vec<RegionSpec>) -> Result<Self, MemoryError> {
        if specs.is_empty() || specs.len() > MAX_REGIONS {
            return Err(MemoryError::Count(specs.len()));
        }
        for spec in &specs {
            check_range(spec)?;
        }
        check_overlap(
            "guest address",
            specs.iter().map(|s| (s.guest_addr, s.size)).collect(),
        )?;
        check_overlap(
            "user address",
            specs.iter().map(|s| (s.user_addr, s.size)).collect(),
        )?;
        let mut regions = Vec::with_capacity(specs.len());
        let mut mappings = Vec::with_capacity(specs.len());
        for spec in specs {
            let (mapping, region) = map(spec)?;
            mappings.push(mapping);
            regions.push(region);
        }
        regions.sort_by_key(|region| region.guest_addr);
        Ok(GuestMemory { regions, mappings })
    }

    /// True when a file was cut short while it was mapped, and its memory is gone. Looks at every
    /// mapping: to be asked when [`lost_count`](crate::fault_guard::lost_count) has changed.
    pub(crate) fn is_lost(&self) -> bool {
        self.mappings
            .iter()
            .any(|mapping| mapping.guard.as_ref().is_some_and(Guard::is_lost))
    }

    /// The region that a guest address is in.
    pub(crate) fn region(&self, addr: u64) -> Option<&Region> {
        let behind = self
            .regions
            .partition_point(|region| region.guest_addr <= addr);
        let region = &self.regions[behind.checked_sub(1)?];
        (addr - region.guest_addr < region.size).then_some(region)
    }

    /// A pointer for the VMM's address of a ring, of which `len` bytes have to lie in one region.
    pub(crate) fn user(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let inside = |region: &Region| region.at(addr.wrapping_sub(region.user_addr));
        let (host, left) = self.regions.iter().find_map(inside)?;
        (len <= left).then_some(host)
    }
}

fn check_range(spec: &RegionSpec) -> Result<(), MemoryError> {
    let bad = |what, value| {
        Err(MemoryError::Range {
            guest_addr: spec.guest_addr,
            what,
            value,
        })
    };
    if spec.size == 0 || usize::try_from(spec.size).is_err() {
        return bad("size", spec.size);
    }
    for (what, start) in [
        ("guest address", spec.guest_addr),
        ("user address", spec.user_addr),
        ("file offset", spec.mmap_offset),
    ] {
        if start.checked_add(spec.size).is_none() {
            return bad(what, start);
        }
    }
    Ok(())
}

fn check_overlap(what: &'static str, mut ranges: Vec<(u64, u64)>) -> Result<(), MemoryError> {
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let [(first, size), (second, _)] = [pair[0], pair[1]];
        // Cannot overflow: `check_range` came first.
        if first + size > second {
            return Err(MemoryError::Overlap {
                what,
                first,
                second,
            });
        }
    }
    Ok(())
}

fn map(spec: RegionSpec) -> Result<(Mapping, Region), MemoryError> {
    let guest_addr = spec.guest_addr;
    let failed = |error: rustix::io::Errno| MemoryError::Map {
        guest_addr,
        error: error.into(),
    };
    let file = File::from(spec.fd);
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_in_memory(file.as_fd())
    {
        return Err(MemoryError::File { guest_addr });
    }
    let end = spec.mmap_offset + spec.size;
    if end > stat.st_size as u64 {
        return Err(MemoryError::ShortFile {
            guest_addr,
            end,
            size: stat.st_size as u64,
        });
    }
    // A hugetlbfs mapping starts, ends and is unmapped at huge-page boundaries; st_blksize is that
    // page's size.
    let page = (stat.st_blksize as u64)
        .max(4096)
        .next_power_of_two()
        .min(1 << 30);
    let from = spec.mmap_offset & !(page - 1);
    let len = (end - from)
        .checked_next_multiple_of(page)
        .and_then(|len| usize::try_from(len).ok())
        .filter(|&len| len <= isize::MAX as usize)
        .ok_or(MemoryError::Range {
            guest_addr,
            what: "size",
            value: spec.size,
        })?;
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
    }
    .map_err(failed)?
    .cast::<u8>();
    // SAFETY: just mapped, as a whole, and of guest memory.
    let guard = unsafe { Guard::new(addr, len) };
    let mapping = Mapping {
        addr,
        len,
        guard: Some(guard),
    };
    // SAFETY: advice about our own new mapping; a core dump of the switch must not hold a guest's
    // memory.
    let _ = unsafe { rustix::mm::madvise(addr.cast(), len, Advice::LinuxDontDump) };
    let host = addr.wrapping_add((spec.mmap_offset - from) as usize);
    let region = Region {
        guest_addr,
        user_addr: spec.user_addr,
        size: spec.size,
        host,
    };
    Ok((mapping, region))
}

/// A page of a file on a disk or behind a network or FUSE comes when its server pleases, and until
/// then the worker, and every guest on it, would stand still: only memory is taken.
fn is_in_memory(file: impl AsFd) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [TMPFS, HUGETLBFS, RAMFS].contains(&fs.f_type))
}
