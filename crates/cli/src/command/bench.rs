//! `butterfly bench`: how fast this host is, and what limits it.
//!
//! A daemon of its own, in a folder of its own, gets pairs of bench NICs, one of which asks while
//! the other answers: what its workers count is what is measured. Nothing else on the host is
//! touched, and a daemon that runs already goes on.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use api::v1;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{bench_forward, doctor};
use crate::client::Client;
use crate::doctor::{Finding, Level, speed};
use crate::error::Error;
use crate::output::Table;
use crate::session::Session;

const EXAMPLES: &str = "\
Starts a daemon of its own for some seconds, with pairs of bench NICs inside it that ask and
answer each other (ICMP echo, 98 bytes), and takes nothing from one that runs, but for the time of
a core. A frame goes the whole way: rules, connection, copy. What a guest's rings and its machine
cost comes on top. RULES is the number of rules that the receiver has. All frames of a row are one
connection that is known: its rules were asked once, before the windows. FRAMES/s is the median of
windows of a second, all on one core; CYCLES are those of the time-stamp counter. No root is
needed.

Examples:
  butterfly bench
  butterfly bench --core 2 --seconds 10
  butterfly --json bench | jq .rows
  butterfly bench forward";

/// `bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// Windows of a second for each row
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=15))]
    seconds: u32,
    /// The core that the worker is kept on [default: the scheduler chooses]
    #[arg(long, value_name = "N")]
    core: Option<u32>,
    /// The daemon's program [default: butterflyd beside this one, or in the path]
    #[arg(long, value_name = "FILE")]
    daemon: Option<PathBuf>,
}

/// What else is measured.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure packets a second by their size, forwarded by the kernel and by `butterfly forward`
    Forward(bench_forward::ForwardArgs),
}

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before the first window.
const WARM_UP: Duration = Duration::from_millis(500);

/// What the receiver has: no filter at all, or so many rules of which the last one fits.
const ROWS: [(&str, u32); 3] = [("none", 0), ("1", 1), ("100", 100)];

/// What a row has shown.
struct Row {
    rules: &'static str,
    /// Frames a second in each window, sorted.
    windows: Vec<f64>,
    /// Cycles of a frame by step.
    steps: Vec<(String, f64)>,
}

impl Row {
    fn median(&self) -> f64 {
        median(&self.windows)
    }

    /// What the switch itself does: the rest is the bench NICs'.
    fn switching(&self) -> f64 {
        let ours = |name: &str| matches!(name, "fast_path" | "judge" | "deliver");
        let steps = self.steps.iter().filter(|(name, _)| ours(name));
        steps.map(|(_, cycles)| cycles).sum()
    }
}

