//! What QEMU's machine can do beside sending frames: packed rings, several pairs of queues of which
//! some are off, memory plugged in and taken out while it runs, an MTU of its own, announcements,
//! segments of flows with ECN, reboots, a daemon that is killed. One guest with three NICs,
//! `split`, `packed` and `plain`, each in a network with a namespace; the switch has two workers,
//! each on a core of its own where there are two.

use butterfly_tests::Daemon;
use butterfly_tests::lab::{Download, check, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use testkit::image::{Image, repository};
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

const NICS: [&str; 3] = ["split", "packed", "plain"];

/// NIC `plain` has one pair of queues; the others have so many.
const PAIRS: u16 = 4;

/// What `plain` is told; the others keep 1500.
const MTU: u16 = 1400;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    run_trials::<Lab>(
        if cores > 1 {
            &["-u", "0,1"]
        } else {
            &["--workers", "2"]
        },
        &trials![
            the_guest_knows_its_mtu,
            each_ring_is_of_its_kind,
            queues_are_turned_on_and_off,
            who_was_moved_is_announced,
            segments_of_a_flow_with_ecn,
            the_guest_reboots_and_qemu_returns,
            the_daemon_is_killed_and_returns,
            nics_go_and_return_at_once,
            memory_is_plugged_in,
            memory_is_taken_out,
        ],
    );
}

struct Lab {
    daemon: Daemon,
    guest: Guest,
    /// One for each NIC, with what serves in it.
    hosts: Vec<(Namespace, Vec<Process>)>,
}

impl Stage for Lab {
    fn start(options: &[&str]) -> Result<Self> {
        let image = Image::ready()?;
        let daemon = Daemon::start(options)?;
        let mut machine = Machine::named("vmm");
        machine.memory_max_mib = Some(1024);
        for (index, name) in NICS.into_iter().enumerate() {
            add(&daemon, index)?;
            let mut nic = Nic::new(Wire::VhostUser(daemon.socket(name)), &mac(index));
            if name == "plain" {
                nic.mtu = Some(MTU);
                nic.announce = false;
            } else {
                nic.queue_pairs = PAIRS;
                nic.packed = name == "packed";
            }
            machine = machine.with(nic);
        }
        let guest =
            Guest::start(&image, &machine).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
        let mut hosts = Vec::new();
        for index in 0..NICS.len() {
            hosts.push(host(index)?);
        }
        Ok(Self {
            daemon,
            guest,
            hosts,
        })
    }

