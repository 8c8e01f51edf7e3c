//! Client mode: the VMM listens, this side connects, and connects again when the VMM has gone and
//! returned.
//!
//! A [`Client`] is one such NIC's end: when to try next. [`Watches`] is the server's one inotify
//! instance, with a watch on each directory in which a VMM is to listen: a socket that appears
//! there is tried at once, so that waiting costs nothing. What a watch cannot see (a directory that
//! is not there yet, a VMM that has made its socket and does not listen yet, a symbolic link) is
//! found by trying again, more and more seldom.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use rustix::net::SocketAddrUnix;
use tracing::info;

use crate::vhost::protocol::listener::{self, new_socket};
use crate::vhost::protocol::server_error::ServerError;

/// Between the first two attempts; doubled after each.
const DELAY_FIRST: Duration = Duration::from_millis(1);

/// Between attempts in the long run, when a watch tells of a new socket.
const DELAY_WATCHED: Duration = Duration::from_secs(8);

/// Between attempts in the long run without such a watch.
const DELAY_BLIND: Duration = Duration::from_secs(1);

/// A VMM that stayed this long is expected back at once; one that keeps hanging up is not.
const STAYED: Duration = Duration::from_secs(1);

/// Events taken before others have their turn; the rest is reported again.
const EVENTS: usize = 64;

/// One NIC's end in client mode.
pub(in crate::vhost) struct Client {
    path: PathBuf,
    address: SocketAddrUnix,
    watch: Option<Watch>,
    /// When to try; `None` while connected.
    due: Option<Instant>,
    delay: Duration,
    connected: Option<Instant>,
    /// Not to be connected before [`Client::resume`], or before the VMM makes its socket anew.
    held: bool,
    /// What the last attempt failed with: the same is not logged twice.
    failed: Option<io::ErrorKind>,
}

/// A watched directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::vhost) struct Watch(i32);

impl Client {
    /// To be tried at once. The path must be one that a socket can have; nothing needs to be there.
    pub fn new(path: &Path) -> Result<Self, ServerError> {
        Ok(Client {
            address: listener::address(path)?,
            path: path.to_owned(),
            watch: None,
            due: Some(Instant::now()),
            delay: DELAY_FIRST,
            connected: None,
            held: false,
            failed: None,
        })
    }

    /// Where the VMM listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When [`connect`](Client::connect) is to be called.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Tries once; never waits. A failure is logged for `nic` if the one before was another.
    pub fn connect(&mut self, nic: &str, watches: &mut Watches) -> Option<OwnedFd> {
        // Watched first: what appears after a failed attempt is reported.
        if self.watch.is_none() {
            self.watch = watches.add(&self.path);
        }
        let connected = new_socket()
            .and_then(|socket| rustix::net::connect(&socket, &self.address).map(|()| socket));
        match connected {
            Ok(socket) => {
                self.due = None;
                self.connected = Some(Instant::now());
                self.failed = None;
                Some(socket)
            }
            Err(error) => {
                let error = io::Error::from(error);
                if self.failed.replace(error.kind()) != Some(error.kind()) {
                    info!(
                        nic,
                        "waiting for a VMM that listens at {}: {error}",
                        self.path.display()
                    );
                }
                self.postpone(Duration::ZERO);
                None
            }
        }
    }

    /// A process before has left a connection.
    pub fn resumed(&mut self, watches: &mut Watches) {
        if self.watch.is_none() {
            self.watch = watches.add(&self.path);
        }
        self.due = None;
        self.connected = Some(Instant::now());
    }

    /// The connection has ended, or an attempt has failed: the next attempt, not before `least` has
    /// passed.
    pub fn postpone(&mut self, least: Duration) {
        if self
            .connected
            .take()
            .is_some_and(|since| since.elapsed() >= STAYED)
        {
            self.delay = DELAY_FIRST;
        }
        let longest = if self.watch.is_some() {
            DELAY_WATCHED
        } else {
            DELAY_BLIND
        };
        self.delay = self.delay.max(least).min(longest);
        self.due = Some(Instant::now() + self.delay);
        self.delay *= 2;
    }

    /// The connection has ended, and its end is all that the VMM can be told. No attempt is made
    /// until there is something else to tell, but for a VMM that begins anew: it may be waiting for
    /// us before it starts its guest.
    pub fn hold(&mut self) {
        (self.due, self.held) = (None, true);
    }

    /// Connects at once if [held](Client::hold).
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.held) {
            (self.due, self.delay) = (Some(Instant::now()), DELAY_FIRST);
        }
    }

    /// Something has happened in a watched directory.
    pub fn notice(&mut self, event: &Event) {
        if event.watch.is_some() && event.watch != self.watch {
            return;
        }
        match &event.name {
            Some(name)
                if self
                    .path
                    .file_name()
                    .is_some_and(|mine| mine.as_bytes() == name) =>
            {
                self.resume()
            }
            Some(_) => return,
            // The directory itself has gone, or events were lost.
            None => self.watch = self.watch.filter(|_| event.watch.is_none()),
        }
        if self.due.is_some() {
            self.due = Some(Instant::now());
            self.delay = DELAY_FIRST;
        }
    }

    /// The watch that this one uses, if any.
    pub fn watch(&self) -> Option<Watch> {
        self.watch
    }
}

/// Something that has happened in a directory.
#[derive(Debug)]
pub(in crate::vhost) struct Event {
    /// Where; `None`: anything may have happened anywhere.
    watch: Option<Watch>,
    /// The file that appeared; `None`: the directory is watched no more.
    name: Option<Vec<u8>>,
}

/// All watched directories. Without inotify (the user's instances are used up) nothing is watched.
pub(in crate::vhost) struct Watches {
    inotify: Option<OwnedFd>,
    directories: HashMap<Watch, PathBuf>,
}

impl Watches {
    pub fn new() -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Watches {
            inotify: inotify::init(flags).ok(),
            directories: HashMap::new(),
        }
    }

    /// What is readable when something has happened.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Watches the directory of `socket`; a directory that is watched already has the same watch.
    fn add(&mut self, socket: &Path) -> Option<Watch> {
        let directory = socket.parent()?;
        let what = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVE_SELF
            | inotify::WatchFlags::ONLYDIR;
        let watch = Watch(inotify::add_watch(self.inotify.as_ref()?, directory, what).ok()?);
        self.directories.insert(watch, directory.to_owned());
        Some(watch)
    }

    /// Nobody is interested any more.
    pub fn remove(&mut self, watch: Watch) {
        if let (Some(_), Some(inotify)) = (self.directories.remove(&watch), &self.inotify) {
            // Fails when the directory has gone and the kernel has removed the watch.
            let _ = inotify::remove_watch(inotify, watch.0);
        }
    }

    /// What has happened since the last call, without waiting.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(inotify) = &self.inotify else {
            return events;
        };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut room);
        let mut moved = Vec::new();
        while events.len() < EVENTS
            && let Ok(event) = reader.next()
        {
            let (watch, flags) = (Watch(event.wd()), event.events());
            if flags.contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                events.push(Event {
                    watch: None,
                    name: None,
                });
            } else if flags.intersects(inotify::ReadFlags::IGNORED | inotify::ReadFlags::MOVE_SELF)
            {
                moved.push(watch);
                events.push(Event {
                    watch: Some(watch),
                    name: None,
                });
            } else if let Some(name) = event.file_name() {
                let name = Some(name.to_bytes().to_owned());
                events.push(Event {
                    watch: Some(watch),
                    name,
                });
            }
        }
        // A directory under another name is none of ours.
        for watch in moved {
            self.remove(watch);
        }
        events
    }
}
