//! The file that a listening unix socket lies at (unix(7)): which one it is, who else could have
//! put another in its place, and whether somebody listens at one that may not be asked.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;

/// linux/un.h.
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
/// What somebody listens on, in the flags that /proc/net/unix tells (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 1 << 16;

/// The file that this socket was bound to, opened for nothing (O_PATH), wherever it is by now.
///
/// # Errors
/// `EPERM`: that takes CAP_NET_ADMIN in the socket's network namespace. `ENOENT`: it has no file.
pub fn bound(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: this command takes no argument, and reads and writes no memory of ours.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the call succeeded, so that this is a new descriptor, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the files of a folder are what root and this process have put there: others may neither
/// write to it nor give anybody the right to.
pub fn only_ours(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|meta| {
        let ours = [0, geteuid().as_raw()].contains(&meta.uid());
        // The group's bits stand for all that an access list names beside it (acl(5)).
        ours && meta.mode() & 0o022 == 0
    })
}

/// As [`only_ours`], of one file: it is this process's own and lies where files can be taken away
/// by their owners alone (the sticky bit, as /tmp has it).
pub fn stays_ours(folder: &Path, owner: u32) -> bool {
    only_ours(folder)
        || std::fs::metadata(folder).is_ok_and(|meta| {
            let trusted = [0, geteuid().as_raw()].contains(&meta.uid());
            trusted && meta.mode() & 0o1000 != 0 && owner == geteuid().as_raw()
        })
}

/// Where somebody in this network namespace listened at one moment, by the kernel's list of
/// sockets: nobody is asked, and no right to the files is needed. Of who listens in another network
/// namespace it knows nothing: daemons of several namespaces are not to share a folder.
pub struct Listeners {
    /// By the names of their files, as each has spelt where it is.
    by_name: HashMap<Vec<u8>, Vec<PathBuf>>,
}

impl Listeners {
    /// As the kernel has them now.
    ///
    /// # Errors
    /// Its list of sockets cannot be read.
    pub fn now() -> io::Result<Listeners> {
        let list = std::fs::read("/proc/self/net/unix")?;
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for bound in list.split(|byte| *byte == b'\n').filter_map(listener) {
            let paths = by_name.entry(file_name(bound).to_vec()).or_default();
            paths.push(OsStr::from_bytes(bound).into());
        }
        Ok(Listeners { by_name })
    }

    /// Somebody has said that it listens at this path, spelt as it is. No look at the file is
    /// taken.
    pub fn has_spelt(&self, path: &Path) -> bool {
        self.of_name(path).iter().any(|bound| bound == path)
    }

    /// Whether somebody listens at a socket's file, whatever the path was that it was told. Of a
    /// name that the list cannot have, somebody does.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn has(&self, path: &Path) -> io::Result<bool> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        // The list has a socket a line, and no way to write a name that breaks one.
        if name.is_empty() || name.contains(&b'\n') {
            return Ok(true);
        }
        let this = std::fs::symlink_metadata(path)?;
        // It is spelt as whoever listens has spelt it: by another folder that leads here, or from a
        // folder of its own.
        let is_here = |bound: &PathBuf| match std::fs::symlink_metadata(bound) {
            Ok(other) if bound.is_absolute() && other.file_type().is_socket() => {
                (other.dev(), other.ino()) == (this.dev(), this.ino())
            }
            _ => true,
        };
        Ok(self.of_name(path).iter().any(is_here))
    }

    fn of_name(&self, path: &Path) -> &[PathBuf] {
        let name = path.file_name().unwrap_or_default().as_bytes();
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Where a line's socket was bound, if it listens: `Num RefCount Protocol Flags Type St Inode
/// Path`.
fn listener(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    let mut words = std::iter::from_fn(|| {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ')?;
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    });
    let flags = words.nth(3)?;
    words.nth(2)?;
    let flags = u32::from_str_radix(std::str::from_utf8(flags).ok()?, 16).ok()?;
    let path = rest.strip_prefix(b" ")?;
    (flags & ACCEPTS != 0).then_some(path)
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_s_file_is_its_own_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let listener = UnixListener::bind(&path).unwrap();
        let file = match bound(listener.as_fd()) {
            Err(Errno::PERM) => {
                eprintln!("skipped: it takes CAP_NET_ADMIN");
                return;
            }
            file => file.unwrap(),
        };
        let made = std::fs::symlink_metadata(&path).unwrap().ino();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_ino, made);
        std::fs::rename(&path, dir.path().join("b")).unwrap();
        std::fs::write(&path, "another").unwrap();
        let file = bound(listener.as_fd()).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_ino, made);
        let (nameless, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(bound(nameless.as_fd()).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn a_listener_is_found_by_any_name_of_its_file_and_a_left_file_is_not_one() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let alive = UnixListener::bind(link.join("with a blank")).unwrap();
        let now = Listeners::now().unwrap();
        assert!(now.has(&real.join("with a blank")).unwrap());
        // One of the same name in another folder is another.
        let other = dir.path().join("with a blank");
        drop(UnixListener::bind(&other).unwrap());
        assert!(!Listeners::now().unwrap().has(&other).unwrap());
        assert!(now.has_spelt(&link.join("with a blank")));
        assert!(!now.has_spelt(&other) && !now.has_spelt(&real.join("with a blank")));
        drop(alive);
        let now = Listeners::now().unwrap();
        assert!(!now.has(&real.join("with a blank")).unwrap());
        assert!(now.has(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn a_folder_is_ours_alone_where_nobody_else_writes() {
        let dir = tempfile::tempdir().unwrap();
        let us = geteuid().as_raw();
        for (mode, alone, own_stays) in [
            (0o755, true, true),
            (0o775, false, false),
            (0o757, false, false),
            (0o1777, false, true),
        ] {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(only_ours(dir.path()), alone, "{mode:o}");
            assert_eq!(stays_ours(dir.path(), us), own_stays, "{mode:o}");
            assert_eq!(stays_ours(dir.path(), us + 1), alone, "{mode:o}");
        }
        assert!(!only_ours(&dir.path().join("missing")));
    }
}
