//! A daemon of a test's own: a temporary directory, endpoints in it, and clients of both APIs.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod certificates;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use api::v0::Messages;
use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use api::v1::router_client::RouterClient;
use io::vhost::features::{EVENT_IDX, MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
pub use testkit::PATIENCE;
use testkit::process::{has_ended, keepers_of};
use testkit::ring_driver::{Guest, GuestOptions};
use testkit::vhost_frontend::Frontend;
use tonic::transport::{Channel, Endpoint};
use zeromq::{Socket, SocketRecv, SocketSend};

/// The daemon's binary.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_butterflyd");

pub fn butterflyd() -> Command {
    butterflyd_at(Path::new(PROGRAM))
}

/// A copy of it.
pub fn butterflyd_at(program: &Path) -> Command {
    clean(Command::new(program))
}

/// Without what systemd says to the tests, which may run under it.
fn clean(mut command: Command) -> Command {
    command
        .env_remove("NOTIFY_SOCKET")
        .env_remove("JOURNAL_STREAM")
        .env_remove("STATE_DIRECTORY")
        .stdin(Stdio::null());
    command
}

/// A folder for a daemon, and the ipc endpoint in it of the v0 API.
pub fn folder() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let v0 = format!("ipc://{}", dir.path().join("v0.sock").display());
    (dir, v0)
}

