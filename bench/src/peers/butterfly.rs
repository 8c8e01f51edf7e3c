//! This project's own daemon, driven by its own command as a user would.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{PeerError, Process, run, wait_for};
use super::{GUEST_MACS, Listens, Running};

/// A daemon with everything below `dir`: `api.sock` for gRPC, `v0.sock` for ZeroMQ, the NICs' sockets.
pub fn daemon(dir: &Path, core: Option<usize>) -> Result<Process, PeerError> {
    let log = dir.join("butterflyd.log");
    let mut command = Process::command(sibling("butterflyd")?);
    command
        .arg("-s")
        .arg(dir)
        .args(["--api", &api(dir), "--no-syslog"]);
    command.args(["--max-flows", "4194304", "--max-flows-per-nic", "3145728"]);
    command.args(["-e", &format!("ipc://{}", dir.join("v0.sock").display())]);
    if let Some(core) = core {
        command.args(["-u", &core.to_string()]);
    }
    let daemon = Process::start(&mut command, &log)?;
    wait_for(&[&dir.join("api.sock"), &dir.join("v0.sock")], &log)?;
    Ok(daemon)
}

pub fn start(dir: &Path, core: usize, rules: bool) -> Result<Running, PeerError> {
    let daemon = daemon(dir, Some(core))?;
    let client = sibling("butterfly")?;
    let butterfly = |line: &str| {
        run(Command::new(&client)
            .args(["-e", &api(dir)])
            .args(line.split(' ')))
    };
    for (index, mac) in GUEST_MACS.iter().enumerate() {
        let filter = if rules { "--sg bench" } else { "--bypass-filtering" };
        let ip = super::guest_ip(index);
        butterfly(&format!(
            "nic add --id nic{index} --mac {mac} --vni 1 --ip {ip} {filter}"
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
    let sockets = [dir.join("qemu-vhost-nic0"), dir.join("qemu-vhost-nic1")];
    Ok(Running {
        sockets,
        listens: Listens::Switch,
        forget: None,
        processes: vec![daemon],
    })
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