    /// All NICs talk.
    fn reset(&mut self) -> Result<()> {
        self.guest.quiet()?;
        for index in 0..NICS.len() {
            self.guest.ok(&format!(
                "ip addr flush dev eth{index}; ip link set eth{index} up; \
                 ip addr add 10.0.{index}.1/24 dev eth{index}; \
                 ip addr add fd0{index}::1/64 dev eth{index}"
            ))?;
        }
        self.guest.serve("guest udp-serve 53")?;
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
    /// Sends datagrams of many flows to the guest, who sends them back. All of them arrive on both
    /// sides.
    fn all_arrive(&self, index: usize) -> Result<()> {
        const PORTS: u64 = 16;
        const EACH: u64 = 5;
        let (host, _) = &self.hosts[index];
        // What comes late has no socket any more, and is counted beside the others.
        let arrived = "awk '/^Udp: [0-9]/ { print $2 + $3 }' /proc/net/snmp";
        let number = |text: String| {
            text.trim()
                .parse::<u64>()
                .map_err(|_| format!("{text:?} is no number"))
        };
        let both =
            || Ok::<_, String>([number(self.guest.ok(arrived)?)?, number(host.ok(arrived)?)?]);
        let before = both()?;
        let tool = tool();
        let last = 2000 + PORTS - 1;
        host.ok(&format!(
            "for p in $(seq 2000 {last}); do {tool} udp-ping 10.0.{index}.1 53 {EACH} 100 $p; \
             done; true"
        ))?;
        let mut now = before;
        wait_for("every datagram and every answer", PATIENCE, || {
            now = both()?;
            let all = now
                .iter()
                .zip(&before)
                .all(|(now, before)| now - before == PORTS * EACH);
            Ok(all.then_some(()))
        })
        .map_err(|e| {
            format!(
                "{e}: {} were sent, guest and host counted {now:?} after {before:?}",
                PORTS * EACH
            )
        })
    }

    /// Small frames and large ones, in both directions.
    fn talks(&self) -> Result<()> {
        for (index, name) in NICS.into_iter().enumerate() {
            let of = |e| format!("{name}: {e}");
            soon(
                &self.guest,
                &format!("ping -c 1 -W 1 10.0.{index}.40 >/dev/null"),
            )
            .map_err(of)?;
            for to in [format!("10.0.{index}.40"), format!("fd0{index}::40")] {
                let get = format!("ping -c 2 -i 0.2 -W 2 {to} && guest tcp-get {to} 80 2000000 30");
                self.guest.ok(&get).map_err(of)?;
                let put = format!("guest tcp-put {to} 81 2000000 30");
                self.guest.ok(&put).map_err(of)?;
            }
        }
        Ok(())
    }
}

fn the_guest_knows_its_mtu(lab: &mut Lab) -> Result<()> {
    for (index, mtu) in [1500, 1500, MTU].into_iter().enumerate() {
        let said = lab
            .guest
            .ok(&format!("cat /sys/class/net/eth{index}/mtu"))?;
        check(
            said.trim() == mtu.to_string(),
            &format!("eth{index} has {mtu} and not {said}"),
        )?;
    }
    let told = "up nic=\"plain\" features=0x";
    let log = lab.daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains(told))
        .unwrap_or_default();
    check(
        line.ends_with("mtu=1400"),
        &format!("the switch knows it too: {line}"),
    )
}

/// What the guest allocates then is in the new memory first: it is that of the higher addresses.
fn memory_is_plugged_in(lab: &mut Lab) -> Result<()> {
    let small = total(&lab.guest)?;
    plug(&lab.guest, "kernel")?;
    check(total(&lab.guest)? != small, "the guest has more memory")?;
    lab.talks()
}

/// With several pairs of queues QEMU tells of a region once a pair, when it comes and when it goes.
fn memory_is_taken_out(lab: &mut Lab) -> Result<()> {
    let (guest, before) = (&lab.guest, blocks(&lab.guest)?);
    for _ in 0..2 {
        plug(guest, "movable")?;
        lab.talks()?;
        guest.monitor("device_del dimm-movable")?;
        wait_for("the guest to give memory back", PATIENCE, || {
            let is_there = guest
                .monitor("info memory-devices")?
                .contains("dimm-movable");
            Ok((blocks(guest)? == before && !is_there).then_some(()))
        })?;
        guest.monitor("object_del movable")?;
        lab.talks()?;
    }
    Ok(())
}

/// 128 MiB more, for the kernel's own data too (`kernel`) or for what it can move elsewhere
/// (`movable`).
fn plug(guest: &Guest, kind: &str) -> Result<()> {
    let before = blocks(guest)?;
    guest.monitor(&format!(
        "object_add memory-backend-memfd,id={kind},size=128M,share=on"
    ))?;
    guest.monitor(&format!("device_add pc-dimm,id=dimm-{kind},memdev={kind}"))?;
    wait_for("the guest to see new memory", PATIENCE, || {
        Ok(Some(()).filter(|()| blocks(guest).is_ok_and(|now| now != before)))
    })?;
    guest
        .ok(&format!(
            "for m in /sys/devices/system/memory/memory[0-9]*/state; do grep -q offline $m && \
             echo online_{kind} >$m; done; true"
        ))
        .map(drop)
}