/// A file that only its owner reads, as the daemon wants its keys.
pub fn private(path: &Path, content: &str) {
    std::fs::write(path, content).unwrap();
    set_mode(path, 0o600);
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A TCP port of this machine that nobody listens on now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs the daemon where it is expected to end by itself.
pub fn run(args: &[&str]) -> Output {
    let child = butterflyd()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut guard = Running(Some(child), None);
    let deadline = Instant::now() + PATIENCE;
    while guard.0.as_mut().unwrap().try_wait().unwrap().is_none() {
        assert!(
            Instant::now() < deadline,
            "butterflyd {args:?} runs and should have ended"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    guard.0.take().unwrap().wait_with_output().unwrap()
}

/// A child that does not outlive its test, and the process that has taken its place.
struct Running(Option<Child>, Option<u32>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(next) = self.1 {
            let pid = rustix::process::Pid::from_raw(next as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            // A test may end its keeper next, which one that is not gone yet could call again.
            let until = Instant::now() + PATIENCE;
            while !has_ended(next) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// What has a thread hang.
pub struct Hang(Child);

impl Drop for Hang {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a thread of a process, as one that hangs, until what is returned is dropped; `words` are
/// its name and those of `hang_thread.py` behind it.
pub fn hang(pid: u32, words: &[&str]) -> Hang {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/hang_thread.py");
    let mut hang = Command::new("python3")
        .args([script, &pid.to_string()])
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Until then nothing is stopped.
    let mut said = String::new();
    let out = hang.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut said).unwrap();
    let hang = Hang(hang);
    assert_ne!(said, "", "the thread cannot be stopped");
    hang
}

/// A running daemon.
pub struct Daemon {
    child: Running,
    pub dir: TempDir,
    pub v0: String,
    notify: UnixDatagram,
}

impl Daemon {
    /// Starts a daemon with more arguments, the v0 API on an ipc endpoint; returns when it says
    /// that it is ready.
    pub fn start(args: &[&str]) -> Daemon {
        let (dir, v0) = folder();
        Daemon::start_in(dir, v0, args)
    }

    /// Starts a daemon whose v0 API is on a free TCP port, in clear text.
    pub fn start_tcp(args: &[&str]) -> Daemon {
        Daemon::start_in(
            tempfile::tempdir().unwrap(),
            format!("tcp://127.0.0.1:{}", free_port()),
            &[&["--insecure-api"], args].concat(),
        )
    }

    pub fn start_in(dir: TempDir, v0: String, args: &[&str]) -> Daemon {
        Daemon::start_as(butterflyd(), dir, v0, args)
    }

    /// [`Daemon::start`] by a command of one's own.
    pub fn start_with(command: Command, args: &[&str]) -> Daemon {
        let (dir, v0) = folder();
        Daemon::start_as(command, dir, v0, args)
    }

    /// [`Daemon::start`] by a user who has no rights, and whose folder it is.
    pub fn start_as_nobody(args: &[&str]) -> Daemon {
        let (dir, v0) = folder();
        let nobody = Some(sys::confine::NOBODY);
        std::os::unix::fs::chown(dir.path(), nobody, nobody).unwrap();
        Daemon::start_as(Daemon::of_nobody(""), dir, v0, args)
    }

    /// The daemon of a user who has no rights but those that more options of setpriv(1) give.
    pub fn of_nobody(options: &str) -> Command {
        let mut command = Command::new("sh");
        // The program may be where that user finds none.
        let script = format!(
            "as_nobody='setpriv --reuid 65534 --regid 65534 --clear-groups {options}'; \
             exec 9<\"$0\"; exec $as_nobody /proc/self/fd/9 \"$@\""
        );
        command.args(["-c", &script, env!("CARGO_BIN_EXE_butterflyd")]);
        clean(command)
    }

    /// A daemon that finds a file system of this size at a folder, in a mount namespace of its own.
    pub fn on_tmpfs(folder: &str, size: &str) -> Command {
        Daemon::behind_mount("-t tmpfs -o size=$1 tmpfs $2", size, folder)
    }

    /// A daemon that finds the disk in this file at a folder, in a mount namespace of its own.
    pub fn on_disk(folder: &str, image: &str) -> Command {
        Daemon::behind_mount("-o loop $1 $2", image, folder)
    }

    /// With `$1` and `$2` in what mount(8) is told.
    fn behind_mount(mount: &str, first: &str, second: &str) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("mount {mount} && shift 2 && exec \"$@\"");
        command
            .args(["-m", "sh", "-c", &script, "sh", first, second])
            .arg(env!("CARGO_BIN_EXE_butterflyd"));
        clean(command)
    }

    /// One that is started, and killed so long after it.
    pub fn killed_amid_its_start(dir: &TempDir, v0: &str, args: &[&str], after: Duration) {
        let mut command = butterflyd();
        Daemon::say_where(&mut command, dir, v0, args);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Where its sockets are, and its settings besides.
    fn say_where(command: &mut Command, dir: &TempDir, v0: &str, args: &[&str]) {
        command
            .args(["--no-syslog", "-s", dir.path().to_str().unwrap(), "-e", v0])
            .args([
                "--api",
                &format!("unix:{}", dir.path().join("v1.sock").display()),
            ])
            .args(args);
    }

    pub fn start_as(mut command: Command, dir: TempDir, v0: String, args: &[&str]) -> Daemon {
        let notify_path = dir.path().join("notify");
        let notify = UnixDatagram::bind(&notify_path).unwrap();
        // Whoever the daemon runs as.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&notify_path, all).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        Daemon::say_where(&mut command, &dir, &v0, args);
        let child = command
            .env("NOTIFY_SOCKET", &notify_path)
            .stdout(std::fs::File::create(dir.path().join("out")).unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Daemon {
            child: Running(Some(child), None),
            dir,
            v0,
            notify,
        };
        daemon.wait_for("READY=1");
        daemon
    }

    /// Waits for what the daemon tells systemd.
    pub fn wait_for(&self, state: &str) {
        let mut buffer = [0; 256];
        let told = self
            .notify
            .recv(&mut buffer)
            .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
        assert_eq!(
            told.as_deref().ok(),
            Some(format!("{state}\n").as_str()),
            "log:\n{}",
            self.log()
        );
    }

    pub fn pid(&self) -> u32 {
        let child = || self.child.0.as_ref().unwrap().id();
        self.child.1.unwrap_or_else(child)
    }

    /// The processes that parse what strangers send it.
    pub fn readers(&self) -> Vec<u32> {
        testkit::process::readers(self.pid())
    }

    /// A field of proc_pid_status(5) that counts kB, of the daemon and its readers together, bytes.
    pub fn memory(&self, field: &str) -> usize {
        let of = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let status = status.unwrap_or_default();
            // One that has just ended has none any more.
            let Some(line) = status.lines().find_map(|line| line.strip_prefix(field)) else {
                return 0;
            };
            line.trim()
                .trim_end_matches(" kB")
                .parse::<usize>()
                .unwrap()
                << 10
        };
        let all = self.readers().into_iter().chain([self.pid()]);
        all.map(of).sum()
    }

    /// The program that it runs.
    pub fn program(&self) -> String {
        let link = std::fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap();
        link.into_os_string().into_string().unwrap()
    }

    /// Another process has taken its place: waits until this one has ended.
    pub fn upgraded(&mut self, pid: u32) {
        let before = self.pid();
        self.child.1 = Some(pid);
        let until = Instant::now() + PATIENCE;
        while !has_ended(before) {
            // Of the first one somebody has to hear.
            let _ = self.child.0.as_mut().unwrap().try_wait();
            assert!(
                Instant::now() < until,
                "process {before} does not end; log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// What is in the directory, but for what the harness put there.
    pub fn files(&self) -> Vec<String> {
        files(self.dir.path())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills it, and starts another one in its folder; what the last one logged is gone.
    pub fn killed_and_started_again(self, args: &[&str]) -> Daemon {
        let (dir, v0) = self.killed();
        Daemon::start_in(dir, v0, args)
    }

    /// Kills it; what it leaves behind.
    pub fn killed(mut self) -> (TempDir, String) {
        self.signal(rustix::process::Signal::KILL);
        self.wait();
        self.ended()
    }

    /// What one that has ended leaves behind.
    pub fn ended(self) -> (TempDir, String) {
        let Daemon { dir, v0, .. } = self;
        let _ = std::fs::remove_file(dir.path().join("notify"));
        (dir, v0)
    }

    /// Stops one thread of it, as one that hangs, and waits until the daemon has ended of that;
    /// how.
    pub fn hangs(&mut self, thread: &str) -> ExitStatus {
        let _hang = hang(self.pid(), &[thread, "30"]);
        self.wait().0
    }

    /// The first of its threads of this name that makes a system call hangs there, for two minutes,
    /// or until what is returned is dropped.
    pub fn will_hang(&self, thread: &str, call: &str) -> Hang {
        hang(self.pid(), &[thread, "120", call])
    }

    /// Waits until the daemon has ended; how, and after how long.
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        self.wait_within(PATIENCE)
    }

    /// Waits so long until the daemon has ended; how, and after how long.
    pub fn wait_within(&mut self, patience: Duration) -> (ExitStatus, Duration) {
        let started = Instant::now();
        loop {
            let status = self.child.0.as_mut().unwrap().try_wait().unwrap();
            if let Some(status) = status
                && self.child.1.is_none_or(has_ended)
            {
                return (status, started.elapsed());
            }
            assert!(
                started.elapsed() < patience,
                "the daemon does not end; log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A v0 client.
    pub async fn v0(&self) -> V0 {
        connect_v0(&self.v0).await
    }

    /// A v1 client.
    pub async fn v1(&self) -> ButterflyClient<Channel> {
        ButterflyClient::new(self.channel().await)
    }

    pub async fn router(&self) -> RouterClient<Channel> {
        RouterClient::new(self.channel().await)
    }

    pub async fn channel(&self) -> Channel {
        let channel =
            Endpoint::from_shared(format!("unix://{}", self.path("v1.sock").display())).unwrap();
        within(channel.connect()).await.unwrap()
    }
}

pub fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| !["log", "out", "notify", "key"].contains(&name.as_str()));
    names.sort();
    names
}

/// A v0 client of an endpoint.
pub async fn connect_v0(endpoint: &str) -> V0 {
    let mut socket = zeromq::ReqSocket::new();
    within(socket.connect(endpoint)).await.unwrap();
    V0 {
        socket,
        patience: PATIENCE,
    }
}

/// A REQ socket.
pub struct V0 {
    socket: zeromq::ReqSocket,
    /// How long a reply is waited for.
    pub patience: Duration,
}

impl V0 {
    /// One request frame, one reply frame.
    pub async fn ask(&mut self, request: Vec<u8>) -> Vec<u8> {
        let reply = self.ask_or_end(request).await;
        reply.expect("the daemon answers")
    }

    /// As [`ask`](V0::ask); none where the daemon ends the connection instead of answering.
    pub async fn ask_or_end(&mut self, request: Vec<u8>) -> Option<Vec<u8>> {
        within(self.socket.send(request.into())).await.ok()?;
        let reply = tokio::time::timeout(self.patience, self.socket.recv()).await;
        let reply = reply.expect("no answer takes that long").ok()?;
        assert_eq!(reply.len(), 1, "a reply is one frame");
        Some(reply.get(0).unwrap().to_vec())
    }

    /// In text format, clear.
    pub async fn ask_text(&mut self, request: &str) -> String {
        let request = api::text_format::parse(request).unwrap();
        let reply = self.ask(request.encode_to_vec()).await;
        api::text_format::print(&Messages::decode(reply.as_slice()).unwrap())
    }
}

/// Asks for a NIC of this id, which is not to be there yet.
pub fn to_create(id: &str) -> v1::PutNicRequest {
    v1::PutNicRequest {
        nic: Some(v1::Nic {
            id: id.into(),
            mac: "52:54:00:00:00:01".into(),
            vni: 1,
            ..Default::default()
        }),
        create_only: true,
    }
}

/// Fails when the future takes longer than anything should.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("nothing here takes that long")
}

/// What a guest's driver takes.
pub const FEATURES: u64 = VERSION_1 | MRG_RXBUF | EVENT_IDX;

/// A VMM that is connected, and its guest's rings.
pub fn boot(daemon: &Daemon, id: &str) -> (Frontend, Guest) {
    let guest = Guest::new(GuestOptions {
        features: FEATURES,
        ..GuestOptions::default()
    });
    let mut vmm = Frontend::connect(&daemon.path(&format!("qemu-vhost-{id}"))).unwrap();
    vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
    vmm.start(&guest, [0, 0]).unwrap();
    (vmm, guest)
}

/// Ends the keepers of a folder (`keeper` in it), which outlive daemons and are not to outlive a
/// test: two, where a daemon was killed between starting one and calling it.
pub fn end_keepers(folder: &Path) {
    let keepers = keepers_of(&folder.join("keeper")).into_iter();
    for pid in keepers.filter_map(|pid| Pid::from_raw(pid as i32)) {
        // It may be gone already.
        let _ = kill_process(pid, Signal::KILL);
    }
}
