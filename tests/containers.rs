//! NICs of type veth: containers' interfaces in namespaces that come and go, with the kernel's TCP
//! on both sides of the switch.

use butterfly_tests::hosts::{serve, tool};
use butterfly_tests::lab::check;
use butterfly_tests::{Daemon, program, trials};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::time::Duration;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

type Body = fn() -> Result<()>;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Body); 24] = trials![
        a_container_has_its_interface_with_addresses_and_routes,
        what_the_rules_say_passes_and_nothing_else,
        segments_pass_whole,
        a_namespace_that_goes_breaks_the_nic_and_heals_it_when_it_returns,
        the_same_nic_add_heals_a_process_that_has_another_namespace,
        what_a_process_names_is_not_made_unasked,
        no_change_goes_where_a_process_is_by_now,
        who_removes_its_interface_again_and_again_has_it_later_and_later,
        who_keeps_its_interface_from_being_made_has_it_tried_later_and_later,
        the_same_document_heals_a_container_that_has_lost_its_interface,
        the_same_document_heals_what_is_behind_a_containers_interface,
        without_the_switchs_device_nothing_is_made_and_unmade,
        other_values_reach_the_container,
        what_cannot_be_changed_in_the_container_is_told_and_tried_again,
        a_deleted_nic_leaves_nothing,
        a_daemon_that_was_killed_leaves_no_way_to_the_host,
        what_is_for_a_container_that_is_not_there_is_not_the_hosts,
        what_cannot_be_made_at_a_start_takes_no_interface_along,
        what_a_container_hinders_is_its_own_nic_alone,
        a_renamed_interface_stays_when_the_daemon_changes,
        an_interface_that_goes_amid_an_upgrade_has_the_program_of_who_goes_on,
        what_cannot_be_is_refused_and_leaves_nothing,
        what_is_refused_without_the_helpers_word_leaves_no_pair,
        a_daemon_without_root_enters_namespaces_by_its_helper,
    ];
    let trials = trials.map(|(name, body)| Trial::test(name, move || body().map_err(Failed::from)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

const VNI: u32 = 7;

/// A namespace with a name, as `ip netns` and CNI's callers have them. Gone when dropped.
struct Named(String);

impl Named {
    fn new(name: &str) -> Result<Named> {
        let name = format!("bf-{name}-{}", std::process::id());
        process::run(&["ip", "netns", "add", &name])?;
        let named = Named(name);
        named.ok("ip link set lo up")?;
        Ok(named)
    }

    fn ok(&self, command: &str) -> Result<String> {
        process::run(&["ip", "netns", "exec", &self.0, "sh", "-c", command])
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = process::run(&["ip", "netns", "del", &self.0]);
    }
}

/// `nic add` of a container `cN`, address 10.2.0.N/24, that is in its group of the same name.
fn add(daemon: &Daemon, number: u8, netns: &str, more: &str) -> Result<String> {
    daemon.cli(&format!(
        "sg add c{number} + nic add --id c{number} --mac 52:54:00:00:02:0{number} --vni {VNI} \
         --ip 10.2.0.{number}/24 fd02::{number}/64 --sg c{number} --type veth --path bf-c{number} \
         --netns {netns} {more}"
    ))
}

/// Two containers in one network, `c1` and `c2`, with their daemon.
fn two() -> Result<(Namespace, Namespace, Daemon)> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    let daemon = Daemon::start(&[])?;
    add(&daemon, 1, &left.pid().to_string(), "")?;
    add(&daemon, 2, &format!("/proc/{}/ns/net", right.pid()), "")?;
    Ok((left, right, daemon))
}

/// The interface in a container as `ip` shows it.
fn shown(text: &str) -> Result<Value> {
    let all: Value = serde_json::from_str(text).map_err(|e| format!("ip printed {text}: {e}"))?;
    Ok(all[0].clone())
}

fn state(daemon: &Daemon, nic: &str) -> Result<(String, String)> {
    let status = daemon.json(&format!("nic details {nic}"))?[0].clone();
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    Ok((text("state"), text("detail")))
}

fn a_container_has_its_interface_with_addresses_and_routes() -> Result<()> {
    let container = Named::new("whole")?;
    let daemon = Daemon::start(&[])?;
    let more = "--ifname net1 --gateway 10.2.0.254 fd02::fe --route 10.9.0.0/16,10.2.0.9 \
                10.8.0.0/16 --mtu 1400";
    let path = add(&daemon, 1, &container.0, more)?;
    check(path.contains("bf-c1"), "the answer is the host's end")?;
    let link = shown(&container.ok("ip -j addr show dev net1")?)?;
    assert_eq!(link["address"], "52:54:00:00:02:01");
    assert_eq!(link["mtu"], 1400);
    assert_eq!(link["operstate"], "UP");
    let addresses: Vec<String> = link["addr_info"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| {
            format!(
                "{}/{}",
                one["local"].as_str().unwrap_or_default(),
                one["prefixlen"]
            )
        })
        .collect();
    for wanted in ["10.2.0.1/24", "fd02::1/64"] {
        check(
            addresses.iter().any(|one| one == wanted),
            &format!("{wanted} in {addresses:?}"),
        )?;
    }
    let routes = container.ok("ip route; ip -6 route")?;
    for wanted in [
        "default via 10.2.0.254 dev net1",
        "10.9.0.0/16 via 10.2.0.9 dev net1",
        "10.8.0.0/16 dev net1",
        "default via fd02::fe dev net1",
    ] {
        check(routes.contains(wanted), &format!("{wanted} in {routes}"))?;
    }
    // The host has nothing of its own there: no address, nothing that it would say.
    let near = shown(&process::run(&[
        "ip", "-j", "addr", "show", "dev", "bf-c1",
    ])?)?;
    assert_eq!(
        near["addr_info"].as_array().map(Vec::len),
        Some(0),
        "{near}"
    );
    let how = daemon.cli("nic show c1 --how")?;
    check(
        how.contains(&format!(
            "ip netns exec {} ip addr show dev net1",
            container.0
        )),
        &how,
    )?;
    // A NIC that is added again with its values does not change, and a dump is read back.
    add(&daemon, 1, &container.0, more)?;
    let dump = daemon.cli("config")?;
    let file = daemon.dir().join("dump");
    std::fs::write(&file, &dump).map_err(|e| e.to_string())?;
    daemon.cli(&format!("apply {}", file.display()))?;
    assert_eq!(daemon.cli("config")?, dump);
    // A gateway in no network of the interface is on the link.
    let lonely = Named::new("lonely")?;
    daemon.cli(&format!(
        "nic add --id c3 --mac 52:54:00:00:02:03 --vni {VNI} --ip 10.3.0.3 --type veth \
         --path bf-c3 --netns {} --gateway 169.254.1.1",
        lonely.0
    ))?;
    let routes = lonely.ok("ip route")?;
    check(
        routes.contains("default via 169.254.1.1 dev eth0") && routes.contains("onlink"),
        &routes,
    )?;
    check(
        lonely.ok("ip addr show dev eth0")?.contains("10.3.0.3/32"),
        "it is alone",
    )
}

fn what_the_rules_say_passes_and_nothing_else() -> Result<()> {
    let (left, _right, daemon) = two()?;
    for (to, cidr) in [("10.2.0.2", "10.2.0.1/32"), ("fd02::2", "fd02::1/128")] {
        let ping = format!("ping -q -c 2 -i 0.2 -W 1 {to}");
        check(
            !left.succeeds(&ping)?,
            &format!("{to} is dropped by default"),
        )?;
        daemon.cli(&format!("sg rule add c2 --ip-proto icmp --cidr {cidr}"))?;
        check(left.succeeds(&ping)?, &format!("{to} answers by the rule"))?;
        daemon.cli(&format!("sg rule del c2 --ip-proto icmp --cidr {cidr}"))?;
        check(!left.succeeds(&ping)?, &format!("{to} is dropped again"))?;
    }
    let drops = daemon.drops("c2", "INGRESS", &[])?;
    check(drops >= 4, &format!("{drops} drops of c2"))?;
    // Another address than its own is not the container's to send from.
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    left.ok("ip addr add 10.2.0.77/24 dev eth0")?;
    check(
        !left.succeeds("ping -q -c 1 -W 1 -I 10.2.0.77 10.2.0.2")?,
        "a stranger's address",
    )?;
    check(
        left.succeeds("ping -q -c 1 -W 1 10.2.0.2")?,
        "its own address",
    )
}

fn segments_pass_whole() -> Result<()> {
    let (left, right, daemon) = two()?;
    daemon.cli("sg rule add c2 --ip-proto tcp --port 5201 + sg rule add c2 --ip-proto udp")?;
    let server = right.start("iperf3", "iperf3 -s --forceflush")?;
    let listens = |server: &Process| {
        wait_for("iperf3 to listen", PATIENCE, || {
            Ok(server.log().contains("listening").then_some(()))
        })
    };
    listens(&server)?;
    for to in ["10.2.0.2", "fd02::2"] {
        for (direction, receiver) in [("", "c2"), ("-R", "c1")] {
            let stat = |name: &str| daemon.stat(receiver, name);
            let (bytes, frames) = (stat("ingress_bytes")?, stat("ingress_frames")?);
            let text = left.ok(&format!("timeout 30 iperf3 -J -c {to} -t 1 {direction}"))?;
            let report: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let received = report["end"]["sum_received"]["bytes"]
                .as_f64()
                .unwrap_or_default();
            check(received > 1e6, &format!("{received} bytes arrived"))?;
            let (bytes, frames) = (
                stat("ingress_bytes")? - bytes,
                stat("ingress_frames")? - frames,
            );
            // Segments of many packets' size, few as they may be while the machine is busy.
            check(
                bytes / frames.max(1) > 3_000,
                &format!("{bytes} bytes in {frames} frames"),
            )?;
        }
    }
    let text = left.ok("timeout 30 iperf3 -J -u -b 20M -l 1200 -c 10.2.0.2 -t 1")?;
    let report: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let lost = report["end"]["sum"]["lost_percent"]
        .as_f64()
        .unwrap_or(100.0);
    // A busy machine loses some of them in the receiver's socket.
    check(lost < 20.0, &format!("{lost} % of UDP are lost"))
}

fn a_namespace_that_goes_breaks_the_nic_and_heals_it_when_it_returns() -> Result<()> {
    let other = Namespace::new()?;
    let daemon = Daemon::start(&[])?;
    let name = format!("bf-comes-{}", std::process::id());
    // It may be declared before there is one.
    add(&daemon, 1, &name, "")?;
    add(&daemon, 2, &other.pid().to_string(), "")?;
    daemon.cli("sg rule add c1 --ip-proto icmp + sg rule add c2 --ip-proto icmp")?;
    let (is, why) = state(&daemon, "c1")?;
    assert!(
        is.ends_with("BROKEN") && why.contains("is not there"),
        "{is} {why}"
    );
    for _ in 0..2 {
        let container = Named::new("comes")?;
        assert_eq!(container.0, name);
        wait_for("the interface to be made", PATIENCE, || {
            Ok(state(&daemon, "c1")?.0.ends_with("UP").then_some(()))
        })?;
        container.ok("ping -q -c 1 -W 2 10.2.0.2")?;
        drop(container);
        wait_for("the NIC to be broken", PATIENCE, || {
            Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
        })?;
        check(
            process::run(&["ip", "link", "show", "dev", "bf-c1"]).is_err(),
            "the pair is gone",
        )?;
    }
    // `nic add` of the NIC as it is does not wait for the next look.
    let container = Named::new("comes")?;
    add(&daemon, 1, &name, "")?;
    container.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    // Removed from inside it comes back, too.
    container.ok("ip link del eth0")?;
    wait_for("the interface to be made again", PATIENCE, || {
        Ok(container.ok("ping -q -c 1 -W 1 10.2.0.2").ok().map(drop))
    })?;
    // A process's number may be a stranger's when it has ended: that one waits for a word.
    let pid = other.pid();
    drop(other);
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c2")?.0.ends_with("BROKEN").then_some(()))
    })?;
    let again = Namespace::new()?;
    check(again.pid() != pid, "another process")?;
    add(&daemon, 2, &again.pid().to_string(), "--replace")?;
    container.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    Ok(())
}

