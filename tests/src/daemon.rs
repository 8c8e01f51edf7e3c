//! A `butterflyd` in a folder of its own, with endpoints of its own, and `butterfly` talking to it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, other_program, wait_for};

/// A running daemon, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    dir: tempfile::TempDir,
    options: Vec<String>,
    /// The process whose network namespace it runs in, if not in ours.
    host: Option<u32>,
    /// It runs as a user that has little, as the systemd service does.
    who: Who,
    process: Process,
    /// The process that has taken the place of that one.
    successor: Option<u32>,
}

impl Daemon {
    /// Starts one with these further options, in which `{dir}` is its folder, and waits until it
    /// answers.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_on(None, options)
    }

    /// Starts one in the network namespace of a process, as on a host of its own.
    pub fn start_on(host: Option<u32>, options: &[&str]) -> Result<Self> {
        Self::start_as(host, Who::Root, options)
    }

    /// As [`Daemon::start_on`], by the user nobody with the capabilities of
    /// packaging/butterflyd.service.
    pub fn start_unprivileged(host: Option<u32>, options: &[&str]) -> Result<Self> {
        Self::start_as(host, Who::Nobody, options)
    }

    /// Starts one that finds no types of the kernel (BTF), as on one that was built without.
    pub fn start_without_btf(options: &[&str]) -> Result<Self> {
        Self::start_on_without_btf(None, options)
    }

    /// As that, in the namespace that this process is in.
    pub fn start_on_without_btf(host: Option<u32>, options: &[&str]) -> Result<Self> {
        Self::start_as(host, Who::WithoutBtf, options)
    }

    fn start_as(host: Option<u32>, who: Who, options: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butterfly-").tempdir();
        let dir = dir.map_err(|e| format!("cannot make a folder: {e}"))?;
        if who == Who::Nobody {
            process::run(&["chown", "nobody", &dir.path().display().to_string()])?;
            // A folder that nobody may not enter holds the programs.
            std::fs::copy(program("butterflyd"), dir.path().join("butterflyd"))
                .map_err(|e| format!("cannot copy the daemon: {e}"))?;
        }
        let process = launch(dir.path(), host, who, options)?;
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut daemon = Self {
            dir,
            options,
            host,
            who,
            process,
            successor: None,
        };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Kills it, as a crash would, and starts another one with the same options in the same folder.
    /// Without `--store` it knows nothing of what was configured.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.kill()?;
        self.restart()
    }

    /// Ends it by SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        let Some(pid) = self.successor.take() else {
            self.process.kill();
            return Ok(());
        };
        // It may have been killed already.
        let _ = process::run(&["kill", "-9", &pid.to_string()]);
        wait_for("butterflyd to end", PATIENCE, || {
            Ok(process::has_ended(pid).then_some(()))
        })
    }

    /// Has it stand still (SIGSTOP), as a debugger or a machine that is short of memory does, until
    /// what this gives is dropped.
    pub fn stand_still(&self) -> Result<Still> {
        Still::of(self.pid())
    }

    /// Has the process stand still that enters network namespaces for it.
    pub fn namespace_helper_stands_still(&self) -> Result<Still> {
        let helper = process::namespace_helper(self.pid());
        Still::of(helper.ok_or("there is no namespace helper")?)
    }

    /// Stops it as systemd does, and starts another one with the same options in the same folder.
    pub fn stop_and_restart(&mut self) -> Result<()> {
        self.stop()?;
        self.restart()
    }

    /// One that has ended is started again, with the same options in the same folder.
    pub fn restart(&mut self) -> Result<()> {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.process = launch(self.dir.path(), self.host, self.who, &options)?;
        self.wait_ready()
    }

    /// Has another process take this one's place, and waits until this one has ended.
    pub fn upgrade(&mut self) -> Result<()> {
        let said = self.cli("upgrade")?;
        self.is_succeeded(&said)
    }

    /// Has another process take this one's place, or give that up, and `meanwhile` happen when it
    /// is prepared and not the daemon yet.
    pub fn amid_an_upgrade(
        &mut self,
        succeeds: bool,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let dir = self.dir();
        let held_up = other_program::held_up(&program("butterflyd"), dir);
        let held_up = other_program::write(dir, "held-up", &held_up)?;
        let [prepared, give_up, go] = ["prepared", "give-up", "go"].map(|name| dir.join(name));
        let write =
            |path: &Path| std::fs::write(path, "").map_err(|e| format!("{}: {e}", path.display()));
        if !succeeds {
            write(&give_up)?;
        }
        let said = std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| self.cli(&format!("upgrade {held_up}")));
            let done = wait_for("the next process to be prepared", PATIENCE, || {
                Ok(prepared.exists().then_some(()))
            });
            let done = done.and_then(|()| meanwhile());
            write(&go)?;
            let said = upgrade.join().map_err(|_| "who upgrades panicked")?;
            done.map(|()| said)
        })?;
        for path in [prepared, give_up, go] {
            // One of them is there in one case alone.
            let _ = std::fs::remove_file(path);
        }
        match (succeeds, said) {
            (true, said) => self.is_succeeded(&said?),
            (false, Ok(said)) => Err(format!("a process that gives up took over: {said}")),
            (false, Err(_)) => Ok(()),
        }
    }

    /// `butterfly upgrade` has said so: waits until this process has ended.
    fn is_succeeded(&mut self, said: &str) -> Result<()> {
        let before = self.pid();
        let pid = said.split("as process ").nth(1);
        let pid = pid.and_then(|rest| rest.split(';').next()?.parse().ok());
        self.successor = Some(pid.ok_or_else(|| format!("no process in '{said}'"))?);
        wait_for("the daemon before to end", PATIENCE, || {
            // Of the first one somebody has to hear.
            self.process.ended();
            Ok(process::has_ended(before).then_some(()))
        })
    }

    fn wait_ready(&mut self) -> Result<()> {
        let ready = wait_for("butterflyd to answer", PATIENCE, || {
            if let Some(status) = self.process.ended() {
                return Err(format!("butterflyd ended with {status}"));
            }
            Ok(self.cli("status").ok().map(drop))
        });
        ready.map_err(|e| format!("{e}\n{}", self.process.log()))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.successor.unwrap_or_else(|| self.process.pid())
    }

    /// Its folder: sockets and log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where API v1 listens.
    pub fn endpoint(&self) -> String {
        format!("unix:{}/api.sock", self.dir.path().display())
    }

    /// Where API v0 listens.
    pub fn endpoint_v0(&self) -> String {
        format!("ipc://{}/v0.sock", self.dir.path().display())
    }

    /// The vhost-user socket of a NIC.
    pub fn socket(&self, nic: &str) -> PathBuf {
        self.dir.path().join(format!("qemu-vhost-{nic}"))
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The features that the driver of a NIC has taken last, as the daemon logs them: when it is
    /// up, and when it goes on with the session of a daemon before.
    pub fn features(&self, nic: &str) -> Result<u64> {
        let up = format!(" nic=\"{nic}\" features=0x");
        let log = self.log();
        let digits = log
            .rsplit_once(&up)
            .and_then(|(_, rest)| rest.split_whitespace().next());
        digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| format!("the log says nothing of {nic}'s features"))
    }

    /// The command line as it was started.
    pub fn command(&self, options: &[&str]) -> Vec<String> {
        command(self.dir.path(), options)
    }

    /// Runs `butterfly`; words are separated by blanks. Gives what it printed.
    pub fn cli(&self, line: &str) -> Result<String> {
        let program = program("butterfly");
        let endpoint = self.endpoint();
        let mut words = vec![program.as_str(), "-e", &endpoint];
        // '' is the empty word, as in a shell
        words.extend(
            line.split_whitespace()
                .map(|word| if word == "''" { "" } else { word }),
        );
        process::run(&words)
    }

    /// What `butterfly health`, which succeeds, says on stdout and on stderr.
    pub fn health(&self) -> Result<(String, String)> {
        let asked = Command::new(program("butterfly"))
            .args(["-e", &self.endpoint(), "health"])
            .output();
        let said = asked.map_err(|e| format!("butterfly health: {e}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match said.status.success() {
            true => Ok((text(&said.stdout), text(&said.stderr))),
            false => Err(format!("butterfly health: {}", text(&said.stderr))),
        }
    }

    /// Runs `butterfly --json`, and gives what it printed as JSON.
    pub fn json(&self, line: &str) -> Result<Value> {
        let text = self.cli(&format!("--json {line}"))?;
        serde_json::from_str(&text)
            .map_err(|e| format!("`butterfly --json {line}` printed {text}: {e}"))
    }

    /// A number of `nic stats`, by its name in the API.
    pub fn stat(&self, nic: &str, name: &str) -> Result<u64> {
        let all = self.json(&format!("nic stats {nic}"))?;
        number(&all[0][name]).ok_or_else(|| format!("no {name} in {all}"))
    }

    /// Frames of a NIC that were dropped in one direction (`INGRESS`, `EGRESS`), by any of these
    /// reasons.
    pub fn drops(&self, nic: &str, direction: &str, reasons: &[&str]) -> Result<u64> {
        let all = self.json(&format!("drops {nic}"))?;
        let drops = all["drops"]
            .as_array()
            .or(all.as_array())
            .ok_or_else(|| format!("no list of drops in {all}"))?;
        let named = |drop: &&Value| {
            let name = drop["reason"].as_str().unwrap_or_default();
            drop["direction"]
                .as_str()
                .unwrap_or_default()
                .ends_with(direction)
                && (reasons.is_empty() || reasons.contains(&name))
        };
        Ok(drops
            .iter()
            .filter(named)
            .filter_map(|drop| number(&drop["frames"]))
            .sum())
    }

    /// All that explains a failure.
    pub fn dump(&self) -> String {
        let nics = self.cli("nic list").unwrap_or_default().replace('\n', " ");
        let mut text = String::new();
        for line in [
            "status",
            "nic list --long",
            &format!("nic show {nics}"),
            "network list",
            "endpoint list",
            "sg details",
            "nic stats",
            "drops",
            "flows",
        ] {
            let said = self.cli(line).unwrap_or_else(|e| e);
            text += &format!("--- butterfly {line}\n{said}\n");
        }
        text + &format!("--- butterflyd's log\n{}\n", process::tail(&self.log(), 60))
    }

    /// Asks it to stop and waits until it has, with success.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(pid) = self.successor {
            process::run(&["kill", "-TERM", &pid.to_string()])?;
            // Nobody here hears how.
            return wait_for("butterflyd to end", PATIENCE, || {
                Ok(process::has_ended(pid).then_some(()))
            });
        }
        let status = self.process.terminate(PATIENCE)?;
        if status.success() {
            return Ok(());
        }
        Err(format!("butterflyd ended with {status}:\n{}", self.log()))
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }
}