impl BenchArgs {
    /// Measures, and says what limits it. SIGINT, SIGTERM and SIGHUP end it with an error.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        if let Some(BenchCommand::Forward(args)) = self.command {
            return args.run(session).await;
        }
        // Asked for first: whenever one comes, the daemon and its folder go too.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let ended_by = |signal| {
            Err(Error::Refused(format!(
                "the measurement was ended: {signal}"
            )))
        };
        let (rows, findings) = tokio::select! {
            measured = self.measure_all(session) => measured?,
            _ = interrupt.recv() => return ended_by("SIGINT"),
            _ = terminate.recv() => return ended_by("SIGTERM"),
            _ = hangup.recv() => return ended_by("SIGHUP"),
        };
        match session.out.json {
            true => session.out.value(&value(&rows, &findings)),
            false => session.out.text(&text(&rows, &findings)),
        }
    }

    /// The daemon ends with it, also when it is dropped before its end.
    async fn measure_all(&self, session: &Session) -> Result<(Vec<Row>, Vec<Finding>), Error> {
        let mut daemon = Daemon::start(self.program()?, self.core)?;
        let mut client = daemon.connect(session).await?;
        let before = (Instant::now(), daemon.interruptions(), stolen());
        let mut rows = Vec::new();
        for (name, rules) in ROWS {
            rows.push(measure(&mut client, name, rules, self.seconds).await?);
        }
        let secs = before.0.elapsed().as_secs_f64();
        let per_sec = |now: u64, then: u64| now.saturating_sub(then) as f64 / secs;
        let interrupted = daemon
            .interruptions()
            .zip(before.1)
            .map(|(now, then)| per_sec(now, then));
        let taken = stolen().zip(before.2).map(|(now, then)| {
            let (stolen, all) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
            100.0 * stolen as f64 / all.max(1) as f64
        });
        drop(client);
        drop(daemon);
        let mut findings = speed::measured(interrupted, taken);
        findings.extend(speed::examine(self.core));
        Ok((rows, findings))
    }

    fn program(&self) -> Result<PathBuf, Error> {
        if let Some(program) = &self.daemon {
            return Ok(program.clone());
        }
        let own = std::env::current_exe().ok();
        let beside = own.and_then(|own| Some(own.parent()?.join("butterflyd")));
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let in_path = std::env::split_paths(&paths).map(|folder| folder.join("butterflyd"));
        let is_there = |program: &PathBuf| program.is_file();
        // The package has it where services are, which is not in everybody's path.
        let further =
            ["/usr/sbin", "/usr/local/sbin"].map(|folder| Path::new(folder).join("butterflyd"));
        let mut all = beside.into_iter().chain(in_path).chain(further);
        all.find(is_there).ok_or_else(|| {
            let why = "is neither beside this program nor in the path: say where with --daemon";
            Error::Usage(format!("butterflyd {why}"))
        })
    }
}

/// A daemon in a folder of its own; both go with it.
struct Daemon {
    process: Child,
    folder: PathBuf,
}

