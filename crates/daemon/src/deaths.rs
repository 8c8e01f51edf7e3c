//! Daemons that end of themselves, one soon after the other: what the one before has left may be
//! what ends them all.
//!
//! A guest whose frame ends a worker, or a VMM's session whose record does, would end each next
//! daemon in the same way, since the next one takes all of it up. So a daemon that panics, or ends
//! itself since a thread of it hangs, notes when in a file in memory, which the keeper holds for
//! the next one. The start behind [`MOST`] such ends within [`WITHIN`] leaves what guests have a
//! hand in: VMMs connect anew, and connections are judged anew.
//!
//! A daemon that is killed notes nothing: whoever kills it has a reason of his own. Nor does one
//! that the system ends (SIGSEGV).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};

/// So many ends are no accident any more,
pub const MOST: usize = 3;
/// if they were in so short a time.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Bytes: of when the daemons ended, in seconds since the host was booted; 0: none. The newest is
/// the first.
const BYTES: usize = 8 * MOST;

/// Where this process notes its own.
static NOTES: OnceLock<File> = OnceLock::new();

/// An empty file for notes, to be held.
pub fn new() -> io::Result<OwnedFd> {
    let file = File::from(memfd_create("butterfly-deaths", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&[0; BYTES], 0)?;
    Ok(file.into())
}

/// Begins with the notes of the daemons before. True: they have ended of themselves too often, and
/// are forgotten.
pub fn begin(notes: OwnedFd) -> io::Result<bool> {
    let file = File::from(notes);
    let often = are_too_often(&times(&file)?, now_secs());
    if often {
        file.write_all_at(&[0; BYTES], 0)?;
    }
    // One keeper, one daemon, one file.
    let _ = NOTES.set(file);
    Ok(often)
}

/// This daemon ends of itself. From any thread, and takes no lock.
pub fn note() {
    if let Some(file) = NOTES.get() {
        // The next daemon finds one less.
        let _ = note_in(file, now_secs());
    }
}

fn note_in(file: &File, now: u64) -> io::Result<()> {
    let mut times = times(file)?;
    times.rotate_right(1);
    times[0] = now;
    let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
    file.write_all_at(&bytes, 0)
}

fn times(file: &File) -> io::Result<[u64; MOST]> {
    let mut bytes = [0; BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let mut times = [0; MOST];
    for (time, word) in times.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *time = u64::from_le_bytes(*word);
    }
    Ok(times)
}

fn are_too_often(times: &[u64; MOST], now: u64) -> bool {
    let since = |time: &u64| *time > 0 && now.saturating_sub(*time) <= WITHIN.as_secs();
    times.iter().all(since)
}

/// Since the host was booted; never 0.
fn now_secs() -> u64 {
    clock_gettime(ClockId::Boottime).tv_sec as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_ends_within_a_minute_are_too_often() {
        let file = File::from(new().unwrap());
        let often = |now| are_too_often(&times(&file).unwrap(), now);
        assert!(!often(1));
        for (at, too_often) in [(100, false), (130, false), (161, false), (190, true)] {
            note_in(&file, at).unwrap();
            assert_eq!(often(at), too_often, "{at}");
        }
        assert!(!often(191), "the first of them was long ago");
    }
}
