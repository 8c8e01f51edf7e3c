//! The daemon's side of a reader.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sys::confine::{Limits, UNLIMITED};
use sys::handed::file_of;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::Notify;
use tokio::task::block_in_place;

use super::ARGUMENT;
use super::words::{Word, say, sentence};

/// What a reader may have. Of processor time it takes what its connections need.
const LIMITS: Limits = Limits {
    memory: UNLIMITED,
    data: 2 << 30,
    cpu_secs: UNLIMITED,
    file: UNLIMITED,
    files: UNLIMITED,
    processes: UNLIMITED,
};
/// Between two looks at whether it moves.
const BEAT: Duration = Duration::from_secs(1);
/// One is not started more often than this.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one that has just been started, or is busy, may take no word.
const BUSY: Duration = Duration::from_secs(5);
/// Between two tries to say it.
const AGAIN: Duration = Duration::from_millis(5);
/// Bytes of what it said last, for the log.
const SAID_MAX: usize = 1024;

/// A process that parses what strangers send, once there is something. It is started when it is
/// needed, and again when it has ended.
pub struct Reader {
    /// Whose bytes it reads, for the log.
    of: &'static str,
    /// How long it may not move; `None`: for ever.
    patience: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Arc<Running>>,
    /// When one was last started, or could not be.
    tried: Option<Instant>,
    /// What each one is told first.
    settings: Vec<Setting>,
}

struct Running {
    socket: OwnedFd,
    is_alive: AtomicBool,
    /// It has moved since it was started.
    has_moved: AtomicBool,
    /// It is to be ended.
    end: Notify,
}

/// Something that all connections behind it go by.
struct Setting {
    word: Word,
    note: Vec<u8>,
    files: Vec<Vec<u8>>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reader").field(&self.of).finish()
    }
}

impl Reader {
    /// Of whose bytes; `hang_secs` as the option of that name has it.
    pub fn new(of: &'static str, hang_secs: u32) -> Arc<Reader> {
        let patience = Duration::from_secs(hang_secs.into());
        Arc::new(Reader {
            of,
            patience: Some(patience).filter(|patience| !patience.is_zero()),
            state: Mutex::default(),
        })
    }

    /// Tells the reader, and those that come after it, what connections go by from now on; of a
    /// word what was told last is in force. Files are passed as descriptors, whatever their size.
    /// A reader that cannot be told is ended, so that no connection goes by what was before.
    ///
    /// # Errors
    /// There is no memory, or no descriptor, for the files. What was told before stays in force.
    pub fn set(&self, word: Word, note: &[u8], files: Vec<Vec<u8>>) -> io::Result<()> {
        let setting = Setting {
            word,
            note: note.to_owned(),
            files,
        };
        let passed = setting.files()?;
        let mut state = self.lock();
        if let Some(running) = state.running()
            && setting.tell(&running.socket, &passed).is_err()
        {
            running.give_up();
        }
        state.settings.retain(|known| known.word != word);
        state.settings.push(setting);
        Ok(())
    }

