//! Descriptors that outlive the process which uses them.
//!
//! # Theory of operation
//!
//! What a daemon holds goes with it, when it is killed: a TAP device, with its addresses and
//! routes, is there for as long as a descriptor of it is open anywhere. So a second process has
//! another descriptor of each. That is all it does: it parses nothing, touches no frame and knows
//! of no NIC, so that there is next to nothing that it could end of ([`serve`]).
//!
//! The daemon is its one client at a time ([`Keeper`]): it says what is to be held, by a name and
//! with a note of its own, and what is not any more. When it is gone the next one gets all of it,
//! and what was held stays held meanwhile: a daemon that dies while it takes over has taken nothing
//! away. When the keeper is gone, the daemon, which has a descriptor of each as well, gives all to
//! the next keeper. A daemon that another one gives way to while both run is handed all by that one
//! ([`Keeper::handed`]), and becomes the client when the other has [left](Keeper::leave).
//!
//! A process and not systemd's descriptor store, since it is the same with systemd, in a container
//! and by hand; and what is held is there again when the daemon is *stopped* and started, too.

mod client;
mod message;
mod server;

pub use client::{Held, Keeper};
pub use message::{Parts, receive_parts, send_parts};
pub use server::{Listener, bind, serve, serve_one};

use std::path::PathBuf;

/// Bytes of a name at most.
pub const NAME_MAX: usize = 255;
/// Bytes of a note at most.
pub const NOTE_MAX: usize = 16_384;
/// Descriptors of one name at most: what the system passes on at once (SCM_MAX_FD).
pub const FDS_MAX: usize = sys::fd_message::FDS_MAX;
/// Names at most: four for each NIC of a host.
pub const HELD_MAX: usize = 65_536;

/// Why something is not held.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there, or the connection broke.
    #[error("the keeper {}: {error}", .path.display())]
    Gone {
        /// Its socket.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It serves one daemon at a time.
    #[error(
        "the keeper {} is another daemon's, which is still there, or does not answer",
        .0.display()
    )]
    InUse(PathBuf),
    /// The keeper said no.
    #[error("the keeper {} refuses '{}': {why}", .path.display(), .name.escape_debug())]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// What was asked for.
        name: String,
        /// Why, in its words.
        why: String,
    },
}
