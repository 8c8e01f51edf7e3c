//! A listening unix socket at a path: made, found stale, removed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getegid, geteuid};
use sys::socket_file::{self, Listeners};
use tracing::warn;

use crate::vhost::limits::PATH_MAX;
use crate::vhost::protocol::server_error::ServerError;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;

/// Whose a socket's file is and who may connect; `None`: as it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketFile {
    /// A user's id.
    pub owner: Option<u32>,
    /// A group's id.
    pub group: Option<u32>,
    /// Permissions, as chmod(2) takes them.
    pub mode: Option<u32>,
}

impl SocketFile {
    /// As a file is that this process makes, where nothing is said: for one that was given to
    /// somebody before.
    fn whole(self) -> SocketFile {
        SocketFile {
            owner: self.owner.or(Some(geteuid().as_raw())),
            group: self.group.or(Some(getegid().as_raw())),
            mode: self.mode.or_else(|| Some(0o777 & !umask()?)),
        }
    }

    /// Whose a socket's file is.
    fn now(file: &PathFile) -> Result<SocketFile, Errno> {
        let stat = rustix::fs::fstat(&file.0)?;
        Ok(SocketFile {
            owner: Some(stat.st_uid),
            group: Some(stat.st_gid),
            mode: Some(stat.st_mode & 0o777),
        })
    }

    /// Gives a socket's file its owner, group and mode. Whoever it is for has it at no moment with
    /// what it was before, and whoever had it has it with no more than that.
    fn give(self, file: &PathFile) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&file.0)?;
        let before = stat.st_mode & 0o777;
        let mode = self.mode.unwrap_or(before);
        let group = self.group.filter(|group| *group != stat.st_gid);
        let owner = self.owner.unwrap_or(stat.st_uid);
        // A file's mode and group are its owner's to change, unless one may change everybody's
        // (CAP_FOWNER), which goes beyond giving files away (CAP_CHOWN).
        let mut owned_by = stat.st_uid;
        if owned_by != geteuid().as_raw() && (mode != before || group.is_some()) {
            owned_by = geteuid().as_raw();
            file.chown(Some(owned_by), None)?;
        }
        if group.is_some() && before & !mode != 0 {
            file.chmod(before & mode)?;
        }
        if group.is_some() {
            file.chown(None, group)?;
        }
        if mode != before {
            file.chmod(mode)?;
        }
        match owner == owned_by {
            true => Ok(()),
            false => file.chown(Some(owner), None),
        }
    }
}

/// A file by its path, opened for nothing: what is done to it is done to no other that somebody
/// puts in its place.
struct PathFile(OwnedFd);

