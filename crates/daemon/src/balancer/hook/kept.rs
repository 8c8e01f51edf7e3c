//! The file of what is announced: locked by the daemon whose it is, and whole, however that ends.
//!
//! It is in the folder of state where there is one: a service manager removes the folder of sockets
//! when the service is stopped. Versions of before had it there. So it outlives the host's end,
//! too, and what else ends a program's routes: who finds it knows what may be announced, and alone
//! who is handed it by the daemon before knows what is.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

/// Its name.
pub const NAME: &str = "balance-announced";
/// More than any host announces.
const FILE_MAX: u64 = 1 << 20;
/// Before an address, on a line of its own: the program is to be run for it again. Versions that
/// do not know it read the address' other line alone.
const MARK: &str = "again ";

/// Where it may be.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The folder that it is kept in.
    pub kept: PathBuf,
    /// Of sockets, where versions of before had it; it may be the same.
    pub before: PathBuf,
}

impl Folders {
    /// That of the store before that of all state, which several daemons of one service manager's
    /// unit may share.
    pub fn of(store: Option<&Path>, state: Option<&Path>, sockets: &Path) -> Folders {
        Folders {
            kept: store.or(state).unwrap_or(sockets).to_owned(),
            before: sockets.to_owned(),
        }
    }

    /// Where it is written.
    pub fn file(&self) -> PathBuf {
        self.kept.join(NAME)
    }

    /// Where it may have been written before, if that is another place.
    fn file_of_before(&self) -> Option<PathBuf> {
        (self.before != self.kept).then(|| self.before.join(NAME))
    }

    /// One folder for both.
    #[cfg(test)]
    pub fn one(folder: &Path) -> Folders {
        Folders::of(None, None, folder)
    }
}

/// What stands in it.
#[derive(Default)]
pub struct Content {
    /// Addresses that are announced.
    pub announced: BTreeSet<IpAddr>,
    /// Of these it is not known whether they are.
    pub unsure: BTreeSet<IpAddr>,
}

impl Content {
    /// All of them.
    pub fn known(&self) -> BTreeSet<IpAddr> {
        self.announced.union(&self.unsure).copied().collect()
    }

    fn parse(text: &str) -> Content {
        let marked = text.lines().filter_map(|line| line.strip_prefix(MARK));
        let unsure: BTreeSet<IpAddr> = marked.filter_map(|line| line.parse().ok()).collect();
        let all = text.lines().filter_map(|line| line.parse().ok());
        Content {
            announced: all.filter(|vip| !unsure.contains(vip)).collect(),
            unsure,
        }
    }

    fn text(&self) -> String {
        let all = self.known().into_iter().map(|vip| format!("{vip}\n"));
        let marked = self.unsure.iter().map(|vip| format!("{MARK}{vip}\n"));
        all.chain(marked).collect()
    }
}

/// The file, and the lock on it.
pub struct Kept {
    file: File,
    /// Where it is written next.
    path: PathBuf,
    /// It is there already.
    is_there: bool,
    /// Where it is until then, if that is known.
    before: Option<PathBuf>,
}

impl Kept {
    /// That of these folders, made if need be.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: another daemon has it. It cannot be made or locked.
    pub fn take(folders: &Folders) -> io::Result<Kept> {
        Kept::at(folders.file(), OFlags::CREATE)
    }

    /// What lies, and is nobody's, where versions of before had it.
    pub fn of_before(folders: &Folders) -> Option<Kept> {
        let path = folders.file_of_before()?;
        match Kept::at(path.clone(), OFlags::empty()) {
            Ok(kept) => Some(kept),
            Err(e) => {
                let none = [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock];
                if !none.contains(&e.kind()) {
                    tracing::warn!("{} cannot be read: {e}", path.display());
                }
                None
            }
        }
    }

    /// One that another daemon had, in one of these folders or elsewhere, with its lock. It stays
    /// where it is until it is [written](Self::write).
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn handed(file: OwnedFd, folders: &Folders) -> io::Result<Kept> {
        let file = File::from(file);
        let handed = file.metadata()?;
        let is_it = |path: &PathBuf| {
            std::fs::symlink_metadata(path).is_ok_and(|there| is_same(&handed, &there))
        };
        let path = folders.file();
        Ok(Kept {
            is_there: is_it(&path),
            before: folders.file_of_before().filter(is_it),
            path,
            file,
        })
    }

    fn at(path: PathBuf, flags: OFlags) -> io::Result<Kept> {
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Who has it may put another one in its place before it is locked here: that one is locked.
        for _ in 0..2 {
            let file = File::from(rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?);
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            if is_same(&file.metadata()?, &std::fs::symlink_metadata(&path)?) {
                return Ok(Kept {
                    file,
                    path,
                    is_there: true,
                    before: None,
                });
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// What stands in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self) -> io::Result<Content> {
        let mut text = String::new();
        let mut file = &self.file;
        file.rewind()?;
        file.take(FILE_MAX).read_to_string(&mut text)?;
        Ok(Content::parse(&text))
    }

    /// That, or nothing and a line in the log.
    pub fn read_or_nothing(&self) -> Content {
        self.read().unwrap_or_else(|e| {
            tracing::warn!("{} cannot be read: {e}", self.path.display());
            Content::default()
        })
    }

    /// Puts another one in its place, whole and locked: a kill, or the host's end, leaves the one
    /// or the other. It waits for the disk.
    ///
    /// # Errors
    /// It cannot be written, and is as it was then; or it is, and the host's end may undo that.
    pub fn write(&mut self, content: &Content) -> io::Result<()> {
        // Until the new one, which has a lock as well, is in its place.
        let _place = self.lock_place()?;
        let new = self.path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?);
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(content.text().as_bytes()))
            .and_then(|()| file.sync_data())
            .and_then(|()| std::fs::rename(&new, &self.path));
        if written.is_err() {
            // It takes the room of what is written next.
            let _ = std::fs::remove_file(&new);
            return written;
        }
        (self.file, self.is_there) = (file, true);
        let synced = self.path.parent().map_or(Ok(()), |folder| {
            let folder = File::open(folder)?;
            folder.sync_all()
        });
        // It says what was true before.
        if let Some(before) = self.before.take() {
            let _ = std::fs::remove_file(before);
        }
        synced
    }

    /// What lies where it is to be written for the first time, locked: it may be another daemon's.
    /// Then this one stays where it is.
    fn lock_place(&mut self) -> io::Result<Option<Kept>> {
        if self.is_there {
            return Ok(None);
        }
        match (
            Kept::at(self.path.clone(), OFlags::CREATE),
            self.before.take(),
        ) {
            (Ok(place), before) => {
                self.before = before;
                Ok(Some(place))
            }
            (Err(e), Some(before)) => {
                let (there, here) = (self.path.display(), before.display());
                tracing::warn!("what is announced stays in {here}, it cannot be in {there}: {e}");
                (self.path, self.is_there) = (before, true);
                Ok(None)
            }
            (Err(e), None) => Err(e),
        }
    }

    /// Another descriptor of it, and of its lock.
    ///
    /// # Errors
    /// There are none to be had.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Removes it, while nobody else can have it.
    pub fn remove(self) {
        // One that stays is read again by the next daemon, which does more than it needs to.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
