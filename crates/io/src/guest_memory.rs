//! The memory of one guest, mapped into the switch: regions, translation of addresses, unmapping.
//!
//! A session maps what the VMM hands over (SET_MEM_TABLE, ADD_MEM_REG) into one [`GuestMemory`];
//! its rings and the batches that hold its frames share it through an `Arc`, and the mappings go
//! with the last of them. Two address spaces lead into a region: the guest's physical addresses
//! (descriptors), and the VMM's own virtual ones (the rings, as vhost-user gives them).
//!
//! What keeps an access inside the guest's memory is here and nowhere else: [`GuestMemory::new`]
//! refuses regions that wrap, overlap or are longer than their file, and [`GuestMemory::translate`]
//! gives pointers with the number of bytes that follow in the same region; and in `shared_file`,
//! which maps.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::post_copy::Arrivals;
pub use crate::shared_file::{FileError, MissingPages};
use crate::shared_file::{Mapping, room_is_short};

/// What regions begin at and are multiples of.
const PAGE: u64 = 4096;

/// The most regions a guest may have: what QEMU announces at most as memory slots.
pub const MAX_REGIONS: usize = 512;

/// More than a guest of QEMU's has, if nothing was added to it while it ran.
const ORDINARY: usize = 8;

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
    /// All of it but the file: guest address, size, the VMM's address, and where it starts.
    pub fn numbers(&self) -> [u64; 4] {
        [self.guest_addr, self.size, self.user_addr, self.mmap_offset]
    }

    /// Another description of this region, with a file descriptor of its own.
    pub fn try_clone(&self) -> Result<RegionSpec, MemoryError> {
        let fd = self.fd.try_clone().map_err(|error| MemoryError::File {
            guest_addr: self.guest_addr,
            error: error.into(),
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
    /// Together they are longer than this host's memory by far.
    #[error(
        "the memory table has {size:#x} bytes; {most:#x} are possible, of as much memory as this \
         host has"
    )]
    Total {
        /// How long all regions are.
        size: u64,
        /// How long they may be.
        most: u64,
    },
    /// Guests together have mapped much, and this one is none as there are many.
    #[error(
        "the memory table has {regions} regions and {size:#x} bytes; since all guests together \
         have mapped much, {ORDINARY} regions and {most:#x} bytes are possible"
    )]
    Room {
        /// How many it has.
        regions: usize,
        /// How long all of them are.
        size: u64,
        /// How long they may be.
        most: u64,
    },
    /// A field of a region is zero, not at the start of a page, or its end does not fit in 64 bits.
    #[error(
        "memory region at guest address {guest_addr:#x}: {what} {value:#x} is empty, wraps around, \
         or is not whole pages of {PAGE}"
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
    /// Its file cannot be mapped.
    #[error("memory region at guest address {guest_addr:#x} {error}")]
    File {
        /// Where the region was to be.
        guest_addr: u64,
        /// Why.
        error: FileError,
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

/// All regions of a guest.
pub struct GuestMemory {
    /// By guest address, ascending.
    regions: Vec<Region>,
    mappings: Vec<Mapping>,
    /// What has come of each region, while not all has. None: all is there.
    arrivals: Vec<Arc<Arrivals>>,
}

impl std::fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.regions).finish()
    }
}

