//! TAP devices outlive the daemon, and so do VMMs' connections and the memory that the table of
//! flows is in: a keeper (the crate says what that is) has descriptors of each, and the next daemon
//! takes them up. Also the keeper's own process, which is this program with `--as-keeper`.

mod session_words;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::AttachError;
use dataplane::Left;
use io::tap::{TapError, TapOptions, TapPort};
use io::vhost::{LeftSession, SessionKeeper};
use keeper::Keeper;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sd_notify::NotifyState;
use sys::handed::{Handed, Items, bytes_of, file_of, name_of_kind};

pub use self::session_words::Mark;
use self::session_words::SessionWords;
use crate::forgotten::{self, What};
use crate::upgrade::words;
use crate::{deaths, uplinks};

/// How long a keeper that was started may take until it listens.
const PATIENCE: Duration = Duration::from_secs(3);
/// What the memory of connections is held as.
const FLOWS: &str = "flows";
/// What the names begin with that memories of connections of daemons before are held by until all
/// are taken up: the newest as 1, and so on.
const FLOWS_BEFORE: &str = "flows-before ";
/// What the memory of counters and learnt MACs is held as.
const STATE: &str = "state";
/// What the words are held as that say which of what is held of sessions is valid.
const WORDS: &str = "session-words";
/// What the notes of daemons that have ended of themselves are held as.
const DEATHS: &str = "deaths";

/// Bytes of one thing that is [held as bytes](Held::hold_bytes) at the most.
const BYTES_MAX: u64 = 1 << 30;

/// How often is looked whether it does, and whether one that is gone is there again.
const AGAIN: Duration = Duration::from_millis(20);
const MEND: Duration = Duration::from_secs(1);
/// How long whoever else has started a keeper has to start the next one.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);

/// What is held, and by which names.
pub type Named = Vec<(String, keeper::Held)>;

/// Runs a keeper on a socket; returns when it is idle, if that is asked for. The error is a
/// sentence.
pub fn keep(path: &Path, until_idle: bool) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("the keeper {}: {e}", path.display());
    crate::run::raise_descriptor_limit();
    if let Some(folder) = path.parent() {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        made.map_err(|e| failed(&e))?;
    }
    let listener = keeper::bind(path).map_err(|e| failed(&e))?;
    // Holding takes no right at all.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(|e| failed(&e))?;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    keeper::serve(&listener, until_idle).map_err(|e| failed(&e))?;
    listener.remove_file();
    Ok(())
}

/// What this daemon has held.
pub struct Held {
    keeper: Keeper,
    path: PathBuf,
    /// The keeper that this daemon started, to be waited for when it ends.
    child: Mutex<Option<Child>>,
    /// The daemon ends, and the next one is to find all.
    staying: AtomicBool,
    /// What is stored is being made: what goes of it is made again.
    loading: AtomicBool,
    /// The keeper is gone, and not back yet.
    away: AtomicBool,
    sessions: Mutex<Sessions>,
}

/// Which of VMMs' sessions were given to another daemon.
pub struct SessionsGiven {
    /// Of those that were given.
    marks: BTreeMap<String, Mark>,
    /// Names of those that are as they were given before.
    as_before: BTreeSet<String>,
}

impl SessionsGiven {
    /// Which were given, for [`Held::leave_sessions`].
    pub fn pack_marks(&self) -> Vec<u8> {
        let marks = self
            .marks
            .iter()
            .map(|(name, mark)| (name, mark.noted(&[])));
        let marks: Vec<_> = marks.collect();
        words::pack(
            marks
                .iter()
                .flat_map(|(name, mark)| [name.as_bytes(), mark]),
        )
    }

    /// Which are as they were given before, for [`Held::unpack_as_before`].
    pub fn pack_as_before(&self) -> Vec<u8> {
        words::pack(self.as_before.iter().map(String::as_bytes))
    }
}

