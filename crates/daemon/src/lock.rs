//! One start at a time in a folder, and one daemon an uplink.
//!
//! Daemons may share a folder of sockets, as those of the original could; each has API sockets and
//! NICs of its own. What must not be done at once is removing what a crash left there and binding
//! beside it: whoever starts locks the folders meanwhile. The lock is on the folder itself, so that
//! there is no file that a link could lead elsewhere, and nothing that stays behind. An uplink is
//! held by a [name](HeldName) of the network namespace, which goes with its process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use sys::held_name::{self, HeldName};

/// For a daemon that was killed a moment ago to be gone, and for others that start.
pub const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

/// The right to remove and bind sockets in folders, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    _folders: Vec<File>,
}

impl Turn {
    /// Makes the folders when missing and locks them, one after the other in an order that all keep
    /// to.
    pub fn take(folders: &[PathBuf]) -> Result<Turn, String> {
        let mut opened = Vec::new();
        for folder in folders {
            let failed = |e: &dyn std::fmt::Display| {
                format!("the socket directory {}: {e}", folder.display())
            };
            std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
            opened.push(folder.canonicalize().map_err(|e| failed(&e))?);
        }
        opened.sort();
        opened.dedup();
        let mut locked = Vec::new();
        for folder in &opened {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let file = rustix::fs::open(folder, flags, Mode::empty())
                .map_err(|e| format!("the socket directory {}: {e}", folder.display()))?;
            // In a folder like /tmp anybody can hold the lock; nobody is to keep daemons from
            // starting by that.
            if !within(PATIENCE, || {
                flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            }) {
                tracing::warn!(
                    "the folder {} has been locked for {} s by another process, and is not waited \
                     for",
                    folder.display(),
                    PATIENCE.as_secs()
                );
            }
            locked.push(File::from(file));
        }
        Ok(Turn { _folders: locked })
    }
}