// SAFETY: the pointers lead into shared mappings that belong to no thread and live until Drop;
// whoever copies through them treats the bytes as changing under its hands anyway (see `copy`).
unsafe impl Send for GuestMemory {}
// SAFETY: as above; the struct itself is never changed after `new`.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps all regions, or none.
    pub fn new(specs: Vec<RegionSpec>) -> Result<Self, MemoryError> {
        GuestMemory::with(specs, MissingPages::Made)
    }

    /// Maps all regions, or none; `missing` says what becomes of pages that are not there.
    pub fn with(specs: Vec<RegionSpec>, missing: MissingPages) -> Result<Self, MemoryError> {
        if specs.is_empty() || specs.len() > MAX_REGIONS {
            return Err(MemoryError::Count(specs.len()));
        }
        for spec in &specs {
            check_range(spec)?;
        }
        check_total(&specs, host_bytes(), room_is_short())?;
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
            let (mapping, region) = map(spec, missing)?;
            mappings.push(mapping);
            regions.push(region);
        }
        regions.sort_by_key(|region| region.guest_addr);
        Ok(GuestMemory {
            regions,
            mappings,
            arrivals: Vec::new(),
        })
    }

    /// This memory, mapped with [`MissingPages::Refused`], of a guest whose pages are still coming
    /// ([`crate::post_copy`]): what has come of each region, by its guest address.
    pub(crate) fn arriving(mut self, mut arrivals: Vec<(u64, Arc<Arrivals>)>) -> GuestMemory {
        debug_assert_eq!(arrivals.len(), self.regions.len());
        arrivals.sort_by_key(|(guest_addr, _)| *guest_addr);
        let arrivals = arrivals.into_iter().map(|(_, arrivals)| arrivals);
        self.arrivals = arrivals.collect();
        self
    }

    /// Its pages are still coming: nothing of it may be touched before [`has`](Self::has) has said
    /// that it is there.
    #[inline]
    pub(crate) fn is_arriving(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// `len` bytes from `host` on, which are in one of the regions, are there. Those pages of them
    /// that are not are asked for.
    pub(crate) fn has(&self, host: *mut u8, len: u64) -> bool {
        if !self.is_arriving() {
            return true;
        }
        self.locate(host).is_some_and(|(at, offset)| {
            let len = len.min(self.regions[at].size - offset);
            // SAFETY: `len` bytes of that region follow `host`, and its mapping is ours.
            unsafe { self.arrivals[at].has(offset, len, host) }
        })
    }

    /// Which region `host` is in here, by its place among all, and how far from its beginning.
    fn locate(&self, host: *const u8) -> Option<(usize, u64)> {
        self.regions.iter().enumerate().find_map(|(at, region)| {
            let offset = (host.addr() as u64).wrapping_sub(region.host.addr() as u64);
            (offset < region.size).then_some((at, offset))
        })
    }

    /// True when a file was cut short while it was mapped, and its memory is gone. Looks at every
    /// mapping: to be asked when [`lost_count`](crate::fault_guard::lost_count) has changed.
    pub(crate) fn is_lost(&self) -> bool {
        self.mappings.iter().any(Mapping::is_lost)
    }

    /// Pages that are missing are not made.
    pub(crate) fn refuses_missing(&self) -> bool {
        self.mappings.iter().any(Mapping::refuses_missing)
    }

    /// The region that a guest address is in.
    pub(crate) fn region(&self, addr: u64) -> Option<&Region> {
        let behind = self
            .regions
            .partition_point(|region| region.guest_addr <= addr);
        let region = &self.regions[behind.checked_sub(1)?];
        (addr - region.guest_addr < region.size).then_some(region)
    }

    /// The first guest address behind all regions.
    pub(crate) fn end(&self) -> u64 {
        // Does not wrap: `check_range`.
        self.regions
            .last()
            .map_or(0, |region| region.guest_addr + region.size)
    }

    /// The guest address of what is at `host` here.
    pub(crate) fn guest_addr(&self, host: *const u8) -> Option<u64> {
        let (at, offset) = self.locate(host)?;
        Some(self.regions[at].guest_addr + offset)
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
    // A guest's memory is pages, for whom it is mapped by a processor. Regions of a few bytes would
    // be buffers of as many pieces as they have bytes.
    for (what, value) in [("guest address", spec.guest_addr), ("size", spec.size)] {
        if !value.is_multiple_of(PAGE) {
            return bad(what, value);
        }
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

/// The host's memory, or 256 GiB where that is less.
fn host_bytes() -> u64 {
    // SAFETY: it asks for a number.
    let ask = |what| u64::try_from(unsafe { libc::sysconf(what) }).unwrap_or(0);
    let host = ask(libc::_SC_PHYS_PAGES).saturating_mul(ask(libc::_SC_PAGESIZE));
    host.max(256 << 30)
}

/// Files of any length cost a VMM nothing, and all guests share the daemon's address space: a guest
/// has no more than four times the host's memory, of which it may be promised more than there is,
/// and where there is little room left no more than what most guests are content with.
fn check_total(specs: &[RegionSpec], host: u64, is_short: bool) -> Result<(), MemoryError> {
    let (sizes, regions) = (specs.iter().map(|spec| spec.size), specs.len());
    let size = sizes.fold(0, u64::saturating_add);
    let most = host.saturating_mul(4);
    if size > most {
        return Err(MemoryError::Total { size, most });
    }
    if is_short && (size > host || regions > ORDINARY) {
        let most = host;
        return Err(MemoryError::Room {
            regions,
            size,
            most,
        });
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

fn map(spec: RegionSpec, missing: MissingPages) -> Result<(Mapping, Region), MemoryError> {
    let RegionSpec {
        guest_addr,
        size,
        user_addr,
        mmap_offset,
        fd,
    } = spec;
    let mapping = Mapping::new(fd, mmap_offset, size, missing)
        .map_err(|error| MemoryError::File { guest_addr, error })?;
    let region = Region {
        guest_addr,
        user_addr,
        size,
        host: mapping.host(),
    };
    Ok((mapping, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    /// A region at the beginning of a file of its length, which takes no memory.
    fn region(guest_addr: u64, size: u64) -> RegionSpec {
        let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        RegionSpec {
            guest_addr,
            size,
            user_addr: guest_addr,
            mmap_offset: 0,
            fd,
        }
    }

    fn refused(specs: Vec<RegionSpec>) -> String {
        GuestMemory::new(specs).unwrap_err().to_string()
    }

    #[test]
    fn regions_are_whole_pages() {
        GuestMemory::new(vec![region(0, 0x1000), region(0x1000, 0x3000)]).unwrap();
        for (guest_addr, size, what) in [
            (0x1000, 1, "size 0x1 "),
            (0x1000, 0x1fff, "size 0x1fff "),
            (0x1fff, 0x1000, "guest address 0x1fff "),
        ] {
            let why = refused(vec![region(0, 0x1000), region(guest_addr, size)]);
            assert!(why.contains(what), "{why}");
        }
    }

    /// What costs a VMM nothing is not mapped without end.
    #[test]
    fn a_guest_has_not_many_times_the_host_s_memory() {
        let most = 4 * host_bytes();
        assert!(most >= 1 << 40);
        let half = most / 2 / PAGE * PAGE;
        drop(GuestMemory::new(vec![region(0, half), region(half, half)]).unwrap());
        let why = refused(vec![region(0, half), region(half, half + 2 * PAGE)]);
        assert!(why.contains(&format!("{most:#x} are possible")), "{why}");
        // All guests together have mapped much.
        let host = 1 << 30;
        let check = |specs: &[RegionSpec]| check_total(specs, host, true).map_err(drop);
        let many = |count| {
            (0..count)
                .map(|at| region(at * PAGE, PAGE))
                .collect::<Vec<_>>()
        };
        assert_eq!((check(&many(8)), check(&many(9))), (Ok(()), Err(())));
        assert_eq!(check(&[region(0, host)]), Ok(()));
        assert_eq!(check(&[region(0, host + PAGE)]), Err(()));
        // Nor do the sizes' sum wrap.
        let specs = (0..4)
            .map(|at| region(at << 62, 0x1000))
            .collect::<Vec<_>>();
        let wide = |spec: RegionSpec| RegionSpec {
            size: 1 << 62,
            ..spec
        };
        let specs = specs.into_iter().map(wide).collect::<Vec<_>>();
        assert!(check_total(&specs, u64::MAX / 4, false).is_err());
    }
}
