//! NICs of type vm-tap: a TAP device that a virtual machine monitor opens by its name, in the place
//! of a container's pair.

use butterfly_tests::hosts::{serve, tool};
use butterfly_tests::lab::check;
use butterfly_tests::trials::run_each;
use butterfly_tests::{Daemon, trials};
use serde_json::Value;
use std::path::Path;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_each(trials![
        a_guest_and_a_container_talk_under_rules_and_past_the_worker,
        the_lines_for_qemu_open_it,
        the_device_stays_while_daemons_come_and_go,
        who_may_open_it_is_said_and_can_be_changed,
        nobody_takes_a_queue_while_it_is_made,
        what_cannot_be_is_refused_and_leaves_nothing,
    ])
}

const VNI: u32 = 7;
const DEVICE: &str = "bf-m1";
const MAC: &str = "52:54:00:00:02:01";

/// Opens a TAP device by its name, says `open`, and holds it.
const HOLD: &str = r#"
import fcntl, os, struct, sys, time
queues = 0x0100 if len(sys.argv) > 2 else 0  # IFF_MULTI_QUEUE
tun = os.open("/dev/net/tun", os.O_RDWR)
flags = 0x0002 | 0x1000 | 0x4000 | queues  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", sys.argv[1].encode(), flags))  # TUNSETIFF
print("open", flush=True)
time.sleep(1000)
"#;

/// Asks for a queue of the device, and of each other one that comes, without end, and holds what it
/// gets.
const TAKE: &str = r#"
import fcntl, os, struct, sys, threading
flags = 0x0002 | 0x0100 | 0x1000 | 0x4000  # IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_VNET_HDR
others = set(os.listdir("/sys/class/net"))
held = []
def take(names):
    while True:
        for name in names():
            tun = os.open("/dev/net/tun", os.O_RDWR)
            try:
                fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", name.encode(), flags))
                held.append(tun)
            except OSError:
                os.close(tun)
new = lambda: [name for name in os.listdir("/sys/class/net") if name not in others]
for names in [lambda: [sys.argv[1]], lambda: [sys.argv[1]], new]:
    threading.Thread(target=take, args=[names]).start()
print("open", flush=True)
"#;

/// `nic add` of the machine, 10.2.0.1, in its group `m1`.
fn add(daemon: &Daemon, more: &str) -> Result<String> {
    daemon.cli(&format!(
        "sg add m1 + nic add --id m1 --mac {MAC} --vni {VNI} --ip 10.2.0.1 fd02::1 --sg m1 \
         --type vm-tap --path {DEVICE} {more}"
    ))
}

fn state(daemon: &Daemon) -> Result<String> {
    let status = daemon.json("nic details m1")?[0].clone();
    Ok(status["state"].as_str().unwrap_or_default().to_owned())
}

fn becomes(daemon: &Daemon, what: &str) -> Result<()> {
    wait_for(&format!("the NIC to be {what}"), PATIENCE, || {
        Ok(state(daemon)?.ends_with(what).then_some(()))
    })
}

/// The device as `ip` shows it.
fn device() -> Result<Value> {
    let text = process::run(&["ip", "-d", "-j", "link", "show", "dev", DEVICE])?;
    let all: Value = serde_json::from_str(&text).map_err(|e| format!("ip printed {text}: {e}"))?;
    Ok(all[0].clone())
}

/// One is there if a trial has failed, since its daemon was killed.
fn clear() {
    let _ = process::run(&["ip", "link", "del", DEVICE]);
}

/// A program that has the device open.
fn hold(log: &Path, more: &[&str]) -> Result<Process> {
    opener(&[&["python3", "-c", HOLD, DEVICE], more].concat(), log)
}

/// A program that says `open` when it has begun.
fn opener(words: &[&str], log: &Path) -> Result<Process> {
    let process = Process::start("hold", words, log)?;
    wait_for("the device to be opened", PATIENCE, || {
        let said = process.log();
        match said.contains("Error") {
            true => Err(said),
            false => Ok(said.contains("open").then_some(())),
        }
    })?;
    Ok(process)
}

