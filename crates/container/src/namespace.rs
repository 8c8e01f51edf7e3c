//! Network namespaces as callers name them: by a name of `ip netns`, a path, or a process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, fstatfs, open, openat2, stat};
use rustix::io::Errno;

/// Where `ip netns` keeps them by name.
const NAMED: &str = "/run/netns";
/// The file system of namespaces (linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A namespace that is there.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
    shown: String,
    by_process: bool,
}

/// Why there is none. The sentence names what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there, and may come.
    #[error("network namespace {0} is not there")]
    Missing(String),
    /// It cannot be used.
    #[error("network namespace {0}: {1}")]
    Refused(String, String),
}

/// Where a namespace is, by what it is called: a path is absolute, digits alone are a process, and
/// anything else is a name.
pub fn path_of(called: &str) -> PathBuf {
    if called.starts_with('/') {
        return called.into();
    }
    if is_process(called) {
        return format!("/proc/{called}/ns/net").into();
    }
    Path::new(NAMED).join(called)
}

fn is_process(called: &str) -> bool {
    !called.is_empty() && called.bytes().all(|byte| byte.is_ascii_digit())
}

/// Opens what a path leads to, unless the way leads by a process: by one of the links to what is a
/// process's below /proc (`ns/net`, `root`, `cwd`, `fd/3`), wherever that is mounted.
fn open_by_no_process(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

impl Namespace {
    /// Opens one, if it is not the caller's own.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(called: &str) -> Result<Namespace, Error> {
        let path = path_of(called);
        let shown = match called.starts_with('/') {
            true => called.to_owned(),
            false => format!("{called} ({})", path.display()),
        };
        let refused = |why: String| Error::Refused(shown.clone(), why);
        let failed = |errno: Errno| match errno {
            Errno::NOENT | Errno::SRCH => Error::Missing(shown.clone()),
            errno => refused(std::io::Error::from(errno).to_string()),
        };
        // Looked at first, and opened only when it is one: a path may lead to anything.
        let seen = open_by_no_process(&path);
        // Where this cannot be told, it may be one.
        let by_process = seen.is_err();
        let seen = seen.or_else(|_| open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()));
        let seen = seen.map_err(failed)?;
        let kind = fstatfs(&seen).map_err(failed)?.f_type;
        if u64::try_from(kind).ok() != Some(NSFS_MAGIC) {
            // `ip netns` leaves a plain file where it is to be mounted, and so does a reboot.
            return Err(match path.starts_with(NAMED) {
                true => Error::Missing(shown.clone()),
                false => refused("this is no network namespace".into()),
            });
        }
        let own = stat("/proc/self/ns/net").map_err(failed)?;
        let there = fstat(&seen).map_err(failed)?;
        if (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino) {
            return Err(refused("this is the daemon's own".into()));
        }
        let again = format!("/proc/self/fd/{}", seen.as_raw_fd());
        let fd = open(again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        Ok(Namespace {
            fd,
            shown,
            by_process,
        })
    }

    /// It is called by a process, whose number may be a stranger's when it has ended.
    pub fn is_by_process(&self) -> bool {
        self.by_process
    }

    /// Its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// How messages name it.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_a_name_a_path_or_a_process() {
        for (called, path) in [
            ("c1", "/run/netns/c1"),
            ("/run/docker/netns/x", "/run/docker/netns/x"),
            ("123", "/proc/123/ns/net"),
            ("12a", "/run/netns/12a"),
        ] {
            assert_eq!(path_of(called), Path::new(path));
        }
    }

    #[test]
    fn a_process_may_be_meant_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc/self/ns/net", &link).unwrap();
        let beside = folder.path().join("beside");
        std::os::unix::fs::symlink("link", &beside).unwrap();
        let file = folder.path().join("netns");
        std::fs::write(&file, "").unwrap();
        let through = |link: &str| PathBuf::from(format!("/proc/self/{link}{}", file.display()));
        for by_process in [
            path_of(&std::process::id().to_string()),
            "/proc/self/ns/net".into(),
            "/proc/self/task/../ns/net".into(),
            "//proc/./self/ns/net".into(),
            through("root"),
            through("task/../root"),
            link,
            beside,
        ] {
            let opened = open_by_no_process(&by_process).map(drop);
            assert_eq!(opened, Err(Errno::LOOP), "{}", by_process.display());
        }
        let by_name = folder.path().join("name");
        std::os::unix::fs::symlink("netns", &by_name).unwrap();
        for other in [file.as_path(), &by_name, Path::new("/proc/self/../version")] {
            let opened = open_by_no_process(other).map(drop);
            assert_eq!(opened, Ok(()), "{}", other.display());
        }
    }

    #[test]
    fn what_is_none_is_said_to_be_none() {
        let why = |called: &str| Namespace::open(called).unwrap_err().to_string();
        assert!(
            why("bf-not-there").contains("bf-not-there (/run/netns/bf-not-there) is not there")
        );
        assert!(why("/etc/passwd").contains("/etc/passwd: this is no network namespace"));
        assert!(why("/proc/self/ns/net").contains("the daemon's own"));
        let missing = Namespace::open("/run/netns/bf-not-there").unwrap_err();
        assert!(matches!(missing, Error::Missing(_)));
    }
}
