//! A listening unix socket at a path: made, found stale, removed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::vhost::limits::PATH_MAX;
use crate::vhost::protocol::server_error::ServerError;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;

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
    /// Who may connect is for the caller to decide: by the permissions of the directory, or by the
    /// umask, which the file's mode follows.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
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
        let file = identity(&path);
        let listener = Listener {
            socket,
            path: path.clone(),
            file,
        };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
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
