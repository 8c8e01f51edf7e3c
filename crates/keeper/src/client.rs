//! The daemon's side.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use rustix::process::{Uid, geteuid};
use sys::socket_file::only_ours;

use crate::message::{Message, Verb, receive, send};
use crate::{Error, FDS_MAX, NOTE_MAX};

/// How long the keeper may take until it is there for this daemon. Another daemon that is ending
/// has as long.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take to answer then. Threads of the daemon's wait for it; one that takes longer
/// is given up until it is [mended](Keeper::mend).
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);

/// Answers that may wait at the most: of datagrams a socket takes few (net.unix.max_dgram_qlen).
const OWED_MAX: usize = 4;

/// Descriptors, and what was noted beside them.
#[derive(Debug)]
pub struct Held {
    /// What [`Keeper::hold`] was told.
    pub note: Vec<u8>,
    /// Others of the same things, in the same order. One at least.
    pub fds: Vec<OwnedFd>,
}

impl Held {
    fn try_clone(&self) -> io::Result<Held> {
        let fds = self.fds.iter().map(OwnedFd::try_clone);
        Ok(Held {
            note: self.note.clone(),
            fds: fds.collect::<Result<_, _>>()?,
        })
    }

    /// The first of them: of what has but one.
    pub fn into_first(self) -> Option<OwnedFd> {
        self.fds.into_iter().next()
    }
}

/// A connection to the keeper, for the life of a daemon.
pub struct Keeper {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// `None`: the connection is broken, or not made yet.
    socket: Option<OwnedFd>,
    /// Answers of its that nobody has heard yet.
    owed: usize,
    /// Another daemon is the client still: what is said is for later.
    apart: bool,
    /// Left by the daemon before, and not taken up by this one.
    left: BTreeMap<String, Held>,
    /// What this daemon wants to be held.
    ours: BTreeMap<String, Held>,
    /// What of it came since [`begin`](Keeper::begin), while somebody may have it put back.
    begun: Option<BTreeSet<String>>,
}

