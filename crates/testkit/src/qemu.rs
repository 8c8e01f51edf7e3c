//! QEMU guests: real kernels with virtio-net, and an agent inside that runs commands for the test.
//!
//! A guest boots the image of [`crate::image`] in about two seconds without KVM. Its console goes
//! to a log file (and to a socket to log in at); its second serial line carries the agent's
//! protocol. One thread reads that line and wakes whoever waits.

mod agent;
mod initramfs;
mod machine;
mod nic;
mod taps;

pub use agent::{Job, Output};
pub use machine::Machine;
pub use nic::{Nic, Wire};

use crate::image::Image;
use crate::netns::Namespace;
use crate::process::{Process, tail};
use crate::{PATIENCE, Result, wait_for};
use agent::Agent;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How long a guest may take to be moved.
const MOVE_TIMEOUT: Duration = Duration::from_secs(120);

/// A running guest, killed when dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    image: Image,
    dir: tempfile::TempDir,
    qemu: Process,
    /// Where QEMU runs, if not with us.
    _home: Option<Namespace>,
    line: Mutex<UnixStream>,
    agent: Arc<Agent>,
}

impl Guest {
    /// Boots a guest and waits until its agent answers.
    pub fn start(image: &Image, machine: &Machine) -> Result<Self> {
        let mut guest = Self::launch(image, machine)?;
        guest.wait_ready(1)?;
        Ok(guest)
    }

    /// Boots several at a time: on a small machine most of a boot is waiting.
    pub fn start_all(image: &Image, machines: &[Machine]) -> Result<Vec<Self>> {
        let mut guests = machines
            .iter()
            .map(|m| Self::launch(image, m))
            .collect::<Result<Vec<_>>>()?;
        for guest in &mut guests {
            guest.wait_ready(1)?;
        }
        Ok(guests)
    }

    /// A machine into which a guest that runs elsewhere is moved ([`Guest::move_to`]); what was
    /// asked of the guest before its move is answered there. Both machines are the same but for
    /// where their NICs' other ends are.
    pub fn to_be_moved_into(image: &Image, machine: &Machine) -> Result<Self> {
        let machine = Machine {
            incoming: true,
            ..machine.clone()
        };
        let waiting = Self::launch(image, &machine)?;
        wait_for("QEMU to wait for a guest", PATIENCE, || {
            let said = waiting.monitor("info migrate")?;
            Ok(said.contains(machine::INCOMING).then_some(()))
        })?;
        Ok(waiting)
    }

    /// Begins to move this guest into another machine; how far it is says [`Guest::move_state`].
    /// With `pause` it waits, once the guest stands still and before it goes on there, for
    /// [`Guest::move_on`].
    pub fn move_to(&self, other: &Guest, pause: bool) -> Result<()> {
        let on = if pause { "on" } else { "off" };
        self.monitor(&format!(
            "migrate_set_capability pause-before-switchover {on}"
        ))?;
        let socket = other.dir.path().join(machine::INCOMING);
        self.monitor(&format!("migrate -d unix:{}", socket.display()))
            .map(drop)
    }

