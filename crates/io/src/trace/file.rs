//! The file of a trace: made safely where others may write, and its last block.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// An empty file of our own.
///
/// Traces go to `/tmp` by default, where anybody can put a link in our way: a file that exists is taken only if it is a
/// regular file of this process's user with no other name.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: a FIFO in the file's place must not make anybody wait; regular files do not mind.
    options
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    let file = options.open(path)?;
    let there = file.metadata()?;
    let own = there.uid() == rustix::process::geteuid().as_raw();
    if !there.is_file() || !own || there.nlink() != 1 {
        let what = format!("'{}' exists and is not a file of our own alone", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    file.set_len(0)?;
    Ok(file)
}

/// Appends an interface statistics block (pcapng, section 4.6): frames that were to be recorded, and how many of
/// them are missing (`isb_osdrop`).
pub(super) fn statistics(out: &mut Vec<u8>, time_ns: u64, offered: u64, lost: u64) {
    const INTERFACE_STATISTICS: u32 = 5;
    const ISB_IFRECV: u16 = 4;
    const ISB_OSDROP: u16 = 7;
    const LEN: u32 = 52;
    let start = out.len();
    for word in [
        INTERFACE_STATISTICS,
        LEN,
        0,
        (time_ns >> 32) as u32,
        time_ns as u32,
    ] {
        out.extend(word.to_le_bytes());
    }
    for (option, value) in [(ISB_IFRECV, offered), (ISB_OSDROP, lost)] {
        out.extend(option.to_le_bytes());
        out.extend(8u16.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes()); // end of options
    out.extend(LEN.to_le_bytes());
    debug_assert_eq!(out.len() - start, LEN as usize);
}
