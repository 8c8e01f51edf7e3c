//! The side of the next program: it is handed what there is once only, and says how far it is.
//!
//! Whatever goes wrong before the commit ends this process at once, with nothing taken down: all
//! that it has is the old daemon's, which goes on.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keeper::{Held, Parts};
use rustix::net::sockopt;
use sys::handed::{Handed, Items, bytes_of, name_of_kind};

use super::words::{self, Line, Silence, Word};

/// The old daemon may take as long as this for a step, and longer for what it does while it
/// forwards.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes of objects or connections at the most.
const BYTES_MAX: u64 = 4 << 30;

/// The daemon whose place this one is to take.
pub struct Predecessor {
    line: Line,
    /// This process is not the daemon yet.
    apart: Arc<AtomicBool>,
    items: Mutex<BTreeMap<String, Held>>,
}

impl Predecessor {
    /// The one at the other end of this process's standard input. The error is a sentence.
    pub fn at_stdin() -> Result<Predecessor, String> {
        let failed = |e: &dyn std::fmt::Display| {
            format!("--take-over is for a daemon that another one starts: {e}")
        };
        let stdin = rustix::stdio::stdin();
        let kind = sockopt::socket_type(stdin).map_err(|e| failed(&e))?;
        if kind != rustix::net::SocketType::SEQPACKET {
            return Err(failed(&"its standard input is another socket"));
        }
        let socket = rustix::io::fcntl_dupfd_cloexec(stdin, 3).map_err(|e| failed(&e))?;
        // What is started from here does not have it.
        let null = std::fs::File::open("/dev/null").map_err(|e| failed(&e))?;
        rustix::stdio::dup2_stdin(&null).map_err(|e| failed(&e))?;
        let line = Line::new(socket);
        let offer = line.receive_one(Word::Offer, PATIENCE);
        let offer = offer.map_err(|why| said(&why))?;
        let number = String::from_utf8_lossy(&offer.note).into_owned();
        let predecessor = Predecessor {
            line,
            apart: Arc::new(AtomicBool::new(true)),
            items: Mutex::default(),
        };
        let known = words::WITHOUT_LINKS..=words::NUMBER;
        if !number
            .parse()
            .is_ok_and(|number: u32| known.contains(&number))
        {
            let why = format!(
                "it is handed over to by number {number}, and knows number {}",
                words::NUMBER
            );
            predecessor.refuse(&why);
            return Err(why);
        }
        Ok(predecessor)
    }

    /// Says why this program cannot take over; the next thing is its end.
    pub fn refuse(&self, why: &str) {
        self.line.refuse(why);
    }

    /// The settings can be used: asks for all that is to be had while the old one goes on.
    pub fn greet(&self) -> Result<(), String> {
        self.say(Word::Hello, words::EARLY)?;
        self.items_until(Word::All).map(drop)
    }

    /// Refuses settings by which this process would look elsewhere for what is handed over. A
    /// daemon of a version before does not say where its own is.
    pub fn has_paths(&self, paths: &[(&str, PathBuf)]) -> Result<(), String> {
        let mut before = self.take_all(words::PATH);
        for (option, now) in paths {
            let Some(Held { note, .. }) = before.remove(*option) else {
                continue;
            };
            let before = Path::new(OsStr::from_bytes(&note));
            if before != now {
                return Err(format!(
                    "{option} is {}, and the daemon before has {}: restart the daemon instead",
                    now.display(),
                    before.display()
                ));
            }
        }
        Ok(())
    }

    /// All is prepared. Returns when the store can be opened.
    pub fn ready(&self) -> Result<(), String> {
        self.say(Word::Ready, api::VERSION)?;
        self.receive(Word::Store).map(drop)
    }

    /// The store is open. Returns when no frame moves any more, with what is left then.
    /// `reads_flows`: the memory of flows can be read; else they come in another way. How many
    /// places of that memory were ever used.
    pub fn opened(&self, reads_flows: bool) -> Result<u64, String> {
        let flows = if reads_flows {
            "flows=memory"
        } else {
            "flows=file"
        };
        self.say(Word::Opened, flows)?;
        let used = self.items_until(Word::Ports)?.note;
        let used = String::from_utf8_lossy(&used).parse();
        used.map_err(|_| "the daemon before does not say how many flows it had".to_owned())
    }

