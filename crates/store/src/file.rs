//! The folder and the file: made, locked, copied.

use crate::error::Error;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file's name in its folder.
pub const FILE: &str = "state.redb";
/// Who has it locked may use the file.
const LOCK: &str = "lock";

/// For a process that was killed a moment ago to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

/// A folder's file, open for reading and writing.
pub(crate) struct Opened {
    pub path: PathBuf,
    pub file: File,
    /// The right to it, until this is dropped.
    pub lock: File,
    /// `Some`: it is empty, and has not its name yet.
    pub fresh: Option<Fresh>,
}

/// A file that gets its name when it has its content: a start that was killed leaves nothing that
/// the next one could take for a damaged store.
pub(crate) struct Fresh {
    part: PathBuf,
}

/// Opens the file of a folder, and makes both when missing.
pub(crate) fn open(folder: &Path) -> Result<Opened, Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| Error::io(folder, "made", e))?;
    let path = folder.join(FILE);
    // Of its own: the file itself is another one after a copy was put back.
    let lock = locked(&path, &folder.join(LOCK))?;
    let fresh = path.symlink_metadata().is_err();
    let part = path.with_file_name(format!("{FILE}.new"));
    let file = match fresh {
        true => regular(&part, OFlags::CREATE | OFlags::TRUNC)?,
        false => regular(&path, OFlags::empty())?,
    };
    // Our own files have their content before they have their name; a copy that a full disk or a
    // power cut has emptied is not a store without objects.
    let length = file
        .metadata()
        .map_err(|e| Error::io(&path, "read", e))?
        .len();
    if !fresh && length == 0 {
        return Err(Error::damaged(&path, "it is empty"));
    }
    Ok(Opened {
        path,
        file,
        lock,
        fresh: fresh.then_some(Fresh { part }),
    })
}

/// Opens a file that only its owner may read. A link in its place would have another one written.
fn regular(path: &Path, flags: OFlags) -> Result<File, Error> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.map_err(|e| Error::io(path, "opened", e))?);
    let metadata = file.metadata().map_err(|e| Error::io(path, "read", e))?;
    if !metadata.is_file() {
        return Err(Error::io(path, "opened", "it is no regular file"));
    }
    // One that was there may have come from a copy with other modes.
    let closed = rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR);
    closed.map_err(|e| Error::io(path, "closed to others", e))?;
    Ok(file)
}

fn locked(path: &Path, lock_file: &Path) -> Result<File, Error> {
    let file = regular(lock_file, OFlags::CREATE)?;
    lock(path, &file)?;
    Ok(file)
}

/// Locks the file beside the one at `path`.
pub(crate) fn lock(path: &Path, file: &File) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        match try_lock(path, file) {
            Err(Error::InUse(_)) if start.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Locks it now, or not.
pub(crate) fn try_lock(path: &Path, file: &File) -> Result<(), Error> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::InUse(path.to_owned())),
        Err(error) => Err(Error::io(&path.with_file_name(LOCK), "locked", error)),
    }
}

pub(crate) fn unlock(file: &File) -> Result<(), Error> {
    let unlocked = flock(file, FlockOperation::Unlock);
    unlocked.map_err(|error| Error::io(Path::new(LOCK), "unlocked", error))
}

impl Fresh {
    /// Gives the file its name.
    pub fn name(self, path: &Path) -> Result<(), Error> {
        std::fs::rename(&self.part, path).map_err(|e| Error::io(path, "made", e))?;
        path.parent().map_or(Ok(()), sync_folder)
    }
}

/// A new file's name has to outlive a crash as well.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::io(folder, "synced", e))
}

/// Keeps a copy of a file of an older format beside it: `state.redb.format-N`. One that is there
/// stays: it is of a migration that was cut short, before which nothing had changed.
pub(crate) fn copy(path: &Path, format: u64) -> Result<PathBuf, Error> {
    let copy = path.with_file_name(format!("{FILE}.format-{format}"));
    if copy.exists() {
        return Ok(copy);
    }
    let part = path.with_file_name(format!("{FILE}.part"));
    let copied = std::fs::copy(path, &part)
        .and_then(|_| File::open(&part)?.sync_all())
        .and_then(|()| std::fs::rename(&part, &copy));
    copied.map_err(|e| Error::io(&copy, "kept as a copy", e))?;
    path.parent().map_or(Ok(()), sync_folder)?;
    Ok(copy)
}