/// Which of what is held of VMMs' sessions is valid.
struct Sessions {
    /// `None`: there are none yet, or none to be had.
    words: Option<SessionWords>,
    /// Another daemon is the keeper's client still, and it is that one's that is valid: of these
    /// this one's will be.
    apart: Option<BTreeMap<String, Mark>>,
}

impl Held {
    /// Connects to the keeper, and starts one where none is. The error is a sentence.
    pub fn begin(path: &Path) -> Result<Arc<Held>, String> {
        let mut child = None;
        let started = Instant::now();
        let keeper = loop {
            match Keeper::connect(path) {
                Ok(keeper) => break keeper,
                Err(e @ keeper::Error::Gone { .. }) if started.elapsed() < PATIENCE => {
                    let begun = match &mut child {
                        Some(begun) => begun,
                        None => {
                            tracing::info!("{e}: starting one");
                            child.insert(start(path)?)
                        }
                    };
                    if let Ok(Some(status)) = begun.try_wait() {
                        return Err(format!(
                            "no keeper can be had: {e}, and one that was started ended with \
                             {status} (butterflyd --as-keeper {} says why)",
                            path.display()
                        ));
                    }
                    std::thread::sleep(AGAIN);
                }
                Err(e) => return Err(e.to_string()),
            }
        };
        let held = Held::over(keeper, path, child, None)?;
        held.begin_words();
        Ok(held)
    }

    /// Of a daemon that another one gives way to: what that one has held comes by [`leave_here`].
    ///
    /// [`leave_here`]: Held::leave_here
    pub fn handed(path: &Path) -> Result<Arc<Held>, String> {
        Held::over(Keeper::handed(path), path, None, Some(BTreeMap::new()))
    }

    /// Something that the daemon before has held.
    pub fn leave_here(&self, all: BTreeMap<String, keeper::Held>) {
        for (name, held) in all {
            self.keeper.leave_here(name, held);
        }
    }

    /// The daemon before has left the keeper: it is this one's, with all that is here.
    pub fn enter(&self) {
        let mut sessions = self.sessions();
        let marks = sessions.apart.take().unwrap_or_default();
        // Nothing is heard of VMMs meanwhile: what that daemon had held is as good.
        sessions.say_of_all(&marks, SessionWords::offer);
        // Whose turn it is has the watching thread try again.
        if let Err(e) = self.keeper.enter() {
            tracing::error!("{e}");
        }
        sessions.say_of_all(&marks, SessionWords::settle);
    }

    /// The keeper is another daemon's from now on, with all that is held.
    pub fn leave(&self) {
        self.stay();
        self.keeper.leave();
    }

    /// All that is held whose name is such, by its name.
    pub fn all(&self, which: impl Fn(&str) -> bool) -> std::io::Result<Named> {
        self.keeper.all(which)
    }

    /// VMMs' sessions, for a daemon that this one gives way to: their records, which every version
    /// reads, and which they are. `before`: what was given then is not given again, where it is as
    /// it was.
    pub fn sessions_given(
        &self,
        before: Option<&SessionsGiven>,
    ) -> std::io::Result<(Named, SessionsGiven)> {
        let mut marks: BTreeMap<_, _> = self.marks().into_iter().collect();
        let known = before.map(|before| &before.marks);
        let is_known = |name: &String, mark: &Mark| {
            let before = known.and_then(|known| known.get(name));
            before == Some(mark)
        };
        let as_before = marks.extract_if(.., |name, mark| is_known(name, mark));
        let as_before: BTreeSet<_> = as_before.map(|(name, _)| name).collect();
        let is_other = |name: &str| Held::is_session(name) && !as_before.contains(name);
        let mut all = self.all(is_other)?;
        for (_, held) in &mut all {
            if let (Some(_), record) = Mark::of_note(&held.note) {
                held.note = record.to_owned();
            }
        }
        Ok((all, SessionsGiven { marks, as_before }))
    }