impl Keeper {
    /// Connects, and gets all that a daemon before has left.
    pub fn connect(path: &Path) -> Result<Keeper, Error> {
        let socket = open(path)?;
        let left = list(&socket).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::InUse(path.to_owned()),
            _ => gone(path, error),
        })?;
        answers_soon(&socket).map_err(|error| gone(path, error))?;
        let state = State {
            socket: Some(socket),
            owed: 0,
            apart: false,
            left,
            ours: BTreeMap::new(),
            begun: None,
        };
        Ok(Keeper {
            path: path.to_owned(),
            state: Mutex::new(state),
        })
    }

    /// The keeper of a daemon that is about to give way to this one: nothing is said to it before
    /// [`enter`](Keeper::enter). What that daemon has held comes by
    /// [`leave_here`](Keeper::leave_here).
    pub fn handed(path: &Path) -> Keeper {
        let state = State {
            socket: None,
            owed: 0,
            apart: true,
            left: BTreeMap::new(),
            ours: BTreeMap::new(),
            begun: None,
        };
        Keeper {
            path: path.to_owned(),
            state: Mutex::new(state),
        }
    }

    /// Something that the daemon before has held, by its own word.
    pub fn leave_here(&self, name: String, held: Held) {
        self.lock().left.insert(name, held);
    }

    /// All that this daemon has held whose name is such, to be handed on; also what a daemon before
    /// has left and this one has not taken up: the next one may.
    ///
    /// # Errors
    /// There are no descriptors to be had.
    pub fn all(&self, which: impl Fn(&str) -> bool) -> io::Result<Vec<(String, Held)>> {
        let state = self.lock();
        let all = state.ours.iter().chain(&state.left);
        let all = all.filter(|(name, _)| which(name));
        all.map(|(name, held)| Ok((name.clone(), held.try_clone()?)))
            .collect()
    }

    /// Becomes its client, when the one before has [left](Keeper::leave), and has all held that is
    /// here. An error: nobody is its client, and what the daemon before had held still is; `mend`
    /// tries again.
    pub fn enter(&self) -> Result<(), Error> {
        // Who watches waits until it is known what came of it.
        let entered = self.connect_if(|state| state.socket.is_none());
        self.lock().apart = false;
        entered
    }

    /// Ends the connection for good, so that the next daemon can have it. All stays held.
    pub fn leave(&self) {
        let mut state = self.lock();
        state.apart = true;
        if let Some(socket) = state.socket.take() {
            // Who watches has it as well, and the next daemon waits for its end.
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }

    /// Takes up what was left under this name: from now on it is this daemon's. There is one taker.
    pub fn take(&self, name: &str) -> io::Result<Option<Held>> {
        let mut state = self.lock();
        let Some(held) = state.left.remove(name) else {
            return Ok(None);
        };
        let taken = held.try_clone()?;
        state.keep(name, held);
        Ok(Some(taken))
    }

    /// What is taken up or had held from now on may be [put back](Keeper::put_back).
    pub fn begin(&self) {
        self.lock().begun = Some(BTreeSet::new());
    }

    /// What this daemon has taken up or had held of such names since [`begin`](Keeper::begin) is as
    /// if it was left by the daemon before: there is to be another taker. All stays held.
    pub fn put_back(&self, which: impl Fn(&str) -> bool) {
        let state = &mut *self.lock();
        for name in state.begun.take().unwrap_or_default() {
            if which(&name)
                && let Some(held) = state.ours.remove(&name)
            {
                state.left.insert(name, held);
            }
        }
    }

    /// Nothing is put back any more.
    pub fn end(&self) {
        self.lock().begun = None;
    }

    /// The names of what this daemon has held, of those that `which` takes.
    pub fn names(&self, which: impl Fn(&str) -> bool) -> Vec<String> {
        let state = self.lock();
        let names = state.ours.keys().filter(|name| which(name));
        names.cloned().collect()
    }

    /// The names of what was left and nobody has taken up, of those that `which` takes.
    pub fn left(&self, which: impl Fn(&str) -> bool) -> Vec<String> {
        let state = self.lock();
        let names = state.left.keys().filter(|name| which(name));
        names.cloned().collect()
    }

    /// The names of all that [`all`](Keeper::all) gives, with what `read` makes of their notes.
    /// Nothing else is copied.
    pub fn notes<T>(
        &self,
        which: impl Fn(&str) -> bool,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Vec<(String, T)> {
        let state = self.lock();
        let all = state.ours.iter().chain(&state.left);
        let all = all.filter(|(name, _)| which(name));
        all.filter_map(|(name, held)| Some((name.clone(), read(&held.note)?)))
            .collect()
    }

    /// The first descriptor of what was left under this name, which stays left.
    pub fn look(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        let state = self.lock();
        let first = state.left.get(name).and_then(|held| held.fds.first());
        first.map(OwnedFd::try_clone).transpose()
    }

    /// Has descriptors held, 1 to [`FDS_MAX`](crate::FDS_MAX), instead of what had this name. An
    /// error: they are not, until the keeper is there again ([`mend`](Keeper::mend)) or, where it
    /// refuses, for good.
    pub fn hold(&self, name: &str, note: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if fds.len() > FDS_MAX || note.len() > NOTE_MAX {
            let (count, len) = (fds.len(), note.len());
            let why = format!(
                "{count} descriptors and a note of {len} bytes, {FDS_MAX} and {NOTE_MAX} at most"
            );
            return Err(refused(&self.path, name, why));
        }
        let mut state = self.lock();
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned);
        let fds: Vec<OwnedFd> = fds
            .collect::<Result<_, _>>()
            .map_err(|error| gone(&self.path, error))?;
        let note = note.to_owned();
        state.left.remove(name);
        let held = Held { note, fds };
        let done = self.ask(&mut state, Verb::Hold, name, Some(&held));
        if !matches!(done, Err(Error::Refused { .. })) {
            state.keep(name, held);
        }
        done
    }

    /// Has what has this name closed. When this returns, neither the keeper nor this has it open.
    pub fn release(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let known = state.left.remove(name).or(state.ours.remove(name));
        match known {
            Some(_) => self.ask(&mut state, Verb::Release, name, None),
            None => Ok(()),
        }
    }

    /// Has what has this name closed as soon as the keeper gets to it: before anything that is said
    /// to it from now on, also if this process ends at once.
    pub fn release_soon(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let known = state.left.remove(name).or(state.ours.remove(name));
        if known.is_none() || state.apart {
            return Ok(());
        }
        let Some(socket) = &state.socket else {
            return Err(gone(&self.path, io::ErrorKind::NotConnected.into()));
        };
        let said = send(socket, Verb::Release, name, b"", &[]);
        state.owed += 1;
        // More than that find no room.
        let answer = match state.owed {
            OWED_MAX.. => state.receive_owed(),
            _ => Ok(()),
        };
        said.and(answer).map_err(|error| {
            state.socket = None;
            gone(&self.path, error)
        })
    }

    /// Has all closed that was left and nobody has taken up; their names.
    pub fn release_left(&self) -> Result<Vec<String>, Error> {
        self.release_left_of(|_| true)
    }

    /// Has those closed whose names `which` takes, as [`release_left`](Self::release_left) does
    /// all.
    pub fn release_left_of(&self, which: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
        let left = self.left(which);
        left.iter().try_for_each(|name| self.release(name))?;
        Ok(left)
    }

    /// Waits for the connection to break, `patience` at the most; whether it is broken.
    pub fn watch(&self, patience: Duration) -> bool {
        let state = self.lock();
        let socket = match &state.socket {
            None if state.apart => {
                drop(state);
                std::thread::sleep(patience);
                return false;
            }
            None => return true,
            Some(socket) => socket.try_clone(),
        };
        drop(state);
        let Ok(socket) = socket else { return false };
        // It says nothing unasked: what is to be had is its end.
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let timeout = Timespec::try_from(patience).ok();
        if !poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut state = self.lock();
        if state.apart {
            // It has left meanwhile.
            return false;
        }
        state.socket = None;
        true
    }

    /// Connects anew, and gives the keeper that is there now all that is this daemon's.
    pub fn mend(&self) -> Result<(), Error> {
        self.connect_if(|state| state.socket.is_none() && !state.apart)
    }

    fn connect_if(&self, is_needed: impl Fn(&State) -> bool) -> Result<(), Error> {
        if !is_needed(&self.lock()) {
            return Ok(());
        }
        // Nobody waits for this: it may take long.
        let socket = open(&self.path)?;
        let holds = list(&socket).map_err(|error| gone(&self.path, error))?;
        answers_soon(&socket).map_err(|error| gone(&self.path, error))?;
        let mut state = self.lock();
        if !is_needed(&state) {
            return Ok(());
        }
        // What it holds beside what we know of, it was to release and did not hear: by the next
        // daemon that would be given to whoever has the name then.
        let state = &mut *state;
        let known =
            |name: &&String| state.ours.contains_key(*name) || state.left.contains_key(*name);
        for name in holds.keys().filter(|name| !known(name)) {
            ask(&socket, Verb::Release, name, None)
                .map_err(|error| gone(&self.path, error))?
                .map_err(|why| refused(&self.path, name, why))?;
        }
        drop(holds);
        for (name, held) in state.ours.iter().chain(&state.left) {
            ask(&socket, Verb::Hold, name, Some(held))
                .map_err(|error| gone(&self.path, error))?
                .map_err(|why| refused(&self.path, name, why))?;
        }
        state.socket = Some(socket);
        state.owed = 0;
        state.apart = false;
        Ok(())
    }

    fn ask(
        &self,
        state: &mut State,
        verb: Verb,
        name: &str,
        held: Option<&Held>,
    ) -> Result<(), Error> {
        if state.apart {
            return Ok(());
        }
        let Some(socket) = &state.socket else {
            return Err(gone(&self.path, io::ErrorKind::NotConnected.into()));
        };
        let said = say(socket, verb, name, held);
        let answer = said
            .and_then(|()| state.receive_owed())
            .and_then(|()| state.receive_answer());
        match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(refused(&self.path, name, why)),
            Err(error) => {
                state.socket = None;
                Err(gone(&self.path, error))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, name: &str, held: Held) {
        self.ours.insert(name.to_owned(), held);
        if let Some(begun) = &mut self.begun {
            begun.insert(name.to_owned());
        }
    }

    /// Receives its answers to what was said before.
    fn receive_owed(&mut self) -> io::Result<()> {
        while self.owed > 0 {
            // It refuses no release.
            let _ = self.receive_answer()?;
            self.owed -= 1;
        }
        Ok(())
    }

    fn receive_answer(&self) -> io::Result<Result<(), String>> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        receive_answer(socket)
    }
}

