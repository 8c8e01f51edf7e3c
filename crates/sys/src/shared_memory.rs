//! Memory that outlives the process: a file in memory without a name, which is there for as long as
//! any process has a descriptor of it.
//!
//! Who makes it maps it ([`Zeroed::shared`](crate::huge::Zeroed::shared)). Who finds one that
//! another process has left reads it ([`read`]) and does not map it: what is in it may be anything,
//! and may change.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, seek,
};
use rustix::io::Errno;

/// Memory of a fixed length, all zero in the beginning. Pages that nobody has written take none.
pub struct SharedMemory {
    file: File,
    len: u64,
}

impl SharedMemory {
    /// `len` bytes; `name` is what the system shows it as. It can neither grow nor shrink.
    pub fn new(name: &str, len: u64) -> io::Result<SharedMemory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags)?;
        ftruncate(&fd, len)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(SharedMemory {
            file: File::from(fd),
            len,
        })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How many bytes of it are there, in whole pages: what was never written is not.
pub fn used(memory: BorrowedFd<'_>) -> io::Result<u64> {
    // Of blocks of 512 bytes (stat(3type)).
    Ok(fstat(memory)?.st_blocks.max(0) as u64 * 512)
}

/// Reads what another process has left from `from` up to `to`, a part of at most `part` bytes after
/// the other; `each` is given where a part begins. What was never written is left out where the
/// system knows that, and is zero. An error: it is no such memory, or shorter than `to`.
pub fn read(
    memory: BorrowedFd<'_>,
    (from, to): (u64, u64),
    part: usize,
    mut each: impl FnMut(u64, &[u8]),
) -> io::Result<()> {
    // Files of other kinds have no seals, and may make their reader wait.
    fcntl_get_seals(memory).map_err(|_| io::Error::other("it is no file in memory"))?;
    let len = fstat(memory)?.st_size as u64;
    if from > to || to > len {
        let why = format!("it has {len} bytes, not those from {from} to {to}");
        return Err(io::Error::other(why));
    }
    let file = File::from(memory.try_clone_to_owned()?);
    let mut room = vec![0; part];
    let mut at = from;
    while at < to {
        // Parts stay aligned to their length, whatever the system says of pages.
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = from + data.saturating_sub(from) / part as u64 * part as u64;
        if at >= to {
            return Ok(());
        }
        let count = (to - at).min(part as u64) as usize;
        file.read_exact_at(&mut room[..count], at)?;
        each(at, &room[..count]);
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge::Zeroed;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_was_written_is_read_and_holes_are_left_out() {
        let memory = SharedMemory::new("test", 64 << 20).unwrap();
        let table: Zeroed<AtomicU64> = Zeroed::shared(&memory, 2 << 20, 1 << 20).unwrap();
        table[0].store(7, Ordering::Relaxed);
        table[700_001].store(9, Ordering::Relaxed);
        let mut read_back = Vec::new();
        let mut bytes = 0;
        read(memory.as_fd(), (2 << 20, 10 << 20), 24, |at, part| {
            bytes += part.len();
            for (index, word) in part.chunks(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                if word != 0 {
                    read_back.push(((at - (2 << 20)) / 8 + index as u64, word));
                }
            }
        })
        .unwrap();
        assert_eq!(read_back, [(0, 7), (700_001, 9)]);
        assert!(bytes <= 8 << 20);
        let used = used(memory.as_fd()).unwrap();
        assert!((8192..8 << 20).contains(&used), "{used}");
    }

    #[test]
    fn what_is_no_such_memory_is_refused() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        let nothing = |_: u64, _: &[u8]| ();
        assert!(read(memory.as_fd(), (0, 4097), 8, nothing).is_err());
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(read(reader.as_fd(), (0, 0), 8, nothing).is_err());
        assert!(ftruncate(&memory, 1).is_err(), "it can be cut short");
    }
}
