//! This project's own daemon, driven by its own command as a user would.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{PeerError, Process, run, wait_for};
use super::{GUEST_MACS, Listens, Running};

/// A daemon, its workers on `cores` (`0`, or `0,1` for two), everything below `dir`: `api.sock` for gRPC, `v0.sock` for ZeroMQ, the NICs' sockets.
pub fn daemon(dir: &Path, cores: Option<&str>) -> Result<Process, PeerError> {
    let log = dir.join("butterflyd.log");
    let mut command = Process::command(sibling("butterflyd")?);
    command
        .arg("-s")
        .arg(dir)
        .args(["--api", &api(dir), "--no-syslog"]);
    command.args(["--max-flows", "4194304", "--max-flows-per-nic", "3145728"]);
    command.args(["-e", &format!("ipc://{}", dir.join("v0.sock").display())]);
    if let Some(cores) = cores {
        command.args(["-u", cores]);
    }
    let daemon = Process::start(&mut command, &log)?;
    wait_for(&[&dir.join("api.sock"), &dir.join("v0.sock")], &log)?;
    Ok(daemon)
}

/// A daemon with one worker and one pair of NICs.
pub fn start(dir: &Path, core: usize, rules: bool) -> Result<Running, PeerError> {
    let mut running = start_pairs(dir, &core.to_string(), rules, 1)?;
    running
        .pop()
        .ok_or_else(|| PeerError("no pair of NICs".to_owned()))
}

/// A daemon with so many pairs of NICs, each in a network of its own with the same addresses. The last of them
/// holds the daemon: it is to be dropped last.
pub fn start_pairs(dir: &Path, cores: &str, rules: bool, pairs: usize) -> Result<Vec<Running>, PeerError> {
    let daemon = daemon(dir, Some(cores))?;
    let client = sibling("butterfly")?;
    let butterfly = |line: &str| {
        run(Command::new(&client)
            .args(["-e", &api(dir)])
            .args(line.split(' ')))
    };
    for nic in 0..2 * pairs {
        let filter = if rules { "--sg bench" } else { "--bypass-filtering" };
        let (mac, ip) = (GUEST_MACS[nic % 2], super::guest_ip(nic % 2));
        let vni = 1 + nic / 2;
        butterfly(&format!(
            "nic add --id nic{nic} --mac {mac} --vni {vni} --ip {ip} {filter}"
        ))?;
    }
    if rules {
        let rule = |protocol: &str, from: u16, to: u16| {
            let ports = format!("--port-start {from} --port-end {to}");
            format!("sg rule add bench --ip-proto {protocol} {ports} --cidr 10.0.0.0/24")
        };
        let (first, last) = (
            crate::TRAFFIC_PORT,
            crate::TRAFFIC_PORT + crate::TRAFFIC_PORTS - 1,
        );
        let other = (2..crate::RULES).map(|number| crate::FIRST_RULE_PORT + number);
        let other = other.map(|port| rule("tcp", port, port));
        let lines: Vec<String> = other
            .chain([rule("tcp", first, last), rule("udp", first, last)])
            .collect();
        butterfly(&lines.join(" + "))?;
    }
    let socket = |nic: usize| dir.join(format!("qemu-vhost-nic{nic}"));
    let mut running: Vec<Running> = (0..pairs)
        .map(|pair| Running {
            sockets: [socket(2 * pair), socket(2 * pair + 1)],
            listens: Listens::Switch,
            forget: None,
            processes: Vec::new(),
        })
        .collect();
    if let Some(last) = running.last_mut() {
        last.processes.push(daemon);
    }
    Ok(running)
}

fn api(dir: &Path) -> String {
    format!("unix:{}", dir.join("api.sock").display())
}

/// A program of this build, beside the benchmark's own.
fn sibling(name: &str) -> Result<PathBuf, PeerError> {
    let own = std::env::current_exe().map_err(|error| PeerError(format!("own path: {error}")))?;
    let path = own.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(PeerError(format!("{} is not built", path.display())))
    }
}