/// A process that leaves its namespace for a new one, in which nobody else is: the old one goes,
/// and the interface with it. The line that has made it, once more, makes it where the process is
/// now.
fn the_same_nic_add_heals_a_process_that_has_another_namespace() -> Result<()> {
    let other = Namespace::new()?;
    let daemon = Daemon::start(&[])?;
    let (_mover, pid) = mover(&daemon, &["unshare", "--net"])?;
    let inside = |command: &str| process::run(&["nsenter", "-t", &pid, "-n", "sh", "-c", command]);
    add(&daemon, 1, &pid, "")?;
    add(&daemon, 2, &other.pid().to_string(), "")?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    inside("ping -q -c 1 -W 2 10.2.0.2")?;
    moves(&pid)?;
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
    })?;
    add(&daemon, 1, &pid, "")?;
    let (is, why) = state(&daemon, "c1")?;
    check(is.ends_with("UP"), &format!("{is} {why}"))?;
    inside("ping -q -c 1 -W 2 10.2.0.2").map(drop)
}

/// The newest revision's number.
fn newest(daemon: &Daemon) -> Result<String> {
    let number = daemon.json("config history")?["revisions"][0]["number"].to_string();
    Ok(number.trim_matches('"').to_owned())
}

/// A process that [`moves`], begun by these words in the namespace where it is first; its number.
fn mover(daemon: &Daemon, begun: &[&str]) -> Result<(Process, String)> {
    let log = daemon.dir().join("mover");
    // CLONE_NEWNET
    let moves = "import ctypes, signal\n\
                 def move(*_): ctypes.CDLL(None).unshare(0x40000000)\n\
                 signal.signal(signal.SIGUSR1, move)\n\
                 print('ready', flush=True)\n\
                 while True: signal.pause()";
    let words = [begun, &["python3", "-c", moves]].concat();
    let mover = Process::start("mover", &words, &log)?;
    wait_for("the process to be ready", PATIENCE, || {
        Ok(mover.log().contains("ready").then_some(()))
    })?;
    let pid = mover.pid().to_string();
    Ok((mover, pid))
}