    /// How far a move is, in QEMU's words: `active`, `pre-switchover`, `completed`, `cancelled` and
    /// others; or `failed`, and why.
    pub fn move_state(&self) -> Result<String> {
        let said = self.monitor("info migrate")?;
        let status = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("Migration status: "));
        Ok(status.unwrap_or_default().trim().to_owned())
    }

    /// Waits until a move is so far.
    pub fn is_moved_until(&self, state: &str) -> Result<()> {
        let what = format!("the move of {} to be {state}", self.name());
        wait_for(&what, MOVE_TIMEOUT, || {
            let now = self.move_state()?;
            if now.starts_with("failed") {
                return Err(format!("{what}: {now}\n{}", self.qemu.log()));
            }
            Ok((now == state).then_some(()))
        })
    }

    /// When a machine that was moved into has begun to run, by the clock.
    pub fn runs_since(&self) -> Result<SystemTime> {
        let path = self.dir.path().join(machine::TRACE);
        let said =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let line = said
            .lines()
            .rfind(|line| line.contains("vm_state_notify running 1"));
        let time = line.and_then(|line| {
            let (_, rest) = line.split_once('@')?;
            rest.split_once(':')?.0.parse().ok()
        });
        let seconds: f64 = time.ok_or_else(|| format!("it has not run: {said}"))?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds))
    }

    /// A move that waits goes on.
    pub fn move_on(&self) -> Result<()> {
        self.monitor("migrate_continue pre-switchover").map(drop)
    }

    fn launch(image: &Image, machine: &Machine) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butterfly-guest-")
            .tempdir()
            .map_err(|e| format!("cannot make a folder: {e}"))?;
        let initramfs = initramfs::of(image, machine, dir.path())?;
        let home = taps::home(machine)?;
        let mut words = home.as_ref().map(taps::enter).unwrap_or_default();
        words.extend(machine::arguments(image, machine, &initramfs, dir.path()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut qemu = Process::start(&machine.name, &words, &dir.path().join("qemu.log"))?;
        let agent_path = dir.path().join("agent");
        let line = wait_for("QEMU's agent socket", PATIENCE, || {
            if let Some(status) = qemu.ended() {
                return Err(format!(
                    "QEMU of {} ended with {status}:\n{}",
                    machine.name,
                    qemu.log()
                ));
            }
            Ok(UnixStream::connect(&agent_path).ok())
        })
        .map_err(|e| format!("{e}\n{}", qemu.log()))?;
        if let Some(home) = &home {
            taps::distribute(machine, home, &mut qemu)?;
        }
        let agent = Arc::new(Agent::default());
        let reader = line
            .try_clone()
            .map_err(|e| format!("cannot read the agent's line: {e}"))?;
        std::thread::spawn({
            let agent = Arc::clone(&agent);
            move || agent.listen(reader)
        });
        Ok(Self {
            machine: machine.clone(),
            image: image.clone(),
            dir,
            qemu,
            _home: home,
            line: Mutex::new(line),
            agent,
        })
    }

    /// The guest's name.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// The socket of its console, where a shell answers.
    pub fn console_socket(&self) -> PathBuf {
        self.dir.path().join("console")
    }

    /// What it printed on its console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(
            &std::fs::read(self.dir.path().join("console.log")).unwrap_or_default(),
        )
        .into_owned()
    }

    /// Says a command to QEMU's monitor, and gives what it answered. An answer that begins with
    /// "Error" is a failure.
    pub fn monitor(&self, command: &str) -> Result<String> {
        const PROMPT: &str = "(qemu) ";
        let fail =
            |e: std::io::Error| format!("{}: QEMU's monitor at `{command}`: {e}", self.name());
        let mut line = UnixStream::connect(self.dir.path().join("monitor")).map_err(fail)?;
        line.set_read_timeout(Some(Duration::from_secs(20)))
            .map_err(fail)?;
        line.write_all(format!("{command}\n").as_bytes())
            .map_err(fail)?;
        // Greeting, prompt, the command as it is typed, the answer, prompt.
        let mut said = Vec::new();
        while String::from_utf8_lossy(&said).matches(PROMPT).count() < 2 {
            let mut bytes = [0; 4096];
            let len = line.read(&mut bytes).map_err(fail)?;
            said.extend_from_slice(&bytes[..len]);
            if len == 0 {
                break;
            }
        }
        let said = String::from_utf8_lossy(&said);
        let answer = said.split(PROMPT).nth(1).unwrap_or_default();
        let answer = answer
            .split_once('\n')
            .map_or("", |(_, answer)| answer)
            .trim();
        if answer.starts_with("Error") {
            return Err(format!(
                "{}: QEMU's monitor at `{command}`: {answer}",
                self.name()
            ));
        }
        Ok(answer.to_owned())
    }

    /// Runs a shell command, and gives its exit code and what it printed.
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output> {
        self.begin(command, timeout)?.wait()
    }

    /// Runs a shell command of at most 30 s that has to succeed, and gives what it printed.
    pub fn ok(&self, command: &str) -> Result<String> {
        self.ok_within(command, Duration::from_secs(30))
    }

    /// As [`ok`](Self::ok), for one that may take longer.
    pub fn ok_within(&self, command: &str, timeout: Duration) -> Result<String> {
        let output = self.run(command, timeout)?;
        if output.code == 0 {
            return Ok(output.text);
        }
        Err(format!(
            "{}: `{command}` ended with code {}:\n{}",
            self.name(),
            output.code,
            output.text
        ))
    }

    /// Whether a shell command of at most 30 s succeeds.
    pub fn succeeds(&self, command: &str) -> Result<bool> {
        Ok(self.run(command, Duration::from_secs(30))?.code == 0)
    }

    /// Starts a shell command whose end is waited for later.
    pub fn begin(&self, command: &str, timeout: Duration) -> Result<Job> {
        let console = self.dir.path().join("console.log");
        let (request, job) = Job::new(&self.agent, self.name(), command, timeout, console);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.write_all(request.as_bytes())
            .map_err(|e| format!("{}: the agent's line: {e}", self.name()))?;
        Ok(job)
    }

    /// Starts a server in the guest and waits until it says that it listens. It ends at
    /// [`Guest::quiet`].
    pub fn serve(&self, program: &str) -> Result<()> {
        let log = format!("/tmp/serve-{}", self.agent.next_id());
        self.ok(&format!(
            "{program} >{log} 2>&1 & for i in $(seq 200); do grep -q listening {log} && exit 0; \
             sleep 0.02; done; cat {log}; exit 1"
        ))
        .map(drop)
    }

    /// Ends every program of ours that still runs in the guest.
    pub fn quiet(&self) -> Result<()> {
        self.ok("killall -9 guest ping udhcpc udhcpd 2>/dev/null; rm -f /tmp/*; true")
            .map(drop)
    }

    /// A counter of an interface: `rx_packets`, `tx_bytes`, …
    pub fn counter(&self, interface: &str, name: &str) -> Result<u64> {
        let text = self.ok(&format!("cat /sys/class/net/{interface}/statistics/{name}"))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{}: {name} is {text:?}", self.name()))
    }

    /// Reboots from inside, and waits until the agent of the new boot answers.
    pub fn reboot(&mut self) -> Result<()> {
        let boots = self.agent.boots();
        self.begin("reboot -f", Duration::from_secs(5))?;
        self.wait_ready(boots + 1)
    }

    /// Kills QEMU, as a crash would, and boots the same machine again.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.qemu.kill();
        *self = Self::start(&self.image, &self.machine)?;
        Ok(())
    }

    fn wait_ready(&mut self, boots: u32) -> Result<()> {
        let what = format!("the agent of {}", self.machine.name);
        let (agent, qemu) = (&self.agent, &mut self.qemu);
        let ready = wait_for(&what, self.machine.boot_timeout, || {
            if let Some(status) = qemu.ended() {
                return Err(format!("QEMU ended with {status}"));
            }
            Ok((agent.boots() >= boots).then_some(()))
        });
        ready.map_err(|e| {
            format!(
                "{e}\nQEMU said:\n{}\nconsole:\n{}",
                self.qemu.log(),
                tail(&self.console(), 40)
            )
        })
    }
}
