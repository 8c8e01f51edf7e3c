//! A child process of the benchmark, ended by its pid when dropped.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Why a peer is not measured; the run says so and goes on without it.
#[derive(Debug)]
pub struct PeerError(pub String);

impl From<String> for PeerError {
    fn from(why: String) -> PeerError {
        PeerError(why)
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A running child. Its standard input stays open: testpmd ends when that closes.
pub struct Process(Child);

impl Process {
    /// A command for [`Process::start`] that ends with the benchmark, even if that is killed.
    pub fn command(program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(program);
        command
    }

    /// The command for a program that runs in the network namespace of process `holder`, where one
    /// is given.
    pub fn command_in(holder: Option<u32>, program: impl AsRef<OsStr>) -> Command {
        let Some(holder) = holder else {
            return Process::command(program);
        };
        let mut command = Process::command("nsenter");
        command
            .args(["-t", &holder.to_string(), "-n", "--"])
            .arg(program);
        command
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Halts all of its threads, and waits until they are.
    pub fn halt(&self) -> Result<(), PeerError> {
        self.signal(Signal::STOP)?;
        // SIGSTOP takes effect a moment later: the parent is told.
        waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED)
            .map(drop)
            .map_err(|errno| PeerError(format!("process {}: {errno}", self.pid())))
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<(), PeerError> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), PeerError> {
        kill_process(Pid::from_child(&self.0), signal)
            .map_err(|errno| PeerError(format!("process {}: {errno}", self.pid())))
    }

    /// Starts `command` with its output in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Process, PeerError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let fail = |error: io::Error| PeerError(format!("{name}: {error}"));
        let out = std::fs::File::create(log).map_err(fail)?;
        let err = out.try_clone().map_err(fail)?;
        command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map(Process)
            .map_err(fail)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(Signal::TERM);
        // One that is halted would not see it.
        let _ = self.resume();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until every path exists; after ten seconds the peer has failed, and the end of its log
/// says why.
pub fn wait_for(paths: &[&Path], log: &Path) -> Result<(), PeerError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !paths.iter().all(|path| path.exists()) {
        crate::interrupt::check()?;
        if Instant::now() > deadline {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(5).collect();
            let missing = paths
                .iter()
                .find(|path| !path.exists())
                .map(|path| path.display().to_string());
            let missing = missing.unwrap_or_default();
            return Err(PeerError(format!(
                "{missing} did not appear; the log ends: {}",
                tail.join(" | ")
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs a short command to its end; anything but success is an error with what it printed.
pub fn run(command: &mut Command) -> Result<String, PeerError> {
    let name = format!("{command:?}");
    let done = command
        .output()
        .map_err(|error| PeerError(format!("{name}: {error}")))?;
    if !done.status.success() {
        return Err(PeerError(format!(
            "{name}: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        )));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