fn a_guest_and_a_container_talk_under_rules_and_past_the_worker() -> Result<()> {
    clear();
    let container = Namespace::new()?;
    let daemon = Daemon::start(&[])?;
    add(&daemon, "--mtu 1400")?;
    daemon.cli(&format!(
        "sg add c1 + nic add --id c1 --mac 52:54:00:00:02:02 --vni {VNI} --ip 10.2.0.2/24 \
         fd02::2/64 --sg c1 --type veth --path bf-c1 --netns {}",
        container.pid()
    ))?;
    assert!(state(&daemon)?.ends_with("DOWN"), "nobody has it open");
    assert_eq!(device()?["mtu"], 1400);
    // What is for nobody is dropped by the switch, and counted.
    daemon.cli("sg rule add m1 --ip-proto icmp --sg-members c1")?;
    container.ok(&format!("ip neigh replace 10.2.0.1 lladdr {MAC} dev eth0"))?;
    check(
        !container.succeeds("ping -q -c 1 -W 1 10.2.0.1")?,
        "nobody answers",
    )?;
    check(
        daemon.drops("m1", "INGRESS", &["target_down"])? > 0,
        "and it is counted",
    )?;
    let how = daemon.cli("nic show m1 --how")?;
    for line in [
        "-netdev tap,id=net-m1,ifname=bf-m1,script=no,downscript=no,vhost=on",
        "-netdev tap,id=net-m1,ifname=bf-m1,script=no,downscript=no,vhost=off",
        "-device virtio-net-pci,netdev=net-m1,mac=52:54:00:00:02:01,host_mtu=1400",
        r#"{"iface_id": "eth0", "guest_mac": "52:54:00:00:02:01", "host_dev_name": "bf-m1"}"#,
    ] {
        check(how.contains(line), &format!("{line} in {how}"))?;
    }
    let image = Image::ready()?;
    let mut nic = Nic::new(Wire::HostTap(DEVICE.to_owned()), MAC);
    nic.mtu = Some(1400);
    let machine = Machine::named("m1").with(nic);
    let guest = Guest::start(&image, &machine).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
    becomes(&daemon, "UP")?;
    guest.ok(
        "ip addr add 10.2.0.1/24 dev eth0; ip addr add fd02::1/64 dev eth0; ip link set eth0 up",
    )?;
    let talk = talk(&daemon, &container, &guest);
    talk.map_err(|e| format!("{e}\n{}", daemon.dump()))?;
    // A machine that ends leaves its device, and another takes it up.
    let index = device()?["ifindex"].clone();
    drop(guest);
    becomes(&daemon, "DOWN")?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let holder = hold(&dir.path().join("log"), &[])?;
    becomes(&daemon, "UP")?;
    assert_eq!(device()?["ifindex"], index);
    // With the NIC it goes, whoever has it open.
    daemon.cli("nic del m1")?;
    wait_for("the device to go", PATIENCE, || {
        Ok(device().is_err().then_some(()))
    })?;
    drop(holder);
    Ok(())
}

fn talk(daemon: &Daemon, container: &Namespace, guest: &Guest) -> Result<()> {
    for to in ["10.2.0.1", "fd02::1"] {
        wait_for("the guest to answer", PATIENCE, || {
            let answers = container.succeeds(&format!("ping -q -c 1 -W 1 {to}"))?;
            Ok(answers.then_some(()))
        })?;
    }
    check(
        !guest.succeeds("ping -c 1 -W 1 10.2.0.2 >/dev/null")?,
        "nothing comes in at the container without a rule",
    )?;
    daemon
        .cli("sg rule add m1 --ip-proto tcp --port 80 + sg rule add c1 --ip-proto tcp --port 81")?;
    guest.serve("guest tcp-serve 80")?;
    let _sink = serve(container, "tcp-sink 81")?;
    let by_kernel = || -> Result<[u64; 2]> {
        // Who lists flows has all counted.
        daemon.cli("flows")?;
        let [m1, c1] = ["m1", "c1"].map(|nic| daemon.stat(nic, "egress_kernel_frames"));
        Ok([m1?, c1?])
    };
    for (to, from) in [("10.2.0.1", "10.2.0.2"), ("fd02::1", "fd02::2")] {
        // A connection may end before the daemon has come to hand it over.
        wait_for("the kernel to forward both ways", PATIENCE, || {
            let before = by_kernel()?;
            container.ok(&tool(&format!("tcp-get {to} 80 3000000 60")))?;
            guest.ok(&format!("guest tcp-put {from} 81 3000000 60"))?;
            let after = by_kernel()?;
            let forwarded = |nic: usize| after[nic] > before[nic] + 20;
            Ok((forwarded(0) && forwarded(1)).then_some(()))
        })?;
    }
    // Nobody's stack on the host has seen any of it, and another's MAC is refused.
    let link = device()?;
    assert_eq!(link["addr_info"].as_array().map_or(0, Vec::len), 0);
    let spoofed = || daemon.drops("m1", "EGRESS", &["mac_spoofed"]);
    let before = spoofed()?;
    guest.ok("ip link set eth0 down; ip link set eth0 address 52:54:00:00:02:66 up")?;
    check(
        !guest.succeeds("ping -c 1 -W 1 10.2.0.2 >/dev/null")?,
        "another MAC's frames do not pass",
    )?;
    check(spoofed()? > before, "and are counted")?;
    guest.ok(&format!(
        "ip link set eth0 down; ip link set eth0 address {MAC} up; \
         ip addr add fd02::1/64 dev eth0 2>/dev/null; true"
    ))?;
    container.ok("ping -q -c 1 -W 5 10.2.0.1")?;
    // What a rule let pass stops with the rule, also what the kernel forwards.
    let download = container.start("get", &tool("tcp-get 10.2.0.1 80 0 60"))?;
    let before = by_kernel()?;
    wait_for("the kernel to forward the download", PATIENCE, || {
        Ok((by_kernel()?[0] > before[0] + 20).then_some(()))
    })?;
    daemon.cli("sg rule del m1 --ip-proto tcp --port 80")?;
    let stopped = by_kernel()?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(by_kernel()?[0], stopped[0], "nothing passes any more");
    drop(download);
    Ok(())
}