fn gone(path: &Path, error: io::Error) -> Error {
    Error::Gone {
        path: path.to_owned(),
        error,
    }
}

fn refused(path: &Path, name: &str, why: String) -> Error {
    Error::Refused {
        path: path.to_owned(),
        name: name.to_owned(),
        why,
    }
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let open = || -> io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        connect(&socket, &address)?;
        // What is given to it others are not to have, and what it gives is believed.
        let uid = socket_peercred(&socket)?.uid;
        if !is_trusted(uid, path) {
            let why = format!(
                "user {} listens there, who is neither root nor the daemon's, and whose folder it \
                 is not",
                uid.as_raw()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(socket)
    };
    open().map_err(|error| gone(path, error))
}

/// Whether who listens on a socket is its keeper: root, the daemon's own user, or the user to whom
/// root, or we, have given its folder, so that a daemon which is root has the packaged keeper.
fn is_trusted(uid: Uid, socket: &Path) -> bool {
    let is_given = || {
        let folder = std::fs::canonicalize(socket).ok()?;
        let folder = folder.parent()?;
        let meta = std::fs::metadata(folder).ok()?;
        let only_its = meta.uid() == uid.as_raw() && meta.mode() & 0o022 == 0;
        Some(only_its && only_ours(folder.parent()?))
    };
    uid.is_root() || uid == geteuid() || is_given().unwrap_or(false)
}

/// From now on it is waited for as threads can that have something else to do.
fn answers_soon(socket: &OwnedFd) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(ANSWERS_WITHIN))?;
    Ok(set_socket_timeout(
        socket,
        Timeout::Recv,
        Some(ANSWERS_WITHIN),
    )?)
}

