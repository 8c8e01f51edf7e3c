//! Network namespaces, as containers would be: a TAP NIC is moved into one and speaks from there.
//!
//! A namespace is held by a sleeping process and has no name: when the process goes, the namespace
//! goes, and the devices in it. Nothing can be left behind.

use crate::process::{self, Process};
use crate::{PATIENCE, Result, wait_for};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::path::Path;

/// A network namespace, gone when dropped.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
    dir: tempfile::TempDir,
}

impl Namespace {
    /// A fresh namespace with its loopback up.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butterfly-netns-")
            .tempdir()
            .map_err(|e| format!("cannot make a folder: {e}"))?;
        let words = ["unshare", "--net", "sleep", "infinity"];
        let holder = Process::start("namespace", &words, &dir.path().join("holder.log"))?;
        let namespace = Self { holder, dir };
        let own = std::fs::read_link("/proc/self/ns/net").map_err(|e| format!("no /proc: {e}"))?;
        let theirs = format!("/proc/{}/ns/net", namespace.pid());
        wait_for("a network namespace", PATIENCE, || {
            Ok(std::fs::read_link(&theirs).ok().filter(|link| *link != own))
        })?;
        namespace.ok("ip link set lo up")?;
        Ok(namespace)
    }

    /// The process that holds it: `nsenter -t PID -n` enters.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// Moves a device of ours into it, as `eth0`, with these addresses (with their prefix lengths),
    /// and up.
    pub fn adopt(&self, device: &str, mac: &str, addresses: &[&str]) -> Result<()> {
        process::run(&["sh", "-c", &self.take(device)])?;
        self.dress(mac, addresses)
    }

    /// Takes a device out of another namespace into this one, and gives it this MAC and these
    /// addresses.
    pub fn adopt_from(
        &self,
        other: &Namespace,
        device: &str,
        mac: &str,
        addresses: &[&str],
    ) -> Result<()> {
        other.ok(&self.take(device))?;
        self.dress(mac, addresses)
    }

    fn take(&self, device: &str) -> String {
        format!("ip link set {device} netns {} name eth0", self.pid())
    }

    fn dress(&self, mac: &str, addresses: &[&str]) -> Result<()> {
        self.ok("sysctl -q -w net.ipv6.conf.eth0.accept_dad=0 net.ipv6.conf.eth0.autoconf=0")?;
        self.ok(&format!("ip link set eth0 address {mac} up"))?;
        for address in addresses {
            self.ok(&format!("ip addr add {address} dev eth0"))?;
        }
        Ok(())
    }

    /// Runs a shell command in it, and gives what it printed.
    pub fn ok(&self, command: &str) -> Result<String> {
        process::run(&self.words(command).each_ref().map(String::as_str))
    }

    /// Whether a shell command in it succeeds.
    pub fn succeeds(&self, command: &str) -> Result<bool> {
        Ok(
            process::output(&self.words(command).each_ref().map(String::as_str))?
                .status
                .success(),
        )
    }

    /// Starts a program in it that goes on.
    pub fn start(&self, name: &str, command: &str) -> Result<Process> {
        let command = format!("exec {command}");
        Process::start(
            name,
            &self.words(&command).each_ref().map(String::as_str),
            &self.log_path(name),
        )
    }

    /// Runs something of ours in it, on a thread that has moved there: sockets, programs attached
    /// to its interfaces.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> Result<T> {
        let path = format!("/proc/{}/ns/net", self.pid());
        let space = std::fs::File::open(&path).map_err(|e| format!("cannot open {path}: {e}"))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|e| format!("cannot enter {path}: {e}"))?;
                Ok(what())
            });
            match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// The index of one of its interfaces.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        let line = self.ok(&format!("ip -o link show {device}"))?;
        let index = line
            .split(':')
            .next()
            .and_then(|index| index.trim().parse().ok());
        index.ok_or_else(|| format!("ip said {line}"))
    }

    /// A counter of `eth0`: `rx_packets`, `tx_bytes`, …
    pub fn counter(&self, name: &str) -> Result<u64> {
        // `ip` and not /sys: sysfs shows the namespace it was mounted in.
        let json = self.ok("ip -s -j link show eth0")?;
        let (side, field) = name
            .split_once('_')
            .ok_or_else(|| format!("{name} is no counter"))?;
        let all: serde_json::Value =
            serde_json::from_str(&json).map_err(|e| format!("ip said {json}: {e}"))?;
        all[0]["stats64"][side][field]
            .as_u64()
            .ok_or_else(|| format!("no {name} in {json}"))
    }

    fn log_path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(format!("{name}.log"))
    }

    fn words(&self, command: &str) -> [String; 7] {
        [
            "nsenter",
            "-t",
            &self.pid().to_string(),
            "-n",
            "sh",
            "-c",
            command,
        ]
        .map(str::to_owned)
    }
}