    /// All is taken up. Returns when this process is the daemon.
    pub fn taken(&self) -> Result<(), String> {
        self.say(Word::Taken, "")?;
        self.receive(Word::Go)?;
        self.apart.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// True until this process is the daemon: what it has is still the other one's, and nothing of
    /// it is taken down.
    pub fn is_daemon_still(&self) -> bool {
        self.apart.load(Ordering::SeqCst)
    }

    /// [`is_daemon_still`](Predecessor::is_daemon_still), for those who know no predecessor.
    pub fn apart(&self) -> Arc<AtomicBool> {
        self.apart.clone()
    }

    /// Frames move.
    pub fn moving(&self) {
        // Nobody else can do it any more, whether it is heard or not.
        let _ = self.say(Word::Moving, "");
    }

    /// Clients are served.
    pub fn serving(&self) {
        let _ = self.say(Word::Serving, "");
    }

    /// A descriptor that was handed over under this name. There is one taker.
    pub fn take(&self, name: &str) -> Option<OwnedFd> {
        self.lock().remove(name)?.into_first()
    }

    /// All of a kind, by what is behind its name and a blank.
    pub fn take_all(&self, kind: &str) -> BTreeMap<String, Held> {
        let of = |name: &str| name_of_kind(kind, name).map(str::to_owned);
        let mut items = self.lock();
        let taken = items.extract_if(.., |name, _| of(name).is_some());
        taken
            .filter_map(|(name, held)| Some((of(&name)?, held)))
            .collect()
    }

    /// All of a kind, as whoever goes on with it takes it.
    pub fn items(&self, kind: &str) -> Items {
        let items = self.take_all(kind).into_iter();
        let item = |Held { note, fds }| Handed { note, fds };
        items.map(|(name, held)| (name, item(held))).collect()
    }

    /// Of all of a kind the bytes that were handed over.
    pub fn all_bytes(&self, kind: &str) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let read = |(name, held): (String, Held)| {
            let file = held.into_first().ok_or(std::io::ErrorKind::NotFound);
            let bytes = file
                .map_err(Into::into)
                .and_then(|file| bytes_of(file, BYTES_MAX));
            let bytes =
                bytes.map_err(|e| format!("what was handed over as {kind} cannot be read: {e}"));
            Ok((name, bytes?))
        };
        self.take_all(kind).into_iter().map(read).collect()
    }

    /// The socket that is listened on at this path for a NIC's VMM.
    pub fn vhost_listener(&self, path: &Path) -> Option<OwnedFd> {
        self.take(&format!("vhost {}", path.display()))
    }

    /// The bytes that were handed over under a name.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let bytes = self.take(name).map(|file| bytes_of(file, BYTES_MAX));
        let bytes = bytes.transpose();
        bytes.map_err(|e| format!("what was handed over as {name} cannot be read: {e}"))
    }

    fn say(&self, word: Word, note: &str) -> Result<(), String> {
        let said = self.line.say(word, "", note.as_bytes(), &[]);
        said.map_err(|e| format!("the daemon before is gone: {e}"))
    }

    fn receive(&self, word: Word) -> Result<Parts, String> {
        let received = self.line.receive_one(word, PATIENCE);
        received.map_err(|why| said(&why))
    }

    fn items_until(&self, end: Word) -> Result<Parts, String> {
        loop {
            let received = self.line.receive(&[Word::Item, end], PATIENCE);
            let received = received.map_err(|why| said(&why))?;
            if received.verb == end as u8 {
                return Ok(received);
            }
            let Parts {
                name, note, fds, ..
            } = received;
            self.lock().insert(name, Held { note, fds });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn said(why: &Silence) -> String {
    match why {
        Silence::Gone => "the daemon before has given it up, or is gone".to_owned(),
        Silence::Late => "the daemon before does not go on".to_owned(),
        Silence::Said(why) => format!("the daemon before: {why}"),
    }
}
