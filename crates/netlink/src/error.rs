//! The one error of the crate.

use std::net::IpAddr;

/// Why the kernel could not be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket itself failed.
    #[error("cannot {action} a netlink socket: {source}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel refused a request.
    #[error("the kernel refused to {action}: {source}")]
    Refused {
        /// What was asked.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// The kernel's answer is not what the protocol says.
    #[error("the kernel's answer to a request to {0} cannot be read")]
    Malformed(&'static str),
    /// What was listed changed meanwhile, each time that it was asked for: something may be
    /// missing.
    #[error(
        "the kernel's answer to a request to {0} is not whole: what there is changes meanwhile"
    )]
    Interrupted(&'static str),
    /// There is no route.
    #[error("the kernel has no route to {dst}: {source}")]
    Unreachable {
        /// The destination.
        dst: IpAddr,
        /// Its reason: unreachable, prohibited, invalid for a blackhole.
        source: std::io::Error,
    },
    /// The mirror's task has ended.
    #[error("the mirror of the kernel's tables has ended")]
    Ended,
}
