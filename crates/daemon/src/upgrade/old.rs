//! The side of the running daemon: it starts the next program, hands over, and ends; or goes on.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use control::Controller;
use control::model::NicKind;
use dataplane::{QueueId, Switch};
use io::port::Port;
use io::vhost::{Server, Yielded};
use nix::unistd::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sd_notify::NotifyState;
use sys::handed::{Handed, Items, file_of};
use tokio::runtime::Handle;
use tokio::sync::watch;
use xdp::Interfaces;

use super::changes::Changes;
use super::words::{self, Line, Silence, Word};
use crate::app::App;
use crate::attachments::LeftBehind;
use crate::balancer;
use crate::balancer::announcing::{Announcing, Still};
use crate::connections;
use crate::held::{Held, Named};
use crate::unix_socket;
use crate::watchdog::Pause;

/// The argument that makes a daemon the next one of another. Its standard input is the socket.
pub const ARGUMENT: &str = "--take-over";

/// How long the next program may take for each step. To prepare, it reads what is declared; while
/// it does the rest no frame moves, or clients wait.
const PREPARES_WITHIN: Duration = Duration::from_secs(60);
/// How long a VMM may be in the midst of a message.
const VMMS_WITHIN: Duration = Duration::from_secs(1);
const OPENS_WITHIN: Duration = Duration::from_secs(5);
const TAKES_WITHIN: Duration = Duration::from_secs(5);
const MOVES_WITHIN: Duration = Duration::from_secs(10);
/// Frames move by then. The kernel takes some 10 ms for each interface of the router and the load
/// balancer, of which there may be 1,024 and 256.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
/// How long the vhost-user thread and the controller may stand still: all steps from there on, and
/// what lies between them. Then the watchdog ends this process.
const STANDS_WITHIN: Duration = Duration::from_secs(
    30 + TAKES_WITHIN.as_secs() + MOVES_WITHIN.as_secs() + SERVES_WITHIN.as_secs(),
);
/// How long it may take to be gone when it was killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// What has come of an upgrade.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upgraded {
    /// The new daemon's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// How long no frame moved.
    pub pause: Duration,
}

/// Upgrades of this daemon, of which one can succeed.
pub struct Upgrade {
    /// What the daemon was started with.
    arguments: Vec<OsString>,
    /// Why the settings leave none.
    cannot: Option<String>,
    /// Sockets that clients connect to, by their names.
    listeners: Vec<(String, OwnedFd)>,
    /// Where what is handed over lies, by the options that say so.
    paths: Vec<(&'static str, PathBuf)>,
    held: Option<Arc<Held>>,
    left_behind: LeftBehind,
    interfaces: Arc<Mutex<Interfaces>>,
    changes: Changes,
    running: Mutex<()>,
    /// The next program, from its start to the commit.
    child: Mutex<Option<Pid>>,
    /// The daemon stops: none is begun any more.
    stopping: AtomicBool,
    over: watch::Sender<Option<Upgraded>>,
    /// The watchdog, which lets those alone that stand still by intention.
    pause: OnceLock<Pause>,
    /// What announces services' addresses.
    announcing: OnceLock<Announcing>,
}

/// What an upgrade needs of the daemon.
pub struct Parts {
    pub cannot: Option<String>,
    pub listeners: Vec<(String, OwnedFd)>,
    pub paths: Vec<(&'static str, PathBuf)>,
    pub held: Option<Arc<Held>>,
    pub left_behind: LeftBehind,
    /// Those that programs run on.
    pub interfaces: Arc<Mutex<Interfaces>>,
    pub changes: Changes,
}

impl Upgrade {
    pub fn new(parts: Parts) -> Upgrade {
        let arguments = std::env::args_os().skip(1);
        Upgrade {
            arguments: arguments.filter(|one| one != ARGUMENT).collect(),
            cannot: parts.cannot,
            listeners: parts.listeners,
            paths: parts.paths,
            held: parts.held,
            left_behind: parts.left_behind,
            interfaces: parts.interfaces,
            changes: parts.changes,
            running: Mutex::new(()),
            child: Mutex::new(None),
            stopping: AtomicBool::new(false),
            over: watch::Sender::new(None),
            pause: OnceLock::new(),
            announcing: OnceLock::new(),
        }
    }

