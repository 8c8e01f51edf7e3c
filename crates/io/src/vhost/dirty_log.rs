//! The log of pages that were written: how a VMM moves a guest to another host while it runs.
//!
//! The VMM copies the guest's memory and then, again and again, what was written meanwhile. What we
//! write it does not see, so it hands over a file (SET_LOG_BASE) with a bit for each page of 4 KiB
//! by guest-physical address, which we set and it clears: bit `page % 8` of byte `page / 8`
//! (vhost-user, "Migration"). What is to be in it, it says with features and flags: what goes into
//! the guest's buffers (VHOST_F_LOG_ALL), what goes into its rings (VHOST_VRING_F_LOG). Here
//! VHOST_F_LOG_ALL stands for both.
//!
//! # Orderings
//!
//! A bit is set after what it stands for was written, with Release; the VMM takes the bit away
//! before it reads the page. So whatever it reads too early is told once more. A bit is set whether
//! or not it is already: between a look and what was written before it there would have to be a
//! fence, which costs as much. When a ring is stopped all bits were set before the answer goes out.
//!
//! # Cost
//!
//! A queue has a [`RingLog`] or none. That is asked once when chains are given back, and once for
//! each batch that is to be delivered: with a log, frames are written the long way (`put`), where
//! it is asked again. The short way knows nothing of it.
//!
//! A log too small for the guest's memory is the fault of the rings that are to be noted in it:
//! they do not run. Beyond that each bit is checked against the log's length when it is set.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::guest_memory::GuestMemory;
use crate::segment::Segment;
use crate::shared_file::{FileError, Mapping, MissingPages};
use crate::vhost::virtqueue::notifier;

/// Bytes of a page, whatever those of the guest or of this machine are.
const PAGE: u64 = 4096;

/// A log as the VMM has handed it over.
#[derive(Debug)]
pub struct DirtyLog {
    /// Valid for atomic access to `len` bytes while `mapping` lives.
    bits: *mut u8,
    len: u64,
    mapping: Mapping,
}

// SAFETY: the pointer leads into a shared mapping that belongs to no thread, and is used for atomic
// access alone.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

/// As long as a log may be: for 128 TiB of guest addresses.
const BYTES_MAX: u64 = (128 << 40) / PAGE / 8;

impl DirtyLog {
    /// Maps a log of `size` bytes that begins at `offset` in the file.
    pub fn new(fd: OwnedFd, size: u64, offset: u64) -> Result<DirtyLog, FileError> {
        DirtyLog::with(fd, size, offset, MissingPages::Made)
    }

    /// As [`new`](Self::new); `missing` says what becomes of its pages that are not there.
    pub fn with(
        fd: OwnedFd,
        size: u64,
        offset: u64,
        missing: MissingPages,
    ) -> Result<DirtyLog, FileError> {
        if size > BYTES_MAX {
            return Err(FileError::Size { offset, size });
        }
        let mapping = Mapping::new(fd, offset, size, missing)?;
        Ok(DirtyLog {
            bits: mapping.host(),
            len: size,
            mapping,
        })
    }

    /// True when the file was cut short while it was in use.
    pub(in crate::vhost) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// The log has a bit for each page of these `len` bytes.
    fn has(&self, addr: u64, len: u64) -> Result<(), LogTooSmall> {
        let end = addr.checked_add(len);
        if end.is_some_and(|end| end.div_ceil(PAGE).div_ceil(8) <= self.len) {
            return Ok(());
        }
        Err(LogTooSmall {
            size: self.len,
            addr: addr.saturating_add(len.saturating_sub(1)),
        })
    }

    /// Notes that `len` bytes from guest address `addr` on were written.
    fn note(&self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        let mut page = addr / PAGE;
        let last = addr.saturating_add(len - 1) / PAGE;
        while page <= last {
            let byte = page / 8;
            // Those of one byte at once.
            let until = last.min(page | 7);
            let mask = (0xff << (page % 8)) as u8 & (0xff >> (7 - until % 8)) as u8;
            if byte >= self.len {
                // Cannot be: `has` came first.
                return;
            }
            // SAFETY: `byte` is inside the log, which is mapped while `self` lives.
            let bits = unsafe { AtomicU8::from_ptr(self.bits.wrapping_add(byte as usize)) };
            // What was written first: see the orderings above.
            bits.fetch_or(mask, Ordering::Release);
            page = until + 1;
        }
    }
}

/// A log has no bit for a page that is to be noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the log of written pages, of {size} bytes, has no bit for the page of {addr:#x}")]
pub struct LogTooSmall {
    /// Bytes of the log.
    pub size: u64,
    /// The last guest address that is to be noted.
    pub addr: u64,
}

/// What is to be noted of a ring, and where.
#[derive(Clone, Debug)]
pub struct LogSetup {
    /// Where.
    pub log: Arc<DirtyLog>,
    /// Raised after something was noted (SET_LOG_FD).
    pub call: Option<Arc<OwnedFd>>,
    /// What goes into the guest's buffers is noted too (VHOST_F_LOG_ALL).
    pub buffers: bool,
    /// Where the VMM has the used ring, or the device's event structure, for the log
    /// (VHOST_VRING_F_LOG): a guest address. Without it the log has it where the memory has it.
    pub used: Option<u64>,
}

/// Notes what one ring's queue writes.
#[derive(Debug)]
pub(in crate::vhost) struct RingLog {
    setup: LogSetup,
    /// The guest address of the used ring, or of the device's event structure.
    used: u64,
    /// That of a packed ring's descriptors.
    descriptors: u64,
}

