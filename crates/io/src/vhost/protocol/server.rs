//! The vhost-user server: one thread, one epoll, and for each NIC a socket that it listens on or
//! connects to ([`super::client`]), with at most one VMM.
//!
//! The thread owns everything; [`Server`] sends it commands and waits for the answer. Nothing in it
//! waits for a VMM: a message that came in part stays in its connection, a reply that finds no room
//! stops the reading of that connection, and so does a message that needs an answer of a helper
//! process, which its VMM may have stand still. What it does wait for is [`PortSink`], a worker's
//! turn long.
//!
//! A second VMM is refused while one is connected, since two would write the same NIC's state; when
//! the first one has died and its end was not yet noticed, the second takes over. When the process
//! is out of descriptors, or a VMM has broken the protocol or gone without a word, its listener is
//! left alone for a moment, so that neither makes the thread spin.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sys::allowance::Allowance;
use tracing::{error, info, warn};

use crate::vhost::nic_options::NicOptions;
use crate::vhost::protocol::channel;
use crate::vhost::protocol::client::{Client, Watches};
use crate::vhost::protocol::connection::{Connection, Progress};
use crate::vhost::protocol::going_on::{self, Left, WentOn};
use crate::vhost::protocol::listener::{Listener, SocketFile};
use crate::vhost::protocol::log_lines::Lines;
use crate::vhost::protocol::saved::{LeftError, LeftSession, Resumed, SessionKeeper};
use crate::vhost::protocol::server_error::ServerError;
use crate::vhost::protocol::session::{Session, SessionInfo};
use crate::vhost::protocol::sink::{PortKey, PortSink, PortState};
use sys::poll::{Doorbell, Interest, Poller};

/// Why no session goes on without the server's thread.
const NOBODY: LeftError = LeftError("has nobody to go on with it");

/// How long a listener is left alone when the process is out of descriptors or memory.
const PAUSE_EXHAUSTED: Duration = Duration::from_secs(1);

/// How long a listener is left alone after its VMM has broken the protocol, or has gone before a
/// ring ran: one that wants what there is not (more queues than there are) comes again as fast as
/// it can.
const PAUSE_BROKEN: Duration = Duration::from_millis(100);
/// Between two looks at who is amid a message.
const LOOK: Duration = Duration::from_millis(5);

/// One NIC of the server, for dumps.
#[derive(Clone, Debug)]
pub struct NicInfo {
    /// The key that was given to [`Server::listen`] or [`Server::connect`].
    pub key: PortKey,
    /// What log lines call it.
    pub name: String,
    /// Where its socket is.
    pub path: PathBuf,
    /// The connected VMM's session.
    pub session: Option<SessionInfo>,
}

/// The handle of the server. Dropping it closes all sockets and ends all sessions.
pub struct Server {
    commands: mpsc::Sender<Command>,
    bell: Doorbell,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Open(
        PortKey,
        NicOptions,
        Box<End>,
        mpsc::Sender<Result<(), ServerError>>,
    ),
    OpenAgain(PortKey, NicOptions, Box<End>, LeftSession),
    Change(PortKey, NicOptions, mpsc::Sender<bool>),
    Give(
        PortKey,
        SocketFile,
        mpsc::Sender<Option<Result<(), ServerError>>>,
    ),
    Retry(PortKey, mpsc::Sender<Option<PortState>>),
    Close(PortKey, mpsc::Sender<bool>),
    Nics(mpsc::Sender<Vec<NicInfo>>),
    Nic(PortKey, mpsc::Sender<Option<NicInfo>>),
    Listeners(mpsc::Sender<io::Result<Vec<(PathBuf, OwnedFd)>>>),
    Amid(mpsc::Sender<BTreeSet<PortKey>>),
    HangUp(BTreeSet<PortKey>, mpsc::Sender<()>),
    Yield(mpsc::Receiver<()>, mpsc::Sender<Result<(), Stays>>),
    Prepare(
        Vec<(PortKey, LeftSession)>,
        mpsc::Sender<Result<(), (PortKey, LeftError)>>,
    ),
    TakeUp(
        Vec<PortKey>,
        Vec<(PortKey, LeftSession)>,
        mpsc::Sender<Result<(), (PortKey, LeftError)>>,
    ),
    Begin,
    Stop,
}

/// Why sessions cannot be given to another process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stays {
    /// That of this NIC is to be asked for again.
    #[error(
        "the session of NIC '{0}' cannot be handed over now: its VMM is in the midst of a message, \
         or moves its guest"
    )]
    Now(String),
    /// That of this NIC ends with this process.
    #[error(
        "the session of NIC '{0}' cannot be handed over: the keeper does not hold it, as none of \
         more than 253 descriptors, some sixty queue pairs"
    )]
    ForGood(String),
}

/// All ports are with the server's thread, which does nothing else until this is dropped: then it
/// gives them back to the workers, and goes on.
#[derive(Debug)]
pub struct Yielded {
    _go_on: mpsc::Sender<()>,
}

impl Server {
    /// Starts the thread. Sessions end with the process.
    pub fn start(sink: Arc<dyn PortSink>) -> io::Result<Server> {
        Server::start_keeping(sink, None)
    }

