//! QEMU guests: real kernels with virtio-net, and an agent inside that runs commands for the test.
//!
//! A guest boots the image of [`crate::image`] in about two seconds without KVM. Its console goes to a log file (and to
//! a socket to log in at); its second serial line carries the agent's protocol, which `crates/guest/src/agent.rs`
//! describes. One thread here reads that line and wakes whoever waits.

use crate::image::Image;
use crate::process::{Process, tail};
use crate::{Result, wait_for};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where the other end of a NIC is.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The vhost-user socket of a switch, which listens. QEMU connects, and again when the switch was away.
    VhostUser(PathBuf),
    /// A socket that another QEMU listens on: two guests joined without any switch.
    Connect(PathBuf),
    /// A socket that this QEMU listens on.
    Listen(PathBuf),
}

/// A NIC, and what its driver is offered. Start from [`Nic::new`], which offers everything.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Where the other end is.
    pub wire: Wire,
    /// Its Ethernet address.
    pub mac: String,
    /// VIRTIO_NET_F_CSUM and GUEST_CSUM. Without it there is no segmentation offload either.
    pub checksum: bool,
    /// VIRTIO_NET_F_HOST_TSO4, HOST_TSO6, GUEST_TSO4, GUEST_TSO6.
    pub segmentation: bool,
    /// VIRTIO_NET_F_MRG_RXBUF.
    pub mergeable: bool,
    /// VIRTIO_RING_F_EVENT_IDX.
    pub event_index: bool,
    /// VIRTIO_RING_F_INDIRECT_DESC.
    pub indirect: bool,
    /// Pairs of queues; more than one turns VIRTIO_NET_F_MQ on.
    pub queue_pairs: u16,
}

impl Nic {
    /// A NIC that is offered every feature, with one pair of queues.
    pub fn new(wire: Wire, mac: &str) -> Self {
        Self {
            wire,
            mac: mac.to_owned(),
            checksum: true,
            segmentation: true,
            mergeable: true,
            event_index: true,
            indirect: true,
            queue_pairs: 1,
        }
    }

    /// A NIC that is offered nothing that can be refused.
    pub fn plain(wire: Wire, mac: &str) -> Self {
        let everything = Self::new(wire, mac);
        Self {
            checksum: false,
            segmentation: false,
            mergeable: false,
            event_index: false,
            indirect: false,
            ..everything
        }
    }

    fn arguments(&self, index: usize, accelerator: &str) -> Vec<String> {
        let on = |value: bool| if value { "on" } else { "off" };
        let (netdev, chardev) = match &self.wire {
            Wire::VhostUser(path) => (
                format!(
                    "vhost-user,id=net{index},chardev=vhost{index},vhostforce=on,queues={}",
                    self.queue_pairs
                ),
                Some(format!(
                    "socket,id=vhost{index},path={},reconnect=1",
                    path.display()
                )),
            ),
            Wire::Connect(path) => (stream(index, "off", path), None),
            Wire::Listen(path) => (stream(index, "on", path), None),
        };
        let (checksum, segmentation) = (on(self.checksum), on(self.checksum && self.segmentation));
        let mut device = format!(
            "virtio-net-pci,netdev=net{index},mac={},romfile=,mrg_rxbuf={},csum={checksum},guest_csum={checksum},\
             event_idx={},indirect_desc={}",
            self.mac,
            on(self.mergeable),
            on(self.event_index),
            on(self.indirect),
        );
        for feature in ["gso", "host_tso4", "host_tso6", "guest_tso4", "guest_tso6"] {
            device += &format!(",{feature}={segmentation}");
        }
        if self.queue_pairs > 1 {
            device += ",mq=on";
        }
        // QEMU 7.2 without KVM crashes when a vhost device starts with MSI-X (msix_set_vector_notifiers takes vectors
        // for KVM's): the guest then gets one interrupt line for all.
        let vectors = if accelerator == "kvm" {
            2 * self.queue_pairs + 2
        } else {
            0
        };
        device += &format!(",vectors={vectors}");
        let mut words: Vec<String> = Vec::new();
        for (option, value) in [
            ("-chardev", chardev),
            ("-netdev", Some(netdev)),
            ("-device", Some(device)),
        ] {
            if let Some(value) = value {
                words.extend([option.to_owned(), value]);
            }
        }
        words
    }
}

fn stream(index: usize, server: &str, path: &Path) -> String {
    format!(
        "stream,id=net{index},server={server},addr.type=unix,addr.path={}",
        path.display()
    )
}

/// A guest to start.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, in messages.
    pub name: String,
    /// `eth0`, `eth1`, …
    pub nics: Vec<Nic>,
    /// Processors.
    pub processors: u16,
    /// Memory, shared with the switch.
    pub memory_mib: u32,
    /// How long it may take until its agent answers.
    pub boot_timeout: Duration,
}

impl Machine {
    /// A small machine without NICs.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nics: Vec::new(),
            processors: 1,
            memory_mib: 160,
            boot_timeout: Duration::from_secs(60),
        }
    }

    /// The same with one more NIC.
    pub fn with(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }
}

/// What a command in a guest came to.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit code; 124 when it ran out of time.
    pub code: i32,
    /// What it printed, standard output and error together.
    pub text: String,
}