/// Has it leave its namespace for a new one.
fn moves(pid: &str) -> Result<()> {
    let where_it_is =
        || std::fs::read_link(format!("/proc/{pid}/ns/net")).map_err(|e| e.to_string());
    let before = where_it_is()?;
    process::run(&["kill", "-USR1", pid])?;
    wait_for("the process to move", PATIENCE, || {
        Ok((where_it_is()? != before).then_some(()))
    })
}

/// A process's number may be a stranger's, in whatever way it names a namespace: what is lost there
/// is made by a word alone, be it missed by a daemon that runs or by one that starts, and whatever
/// else is changed or gone back to meanwhile.
fn what_a_process_names_is_not_made_unasked() -> Result<()> {
    let (left, right, named) = (Namespace::new()?, Namespace::new()?, Named::new("stays")?);
    let third = Namespace::new()?;
    let mut daemon = Daemon::start(&["--store", "{dir}/store"])?;
    let link = daemon.dir().join("netns");
    std::os::unix::fs::symlink(format!("/proc/{}/ns/net", third.pid()), &link)
        .map_err(|e| e.to_string())?;
    let spaces = [
        left.pid().to_string(),
        format!("/proc/{}/ns/net", right.pid()),
        link.display().to_string(),
        named.0.clone(),
    ];
    let declare = |daemon: &Daemon| -> Result<()> {
        for (number, netns) in (1..).zip(&spaces) {
            add(daemon, number, netns, "")?;
        }
        Ok(())
    };
    declare(&daemon)?;
    let processes = [("c1", &left), ("c2", &right), ("c3", &third)];
    let are_broken = |daemon: &Daemon, when: &str| -> Result<()> {
        for (nic, container) in processes {
            let (is, why) = state(daemon, nic)?;
            check(
                is.ends_with("BROKEN") && why.contains("may be another's by now"),
                &format!("{nic} {when}: {is} {why}"),
            )?;
            check(!container.succeeds("ip link show dev eth0")?, when)?;
        }
        check(state(daemon, "c4")?.0.ends_with("UP"), when)?;
        named.ok("ip link show dev eth0").map(drop)
    };
    let are_there = |daemon: &Daemon| -> Result<[u32; 3]> {
        for nic in ["c1", "c2", "c3", "c4"] {
            let (is, why) = state(daemon, nic)?;
            check(is.ends_with("UP"), &format!("{nic}: {is} {why}"))?;
        }
        Ok([
            left.ifindex("eth0")?,
            right.ifindex("eth0")?,
            third.ifindex("eth0")?,
        ])
    };
    are_there(&daemon)?;
    for (_, container) in processes {
        container.ok("ip link del dev eth0")?;
    }
    named.ok("ip link del dev eth0")?;
    wait_for("the named one to be made again", PATIENCE, || {
        Ok(named.ok("ip link show dev eth0").ok())
    })?;
    std::thread::sleep(Duration::from_millis(1500));
    are_broken(&daemon, "while the daemon runs")?;
    // Tenants change what is theirs, and so does who takes a NIC's link away before it goes.
    for (nic, _) in processes {
        daemon.cli(&format!("nic update {nic} --link down"))?;
        daemon.cli(&format!("nic update {nic} --link up"))?;
    }
    are_broken(&daemon, "when the NIC is changed")?;
    daemon.cli(&format!("config rollback {}", newest(&daemon)?))?;
    are_broken(&daemon, "when the configuration goes back")?;
    declare(&daemon)?;
    are_there(&daemon)?;
    // A daemon that is stopped takes the interfaces with it.
    daemon.stop()?;
    daemon.restart()?;
    are_broken(&daemon, "when the daemon starts")?;
    declare(&daemon)?;
    let before = are_there(&daemon)?;
    // One that is killed leaves them where they are: that it knows again.
    daemon.kill_and_restart()?;
    assert_eq!(are_there(&daemon)?, before);
    Ok(())
}

/// The process is elsewhere by now, as a stranger is who has its number, and the interface stays
/// where it was: no change follows the number, however often one has failed.
fn no_change_goes_where_a_process_is_by_now() -> Result<()> {
    let container = Namespace::new()?;
    let daemon = Daemon::start(&[])?;
    let holder = container.pid().to_string();
    let (_mover, pid) = mover(&daemon, &["nsenter", "-t", &holder, "-n"])?;
    add(&daemon, 1, &pid, "")?;
    let before = container.ifindex("eth0")?;
    moves(&pid)?;
    for last in 11..16 {
        daemon.cli(&format!("nic update c1 --ip 10.2.0.{last}"))?;
        let (is, why) = state(&daemon, "c1")?;
        check(
            is.ends_with("BROKEN") && why.contains("is not the one that its other end is in"),
            &format!("{last}: {is} {why}"),
        )?;
        let links = process::run(&["nsenter", "-t", &pid, "-n", "ip", "-o", "link"])?;
        check(
            !links.contains("eth0"),
            &format!("where it is by now: {links}"),
        )?;
        assert_eq!(container.ifindex("eth0")?, before, "it stays where it was");
    }
    Ok(())
}

