//! This project's own daemon, driven by its own command as a user would.

use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{PeerError, Process, run, wait_for};
use super::{GUEST_MACS, Listens, Running, Setup};

/// A daemon, its workers on `cores` (`0`, or `0,1` for two), everything below `dir`: `api.sock` for
/// gRPC, `v0.sock` for ZeroMQ, the NICs' sockets.
pub fn daemon(dir: &Path, cores: Option<&str>) -> Result<Process, PeerError> {
    daemon_in(None, dir, cores, &[])
}

/// A [`daemon`] that keeps what is declared in a folder.
pub fn daemon_with_store(dir: &Path, store: &Path) -> Result<Process, PeerError> {
    let store = store.to_string_lossy();
    daemon_in(None, dir, None, &["--store", &store])
}

/// A [`daemon`] in the network namespace of process `holder`, with more options.
pub fn daemon_in(
    holder: Option<u32>,
    dir: &Path,
    cores: Option<&str>,
    options: &[&str],
) -> Result<Process, PeerError> {
    launch(&sibling("butterflyd")?, holder, dir, cores, options)
}

fn launch(
    program: &Path,
    holder: Option<u32>,
    dir: &Path,
    cores: Option<&str>,
    options: &[&str],
) -> Result<Process, PeerError> {
    let log = dir.join("butterflyd.log");
    let mut command = Process::command_in(holder, program);
    command
        .arg("-s")
        .arg(dir)
        .args(["--api", &api(dir), "--no-syslog"]);
    command.args(["--max-flows", "4194304", "--max-flows-per-nic", "3145728"]);
    command.args(["-e", &format!("ipc://{}", dir.join("v0.sock").display())]);
    if let Some(cores) = cores {
        command.args(["-u", cores]);
    }
    // Of what is said twice the last one counts.
    command.args(options);
    let daemon = Process::start(&mut command, &log)?;
    wait_for(&[&dir.join("api.sock"), &dir.join("v0.sock")], &log)?;
    Ok(daemon)
}

/// A daemon with one worker, these options, and the NICs of one network, or of two where there is a
/// crowd.
pub fn start(
    dir: &Path,
    core: usize,
    setup: Setup,
    rules: bool,
    options: &[&str],
) -> Result<Running, PeerError> {
    let daemon = daemon_in(None, dir, Some(&core.to_string()), options)?;
    for nic in 0..setup.guests() {
        let judged = nic < setup.judged();
        add_nic(dir, nic, nic, if judged { 1 } else { 2 }, rules && judged)?;
    }
    if rules {
        add_rules(dir, setup.rules())?;
    }
    Ok(Running {
        sockets: (0..setup.guests()).map(|nic| socket(dir, nic)).collect(),
        listens: Listens::Switch,
        forget: None,
        processes: vec![daemon],
    })
}

/// A daemon with so many pairs of NICs, each in a network of its own with the same addresses. The
/// last of them holds the daemon: it is to be dropped last.
pub fn start_pairs(
    dir: &Path,
    cores: &str,
    rules: bool,
    pairs: usize,
) -> Result<Vec<Running>, PeerError> {
    add_pairs(daemon(dir, Some(cores))?, dir, rules, pairs)
}

