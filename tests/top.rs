//! `butterfly top` as somebody at a terminal sees it: tmux is the terminal, bench NICs in the
//! daemon make what moves.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::image::repository;
use testkit::{PATIENCE, Result, process, wait_for};

fn main() {
    run_each(trials![
        a_terminal,
        a_daemon_that_hangs,
        once_for_scripts,
        without_a_terminal
    ])
}

/// A daemon with two NICs, one of which sends to the other.
fn busy() -> Result<Daemon> {
    let daemon = Daemon::start(&[])?;
    let nic = "nic add --vni 7 --bypass-filtering --type bench";
    daemon.cli(&format!(
        "{nic} --id echo --mac 02:00:00:00:00:02 --ip 10.0.0.2 --btype ICMP_RCV_LIKE"
    ))?;
    daemon.cli(&format!(
        "{nic} --id pinger --mac 02:00:00:00:00:01 --ip 10.0.0.1 --btype ICMP_SND_LIKE \
         --dip 10.0.0.2 --dmac 02:00:00:00:00:02"
    ))?;
    Ok(daemon)
}

/// A terminal, gone when dropped.
struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    fn open(endpoint: &str, words: &str) -> Result<Terminal> {
        let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let terminal = Terminal { dir };
        let program = repository().join("target/debug/butterfly");
        let program = match std::env::current_exe() {
            // Beside the test, whichever profile it was built with.
            Ok(test) => test
                .parent()
                .and_then(|deps| deps.parent())
                .map_or(program, |dir| dir.join("butterfly")),
            Err(_) => program,
        };
        // The shell notes how it ended: tmux forgets it now and then.
        let (program, status) = (program.display(), terminal.status());
        let status = status.display();
        let command = format!("sh -c '{program} -e {endpoint} {words}; echo $? >{status}'");
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-s",
            "t",
            "-x",
            "130",
            "-y",
            "30",
            &command,
        ])?;
        Ok(terminal)
    }

    /// The file with the exit status, once it has ended.
    fn status(&self) -> PathBuf {
        self.dir.path().join("status")
    }

    fn tmux(&self, words: &[&str]) -> Result<String> {
        let socket = self.dir.path().join("tmux");
        let socket = socket.to_str().ok_or("an odd folder")?;
        process::run(&[&["tmux", "-S", socket], words].concat())
    }

    fn key(&self, key: &str) -> Result<()> {
        self.tmux(&["send-keys", "-t", "t", key]).map(drop)
    }

    /// Waits until the program has ended well.
    fn ends(&self) -> Result<()> {
        wait_for("the end", PATIENCE, || {
            let status = std::fs::read_to_string(self.status()).unwrap_or_default();
            match status.trim() {
                "" => Ok(None),
                "0" => Ok(Some(())),
                status => Err(format!("it ended with {status}")),
            }
        })
    }

    /// Waits until the screen is as it is to be.
    fn shows(&self, what: &str, fits: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        let shown = wait_for(what, PATIENCE, || {
            last = self.tmux(&["capture-pane", "-p", "-t", "t"])?;
            Ok(fits(&last).then(|| last.clone()))
        });
        shown.map_err(|e| format!("{e}; the screen:\n{last}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// Frames a second of a row of the first view.
fn rate(screen: &str, nic: &str) -> Option<f64> {
    let line = screen
        .lines()
        .find(|line| line.trim_start().starts_with(nic))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

fn a_terminal() -> Result<()> {
    let daemon = busy()?;
    let top = Terminal::open(&daemon.endpoint(), "top --interval 0.2")?;
    top.shows("rates of both NICs", |screen| {
        screen.contains("[1 nics]")
            && screen.contains("2 rows")
            && rate(screen, "pinger").is_some_and(|rate| rate > 0.0)
    })?;
    top.key("/")?;
    top.key("e")?;
    top.key("c")?;
    top.key("Enter")?;
    top.shows("the filtered row", |screen| {
        screen.contains("filter: ec") && screen.contains("1 rows") && !screen.contains("pinger")
    })?;
    top.key("Escape")?;
    // An escape and a digit that arrive together are another key, Alt and the digit.
    top.shows("both rows", |screen| screen.contains("2 rows"))?;
    top.key("5")?;
    top.shows("the worker", |screen| {
        screen.contains("[5 workers]") && screen.contains("BUSY %v") && screen.contains("1 rows")
    })?;
    top.key("s")?;
    top.shows("another order", |screen| screen.contains("ASLEEP %v"))?;
    top.key("r")?;
    top.shows("the other way round", |screen| screen.contains("ASLEEP %^"))?;
    top.key("2")?;
    top.shows("flows", |screen| screen.contains("[2 flows]"))?;
    top.key("q")?;
    top.ends()
}

/// It takes connections and says nothing: keys are heard all the same, long before it would be
/// given up.
fn a_daemon_that_hangs() -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let path = dir.path().join("v1.sock");
    let listener = UnixListener::bind(&path);
    let _listener = listener.map_err(|e| format!("cannot listen: {e}"))?;
    let endpoint = format!("unix:{}", path.display());
    let top = Terminal::open(&endpoint, "top --interval 0.2 --timeout 3600000")?;
    top.shows("the first view", |screen| screen.contains("[1 nics]"))?;
    top.key("5")?;
    top.shows("another one", |screen| screen.contains("[5 workers]"))?;
    top.key("p")?;
    top.shows("that it stops", |screen| screen.contains("paused"))?;
    top.key("q")?;
    top.ends()
}

fn once_for_scripts() -> Result<()> {
    let daemon = busy()?;
    for view in ["nics", "flows", "rules", "drops", "workers", "services"] {
        let rows = daemon.json(&format!("top --once --interval 0.2 --view {view}"))?;
        check(
            rows.is_array(),
            &format!("the rows of {view} are a list: {rows}"),
        )?;
    }
    let rows = daemon.json("top --once --interval 0.3 --sort NIC --lines 1")?;
    check(
        rows[0]["NIC"] == "echo",
        &format!("echo is the first by name: {rows}"),
    )?;
    let rows = daemon.json("top --once --interval 0.3 --filter pinger")?;
    let frames = rows[0]["OUT FRAMES/s"].as_f64().unwrap_or(0.0);
    check(frames > 0.0, &format!("the pinger sends: {rows}"))?;
    let workers = daemon.cli("top --once --interval 0.3 --view workers")?;
    check(
        workers.starts_with("WORKER  CORE"),
        &format!("a table: {workers}"),
    )
}

fn without_a_terminal() -> Result<()> {
    let daemon = busy()?;
    let error = daemon.cli("top").err().unwrap_or_default();
    check(
        error.contains("top needs a terminal"),
        &format!("it says so: {error}"),
    )?;
    let error = daemon
        .cli("top --once --sort size")
        .err()
        .unwrap_or_default();
    check(
        error.contains("view nics has no column 'size'"),
        &format!("it says so: {error}"),
    )
}
