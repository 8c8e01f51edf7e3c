//! A real butterflyd with a folder and endpoints of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Ran, butterfly, until};

/// A running daemon; it is killed when the test is done with it.
pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
    /// The endpoint of API v0.
    pub v0: String,
    /// The endpoint of API v1.
    pub v1: String,
}

impl Daemon {
    /// Starts one.
    pub fn start() -> Daemon {
        Daemon::start_with(&[])
    }

    /// Starts one with further options.
    pub fn start_with(options: &[&str]) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let v0 = format!("ipc://{}", dir.path().join("v0.ipc").display());
        let v1 = format!("unix:{}", dir.path().join("v1.sock").display());
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program())
            .arg("-s")
            .arg(dir.path())
            .args(["-e", &v0, "--api", &v1, "--no-syslog"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Daemon { child, dir, v0, v1 };
        until("butterflyd", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("butterflyd ended with {status}: {}", daemon.log());
            }
            butterfly(&daemon.v1, "status").code == 0
        });
        daemon
    }

    /// Where it keeps its sockets, and a test its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs commands that must succeed, over API v1; what they print.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        succeeded(line, butterfly(&self.v1, line))
    }

    /// Runs commands that must succeed, over API v0; what they print.
    #[track_caller]
    pub fn ok_v0(&self, line: &str) -> String {
        succeeded(line, butterfly(&self.v0, line))
    }

    /// Waits until it ends by itself; its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        until("the end of butterflyd", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("butterflyd's log:\n{}", self.log());
        }
    }
}

#[track_caller]
fn succeeded(line: &str, ran: Ran) -> String {
    let said = without_notes(ran.stderr.as_bytes());
    assert_eq!((ran.code, said.as_str()), (0, ""), "butterfly {line}");
    ran.stdout
}

/// What a command says on stderr, but for the note that a NIC's group is not there: v1 alone has
/// it, and it is no error.
pub fn without_notes(stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    said.lines()
        .filter(|line| !line.contains(", which is not there: "))
        .map(|line| line.to_owned() + "\n")
        .collect()
}

/// The daemon beside the command, in the folder that both are built into.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_butterfly")).with_file_name("butterflyd");
    assert!(
        path.exists(),
        "{} is not built: cargo build -p butterfly-daemon",
        path.display()
    );
    path
}