/// Each time all flows that the kernel forwards on this host come up again.
fn who_removes_its_interface_again_and_again_has_it_later_and_later() -> Result<()> {
    let (host, container) = (Namespace::new()?, Named::new("loop")?);
    let daemon = Daemon::start_on(Some(host.pid()), &[])?;
    add(&daemon, 1, &container.0, "")?;
    let before = host.ifindex("bf-c1")?;
    container.ok(
        "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do \
         ip link del dev eth0 2>/dev/null; sleep 0.01; done",
    )?;
    // Who asks for it does not wait.
    add(&daemon, 1, &container.0, "")?;
    check(state(&daemon, "c1")?.0.ends_with("UP"), "it is asked for")?;
    // Each pair has the next number.
    let made = host.ifindex("bf-c1")? - before;
    check(
        (2..15).contains(&made),
        &format!("it was made {made} times"),
    )?;
    // One loss alone is made good at once.
    container.ok("ip link del dev eth0")?;
    wait_for("the interface to be made again", PATIENCE, || {
        Ok(container.ok("ip link show dev eth0").ok())
    })
    .map(drop)
}

/// A pair that is made and unmade again costs others as much as one that is removed.
fn who_keeps_its_interface_from_being_made_has_it_tried_later_and_later() -> Result<()> {
    let (host, container) = (Namespace::new()?, Named::new("unmade")?);
    let daemon = Daemon::start_on(Some(host.pid()), &[])?;
    add(&daemon, 1, &container.0, "")?;
    let before = host.ifindex("bf-c1")?;
    // Interfaces that are made from now on take no address of IPv6.
    let without_v6 = |without: u8| {
        container.ok(&format!(
            "sysctl -q -w net.ipv6.conf.default.disable_ipv6={without}"
        ))
    };
    without_v6(1)?;
    container.ok("ip link del dev eth0")?;
    wait_for("the NIC to be broken", PATIENCE, || {
        let (is, why) = state(&daemon, "c1")?;
        Ok((is.ends_with("BROKEN") && why.contains("fd02::1/64")).then_some(()))
    })?;
    std::thread::sleep(Duration::from_secs(10));
    without_v6(0)?;
    // Who asks for it does not wait.
    add(&daemon, 1, &container.0, "")?;
    check(state(&daemon, "c1")?.0.ends_with("UP"), "it is asked for")?;
    // Each pair has the next number.
    let made = host.ifindex("bf-c1")? - before;
    check((2..8).contains(&made), &format!("it was made {made} times"))
}

fn the_same_document_heals_a_container_that_has_lost_its_interface() -> Result<()> {
    let (left, _right, daemon) = two()?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    let file = daemon.dir().join("host.json");
    std::fs::write(&file, daemon.cli("config")?).map_err(|e| e.to_string())?;
    let apply = |options: &str| daemon.cli(&format!("apply {} {options}", file.display()));
    assert_eq!(apply("")?, "", "nothing is broken");
    // A namespace that is a process's is not tried again unasked.
    left.ok("ip link del dev eth0")?;
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
    })?;
    let why = state(&daemon, "c1")?.1;
    assert_eq!(apply("--dry-run")?, format!("would heal nic c1: {why}\n"));
    check(
        state(&daemon, "c1")?.0.ends_with("BROKEN"),
        "it was not tried",
    )?;
    let json: Value =
        serde_json::from_str(&daemon.cli(&format!("--json apply {} --dry-run", file.display()))?)
            .map_err(|e| e.to_string())?;
    assert_eq!(json["healed"][0]["nic"], "c1", "{json}");
    assert_eq!(apply("")?, format!("healed nic c1: {why}\n"));
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    assert_eq!(apply("")?, "");
    // With the container gone there is nothing to heal it with.
    drop(left);
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
    })?;
    let says = apply("")?;
    check(says.starts_with("nic c1 is still broken: "), &says)
}

fn the_same_document_heals_what_is_behind_a_containers_interface() -> Result<()> {
    let (left, _right, daemon) = two()?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    let file = daemon.dir().join("host.json");
    std::fs::write(&file, daemon.cli("config")?).map_err(|e| e.to_string())?;
    let before = behind()?;
    assert_eq!(before.len(), 2, "{before:?}");
    for device in &before {
        process::run(&["ip", "link", "del", "dev", device])?;
    }
    for nic in ["c1", "c2"] {
        wait_for("the NIC to be broken", PATIENCE, || {
            Ok(state(&daemon, nic)?.0.ends_with("BROKEN").then_some(()))
        })?;
    }
    check(
        !left.succeeds("ping -q -c 1 -W 1 10.2.0.2")?,
        "nothing passes",
    )?;
    let says = daemon.cli(&format!("apply {}", file.display()))?;
    let healed = says.lines().filter(|line| line.starts_with("healed nic c"));
    assert_eq!(healed.count(), 2, "{says}");
    assert_eq!(behind()?, before);
    left.ok("ping -q -c 1 -W 2 10.2.0.2").map(drop)
}

/// The switch's TAP devices behind containers' interfaces.
fn behind() -> Result<Vec<String>> {
    let links = process::run(&["ip", "-o", "link", "show", "type", "tun"])?;
    let names = links.lines().filter_map(|line| line.split(": ").nth(1));
    let ours = names.filter(|name| name.starts_with("bt-"));
    Ok(ours.map(str::to_owned).collect())
}

/// Looks come every second: none of them makes an interface that the switch could not reach.
fn without_the_switchs_device_nothing_is_made_and_unmade() -> Result<()> {
    let container = Named::new("alone")?;
    let daemon = Daemon::start(&[])?;
    add(&daemon, 1, &container.0, "")?;
    for device in behind()? {
        process::run(&["ip", "link", "del", "dev", &device])?;
    }
    container.ok("ip link del dev eth0")?;
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
    })?;
    let seen = process::run(&["sh", "-c", "timeout 3 ip -o monitor link; true"])?;
    check(!seen.contains("bf-c1"), &seen)?;
    let why = state(&daemon, "c1")?.1;
    check(why.contains("bt-"), &why)?;
    // The same `nic add` makes all of it.
    add(&daemon, 1, &container.0, "")?;
    container.ok("ip link show dev eth0").map(drop)
}

