//! A child process of the benchmark, ended by its pid when dropped.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
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

/// No process takes so long to end.
const END: Duration = Duration::from_secs(10);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_micros(200);

/// A running child. Its standard input stays open: testpmd ends when that closes.
pub struct Process {
    pid: Pid,
    /// Nobody is asked any more of what has ended.
    ended: bool,
    _stdin: Option<ChildStdin>,
}

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
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Halts all of its threads, and waits until they are.
    pub fn halt(&self) -> Result<(), PeerError> {
        self.signal(Signal::STOP)?;
        // SIGSTOP takes effect a moment later: the parent is told.
        waitpid(Some(self.pid), WaitOptions::UNTRACED)
            .map(drop)
            .map_err(|errno| PeerError(format!("process {}: {errno}", self.pid())))
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<(), PeerError> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), PeerError> {
        kill_process(self.pid, signal)
            .map_err(|errno| PeerError(format!("process {}: {errno}", self.pid())))
    }

    /// Ends it by this signal, and waits until it has ended.
    pub fn end(mut self, signal: Signal) -> Result<(), PeerError> {
        self.signal(signal)?;
        self.wait_end(END)
    }

    /// Process `pid`, which this one has started in its place, is it from now on: waits until this
    /// one has ended. The other is our child then, as far as this process takes orphans
    /// ([`inherit`]).
    pub fn succeeded_by(&mut self, pid: u32) -> Result<(), PeerError> {
        let next = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let next = next.ok_or_else(|| PeerError(format!("{pid} is no process")))?;
        self.wait_end(END)?;
        self.pid = next;
        self.ended = false;
        Ok(())
    }

    fn wait_end(&mut self, patience: Duration) -> Result<(), PeerError> {
        let deadline = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() > deadline {
                return Err(PeerError(format!("process {} does not end", self.pid())));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        // Whoever is nobody's child has ended as well.
        self.ended |= !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None));
        self.ended
    }

    /// Starts `command` with its output in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Process, PeerError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let fail = |error: io::Error| PeerError(format!("{name}: {error}"));
        let out = std::fs::File::create(log).map_err(fail)?;
        let err = out.try_clone().map_err(fail)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(fail)?;
        Ok(Process {
            pid: Pid::from_child(&child),
            ended: false,
            _stdin: child.stdin.take(),
        })
    }
}

/// From now on what children leave behind is this process's to hear of
/// (PR_SET_CHILD_SUBREAPER): daemons that daemons have started in their place.
pub fn inherit() -> Result<(), PeerError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| PeerError(format!("orphans: {errno}")))
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = self.signal(Signal::TERM);
        // One that is halted would not see it.
        let _ = self.resume();
        if self.wait_end(Duration::from_secs(5)).is_err() {
            let _ = self.signal(Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
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
