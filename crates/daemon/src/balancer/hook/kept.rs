//! The file of what is announced: locked by the daemon whose it is, and whole, however that ends.
//!
//! It is in the folder of state where there is one: a service manager removes the folder of sockets
//! when the service is stopped. Versions of before had it there. So it outlives the host's end,
//! too, behind which routes of a program may be gone: it says of which boot it is.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

/// Its name.
pub const NAME: &str = "balance-announced";
/// More than any host announces.
const FILE_MAX: u64 = 1 << 20;
/// Before an address, on a line of its own: the program is to be run for it again. Versions that
/// do not know it read the address' other line alone.
const MARK: &str = "again ";
/// Before the boot that it is of, on a line of its own, which those versions do not read.
const BOOT: &str = "boot ";

/// Where it may be.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The folder that it is kept in.
    pub kept: PathBuf,
    /// Of sockets, where versions of before had it; it may be the same.
    pub before: PathBuf,
}

impl Folders {
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
    pub fn one(folder: &std::path::Path) -> Folders {
        Folders {
            kept: folder.to_owned(),
            before: folder.to_owned(),
        }
    }
}

/// What stands in it.
#[derive(Default)]
pub struct Content {
    /// Addresses that are announced.
    pub announced: BTreeSet<IpAddr>,
    /// Of these it is not known whether they are.
    pub unsure: BTreeSet<IpAddr>,
    /// Since when: proc(5), boot_id. `None`: it does not say.
    boot: Option<String>,
}

impl Content {
    /// These, of now.
    pub fn new(announced: BTreeSet<IpAddr>, unsure: BTreeSet<IpAddr>) -> Content {
        Content {
            announced,
            unsure,
            boot: boot(),
        }
    }

    /// Where the host was started since, nothing is known to be announced.
    pub fn of_this_boot(self) -> Content {
        match self.boot.is_some() && self.boot == boot() {
            true => self,
            false => Content {
                unsure: self.known(),
                ..Content::default()
            },
        }
    }

    /// All of them.
    pub fn known(&self) -> BTreeSet<IpAddr> {
        self.announced.union(&self.unsure).copied().collect()
    }

    fn parse(text: &str) -> Content {
        let marked = text.lines().filter_map(|line| line.strip_prefix(MARK));
        let unsure: BTreeSet<IpAddr> = marked.filter_map(|line| line.parse().ok()).collect();
        let all = text.lines().filter_map(|line| line.parse().ok());
        let boot = text.lines().find_map(|line| line.strip_prefix(BOOT));
        Content {
            announced: all.filter(|vip| !unsure.contains(vip)).collect(),
            unsure,
            boot: boot.map(str::to_owned),
        }
    }

    fn text(&self) -> String {
        let all = self.known().into_iter().map(|vip| format!("{vip}\n"));
        let marked = self.unsure.iter().map(|vip| format!("{MARK}{vip}\n"));
        let boot = self.boot.iter().map(|boot| format!("{BOOT}{boot}\n"));
        all.chain(marked).chain(boot).collect()
    }
}

/// The file, and the lock on it.
pub struct Kept {
    file: File,
    /// Where it is written next.
    path: PathBuf,
    /// Where it is until then, if that is elsewhere.
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

    /// One that another daemon had in one of these folders, with its lock. It stays where it is
    /// until it is [written](Self::write).
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn handed(file: OwnedFd, folders: &Folders) -> io::Result<Kept> {
        let file = File::from(file);
        let handed = file.metadata()?;
        let is_it = |path: &PathBuf| {
            std::fs::symlink_metadata(path).is_ok_and(|there| is_same(&handed, &there))
        };
        Ok(Kept {
            before: folders.file_of_before().filter(is_it),
            path: folders.file(),
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
                let before = None;
                return Ok(Kept { file, path, before });
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

    /// Puts another one in its place, whole and locked: a kill leaves the one or the other.
    ///
    /// # Errors
    /// It cannot be written; it is as it was then.
    pub fn write(&mut self, content: &Content) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?);
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(content.text().as_bytes()))
            .and_then(|()| std::fs::rename(&new, &self.path));
        match written {
            Ok(()) => {
                self.file = file;
                // It says what was true before.
                if let Some(before) = self.before.take() {
                    let _ = std::fs::remove_file(before);
                }
            }
            // It takes the room of what is written next.
            Err(_) => drop(std::fs::remove_file(&new)),
        }
        written
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

/// When this host was started, as a word that no other start has.
fn boot() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