fn other_values_reach_the_container() -> Result<()> {
    let (left, right, daemon) = two()?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    left.ok("ip addr add 192.0.2.1/32 dev eth0")?;
    daemon.cli("nic update c1 --ip 10.2.0.11 --mtu 1300")?;
    let link = left.ok("ip addr show dev eth0")?;
    check(
        link.contains("10.2.0.11/24") && link.contains("mtu 1300"),
        &link,
    )?;
    check(
        !link.contains("10.2.0.1/24") && !link.contains("fd02::1/"),
        &link,
    )?;
    check(
        link.contains("192.0.2.1/32"),
        "what the container has added stays",
    )?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    check(
        !left.succeeds("ping -q -c 1 -W 1 -M do -s 1290 10.2.0.2")?,
        "too large",
    )?;
    daemon.cli("nic update c1 --link down")?;
    check(
        left.ok("ip link show dev eth0")?.contains("NO-CARRIER"),
        "it has no carrier",
    )?;
    daemon.cli("nic update c1 --link up")?;
    wait_for("the link to be up", PATIENCE, || {
        Ok(left.succeeds("ping -q -c 1 -W 1 10.2.0.2")?.then_some(()))
    })?;
    // Another MAC, another name, another container.
    let replaced = |more: &str| {
        daemon.cli(&format!(
            "nic add --replace --id c1 --mac 52:54:00:00:02:99 --vni {VNI} --ip 10.2.0.1/24 \
             --sg c1 --type veth --path bf-c1 {more}"
        ))
    };
    replaced(&format!("--netns {}", left.pid()))?;
    check(
        left.ok("ip link show dev eth0")?
            .contains("52:54:00:00:02:99"),
        "another MAC",
    )?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    replaced(&format!("--netns {} --ifname other", left.pid()))?;
    check(!left.succeeds("ip link show dev eth0")?, "another name")?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    replaced(&format!("--netns {} --ifname other", right.pid()))?;
    check(
        !left.succeeds("ip link show dev other")?,
        "another container",
    )?;
    right.ok("ip link show dev other").map(drop)
}

/// Root of the container has given the interface another name: what is to be of it is made when it
/// has its own again, and until then nobody is told that it is.
fn what_cannot_be_changed_in_the_container_is_told_and_tried_again() -> Result<()> {
    let (left, _right, daemon) = two()?;
    let rename = |from: &str, to: &str| {
        left.ok(&format!(
            "ip link set {from} down && ip link set {from} name {to} up"
        ))
    };
    rename("eth0", "mine")?;
    let (program, api) = (program("butterfly"), daemon.endpoint());
    let update = format!("{program} -e {api} nic update c1 --ip 10.2.0.11 --mtu 1300 2>&1");
    let answer = process::run(&["sh", "-c", &update])?;
    check(
        answer.contains("NIC c1 is broken") && answer.contains("eth0 is not there"),
        &answer,
    )?;
    // Neither the next change nor a look finds that all is well, nor forgets what was to go.
    daemon.cli("nic update c1 --ip 10.2.0.12")?;
    std::thread::sleep(Duration::from_millis(1500));
    let (is, why) = state(&daemon, "c1")?;
    check(
        is.ends_with("BROKEN") && why.contains("eth0 is not there"),
        &format!("{is} {why}"),
    )?;
    left.ok("ip addr show dev mine | grep 10.2.0.1/")?;
    rename("mine", "eth0")?;
    wait_for("the change to be made", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("UP").then_some(()))
    })?;
    let link = left.ok("ip addr show dev eth0")?;
    check(
        link.contains("10.2.0.12/24") && link.contains("mtu 1300"),
        &link,
    )?;
    check(
        !link.contains("10.2.0.1/24") && !link.contains("10.2.0.11/24"),
        &link,
    )?;
    // The same `nic update` does not wait for the next look.
    rename("eth0", "mine")?;
    daemon.cli("nic update c1 --ip 10.2.0.13")?;
    rename("mine", "eth0")?;
    daemon.cli("nic update c1 --ip 10.2.0.13")?;
    check(state(&daemon, "c1")?.0.ends_with("UP"), "it is healed")?;
    left.ok("ip addr show dev eth0 | grep 10.2.0.13/24")
        .map(drop)
}

fn a_deleted_nic_leaves_nothing() -> Result<()> {
    let count = || -> Result<usize> { Ok(process::run(&["ip", "-o", "link"])?.lines().count()) };
    let mut before = 0;
    // Those of tests before are going yet.
    wait_for("as many devices as a moment before", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(200));
        let last = std::mem::replace(&mut before, count()?);
        Ok((last == before).then_some(()))
    })?;
    let (left, right, mut daemon) = two()?;
    daemon.cli("nic del c1")?;
    check(
        !left.succeeds("ip link show dev eth0")?,
        "the container's interface is gone",
    )?;
    // The kernel takes devices away behind the command.
    wait_for(
        "the pair's end and the TAP device of c2 alone",
        PATIENCE,
        || Ok((count()? == before + 2).then_some(())),
    )?;
    daemon.stop()?;
    check(
        !right.succeeds("ip link show dev eth0")?,
        "the other one, too",
    )?;
    assert_eq!(process::run(&["ip", "-o", "link"])?.lines().count(), before);
    Ok(())
}