    /// The watchdog, once there is one.
    pub fn set_pause(&self, pause: Pause) {
        let _ = self.pause.set(pause);
    }

    /// What announces services' addresses, once that is known.
    pub fn set_announcing(&self, announcing: Announcing) {
        let _ = self.announcing.set(announcing);
    }

    /// Returns when another daemon has taken this one's place and serves.
    pub async fn over(&self) -> Upgraded {
        let mut over = self.over.subscribe();
        // The sender is ours.
        match over.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(upgraded)) => upgraded.clone(),
            _ => std::future::pending().await,
        }
    }

    /// What has come of the upgrade that is over, if any is.
    pub fn is_over(&self) -> Option<Upgraded> {
        self.over.borrow().clone()
    }

    /// Another daemon has taken this one's place, or is about to.
    pub fn has_given_way(&self) -> bool {
        self.changes.are_over()
    }

    /// An error where changes are not taken now: a sentence. To be asked with the controller
    /// locked, for what no journal refuses.
    pub fn takes_changes(&self) -> Result<(), &'static str> {
        self.changes.are_taken()
    }

    /// The daemon is about to stop: an upgrade that is under way is given up, unless this daemon
    /// has given all away already. Waits for it.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(child) = *lock(&self.child) {
            let _ = kill_process(child, Signal::KILL);
        }
        drop(lock(&self.running));
    }

    /// Has a program take this one's place: by default the one that is where this one was started
    /// from. Returns when it serves. Waits for the workers, and seconds for the program: not for a
    /// runtime's thread. `begins` is called when the program is about to be run.
    ///
    /// # Errors
    /// A sentence; this daemon goes on as before.
    pub fn run(
        &self,
        app: &App,
        program: Option<&Path>,
        begins: impl FnOnce(),
    ) -> Result<Upgraded, String> {
        let Ok(_running) = self.running.try_lock() else {
            return Err("an upgrade is under way already".into());
        };
        let done = self.start(app, program, begins);
        if let Err(why) = &done {
            tracing::error!("no upgrade: {why}");
        }
        done
    }

    fn start(
        &self,
        app: &App,
        program: Option<&Path>,
        begins: impl FnOnce(),
    ) -> Result<Upgraded, String> {
        if self.is_over().is_some() || self.stopping.load(Ordering::SeqCst) {
            return Err("this daemon is about to end".into());
        }
        if let Some(why) = self.cannot.clone() {
            return Err(why);
        }
        let program = match program {
            Some(program) => named_program(program)?,
            None => own_program()?,
        };
        may_be_run(&program)?;
        let failed = |e: &dyn std::fmt::Display| format!("a socket cannot be made: {e}");
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.map_err(|e| failed(&e))?;
        tracing::info!("upgrade: {} is to take over", program.display());
        // Who stops the daemon meanwhile finds it, or has it not started.
        let mut started = lock(&self.child);
        if self.stopping.load(Ordering::SeqCst) {
            return Err("this daemon is about to end".into());
        }
        begins();
        let child = Command::new(&program)
            .args(&self.arguments)
            .arg(ARGUMENT)
            // systemd's watchdog is of the main process, which it will be.
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|e| format!("{} cannot be executed: {e}", program.display()))?;
        let mut next = Next {
            program,
            child,
            line: Line::new(ours),
        };
        *started = Pid::from_raw(next.child.id() as i32);
        drop(started);
        let handed = self.hand_over(app, &mut next);
        *lock(&self.child) = None;
        match handed {
            Ok(upgraded) => Ok(upgraded),
            Err(why) => {
                self.changes.resume();
                let _ = next.child.kill();
                let _ = next.child.wait();
                Err(why)
            }
        }
    }

    fn hand_over(&self, app: &App, next: &mut Next) -> Result<Upgraded, String> {
        let (Some(stored), Some(held)) = (app.operations.stored(), &self.held) else {
            return Err(NEEDS.into());
        };
        // What is there of flows is all then.
        app.workers.switch().wait_for_left();
        let pidfd = Pid::from_raw(next.child.id() as i32)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let mut given = Given {
            app,
            left_behind: &self.left_behind,
            interfaces: &self.interfaces,
            child: pidfd.map_err(|e| format!("{}: {e}", next.program.display()))?,
            pause: self.pause.get(),
            joined: false,
            still: None,
            links: false,
            store: false,
            paused: false,
            ports: Vec::new(),
            vhost: None,
        };
        let number = self.number(app);
        next.say(Word::Offer, "", number.to_string().as_bytes(), &[])?;
        let hello = next.receive(Word::Hello, PREPARES_WITHIN)?;
        given.still = self.announcing.get().map(Announcing::stand_still);
        self.changes.hold();
        // Who changes something now has begun before, and is done then.
        let objects = stored.packed(&app.control())?;
        if self.number(app) != number {
            return Err("interfaces or services came or went meanwhile: ask again".into());
        }
        self.left_behind.settle();
        given.joined = true;
        let failed = |e: std::io::Error| format!("nothing can be handed over: {e}");
        let objects = file_of(&objects).map_err(failed)?;
        next.say(Word::Item, "objects", b"", &[objects.as_fd()])?;
        for (option, path) in &self.paths {
            let name = format!("{} {option}", words::PATH);
            next.say(Word::Item, &name, path.as_os_str().as_bytes(), &[])?;
        }
        for (name, socket) in &self.listeners {
            next.say(Word::Item, name, b"", &[socket.as_fd()])?;
        }
        for (path, socket) in app.vhost.listeners().map_err(failed)? {
            let name = format!("vhost {}", path.display());
            next.say(Word::Item, &name, b"", &[socket.as_fd()])?;
        }
        for (name, fd) in self.left_behind.descriptors().map_err(failed)? {
            next.say(Word::Item, &name, b"", &[fd.as_fd()])?;
        }
        let others = held.all(|name| !Held::is_session(name));
        give_held(next, words::HELD, others.map_err(failed)?)?;
        if let Some(still) = &given.still {
            give_all(next, "announcing", still.hand_over()?)?;
        }
        given.links = true;
        give_all(next, "uplink", app.uplinks.hand_over()?)?;
        app.balancer.stand_still();
        let still = Handle::current().block_on(app.router.stand_still());
        still.map_err(|e| e.to_string())?;
        let points = lock(&self.interfaces).hand_over();
        give_all(next, words::POINT, points.map_err(|e| e.to_string())?)?;
        give_all(next, "balancer", app.balancer.hand_over()?)?;
        let mut early = None;
        if &*hello.note == words::EARLY.as_bytes() {
            let (sessions, which) = held.sessions_given(None).map_err(failed)?;
            give_held(next, words::EARLY, sessions)?;
            let marks = file_of(&which.pack_marks()).map_err(failed)?;
            next.say(Word::Item, words::EARLY_MARKS, b"", &[marks.as_fd()])?;
            early = Some(which);
        }
        next.say(Word::All, "", b"", &[])?;
        let ready = next.receive(Word::Ready, PREPARES_WITHIN)?;
        let version = String::from_utf8_lossy(&ready.note).into_owned();

        // While frames move still.
        self.left_behind.stand_still();
        app.vhost.settle(VMMS_WITHIN);
        given.store = true;
        stored.give_way()?;
        next.say(Word::Store, "", b"", &[])?;
        let opened = next.receive(Word::Opened, OPENS_WITHIN)?;

        // Before the vhost thread stands still: who has the controller may wait for that thread.
        let control = app.control();
        let began = Instant::now();
        given.take_ports(&control)?;
        if opened.note == b"flows=file" {
            let exported = connections::export_all(&control);
            let (bytes, _) = exported.map_err(|e| format!("connections cannot be read: {e}"))?;
            let file = file_of(&bytes).map_err(failed)?;
            next.say(Word::Item, "connections", b"", &[file.as_fd()])?;
        }
        let (sessions, which) = held.sessions_given(early.as_ref()).map_err(failed)?;
        give_held(next, words::HELD, sessions)?;
        for (name, bytes) in [
            (words::MARKS, which.pack_marks()),
            (words::AS_BEFORE, which.pack_as_before()),
        ] {
            let file = file_of(&bytes).map_err(failed)?;
            next.say(Word::Item, name, b"", &[file.as_fd()])?;
        }
        for (_, port) in &mut given.ports {
            if let Some(port) = port.as_xsk()
                && let Some(left) = port.left()
            {
                let file = file_of(&left).map_err(failed)?;
                let name = format!("left {}", port.name());
                next.say(Word::Item, &name, b"", &[file.as_fd()])?;
            }
        }
        if let Some(tables) = app.balancer.leave() {
            let health = balancer::handover::write(&control.known_health());
            for (name, bytes) in [("tables", tables), ("health", health)] {
                let file = file_of(&bytes).map_err(failed)?;
                next.say(Word::Item, name, b"", &[file.as_fd()])?;
            }
        }
        let used = app.workers.switch().flows_used().to_string();
        next.say(Word::Ports, "", used.as_bytes(), &[])?;
        next.receive(Word::Taken, TAKES_WITHIN)?;
        {
            let mut child = lock(&self.child);
            if self.stopping.load(Ordering::SeqCst) {
                return Err("this daemon is about to end".into());
            }
            // Nobody ends it any more.
            *child = None;
        }
        // A stop from here on is the next one's to hear, and this one's end is not the service's.
        // Should the next one fail still, its end has systemd start another.
        if let Err(e) = sd_notify::notify(&[NotifyState::MainPid(next.child.id())]) {
            tracing::warn!("systemd could not be told of the next process: {e}");
        }

        // The commit. From here on all is the other one's, come what may.
        unix_socket::leave_files();
        held.leave();
        given.forget();
        self.changes.end();
        drop(control);
        let pid = next.child.id();
        let moving = next
            .say(Word::Go, "", b"", &[])
            .and_then(|()| next.receive(Word::Moving, MOVES_WITHIN));
        let pause = began.elapsed();
        app.stop();
        let serving = moving.and_then(|_| next.receive(Word::Serving, SERVES_WITHIN));
        if let Err(why) = serving {
            tracing::error!(
                "this daemon ends, to be started again: the next one failed behind the point at \
                 which this one could have gone on: {why}"
            );
            let _ = next.child.kill();
            std::process::exit(1);
        }
        tracing::info!(
            "upgrade: process {pid} has taken over; no frame moved for {:.1} ms",
            pause.as_secs_f64() * 1e3
        );
        let upgraded = Upgraded {
            pid,
            version,
            pause,
        };
        self.over.send_replace(Some(upgraded.clone()));
        Ok(upgraded)
    }

    /// The hand-over that has room for all that there is.
    fn number(&self, app: &App) -> u32 {
        let control = app.control();
        let config = control.config();
        let are_taken = config.interfaces.values().any(|list| !list.is_empty());
        // A process that is root makes their namespace itself.
        let asks_helper = !Uid::effective().is_root()
            && control
                .services()
                .values()
                .any(|service| service.check.is_some());
        drop(control);
        if asks_helper {
            words::NUMBER
        } else if self.announcing.get().is_some_and(Announcing::is_any) {
            words::WITHOUT_CHECKS
        } else if app.balancer.running().is_some() {
            words::WITHOUT_ANNOUNCING
        } else if are_taken || !app.uplinks.queues().is_empty() {
            words::WITHOUT_BALANCER
        } else {
            words::WITHOUT_LINKS
        }
    }
}

