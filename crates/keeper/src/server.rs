//! The process that holds: one client at a time, one message after the other.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind as bind_to, connect,
    listen, socket_with,
};
use rustix::process::geteuid;

use crate::HELD_MAX;
use crate::message::{Message, Verb, receive, send};

/// How long a client may take no answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may say nothing at first: less than a daemon waits for the keeper.
const SPEAKS_WITHIN: Duration = Duration::from_secs(1);

/// How long a keeper that is to end when nothing is held waits for its first client, who has
/// started it and comes at once: it ends all the same where that was killed before it came, or
/// where another keeper has taken the place of its socket.
const FIRST_WITHIN: Duration = Duration::from_secs(30);

/// What is held, by name.
type All = BTreeMap<String, (Vec<u8>, Vec<OwnedFd>)>;

/// How long a keeper that makes its socket waits for another one that does in the same folder.
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// A socket that [`serve`] takes.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Its file: device and inode.
    file: (u64, u64),
}

impl Listener {
    /// Takes its file away, unless another keeper's is in its place.
    pub fn remove_file(&self) {
        let there = rustix::fs::lstat(&self.path).map(|stat| (stat.st_dev, stat.st_ino));
        if there == Ok(self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes a socket. It is its owner's alone (0600). One that nobody listens on any more is replaced;
/// where a keeper listens it is an error.
pub fn bind(path: &Path) -> io::Result<Listener> {
    // One that is bound and does not listen yet is not one that nobody listens on any more.
    let _turn = turn(path);
    let address = SocketAddrUnix::new(path)?;
    let make = || {
        socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
    };
    match connect(make()?, &address) {
        Ok(()) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(rustix::io::Errno::CONNREFUSED) => rustix::fs::unlink(path)?,
        Err(_) => (),
    }
    let listener = make()?;
    // Until it listens nobody can connect, whatever its mode.
    bind_to(&listener, &address)?;
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o600), AtFlags::empty())?;
    let stat = rustix::fs::lstat(path)?;
    listen(&listener, 16)?;
    Ok(Listener {
        socket: listener,
        path: path.to_owned(),
        file: (stat.st_dev, stat.st_ino),
    })
}

/// The one turn of a socket's folder, which ends with what is given. `None`: somebody keeps it for
/// himself, which is to keep no keeper from starting.
fn turn(path: &Path) -> Option<OwnedFd> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let until = Instant::now() + TURN_WITHIN;
    while let Err(e) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        if e != rustix::io::Errno::WOULDBLOCK || Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(folder)
}

/// Serves daemons, one after the other; others wait. With `until_idle` it returns when the last one
/// has left nothing, or when none has come within 30 s.
pub fn serve(listener: &Listener, until_idle: bool) -> io::Result<()> {
    match until_idle && !is_called(&listener.socket, FIRST_WITHIN)? {
        true => Ok(()),
        false => serve_all(&listener.socket, until_idle),
    }
}

/// There is somebody who connects, or something that is said, within this time.
fn is_called(socket: &OwnedFd, within: Duration) -> io::Result<bool> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
}

fn serve_all(listener: &OwnedFd, until_idle: bool) -> io::Result<()> {
    let mut all = All::new();
    loop {
        let client = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(_) => {
                // Out of descriptors or memory: to end would lose all that is held.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let ours = [0, geteuid().as_raw()];
        if !socket_peercred(&client).is_ok_and(|peer| ours.contains(&peer.uid.as_raw())) {
            continue;
        }
        // Without that a client could stop all others; one that goes on is given up.
        if set_socket_timeout(&client, Timeout::Send, Some(PATIENCE)).is_err()
            || !is_spoken_to(&client)
        {
            continue;
        }
        // Whatever ends it, what it has given stays.
        let _ = attend(&client, &mut all);
        if until_idle && all.is_empty() {
            return Ok(());
        }
    }
}

/// A daemon asks what is held as soon as it has connected, and may then be silent as long as it
/// likes. Who says nothing at all would keep the next daemon waiting.
fn is_spoken_to(client: &OwnedFd) -> bool {
    is_called(client, SPEAKS_WITHIN).unwrap_or(false)
}

/// Does what one client says until it is gone, with nothing held before: what a keeper does with
/// each, for whoever drives that without one.
pub fn serve_one(client: &OwnedFd) -> io::Result<()> {
    attend(client, &mut All::new())
}

/// Does what one client says until it is gone.
fn attend(client: &OwnedFd, all: &mut All) -> io::Result<()> {
    loop {
        let message = match receive(client) {
            Ok(None) => return Ok(()),
            Ok(Some(message)) => message,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                send(client, Verb::Refused, "", e.to_string().as_bytes(), &[])?;
                continue;
            }
            // What it said before that is still to come.
            Err(e) if has_ended(&e) => continue,
            Err(e) => return Err(e),
        };
        let refused = match message.verb {
            Verb::Hold => hold(message, all).err(),
            Verb::Release => {
                all.remove(&message.name);
                None
            }
            Verb::List => {
                for (name, (note, fds)) in &*all {
                    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                    send(client, Verb::Item, name, note, &fds)?;
                }
                None
            }
            Verb::Done | Verb::Item | Verb::Refused => Some("a client does not say that"),
        };
        let answered = match refused {
            None => send(client, Verb::Done, "", b"", &[]),
            Some(why) => send(client, Verb::Refused, "", why.as_bytes(), &[]),
        };
        match answered {
            Err(e) if has_ended(&e) => (),
            answered => answered?,
        }
    }
}

/// A client has ended, and has not heard all answers.
fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn hold(message: Message, all: &mut All) -> Result<(), &'static str> {
    if message.fds.is_empty() {
        return Err("there is no descriptor with it");
    }
    if message.name.is_empty() {
        return Err("there is no name with it");
    }
    if all.len() >= HELD_MAX && !all.contains_key(&message.name) {
        return Err("as many are held as can be");
    }
    all.insert(message.name, (message.note, message.fds));
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socketpair};

    use super::*;

    #[test]
    fn who_is_never_called_is_told_so_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keeper");
        let listener = bind(&path).unwrap();
        let soon = Duration::from_millis(10);
        let began = Instant::now();
        assert!(!is_called(&listener.socket, soon).unwrap());
        assert!(began.elapsed() >= soon);
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let client = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(is_called(&listener.socket, Duration::ZERO).unwrap());
    }

    #[test]
    fn all_is_done_that_was_said_by_one_who_ended_without_hearing_the_answers() {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (client, ours) = pair.unwrap();
        let names = ["a", "b", "c"];
        let mut all: All = names
            .into_iter()
            .map(|name| (name.to_owned(), (Vec::new(), Vec::new())))
            .collect();
        // An answer that nobody hears.
        send(&ours, Verb::Done, "", b"", &[]).unwrap();
        for name in names {
            send(&client, Verb::Release, name, b"", &[]).unwrap();
        }
        drop(client);
        attend(&ours, &mut all).unwrap();
        assert!(all.is_empty(), "{:?}", all.keys());
    }
}