fn a_daemon_that_was_killed_leaves_no_way_to_the_host() -> Result<()> {
    let host = Namespace::new()?;
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    let mut daemon = Daemon::start_on(Some(host.pid()), &[])?;
    host.ok("ip link add own type dummy 2>/dev/null || ip link add own type veth peer name own2")?;
    host.ok("ip addr add 10.2.0.200/32 dev own && ip link set own up")?;
    add(&daemon, 1, &left.pid().to_string(), "--gateway 10.2.0.200")?;
    add(&daemon, 2, &right.pid().to_string(), "")?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    left.ok("ip addr add 192.0.2.1/32 dev eth0 && ping -q -c 1 -W 2 10.2.0.2")?;
    let index = |of: &Namespace| of.ifindex("eth0");
    let before = index(&left)?;
    daemon.kill_and_restart()?;
    let near = host.ok("ip -j link show dev bf-c1")?;
    let near = shown(&near)?["address"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    left.ok(&format!(
        "ip neigh replace 10.2.0.200 lladdr {near} dev eth0"
    ))?;
    check(
        !left.succeeds("ping -q -c 2 -i 0.2 -W 1 10.2.0.200")?,
        "the host does not answer",
    )?;
    let seen = host.ok("cat /proc/net/snmp | grep ^Icmp: | tail -1")?;
    check(
        seen.split_whitespace().nth(1) == Some("0"),
        &format!("the host has seen it: {seen}"),
    )?;
    // The next daemon takes over what it left, as it is.
    left.ok("ip neigh flush dev eth0; ip neigh del 10.2.0.200 dev eth0 2>/dev/null; true")?;
    add(&daemon, 1, &left.pid().to_string(), "--gateway 10.2.0.200")?;
    add(&daemon, 2, &right.pid().to_string(), "")?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    assert_eq!(index(&left)?, before, "it is the same interface");
    check(
        left.ok("ip addr show dev eth0")?.contains("192.0.2.1/32"),
        "with what was added",
    )?;
    left.ok("ping -q -c 1 -W 2 10.2.0.2").map(drop)
}

/// Frames that the rules let in to a NIC without a namespace are dropped and counted: its device
/// has its MAC, so a host whose stack saw them would answer, or forward them.
fn what_is_for_a_container_that_is_not_there_is_not_the_hosts() -> Result<()> {
    let (host, sender) = (Namespace::new()?, Namespace::new()?);
    host.ok(
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
             net.ipv4.conf.default.rp_filter=0",
    )?;
    for (device, address) in [("own", "10.2.0.200/32"), ("beyond", "10.77.0.1/24")] {
        host.ok(&format!(
            "ip link add {device} type dummy 2>/dev/null \
             || ip link add {device} type veth peer name {device}2; \
             ip addr add {address} dev {device} && ip link set {device} up"
        ))?;
    }
    let daemon = Daemon::start_on(Some(host.pid()), &[])?;
    let name = format!("bf-ahead-{}", std::process::id());
    let declare = || add(&daemon, 1, &name, "");
    declare()?;
    add(&daemon, 2, &sender.pid().to_string(), "")?;
    daemon.cli("sg rule add c1 --ip-proto icmp")?;
    sender.ok(
        "ip neigh replace 10.2.0.200 lladdr 52:54:00:00:02:01 dev eth0 && \
         ip neigh replace 10.2.0.1 lladdr 52:54:00:00:02:01 dev eth0 && \
         ip route add 10.77.0.0/24 via 10.2.0.1",
    )?;
    let is_dropped = |when: &str| -> Result<()> {
        let drops = || daemon.drops("c1", "INGRESS", &["target_down"]);
        let before = drops()?;
        for to in ["10.2.0.200", "10.77.0.9"] {
            let answers = sender.succeeds(&format!("ping -q -c 2 -i 0.2 -W 1 {to}"))?;
            check(!answers, &format!("{to} does not answer {when}"))?;
        }
        let seen = host.ok("grep -h -E '^(Ip|Icmp): [0-9]' /proc/net/snmp")?;
        let number = |line: usize, field: usize| {
            let line = seen.lines().nth(line).unwrap_or_default();
            line.split_whitespace()
                .nth(field)
                .unwrap_or_default()
                .to_owned()
        };
        // Ip ForwDatagrams, Icmp InMsgs.
        let counts = (number(0, 6), number(1, 1));
        check(
            counts == ("0".to_owned(), "0".to_owned()),
            &format!("the host has seen it {when}: {seen}"),
        )?;
        check(drops()? >= before + 4, &format!("it is counted {when}"))
    };
    is_dropped("before there was a namespace")?;
    for device in host.ok("ip -o link show type tun")?.lines() {
        let device = device.split(": ").nth(1).unwrap_or_default();
        if host
            .ok(&format!("ip link show dev {device}"))?
            .contains("52:54:00:00:02:01")
        {
            host.ok(&format!("ip link del dev {device}"))?;
        }
    }
    declare()?;
    is_dropped("by a device that was made again")?;
    // Whoever sets it up has nothing of it either.
    for device in host.ok("ip -o link show type tun")?.lines() {
        let device = device.split(": ").nth(1).unwrap_or_default();
        host.ok(&format!("ip link set dev {device} up"))?;
    }
    check(
        !sender.succeeds("ping -q -c 2 -i 0.2 -W 1 10.2.0.200")?,
        "by a device that is up",
    )?;
    let container = Named::new("ahead")?;
    assert_eq!(container.0, name);
    declare()?;
    sender.ok("ip route del 10.77.0.0/24; ping -q -c 1 -W 2 10.2.0.1")?;
    drop(container);
    wait_for("the NIC to be broken", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("BROKEN").then_some(()))
    })?;
    sender.ok("ip route add 10.77.0.0/24 via 10.2.0.1")?;
    is_dropped("when the namespace has gone")
}

/// Of what is stored one NIC cannot be made, behind others that are: the daemon makes those once
/// more without it, and their containers do not notice.
fn what_cannot_be_made_at_a_start_takes_no_interface_along() -> Result<()> {
    for keeps in [true, false] {
        let options = ["--store", "{dir}/store", "--keeper", "{dir}/keeper"];
        let host = Namespace::new()?;
        let daemon = Daemon::start_on(Some(host.pid()), &options[..if keeps { 4 } else { 2 }])?;
        let done = behind_a_start_that_is_not_whole(&host, daemon, keeps);
        done.map_err(|e| format!("with a keeper: {keeps}: {e}"))?;
    }
    Ok(())
}

fn behind_a_start_that_is_not_whole(
    host: &Namespace,
    mut daemon: Daemon,
    keeps: bool,
) -> Result<()> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    add(&daemon, 1, &left.pid().to_string(), "")?;
    add(&daemon, 2, &right.pid().to_string(), "")?;
    daemon.cli(&format!(
        "sg rule add c2 --ip-proto tcp --port 80 + sg rule add c1 --ip-proto icmp \
         + sg rule add c2 --ip-proto icmp \
         + nic add --id m1 --mac 52:54:00:00:02:11 --vni {VNI} --type vm-tap --path bf-m1 \
         + nic add --id z --mac 52:54:00:00:02:12 --vni {VNI} --type tap --path bf-z"
    ))?;
    let _server = serve(&right, "tcp-serve 80")?;
    let mut client = left.start("download", &tool("tcp-get 10.2.0.2 80 0 120"))?;
    let mut goes_on = |when: &str| -> Result<()> {
        let start = left.counter("rx_bytes")?;
        wait_for(&format!("the download {when}"), PATIENCE, || {
            Ok((left.counter("rx_bytes")? > start + 5_000_000).then_some(()))
        })?;
        check(client.ended().is_none(), &format!("it goes on {when}"))
    };
    goes_on("before")?;
    left.ok("ip addr add 192.0.2.1/32 dev eth0 && ip route add 10.9.0.0/16 via 10.2.0.9")?;
    let indices = || -> Result<[u32; 3]> {
        let eth0 = |of: &Namespace| of.ifindex("eth0");
        Ok([eth0(&left)?, eth0(&right)?, host.ifindex("bf-m1")?])
    };
    let before = indices()?;
    daemon.kill()?;
    // Without a keeper it went with the daemon.
    host.ok("ip link del bf-z 2>/dev/null; ip link add bf-z type bridge")?;
    for turn in 0..2 {
        daemon.restart()?;
        check(
            daemon.log().contains("this stays stored, and is not made"),
            "one is not made",
        )?;
        assert_eq!(indices()?, before, "turn {turn}: the same interfaces");
        check(
            left.ok("ip addr show dev eth0")?.contains("192.0.2.1/32")
                && left.ok("ip route")?.contains("10.9.0.0/16 via 10.2.0.9"),
            "with what was added",
        )?;
        left.ok("ping -q -c 1 -W 2 10.2.0.2")?;
        if keeps {
            goes_on(&format!("behind start {turn}"))?;
        }
        daemon.kill()?;
    }
    host.ok("ip link del bf-z")?;
    daemon.restart()?;
    assert_eq!(indices()?, before, "the same when all is made");
    check(host.succeeds("ip link show bf-z")?, "all is made")?;
    if keeps {
        goes_on("when all is made")?;
    }
    // What goes later does go.
    daemon.cli("nic del c1 + nic del m1")?;
    check(
        !left.succeeds("ip link show dev eth0")? && !host.succeeds("ip link show bf-m1")?,
        "what is deleted goes",
    )
}