    /// What the daemon before has held of VMMs' sessions, and what it says is valid of them.
    pub fn leave_sessions(&self, mut all: BTreeMap<String, keeper::Held>, marks: &[u8]) {
        for part in words::unpack(marks).unwrap_or_default().chunks(2) {
            if let [name, mark] = part
                && let Some(held) = all.get_mut(&*String::from_utf8_lossy(name))
            {
                held.note = [mark, &*held.note].concat();
            }
        }
        self.leave_here(all);
    }

    /// NICs whose sessions are as they were [given before](Held::sessions_given).
    pub fn unpack_as_before(given: &[u8]) -> BTreeSet<String> {
        let names = words::unpack(given).unwrap_or_default();
        let nics = names
            .into_iter()
            .filter_map(|name| name.strip_prefix(SESSION.as_bytes()));
        nics.map(|nic| String::from_utf8_lossy(nic).into_owned())
            .collect()
    }

    /// Whether something is held as a VMM's session.
    pub fn is_session(name: &str) -> bool {
        name.starts_with(SESSION)
    }

    fn over(
        keeper: Keeper,
        path: &Path,
        child: Option<Child>,
        apart: Option<BTreeMap<String, Mark>>,
    ) -> Result<Arc<Held>, String> {
        let held = Arc::new(Held {
            keeper,
            path: path.to_owned(),
            child: Mutex::new(child),
            staying: AtomicBool::new(false),
            loading: AtomicBool::new(false),
            away: AtomicBool::new(false),
            sessions: Mutex::new(Sessions { words: None, apart }),
        });
        let watched = Arc::downgrade(&held);
        let watch = move || {
            while let Some(held) = watched.upgrade() {
                held.look();
            }
        };
        let watch = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(watch);
        watch.map_err(|e| format!("the keeper's connection cannot be watched: {e}"))?;
        Ok(held)
    }

    /// Waits a while for the keeper to go, and gives all to the next one.
    fn look(&self) {
        if !self.keeper.watch(MEND) {
            return;
        }
        self.away.store(true, Ordering::Relaxed);
        tracing::error!("{}", self.gone());
        let gone = Instant::now();
        loop {
            let why = match self.mend(gone.elapsed()) {
                Ok(()) => break,
                Err(why) => why,
            };
            tracing::debug!("the keeper is not back: {why}");
            std::thread::sleep(MEND);
        }
        self.away.store(false, Ordering::Relaxed);
        tracing::info!("the keeper {} has all again", self.path.display());
    }

    fn gone(&self) -> String {
        format!(
            "the keeper {} is gone: nothing outlives this daemon until it is back",
            self.path.display()
        )
    }

    /// What is to be said for as long as the keeper is away.
    pub fn warning(&self) -> Option<String> {
        let is_away = self.away.load(Ordering::Relaxed);
        is_away.then(|| self.gone())
    }

