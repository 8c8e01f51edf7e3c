//! Programs that tests start: each is killed by its own process id when its guard goes, whatever
//! happens.
//!
//! A guard that is never dropped (a test binary killed by a time limit) must not leave programs
//! behind either, so each is started through `setpriv --pdeathsig KILL`. The kernel sends that
//! signal when the *thread* that started the program ends, and trials run in threads that come and
//! go; hence one thread that lives as long as we do starts them all.

use crate::{Result, wait_for};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A running program, its output going to a log file.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `words` with standard output and error going to `log`.
    pub fn start(name: &str, words: &[&str], log: &Path) -> Result<Self> {
        let file = File::create(log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        let errors = file
            .try_clone()
            .map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        // Ctrl-C is for us alone: the guards end what we started, in their order.
        command.process_group(0);
        let child = spawn(command).map_err(|e| format!("cannot start {name}: {e}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// The process id, of the program itself (`setpriv` has become it).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        wait_for(&format!("{name} to end"), timeout, || Ok(self.ended()))
            .map_err(|e| format!("{e}\nits last words:\n{}", tail(&self.log(), 30)))
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait(timeout)
    }

    /// Sends it a signal, by name.
    pub fn signal(&mut self, signal: &str) -> Result<()> {
        run(&["kill", &format!("-{signal}"), &self.pid().to_string()]).map(drop)
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // Both can only fail when it is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command to its end, and gives what it printed. A failure holds what it said.
pub fn run(words: &[&str]) -> Result<String> {
    let output = output(words)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "`{}` ended with {}:\n{}{}",
        words.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Runs a command to its end, whether it succeeds or not.
pub fn output(words: &[&str]) -> Result<Output> {
    Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {}: {e}", words[0]))
}

/// The last `lines` lines of a text, for dumps.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

type Order = (Command, Sender<std::io::Result<Child>>);

fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, incoming) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in incoming {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let gone = || std::io::Error::other("the thread that starts programs is gone");
    let (answer, result) = channel();
    spawner
        .lock()
        .map_err(|_| gone())?
        .send((command, answer))
        .map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}

/// Runs a command that must end within `timeout`; it is killed when it does not.
pub fn run_within(words: &[&str], timeout: Duration, log: &Path) -> Result<String> {
    let begin = Instant::now();
    let mut process = Process::start(words[0], words, log)?;
    let status = process.wait(timeout)?;
    if status.success() {
        return Ok(process.log());
    }
    Err(format!(
        "`{}` ended with {status} after {:?}:\n{}",
        words.join(" "),
        begin.elapsed(),
        process.log()
    ))
}

/// Whether a process has ended, which need not be a child of ours.
pub fn has_ended(pid: u32) -> bool {
    matches!(state(pid), None | Some(b'Z'))
}

/// What a process does, as proc(5) spells it. `None`: it is gone.
pub fn state(pid: u32) -> Option<u8> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0])
}

/// The processes that are keepers (`butterflyd --as-keeper`) on this socket: none that cannot be
/// told.
pub fn keepers_of(socket: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_keeper = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.contains(&&b"--as-keeper"[..])
            && words.contains(&socket.as_os_str().as_encoded_bytes())
    };
    pids.filter(is_keeper).collect()
}

/// The processes that parse what strangers send to a daemon.
pub fn readers(daemon: u32) -> Vec<u32> {
    children(daemon, b"\0--as-reader\0")
}

/// The process that enters network namespaces for a daemon, if it has started one.
pub fn namespace_helper(daemon: u32) -> Option<u32> {
    children(daemon, b"\0--keep-namespaces\0").first().copied()
}

/// Children whose last word is this one.
fn children(daemon: u32, last_word: &[u8]) -> Vec<u32> {
    // Children are listed by the thread that has started them.
    let threads = std::fs::read_dir(format!("/proc/{daemon}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    let is_one = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline"));
        words.is_ok_and(|words| words.ends_with(last_word))
    };
    let children = children.split_whitespace();
    let children = children.filter_map(|pid| pid.parse().ok());
    children.filter(is_one).collect()
}

/// Whether no thread of a process has a capability, can get one, or makes calls that no filter has
/// let pass (proc_pid_status(5)).
pub fn holds_nothing(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let mut statuses = threads.map(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status"));
        status.unwrap_or_default()
    });
    let is = |status: &str, field: &str, value: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.is_some_and(|line| line.trim() == value)
    };
    let no = "0000000000000000";
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"];
    std::path::Path::new(&format!("/proc/{pid}")).exists()
        && statuses.all(|status| {
            sets.iter().all(|set| is(&status, set, no))
                && is(&status, "NoNewPrivs:", "1")
                && is(&status, "Seccomp:", "2")
        })
}
