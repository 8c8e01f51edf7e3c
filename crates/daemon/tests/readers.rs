//! The processes that parse what clients send: what they hold, and what becomes of the daemon and
//! of other clients when one ends or hangs.

mod common;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use common::certificates::TlsFolder;
use common::{Daemon, PATIENCE, free_port};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tonic::transport::Channel;

const LIST: &str = "messages { revision: 0 message_0 { request { nic_list: true } } }";

/// A daemon that listens on TCP for v0, in clear text, and for v1.
struct Host {
    daemon: Daemon,
    tls: TlsFolder,
    port: u16,
}

impl Host {
    fn start(args: &[&str]) -> Host {
        let (tls, port) = (TlsFolder::new(), free_port());
        let api = format!("tcp:127.0.0.1:{port}");
        let args = [&["--api", &api][..], &tls.options(), args].concat();
        Host {
            daemon: Daemon::start_tcp(&args),
            tls,
            port,
        }
    }

    async fn v1(&self) -> ButterflyClient<Channel> {
        let identity = self.tls.authority.sign_for("client.test");
        ButterflyClient::new(self.tls.connect(self.port, Some(identity)).await.unwrap())
    }

    fn v0_port(&self) -> u16 {
        self.daemon.v0.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Both APIs answer, by a daemon that is still the same.
    async fn answers(&self) {
        self.daemon.v0().await.ask_text(LIST).await;
        let mut v1 = self.v1().await;
        let status = v1.get_status(v1::GetStatusRequest::default()).await;
        assert_eq!(status.unwrap().into_inner().pid, self.daemon.pid());
    }

    /// The one reader that there is.
    fn reader(&self) -> u32 {
        let readers = self.daemon.readers();
        let [reader] = readers[..] else {
            panic!("{readers:?}; log:\n{}", self.daemon.log());
        };
        reader
    }

    fn wait_for_log(&self, said: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.daemon.log().contains(said) {
            assert!(
                Instant::now() < until,
                "no {said:?}:\n{}",
                self.daemon.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The sockets of this side's established connections on a port, by inode (proc_net(5)).
fn connections(port: u16) -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let lines = text.lines().skip(1).map(|line| line.split_whitespace());
    let fields = lines.map(|line| line.collect::<Vec<_>>());
    let ours = fields.filter(|fields| fields[1].ends_with(&local) && fields[3] == "01");
    ours.map(|fields| format!("socket:[{}]", fields[9]))
        .collect()
}

/// What a process has open.
fn open(pid: u32) -> BTreeSet<String> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links
        .map(|link| link.to_string_lossy().into_owned())
        .collect()
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Connections are the reader's alone, and it holds nothing that is worth having.
#[tokio::test]
async fn who_parses_what_clients_send_holds_no_capability() {
    let host = Host::start(&[]);
    assert!(host.daemon.readers().is_empty(), "nobody has come");
    let mut v1 = host.v1().await;
    let status = v1.get_status(v1::GetStatusRequest::default()).await;
    assert_eq!(status.unwrap().into_inner().pid, host.daemon.pid());
    let mut v0 = host.daemon.v0().await;
    v0.ask_text(LIST).await;
    let (daemon, reader) = (host.daemon.pid(), host.reader());
    for port in [host.port, host.v0_port()] {
        let theirs = connections(port);
        assert_eq!(theirs.len(), 1, "{theirs:?}");
        assert!(theirs.is_subset(&open(reader)), "{port}");
        assert!(theirs.is_disjoint(&open(daemon)), "{port}");
    }
    // The listening sockets are not among them, nor any file.
    let held = open(reader);
    let files = held.iter().filter(|link| link.starts_with('/'));
    let files: Vec<_> = files.filter(|link| *link != "/dev/null").collect();
    assert!(files.is_empty(), "{files:?}");
    assert!(testkit::process::holds_nothing(reader));
    assert!(!testkit::process::holds_nothing(daemon));
    // No process of its user looks into it: its files of proc(5) are root's.
    let environment = std::fs::metadata(format!("/proc/{reader}/environ")).unwrap();
    assert_eq!(environment.uid(), 0);
    if geteuid().is_root() {
        let status = std::fs::read_to_string(format!("/proc/{reader}/status")).unwrap();
        let nobody = sys::confine::NOBODY;
        assert!(
            status.contains(&format!("\nUid:\t{nobody}\t{nobody}\t")),
            "{status}"
        );
    }
}

/// A mistake that ends it costs the connections that it had, and nothing else.
#[tokio::test]
async fn a_reader_that_is_killed_is_started_again() {
    let host = Host::start(&[]);
    host.answers().await;
    let mut silent = TcpStream::connect(("127.0.0.1", host.v0_port())).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 64];
    silent.read_exact(&mut greeting).unwrap();
    // One that ends as soon as it is there is not started again at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = host.reader();
    kill(first, Signal::KILL);
    let ended = silent.read(&mut greeting);
    assert!(
        matches!(&ended, Ok(0))
            || ended
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{ended:?}"
    );
    host.wait_for_log("the reader of clients has ended (signal: 9 (SIGKILL))");
    host.answers().await;
    assert_ne!(host.reader(), first);
}

#[tokio::test]
async fn a_reader_that_hangs_is_ended_and_started_again() {
    let host = Host::start(&["--hang-secs", "2"]);
    host.answers().await;
    let first = host.reader();
    kill(first, Signal::STOP);
    // Who comes meanwhile waits for it.
    host.wait_for_log("the reader of clients has not moved in time");
    host.wait_for_log("the reader of clients has ended (signal: 9 (SIGKILL))");
    host.answers().await;
    assert_ne!(host.reader(), first);
}

/// A mistake that has one thread of it spin is found, too: each has connections of its own.
#[tokio::test]
async fn a_thread_of_a_reader_that_hangs_ends_it() {
    let host = Host::start(&["--hang-secs", "2"]);
    host.answers().await;
    let first = host.reader();
    let hang = common::hang(first, &["reader2", "60"]);
    host.wait_for_log("the reader of clients has not moved in time");
    host.wait_for_log("the reader of clients has ended (signal: 9 (SIGKILL))");
    drop(hang);
    host.answers().await;
    assert_ne!(host.reader(), first);
}

#[tokio::test]
async fn a_reader_ends_with_the_daemon() {
    for signal in [Signal::KILL, Signal::TERM] {
        let host = Host::start(&[]);
        host.answers().await;
        let reader = host.reader();
        host.daemon.signal(signal);
        let until = Instant::now() + PATIENCE;
        // Somebody else's zombie has no command line.
        while std::fs::read(format!("/proc/{reader}/cmdline")).is_ok_and(|words| !words.is_empty())
        {
            assert!(Instant::now() < until, "{reader} goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            !host
                .daemon
                .log()
                .contains("the reader of clients has ended"),
            "{}",
            host.daemon.log()
        );
    }
}

/// Certificates that are read again are the next handshake's, in a reader that runs and in one that
/// comes after it.
#[tokio::test]
async fn a_reader_that_comes_later_has_the_key_and_the_certificates() {
    let host = Host::start(&[]);
    host.answers().await;
    host.tls.replace_by(&host.tls.authority);
    host.daemon.signal(Signal::HUP);
    host.wait_for_log("read again: ");
    host.answers().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill(host.reader(), Signal::KILL);
    host.wait_for_log("the reader of clients has ended");
    host.answers().await;
}
