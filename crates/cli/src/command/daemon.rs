//! `butterfly status`, `shutdown` and `log-level`: the daemon itself.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use api::v1;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output;
use crate::session::Session;
use crate::words::utc;

/// Shown behind the help of `status`.
pub const STATUS_EXAMPLE: &str = "\
A line `warning` is an uplink or another interface that loses frames or is down, or a network that
hears nobody on other hosts though nobody has asked for that. A line `forgotten` is something that a
daemon before has left and this one could not go on with. The last part is a graph in the DOT
language, for Graphviz.

Examples:
  butterfly status
  butterfly status --wait && butterfly apply host.json";
/// Shown behind the help of `health`.
pub const HEALTH_EXAMPLE: &str = "\
It does not work when it cannot be reached (exit code 3), is not ready yet, is stopping, or one of
its threads hangs (1). Over API v1 this is what gRPC's health service (grpc.health.v1) tells
everybody who may connect. Where it works and there is a line `warning` in its status, it says so on
stderr, to who may ask for the status, and ends with 0: a restart would not help.

Examples:
  butterfly health
  butterfly health --wait 5 || journalctl -u butterflyd";
/// Shown behind the help of `shutdown`.
pub const SHUTDOWN_EXAMPLE: &str = "\
On a terminal it asks first where NICs would lose their network; elsewhere it wants --yes then.

Example:
  butterfly shutdown --yes";

/// Shown behind the help of `reload`.
pub const RELOAD_EXAMPLE: &str = "\
A file that cannot be used is an error; what was read of it before stays in force.

Example:
  butterfly reload";

/// Shown behind the help of `upgrade`.
pub const UPGRADE_EXAMPLE: &str = "\
The new program is started beside the daemon with the same arguments, prepares all that it can, and
takes over; then the old one ends. If it cannot be executed, ends, or cannot take over, the daemon
goes on as before, and this says why. Needs --store and --keeper of the daemon (docs/state.md).
The answer may take 90 seconds; --timeout says otherwise.

Examples:
  butterfly upgrade
  butterfly upgrade /opt/butterfly-next/sbin/butterflyd";

/// `upgrade`.
#[derive(Args, Debug)]
pub struct UpgradeArgs {
    /// The program, on the daemon's host [default: where the daemon was started from]
    #[arg(value_name = "PROGRAM")]
    program: Option<std::path::PathBuf>,
}

/// `shutdown`.
#[derive(Args, Debug)]
pub struct ShutdownArgs {
    /// Also if NICs lose their network
    #[arg(short, long)]
    yes: bool,
}

/// `log-level`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly log-level debug")]
pub struct LogLevelArgs {
    /// How much
    #[arg(ignore_case = true)]
    level: Level,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Level {
    None,
    Error,
    Warning,
    Info,
    Debug,
}

impl LogLevelArgs {
    /// Sets how much the daemon logs.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let level = match self.level {
            Level::None => "none",
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
        };
        session.client().await?.set_log_level(level).await?;
        session.done("log_level", level);
        Ok(())
    }
}

/// `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    wait: Wait,
}

/// `health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
struct Wait {
    /// Wait until the daemon is there and works, so many seconds at the most [default: 30]
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
    wait: Option<u64>,
}

