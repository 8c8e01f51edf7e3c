//! A guest to start: its NICs, what it boots with, and QEMU's command line for it.

use super::nic::Nic;
use crate::image::Image;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A guest to start.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, in messages.
    pub name: String,
    /// `eth0`, `eth1`, …
    pub nics: Vec<Nic>,
    /// It boots with `tools.img`: see [`Machine::with_tools`].
    pub tools: bool,
    /// Programs of this machine that it has under `/usr/bin`.
    pub programs: Vec<PathBuf>,
    /// Processors.
    pub processors: u16,
    /// Memory, shared with the switch.
    pub memory_mib: u32,
    /// Up to where memory can be plugged in while it runs.
    pub memory_max_mib: Option<u32>,
    /// How long it may take until its agent answers.
    pub boot_timeout: Duration,
    /// It does not boot, but waits for a guest from elsewhere.
    pub incoming: bool,
}

/// The socket where a guest comes in from elsewhere, in the machine's folder.
pub(super) const INCOMING: &str = "incoming";

/// The file where such a machine says when it runs.
pub(super) const TRACE: &str = "trace";

impl Machine {
    /// A small machine without NICs.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nics: Vec::new(),
            tools: false,
            programs: Vec::new(),
            processors: 1,
            memory_mib: 160,
            memory_max_mib: None,
            boot_timeout: Duration::from_secs(120),
            incoming: false,
        }
    }

    /// This machine with one more NIC.
    pub fn with(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }

    /// This machine with the build host's iproute2 and ethtool in place of busybox's, and modules
    /// for VLANs, bonds, bridges and tunnels, which load when `ip link add` asks for one
    /// (`tools/guest-image.sh` names them all).
    pub fn with_tools(self) -> Self {
        Self {
            tools: true,
            // They stay in memory.
            memory_mib: self.memory_mib.max(224),
            ..self
        }
    }

    /// This machine with programs of the build host, stripped, and the libraries they need:
    /// `/usr/bin/NAME`.
    pub fn with_programs(mut self, programs: &[&str]) -> Self {
        self.programs.extend(programs.iter().map(PathBuf::from));
        Self {
            memory_mib: self.memory_mib.max(512),
            ..self
        }
    }
}

/// QEMU's command line for a machine that boots `initramfs` and whose files are in `dir`.
pub(super) fn arguments(
    image: &Image,
    machine: &Machine,
    initramfs: &Path,
    dir: &Path,
) -> Vec<String> {
    let memory = format!("{}M", machine.memory_mib);
    let memory_option = match machine.memory_max_mib {
        Some(max) => format!("{memory},slots=8,maxmem={max}M"),
        None => memory.clone(),
    };
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
        &memory_option,
        "-object",
        &format!("memory-backend-memfd,id=mem,size={memory},share=on"),
        "-kernel",
        &image.kernel.display().to_string(),
        "-initrd",
        &initramfs.display().to_string(),
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
        "-chardev",
        &socket("monitor"),
        "-mon",
        "chardev=monitor,mode=readline",
    ]
    .map(str::to_owned)
    .to_vec();
    if machine.incoming {
        let socket = dir.join(INCOMING);
        words.extend(["-incoming".to_owned(), format!("unix:{}", socket.display())]);
        // When it runs, by the clock.
        let trace = dir.join(TRACE).display().to_string();
        words
            .extend(["-msg", "timestamp=on", "-trace", "vm_state_notify", "-D"].map(str::to_owned));
        words.push(trace);
    }
    words.extend(
        machine
            .nics
            .iter()
            .enumerate()
            .flat_map(|(index, nic)| nic.arguments(index, &image.accelerator)),
    );
    words
}