/// What has to be there for an upgrade.
pub const NEEDS: &str = "an upgrade needs --store and --keeper: what is declared is handed over by \
                         the one, and VMMs' connections by the other";

/// Gives items of a kind.
fn give_all(next: &mut Next, kind: &str, items: Items) -> Result<(), String> {
    items
        .into_iter()
        .try_for_each(|(name, Handed { note, fds })| {
            let name = format!("{kind} {name}");
            next.say(Word::Item, &name, &note, &words::borrowed(&fds))
        })
}

/// Gives items that the keeper has. Nothing of them stays here: what is released meanwhile is.
fn give_held(next: &mut Next, kind: &str, all: Named) -> Result<(), String> {
    for (name, keeper::Held { note, fds }) in all {
        let name = format!("{kind} {name}");
        next.say(Word::Item, &name, &note, &words::borrowed(&fds))?;
    }
    Ok(())
}

/// The next program, and the line to it.
struct Next {
    program: PathBuf,
    child: Child,
    line: Line,
}

impl Next {
    fn say(
        &mut self,
        word: Word,
        name: &str,
        note: &[u8],
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), String> {
        let said = self.line.say(word, name, note, fds);
        said.map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => self.ended(),
            _ => format!("{}: {e}", self.program.display()),
        })
    }

    fn receive(&mut self, word: Word, patience: Duration) -> Result<keeper::Parts, String> {
        self.line
            .receive_one(word, patience)
            .map_err(|why| match why {
                Silence::Gone => self.ended(),
                Silence::Late => format!(
                    "{} has not come as far as '{word:?}' within {} s",
                    self.program.display(),
                    patience.as_secs()
                ),
                Silence::Said(why) => format!("{} cannot take over: {why}", self.program.display()),
            })
    }

    /// Why it has closed its end: what it said before that, or how it ended.
    fn ended(&mut self) -> String {
        let shown = self.program.display().to_string();
        if let Err(Silence::Said(why)) =
            self.line.receive_one(Word::Hello, Duration::from_millis(1))
        {
            return format!("{shown} cannot take over: {why}");
        }
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return format!("{shown} ended with {status}: the log may say why");
                }
                _ if Instant::now() > until => return format!("{shown} has closed its socket"),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// What was given away, and is taken back when this is dropped.