/// Tries until it works or the time is over; at least once.
pub fn within(time: Duration, mut works: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if works() {
            return true;
        }
        if start.elapsed() >= time {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
}

/// An uplink of this daemon, until this is dropped.
#[derive(Debug)]
pub struct Uplink {
    name: HeldName,
}

impl Uplink {
    /// One that another daemon has, whose place this one takes. The error is a sentence.
    pub fn handed(interface: &str, name: OwnedFd) -> Result<Uplink, String> {
        let name = HeldName::handed(name);
        let name = name.map_err(|e| format!("the uplink {interface} cannot be taken: {e}"))?;
        Ok(Uplink { name })
    }

    /// For the next daemon.
    pub fn hand_over(&self) -> std::io::Result<OwnedFd> {
        self.name.try_clone()
    }

    /// Takes an interface of this network namespace; the error names the process that has it.
    /// `None`: somebody pretends to have it who is neither root nor our user nor may change the
    /// network, or does not answer and is neither of the first two.
    pub fn take(interface: &str) -> Result<Option<Uplink>, String> {
        let name = format!("butterflyd/uplink/{interface}");
        let mut taken = HeldName::take(&name);
        within(PATIENCE, || {
            if let Err(Errno::ADDRINUSE) = taken {
                taken = HeldName::take(&name);
            }
            taken.as_ref().err() != Some(&Errno::ADDRINUSE)
        });
        match taken {
            Ok(held) => return Ok(Some(Uplink { name: held })),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(format!("the uplink {interface} cannot be taken: {e}")),
        }
        // Whoever may bind names here can keep one from us, by listening or by not answering: that
        // must not keep the daemon down.
        match held_name::holder(&name) {
            Some(peer) if peer.is_trusted() => Err(format!(
                "the uplink {interface} is that of process {} already: stop it first, or name \
                 another interface with --uplink",
                peer.pid
            )),
            Some(peer) => {
                tracing::warn!(
                    "process {} of uid {} pretends to have the uplink {interface}",
                    peer.pid,
                    peer.uid
                );
                Ok(None)
            }
            None if held_name::owner(&name).is_some_and(held_name::is_ours) => Err(format!(
                "the uplink {interface} is that of another daemon, which is asked by so many that \
                 its process is not known: stop it first, or name another interface with --uplink"
            )),
            None => {
                tracing::warn!(
                    "somebody who does not answer pretends to have the uplink {interface}"
                );
                Ok(None)
            }
        }
    }
}

/// The folder of a socket.
pub fn folder(socket: &Path) -> PathBuf {
    match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    #[test]
    fn the_second_waits_for_the_first_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("made/on/the/way");
        let first = Turn::take(std::slice::from_ref(&folder)).unwrap();
        let let_go = Arc::new(AtomicBool::new(false));
        let (other, has_let_go) = (folder.clone(), let_go.clone());
        let second = std::thread::spawn(move || {
            let start = Instant::now();
            let twice = [other.clone(), other.join("../way")];
            Turn::take(&twice).unwrap();
            assert!(has_let_go.load(Ordering::SeqCst), "it has not waited");
            start.elapsed()
        });
        std::thread::sleep(Duration::from_millis(100));
        let_go.store(true, Ordering::SeqCst);
        drop(first);
        let waited = second.join().unwrap();
        assert!(waited < PATIENCE, "{waited:?}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }

    /// Any user here may bind the name: who does and does not answer keeps nobody from starting.
    #[test]
    fn a_name_that_is_held_without_an_answer_is_no_uplink_of_anybody() {
        let interface = format!("held{}", std::process::id());
        let name = format!("butterflyd/uplink/{interface}");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        assert!(Uplink::take(&interface).unwrap().is_none());
        drop(socket);
        let first = Uplink::take(&interface).unwrap();
        assert!(first.is_some());
        let error = Uplink::take(&interface).unwrap_err();
        let own = format!("process {}", std::process::id());
        assert!(error.contains(&own), "{error}");
    }

    /// Any user may ask who has it, and not wait for the answer.
    #[test]
    fn who_asks_without_end_takes_no_uplink_from_its_daemon() {
        let interface = format!("asked{}", std::process::id());
        let name = format!("butterflyd/uplink/{interface}");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let of_unix = || {
            let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
            rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap()
        };
        // A daemon's, which as many keep busy as a shorter queue has place for.
        let daemon = of_unix();
        rustix::net::bind(&daemon, &address).unwrap();
        rustix::net::listen(&daemon, 3).unwrap();
        let mut asking = Vec::new();
        let refused = loop {
            asking.push(of_unix());
            if let Err(e) = rustix::net::connect(asking.last().unwrap(), &address) {
                break e;
            }
        };
        assert_eq!(refused, Errno::AGAIN);
        let error = Uplink::take(&interface).unwrap_err();
        assert!(
            error.contains(&format!("{interface} is that of another daemon")),
            "{error}"
        );
        drop(daemon);
        assert!(Uplink::take(&interface).unwrap().is_some());
    }

    #[test]
    fn a_link_in_the_folder_is_not_followed_and_a_folder_s_link_is() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, precious) = (dir.path().join("run"), dir.path().join("precious"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, folder.join("butterflyd.lock")).unwrap();
        std::os::unix::fs::symlink(&folder, dir.path().join("var-run")).unwrap();
        drop(Turn::take(&[dir.path().join("var-run")]).unwrap());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(Turn::take(&[precious]).unwrap_err().contains("precious"));
    }

    #[test]
    fn an_uplink_is_one_daemon_s() {
        let name = format!("test{}", std::process::id());
        let first = Uplink::take(&name).unwrap();
        assert!(first.is_some());
        let error = Uplink::take(&name).unwrap_err();
        assert!(
            error.contains(&format!("{name} is that of process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        assert!(Uplink::take(&name).unwrap().is_some());
    }
}