    /// Connects to the next keeper, which it starts if nobody else does: systemd does so at once,
    /// of one that a daemon before this one has started nobody knows.
    fn mend(&self, gone: Duration) -> Result<(), String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours_to_start = match &mut *child {
            Some(begun) => begun.try_wait().is_ok_and(|status| status.is_some()),
            None => gone >= OTHERS_WITHIN,
        };
        if is_ours_to_start {
            *child = Some(start(&self.path)?);
            std::thread::sleep(AGAIN);
        }
        self.keeper.mend().map_err(|e| e.to_string())?;
        // Where another one has the socket, that is somebody else's.
        child.take_if(|begun| begun.try_wait().is_ok_and(|status| status.is_some()));
        Ok(())
    }

    /// A TAP device: the one that a daemon before has left, or a new one.
    pub fn tap(&self, options: &TapOptions) -> Result<TapPort, AttachError> {
        let (name, note) = (name(&options.name), note(options));
        let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
        if let Some(left) = self.keeper.take(&name).map_err(|e| refuse(&e))? {
            let (note_left, Some(fd)) = (left.note.clone(), left.into_first()) else {
                return Err(AttachError(format!("the keeper has nothing of {name}")));
            };
            match TapPort::adopt(fd, options) {
                Ok(mut tap) => {
                    if note_left != note {
                        match tap.reconfigure(options.mac, options.mtu) {
                            Ok(()) => self.hold(&tap, options),
                            Err(e) => tracing::warn!("{e}; it keeps what it had"),
                        }
                    }
                    return Ok(tap);
                }
                Err(e @ TapError::Removed(_)) => tracing::info!("{e} meanwhile; it is made anew"),
                Err(e) => tracing::error!("{e}; it is made anew"),
            }
            self.let_go(&options.name);
        }
        let tap = TapPort::open(options).map_err(|e| refuse(&e))?;
        self.hold(&tap, options);
        Ok(tap)
    }

    /// Has a device held, as it is now. Where that fails it is here all the same, and the log says
    /// that it does not outlive the daemon.
    pub fn hold(&self, tap: &TapPort, options: &TapOptions) {
        let Some(fd) = tap.descriptor() else { return };
        let held = self
            .keeper
            .hold(&name(&options.name), &note(options), &[fd]);
        if let Err(e) = held {
            tracing::error!(
                "TAP interface '{}' goes with this daemon: {e}",
                options.name
            );
        }
    }

    /// A device goes, unless the daemon does.
    pub fn release(&self, interface: &str) {
        if !self.stays() {
            self.let_go(interface);
        }
    }

    fn let_go(&self, interface: &str) {
        if let Err(e) = self.keeper.release(&name(interface)) {
            tracing::error!("TAP interface '{interface}' may still be there: {e}");
        }
    }

    /// Whether the daemons before have ended of themselves too often: then what guests or other
    /// hosts have a hand in is not taken up. To be called before anything is.
    pub fn look_at_deaths(&self) {
        let looked = self.notes().and_then(deaths::begin);
        let often = looked.unwrap_or_else(|e| {
            tracing::error!("whether daemons end one after the other is not noticed: {e}");
            false
        });
        if !often {
            return;
        }
        tracing::error!(
            "the last {} daemons have ended of themselves within {} s: what they have left of \
             VMMs' sessions, of connections and of uplinks is not taken up, since that may be why; \
             VMMs have to connect anew",
            deaths::MOST,
            deaths::WITHIN.as_secs()
        );
        let of_strangers = |name: &str| {
            let is_of_flows = name == FLOWS || name.starts_with(FLOWS_BEFORE);
            Held::is_session(name) || is_of_flows || uplinks::is_of_others(name)
        };
        if let Err(e) = self.keeper.release_left_of(of_strangers) {
            tracing::error!("what they have left may still be there: {e}");
        }
    }

    /// This process is the daemon from now on: should it end of itself, it notes that.
    pub fn note_deaths(&self) {
        if let Err(e) = self.notes().and_then(deaths::begin) {
            tracing::error!("whether daemons end one after the other is not noticed: {e}");
        }
    }

    /// When daemons have ended of themselves: what was left of that, or nothing yet.
    fn notes(&self) -> std::io::Result<OwnedFd> {
        let left = self.keeper.take(DEATHS)?.and_then(keeper::Held::into_first);
        if let Some(notes) = left {
            return Ok(notes);
        }
        let notes = deaths::new()?;
        let held = self.keeper.hold(DEATHS, b"", &[notes.as_fd()]);
        held.map_err(std::io::Error::other)?;
        Ok(notes)
    }

    /// The session of a vhost-user NIC that a daemon before has left, unless it is known to be out
    /// of date: then it is closed.
    pub fn session(&self, nic: &str) -> Option<LeftSession> {
        let left = self.session_so_far(nic);
        let left = left.inspect_err(|e| tracing::error!(nic, "its session is not taken up: {e}"));
        let (left, mark) = left.ok().flatten()?;
        self.is_latest(nic, mark).then_some(left)
    }

    /// As [`session`](Self::session), of a daemon that goes on with it for now: whether it is out
    /// of date when that one stands still is to be [asked](Self::is_latest) then.
    pub fn session_so_far(
        &self,
        nic: &str,
    ) -> std::io::Result<Option<(LeftSession, Option<Mark>)>> {
        let Some(keeper::Held { note, fds }) = self.keeper.take(&session_name(nic))? else {
            return Ok(None);
        };
        let (mark, record) = Mark::of_note(&note);
        let left = LeftSession {
            record: record.to_owned(),
            fds,
            is_held: mark.is_some(),
        };
        Ok(Some((left, mark)))
    }

    /// Whether the session with this mark, if it has one, is the newest that there is of the NIC.
    /// If not, it is held no more.
    pub fn is_latest(&self, nic: &str, mark: Option<Mark>) -> bool {
        // Daemons of before say nothing of that.
        let is_latest = mark.is_none_or(|mark| self.is_valid(nic, mark));
        if !is_latest {
            forgotten::count(What::OldSession, 1);
            tracing::warn!(
                nic,
                "the session that the keeper has of it is out of date: it stood still when the \
                 VMM went on; it is closed, and the VMM is to connect anew"
            );
            self.forget_session(nic);
        }
        is_latest
    }

    /// A session that the daemon before had has another in its place there, or none.
    pub fn forget_session(&self, nic: &str) {
        say_held(nic, self.keeper.release(&session_name(nic)));
    }

    fn is_valid(&self, nic: &str, mark: Mark) -> bool {
        self.have_words();
        let mut sessions = self.sessions();
        let valid = sessions
            .words
            .as_mut()
            .map(|words| words.is_valid(nic, mark));
        let failed = |e: &std::io::Error| tracing::error!(nic, "{NO_WORDS}: {e}");
        let valid = valid.map(|valid| valid.inspect_err(failed).unwrap_or(false));
        valid.unwrap_or(false)
    }

    /// Has the words that say which of what is held of sessions is valid. Of a daemon before they
    /// are taken up when that one stands still.
    pub fn have_words(&self) {
        let are_here = self.sessions().words.is_some();
        if !are_here {
            self.begin_words();
        }
    }

    /// Takes up the words that say which of what is held of sessions is valid, or makes them.
    fn begin_words(&self) {
        let failed = |e: &std::io::Error| tracing::error!("{NO_WORDS}: {e}");
        let left = self.keeper.take(WORDS).inspect_err(failed).ok().flatten();
        let left = left.and_then(keeper::Held::into_first);
        let left = left.and_then(|memory| {
            let words = SessionWords::left(memory).inspect_err(failed);
            words
                .inspect_err(|_| forgotten::count(What::Memory, 1))
                .ok()
        });
        let (is_new, mut refused) = (left.is_none(), false);
        let mut words = left.or_else(|| SessionWords::new().inspect_err(failed).ok());
        let mut sessions = self.sessions();
        if let Some(words) = &mut words {
            if sessions.apart.is_none() {
                let marks = self.marks().into_iter().map(|(_, mark)| mark);
                let _ = words.keep(&marks.collect::<Vec<_>>()).inspect_err(failed);
            }
            if is_new && let Err(e) = self.keeper.hold(WORDS, b"", &[words.descriptor()]) {
                tracing::error!("{NO_WORDS}: {e}");
                // One that is gone is told when it is there again.
                refused = matches!(e, keeper::Error::Refused { .. });
            }
        }
        sessions.words = words.filter(|_| !refused);
    }

    /// The names of VMMs' sessions that are held with a mark, and their marks.
    fn marks(&self) -> Vec<(String, Mark)> {
        self.keeper
            .notes(Held::is_session, |note| Mark::of_note(note).0)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of connections that a daemon before has left, if it is not in a file.
    pub fn flows(&self) -> std::io::Result<Option<OwnedFd>> {
        self.first(FLOWS)
    }

    /// The memories of which daemons before have not taken up all connections, which have ended
    /// amid it: the newest first.
    pub fn flows_before(&self) -> std::io::Result<Vec<OwnedFd>> {
        let each = (1..).map(|number| self.first(&before(number)));
        each.map_while(Result::transpose).collect()
    }

    fn first(&self, name: &str) -> std::io::Result<Option<OwnedFd>> {
        Ok(self.keeper.take(name)?.and_then(keeper::Held::into_first))
    }

    /// How many connections a daemon before has left in memory at the most.
    pub fn flows_left(&self) -> usize {
        let memory = self.keeper.look(FLOWS).ok().flatten();
        let room = memory.and_then(|memory| Left::room(memory.as_fd()).ok());
        room.unwrap_or(0)
    }

    /// Has this daemon's memory of connections held, instead of what was left; and that besides,
    /// the newest first, as long as not all of it [is taken up](Self::release_flows_before).
    pub fn hold_flows(&self, memory: BorrowedFd<'_>, left: &[BorrowedFd<'_>]) {
        let hold = |name: &str, memory| self.keeper.hold(name, b"", &[memory]);
        // At any moment all of them are held, by whichever names. Where the keeper is gone it is
        // told of all when it is there again.
        let mut held = Ok(());
        for (number, left) in left.iter().enumerate().rev() {
            held = held.and(hold(&before(number + 1), *left));
        }
        if let Err(e) = held.and(hold(FLOWS, memory)) {
            tracing::error!("connections are lost if this daemon is killed: {e}");
        }
    }

    /// All connections of the daemons before are taken up.
    pub fn release_flows_before(&self) {
        let before = |name: &str| name.starts_with(FLOWS_BEFORE);
        for name in self.keeper.names(before) {
            if let Err(e) = self.keeper.release(&name) {
                tracing::error!("'{name}' may still be held: {e}");
            }
        }
    }

    /// The memory of counters and learnt MACs that a daemon before has left.
    pub fn state(&self) -> std::io::Result<Option<OwnedFd>> {
        self.first(STATE)
    }

    /// The memory of counters and learnt MACs to look at, as long as nobody has taken it; a daemon
    /// before may still write to it.
    pub fn look_at_state(&self) -> Option<OwnedFd> {
        self.keeper.look(STATE).ok().flatten()
    }

    /// Has this daemon's memory of counters and learnt MACs held, instead of what was left.
    pub fn hold_state(&self, memory: BorrowedFd<'_>) {
        if let Err(e) = self.keeper.hold(STATE, b"", &[memory]) {
            tracing::error!("counters and learnt MACs go with this daemon: {e}");
        }
    }

    /// Has something held of a kind, that is of this name there, instead of what was.
    pub fn hold_item(&self, kind: &str, name: &str, item: &Handed) {
        let fds: Vec<_> = item.fds.iter().map(AsFd::as_fd).collect();
        let held = self
            .keeper
            .hold(&format!("{kind} {name}"), &item.note, &fds);
        if let Err(e) = held {
            tracing::error!("the {kind} '{name}' goes with this daemon: {e}");
        }
    }

    /// Lets something of a kind go, unless the next daemon is to find all.
    pub fn release_item(&self, kind: &str, name: &str) {
        if self.is_staying() {
            return;
        }
        if let Err(e) = self.keeper.release(&format!("{kind} {name}")) {
            tracing::error!("the {kind} '{name}' may still be held: {e}");
        }
    }

    /// Lets all of a kind go.
    pub fn release_items(&self, kind: &str) {
        self.release_items_but(kind, &[]);
    }

    /// Lets all of a kind go but those of these names.
    pub fn release_items_but(&self, kind: &str, stay: &[&str]) {
        let goes = |name: &str| name_of_kind(kind, name).is_some_and(|name| !stay.contains(&name));
        for name in self.keeper.names(goes) {
            if let Err(e) = self.keeper.release(&name) {
                tracing::error!("what is held as '{name}' may still be: {e}");
            }
        }
    }

    /// Takes up all of a kind that a daemon before has left, by what is behind the kind's name and
    /// a blank.
    pub fn left_items(&self, kind: &str) -> Items {
        let left = self.keeper.left(|name| name_of_kind(kind, name).is_some());
        let items = left.into_iter().filter_map(|name| {
            let taken = self.keeper.take(&name);
            let taken = taken.inspect_err(|e| tracing::error!("'{name}' is not taken up: {e}"));
            let keeper::Held { note, fds } = taken.ok().flatten()?;
            Some((name_of_kind(kind, &name)?.to_owned(), Handed { note, fds }))
        });
        items.collect()
    }

    /// Has bytes held, instead of those that were.
    pub fn hold_bytes(&self, kind: &str, name: &str, bytes: &[u8]) {
        match file_of(bytes) {
            Ok(file) => self.hold_item(
                kind,
                name,
                &Handed {
                    note: Vec::new(),
                    fds: vec![file],
                },
            ),
            Err(e) => tracing::error!("the {kind} '{name}' goes with this daemon: {e}"),
        }
    }

    /// This daemon ends as it was told to. Lets the notes of ends go, and counters, unless the next
    /// daemon is to find all; and the memory of connections, unless they are left in it.
    pub fn end_told(&self, left_in_memory: bool) {
        self.release_flows_before();
        let gone = (!self.is_staying()).then_some([STATE, WORDS]);
        let flows = (!left_in_memory).then_some(FLOWS);
        let gone = gone.into_iter().flatten();
        for name in [DEATHS].into_iter().chain(flows).chain(gone) {
            if let Err(e) = self.keeper.release(name) {
                tracing::error!("what is held as '{name}' may still be: {e}");
            }
        }
    }

    /// Lets what no NIC has taken up go.
    pub fn release_left(&self) {
        match self.keeper.release_left() {
            Ok(names) if names.is_empty() => (),
            Ok(names) => tracing::info!("left, and wanted no more: {}", names.join(", ")),
            Err(e) => tracing::error!("what is of no NIC any more may still be there: {e}"),
        }
    }

    /// Nothing goes any more: the next daemon finds all.
    pub fn is_staying(&self) -> bool {
        self.staying.load(Ordering::Acquire)
    }

    /// NICs that go leave what is held of them: to the next daemon, or to themselves.
    pub fn stays(&self) -> bool {
        self.is_staying() || self.loading.load(Ordering::Acquire)
    }

    /// Makes what is stored. What of it goes meanwhile, since something else cannot be made, has
    /// its devices and sessions again when it is made again: `load` says when it
    /// [begins](Self::begin_again) and has them [put back](Self::put_back).
    pub fn while_loading<T>(&self, load: impl FnOnce() -> T) -> T {
        self.loading.store(true, Ordering::Release);
        let loaded = load();
        self.keeper.end();
        self.loading.store(false, Ordering::Release);
        loaded
    }

    /// Devices and sessions that are taken up from now on may be put back.
    pub fn begin_again(&self) {
        self.keeper.begin();
    }

    /// Devices and VMMs' sessions that were taken up since are as they were left.
    pub fn put_back(&self) {
        let is_tap = |name: &str| name.starts_with(TAP);
        self.keeper
            .put_back(|name| is_tap(name) || Held::is_session(name));
    }

    /// From now on nothing goes: the next daemon finds all as it is.
    pub fn stay(&self) {
        self.staying.store(true, Ordering::Release);
    }
}