struct Given<'a> {
    app: &'a App,
    left_behind: &'a LeftBehind,
    interfaces: &'a Mutex<Interfaces>,
    /// The next program, which has to let go first.
    child: OwnedFd,
    pause: Option<&'a Pause>,
    /// It may have put its program to containers' interfaces.
    joined: bool,
    /// It goes on announcing; for good, where this is forgotten.
    still: Option<Still>,
    /// It has sockets of uplinks, and may have put its programs to interfaces; those that come are
    /// not taken here meanwhile.
    links: bool,
    store: bool,
    /// No worker receives.
    paused: bool,
    ports: Vec<(QueueId, Port)>,
    vhost: Option<Yielded>,
}

impl Given<'_> {
    /// Takes all ports from the workers, between two batches.
    fn take_ports(&mut self, control: &Controller) -> Result<(), String> {
        let switch: &Switch = self.app.workers.switch();
        let vhost: &Server = &self.app.vhost;
        let gone = |_| "the workers have ended".to_owned();
        self.paused = true;
        tracing::info!("upgrade: the workers are to stand still");
        // Who does not answer here is ended by the watchdog.
        switch.pause().map_err(gone)?;
        self.vhost = Some(vhost.give_way().map_err(|stays| stays.to_string())?);
        if let Some(pause) = self.pause {
            pause.begin(STANDS_WITHIN);
        }
        if let Some(kernel) = switch.kernel_flows() {
            kernel.close();
        }
        // Others are with the vhost-user server already, and have one queue.
        let nics = control
            .nics()
            .filter(|nic| nic.nic.kind != NicKind::VhostUser);
        let mut queues: Vec<_> = nics.map(|nic| QueueId::from(nic.slot)).collect();
        queues.extend(self.app.uplinks.queues());
        self.ports = switch.detach_all(&queues).map_err(gone)?;
        if switch.kernel_flows().is_some() {
            // What the kernel has seen of them is told to the table.
            let folded = control.export_flows(None);
            folded.map_err(|e| format!("connections cannot be read: {e}"))?;
        }
        Ok(())
    }

    /// It is another one's for good.
    fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.child, Signal::KILL);
        let switch = self.app.workers.switch();
        if let Some(kernel) = switch.kernel_flows().filter(|_| self.paused) {
            kernel.reopen();
        }
        if switch.attach_all(std::mem::take(&mut self.ports)).is_err() {
            tracing::error!("ports are lost: the workers have ended");
        }
        if self.vhost.take().is_some() {
            // It moves again, or hangs.
            if let Some(pause) = self.pause {
                pause.end();
            }
            // Answered when it has given the workers their ports again.
            let _ = self.app.vhost.listeners();
        }
        if self.paused && switch.resume().is_err() {
            tracing::error!("no frame moves: the workers have ended");
        }
        if self.joined || self.links {
            // Until then it may put its programs at one interface more.
            wait_for_end(&self.child);
        }
        if self.joined {
            self.left_behind.go_on();
        }
        if self.store
            && let Some(stored) = self.app.operations.stored()
            && let Err(why) = stored.take_back()
        {
            tracing::error!("{why}");
        }
        if self.links {
            if let Err(why) = lock(self.interfaces).take_over() {
                tracing::error!("{why}");
            }
            self.app.uplinks.go_on();
            self.app.balancer.go_on();
            if let Err(why) = Handle::current().block_on(self.app.router.go_on()) {
                tracing::error!("{why}");
            }
        }
    }
}