/// Root of a container keeps its own NIC from being made, or from being as it is declared, and
/// nothing else: no start, no document and no way back fails by it.
fn what_a_container_hinders_is_its_own_nic_alone() -> Result<()> {
    let (left, right) = (Named::new("hinders")?, Named::new("beside")?);
    let mut daemon = Daemon::start(&["--store", "{dir}/store"])?;
    add(&daemon, 1, &left.0, "")?;
    add(&daemon, 2, &right.0, "")?;
    let file = daemon.dir().join("host.json");
    daemon.cli("nic update c2 --mtu 1400")?;
    std::fs::write(&file, daemon.cli("config")?).map_err(|e| e.to_string())?;
    daemon.cli("nic update c2 --mtu 1300")?;
    let before = newest(&daemon)?;
    let has_mtu = |mtu: u32, when: &str| -> Result<()> {
        let link = right.ok("ip link show dev eth0")?;
        check(
            link.contains(&format!("mtu {mtu} ")),
            &format!("{when}: {link}"),
        )
    };
    let is_broken = |daemon: &Daemon, says: &str, when: &str| -> Result<()> {
        let (is, why) = state(daemon, "c1")?;
        check(
            is.ends_with("BROKEN") && why.contains(says),
            &format!("{when}: {is} {why}"),
        )
    };
    let taken = "ip link add eth0 type veth peer name eth9";
    let renamed = format!("ip link set eth0 down && ip link set eth0 name mine up && {taken}");
    let again = "ip link del eth0; ip link set mine down && ip link set mine name eth0 up";
    let without_v6 =
        |without: u8| format!("sysctl -q -w net.ipv6.conf.default.disable_ipv6={without}");
    for (is_killed, hinders, frees, says) in [
        (true, renamed, again.to_owned(), "it has another name"),
        (
            false,
            taken.to_owned(),
            "ip link del eth0".to_owned(),
            "File exists",
        ),
        (false, without_v6(1), without_v6(0), "fd02::1/64"),
    ] {
        if is_killed {
            left.ok(&hinders)?;
            daemon.kill()?;
        } else {
            // It takes its interfaces along.
            daemon.stop()?;
            left.ok(&hinders)?;
        }
        daemon.restart()?;
        is_broken(&daemon, says, "when the daemon has started")?;
        check(
            state(&daemon, "c2")?.0.ends_with("UP"),
            "the other one is made",
        )?;
        let done = daemon.cli(&format!("apply {}", file.display()))?;
        check(done.contains("nic c1 is still broken: "), &done)?;
        has_mtu(1400, "the document is applied")?;
        is_broken(&daemon, says, "behind the document")?;
        daemon.cli(&format!("config rollback {before}"))?;
        has_mtu(1300, "it goes back")?;
        is_broken(&daemon, says, "when it has gone back")?;
        left.ok(&frees)?;
        wait_for("the NIC to be made", PATIENCE, || {
            Ok(state(&daemon, "c1")?.0.ends_with("UP").then_some(()))
        })?;
    }
    // Who declares the NIC alone is told at once, and has none.
    daemon.cli("nic del c1")?;
    left.ok(taken)?;
    let refused = add(&daemon, 1, &left.0, "").err().unwrap_or_default();
    check(refused.contains("File exists"), &refused)?;
    check(!daemon.cli("nic list")?.contains("c1"), "it is not there")?;
    let done = daemon.cli(&format!("apply {}", file.display()))?;
    check(done.contains("+ nic c1"), &done)?;
    is_broken(&daemon, "File exists", "when the document brings it")
}

/// What root of a container has named otherwise is taken over as it is, by the next daemon and by
/// the one that takes this one's place: nothing of the container's is cut.
fn a_renamed_interface_stays_when_the_daemon_changes() -> Result<()> {
    let (left, right) = (Named::new("renames")?, Named::new("beside")?);
    let mut daemon = Daemon::start(&["--store", "{dir}/store", "--keeper", "{dir}/keeper"])?;
    add(&daemon, 1, &left.0, "")?;
    add(&daemon, 2, &right.0, "")?;
    daemon.cli("sg rule add c2 --ip-proto icmp")?;
    let index = |name: &str| left.ok(&format!("cat /sys/class/net/{name}/ifindex"));
    let before = index("eth0")?;
    left.ok("ip link set eth0 down && ip link set eth0 name mine up")?;
    let changes: [fn(&mut Daemon) -> Result<()>; 3] = [
        Daemon::kill_and_restart,
        Daemon::upgrade,
        Daemon::kill_and_restart,
    ];
    for (turn, change) in changes.into_iter().enumerate() {
        change(&mut daemon)?;
        assert_eq!(index("mine")?, before, "turn {turn}: the same interface");
        let (is, why) = state(&daemon, "c1")?;
        check(
            is.ends_with("BROKEN") && why.contains("it has another name"),
            &format!("turn {turn}: {is} {why}"),
        )?;
        wait_for("frames to pass", PATIENCE, || {
            Ok(left.ok("ping -q -c 1 -W 1 10.2.0.2").ok())
        })?;
    }
    left.ok("ip link set mine down && ip link set mine name eth0 up")?;
    wait_for("the NIC to be as it is declared", PATIENCE, || {
        Ok(state(&daemon, "c1")?.0.ends_with("UP").then_some(()))
    })?;
    assert_eq!(index("eth0")?, before, "it was never made anew");
    Ok(())
}