/// VMMs' connections outlive the daemon, too.
impl SessionKeeper for Held {
    fn hold(&self, nic: &str, record: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut sessions = self.sessions();
        let mark = sessions.mark(nic);
        let note = mark.map(|mark| mark.noted(record));
        let note = note.as_deref().unwrap_or(record);
        let held = self.keeper.hold(&session_name(nic), note, fds);
        // Whether the keeper has heard it or not: what it had before is valid no more.
        if let Some(mark) = mark {
            sessions.say_of(nic, mark, SessionWords::settle);
        }
        drop(sessions);
        if let Err(e) = &held {
            tracing::error!(nic, "its VMM's connection goes with this daemon: {e}");
        }
        // A keeper that is gone comes back, and an upgrade does not ask it.
        !matches!(held, Err(keeper::Error::Refused { .. }))
    }

    fn release(&self, nic: &str) {
        // A keeper that stands still hears it later, or never.
        self.sessions().say(nic, |words| words.invalidate(nic));
        say_held(nic, self.keeper.release_soon(&session_name(nic)));
    }

    fn ended(&self, nic: &str) -> bool {
        let is_left = self.stays();
        if !is_left {
            self.sessions().say(nic, |words| words.forget(nic));
            say_held(nic, self.keeper.release(&session_name(nic)));
        }
        is_left
    }

