//! Client mode: QEMU listens, the daemon connects, and connects again at once whoever of the two
//! was away. The guest stays the same where it was not QEMU that went, and its network is there
//! again without anybody's help.

use butterfly_tests::Daemon;
use butterfly_tests::lab::{check, pings, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use std::path::PathBuf;
use testkit::image::{Image, repository};
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

const GUEST_MAC: &str = "52:54:00:00:00:0a";
const HOST_MAC: &str = "52:54:00:00:00:40";
const HOST: &str = "10.0.0.40";
const HOST6: &str = "fd00::40";

fn main() {
    run_trials::<Lab>(
        &[],
        &trials![
            the_daemon_goes_and_returns,
            the_nic_goes_and_returns,
            the_link_goes_down_and_up,
            qemu_goes_and_returns,
        ],
    );
}

/// A guest whose QEMU listens, and a namespace that serves downloads.
struct Lab {
    daemon: Daemon,
    guest: Guest,
    host: Namespace,
    _server: Process,
}

impl Stage for Lab {
    /// QEMU is there first: it waits for the switch.
    fn start(options: &[&str]) -> Result<Self> {
        let image = Image::ready()?;
        let daemon = Daemon::start(options)?;
        let wire = Wire::VhostUserServer(path(&daemon));
        let machine = Machine::named("listens").with(Nic::new(wire, GUEST_MAC));
        let guest = std::thread::scope(|scope| {
            let guest = scope.spawn(|| Guest::start(&image, &machine));
            let listening = wait_for("QEMU to listen", PATIENCE, || {
                Ok((path(&daemon).exists() || guest.is_finished()).then_some(()))
            });
            let added = listening.and_then(|()| add(&daemon));
            let guest = guest
                .join()
                .map_err(|_| "the guest's thread panicked".to_owned())?;
            added.and(guest)
        });
        let guest = guest.map_err(|e| format!("{e}\n{}", daemon.dump()))?;
        let host = Namespace::new()?;
        host.adopt("bf-client", HOST_MAC, &["10.0.0.40/24", "fd00::40/64"])?;
        let tool = repository().join("target/guest/root/bin/guest");
        let server = host.start("server", &format!("{} tcp-serve 80", tool.display()))?;
        wait_for("a server to listen", PATIENCE, || {
            Ok(server.log().contains("listening").then_some(()))
        })?;
        Ok(Self {
            daemon,
            guest,
            host,
            _server: server,
        })
    }

    /// Everything is there and talks.
    fn reset(&mut self) -> Result<()> {
        self.configure()?;
        self.talks()
    }

    fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    fn dump(&self) -> String {
        self.daemon.dump()
    }
}

impl Lab {
    /// The guest's addresses, after each of its boots.
    fn configure(&self) -> Result<()> {
        self.guest
            .ok("ip addr flush dev eth0; ip addr add 10.0.0.1/24 dev eth0; \
                 ip addr add fd00::1/64 dev eth0")
            .map(drop)
    }

    /// Small and large frames in both directions.
    fn talks(&self) -> Result<()> {
        for to in [HOST, HOST6] {
            soon(&self.guest, &format!("ping -c 1 -W 1 {to} >/dev/null"))?;
            check(pings(&self.guest, to)?, &format!("{to} answers"))?;
            self.guest
                .ok(&format!("guest tcp-get {to} 80 5000000 20"))?;
        }
        self.host.ok("ping -c 2 -i 0.2 -W 2 10.0.0.1").map(drop)
    }
}

/// Killed in the middle of a download; another one listens at the same path. Then its guest
/// reboots.
fn qemu_goes_and_returns(lab: &mut Lab) -> Result<()> {
    lab.guest.ok(&format!(
        "guest tcp-get {HOST} 80 0 60 >/dev/null 2>&1 </dev/null &"
    ))?;
    lab.guest.kill_and_restart()?;
    lab.reset()?;
    lab.guest.reboot()?;
    lab.reset()
}

/// Its TAP devices go with it; the guest has only its QEMU's word that there is a network.
fn the_daemon_goes_and_returns(lab: &mut Lab) -> Result<()> {
    for _ in 0..2 {
        lab.daemon.kill_and_restart()?;
        add(&lab.daemon)?;
        lab.host
            .adopt("bf-client", HOST_MAC, &["10.0.0.40/24", "fd00::40/64"])?;
        lab.talks()?;
    }
    Ok(())
}

fn the_nic_goes_and_returns(lab: &mut Lab) -> Result<()> {
    lab.daemon.cli("nic del guest")?;
    check(
        !pings(&lab.guest, HOST)?,
        "there is no network without a NIC",
    )?;
    add(&lab.daemon)?;
    lab.talks()
}

/// QEMU 7.2 does not ask what state the link is in: the daemon hangs up, which QEMU shows its guest
/// as a link that is down.
fn the_link_goes_down_and_up(lab: &mut Lab) -> Result<()> {
    let link = |is: &str| {
        wait_for(&format!("a carrier of {is}"), PATIENCE, || {
            let carrier = lab.guest.ok("cat /sys/class/net/eth0/carrier")?;
            Ok((carrier.trim() == is).then_some(()))
        })
    };
    link("1")?;
    for _ in 0..2 {
        lab.daemon.cli("nic update guest --link down")?;
        link("0")?;
        check(!pings(&lab.guest, HOST)?, "nothing passes")?;
        lab.daemon.cli("nic update guest --link up")?;
        link("1")?;
        lab.talks()?;
    }
    Ok(())
}

fn add(daemon: &Daemon) -> Result<()> {
    let path = path(daemon);
    let path = path.display();
    daemon.cli("sg rule add open --ip-proto all")?;
    daemon.cli(&format!(
        "nic add --id guest --mac {GUEST_MAC} --vni 1 --ip 10.0.0.1 fd00::1 --sg open --client \
         --path {path}"
    ))?;
    daemon
        .cli(&format!(
            "nic add --id host --mac {HOST_MAC} --vni 1 --ip {HOST} {HOST6} --sg open --type tap \
             --path bf-client"
        ))
        .map(drop)
}

/// Where QEMU listens.
fn path(daemon: &Daemon) -> PathBuf {
    daemon.dir().join("vmm")
}
