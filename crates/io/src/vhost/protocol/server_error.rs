//! Why a NIC's socket is not there: what the server, its listeners and its clients say.

use std::io;
use std::path::PathBuf;

use crate::vhost::limits::PATH_MAX;
use crate::vhost::protocol::sink::PortKey;

/// Why a NIC's socket is not there. Each message names the path.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The path cannot be a unix socket's.
    #[error(
        "socket path '{}' is longer than {PATH_MAX} bytes or contains a zero byte",
        path.display()
    )]
    Path {
        /// Where the socket was to be.
        path: PathBuf,
    },
    /// The directory does not exist.
    #[error("socket '{}': its directory does not exist", path.display())]
    Directory {
        /// Where the socket was to be.
        path: PathBuf,
    },
    /// Somebody listens there.
    #[error("socket '{}': another process listens on it", path.display())]
    InUse {
        /// Where the socket was to be.
        path: PathBuf,
    },
    /// Something else is there, and is left alone.
    #[error("socket '{}': a file that is not a socket is in its place", path.display())]
    NotASocket {
        /// Where the socket was to be.
        path: PathBuf,
    },
    /// Another file than the one that was made lies there, and is given to nobody.
    #[error("socket '{}': somebody has put another file in its place", path.display())]
    Replaced {
        /// Where the socket is.
        path: PathBuf,
    },
    /// It cannot be told for sure that the file there is the one that was made.
    #[error(
        "socket '{}': others may put another file in its place, so that it is given to nobody: \
         it takes CAP_NET_ADMIN, or a folder that only the daemon's user and root write to",
        path.display()
    )]
    Shared {
        /// Where the socket is.
        path: PathBuf,
    },
    /// The system refused.
    #[error("socket '{}': {error}", path.display())]
    Socket {
        /// Where the socket was to be.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// The key is in use: a mistake of the caller's.
    #[error("socket '{}': port {} is open already", path.display(), key.0)]
    KeyInUse {
        /// Where the socket was to be.
        path: PathBuf,
        /// The key.
        key: PortKey,
    },
    /// The server's thread has ended.
    #[error("the vhost-user server has stopped")]
    Stopped,
}