/// How many pieces of memory the guest knows.
fn blocks(guest: &Guest) -> Result<String> {
    guest.ok("ls -d /sys/devices/system/memory/memory[0-9]* | wc -l")
}

fn total(guest: &Guest) -> Result<String> {
    guest.ok("grep MemTotal /proc/meminfo")
}

/// VIRTIO_F_RING_PACKED (virtio 1.2, section 6).
const RING_PACKED: u64 = 1 << 34;

fn each_ring_is_of_its_kind(lab: &mut Lab) -> Result<()> {
    for (index, name) in NICS.into_iter().enumerate() {
        let taken = lab.daemon.features(name)?;
        check(
            (taken & RING_PACKED != 0) == (name == "packed"),
            &format!("{name} has taken {taken:#x}"),
        )?;
        // And so the daemon shows all of them, each with the worker that has it.
        let count = if name == "plain" { 1 } else { PAIRS };
        if count > 1 {
            lab.guest.ok(&format!("guest queues eth{index} {count}"))?;
        }
        let mut shown = serde_json::Value::Null;
        wait_for("every pair of queues to be shown", PATIENCE, || {
            shown = lab.daemon.json(&format!("nic show {name}"))?;
            let pairs = shown[0]["queues"]["pairs"].as_array();
            let of_kind = |ring: &serde_json::Value| {
                ring["packed"] == (name == "packed") && ring["size"] == 256
            };
            let all = pairs.is_some_and(|pairs| {
                let of = |worker: u64| pairs.iter().any(|pair| pair["worker"] == worker);
                pairs.len() == usize::from(count)
                    && pairs
                        .iter()
                        .all(|pair| of_kind(&pair["transmitq"]) && of_kind(&pair["receiveq"]))
                    && (count == 1 || of(0) && of(1))
            });
            Ok(all.then_some(()))
        })
        .map_err(|e| format!("{e} for {name}: {}", shown[0]["queues"]))?;
    }
    Ok(())
}

/// Queues are turned on and off with `ethtool -L` under a download that does not end. After each
/// change, and with nothing else on the way, every datagram of many flows arrives, and so does
/// every answer: nothing goes to a queue that is off.
fn queues_are_turned_on_and_off(lab: &mut Lab) -> Result<()> {
    for (index, name) in NICS.into_iter().enumerate().take(2) {
        let of = |pairs: u16| move |e| format!("{name} with {pairs} pairs: {e}");
        // QEMU does not wait for the switch: what is on its way to a queue that goes off is lost.
        let turn = |pairs: u16| {
            lab.guest.ok(&format!("guest queues eth{index} {pairs}"))?;
            wait_for("the queue pairs to be those", PATIENCE, || {
                let seen = lab.daemon.cli(&format!("nic show {name}"))?;
                // One that was turned off is there as long as the guest may have left something in
                // it.
                let on = seen.matches("vhost-user up").count();
                Ok((on == usize::from(pairs)).then_some(()))
            })
        };
        let download = Download::start(&lab.guest, &format!("10.0.{index}.40"), 80)?;
        for pairs in [PAIRS, 1, 3, 2, PAIRS, 1, PAIRS] {
            turn(pairs).map_err(of(pairs))?;
            download.goes_on().map_err(of(pairs))?;
        }
        lab.guest.quiet()?;
        lab.guest.serve("guest udp-serve 53")?;
        for pairs in [1, PAIRS, 2] {
            turn(pairs).map_err(of(pairs))?;
            lab.all_arrive(index).map_err(of(pairs))?;
        }
    }
    Ok(())
}