/// The lines that `--how` prints, as they are printed: QEMU begins with them and opens the device.
fn the_lines_for_qemu_open_it() -> Result<()> {
    clear();
    let daemon = Daemon::start(&[])?;
    add(&daemon, "--mtu 1400")?;
    let how = daemon.cli("nic show m1 --how")?.replace("\\\n", "");
    let lines: Vec<&str> = how
        .lines()
        .filter(|line| line.starts_with("-netdev"))
        .collect();
    let by = ["vhost=on", "vhost=off"];
    assert_eq!(lines.len(), by.len(), "{how}");
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    for (line, vhost) in lines.into_iter().zip(by) {
        check(line.contains(vhost), line)?;
        if vhost == "vhost=on" && !Path::new("/dev/vhost-net").exists() {
            println!("there is no /dev/vhost-net here: the line with vhost=on was only read");
            continue;
        }
        let machine = "qemu-system-x86_64 -machine q35,accel=tcg -nodefaults -display none -S";
        let words: Vec<&str> = machine.split(' ').chain(line.split_whitespace()).collect();
        let mut qemu = Process::start("qemu", &words, &dir.path().join(vhost))?;
        let opened = wait_for("QEMU to open the device", PATIENCE, || match qemu.ended() {
            Some(_) => Err(qemu.log()),
            None => Ok(state(&daemon)?.ends_with("UP").then_some(())),
        });
        opened.map_err(|e| format!("{line}: {e}"))?;
        drop(qemu);
        becomes(&daemon, "DOWN")?;
    }
    Ok(())
}

fn the_device_stays_while_daemons_come_and_go() -> Result<()> {
    clear();
    let kept = ["--store", "{dir}/store", "--keeper", "{dir}/keeper"];
    let mut daemon = Daemon::start(&kept)?;
    add(&daemon, "")?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut holder = hold(&dir.path().join("log"), &[])?;
    becomes(&daemon, "UP")?;
    let before = device()?;
    daemon.kill_and_restart()?;
    becomes(&daemon, "UP")?;
    assert_eq!(device()?["ifindex"], before["ifindex"], "it was taken over");
    daemon.upgrade()?;
    assert_eq!(device()?["ifindex"], before["ifindex"]);
    becomes(&daemon, "UP")?;
    // Somebody removes it: it is made again, for whoever opens it then.
    process::run(&["ip", "link", "del", DEVICE])?;
    wait_for("another device", PATIENCE, || {
        let there = device().ok();
        Ok(there.filter(|there| there["ifindex"] != before["ifindex"]))
    })?;
    becomes(&daemon, "DOWN")?;
    check(holder.ended().is_none(), "who had it open runs on")?;
    let again = hold(&dir.path().join("again"), &[])?;
    becomes(&daemon, "UP")?;
    // A planned stop takes it away.
    daemon.stop()?;
    check(device().is_err(), "it goes with the daemon")?;
    drop(again);
    Ok(())
}

