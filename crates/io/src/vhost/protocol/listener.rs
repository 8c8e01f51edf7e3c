//! A listening unix socket at a path: made, found stale, removed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

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
    /// Gives the file at `path`, made a moment ago, its owner, group and mode. Follows no link that
    /// somebody has put in its place.
    fn give(self, path: &Path) -> Result<(), Errno> {
        use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
        if self == SocketFile::default() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        if self.owner.is_some() || self.group.is_some() {
            let (owner, group) = (self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
            rustix::fs::chownat(&file, "", owner, group, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = self.mode {
            // There is no fchmod of a path's descriptor; /proc leads to the file itself (proc(5)).
            let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmodat(CWD, itself, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        Ok(())
    }
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
            socket,
            path: path.clone(),
            file: identity(&path),
        };
        // Nobody can connect before it listens.
        file.give(&path).map_err(failed)?;
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

    /// From now on the file goes when this is dropped.
    pub fn own(&mut self) {
        self.file = identity(&self.path);
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
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // Connected, or the queue of connections is full: somebody listens.
        Ok(()) | Err(Errno::AGAIN) => Err(ServerError::InUse {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}