/// Two processes see it go, and one makes it again. With the program of the one that is no daemon
/// in the end the kernel would forward no flow of the container any more.
fn an_interface_that_goes_amid_an_upgrade_has_the_program_of_who_goes_on() -> Result<()> {
    let (left, right) = (Named::new("amid")?, Namespace::new()?);
    let mut daemon = Daemon::start(&["--store", "{dir}/store", "--keeper", "{dir}/keeper"])?;
    add(&daemon, 1, &left.0, "")?;
    add(&daemon, 2, &right.pid().to_string(), "")?;
    daemon.cli("sg rule add c2 --ip-proto tcp --port 80")?;
    let _server = serve(&right, "tcp-serve 80")?;
    let get = tool("tcp-get 10.2.0.2 80 2000000 10");
    let goes_by_kernel = |daemon: &Daemon, when: &str| -> Result<()> {
        let what = format!("{when}: the kernel to forward what the container sends");
        wait_for(&what, PATIENCE, || {
            let sent = || daemon.stat("c1", "egress_kernel_frames");
            let before = sent()?;
            // It may not be there yet.
            let done = left.ok(&get).is_ok();
            Ok((done && sent()? > before).then_some(()))
        })
    };
    goes_by_kernel(&daemon, "before")?;
    for (turn, succeeds) in [false, true, false, true].into_iter().enumerate() {
        daemon.amid_an_upgrade(succeeds, || {
            left.ok("ip link del eth0")?;
            wait_for("the interface to be made again", PATIENCE, || {
                Ok(left.ok("ip link show dev eth0").ok().map(drop))
            })
        })?;
        goes_by_kernel(&daemon, &format!("turn {turn}"))?;
    }
    Ok(())
}

fn what_cannot_be_is_refused_and_leaves_nothing() -> Result<()> {
    let container = Namespace::new()?;
    container.ok("ip link add eth7 type veth peer name eth8")?;
    let pid = container.pid();
    let daemon = Daemon::start(&[])?;
    let links = || process::run(&["ip", "-o", "link"]).map(|text| text.lines().count());
    let before = links()?;
    for (more, why) in [
        (
            format!("--netns {}", std::process::id()),
            "this is the daemon's own",
        ),
        ("--netns /etc/passwd".into(), "this is no network namespace"),
        (
            "--netns a/b".into(),
            "is neither a name of `ip netns` nor an absolute path",
        ),
        (format!("--netns {pid} --ifname eth7"), "File exists"),
        (
            format!("--netns {pid} --ifname a/b"),
            "is not the name of a network interface",
        ),
        (
            format!("--netns {pid} --gateway 10.2.0.254 10.2.0.253"),
            "a second one of its family",
        ),
        (
            format!("--netns {pid} --gateway 0.0.0.0"),
            "is not the address of one host",
        ),
        (
            format!("--netns {pid} --route 10.9.0.0/16,fd00::1"),
            "is no next hop of 10.9.0.0/16",
        ),
        (
            format!("--netns {pid} --route 10.9.0.0/16,10.99.0.1 --ip 10.2.0.9"),
            "",
        ),
    ] {
        let added = add(&daemon, 1, &more[8..], "");
        match (added, why) {
            // On the link, for want of a network that it is in.
            (Ok(_), "") => daemon.cli("nic del c1").map(drop)?,
            (Ok(_), _) => return Err(format!("{more} is taken")),
            (Err(error), why) => check(error.contains(why), &format!("{more}: {error}"))?,
        }
        assert_eq!(links()?, before, "{more}");
    }
    let refused = daemon.cli(&format!(
        "nic add --id t --mac 52:54:00:00:02:0a --vni {VNI} --type tap --netns {pid}"
    ));
    let error = refused.err().unwrap_or_default();
    check(error.contains("--netns goes with --type veth"), &error)?;
    assert_eq!(daemon.cli("nic list")?.trim(), "");
    Ok(())
}

/// The pair is of a daemon that was killed: whoever is refused it has no NIC that would remove it.
fn what_is_refused_without_the_helpers_word_leaves_no_pair() -> Result<()> {
    let (host, left, right) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
    let mut daemon = Daemon::start_on(Some(host.pid()), &[])?;
    add(&daemon, 1, &left.pid().to_string(), "")?;
    daemon.kill_and_restart()?;
    host.ok("ip link show dev bf-c1")?;
    // With the first one the helper begins.
    add(&daemon, 2, &right.pid().to_string(), "")?;
    let parent = daemon.pid().to_string();
    process::run(&["pkill", "-KILL", "-P", &parent, "-f", "keep-namespaces"])?;
    let refused = add(&daemon, 1, &left.pid().to_string(), "");
    let why = refused.err().unwrap_or_default();
    check(why.contains("the namespace helper does not answer"), &why)?;
    wait_for("the pair to go", PATIENCE, || {
        let is_there = host.succeeds("ip link show dev bf-c1")?;
        Ok((!is_there).then_some(()))
    })?;
    check(
        !left.succeeds("ip link show dev eth0")?,
        "and the container's end with it",
    )?;
    host.ok("ip link show dev bf-c2").map(drop)
}

fn a_daemon_without_root_enters_namespaces_by_its_helper() -> Result<()> {
    let name = Named::new("helper")?;
    let other = Named::new("other")?;
    let mut daemon = Daemon::start_unprivileged(None, &[])?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
    let status = status.map_err(|e| e.to_string())?;
    let effective = status
        .lines()
        .find(|line| line.starts_with("CapEff:"))
        .unwrap_or_default();
    let effective = effective.split_whitespace().nth(1).unwrap_or_default();
    let effective = u64::from_str_radix(effective, 16).map_err(|e| e.to_string())?;
    check(effective & (1 << 21) == 0, "CAP_SYS_ADMIN is given up")?;
    for (number, netns) in [(1, &name), (2, &other)] {
        daemon.cli(&format!(
            "sg add open + sg rule add open --ip-proto icmp + nic add --id c{number} --vni {VNI} \
             --mac 52:54:00:00:02:0{number} --ip 10.2.0.{number}/24 --sg open --type veth \
             --path bf-k{number} --netns {}",
            netns.0
        ))?;
    }
    name.ok("ping -q -c 1 -W 2 10.2.0.2")?;
    daemon.stop()?;
    check(name.ok("ip link show dev eth0").is_err(), "nothing is left")
}