/// What outlives the process: who has taken its place, and a keeper of its folder (`--keeper
/// {dir}/keeper`).
impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        let successor = self.successor.into_iter();
        // Two, where a daemon was killed between starting one and calling it.
        let keepers = process::keepers_of(&self.dir.path().join("keeper"));
        for pid in successor.chain(keepers) {
            // It may be gone already.
            let _ = process::run(&["kill", "-9", &pid.to_string()]);
        }
    }
}

/// A process that stands still until this is dropped.
pub struct Still(Pid);

impl Still {
    fn of(pid: u32) -> Result<Still> {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = process.ok_or("no process")?;
        kill_process(process, Signal::STOP).map_err(|e| e.to_string())?;
        let still = Still(process);
        wait_for("all threads to stand still", PATIENCE, || {
            Ok((process::state(pid) == Some(b'T')).then_some(()))
        })?;
        Ok(still)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// 64-bit numbers are strings in protobuf's JSON.
pub fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// What packaging/butterflyd.service gives the daemon.
const CAPABILITIES: &str = "+net_admin,+net_raw,+net_bind_service,+bpf,+perfmon,+sys_admin";

/// By whom a daemon is run, and what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Root,
    /// With the capabilities of the shipped unit.
    Nobody,
    /// Root, and the kernel tells nobody its types.
    WithoutBtf,
}

fn launch(dir: &Path, host: Option<u32>, who: Who, options: &[&str]) -> Result<Process> {
    let mut words = Vec::new();
    if let Some(pid) = host {
        words.extend(["nsenter", "-t", &pid.to_string(), "-n", "--"].map(str::to_owned));
    }
    let mut command = command(dir, options);
    match who {
        Who::Root => {}
        Who::Nobody => {
            let line = format!(
                "setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps {CAPABILITIES} \
                 --ambient-caps {CAPABILITIES} --bounding-set -all,{CAPABILITIES} --no-new-privs --"
            );
            words.extend(line.split_whitespace().map(str::to_owned));
            command[0] = dir.join("butterflyd").display().to_string();
        }
        Who::WithoutBtf => {
            let hide = "mount --bind /dev/null /sys/kernel/btf/vmlinux && exec \"$@\"";
            let line = "unshare --mount --propagation private -- sh -c";
            words.extend(line.split(' ').chain([hide, "sh"]).map(str::to_owned));
        }
    }
    words.extend(command);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Process::start("butterflyd", &words, &dir.join("butterflyd.log"))
}

fn command(dir: &Path, options: &[&str]) -> Vec<String> {
    let dir = dir.display();
    let mut words = vec![program("butterflyd")];
    words.extend(["--no-syslog", "-s"].map(str::to_owned));
    words.extend([
        dir.to_string(),
        "--api".to_owned(),
        format!("unix:{dir}/api.sock"),
    ]);
    words.extend(["-e".to_owned(), format!("ipc://{dir}/v0.sock")]);
    let here = |option: &&str| option.replace("{dir}", &dir.to_string());
    words.extend(options.iter().map(here));
    words
}

/// A program of ours: in the folder that `BUTTERFLY_PROGRAMS` names, beside this one, or one folder
/// up (test binaries are in `deps`).
pub fn program(name: &str) -> String {
    let named = std::env::var_os("BUTTERFLY_PROGRAMS").map(PathBuf::from);
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let mut folders = named.into_iter().chain(beside);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()));
    // What is not there is named by the error of whoever starts it.
    found.map_or_else(|| name.to_owned(), |path| path.display().to_string())
}
