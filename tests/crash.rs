//! A daemon that is killed under a guest of QEMU, with a store and a keeper: QEMU keeps its
//! connections, TAP devices stay where they are, and so does TCP, in a group that takes nothing
//! amid a connection. One guest with two NICs, `split` and `packed`, each in a network with a
//! namespace.

use std::path::Path;
use std::time::Instant;

use butterfly_tests::lab::{Download, check, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use butterfly_tests::{Daemon, program};
use testkit::image::{Image, repository};
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

const NICS: [&str; 2] = ["split", "packed"];
const PAIRS: u16 = 2;
/// How often it is killed in a row.
const KILLS: usize = 10;

fn main() {
    run_trials::<Lab>(
        &[],
        &trials![
            the_daemon_is_killed_under_downloads,
            the_daemon_is_stopped_under_downloads,
            what_is_forbidden_stays_so,
        ],
    );
}

struct Lab {
    daemon: Daemon,
    guest: Guest,
    _hosts: Vec<(Namespace, Process)>,
    /// Outlives the daemon, and not the test.
    _keeper: Process,
    _folder: tempfile::TempDir,
}

impl Stage for Lab {
    fn start(_: &[&str]) -> Result<Self> {
        let image = Image::ready()?;
        let folder = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let socket = folder.path().join("keeper");
        let keeper = keeper(&socket, &folder.path().join("log"))?;
        let socket = socket.display().to_string();
        let daemon = Daemon::start(&["--store", "{dir}/state", "--keeper", &socket])?;
        // NICs that allow each other everything have no connections.
        for protocol in ["tcp", "icmp"] {
            daemon.cli(&format!("sg rule add some --ip-proto {protocol}"))?;
        }
        let mut machine = Machine::named("crash");
        for (index, name) in NICS.into_iter().enumerate() {
            let address = format!("--ip 10.0.{index}.1 --vni {}", index + 1);
            let mac = format!("52:54:00:00:00:1{index}");
            daemon.cli(&format!(
                "nic add --id {name} --mac {mac} {address} --sg some"
            ))?;
            let address = format!("--ip 10.0.{index}.40 --vni {}", index + 1);
            daemon.cli(&format!(
                "nic add --id host{index} --mac {} {address} --sg some --type tap --path \
                 bf-crash{index}",
                host_mac(index)
            ))?;
            let mut nic = Nic::new(Wire::VhostUser(daemon.socket(name)), &mac);
            nic.queue_pairs = PAIRS;
            nic.packed = name == "packed";
            machine = machine.with(nic);
        }
        let guest =
            Guest::start(&image, &machine).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
        let hosts = (0..NICS.len()).map(host).collect::<Result<_>>()?;
        Ok(Self {
            daemon,
            guest,
            _hosts: hosts,
            _keeper: keeper,
            _folder: folder,
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.guest.quiet()?;
        for (index, name) in NICS.into_iter().enumerate() {
            self.guest.ok(&format!(
                "ip addr flush dev eth{index}; ip link set eth{index} up; \
                 ip addr add 10.0.{index}.1/24 dev eth{index}"
            ))?;
            let ping = format!("ping -c 1 -W 1 10.0.{index}.40 >/dev/null");
            soon(&self.guest, &ping).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    fn dump(&self) -> String {
        self.daemon.dump()
    }
}

/// Both sessions of VMMs have gone on, and there were no others.
fn sessions_went_on(lab: &Lab, what: &str) -> Result<()> {
    let log = lab.daemon.log();
    let count = |text: &str| log.matches(text).count();
    let said = [
        count("of the process before goes on"),
        count("a VMM has connected"),
        count("the VMM has disconnected"),
    ];
    let expected = [NICS.len(), 0, 0];
    check(said == expected, &format!("{what}: {said:?}\n{log}"))
}

/// Connections of TCP that the daemon tracks.
fn connections(lab: &Lab) -> Result<usize> {
    let flows = lab
        .daemon
        .json("flows list --protocol tcp --state established")?;
    Ok(flows.as_array().map_or(0, Vec::len))
}

fn the_daemon_is_killed_under_downloads(lab: &mut Lab) -> Result<()> {
    let Lab { daemon, guest, .. } = lab;
    let downloads = downloads(guest)?;
    let mut took = Vec::new();
    for kill in 0..KILLS {
        let start = Instant::now();
        daemon.kill_and_restart()?;
        took.push(start.elapsed());
        for (download, name) in downloads.iter().zip(NICS) {
            let on = download.goes_on();
            on.map_err(|e| format!("kill {kill}, {name}: {e}"))?;
        }
    }
    took.sort();
    println!(
        "from a kill until the next daemon answers: {} ms (median of {KILLS}), {} ms at the most",
        took[KILLS / 2].as_millis(),
        took[KILLS - 1].as_millis()
    );
    drop(downloads);
    sessions_went_on(lab, "killed")?;
    let tracked = connections(lab)?;
    check(
        tracked >= NICS.len(),
        &format!("{tracked} connections are tracked"),
    )
}

fn the_daemon_is_stopped_under_downloads(lab: &mut Lab) -> Result<()> {
    let Lab { daemon, guest, .. } = lab;
    let downloads = downloads(guest)?;
    for stop in 0..3 {
        daemon.stop_and_restart()?;
        for (download, name) in downloads.iter().zip(NICS) {
            let on = download.goes_on();
            on.map_err(|e| format!("stop {stop}, {name}: {e}"))?;
        }
    }
    drop(downloads);
    sessions_went_on(lab, "stopped")
}

/// A rule is taken away, and the daemon killed: what it let pass does not go on.
fn what_is_forbidden_stays_so(lab: &mut Lab) -> Result<()> {
    {
        let Lab { daemon, guest, .. } = lab;
        let downloads = downloads(guest)?;
        daemon.cli("sg rule del some --ip-proto tcp")?;
        daemon.kill_and_restart()?;
        for download in &downloads {
            download.stops()?;
        }
    }
    lab.daemon.cli("sg rule add some --ip-proto tcp").map(drop)
}

fn downloads(guest: &Guest) -> Result<Vec<Download<'_>>> {
    let start = |index| Download::start(guest, &format!("10.0.{index}.40"), 80);
    (0..NICS.len()).map(start).collect()
}

/// A keeper on a socket, which runs until it is dropped.
fn keeper(socket: &Path, log: &Path) -> Result<Process> {
    let path = socket.display().to_string();
    let words = [&program("butterflyd"), "--no-syslog", "--as-keeper", &path];
    let keeper = Process::start("keeper", &words, log)?;
    wait_for("the keeper to listen", PATIENCE, || {
        Ok(socket.exists().then_some(()))
    })?;
    Ok(keeper)
}

/// The namespace of a NIC's network, and what serves there.
fn host(index: usize) -> Result<(Namespace, Process)> {
    let host = Namespace::new()?;
    let address = format!("10.0.{index}.40/24");
    host.adopt(&format!("bf-crash{index}"), &host_mac(index), &[&address])?;
    let tool = repository().join("target/guest/root/bin/guest");
    let server = host.start("source", &format!("{} tcp-serve 80", tool.display()))?;
    wait_for("a server to listen", PATIENCE, || {
        Ok(server.log().contains("listening").then_some(()))
    })?;
    Ok((host, server))
}

fn host_mac(index: usize) -> String {
    format!("52:54:00:00:00:4{index}")
}