    /// Passes a connection on; gives the daemon's end of what the reader says of it.
    ///
    /// # Errors
    /// No reader can be started, or it takes nothing: a sentence.
    pub async fn hand(
        &self,
        word: Word,
        note: &[u8],
        connection: OwnedFd,
    ) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let descriptors = [connection.as_fd(), theirs.as_fd()];
        let until = Instant::now() + BUSY;
        loop {
            // Starting one takes some milliseconds.
            match block_in_place(|| self.say(word, note, &descriptors)) {
                Err(e) if is_full(&e) && Instant::now() < until => tokio::time::sleep(AGAIN).await,
                Err(e) => return Err(io::Error::other(format!("the reader of {} {e}", self.of))),
                Ok(()) => return Ok(ours),
            }
        }
    }

    /// Returns when there is a reader, which takes some milliseconds where it has to be started.
    ///
    /// # Errors
    /// None can be started, or it does not move: a sentence.
    pub async fn prepare(&self) -> io::Result<()> {
        let running = block_in_place(|| self.lock().running_or(|settings| self.start(settings)))?;
        if running.has_moved.load(Ordering::Acquire) {
            return Ok(());
        }
        match beat_within(&running.socket, self.patience).await {
            Beat::Came => {
                running.has_moved.store(true, Ordering::Release);
                Ok(())
            }
            Beat::Late | Beat::Gone => Err(io::Error::other(format!(
                "the reader of {} does not move",
                self.of
            ))),
        }
    }

    /// Whether it does what it is asked to, as far as that can be told within the time that a hang
    /// is given.
    pub async fn moves(&self) -> bool {
        let running = self.lock().running();
        match running {
            Some(running) => beat_within(&running.socket, self.patience).await == Beat::Came,
            None => false,
        }
    }

    fn say(&self, word: Word, note: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut state = self.lock();
        if let Some(running) = state.running() {
            match say(&running.socket, word, note, descriptors) {
                Err(e) if !is_full(&e) => running.give_up(),
                said => return said,
            }
        }
        let running = state.running_or(|settings| self.start(settings))?;
        say(&running.socket, word, note, descriptors)
    }

    fn start(&self, settings: &[Setting]) -> io::Result<Arc<Running>> {
        let packets = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, packets, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("butterflyd")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // The daemon's own is nobody else's to write to.
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // It gives up what it has before it hears of the key: see `give_up`.
        sys::confine::limit(command.as_std_mut(), LIMITS);
        let mut child = health::start_program(command)?;
        // One that takes nothing is not waited for.
        rustix::io::ioctl_fionbio(&ours, true)?;
        for setting in settings {
            setting.tell(&ours, &setting.files()?)?;
        }
        let running = Arc::new(Running {
            socket: ours,
            is_alive: AtomicBool::new(true),
            has_moved: AtomicBool::new(false),
            end: Notify::new(),
        });
        let last_words = child
            .stderr
            .take()
            .map(|said| tokio::spawn(last_words(said)));
        let (of, patience, watched) = (self.of, self.patience, running.clone());
        tokio::spawn(async move {
            let ended = watch(of, patience, child, &watched).await;
            let said = match last_words {
                Some(said) => said.await.unwrap_or_default(),
                None => Vec::new(),
            };
            tracing::error!(
                "the reader of {of} has ended ({ended}), and its connections with it; the next one \
                 has another started; it said last: {}",
                sentence(&said)
            );
        });
        Ok(running)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The one that runs, as far as is known.
    fn running(&self) -> Option<Arc<Running>> {
        let running = self.running.clone();
        running.filter(|running| running.is_alive.load(Ordering::Acquire))
    }

    /// That, or one that is started; not more often than there is a [`PAUSE`].
    fn running_or(
        &mut self,
        start: impl FnOnce(&[Setting]) -> io::Result<Arc<Running>>,
    ) -> io::Result<Arc<Running>> {
        if let Some(running) = self.running() {
            return Ok(running);
        }
        if self.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return Err(io::Error::other("has ended a moment ago"));
        }
        self.tried = Some(Instant::now());
        let started = start(&self.settings);
        let running = started.map_err(|e| io::Error::other(format!("cannot be started: {e}")))?;
        self.running = Some(running.clone());
        Ok(running)
    }
}

impl Running {
    /// Has it ended, however it pretends to be.
    fn give_up(&self) {
        self.is_alive.store(false, Ordering::Release);
        self.end.notify_one();
    }
}

impl Setting {
    fn files(&self) -> io::Result<Vec<OwnedFd>> {
        self.files.iter().map(|bytes| file_of(bytes)).collect()
    }

    fn tell(&self, socket: &OwnedFd, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        say(socket, self.word, &self.note, &files)
    }
}

/// Whether the other end has no room now.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Sees that a reader moves, and that it ends when it does not; gives what it ended with.
async fn watch(
    of: &'static str,
    patience: Option<Duration>,
    mut child: Child,
    running: &Running,
) -> String {
    let beats = async {
        loop {
            tokio::time::sleep(BEAT).await;
            match beat_within(&running.socket, patience).await {
                Beat::Came => (),
                Beat::Late => break true,
                Beat::Gone => break false,
            }
        }
    };
    let is_late = tokio::select! {
        _ = child.wait() => false,
        is_late = beats => is_late,
        () = running.end.notified() => false,
    };
    running.is_alive.store(false, Ordering::Release);
    if is_late {
        tracing::error!("the reader of {of} has not moved in time: it is ended");
    }
    // One that has hung up is not let go with what it has.
    let _ = child.start_kill();
    let ended = child.wait().await;
    ended.map_or_else(|e| e.to_string(), |status| status.to_string())
}

#[derive(PartialEq, Eq)]
enum Beat {
    Came,
    Late,
    Gone,
}

async fn beat_within(socket: &OwnedFd, patience: Option<Duration>) -> Beat {
    let beat = async {
        match beat(socket).await {
            Ok(()) => Beat::Came,
            Err(_) => Beat::Gone,
        }
    };
    match patience {
        Some(patience) => tokio::time::timeout(patience, beat)
            .await
            .unwrap_or(Beat::Late),
        None => beat.await,
    }
}

/// Returns when all threads of a reader have moved.
async fn beat(socket: &OwnedFd) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    loop {
        match say(socket, Word::Beat, &[], &[theirs.as_fd()]) {
            Err(e) if is_full(&e) => tokio::time::sleep(AGAIN).await,
            said => break said?,
        }
    }
    drop(theirs);
    ours.read_exact(&mut [0]).await?;
    Ok(())
}

/// The end of what a reader says on its standard error.
async fn last_words(mut stderr: ChildStderr) -> Vec<u8> {
    let mut said = Vec::new();
    let mut piece = [0; SAID_MAX];
    while let Ok(len @ 1..) = stderr.read(&mut piece).await {
        said.extend_from_slice(&piece[..len]);
        said.drain(..said.len().saturating_sub(SAID_MAX));
    }
    said
}