/// All that is held.
fn list(socket: &OwnedFd) -> io::Result<BTreeMap<String, Held>> {
    send(socket, Verb::List, "", b"", &[])?;
    let mut all = BTreeMap::new();
    loop {
        let Message {
            verb,
            name,
            note,
            fds,
        } = answer(socket)?;
        match verb {
            Verb::Item if !fds.is_empty() => drop(all.insert(name, Held { note, fds })),
            Verb::Done => return Ok(all),
            _ => return Err(io::Error::other("it answers what was not asked")),
        }
    }
}

/// One question; `Err` within: it refuses.
fn ask(
    socket: &OwnedFd,
    verb: Verb,
    name: &str,
    held: Option<&Held>,
) -> io::Result<Result<(), String>> {
    say(socket, verb, name, held)?;
    receive_answer(socket)
}

fn say(socket: &OwnedFd, verb: Verb, name: &str, held: Option<&Held>) -> io::Result<()> {
    let note = held.map_or(&b""[..], |held| &held.note);
    let fds = held.iter().flat_map(|held| &held.fds);
    let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
    send(socket, verb, name, note, &fds)
}

/// The answer to a question; `Err` within: it refuses.
fn receive_answer(socket: &OwnedFd) -> io::Result<Result<(), String>> {
    let message = answer(socket)?;
    match message.verb {
        Verb::Done => Ok(Ok(())),
        Verb::Refused => Ok(Err(String::from_utf8_lossy(&message.note).into_owned())),
        _ => Err(io::Error::other("it answers what was not asked")),
    }
}