impl Daemon {
    fn start(program: PathBuf, core: Option<u32>) -> Result<Daemon, Error> {
        let name = format!("butterfly-bench-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let failed = |what: &Path, e: &dyn std::fmt::Display| {
            Error::Usage(format!("{} cannot be started: {e}", what.display()))
        };
        make_private(&folder)
            .map_err(|e| Error::Usage(format!("the folder {}: {e}", folder.display())))?;
        let log = std::fs::File::create(folder.join("log")).map_err(|e| failed(&program, &e));
        let mut command = std::process::Command::new(&program);
        let shown = folder.display();
        command
            .args(["--no-syslog", "-s"])
            .arg(&folder)
            .args(["--api", &format!("unix:{shown}/api.sock")])
            .args(["-e", &format!("ipc://{shown}/v0.sock")])
            .args(["--store", "none", "--keeper", "none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(core) = core {
            command.args(["-u", &core.to_string()]);
        }
        let started = log.and_then(|log| {
            command.stderr(log);
            command.spawn().map_err(|e| failed(&program, &e))
        });
        match started {
            Ok(process) => Ok(Daemon { process, folder }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    async fn connect(&mut self, session: &Session) -> Result<Client, Error> {
        let endpoint = format!("unix:{}/api.sock", self.folder.display());
        let begun = Instant::now();
        loop {
            // Looked at first, so that its last line is there.
            let ended = self.process.try_wait().ok().flatten();
            if ended.is_none()
                && let Ok(mut client) = session.connect_to(&endpoint).await
                && client.status().await.is_ok()
            {
                return Ok(client);
            }
            let what = match ended {
                Some(status) => format!("has ended ({status})"),
                None if begun.elapsed() > PATIENCE => "does not answer".to_owned(),
                None => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let why = log.lines().last().unwrap_or("it says nothing");
            return Err(Error::Unreachable(format!(
                "the daemon of this measurement {what}: {why}"
            )));
        }
    }

    /// How often others took the cores of its threads.
    fn interruptions(&self) -> Option<u64> {
        let tasks = format!("/proc/{}/task", self.process.id());
        let mut sum = None;
        for task in std::fs::read_dir(tasks).ok()?.flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if !name.starts_with("worker") {
                continue;
            }
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let mut lines = status.lines();
            let count = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
            let count: u64 = count?.trim().parse().ok()?;
            sum = Some(sum.unwrap_or(0) + count);
        }
        sum
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has nothing that it could lose, and the folder is ours alone.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

/// Time that the hypervisor gave to others, and all time, of all processors (proc(5)).
fn stolen() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .flat_map(str::parse)
        .collect();
    Some((*times.get(7)?, times.iter().sum()))
}

const ASKS: (&str, &str, &str) = ("asks", "52:54:00:00:00:01", "192.0.2.1");
const ANSWERS: (&str, &str, &str) = ("answers", "52:54:00:00:00:02", "192.0.2.2");

async fn measure(
    client: &mut Client,
    name: &'static str,
    rules: u32,
    windows: u32,
) -> Result<Row, Error> {
    let group = |id: &str| v1::Group {
        id: id.into(),
        rules: (1..=rules).map(|number| rule(number, rules)).collect(),
        ..Default::default()
    };
    client.put_group(group("bench")).await?;
    for (id, mac, address) in [ANSWERS, ASKS] {
        let role = match id == ASKS.0 {
            true => v1::bench::Role::IcmpSender,
            false => v1::bench::Role::IcmpReceiver,
        };
        let nic = v1::Nic {
            id: id.into(),
            mac: mac.into(),
            vni: 1,
            addresses: vec![address.into()],
            security_groups: vec!["bench".into()],
            bypass_filtering: rules == 0,
            kind: v1::NicKind::Bench.into(),
            bench: Some(v1::Bench {
                role: role.into(),
                target_ip: match id == ASKS.0 {
                    true => ANSWERS.2.into(),
                    false => String::new(),
                },
                target_mac: match id == ASKS.0 {
                    true => ANSWERS.1.into(),
                    false => String::new(),
                },
            }),
            ..Default::default()
        };
        client.put_nic(nic, false).await?;
    }
    tokio::time::sleep(WARM_UP).await;
    let first = client.workers().await?;
    let mut rates = Vec::new();
    let mut before = frames(client).await?;
    for _ in 0..windows {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = frames(client).await?;
        let secs = now.1.saturating_sub(before.1) as f64 / 1e9;
        rates.push((now.0 - before.0) as f64 / secs.max(f64::MIN_POSITIVE));
        before = now;
    }
    let last = client.workers().await?;
    for (id, ..) in [ASKS, ANSWERS] {
        client.delete_nic(id).await?;
    }
    rates.sort_by(f64::total_cmp);
    if rates.last().is_none_or(|most| *most == 0.0) {
        return Err(Error::Refused(
            "no frame has passed between the bench NICs".into(),
        ));
    }
    Ok(Row {
        rules: name,
        windows: rates,
        steps: steps(&first, &last),
    })
}

/// The last one is for what is sent, the others for TCP ports.
fn rule(number: u32, of: u32) -> v1::Rule {
    let last = number == of;
    v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(if last { 1 } else { 6 }),
        r#match: (!last).then_some(v1::rule::Match::Ports(v1::PortRange {
            start: 20_000 + number,
            end: 20_000 + number,
        })),
        ..Default::default()
    }
}

/// Frames that were delivered to both, and when that was read.
async fn frames(client: &mut Client) -> Result<(u64, u64), Error> {
    let stats = client.only_v1("bench")?.nics_stats().await?;
    let sum = stats.nics.iter().map(|nic| nic.ingress_frames).sum();
    Ok((sum, stats.time_ns))
}

fn steps(first: &v1::ListWorkersResponse, last: &v1::ListWorkersResponse) -> Vec<(String, f64)> {
    let of = |all: &v1::ListWorkersResponse, name: &str| {
        let steps = all.workers.iter().flat_map(|worker| &worker.steps);
        let named = steps.filter(|step| step.name == name);
        named.fold((0, 0), |sum, step| {
            (sum.0 + step.cycles, sum.1 + step.frames)
        })
    };
    let names = last.workers.iter().flat_map(|worker| &worker.steps);
    let mut all: Vec<(String, f64)> = Vec::new();
    for step in names {
        let (now, then) = (of(last, &step.name), of(first, &step.name));
        let frames = now.1.saturating_sub(then.1);
        if frames > 0 && !all.iter().any(|(name, _)| *name == step.name) {
            let cycles = now.0.saturating_sub(then.0) as f64 / frames as f64;
            all.push((step.name.clone(), cycles));
        }
    }
    all
}

fn text(rows: &[Row], findings: &[Finding]) -> String {
    let mut table = Table::new(&[
        "RULES",
        ">FRAMES/s",
        ">LEAST",
        ">MOST",
        ">CYCLES OF THE SWITCH",
        "BY STEP",
    ]);
    for row in rows {
        let ends = (row.windows.first(), row.windows.last());
        let (least, most) = (ends.0.copied(), ends.1.copied());
        let steps = row.steps.iter();
        let steps = steps.map(|(name, cycles)| format!("{name} {cycles:.0}"));
        table.row([
            row.rules.to_owned(),
            format!("{:.0}", row.median()),
            format!("{:.0}", least.unwrap_or_default()),
            format!("{:.0}", most.unwrap_or_default()),
            format!("{:.0}", row.switching()),
            steps.collect::<Vec<_>>().join(", "),
        ]);
    }
    table.render() + &limits(findings)
}

/// The middle one of some windows, the higher one of two; 0 of none.
pub(super) fn median(windows: &[f64]) -> f64 {
    let mut sorted = windows.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// What limits the host.
pub(super) fn limits(findings: &[Finding]) -> String {
    let limits: Vec<&Finding> = findings
        .iter()
        .filter(|one| one.level > Level::Ok)
        .collect();
    let mut text = match limits.is_empty() {
        true => "\nNothing was found that limits this host.\n".to_owned(),
        false => "\nWhat limits it:\n".to_owned(),
    };
    for finding in limits {
        text += &format!("- {}: {}\n", finding.about, finding.what);
        if !finding.remedy.is_empty() {
            text += &format!("    -> {}\n", finding.remedy);
        }
    }
    text
}

fn value(rows: &[Row], findings: &[Finding]) -> Value {
    let row = |row: &Row| {
        let steps = row.steps.iter();
        let steps = steps.map(|(name, cycles)| (name.clone(), json!(cycles)));
        json!({
            "rules": row.rules,
            "frames_per_second": row.median(),
            "windows": row.windows,
            "switch_cycles_per_frame": row.switching(),
            "cycles_per_frame": serde_json::Map::from_iter(steps),
        })
    };
    json!({
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "findings": findings.iter().map(doctor::value).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_the_median_and_what_the_switch_takes() {
        let row = Row {
            rules: "100",
            windows: vec![1e6, 2e6, 4e6],
            steps: [("receive", 40.0), ("fast_path", 30.0), ("deliver", 20.0)]
                .map(|(name, cycles)| (name.to_owned(), cycles))
                .into(),
        };
        assert_eq!((row.median(), row.switching()), (2e6, 50.0));
        let finding = Finding {
            check: "smt",
            level: Level::Note,
            about: "cores".into(),
            what: "two CPUs are one core".into(),
            remedy: "-u".into(),
        };
        let text = text(&[row], &[finding]);
        for part in [
            "2000000",
            "1000000",
            "4000000",
            "fast_path 30",
            "- cores: two",
            "-> -u",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_last_rule_is_the_one_that_fits() {
        let rules: Vec<_> = (1..=3).map(|number| rule(number, 3)).collect();
        assert_eq!(rules[2].protocol, Some(1));
        assert!(rules[2].r#match.is_none());
        assert!(rules[..2].iter().all(|rule| rule.protocol == Some(6)));
    }
}