/// A part of a ring that is written: its place in our memory, and how many bytes it has.
pub(in crate::vhost) type Part = (*const u8, u64);

impl RingLog {
    /// Fails when the log has no bit for something that is to be noted. `descriptors` of a packed
    /// ring only.
    pub fn new(
        setup: LogSetup,
        memory: &GuestMemory,
        used: Part,
        descriptors: Option<Part>,
    ) -> Result<RingLog, LogTooSmall> {
        let log = &setup.log;
        let placed = |(host, len): Part, said: Option<u64>| {
            // The queue has found it in this memory.
            let addr = said.or_else(|| memory.guest_addr(host)).unwrap_or(u64::MAX);
            log.has(addr, len).map(|()| addr)
        };
        if setup.buffers {
            log.has(0, memory.end())?;
        }
        let used = placed(used, setup.used)?;
        let descriptors = match descriptors {
            Some(part) => placed(part, None)?,
            None => 0,
        };
        Ok(RingLog {
            used,
            descriptors,
            setup,
        })
    }

    pub fn is_lost(&self) -> bool {
        self.setup.log.is_lost()
    }

    /// Bytes of the used ring, or of the device's event structure, were written.
    pub fn used(&self, offset: u64, len: u64) {
        // Does not wrap: `RingLog::new`.
        self.setup.log.note(self.used + offset, len);
    }

    /// Bytes of a packed ring's descriptors were written.
    pub fn descriptors(&self, offset: u64, len: u64) {
        self.setup.log.note(self.descriptors + offset, len);
    }

    /// The first `len` bytes of these buffers of the guest's were written.
    #[cold]
    pub fn buffers(&self, memory: &GuestMemory, buffers: &[Segment], len: u64) {
        let mut left = len;
        for buffer in buffers {
            let here = left.min(buffer.len as u64);
            self.buffer(memory, buffer.ptr, here);
            left -= here;
        }
    }

    fn buffer(&self, memory: &GuestMemory, host: *const u8, len: u64) {
        if self.setup.buffers
            && len > 0
            && let Some(addr) = memory.guest_addr(host)
        {
            self.setup.log.note(addr, len);
        }
    }

    /// Tells the VMM, if it wants to be told, that something was noted.
    pub fn notify(&self) {
        if let Some(call) = &self.setup.call {
            notifier::raise(call.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// A file of 64 bytes, of which the log has `size` from `offset` on.
    fn log(size: u64, offset: u64) -> (File, Result<DirtyLog, FileError>) {
        let file = File::from(rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(64).unwrap();
        let fd = file.try_clone().unwrap().into();
        (file, DirtyLog::new(fd, size, offset))
    }

    /// Which bits are set, counted from the file's first.
    fn set(file: &File) -> Vec<usize> {
        let mut bytes = [0; 64];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let bit = |at: &usize| bytes[at / 8] >> (at % 8) & 1 == 1;
        (0..512).filter(bit).collect()
    }

    #[test]
    fn a_page_has_the_bit_of_its_number() {
        let cases: &[(u64, u64, Vec<usize>)] = &[
            (0, 0, vec![]),
            (0, 1, vec![0]),
            (4095, 1, vec![0]),
            (4095, 2, vec![0, 1]),
            (4096, 4096, vec![1]),
            (7 * 4096, 4097, vec![7, 8]),
            (9 * 4096 + 1, 20 * 4096, (9..30).collect()),
            (511 * 4096, 4096, vec![511]),
        ];
        for (addr, len, pages) in cases {
            let (file, log) = log(64, 0);
            log.unwrap().note(*addr, *len);
            assert_eq!(set(&file), *pages, "{addr:#x}+{len}");
        }
    }

    #[test]
    fn nothing_is_written_outside_of_the_log() {
        // From the file's eighth byte on, and two bytes long: sixteen pages.
        let (file, log) = log(2, 8);
        let log = log.unwrap();
        assert_eq!(log.has(0, 16 * PAGE), Ok(()));
        let too_small = |addr| Err(LogTooSmall { size: 2, addr });
        assert_eq!(log.has(0, 16 * PAGE + 1), too_small(16 * PAGE));
        assert_eq!(log.has(u64::MAX, 2), too_small(u64::MAX));
        for addr in [16 * PAGE, 17 * PAGE, u64::MAX - 1, u64::MAX] {
            log.note(addr, 2);
        }
        assert_eq!(set(&file), [0; 0]);
        log.note(15 * PAGE, 100 * PAGE);
        log.note(0, 1);
        assert_eq!(set(&file), [64, 79]);
    }

    #[test]
    fn a_file_that_does_not_hold_the_log_is_refused() {
        let error = |size, offset| log(size, offset).1.unwrap_err().to_string();
        assert_eq!(
            error(0, 0),
            "has 0x0 bytes from 0x0 on: none, or more than can be mapped"
        );
        assert_eq!(error(65, 0), "ends at 0x41 of a file of 0x40 bytes");
        assert_eq!(error(1, 64), "ends at 0x41 of a file of 0x40 bytes");
        assert_eq!(
            error(2, u64::MAX),
            "has 0x2 bytes from 0xffffffffffffffff on: none, or more than can be mapped"
        );
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let error = DirtyLog::new(pipe, 8, 0).unwrap_err().to_string();
        assert_eq!(error, "is not in a memfd or a file on tmpfs or hugetlbfs");
    }
}