/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Wait {
    /// Returns when the daemon works; fails when it does not, once there is no time left.
    async fn until_it_works(self, session: &mut Session) -> Result<(), Error> {
        let until = Instant::now() + Duration::from_secs(self.wait.unwrap_or(0));
        loop {
            let why = match is_serving(session).await {
                Ok(true) => return Ok(()),
                Ok(false) => Error::Refused(
                    "butterflyd does not work: it is not ready yet, is stopping, or a thread hangs"
                        .into(),
                ),
                Err(error @ Error::Unreachable(_)) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() >= until {
                return Err(why);
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

async fn is_serving(session: &mut Session) -> Result<bool, Error> {
    session.client().await?.is_serving().await
}

impl HealthArgs {
    /// Succeeds when the daemon works. What is wrong beside that is no reason to restart it.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        self.wait.until_it_works(session).await?;
        // Who may ask nothing else is told nothing else.
        let warnings = session.client().await?.warnings().await;
        for warning in warnings.unwrap_or_default() {
            output::say(&format!("warning: {warning}\n"));
        }
        Ok(())
    }
}

impl StatusArgs {
    /// Shows the daemon's state.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        if self.wait.wait.is_some() {
            self.wait.until_it_works(session).await?;
        }
        status(session).await
    }
}

async fn status(session: &mut Session) -> Result<(), Error> {
    let client = session.client().await?;
    let status = client.status().await?;
    let is_v1 = client.is_v1();
    if session.out.json {
        let value = match is_v1 {
            true => json::full("Status", &status),
            false => json!({
                "start_unix_secs": status.start_unix_secs,
                    "current_unix_secs": status.current_unix_secs,
                "uptime_secs": status.uptime_secs, "requests": status.requests,
                    "graph_dot": status.graph_dot,
            }),
        };
        return session.out.value(&value);
    }
    for (name, value) in lines(&status) {
        session
            .out
            .text(&format!("{:<14} {value}", format!("{name}:")))?;
    }
    match status.graph_dot.is_empty() {
        true => Ok(()),
        false => session.out.text(&format!("\n{}", status.graph_dot)),
    }
}

/// API v0 says when and how many requests; the rest is v1's.
fn lines(status: &v1::Status) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    let is_v1 = !status.version.is_empty();
    if is_v1 {
        line("version", status.version.clone());
        line("pid", status.pid.to_string());
    }
    line("start date", utc(status.start_unix_secs));
    line("current date", utc(status.current_unix_secs));
    line("uptime", duration(status.uptime_secs));
    line("requests", status.requests.to_string());
    if is_v1 {
        let (nics, groups, rules) = (status.nics, status.groups, status.rules);
        line(
            "configuration",
            format!(
                "epoch {}: {nics} NICs, {groups} groups, {rules} rules",
                status.epoch
            ),
        );
        let (hosts, networks, bindings) =
            (status.remote_endpoints, status.networks, status.bindings);
        line(
            "overlay",
            format!("{networks} networks, {hosts} other hosts, {bindings} bindings"),
        );
        line("socket dir", status.socket_dir.clone());
        line("endpoints", status.endpoints.join(" "));
        line("log level", status.log_level.clone());
        if status.audit_lines_lost > 0 {
            line("audit", format!("{} lines lost", status.audit_lines_lost));
        }
        if !status.uplink.is_empty() {
            line("uplink", status.uplink.clone());
        }
        if !status.router.is_empty() {
            line("router", status.router.clone());
        }
        for warning in &status.warnings {
            line("warning", warning.clone());
        }
        for forgotten in &status.forgotten {
            let (count, meaning) = (forgotten.count, &forgotten.meaning);
            line("forgotten", format!("{count} {meaning}"));
        }
    }
    for worker in &status.workers {
        let core = worker
            .core
            .map_or(String::new(), |core| format!(" on core {core}"));
        let (load, frames, flows, max) = (
            worker.load_percent,
            worker.frames,
            worker.flows,
            worker.max_flows,
        );
        let value = format!("{load} % busy{core}, {frames} frames, {flows} of {max} flows");
        line(&format!("worker {}", worker.index), value);
    }
    lines
}

/// `reload`: what was read, a line for each file.
pub async fn reload(session: &mut Session) -> Result<(), Error> {
    let read = session.client().await?.reload().await?;
    session.out.names(&read)
}

impl UpgradeArgs {
    /// Has a program take the daemon's place.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let program = self.program.map(std::path::absolute).transpose();
        let program = program.map_err(|e| Error::Usage(format!("no path: {e}")))?;
        let program = program.map(|path| path.into_os_string().into_string());
        let program = program
            .transpose()
            .map_err(|path| Error::Usage(format!("the path '{}' is not UTF-8", path.display())))?;
        let client = session.client().await?;
        let done = client.upgrade(program.unwrap_or_default()).await?;
        let text = format!(
            "butterflyd {} goes on as process {}; no frame was forwarded for {:.1} ms",
            done.version,
            done.pid,
            done.pause_us as f64 / 1e3
        );
        session.out.names(&[text])
    }
}

impl ShutdownArgs {
    /// Stops the daemon, after asking when NICs would lose their network. Over v0 nothing is asked,
    /// as by the original's command: scripts of its users say `shutdown` and no more.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?;
        if !self.yes && matches!(client, Client::V1(_)) {
            let nics = client.nic_ids().await?.len();
            let what = match nics {
                0 => None,
                1 => Some("a NIC loses its network".to_owned()),
                nics => Some(format!("{nics} NICs lose their network")),
            };
            what.map_or(Ok(()), |what| confirm(&what))?;
        }
        client.shutdown().await?;
        session.done("shutdown", true);
        Ok(())
    }
}

/// Asks whether that is meant. Who is no person at a terminal cannot be asked.
pub fn confirm(what: &str) -> Result<(), Error> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Error::Usage(format!("{what}: say --yes if that is meant")));
    }
    output::say(&format!("{what}. Go on? [y/N] "));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::Usage(format!("{what}: not done"))),
    }
}

/// Seconds as people say them: `3d 4h 5m 6s`.
fn duration(secs: u64) -> String {
    let parts = [
        (secs / 86_400, 'd'),
        (secs / 3_600 % 24, 'h'),
        (secs / 60 % 60, 'm'),
        (secs % 60, 's'),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    parts[first..]
        .iter()
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use api::v1;

    use super::{duration, lines};

    #[test]
    fn what_is_forgotten_has_a_line_if_anything_is() {
        let told = |forgotten: Vec<v1::Forgotten>| {
            let version = "1".to_owned();
            let lines = lines(&v1::Status {
                version,
                forgotten,
                ..Default::default()
            });
            let named = lines.into_iter().filter(|(name, _)| name == "forgotten");
            named.map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert!(told(Vec::new()).is_empty());
        let macs = v1::Forgotten {
            what: "mac".into(),
            count: 2,
            meaning: "learnt MACs that cannot be".into(),
        };
        assert_eq!(told(vec![macs]), ["2 learnt MACs that cannot be"]);
    }

    #[test]
    fn durations_begin_with_what_counts() {
        assert_eq!(duration(0), "0s");
        assert_eq!(duration(61), "1m 1s");
        assert_eq!(duration(3 * 86_400 + 5), "3d 0h 0m 5s");
    }
}
