//! What can be wrong with a store. Each is a sentence that names the file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Why a store cannot be opened, read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The operating system refuses.
    #[error("the store {} cannot be {what}: {why}", .path.display())]
    Io {
        /// The file or its folder.
        path: PathBuf,
        /// What was tried, as a participle.
        what: &'static str,
        /// What it said.
        why: String,
    },
    /// Another process has it open.
    #[error(
        "the store {} is in use by another process: stop that one first, or name another folder \
         with --store", .0.display()
    )]
    InUse(PathBuf),
    /// Its content is not what was written.
    #[error(
        "the store {} is damaged ({why}): put a copy of it back, or move it away to start with \
         nothing", .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// It is a database, and not one of ours.
    #[error("{} is a database of another program", .0.display())]
    Foreign(PathBuf),
    /// A newer version wrote it.
    #[error(
        "the store {} was written by a newer version (format {found}; this one knows {known}): \
         start that version, or name another folder with --store", .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest that this version knows.
        known: u64,
    },
    /// A newer version wrote it, in a format that this one knows.
    #[error(
        "the store {} was written by a newer version: it has objects of kind {kind}, which this \
         one does not know; start that version, or name another folder with --store",
        .path.display()
    )]
    NewerKind {
        /// The file.
        path: PathBuf,
        /// The kind's number.
        kind: u8,
    },
    /// A change was written, and the disk failed before it was synced.
    #[error("the store {} could not be synced, and the change is lost", .0.display())]
    Lost(PathBuf),
    /// This process gives way to another one, which has it.
    #[error("the store {} is another process's by now, to which this one gives way", .0.display())]
    Given(PathBuf),
    /// The disk failed, and the file cannot be opened again.
    #[error("the store {} has failed, and cannot be opened again", .0.display())]
    Closed(PathBuf),
    /// The history does not reach so far.
    #[error("there is no revision {revision}: those from {oldest} to {newest} are kept")]
    NoRevision {
        /// What was asked for.
        revision: u64,
        /// The oldest state that can be had.
        oldest: u64,
        /// The state of now.
        newest: u64,
    },
    /// A part's revision, of which there were too many.
    #[error("revision {revision} is not kept by itself: what it changed is in revision {next}")]
    Merged {
        /// What was asked for.
        revision: u64,
        /// The next one that is kept.
        next: u64,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, what: &'static str, why: impl Display) -> Error {
        Error::Io {
            path: path.to_owned(),
            what,
            why: why.to_string(),
        }
    }

    pub(crate) fn database(path: &Path, error: redb::Error) -> Error {
        match error {
            redb::Error::DatabaseAlreadyOpen => Error::InUse(path.to_owned()),
            redb::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Error::damaged(path, error)
            }
            redb::Error::Io(error) => Error::io(path, "used", error),
            redb::Error::PreviousIo => Error::io(path, "used", "the disk has failed"),
            error @ (redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::RepairAborted
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)) => Error::damaged(path, error),
            error => Error::io(path, "used", error),
        }
    }

    pub(crate) fn damaged(path: &Path, why: impl Display) -> Error {
        Error::Damaged {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}