    fn closed(&self, _nic: &str) {
        forgotten::count(What::Session, 1);
    }
}

impl Sessions {
    /// For what is about to be held of a session, which is valid then, beside what was.
    fn mark(&mut self, nic: &str) -> Option<Mark> {
        let mark = self.words.as_mut()?.mark(nic);
        let failed = |e: &std::io::Error| tracing::error!(nic, "{NO_WORDS}: {e}");
        let mark = mark.inspect_err(failed).ok()?;
        self.say_of(nic, mark, SessionWords::offer);
        Some(mark)
    }

    /// While another daemon is the keeper's client, the last one is for later.
    fn say_of(
        &mut self,
        nic: &str,
        mark: Mark,
        say: impl Fn(&SessionWords, Mark) -> std::io::Result<()>,
    ) {
        match &mut self.apart {
            Some(later) => drop(later.insert(nic.to_owned(), mark)),
            None => self.say(nic, |words| say(words, mark)),
        }
    }

    fn say_of_all(
        &mut self,
        marks: &BTreeMap<String, Mark>,
        say: impl Fn(&SessionWords, Mark) -> std::io::Result<()>,
    ) {
        for (nic, mark) in marks {
            self.say_of(nic, *mark, &say);
        }
    }

    fn say(&mut self, nic: &str, say: impl FnOnce(&mut SessionWords) -> std::io::Result<()>) {
        if self.apart.is_none()
            && let Some(words) = &mut self.words
            && let Err(e) = say(words)
        {
            tracing::error!(nic, "{NO_WORDS}: {e}");
        }
    }
}