fn who_may_open_it_is_said_and_can_be_changed() -> Result<()> {
    clear();
    let daemon = Daemon::start(&[])?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let has = |name: &str| -> Result<String> {
        let path = format!("/sys/class/net/{DEVICE}/{name}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        Ok(text.trim().to_owned())
    };
    add(&daemon, "")?;
    assert_eq!([has("owner")?, has("group")?], ["0", "-1"]);
    let open_as = |uid: &str, log: &str| -> Result<bool> {
        let log = dir.path().join(log);
        let words = [
            "setpriv",
            "--reuid",
            uid,
            "--clear-groups",
            "python3",
            "-c",
            HOLD,
            DEVICE,
        ];
        let mut process = Process::start("open", &words, &log)?;
        wait_for("an answer", PATIENCE, || {
            let said = process.log();
            let opened = said.contains("open\n").then_some(true);
            Ok(opened.or(process.ended().map(|_| false)))
        })
    };
    let all_may = all_may_open()?;
    if all_may {
        check(!open_as("4711", "first")?, "it is root's")?;
    }
    let more = "--replace --tap-uid 4711 --tap-multi-queue";
    add(&daemon, more)?;
    assert_eq!([has("owner")?, has("group")?], ["4711", "-1"]);
    let flags = u32::from_str_radix(has("tun_flags")?.trim_start_matches("0x"), 16);
    check(
        flags.is_ok_and(|flags| flags & 0x100 != 0),
        "IFF_MULTI_QUEUE",
    )?;
    let details = daemon.cli("nic show m1")?;
    check(
        details.contains("tap-uid") && details.contains("4711"),
        &details,
    )?;
    check(
        daemon.cli("nic show m1 --how")?.contains(",queues=N"),
        "the lines ask for queues",
    )?;
    let first = hold(&dir.path().join("one"), &["queues"])?;
    let second = hold(&dir.path().join("two"), &["queues"])?;
    becomes(&daemon, "UP")?;
    drop(first);
    drop(second);
    becomes(&daemon, "DOWN")?;
    add(&daemon, "--replace --tap-gid 4712")?;
    assert_eq!([has("owner")?, has("group")?], ["-1", "4712"]);
    if all_may {
        check(!open_as("4711", "second")?, "it is that group's")?;
    } else {
        println!("/dev/net/tun is not open to all here: who may open the device was only read");
    }
    Ok(())
}

/// Whether TAP devices are kept from users by their owners alone, as is usual.
fn all_may_open() -> Result<bool> {
    let mode = process::run(&["stat", "-c", "%a", "/dev/net/tun"])?;
    Ok(mode.trim().ends_with('6'))
}

/// A queue would stay with whoever had it, and get a part of what is for the guest.
fn nobody_takes_a_queue_while_it_is_made() -> Result<()> {
    clear();
    if !all_may_open()? {
        println!("skipped: /dev/net/tun is not open to all here");
        return Ok(());
    }
    let daemon = Daemon::start(&[])?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    // Another one that root's PATH may lead to may be for root alone.
    let as_another = [
        "setpriv",
        "--reuid",
        "4711",
        "--clear-groups",
        "/usr/bin/python3",
    ];
    let words = [&as_another[..], &["-c", TAKE, DEVICE]].concat();
    let taker = opener(&words, &dir.path().join("log"))?;
    for round in 0..40 {
        daemon.cli(&format!(
            "nic add --id m1 --mac {MAC} --vni {VNI} --type vm-tap --path {DEVICE} \
             --tap-multi-queue"
        ))?;
        let there = device()?;
        let data = &there["linkinfo"]["info_data"];
        assert_eq!(
            [&data["numqueues"], &data["numdisabled"]].map(Value::as_u64),
            [Some(0), Some(0)],
            "round {round}: {data}"
        );
        daemon.cli("nic del m1")?;
        wait_for("the device to go", PATIENCE, || {
            Ok(device().is_err().then_some(()))
        })?;
    }
    drop(taker);
    Ok(())
}

fn what_cannot_be_is_refused_and_leaves_nothing() -> Result<()> {
    clear();
    let daemon = Daemon::start(&[])?;
    for (line, why) in [
        (
            "--type tap --tap-uid 5",
            "--tap-uid goes with --type vm-tap",
        ),
        ("--type vm-tap --netns c1", "--netns goes with --type veth"),
        ("--type vm-tap --tap-uid 4294967295", "is nobody's number"),
        (
            "--type vm-tap --path a/b",
            "is not the name of a network interface",
        ),
    ] {
        let refused = daemon.cli(&format!("nic add --id m1 --mac {MAC} --vni {VNI} {line}"));
        let said = refused.err().unwrap_or_default();
        check(said.contains(why), &format!("{line}: {said}"))?;
    }
    // A name that is somebody else's.
    process::run(&["ip", "tuntap", "add", DEVICE, "mode", "tap"])?;
    let said = add(&daemon, "").err().unwrap_or_default();
    check(said.contains("an interface of that name exists"), &said)?;
    check(device().is_ok(), "it is as it was")?;
    process::run(&["ip", "link", "del", DEVICE])?;
    let left = process::run(&["ip", "-o", "link"])?;
    check(!left.contains("bt-"), &format!("nothing is left: {left}"))
}
