//! The folder of traces, and how much of its disk they take together.
//!
//! Counted are traces that earlier daemons have left there, too, as far as they are our user's;
//! nothing is ever deleted. Traces' own threads ask for room, a piece at a time; where there is
//! none, what is there is looked through again, since somebody may have moved some away.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};

use super::Counts;
use super::file::Format;

/// What a trace asks room for at once: as much as it has written to the disk at once.
pub(super) const PIECE: u64 = 1 << 16;
/// The most without more said; less where it is more than a quarter of the file system.
const MOST: u64 = 16 << 30;
/// A full folder is not looked through again sooner.
const AGAIN: Duration = Duration::from_secs(5);
/// Folders in folders that are looked into, and files and folders that are looked at, at the most.
const DEPTH_MAX: usize = 16;
const LOOKED_AT_MAX: usize = 1 << 20;

/// A folder of traces. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Folder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    most: Option<u64>,
    /// What is taken of it, and when the folder was looked through; none: not yet.
    taken: Mutex<Option<(u64, Instant)>>,
    traces: Mutex<Traces>,
}

#[derive(Debug, Default)]
struct Traces {
    open: Vec<Arc<Counts>>,
    /// Frames that those have lost which are closed.
    lost: u64,
}

impl Folder {
    /// Traces beneath `path` take at most so many bytes together; without a number a quarter of its
    /// file system, 16 GiB at the most.
    pub fn new(path: &Path, most: Option<u64>) -> Folder {
        Folder(Arc::new(Shared {
            path: path.to_owned(),
            most,
            taken: Mutex::default(),
            traces: Mutex::default(),
        }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Frames that are missing in files, of all traces there were.
    pub fn lost(&self) -> u64 {
        let traces = self.traces();
        let of_open = traces
            .open
            .iter()
            .map(|counts| counts.lost.load(Ordering::Relaxed));
        traces.lost + of_open.sum::<u64>()
    }

    /// A sentence if traces record nothing more for want of room.
    pub fn warning(&self) -> Option<String> {
        let traces = self.traces();
        let ended = |counts: &&Arc<Counts>| counts.no_room.load(Ordering::Relaxed);
        let ended = traces.open.iter().filter(ended).count();
        (ended > 0).then(|| {
            format!(
                "packet traces that record nothing more, since those in {} have all the bytes that \
                 they may have (--trace-dir-max): {ended}; move some away, and switch these off \
                 and on again",
                self.0.path.display()
            )
        })
    }

    /// A trace begins.
    pub(super) fn begin(&self, counts: &Arc<Counts>) {
        self.traces().open.push(counts.clone());
    }

    /// It has ended; of what it had asked room for so much is not used.
    pub(super) fn end(&self, counts: &Arc<Counts>, unused: u64) {
        if let Some((taken, _)) = &mut *self.taken() {
            *taken = taken.saturating_sub(unused);
        }
        let mut traces = self.traces();
        traces.open.retain(|open| !Arc::ptr_eq(open, counts));
        traces.lost += counts.lost.load(Ordering::Relaxed);
    }

    /// Room for so many bytes more; the error is a sentence. May look through the folder.
    pub(super) fn take(&self, bytes: u64) -> Result<(), String> {
        let most = self.most();
        let open = self.traces().open.len() as u64;
        let mut taken = self.taken();
        let is_full = |taken: u64| taken.saturating_add(bytes) > most;
        let now = match *taken {
            Some((now, at)) if !is_full(now) || at.elapsed() < AGAIN => now,
            // What open traces have asked for and not written yet is not on the disk.
            _ => on_disk(&self.0.path) + open.saturating_sub(1) * PIECE,
        };
        let at = match *taken {
            Some((before, at)) if before == now => at,
            _ => Instant::now(),
        };
        if is_full(now) {
            *taken = Some((now, at));
            return Err(format!(
                "the traces in {} have {now} bytes together, the limit is {most} (--trace-dir-max)",
                self.0.path.display()
            ));
        }
        *taken = Some((now + bytes, at));
        Ok(())
    }

    fn most(&self) -> u64 {
        self.0.most.unwrap_or_else(|| match statvfs(&self.0.path) {
            Ok(disk) => (disk.f_blocks.saturating_mul(disk.f_frsize) / 4).min(MOST),
            Err(_) => MOST,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traces(&self) -> MutexGuard<'_, Traces> {
        self.0.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of all traces beneath a folder that are our user's. What cannot be looked at is not
/// counted.
fn on_disk(folder: &Path) -> u64 {
    let us = rustix::process::geteuid().as_raw();
    let (mut bytes, mut looked_at) = (0, 0);
    // A file may have several names.
    let mut known = BTreeSet::new();
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                return bytes;
            }
            // Of a link it is the link's own.
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if found.is_dir() && depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if found.is_file()
                && found.uid() == us
                && found.len() > 0
                && is_trace(&entry.path())
                && known.insert((found.dev(), found.ino()))
            {
                bytes += found.len();
            }
        }
    }
    bytes
}

/// Whether a file begins as a trace does.
fn is_trace(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(CWD, path, flags, Mode::empty()) else {
        return false;
    };
    let mut begins = [0; 4];
    File::from(file).read_exact(&mut begins).is_ok()
        && [Format::Pcap, Format::Pcapng].iter().any(|format| {
            let mut head = Vec::new();
            format.begin(&mut head, "", true);
            head.starts_with(&begins)
        })
}