/// After a migration QEMU tells the guest to say where it is, or the switch where the guest cannot
/// be told.
fn who_was_moved_is_announced(lab: &mut Lab) -> Result<()> {
    let mut heard = Vec::new();
    for (host, _) in &lab.hosts {
        let tcpdump = host.start("tcpdump", "tcpdump -l -n -e -i eth0 arp or rarp")?;
        wait_for("tcpdump to listen", PATIENCE, || {
            Ok(tcpdump.log().contains("listening on").then_some(()))
        })?;
        heard.push(tcpdump);
    }
    lab.guest.monitor("announce_self")?;
    for (index, (name, tcpdump)) in NICS.into_iter().zip(&heard).enumerate() {
        let mac = mac(index);
        let said = match name {
            "plain" => format!("Reverse Request who-is {mac}"), // without GUEST_ANNOUNCE
            _ => format!("10.0.{index}.1"),
        };
        let what = format!("'{said}' from {name}");
        wait_for(&what, PATIENCE, || {
            let log = tcpdump.log();
            let mut lines = log
                .lines()
                .filter(|line| line.contains(&format!("{mac} > ff:ff:ff:ff:ff:ff")));
            Ok(lines.any(|line| line.contains(&said)).then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", tcpdump.log()))?;
    }
    Ok(())
}

/// After a loss a sender says in its next segments that it has slowed down (CWR, RFC 3168); these
/// are handed over whole, 64 KiB long, in both directions.
fn segments_of_a_flow_with_ecn(lab: &mut Lab) -> Result<()> {
    let (host, _) = &lab.hosts[0];
    let trace = lab.daemon.dir().join("ecn.pcap");
    let trace = trace.display();
    host.ok("sysctl -q -w net.ipv4.tcp_ecn=1")?;
    lab.guest
        .ok("sysctl -w net.ipv4.tcp_ecn=1; rm -f /tmp/progress")?;
    lab.guest.serve("guest tcp-serve 82")?;
    lab.daemon.cli(&format!(
        "nic update split --packet-trace true --trace-path {trace}"
    ))?;
    let progress = lab.daemon.dir().join("progress");
    let upload = host.start(
        "upload",
        &format!("{} tcp-get 10.0.0.1 82 0 60 {}", tool(), progress.display()),
    )?;
    let uploaded = || {
        let text = std::fs::read_to_string(&progress).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let download = Download::start(&lab.guest, "10.0.0.40", 80)?;
    wait_for("an upload to begin", PATIENCE, || {
        Ok((uploaded() > 0).then_some(()))
    })?;
    // Who has just slowed down may send short segments for a while: a long one comes sooner or
    // later.
    let mut found = Ok(());
    for _ in 0..8 {
        lab.daemon.cli("sg del open")?;
        download.stops()?;
        let before = uploaded();
        lab.daemon.cli("sg rule add open --ip-proto all")?;
        download.goes_on()?;
        wait_for("an upload to go on", PATIENCE, || {
            Ok((uploaded() > before).then_some(()))
        })?;
        found = slowed_down(&trace.to_string());
        if found.is_ok() {
            break;
        }
    }
    lab.daemon.cli("nic update split --packet-trace false")?;
    drop(upload);
    found
}

/// A trace has segments with CWR (0x80 of TCP's flags) from both sides, and one at least that is to
/// be cut.
fn slowed_down(trace: &str) -> Result<()> {
    for filter in ["src host 10.0.0.1", "src host 10.0.0.40", "greater 1600"] {
        let filter = format!("{filter} and tcp[13] & 0x80 != 0 and tcp[13] & 0x02 == 0");
        // The trace is still being written: its last frame may not be whole.
        let output = process::output(&["tcpdump", "-n", "-r", trace, &filter])?;
        check(
            !output.stdout.is_empty(),
            &format!("the trace has '{filter}'"),
        )?;
    }
    Ok(())
}

fn the_guest_reboots_and_qemu_returns(lab: &mut Lab) -> Result<()> {
    lab.guest.reboot()?;
    lab.reset()?;
    for (index, _) in NICS.iter().enumerate().take(2) {
        lab.guest.ok(&format!("guest queues eth{index} {PAIRS}"))?;
    }
    lab.talks()?;
    // The next kernel is told that there is no more than what QEMU begins with.
    lab.guest.kill_and_restart()?;
    lab.reset()
}

/// In the middle of downloads, which fill rings of either kind; the guest knows nothing of it but
/// that its link was down. Where a packed ring was no VMM can tell: see
/// crates/io/src/vhost/resume.rs.
fn the_daemon_is_killed_and_returns(lab: &mut Lab) -> Result<()> {
    for _ in 0..3 {
        let downloads = (0..NICS.len())
            .map(|index| Download::start(&lab.guest, &format!("10.0.{index}.40"), 80));
        let downloads = downloads.collect::<Result<Vec<_>>>()?;
        lab.daemon.kill_and_restart()?;
        for (index, (host, _)) in lab.hosts.iter().enumerate() {
            add(&lab.daemon, index)?;
            adopt(host, index)?;
        }
        drop(downloads);
        lab.talks()?;
    }
    Ok(())
}

/// Again and again, faster than QEMU connects, with several pairs of queues of either kind.
fn nics_go_and_return_at_once(lab: &mut Lab) -> Result<()> {
    for round in 0..3 {
        for again in 0..=round {
            for (index, name) in NICS.iter().enumerate() {
                lab.daemon.cli(&format!("nic del {name}"))?;
                add_guest(&lab.daemon, index).map_err(|e| format!("{round}.{again}: {e}"))?;
            }
        }
        for (index, name) in NICS.iter().enumerate() {
            soon(
                &lab.guest,
                &format!("ping -c 1 -W 1 10.0.{index}.40 >/dev/null"),
            )
            .map_err(|e| format!("round {round}, {name}: {e}"))?;
        }
    }
    lab.talks()
}

/// The guest's end of a network.
fn add_guest(daemon: &Daemon, index: usize) -> Result<()> {
    let (name, vni) = (NICS[index], index + 1);
    let address = format!("--ip 10.0.{index}.1 fd0{index}::1");
    let nic = format!(
        "nic add --id {name} --mac {} --vni {vni} {address} --sg open",
        mac(index)
    );
    daemon.cli(&nic).map(drop)
}

fn add(daemon: &Daemon, index: usize) -> Result<()> {
    let vni = index + 1;
    daemon.cli("sg rule add open --ip-proto all")?;
    add_guest(daemon, index)?;
    daemon
        .cli(&format!(
            "nic add --id host{index} --mac {} --vni {vni} --ip 10.0.{index}.40 fd0{index}::40 \
             --sg open --type tap --path bf-vmm{index}",
            host_mac(index)
        ))
        .map(drop)
}

/// The namespace of a NIC's network.
fn host(index: usize) -> Result<(Namespace, Vec<Process>)> {
    let host = Namespace::new()?;
    adopt(&host, index)?;
    let tool = tool();
    let mut servers = Vec::new();
    for (name, program) in [("source", "tcp-serve 80"), ("sink", "tcp-sink 81")] {
        let server = host.start(name, &format!("{tool} {program}"))?;
        wait_for("a server to listen", PATIENCE, || {
            Ok(server.log().contains("listening").then_some(()))
        })?;
        servers.push(server);
    }
    Ok((host, servers))
}

/// The TAP device of a NIC's network, which comes and goes with the daemon.
fn adopt(host: &Namespace, index: usize) -> Result<()> {
    let addresses = [format!("10.0.{index}.40/24"), format!("fd0{index}::40/64")];
    host.adopt(
        &format!("bf-vmm{index}"),
        &host_mac(index),
        &addresses.each_ref().map(String::as_str),
    )
}

fn mac(index: usize) -> String {
    format!("52:54:00:00:00:1{index}")
}

fn host_mac(index: usize) -> String {
    format!("52:54:00:00:00:4{index}")
}

/// What runs in guests, for namespaces.
fn tool() -> String {
    repository()
        .join("target/guest/root/bin/guest")
        .display()
        .to_string()
}