/// Returns when a process that was killed is gone.
fn wait_for_end(process: &OwnedFd) {
    let ended = &mut [PollFd::new(process, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: ENDS_WITHIN.as_secs() as i64,
        tv_nsec: 0,
    };
    if !matches!(poll(ended, Some(&patience)), Ok(1)) {
        tracing::error!("the program that was to take over does not end");
    }
}

/// The path of this program, also when another file is there by now.
pub fn own_program() -> Result<PathBuf, String> {
    let link = std::fs::read_link("/proc/self/exe");
    let link = link.map_err(|e| format!("the daemon does not find its own program: {e}"))?;
    let text = link.to_string_lossy();
    Ok(match text.strip_suffix(" (deleted)") {
        Some(path) if !link.exists() => PathBuf::from(path),
        _ => link,
    })
}

/// Another program is where this one was started from.
pub fn was_replaced() -> bool {
    let running = std::fs::metadata("/proc/self/exe");
    let there = own_program().and_then(|path| std::fs::metadata(path).map_err(|e| e.to_string()));
    match (running, there) {
        (Ok(running), Ok(there)) => (running.dev(), running.ino()) != (there.dev(), there.ino()),
        _ => false,
    }
}

/// The file that a client names. It is there still when it is run: whoever could put another one in
/// its place would be the daemon.
fn named_program(named: &Path) -> Result<PathBuf, String> {
    let shown = named.display();
    if !named.is_absolute() {
        return Err(format!("{shown} is no absolute path"));
    }
    let real = named
        .canonicalize()
        .map_err(|e| format!("{shown} cannot be executed: {e}"))?;
    health::nobody_else_replaces(&real).map_err(|why| format!("{shown} is not run: {why}"))?;
    Ok(real)
}

/// Whoever may write to it would be the daemon.
fn may_be_run(program: &Path) -> Result<(), String> {
    let shown = program.display();
    let file =
        std::fs::metadata(program).map_err(|e| format!("{shown} cannot be executed: {e}"))?;
    if !file.is_file() {
        return Err(format!("{shown} cannot be executed: it is no file"));
    }
    let ours = [0, Uid::effective().as_raw()].contains(&file.uid());
    if !ours || file.mode() & 0o022 != 0 {
        return Err(format!(
            "{shown} is not run: it has to be root's or the daemon's user's, and nobody else may \
             write to it"
        ));
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
