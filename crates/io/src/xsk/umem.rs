//! The memory that frames of an uplink lie in, cut into chunks of one size.
//!
//! Half of the chunks are for receiving and half for transmitting, for good: neither direction can
//! starve the other, and each ring is as large as there are chunks that can be in it, so that there
//! is always room in it.
//!
//! Who may touch a chunk. A chunk for receiving is the kernel's while it is in the fill ring or
//! filled and not taken yet; from when it is taken until it is put back it is only read, through
//! the batches that hold the memory. A chunk for transmitting is the port's to write while it is
//! free, and only read, by the kernel, from when it is published until it is completed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::mapping::Mapping;

/// The memory of one queue's frames.
#[derive(Debug)]
pub(crate) struct Umem {
    mapping: Arc<Mapping>,
    /// What another process maps it by.
    memory: OwnedFd,
    chunk_len: u32,
    /// Chunks in each half.
    count: u32,
}

impl Umem {
    /// Twice `count` chunks of `chunk_len` bytes; both are powers of two.
    pub fn new(count: u32, chunk_len: u32) -> Result<Umem, Errno> {
        debug_assert!(count.is_power_of_two() && chunk_len.is_power_of_two());
        let (mapping, memory) = Mapping::shared(len(count, chunk_len))?;
        Ok(Umem {
            mapping: Arc::new(mapping),
            memory,
            chunk_len,
            count,
        })
    }

    /// What [`new`](Self::new) has made in another process, by its [`memory`](Self::memory).
    pub fn handed(memory: OwnedFd, count: u32, chunk_len: u32) -> Result<Umem, Errno> {
        let mapping = Mapping::of_memory(memory.as_fd(), len(count, chunk_len))?;
        Ok(Umem {
            mapping: Arc::new(mapping),
            memory,
            chunk_len,
            count,
        })
    }

    /// For another process.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub fn start(&self) -> *mut u8 {
        self.mapping.start()
    }

    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    pub fn is_huge(&self) -> bool {
        self.mapping.is_huge()
    }

    pub fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Chunks for receiving, and as many for transmitting.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Where a chunk begins, from the UMEM's start: what the rings speak of. Those from
    /// [`count`](Self::count) on are for transmitting.
    #[inline]
    pub fn addr(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.chunk_len)
    }

    /// The chunk that an address lies in, if that is one for transmitting.
    #[inline]
    pub fn transmit_chunk(&self, addr: u64) -> Option<u32> {
        let chunk = addr / u64::from(self.chunk_len);
        (u64::from(self.count)..2 * u64::from(self.count))
            .contains(&chunk)
            .then_some(chunk as u32)
    }

    /// A filled buffer: the chunk for receiving that it lies in, where its bytes are, and whether
    /// `ample` bytes can be read from there. `None` when it is not inside one.
    #[inline]
    pub fn filled(&self, addr: u64, len: u32, ample: usize) -> Option<(u32, *const u8, bool)> {
        let chunk = addr / u64::from(self.chunk_len);
        let inside = addr % u64::from(self.chunk_len) + u64::from(len) <= u64::from(self.chunk_len);
        if chunk >= u64::from(self.count) || !inside || len == 0 {
            return None;
        }
        let from = self.start().wrapping_add(addr as usize).cast_const();
        Some((chunk as u32, from, addr as usize + ample <= self.len()))
    }
}

/// Bytes of both halves.
fn len(count: u32, chunk_len: u32) -> usize {
    2 * count as usize * chunk_len as usize
}