/// A running guest, killed when dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    image: Image,
    dir: tempfile::TempDir,
    qemu: Process,
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

    fn launch(image: &Image, machine: &Machine) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butterfly-guest-")
            .tempdir()
            .map_err(|e| format!("cannot make a folder: {e}"))?;
        let words = arguments(image, machine, dir.path());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut qemu = Process::start(&machine.name, &words, &dir.path().join("qemu.log"))?;
        let agent_path = dir.path().join("agent");
        let line = wait_for("QEMU's agent socket", Duration::from_secs(20), || {
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
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join("console.log")).unwrap_or_default())
            .into_owned()
    }

    /// Runs a shell command, and gives its exit code and what it printed.
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output> {
        self.begin(command, timeout)?.wait()
    }

    /// Runs a shell command of at most 30 s that has to succeed, and gives what it printed.
    pub fn ok(&self, command: &str) -> Result<String> {
        let output = self.run(command, Duration::from_secs(30))?;
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
        let id = self.agent.open();
        let hex: String = command.bytes().map(|b| format!("{b:02x}")).collect();
        let request = format!("run {id} {} {hex}\n", timeout.as_millis());
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.write_all(request.as_bytes())
            .map_err(|e| format!("{}: the agent's line: {e}", self.name()))?;
        Ok(Job {
            agent: Arc::clone(&self.agent),
            id,
            // The agent ends the command at its time-out; what comes after that is for a guest that is stuck.
            deadline: Instant::now() + timeout + Duration::from_secs(10),
            what: format!("{}: `{command}`", self.name()),
            console: self.dir.path().join("console.log"),
        })
    }

    /// Starts a server in the guest and waits until it says that it listens. It ends at [`Guest::quiet`].
    pub fn serve(&self, program: &str) -> Result<()> {
        let log = format!("/tmp/serve-{}", self.agent.open());
        self.ok(&format!(
            "{program} >{log} 2>&1 & for i in $(seq 200); do grep -q listening {log} && exit 0; sleep 0.02; done; \
             cat {log}; exit 1"
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
        let boots = self.agent.state().boots;
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
            Ok((agent.state().boots >= boots).then_some(()))
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

/// A command that runs in a guest.
#[derive(Debug)]
pub struct Job {
    agent: Arc<Agent>,
    id: u64,
    deadline: Instant,
    what: String,
    console: PathBuf,
}

impl Job {
    /// Waits for its end.
    pub fn wait(self) -> Result<Output> {
        let mut state = self.agent.state();
        loop {
            if let Some(output) = state.done.remove(&self.id) {
                return Ok(output);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                let console = std::fs::read(&self.console).unwrap_or_default();
                let console = tail(&String::from_utf8_lossy(&console), 40);
                return Err(format!("{} was never answered; console:\n{console}", self.what));
            }
            state = self
                .agent
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// What came over the agent's line so far.
#[derive(Debug, Default)]
struct Agent {
    state: Mutex<AgentState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AgentState {
    boots: u32,
    closed: bool,
    last_id: u64,
    done: HashMap<u64, Output>,
}

impl Agent {
    fn state(&self) -> MutexGuard<'_, AgentState> {
        // Every change below is one step: what a panicking thread left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> u64 {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    fn listen(&self, line: UnixStream) {
        for text in BufReader::new(line)
            .split(b'\n')
            .map_while(std::result::Result::ok)
        {
            let text = String::from_utf8_lossy(&text).into_owned();
            let words: Vec<&str> = text.split_whitespace().collect();
            let mut state = self.state();
            match words[..] {
                ["ready", ..] => state.boots += 1,
                ["done", id, code, hex] => {
                    if let (Ok(id), Ok(code)) = (id.parse(), code.parse()) {
                        state.done.insert(
                            id,
                            Output {
                                code,
                                text: unhex(hex),
                            },
                        );
                    }
                }
                _ => continue, // noise of the line while it opens
            }
            self.changed.notify_all();
        }
        self.state().closed = true;
        self.changed.notify_all();
    }
}

fn unhex(hex: &str) -> String {
    let bytes: Vec<u8> = hex
        .as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn arguments(image: &Image, machine: &Machine, dir: &Path) -> Vec<String> {
    let memory = format!("{}M", machine.memory_mib);
    let socket = |id: &str| {
        format!(
            "socket,id={id},path={},server=on,wait=off",
            dir.join(id).display()
        )
    };
    let console = format!(
        "{},logfile={}",
        socket("console"),
        dir.join("console.log").display()
    );
    let mut words: Vec<String> = [
        "qemu-system-x86_64",
        "-name",
        &machine.name,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-machine",
        "pc,memory-backend=mem",
        "-accel",
        &image.accelerator,
        "-cpu",
        "max",
        "-smp",
        &machine.processors.to_string(),
        "-m",
        &memory,
        "-object",
        &format!("memory-backend-memfd,id=mem,size={memory},share=on"),
        "-kernel",
        &image.kernel.display().to_string(),
        "-initrd",
        &image.initramfs.display().to_string(),
        "-append",
        "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on",
        "-chardev",
        &console,
        "-serial",
        "chardev:console",
        "-chardev",
        &socket("agent"),
        "-serial",
        "chardev:agent",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(
        machine
            .nics
            .iter()
            .enumerate()
            .flat_map(|(index, nic)| nic.arguments(index, &image.accelerator)),
    );
    words
}
