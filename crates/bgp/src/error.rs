//! What can go wrong.

use std::path::PathBuf;

/// Each message names the thing and the value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of settings cannot be read.
    #[error("{} cannot be read: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of settings says what cannot be.
    #[error("{}: {why}", file.display())]
    Settings {
        /// Which.
        file: PathBuf,
        /// Section, key and value.
        why: String,
    },
    /// BIRD is not there, or does not start.
    #[error("{program} cannot be run, which speaks BGP (Debian: bird2): {source}")]
    Program {
        /// What was to be run.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// Whether there is a user for BIRD cannot be told.
    #[error("the user {user} cannot be looked up: {source}")]
    User {
        /// Whom.
        user: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// BIRD does not take what we wrote.
    #[error("BIRD refuses its configuration: {0}")]
    Refused(String),
    /// BIRD has ended, or does not answer.
    #[error("BIRD does not answer: {0}")]
    Silent(std::io::Error),
    /// A file of BIRD's cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