/// What is then so.
const NO_WORDS: &str = "which of what the keeper has of a VMM's session is the newest is not noted";

fn say_held(nic: &str, released: Result<(), keeper::Error>) {
    if let Err(e) = released {
        tracing::error!(nic, "its VMM's connection may still be held: {e}");
    }
}

/// What was [held as bytes](Held::hold_bytes).
pub fn bytes(name: &str, item: Handed) -> Option<Vec<u8>> {
    let [file] = item.take()?;
    let read = bytes_of(file, BYTES_MAX);
    let said = |e: &std::io::Error| tracing::warn!("what is held as '{name}' cannot be read: {e}");
    read.inspect_err(said).ok()
}

/// What the memory of connections is held as that is so many daemons old.
fn before(number: usize) -> String {
    format!("{FLOWS_BEFORE}{number}")
}

/// What the names of sessions begin with.
const SESSION: &str = "vhost:";

fn session_name(nic: &str) -> String {
    format!("{SESSION}{nic}")
}

/// A keeper in a process of its own, which a signal to our group does not reach, and which ends
/// when nothing is left to be held.
fn start(path: &Path) -> Result<Child, String> {
    // Also when the file was replaced by a newer one since.
    Command::new("/proc/self/exe")
        .arg("--as-keeper")
        .arg(path)
        .arg("--until-idle")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("STATE_DIRECTORY")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("the keeper {} cannot be started: {e}", path.display()))
}

/// What the names of TAP devices begin with.
const TAP: &str = "tap:";

fn name(interface: &str) -> String {
    format!("{TAP}{interface}")
}

/// What a device was told to be; another note means that it is to be told anew.
fn note(options: &TapOptions) -> Vec<u8> {
    format!("{} {:?}", options.mac, options.mtu).into_bytes()
}
