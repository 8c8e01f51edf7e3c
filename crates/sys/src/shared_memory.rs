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
use rustix::io::{Errno, pread};

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

/// Where what was written from `from` on ends, or `from` where nothing was: the first hole, which
/// begins with a page.
pub fn end_of_data(memory: BorrowedFd<'_>, from: u64) -> io::Result<u64> {
    fcntl_get_seals(memory).map_err(|_| io::Error::other("it is no file in memory"))?;
    match seek(memory, SeekFrom::Hole(from)) {
        // Of files in memory the end is a hole, too.
        Ok(end) => Ok(end.max(from)),
        // Behind the end there is nothing.
        Err(Errno::NXIO) => Ok(from),
        Err(error) => Err(error.into()),
    }
}

/// Reads so many bytes of what another process has left from `at` on; what was never written is
/// zero. An error: it is no file, or shorter.
pub fn read_at(memory: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(memory, &mut bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
        let end = |from| end_of_data(memory.as_fd(), from).unwrap();
        // A page, or a huge one.
        assert!(
            (4096..=2 << 20).contains(&(end(2 << 20) - (2 << 20))),
            "{}",
            end(2 << 20)
        );
        assert_eq!(end(32 << 20), 32 << 20);
        assert_eq!(end(64 << 20), 64 << 20);
        let mut bytes = [1; 16];
        read_at(memory.as_fd(), &mut bytes, (2 << 20) - 8).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(read_at(memory.as_fd(), &mut bytes, (64 << 20) - 8).is_err());
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