fn answer(socket: &OwnedFd) -> io::Result<Message> {
    receive(socket)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{bind, serve};
    use std::os::fd::AsFd;

    /// The keeper stood still when it was told, and did not hear.
    #[test]
    fn what_was_released_in_vain_is_released_when_the_keeper_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let listener = bind(&path).unwrap();
        let keeper = std::thread::spawn(move || serve(&listener, true).unwrap());
        let daemon = Keeper::connect(&path).unwrap();
        let (_reader, writer) = std::io::pipe().unwrap();
        for name in ["gone", "kept"] {
            daemon.hold(name, b"", &[writer.as_fd()]).unwrap();
        }
        daemon.lock().socket = None;
        daemon.release("gone").unwrap_err();
        daemon.mend().unwrap();
        drop(daemon);
        let next = Keeper::connect(&path).unwrap();
        assert!(
            next.take("gone").unwrap().is_none(),
            "it would be somebody else's"
        );
        assert!(next.take("kept").unwrap().is_some());
        next.release("kept").unwrap();
        drop(next);
        keeper.join().unwrap();
    }

    /// Somebody has come before it where others may make files.
    #[test]
    fn another_user_is_no_keeper() {
        use std::os::unix::fs::{PermissionsExt, chown};
        if !geteuid().is_root() {
            return eprintln!("skipped: another user's socket takes root");
        }
        const OTHER: u32 = 4711;
        let uid = Uid::from_raw(OTHER);
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(dir.path(), 0o777);
        let path = dir.path().join("keeper.sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let other = std::thread::spawn(move || {
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
            let socket = socket.unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            socket
        });
        let _listener = other.join().unwrap();
        let refused = Keeper::connect(&path).err().unwrap().to_string();
        assert!(refused.contains("user 4711 listens there"), "{refused}");

        // A folder of its own has to be given to it, and be nobody else's.
        let folder = dir.path().join("own");
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("keeper.sock");
        std::fs::write(&socket, "").unwrap();
        chown(&folder, Some(OTHER), None).unwrap();
        assert!(
            !is_trusted(uid, &socket),
            "anybody can have made the folder"
        );
        mode(dir.path(), 0o755);
        assert!(is_trusted(uid, &socket));
        assert!(!is_trusted(Uid::from_raw(OTHER + 1), &socket));
        mode(&folder, 0o777);
        assert!(
            !is_trusted(uid, &socket),
            "anybody can have made the socket"
        );
    }

    /// It is there and does not answer, as one that the system has stopped.
    #[test]
    fn a_keeper_that_stands_still_is_waited_for_once_and_not_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let listener = bind(&path).unwrap();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let keeper = std::thread::spawn(move || {
            use rustix::net::accept_with;
            let first = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
            let asked = receive(&first).unwrap().unwrap();
            assert_eq!(asked.verb, Verb::List);
            send(&first, Verb::Done, "", b"", &[]).unwrap();
            wait.recv().unwrap();
            drop(first);
            serve(&listener, true).unwrap();
        });
        let daemon = Keeper::connect(&path).unwrap();
        let (_reader, writer) = std::io::pipe().unwrap();
        let start = std::time::Instant::now();
        for number in 0..100 {
            let held = daemon.hold(&number.to_string(), b"", &[writer.as_fd()]);
            assert!(matches!(held, Err(Error::Gone { .. })));
        }
        let waited = start.elapsed();
        assert!(waited >= ANSWERS_WITHIN, "{waited:?}");
        assert!(waited < 3 * ANSWERS_WITHIN, "{waited:?}");
        // Who wants something held while it is asked whether it is back does not wait either.
        std::thread::scope(|scope| {
            let mending = scope.spawn(|| daemon.mend());
            std::thread::sleep(ANSWERS_WITHIN);
            let start = std::time::Instant::now();
            daemon.release("1").unwrap_err();
            assert!(start.elapsed() < ANSWERS_WITHIN);
            go_on.send(()).unwrap();
            mending.join().unwrap().unwrap();
        });
        drop(daemon);
        let next = Keeper::connect(&path).unwrap();
        assert!(next.take("0").unwrap().is_some() && next.take("1").unwrap().is_none());
        for name in next.release_left().unwrap() {
            assert_ne!(name, "1");
        }
        next.release("0").unwrap();
        drop(next);
        keeper.join().unwrap();
    }

    /// Also if it ends at once.
    #[test]
    fn what_is_released_soon_is_released_before_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let listener = bind(&path).unwrap();
        let keeper = std::thread::spawn(move || serve(&listener, true).unwrap());
        let (_reader, writer) = std::io::pipe().unwrap();
        let daemon = Keeper::connect(&path).unwrap();
        let names: Vec<String> = (0..3 * OWED_MAX).map(|number| number.to_string()).collect();
        for name in &names {
            daemon.hold(name, b"", &[writer.as_fd()]).unwrap();
            daemon.release_soon(name).unwrap();
            assert!(daemon.lock().owed <= 1);
        }
        for name in &names {
            daemon.hold(name, b"first", &[writer.as_fd()]).unwrap();
        }
        for name in &names[1..] {
            daemon.release_soon(name).unwrap();
            assert!(daemon.lock().owed < OWED_MAX);
        }
        daemon.hold("1", b"second", &[writer.as_fd()]).unwrap();
        assert_eq!(daemon.lock().owed, 0);
        daemon.release_soon("0").unwrap();
        drop(daemon);
        let next = Keeper::connect(&path).unwrap();
        let left = next.all(|_| true).unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|(name, held)| (&**name, &*held.note))
            .collect();
        assert_eq!(left, [("1", &b"second"[..])]);
        next.release("1").unwrap();
        drop(next);
        keeper.join().unwrap();
    }

    #[test]
    fn a_daemon_hands_all_to_the_next_and_nothing_is_let_go_in_between() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keeper.sock");
        let listener = bind(&path).unwrap();
        let keeper = std::thread::spawn(move || serve(&listener, true).unwrap());
        let (_reader, writer) = std::io::pipe().unwrap();
        let first = Keeper::connect(&path).unwrap();
        first.hold("left", b"", &[writer.as_fd()]).unwrap();
        drop(first);
        let (before, next) = (Keeper::connect(&path).unwrap(), Keeper::handed(&path));
        for name in ["stays", "goes"] {
            before.hold(name, b"note", &[writer.as_fd()]).unwrap();
        }
        for (name, held) in before.all(|_| true).unwrap() {
            next.leave_here(name, held);
        }
        assert!(next.take("stays").unwrap().is_some());
        assert!(
            next.take("left").unwrap().is_some(),
            "nobody has taken it up yet"
        );
        // Nobody hears of that yet: it may end before it begins.
        next.hold("new", b"", &[writer.as_fd()]).unwrap();
        next.release("goes").unwrap();
        assert!(!next.watch(Duration::ZERO));
        // As who watches has it meanwhile.
        let watched = before.lock().socket.as_ref().map(OwnedFd::try_clone);
        before.leave();
        assert!(!before.watch(Duration::ZERO));
        before.release("stays").unwrap();
        next.enter().unwrap();
        drop(watched);
        drop(next);
        let last = Keeper::connect(&path).unwrap();
        assert_eq!(last.take("stays").unwrap().unwrap().note, b"note");
        assert!(last.take("goes").unwrap().is_none());
        assert!(last.take("new").unwrap().is_some());
        for name in ["stays", "left", "new"] {
            last.release(name).unwrap();
        }
        drop((last, before));
        keeper.join().unwrap();
    }
}