    /// Starts the thread; `keeper` has sessions outlive the process.
    pub fn start_keeping(
        sink: Arc<dyn PortSink>,
        keeper: Option<Arc<dyn SessionKeeper>>,
    ) -> io::Result<Server> {
        Server::start_as(sink, keeper, false)
    }

    /// Starts the thread in a process that another one gives way to: it serves nobody and connects
    /// to nobody before [`begin`](Server::begin).
    pub fn start_waiting(
        sink: Arc<dyn PortSink>,
        keeper: Option<Arc<dyn SessionKeeper>>,
    ) -> io::Result<Server> {
        Server::start_as(sink, keeper, true)
    }

    fn start_as(
        sink: Arc<dyn PortSink>,
        keeper: Option<Arc<dyn SessionKeeper>>,
        waiting: bool,
    ) -> io::Result<Server> {
        let poller = Poller::new()?;
        let bell = Doorbell::new()?;
        poller.add(bell.as_fd(), BELL)?;
        let pages = Doorbell::new()?;
        poller.add(pages.as_fd(), PAGES)?;
        let watches = Watches::new();
        if let Some(inotify) = watches.fd() {
            poller.add(inotify, WATCHES)?;
        }
        let (commands, queue) = mpsc::channel();
        let state = Thread {
            sink,
            keeper,
            poller,
            bell: bell.clone(),
            pages,
            nics: HashMap::new(),
            clients: BTreeSet::new(),
            pauses: Vec::new(),
            parked: BTreeMap::new(),
            watches,
            waiting,
            ready: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("vhost-user".to_owned())
            .spawn(|| state.run(queue))?;
        Ok(Server {
            commands,
            bell,
            thread: Some(thread),
        })
    }

    /// Makes a NIC's socket and waits there for its VMM. The socket's file follows the process: its
    /// user, group and umask.
    pub fn listen(&self, key: PortKey, path: &Path, nic: NicOptions) -> Result<(), ServerError> {
        self.listen_as(key, path, SocketFile::default(), nic)
    }

    /// As [`listen`](Server::listen), with a socket's file that belongs to whom `file` says.
    pub fn listen_as(
        &self,
        key: PortKey,
        path: &Path,
        file: SocketFile,
        nic: NicOptions,
    ) -> Result<(), ServerError> {
        self.listen_again(key, path, file, nic, None)
    }

    /// As [`listen_as`](Server::listen_as), going on with the session that a process before has
    /// left, if there is one: does not wait for that ([`catch_up`](Server::catch_up)). One that
    /// cannot go on is closed, and the log says why.
    pub fn listen_again(
        &self,
        key: PortKey,
        path: &Path,
        file: SocketFile,
        nic: NicOptions,
        left: Option<LeftSession>,
    ) -> Result<(), ServerError> {
        let end = Box::new(End::Listener(Listener::bind(path, file)?));
        self.open(key, nic, end, left)
    }

    fn open(
        &self,
        key: PortKey,
        nic: NicOptions,
        end: Box<End>,
        left: Option<LeftSession>,
    ) -> Result<(), ServerError> {
        match left {
            None => self
                .ask(|answer| Command::Open(key, nic, end, answer))
                .ok_or(ServerError::Stopped)?,
            // Each of a thousand would be two changes of threads.
            Some(left) => self.tell(Command::OpenAgain(key, nic, end, left)),
        }
    }

    /// Returns when all sessions go on that were to, or are closed.
    pub fn catch_up(&self) {
        // Commands are carried out in their order.
        self.ask(Command::Amid);
    }

    /// As [`listen`](Server::listen), at the socket of a process that gives way to this one.
    pub fn listen_by(
        &self,
        key: PortKey,
        path: &Path,
        socket: OwnedFd,
        nic: NicOptions,
    ) -> Result<(), ServerError> {
        let end = Box::new(End::Listener(Listener::handed(path, socket)));
        self.open(key, nic, end, None)
    }

    /// The sockets that are listened on, by their paths, for a process that this one gives way to.
    pub fn listeners(&self) -> io::Result<Vec<(PathBuf, OwnedFd)>> {
        let stopped = || io::Error::from(io::ErrorKind::NotConnected);
        self.ask(Command::Listeners).ok_or_else(stopped)?
    }

    /// Waits so long, if need be, until each VMM has said what it is in the midst of saying, and
    /// has taken its answer. Who has not by then is hung up on, and has to connect anew: it may
    /// never.
    pub fn settle(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut amid = self.ask(Command::Amid).unwrap_or_default();
        while !amid.is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK);
            let now = self.ask(Command::Amid).unwrap_or_default();
            amid.retain(|key| now.contains(key));
        }
        if !amid.is_empty() {
            self.ask(|answer| Command::HangUp(amid, answer));
        }
    }

    /// Takes all ports back from the workers and stands still, so that another process can go on
    /// with the sessions, by what was held of them last.
    ///
    /// # Errors
    /// A session cannot be gone on with now; nothing has changed.
    pub fn give_way(&self) -> Result<Yielded, Stays> {
        let (go_on, wait) = mpsc::channel();
        self.ask(|answer| Command::Yield(wait, answer))
            .unwrap_or(Ok(()))?;
        Ok(Yielded { _go_on: go_on })
    }

    /// Makes sessions ready of a process that will give way to this one, and serves them still: all
    /// but running their rings is done then. One whose guest is here before its memory is left out.
    ///
    /// # Errors
    /// One that cannot be gone on with; none is ready.
    pub fn prepare(&self, left: Vec<(PortKey, LeftSession)>) -> Result<(), (PortKey, LeftError)> {
        let Some((first, _)) = left.first() else {
            return Ok(());
        };
        let nobody = (*first, NOBODY);
        self.ask(|answer| Command::Prepare(left, answer))
            .unwrap_or(Err(nobody))
    }

    /// Goes on with the sessions of a process that gives way to this one: those that are as they
    /// were when they were [made ready](Server::prepare), and others. What was made ready and is
    /// not named is forgotten.
    ///
    /// # Errors
    /// This one cannot be gone on with; its connection is closed here.
    pub fn take_up(
        &self,
        ready: Vec<PortKey>,
        others: Vec<(PortKey, LeftSession)>,
    ) -> Result<(), (PortKey, LeftError)> {
        let first = ready.first().or(others.first().map(|(key, _)| key));
        let nobody = first.map(|key| (*key, NOBODY));
        self.ask(|answer| Command::TakeUp(ready, others, answer))
            .unwrap_or(nobody.map_or(Ok(()), Err))
    }

    /// Of one that [waits](Server::start_waiting): serves from now on.
    pub fn begin(&self) {
        // One that is stopped serves nobody.
        let _ = self.tell(Command::Begin);
    }

    /// Connects to a NIC's VMM, which listens at `path`: now, or as soon as it does, and again
    /// whenever it has gone and returned. Nothing needs to be there yet; the file is the VMM's to
    /// make and to remove.
    pub fn connect(&self, key: PortKey, path: &Path, nic: NicOptions) -> Result<(), ServerError> {
        self.connect_again(key, path, nic, None)
    }

    /// As [`connect`](Server::connect), going on with the session that a process before has left,
    /// as [`listen_again`](Server::listen_again) does.
    pub fn connect_again(
        &self,
        key: PortKey,
        path: &Path,
        nic: NicOptions,
        left: Option<LeftSession>,
    ) -> Result<(), ServerError> {
        let end = Box::new(End::Client(Client::new(path)?));
        self.open(key, nic, end, left)
    }

    /// Gives a NIC other options, from its next session on: a connected guest has been offered the
    /// old ones. Its link goes up or down at once. Its VMM is told if it has given a way; if not, a
    /// VMM that listens is hung up on until the link is up again. False when there is none of that
    /// key.
    pub fn change(&self, key: PortKey, nic: NicOptions) -> bool {
        self.ask(|answer| Command::Change(key, nic, answer))
            .unwrap_or(false)
    }

    /// Gives the file of a NIC's socket to others, while VMMs that are connected stay so; where
    /// nothing is said it is this process's, as one that it makes. A VMM's own socket stays as it
    /// is. `None`: there is none of that key.
    pub fn give(&self, key: PortKey, file: SocketFile) -> Option<Result<(), ServerError>> {
        self.ask(|answer| Command::Give(key, file, answer))
            .flatten()
    }

    /// Ends what [`listen`](Server::listen) or [`connect`](Server::connect) has begun, the socket
    /// and the session; the port has been taken back when this returns. False when there is none of
    /// that key.
    pub fn close(&self, key: PortKey) -> bool {
        self.ask(|answer| Command::Close(key, answer))
            .unwrap_or(false)
    }

    /// Runs a NIC's rings again that were stopped because its guest broke the protocol, and says
    /// how it is then. `None`: there is none of that key.
    pub fn retry(&self, key: PortKey) -> Option<PortState> {
        self.ask(|answer| Command::Retry(key, answer)).flatten()
    }

    /// All NICs and their sessions, by key.
    pub fn nics(&self) -> Vec<NicInfo> {
        self.ask(Command::Nics).unwrap_or_default()
    }

    /// One of them.
    pub fn nic(&self, key: PortKey) -> Option<NicInfo> {
        self.ask(|answer| Command::Nic(key, answer)).flatten()
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> Option<T> {
        let (answer, result) = mpsc::channel();
        self.tell(command(answer)).ok()?;
        result.recv().ok()
    }

    fn tell(&self, command: Command) -> Result<(), ServerError> {
        self.commands
            .send(command)
            .map_err(|_| ServerError::Stopped)?;
        self.bell.ring();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Which side makes the connection, and with what.
enum End {
    Listener(Listener),
    Client(Client),
}

impl End {
    fn path(&self) -> &Path {
        match self {
            End::Listener(listener) => listener.path(),
            End::Client(client) => client.path(),
        }
    }
}

struct Nic {
    options: Arc<NicOptions>,
    end: End,
    connection: Option<Connection>,
    /// What the keeper has of the session is the session as it is.
    held: bool,
    /// What the log has had of its sessions.
    lines: Lines,
    /// What they have left of [`Session::HELPERS`].
    helpers: Allowance,
}

impl Nic {
    fn info(&self, key: PortKey) -> NicInfo {
        NicInfo {
            key,
            name: self.options.name.clone(),
            path: self.end.path().to_owned(),
            session: self
                .connection
                .as_ref()
                .map(|connection| connection.session().info()),
        }
    }
}

/// A unix socket of a connection.
fn is_stream(socket: &OwnedFd) -> bool {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
}

/// What the server's thread owns.
struct Thread {
    sink: Arc<dyn PortSink>,
    keeper: Option<Arc<dyn SessionKeeper>>,
    poller: Poller,
    bell: Doorbell,
    /// Rung when pages have come for which some session waits, or an answer of who waits for them.
    pages: Doorbell,
    nics: HashMap<PortKey, Nic>,
    /// Those whose VMMs listen: the only ones that there may be something to do for at each turn,
    /// of many thousands that wait.
    clients: BTreeSet<PortKey>,
    /// Listeners that are left alone, and until when.
    pauses: Vec<(Instant, PortKey)>,
    /// Whose sessions wait for such an answer, and when they are to look again without the bell.
    parked: BTreeMap<PortKey, Instant>,
    watches: Watches,
    /// Another process serves still: commands alone are heard.
    waiting: bool,
    /// Sessions of that process that are ready to be gone on with.
    ready: BTreeMap<PortKey, Left>,
}

/// Tokens of the poller: the bell, the watched directories, pages that have come, and three for
/// each NIC, which begin at its key times `TOKENS`.
const BELL: u64 = u64::MAX;
const WATCHES: u64 = u64::MAX - 1;
const PAGES: u64 = u64::MAX - 2;

const TOKENS: u64 = 3;

fn listener_token(key: PortKey) -> u64 {
    u64::from(key.0) * TOKENS
}

fn connection_token(key: PortKey) -> u64 {
    listener_token(key) + 1
}

fn channel_token(key: PortKey) -> u64 {
    listener_token(key) + 2
}

impl Thread {
    fn run(mut self, commands: mpsc::Receiver<Command>) {
        let mut ready = Vec::new();
        loop {
            while self.waiting {
                let Ok(command) = commands.recv() else { return };
                if !self.handle(command) {
                    return;
                }
            }
            let attempts = self.clients().filter_map(|(_, client)| client.due());
            let timeout = self
                .pauses
                .iter()
                .map(|(until, _)| *until)
                .chain(self.parked.values().copied())
                .chain(attempts)
                .min();
            let timeout = timeout.map(|until| until.saturating_duration_since(Instant::now()));
            ready.clear();
            match self.poller.wait(timeout) {
                Ok(tokens) => ready.extend(tokens),
                Err(error) => {
                    warn!("vhost-user: waiting for sockets: {error}");
                    // cannot happen with a valid epoll; must not spin
                    std::thread::sleep(PAUSE_BROKEN);
                }
            }
            for &token in &ready {
                let key = PortKey((token / TOKENS) as u32);
                match token {
                    BELL => {
                        self.bell.clear();
                    }
                    PAGES => {
                        self.pages.clear();
                        self.pages_came();
                    }
                    WATCHES => self.notice(),
                    token if token == connection_token(key) => self.serve(key),
                    token if token == channel_token(key) => self.serve_channel(key),
                    _ => self.accept(key),
                }
            }
            self.unpark(Instant::now());
            self.resume();
            self.dial();
            // After the bell was cleared: a command that comes now rings again.
            for command in commands.try_iter() {
                if !self.handle(command) {
                    return;
                }
            }
        }
    }

    /// Does what it says; false: it is the end.
    fn handle(&mut self, command: Command) -> bool {
        match command {
            Command::Open(key, nic, end, answer) => {
                let _ = answer.send(self.open(key, nic, *end, None));
            }
            Command::OpenAgain(key, nic, end, left) => {
                let name = nic.name.clone();
                if let Err(error) = self.open(key, nic, *end, Some(left)) {
                    error!(nic = name, "no VMM is served: {error}");
                }
            }
            Command::Change(key, options, answer) => {
                let _ = answer.send(self.change(key, options));
            }
            Command::Give(key, file, answer) => {
                let given = self.nics.get(&key).map(|nic| match &nic.end {
                    End::Listener(listener) => listener.give(file),
                    End::Client(_) => Ok(()),
                });
                let _ = answer.send(given);
            }
            Command::Close(key, answer) => drop(answer.send(self.close(key))),
            Command::Retry(key, answer) => drop(answer.send(self.retry(key))),
            Command::Nics(answer) => drop(answer.send(self.info())),
            Command::Nic(key, answer) => {
                drop(answer.send(self.nics.get(&key).map(|nic| nic.info(key))));
            }
            Command::Listeners(answer) => drop(answer.send(self.listeners())),
            Command::Amid(answer) => {
                let amid = |nic: &Nic| nic.connection.as_ref().is_some_and(Connection::is_amid);
                let nics = self.nics.iter().filter(|(_, nic)| amid(nic));
                let _ = answer.send(nics.map(|(key, _)| *key).collect());
            }
            Command::HangUp(keys, answer) => {
                for key in keys {
                    if let Some(nic) = self.nics.get(&key) {
                        let name = &nic.options.name;
                        warn!(nic = name, "its VMM is hung up on: it stops amid a message");
                    }
                    self.hang_up(key, PAUSE_BROKEN);
                }
                let _ = answer.send(());
            }
            Command::Yield(go_on, answer) => self.give_way(&go_on, &answer),
            Command::Prepare(left, answer) => drop(answer.send(self.prepare(left))),
            Command::TakeUp(ready, others, answer) => {
                let done = self.take_up(&ready, others);
                let failed = done.iter().find_map(WentOn::failed);
                // Frames wait for the answer: all that is to be noted comes behind it.
                let _ = answer.send(failed.map_or(Ok(()), Err));
                done.into_iter().for_each(|one| self.keep(one));
            }
            Command::Begin => self.begin_serving(),
            Command::Stop => {
                let keys: Vec<PortKey> = self.nics.keys().copied().collect();
                for key in keys {
                    self.close(key);
                }
                return false;
            }
        }
        true
    }

    fn listeners(&self) -> io::Result<Vec<(PathBuf, OwnedFd)>> {
        let listener = |nic: &Nic| match &nic.end {
            End::Listener(listener) => {
                let socket = listener.as_fd().try_clone_to_owned();
                Some(socket.map(|socket| (listener.path().to_owned(), socket)))
            }
            End::Client(_) => None,
        };
        self.nics.values().filter_map(listener).collect()
    }

    /// Takes all ports back, says so, and stands still until the other side is dropped.
    fn give_way(&mut self, go_on: &mpsc::Receiver<()>, answer: &mpsc::Sender<Result<(), Stays>>) {
        let busy = self.nics.values().find(|nic| {
            let connection = nic.connection.as_ref();
            connection.is_some_and(|connection| {
                connection.session().is_arriving() || connection.saved(b"", None).is_none()
            })
        });
        if let Some(nic) = busy {
            let _ = answer.send(Err(Stays::Now(nic.options.name.clone())));
            return;
        }
        // Of who has connected and said nothing yet. Nobody else is to wait for the keeper now.
        let others = self.nics.iter().filter(|(_, nic)| !nic.held);
        for key in others.map(|(key, _)| *key).collect::<Vec<_>>() {
            if !self.hold_session(key, None)
                && let Some(nic) = self.nics.get(&key)
            {
                let _ = answer.send(Err(Stays::ForGood(nic.options.name.clone())));
                return;
            }
        }
        self.take_ports();
        let _ = answer.send(Ok(()));
        // Nothing is ever sent.
        let _ = go_on.recv();
        let connections = self.nics.values_mut();
        for connection in connections.filter_map(|nic| nic.connection.as_mut()) {
            connection.give_ports();
        }
    }

    /// Has all ports back from the workers, and says nothing of it to anybody.
    fn take_ports(&mut self) {
        let connections = self.nics.values().filter_map(|nic| nic.connection.as_ref());
        let attached = connections.flat_map(|connection| connection.session().attached());
        let attached: Vec<_> = attached.collect();
        let mut ports: HashMap<_, _> = self.sink.detach_all(&attached).into_iter().collect();
        for at @ (key, pair) in attached {
            let nic = self.nics.get_mut(&key);
            if let Some(connection) = nic.and_then(|nic| nic.connection.as_mut()) {
                connection.take_port(pair, ports.remove(&at));
            }
        }
    }

    fn begin_serving(&mut self) {
        self.waiting = false;
        for nic in self.nics.values_mut() {
            if let End::Listener(listener) = &mut nic.end {
                listener.own();
            }
        }
    }

    fn open(
        &mut self,
        key: PortKey,
        options: NicOptions,
        end: End,
        left: Option<LeftSession>,
    ) -> Result<(), ServerError> {
        let path = end.path().to_owned();
        if self.nics.contains_key(&key) {
            return Err(ServerError::KeyInUse { path, key });
        }
        if let End::Listener(listener) = &end {
            if let Err(error) = self.poller.add(listener.as_fd(), listener_token(key)) {
                return Err(ServerError::Socket { path, error });
            }
            info!(
                nic = options.name,
                "waiting for a VMM at {}",
                path.display()
            );
        } else {
            self.clients.insert(key);
        }
        self.nics.insert(
            key,
            Nic {
                options: Arc::new(options),
                end,
                connection: None,
                held: false,
                lines: Lines::default(),
                helpers: Session::HELPERS,
            },
        );
        if let Some(left) = left {
            self.go_on(key, left);
        }
        if !self.waiting {
            self.dial();
        }
        Ok(())
    }

    /// Goes on with the session that a process before has left. What is wrong is in the log.
    fn go_on(&mut self, key: PortKey, left: LeftSession) {
        // It stays held meanwhile: a process that is killed amid this has read nothing that the
        // next one would miss. What ends one process after the other is the daemon's business.
        let done = self.take_up(&[], vec![(key, left)]);
        done.into_iter().for_each(|one| self.keep(one));
    }

    fn prepare(&mut self, all: Vec<(PortKey, LeftSession)>) -> Result<(), (PortKey, LeftError)> {
        for (key, left) in all {
            if let Err(why) = self.prepare_one(key, left) {
                self.forget_ready();
                return Err((key, why));
            }
        }
        Ok(())
    }

    fn prepare_one(&mut self, key: PortKey, left: LeftSession) -> Result<(), LeftError> {
        let mut left = self.connection_left(key, left)?;
        // Which pages of it have come by then, the record does not say.
        let is_ready = match left.is_arriving() {
            true => Ok(false),
            false => left.prepare().map(|()| true),
        };
        match is_ready {
            Ok(true) => drop(self.ready.insert(key, left)),
            Ok(false) | Err(_) => left.connection.forget(),
        }
        is_ready.map(drop)
    }

    fn forget_ready(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        ready
            .into_values()
            .for_each(|left| left.connection.forget());
    }

    /// Goes on with all of these sessions, each of which is to be [kept](Self::keep).
    fn take_up(&mut self, ready: &[PortKey], others: Vec<(PortKey, LeftSession)>) -> Vec<WentOn> {
        let (mut left, mut done) = (Vec::with_capacity(ready.len() + others.len()), Vec::new());
        for &key in ready {
            match self.ready.remove(&key) {
                Some(one) => left.push(one),
                None => done.push(WentOn::no_further(key, LeftError("has not come"))),
            }
        }
        self.forget_ready();
        for (key, other) in others {
            match self.connection_left(key, other) {
                Ok(one) => left.push(one),
                Err(why) => done.push(WentOn::no_further(key, why)),
            }
        }
        done.extend(going_on::go_on_all(left, &self.poller, |key| {
            (connection_token(key), channel_token(key))
        }));
        done
    }

    /// Has a connection for a session that a process before has left.
    fn connection_left(&mut self, key: PortKey, left: LeftSession) -> Result<Left, LeftError> {
        let gone = LeftError("has no room here");
        let nic = self.nics.get(&key).ok_or(gone)?;
        let held = left.is_held.then(|| left.record.clone());
        let Resumed {
            socket,
            channel,
            network,
            saved,
        } = Resumed::decode(left, nic.end.path().as_os_str().as_bytes())?;
        // Its guest has not asked to be in the network of whoever has the NIC's name by now.
        if network.is_some_and(|network| nic.options.network.is_some_and(|now| now != network)) {
            return Err(LeftError("is of another network"));
        }
        if !is_stream(&socket) {
            return Err(LeftError("is no connection"));
        }
        let is_none = |socket: &OwnedFd| !channel::is_channel(socket.as_fd());
        if channel.as_ref().is_some_and(is_none) {
            return Err(LeftError("has a channel that is none"));
        }
        Ok(Left {
            key,
            connection: self.connection(key, &nic.options, socket),
            channel,
            held,
            saved: Some(saved),
        })
    }

    fn connection(&self, key: PortKey, options: &Arc<NicOptions>, socket: OwnedFd) -> Connection {
        let (options, sink) = (Arc::clone(options), Arc::clone(&self.sink));
        let mut session = Session::new(key, options, sink).ringing(self.pages.clone());
        if let Some(nic) = self.nics.get(&key) {
            session = session.saying(nic.lines).starting(nic.helpers);
        }
        let session = match self.keeper {
            Some(_) => session.outliving(),
            None => session,
        };
        Connection::new(socket, session)
    }

    /// Serves a session that goes on, or ends one that does not.
    fn keep(&mut self, went_on: WentOn) {
        let WentOn {
            key,
            connection,
            held,
            how,
        } = went_on;
        let Some(nic) = self.nics.get_mut(&key) else {
            return;
        };
        if let (Some(_), End::Client(client)) = (&connection, &mut nic.end) {
            client.resumed(&mut self.watches);
        }
        nic.connection = connection;
        let (name, options) = (&nic.options.name, NicOptions::clone(&nic.options));
        match how {
            Ok(()) => {
                if let Some(connection) = &nic.connection {
                    let session = connection.session();
                    session.log_served("the session of the process before goes on");
                }
                // Its options may be others than those that the guest was told.
                self.set_options(key, options);
                self.hold_session(key, held.as_deref());
            }
            Err(why) => {
                warn!(
                    nic = name,
                    "the session of the process before is closed: {why}"
                );
                self.keeper.iter().for_each(|keeper| keeper.closed(name));
                self.release(key);
                self.hang_up(key, Duration::ZERO);
            }
        }
    }

    /// Has a session held as it is now, if it outlives the process. `held`: its record that is held
    /// already. False: it cannot be held.
    fn hold_session(&mut self, key: PortKey, held: Option<&[u8]>) -> bool {
        let (Some(keeper), Some(nic)) = (&self.keeper, self.nics.get_mut(&key)) else {
            return true;
        };
        let path = nic.end.path().as_os_str().as_bytes();
        let (saved, network) = (nic.connection.as_ref(), nic.options.network);
        let saved = saved.and_then(|connection| connection.saved(path, network));
        let Some((record, fds)) = saved else {
            return true;
        };
        nic.held = held == Some(&record) || keeper.hold(&nic.options.name, &record, &fds);
        nic.held
    }

    /// What is held of a session is not valid any more.
    fn release(&mut self, key: PortKey) {
        if let (Some(keeper), Some(nic)) = (&self.keeper, self.nics.get_mut(&key)) {
            keeper.release(&nic.options.name);
            nic.held = false;
        }
    }

    fn change(&mut self, key: PortKey, options: NicOptions) -> bool {
        let is_there = self.set_options(key, options);
        self.hold_session(key, None);
        is_there
    }

    fn set_options(&mut self, key: PortKey, options: NicOptions) -> bool {
        let Some(nic) = self.nics.get_mut(&key) else {
            return false;
        };
        nic.options = Arc::new(options);
        let up = nic.options.link_up;
        let connection = nic.connection.as_ref();
        let tells = connection.is_some_and(|connection| connection.session().is_news(&nic.options));
        if let Some(keeper) = self.keeper.as_ref().filter(|_| tells) {
            keeper.release(&nic.options.name);
            nic.held = false;
        }
        let connection = nic.connection.as_mut();
        let told =
            connection.is_none_or(|connection| connection.change(&nic.options, &self.poller));
        match &mut nic.end {
            End::Client(client) if up => client.resume(),
            End::Client(_) if !told => self.hold(key),
            End::Client(_) | End::Listener(_) => {}
        }
        true
    }

    /// Hangs up on a VMM that cannot be told otherwise that the link is down: it takes the end of
    /// the connection for that (QEMU does). Only where we connect. A VMM that connects may do so
    /// once in its life.
    fn hold(&mut self, key: PortKey) {
        self.hang_up(key, Duration::ZERO);
        if let Some(End::Client(client)) = self.nics.get_mut(&key).map(|nic| &mut nic.end) {
            client.hold();
        }
    }

    fn retry(&mut self, key: PortKey) -> Option<PortState> {
        let connection = self.nics.get_mut(&key)?.connection.as_mut();
        Some(connection.map_or(PortState::Disconnected, Connection::retry))
    }

    fn close(&mut self, key: PortKey) -> bool {
        self.hang_up(key, Duration::ZERO);
        self.pauses.retain(|(_, paused)| *paused != key);
        let Some(nic) = self.nics.remove(&key) else {
            return false;
        };
        match nic.end {
            End::Listener(listener) => drop(self.poller.remove(listener.as_fd())),
            End::Client(client) => {
                self.clients.remove(&key);
                if let Some(watch) = client.watch()
                    && self
                        .clients()
                        .all(|(_, other)| other.watch() != Some(watch))
                {
                    self.watches.remove(watch);
                }
            }
        }
        true
    }

    fn clients(&self) -> impl Iterator<Item = (PortKey, &Client)> {
        let ends = self.clients.iter().map(|key| (*key, self.nics.get(key)));
        ends.filter_map(|(key, nic)| match &nic?.end {
            End::Client(client) => Some((key, client)),
            End::Listener(_) => None,
        })
    }

    /// Tells those who wait for a VMM what has happened in their directories.
    fn notice(&mut self) {
        let events = self.watches.events();
        for nic in self.nics.values_mut() {
            if let End::Client(client) = &mut nic.end {
                events.iter().for_each(|event| client.notice(event));
            }
        }
    }

    /// Tries to reach the VMMs that are to be tried now.
    fn dial(&mut self) {
        let now = Instant::now();
        let due = self
            .clients()
            .filter(|(_, client)| client.due().is_some_and(|due| due <= now));
        let due: Vec<PortKey> = due.map(|(key, _)| key).collect();
        for key in due {
            let Some(nic) = self.nics.get_mut(&key) else {
                continue;
            };
            let End::Client(client) = &mut nic.end else {
                continue;
            };
            if let Some(socket) = client.connect(&nic.options.name, &mut self.watches) {
                self.begin(key, socket);
            }
        }
    }

    fn info(&self) -> Vec<NicInfo> {
        let mut nics: Vec<NicInfo> = self.nics.iter().map(|(&key, nic)| nic.info(key)).collect();
        nics.sort_by_key(|nic| nic.key);
        nics
    }

    /// Takes one connection; the next is reported again.
    fn accept(&mut self, key: PortKey) {
        let connection = self.nics.get(&key).and_then(|nic| nic.connection.as_ref());
        if connection.is_some_and(Connection::is_peer_gone) {
            self.gone(key);
        }
        if self.is_paused(key) {
            return; // since this event: it waits in the listener's queue
        }
        let Some(nic) = self.nics.get(&key) else {
            return;
        };
        let End::Listener(listener) = &nic.end else {
            return;
        };
        let name = &nic.options.name;
        let socket = match listener.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => {
                warn!(nic = name, "a VMM cannot connect for now: {error}");
                return self.pause(key, PAUSE_EXHAUSTED);
            }
        };
        match &nic.connection {
            Some(connection) if !connection.is_peer_gone() => {
                info!(nic = name, "a second VMM was refused: one is connected");
                return;
            }
            Some(_) => self.gone(key), // after the look above: its successor is here already
            None => {}
        }
        self.begin(key, socket);
    }

    /// A VMM is connected.
    fn begin(&mut self, key: PortKey, socket: OwnedFd) {
        let Some(nic) = self.nics.get_mut(&key) else {
            return;
        };
        if let Err(error) = self.poller.add(socket.as_fd(), connection_token(key)) {
            warn!(
                nic = nic.options.name,
                "a VMM cannot connect for now: {error}"
            );
            return self.pause(key, PAUSE_EXHAUSTED);
        }
        let options = Arc::clone(&nic.options);
        info!(nic = options.name, "a VMM has connected");
        let connection = self.connection(key, &options, socket);
        if let Some(nic) = self.nics.get_mut(&key) {
            nic.connection = Some(connection);
        }
    }

    /// Runs rings that were waiting for pages of their guests' memory, if these have come. What is
    /// held of a session stays as it is: that rings run they show themselves. Who waits for an
    /// answer looks whether it was that.
    fn pages_came(&mut self) {
        let connections = self.nics.values_mut();
        for connection in connections.filter_map(|nic| nic.connection.as_mut()) {
            if connection.session().awaits_pages() {
                connection.pages_came();
            }
        }
        let now = Instant::now();
        self.parked.values_mut().for_each(|until| *until = now);
    }

    /// Has sessions look again that are to by now.
    fn unpark(&mut self, now: Instant) {
        let due = self.parked.iter().filter(|(_, until)| **until <= now);
        for key in due.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.serve(key);
        }
    }

    fn serve(&mut self, key: PortKey) {
        let Some(nic) = self.nics.get_mut(&key) else {
            return;
        };
        let Some(connection) = nic.connection.as_mut() else {
            return;
        };
        // What is read now the next process cannot read: see `saved`. Who is parked is not held.
        let was_parked = self.parked.remove(&key).is_some();
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !was_parked) {
            keeper.release(&nic.options.name);
            nic.held = false;
        }
        let interest = match connection.serve(&self.poller, channel_token(key)) {
            Progress::Parked(until) => {
                self.parked.insert(key, until);
                Interest::Neither
            }
            Progress::Reading => Interest::Read,
            Progress::Writing => Interest::Write,
            Progress::Gone => return self.gone(key),
            Progress::Broken => return self.hang_up(key, PAUSE_BROKEN),
        };
        if connection.change_interest(interest)
            && let Err(error) =
                self.poller
                    .set_interest(connection.as_fd(), connection_token(key), interest)
        {
            warn!("vhost-user: waiting for a VMM: {error}");
            return self.hang_up(key, PAUSE_EXHAUSTED);
        }
        self.hold_session(key, None);
    }

    fn serve_channel(&mut self, key: PortKey) {
        if let Some(connection) = self
            .nics
            .get_mut(&key)
            .and_then(|nic| nic.connection.as_mut())
        {
            connection.serve_channel(&self.poller);
        }
    }

    /// The VMM has gone.
    fn gone(&mut self, key: PortKey) {
        let connection = self.nics.get(&key).and_then(|nic| nic.connection.as_ref());
        let served = connection.is_some_and(|connection| connection.session().has_served());
        self.hang_up(key, if served { Duration::ZERO } else { PAUSE_BROKEN });
    }

    /// Ends a connection; the next is not taken or made before `pause` has passed.
    fn hang_up(&mut self, key: PortKey, pause: Duration) {
        let Some(connection) = self
            .nics
            .get_mut(&key)
            .and_then(|nic| nic.connection.take())
        else {
            return;
        };
        self.parked.remove(&key);
        if let Some(nic) = self.nics.get_mut(&key) {
            nic.lines = connection.session().lines();
            nic.helpers = connection.session().helpers();
        }
        let keeper = self.keeper.as_ref().zip(self.nics.get_mut(&key));
        let is_left = keeper.is_some_and(|(keeper, nic)| {
            nic.held = false;
            keeper.ended(&nic.options.name)
        });
        // Whoever else has its socket, the VMM is to see the end; but not of one that another
        // process goes on with.
        if !is_left && !self.waiting {
            connection.shut();
        }
        connection.end(&self.poller);
        self.pause(key, pause);
    }

    fn pause(&mut self, key: PortKey, length: Duration) {
        let Some(nic) = self.nics.get_mut(&key) else {
            return;
        };
        let listener = match &mut nic.end {
            End::Client(client) => return client.postpone(length),
            End::Listener(listener) => &*listener,
        };
        if !length.is_zero()
            && self
                .poller
                .set_interest(listener.as_fd(), listener_token(key), Interest::Neither)
                .is_ok()
        {
            self.pauses.push((Instant::now() + length, key));
        }
    }

    fn is_paused(&self, key: PortKey) -> bool {
        self.pauses.iter().any(|(_, paused)| *paused == key)
    }

    /// Listens again where a pause is over.
    fn resume(&mut self) {
        if self.pauses.is_empty() {
            return;
        }
        let now = Instant::now();
        let over: Vec<PortKey> = self
            .pauses
            .extract_if(.., |(until, _)| *until <= now)
            .map(|(_, key)| key)
            .collect();
        for key in over {
            if self.is_paused(key) {
                continue;
            }
            if let Some(End::Listener(listener)) = self.nics.get(&key).map(|nic| &nic.end) {
                let _ =
                    self.poller
                        .set_interest(listener.as_fd(), listener_token(key), Interest::Read);
            }
        }
    }
}