impl PathFile {
    /// Follows no link.
    fn open(path: &Path) -> Result<PathFile, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map(PathFile)
    }

    /// What lies at a socket's path, where it is that socket's own file for sure: others may put
    /// another one there, which is not ours to give to anybody. `known` says which file it is, if
    /// that is known; the socket tells it itself, to who has CAP_NET_ADMIN.
    fn of(
        socket: &OwnedFd,
        path: &Path,
        known: Option<(u64, u64)>,
    ) -> Result<PathFile, ServerError> {
        let failed = |error: Errno| ServerError::Socket {
            path: path.to_owned(),
            error: error.into(),
        };
        let there = PathFile::open(path).map_err(failed)?;
        let stat = rustix::fs::fstat(&there.0).map_err(failed)?;
        let is = (stat.st_dev, stat.st_ino);
        let own = match socket_file::bound(socket.as_fd()) {
            Ok(file) => Some(PathFile(file).identity().map_err(failed)?),
            Err(Errno::PERM) => None,
            Err(error) => return Err(failed(error)),
        };
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_socket || [own, known].into_iter().flatten().any(|own| own != is) {
            return Err(ServerError::Replaced {
                path: path.to_owned(),
            });
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        if own.is_none() && !socket_file::stays_ours(folder, stat.st_uid) {
            return Err(ServerError::Shared {
                path: path.to_owned(),
            });
        }
        Ok(there)
    }

    fn identity(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn chown(&self, owner: Option<u32>, group: Option<u32>) -> Result<(), Errno> {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        rustix::fs::chownat(&self.0, "", owner, group, AtFlags::EMPTY_PATH)
    }

    fn chmod(&self, mode: u32) -> Result<(), Errno> {
        // There is no fchmod of a path's descriptor; /proc leads to the file itself (proc(5)).
        let itself = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        rustix::fs::chmodat(CWD, itself, Mode::from_raw_mode(mode), AtFlags::empty())
    }
}

/// The umask of this process, which umask(2) tells by changing it alone (proc(5)).
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// The socket's file goes when this is dropped, unless somebody has put another in its place.
pub(in crate::vhost) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at `path`. A socket file that nobody listens on is replaced; anything else there is
    /// left alone.
    ///
    /// Who may connect is for the caller to decide: by the permissions of the directory, by the
    /// umask, which the file's mode follows, or by `file`.
    pub fn bind(path: &Path, file: SocketFile) -> Result<Self, ServerError> {
        let address = address(path)?;
        let path = path.to_owned();
        let failed = |error: Errno| ServerError::Socket {
            path: path.clone(),
            error: error.into(),
        };
        let socket = new_socket().map_err(failed)?;
        let mut bound = rustix::net::bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            remove_stale(&path, &address)?;
            bound = rustix::net::bind(&socket, &address);
        }
        match bound {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(ServerError::InUse { path }),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(ServerError::Directory { path }),
            Err(error) => return Err(failed(error)),
        }
        let listener = Listener {
            file: own_identity(&socket, &path),
            socket,
            path: path.clone(),
        };
        // Nobody can connect before it listens.
        if file != SocketFile::default() {
            let made = PathFile::of(&listener.socket, &path, listener.file)?;
            file.give(&made).map_err(failed)?;
        }
        rustix::net::listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    /// Goes on listening by the socket of a process that gives way to this one. Its file is not
    /// ours before [`own`](Listener::own).
    pub fn handed(path: &Path, socket: OwnedFd) -> Listener {
        Listener {
            socket,
            path: path.to_owned(),
            file: None,
        }
    }

    /// Gives the socket's file to others than before; where nothing is said it is this process's
    /// again.
    ///
    /// # Errors
    /// The file is not there any more, or not ours for sure; or the system refuses. It is as it
    /// was.
    pub fn give(&self, to: SocketFile) -> Result<(), ServerError> {
        let failed = |error: Errno| ServerError::Socket {
            path: self.path.clone(),
            error: error.into(),
        };
        let file = PathFile::of(&self.socket, &self.path, self.file)?;
        let before = SocketFile::now(&file).map_err(failed)?;
        to.whole().give(&file).map_err(|error| {
            if let Err(why) = before.give(&file) {
                let path = self.path.display();
                warn!("{path} was to be given to others, and is so in part: {why}");
            }
            failed(error)
        })
    }

    /// From now on the file goes when this is dropped.
    pub fn own(&mut self) {
        self.file = own_identity(&self.socket, &self.path);
    }

    /// The next connection, non-blocking; `None` when nobody waits.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            // Who has given up before being accepted is nobody.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The path as a socket's address.
pub(in crate::vhost) fn address(path: &Path) -> Result<SocketAddrUnix, ServerError> {
    let path = path.to_owned();
    if path.as_os_str().len() > PATH_MAX || path.as_os_str().as_bytes().contains(&0) {
        return Err(ServerError::Path { path });
    }
    SocketAddrUnix::new(&path).map_err(|error| ServerError::Socket {
        path,
        error: error.into(),
    })
}

/// A stream socket that never waits.
pub(in crate::vhost) fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Which file goes with a socket that was bound there: where that cannot be asked, the one that is
/// there.
fn own_identity(socket: &OwnedFd, path: &Path) -> Option<(u64, u64)> {
    match socket_file::bound(socket.as_fd()) {
        Ok(file) => PathFile(file).identity().ok(),
        Err(_) => identity(path),
    }
}

/// Removes a socket file that refuses connections: its listener has gone without removing it.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ServerError> {
    let failed = |error: io::Error| ServerError::Socket {
        path: path.to_owned(),
        error,
    };
    let file = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(failed)?,
    };
    if !file.file_type().is_socket() {
        return Err(ServerError::NotASocket {
            path: path.to_owned(),
        });
    }
    let probe = new_socket().map_err(|error| failed(error.into()))?;
    let mut answer = rustix::net::connect(&probe, address);
    if answer == Err(Errno::ACCESS) {
        answer = look_without_asking(path);
    }
    match answer {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // Connected, or the queue of connections is full: somebody listens.
        Ok(()) | Err(Errno::AGAIN) => Err(ServerError::InUse {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

/// What connect(2) would say at a socket that is somebody else's, as a daemon before that was
/// killed may have given it away. It stays theirs meanwhile, and stays where others may have put it
/// there.
fn look_without_asking(path: &Path) -> Result<(), Errno> {
    let folder = path.parent().unwrap_or(Path::new("."));
    match Listeners::now().and_then(|listeners| listeners.has(path)) {
        Ok(true) => Ok(()),
        Ok(false) if socket_file::only_ours(folder) => Err(Errno::CONNREFUSED),
        Ok(false) => Err(Errno::ACCESS),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::ACCESS)),
    }
}