fn add_pairs(
    daemon: Process,
    dir: &Path,
    rules: bool,
    pairs: usize,
) -> Result<Vec<Running>, PeerError> {
    for nic in 0..2 * pairs {
        add_nic(dir, nic, nic % 2, 1 + nic / 2, rules)?;
    }
    if rules {
        add_rules(dir, crate::RULES)?;
    }
    let mut running: Vec<Running> = (0..pairs)
        .map(|pair| Running {
            sockets: vec![socket(dir, 2 * pair), socket(dir, 2 * pair + 1)],
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

/// A NIC with a guest's addresses.
fn add_nic(dir: &Path, nic: usize, guest: usize, vni: usize, rules: bool) -> Result<(), PeerError> {
    butterfly(dir, &nic_line(nic, guest, vni, rules)?).map(drop)
}

/// NICs of these guests in one network, under the rules of [`add_rules`]; ` more` is what else is
/// said of each.
pub fn add_nics(
    dir: &Path,
    guests: Range<usize>,
    more: impl Fn(usize) -> String,
) -> Result<(), PeerError> {
    let line = |guest| Ok(nic_line(guest, guest, 1, true)? + &more(guest));
    let lines: Vec<String> = guests.map(line).collect::<Result<_, PeerError>>()?;
    butterfly(dir, &lines.join(" + ")).map(drop)
}

fn nic_line(nic: usize, guest: usize, vni: usize, rules: bool) -> Result<String, PeerError> {
    let filter = if rules {
        "--sg bench"
    } else {
        "--bypass-filtering"
    };
    let (mac, ip) = (super::guest_mac(guest)?, super::guest_ip(guest));
    Ok(format!(
        "nic add --id nic{nic} --mac {mac} --vni {vni} --ip {ip} {filter}"
    ))
}

/// Where the guest of a NIC is connected.
pub fn socket(dir: &Path, nic: usize) -> PathBuf {
    dir.join(format!("qemu-vhost-nic{nic}"))
}

/// A daemon with one worker and guest 0, in the network namespace of process `holder`, whose
/// `uplink` joins it to the host `there` of guest 1.
pub fn start_host(
    dir: &Path,
    core: usize,
    holder: u32,
    uplink: &str,
    [here, there]: [IpAddr; 2],
) -> Result<Running, PeerError> {
    let options = ["-i", &here.to_string(), "--uplink", uplink];
    let daemon = daemon_in(Some(holder), dir, Some(&core.to_string()), &options)?;
    host_of(daemon, dir, there)
}

/// As [`start_host`], with a daemon that is built with DPDK, by DPDK's `net_af_packet` on `uplink`.
/// `far` is the other host's MAC.
pub fn start_host_by_dpdk(
    dir: &Path,
    core: usize,
    holder: u32,
    uplink: &str,
    [here, there]: [IpAddr; 2],
    far: &str,
) -> Result<Running, PeerError> {
    let program = with_dpdk()?;
    let devices = format!("--no-pci -m 128 --vdev=net_af_packet0,iface={uplink}");
    let options = ["-i", &here.to_string(), "--dpdk-args", &devices];
    let daemon = launch(
        &program,
        Some(holder),
        dir,
        Some(&core.to_string()),
        &options,
    )?;
    let address = format!(
        "ip addr add {here}/24 dev dpdk0 && \
         ip neigh replace {there} lladdr {far} dev dpdk0 nud permanent"
    );
    // The kernel's end is there when the daemon has answered.
    let running = host_of(daemon, dir, there)?;
    run(Process::command_in(Some(holder), "sh").args(["-c", &address]))?;
    Ok(running)
}

/// A daemon that has DPDK: `make bench-overlay` builds one where DPDK is.
fn with_dpdk() -> Result<PathBuf, PeerError> {
    let own = sibling("butterflyd")?;
    let target = own.ancestors().nth(2).unwrap_or(Path::new("."));
    let program = target.join("dpdk/release/butterflyd");
    let said = Command::new(&program).arg("--dpdk-help").output();
    let has = said.is_ok_and(|said| said.stdout.starts_with(b"This daemon has DPDK"));
    has.then_some(program).ok_or_else(|| {
        PeerError(
            "no daemon was built with DPDK: libdpdk-dev is needed, see docs/install.md".to_owned(),
        )
    })
}

/// What a host has: guest 0, the way to guest 1, and the rules.
fn host_of(daemon: Process, dir: &Path, there: IpAddr) -> Result<Running, PeerError> {
    let [mac, far] = GUEST_MACS;
    let [ip, far_ip] = [0, 1].map(super::guest_ip);
    butterfly(
        dir,
        &format!("nic add --id nic0 --mac {mac} --vni 1 --ip {ip} --sg bench"),
    )?;
    butterfly(
        dir,
        &format!("binding add --vni 1 --mac {far} --ip {far_ip} --host {there}"),
    )?;
    add_rules(dir, crate::RULES)?;
    Ok(Running {
        sockets: vec![dir.join("qemu-vhost-nic0")],
        listens: Listens::Switch,
        forget: None,
        processes: vec![daemon],
    })
}

/// Our command with these words, which runs until it is dropped. What it prints goes to a file of
/// `dir`.
pub fn watcher(dir: &Path, line: &str) -> Result<Process, PeerError> {
    let mut command = Process::command(sibling("butterfly")?);
    command.args(["-e", &api(dir)]).args(line.split(' '));
    Process::start(&mut command, &dir.join("watcher.log"))
}

/// Runs our command with these words.
pub fn butterfly(dir: &Path, line: &str) -> Result<String, PeerError> {
    run(Command::new(sibling("butterfly")?)
        .args(["-e", &api(dir)])
        .args(line.split(' ')))
}

/// So many rules of one command: what it is told with them fits into a command line.
const AT_ONCE: usize = 500;

/// So many rules of the group.
pub fn add_rules(dir: &Path, rules: u16) -> Result<(), PeerError> {
    let rule = |protocol: &str, from: u16, to: u16| {
        let ports = format!("--port-start {from} --port-end {to}");
        format!("sg rule add bench --ip-proto {protocol} {ports} --cidr 10.0.0.0/24")
    };
    let (first, last) = (
        crate::TRAFFIC_PORT,
        crate::TRAFFIC_PORT + crate::TRAFFIC_PORTS - 1,
    );
    let other = (2..rules).map(|number| crate::FIRST_RULE_PORT + number);
    let other = other.map(|port| rule("tcp", port, port));
    let lines: Vec<String> = other
        .chain([rule("tcp", first, last), rule("udp", first, last)])
        .collect();
    for lines in lines.chunks(AT_ONCE) {
        butterfly(dir, &lines.join(" + "))?;
    }
    Ok(())
}

fn api(dir: &Path) -> String {
    format!("unix:{}", dir.join("api.sock").display())
}

/// A program of this build, beside the benchmark's own.
pub fn sibling(name: &str) -> Result<PathBuf, PeerError> {
    let own = std::env::current_exe().map_err(|error| PeerError(format!("own path: {error}")))?;
    let path = own.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(PeerError(format!("{} is not built", path.display())))
    }
}
