//! DPDK's testpmd with virtio-user ports: a driver, and a VMM, that share no code with ours nor
//! with QEMU's. Driven by its prompt; standard input is a named pipe.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use testkit::process::{Process, tail};
use testkit::{PATIENCE, Result, wait_for};

const PROMPT: &str = "testpmd> ";

/// A running testpmd, killed when dropped.
#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    input: File,
}

impl Testpmd {
    /// Starts one: `memory` are EAL's options for it, `vdevs` the ports, `options` those of testpmd
    /// itself. One core of it forwards. It waits for nothing: see [`Testpmd::wait_ready`].
    pub fn launch(dir: &Path, memory: &[&str], vdevs: &[String], options: &[&str]) -> Result<Self> {
        let pipe = dir.join("testpmd.in");
        let _ = std::fs::remove_file(&pipe);
        testkit::process::run(&["mkfifo", &pipe.display().to_string()])?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let lcores = format!("0@(0-{cores}),1@(0-{cores})");
        // Its prompt is written at once, and so has to be what comes before it.
        let shell = format!("exec stdbuf -oL dpdk-testpmd \"$@\" <{}", pipe.display());
        let mut words = vec!["sh", "-c", &shell, "testpmd", "--lcores", &lcores];
        words.extend(["--main-lcore", "0", "--no-pci", "--no-telemetry"]);
        // The name of its files under /run, of which another testpmd must not have the same.
        let prefix = format!(
            "butterfly-{}",
            dir.file_name().unwrap_or_default().to_string_lossy()
        );
        words.extend(["--file-prefix", &prefix]);
        words.extend(memory);
        for vdev in vdevs {
            words.extend(["--vdev", vdev]);
        }
        words.extend([
            "--",
            "-i",
            "--no-mlockall",
            "--port-topology=loop",
            "--nb-cores=1",
        ]);
        words.extend(options);
        let process = Process::start("testpmd", &words, &dir.join("testpmd.log"))?;
        // Open for both, so that this waits for no reader.
        let input = File::options().read(true).write(true).open(&pipe);
        let input = input.map_err(|e| format!("cannot write {}: {e}", pipe.display()))?;
        Ok(Self { process, input })
    }

    /// Waits for its first prompt: all ports are connected.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.wait_prompt(0).map(drop)
    }

    /// Says a command and gives what it printed until the next prompt.
    pub fn ask(&mut self, command: &str) -> Result<String> {
        let before = self.process.log().len();
        writeln!(self.input, "{command}").map_err(|e| format!("testpmd's prompt: {e}"))?;
        self.wait_prompt(before)
    }

    /// A counter of `show port stats`: `RX-packets`, `TX-packets`, …
    pub fn counter(&mut self, port: usize, name: &str) -> Result<u64> {
        let said = self.ask(&format!("show port stats {port}"))?;
        let mut words = said.split_whitespace();
        words
            .find(|word| word.strip_suffix(':') == Some(name))
            .and_then(|_| words.next()?.parse().ok())
            .ok_or_else(|| format!("testpmd says no {name}:\n{said}"))
    }

    /// Its last words, for dumps.
    pub fn log(&self) -> String {
        tail(&self.process.log(), 60)
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn wait_prompt(&mut self, from: usize) -> Result<String> {
        wait_for("testpmd's prompt", PATIENCE, || {
            if let Some(status) = self.process.ended() {
                return Err(format!("testpmd ended with {status}:\n{}", self.log()));
            }
            let log = self.process.log();
            // The prompt comes once for the command as it is typed, so to speak, and once after it.
            let said = log.get(from..).unwrap_or_default();
            Ok(said.ends_with(PROMPT).then(|| said.to_owned()))
        })
        .map_err(|e| format!("{e}\n{}", self.log()))
    }
}

/// Huge pages set aside beside those that there are, given back when dropped.
#[derive(Debug)]
pub struct HugePages {
    count: u64,
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    /// `count` pages more of the default size (2 MiB on x86). Fails where the host has not so much
    /// memory in one piece, or does not let us.
    pub fn reserve(count: u64) -> Result<Self> {
        let before = Self::read()?;
        let pages = Self { count };
        Self::write(before + count)?;
        match Self::read()? {
            now if now >= before + count => Ok(pages),
            now => Err(format!(
                "the host sets {now} huge pages aside, {} are needed",
                before + count
            )),
        }
    }

    fn read() -> Result<u64> {
        let text = std::fs::read_to_string(HUGE_PAGES).map_err(|e| format!("{HUGE_PAGES}: {e}"))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{HUGE_PAGES} is {text:?}"))
    }

    fn write(count: u64) -> Result<()> {
        std::fs::write(HUGE_PAGES, count.to_string()).map_err(|e| format!("{HUGE_PAGES}: {e}"))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(e) = Self::read().and_then(|now| Self::write(now.saturating_sub(self.count))) {
            eprintln!("{e}");
        }
    }
}
