//! Another process takes a daemon's place, in each way in which an uplink may be joined: what is
//! under way over the overlay goes on by the same sockets, and the next daemon knows what the one
//! before has learnt.

use std::collections::{BTreeMap, BTreeSet};

use butterfly_tests::Daemon;
use butterfly_tests::daemon::number;
use butterfly_tests::hosts::{
    Family, Host, Hosts, UPLINK, address, answers, cable, cable_of_queues, kernel_vxlan, mac,
    serve, tool,
};
use butterfly_tests::lab::check;
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::other_program::{self, UNTIL_PORTS};
use testkit::process::{Process, tail};
use testkit::{PATIENCE, Result, wait_for};
use wire::{Mac, build};
use xdp::{Mode, objects};

use super::on;

/// What an upgrade takes.
const OPTIONS: [&str; 4] = ["--store", "{dir}/store", "--keeper", "{dir}/keeper"];
/// How often another process takes over, and how often one fails to.
const TURNS: usize = 3;
/// The device of a host without an interface.
const TAP: &str = "butterfly0";
/// The last octet of a machine of another host that is heard once.
const SILENT: u8 = 99;

/// By AF_XDP in native mode.
pub fn an_upgrade_under_load() -> Result<()> {
    let (left, right) = cable(1500)?;
    let mut hosts = Hosts {
        left: start(left, 1, Family::V4, &OPTIONS)?,
        right: start(right, 2, Family::V4, &OPTIONS)?,
    };
    let native = "AF_XDP, native XDP, copy";
    let done = of_two_hosts(&mut hosts, [native; 2])
        .and_then(|()| outlives_its_process(&mut hosts))
        .and_then(|()| ends_as_it_is_told(&mut hosts.left));
    on(&hosts, || done)
}

/// In generic mode: a bridge, which is not asked for native mode, and an interface whose driver
/// says no to it.
pub fn an_upgrade_in_generic_mode() -> Result<()> {
    let (left, right) = cable(1500)?;
    let over = |host: &Namespace, number: u8, made: &str| -> Result<()> {
        host.ok(&format!(
            "ip addr flush dev {UPLINK}; ip link set {UPLINK} down; \
             ip link set {UPLINK} name port0; ip link set port0 up; {made}"
        ))?;
        address(host, number)
    };
    let bridge = format!("ip link add {UPLINK} type bridge && ip link set port0 master {UPLINK}");
    over(&left, 1, &bridge)?;
    // What is below it is not to answer for its address.
    let macvlan = format!(
        "sysctl -q -w net.ipv4.conf.all.arp_ignore=1; \
         ip link add {UPLINK} link port0 type macvlan mode bridge"
    );
    over(&right, 2, &macvlan)?;
    let mut hosts = Hosts {
        left: start(left, 1, Family::V4, &OPTIONS)?,
        right: start(right, 2, Family::V4, &OPTIONS)?,
    };
    let generic = "AF_XDP, generic XDP, copy";
    let done = of_two_hosts(&mut hosts, [generic; 2])
        .and_then(|()| outlives_its_process(&mut hosts))
        .and_then(|()| ends_as_it_is_told(&mut hosts.left));
    on(&hosts, || done)
}

/// By packet sockets, since somebody else's program is at the interface; as soon as that is gone
/// the process that has taken over takes XDP.
pub fn an_upgrade_by_packet_sockets() -> Result<()> {
    let (left, right) = cable(1500)?;
    let failed = |e: xdp::Error| format!("somebody else's program: {e}");
    let program = xdp::Program::load("pass", objects::PASS, |_| Ok(())).map_err(failed)?;
    let ifindex = left.ifindex(UPLINK)?;
    let foreign = left.inside(|| xdp::attach(&program, ifindex, Some(Mode::Native)))?;
    let foreign = foreign.map_err(failed)?;
    let mut hosts = Hosts {
        left: start(left, 1, Family::V4, &OPTIONS)?,
        right: start(right, 2, Family::V4, &OPTIONS)?,
    };
    let modes = ["packet socket", "AF_XDP, native XDP, copy"];
    let done = of_two_hosts(&mut hosts, modes).and_then(|()| outlives_its_process(&mut hosts));
    let done = done.and_then(|()| {
        let shown = uplink(&hosts.left.daemon)?;
        let why = shown["why"].as_str().unwrap_or_default();
        check(
            why.contains("has an XDP program already"),
            &format!("it says what spoke against XDP: {shown}"),
        )?;
        drop(foreign);
        wait_for("XDP, which is possible now", PATIENCE, || {
            let shown = uplink(&hosts.left.daemon)?;
            Ok((shown["mode"] == modes[1]).then_some(()))
        })?;
        ends_as_it_is_told(&mut hosts.left)
    });
    on(&hosts, || done)
}

/// By a TAP device of the daemon's, with the kernel at its other end.
pub fn an_upgrade_without_an_interface() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let mut host = start(Namespace::new()?, 1, family, &OPTIONS)?;
        let done = of_a_host_without_an_interface(&mut host, family);
        done.map_err(|e| format!("{family:?}: {e}\n{}", host.daemon.dump()))?;
    }
    Ok(())
}

/// Several workers and several queues: each has its part of what goes on.
pub fn an_upgrade_of_several_workers_and_queues() -> Result<()> {
    const QUEUES: u16 = 3;
    let (left, right) = cable_of_queues(1500, QUEUES)?;
    let options = [&OPTIONS[..], &["--workers", "3"]].concat();
    let mut hosts = Hosts {
        left: start(left, 1, Family::V4, &options)?,
        right: start(right, 2, Family::V4, &options)?,
    };
    let done = of_three_workers(&mut hosts, QUEUES);
    on(&hosts, || done)
}

/// A host whose guests may be asked for echoes and for what is at port 80: answers reach them since
/// they have begun the connection, and for nothing else.
fn start(namespace: Namespace, number: u8, family: Family, options: &[&str]) -> Result<Host> {
    let host = Host::start(namespace, number, family, options)?;
    host.daemon.cli(
        "sg rule del open --ip-proto all + sg rule add open --ip-proto icmp + \
         sg rule add open --ip-proto icmpv6 + sg rule add open --ip-proto tcp --port 80",
    )?;
    Ok(host)
}

/// Downloads over the hosts' overlay and pings of the kernels' own, over upgrades of both hosts,
/// whose uplinks are joined in these modes.
fn of_two_hosts(hosts: &mut Hosts, modes: [&str; 2]) -> Result<()> {
    let a = hosts.left.guest("a", 42, 1)?;
    let b = hosts.right.guest("b", 42, 2)?;
    answers(&a, "10.1.0.2")?;
    answers(&a, "fd01::2")?;
    let (from, to) = (Family::V4.address(2), Family::V4.address(1));
    says_once(&hosts.right.namespace, &from, &to)?;
    for (host, mode) in [(&hosts.left, modes[0]), (&hosts.right, modes[1])] {
        let shown = uplink(&host.daemon)?;
        check(
            shown["mode"] == mode && shown["joined"] == true,
            &format!("it is joined by {mode}: {shown}"),
        )?;
    }
    let _hosts = serve(&hosts.right.namespace, "tcp-serve 22")?;
    let ping = Pings::start(&hosts.left.namespace, "192.0.2.2")?;
    let mut download = Download::start(&a, &b, 2)?;
    download.goes_on("before")?;
    let mut known = [&hosts.left, &hosts.right].map(|host| Known::of(&host.daemon));
    let heard = (mac(SILENT), from);
    for turn in 0..TURNS {
        for (host, known) in [&mut hosts.left, &mut hosts.right]
            .into_iter()
            .zip(&mut known)
        {
            let known = known.as_mut().map_err(|e| e.clone())?;
            taken_over(&mut host.daemon, known, &mut [&mut download])
                .map_err(|e| format!("turn {turn}: {e}"))?;
        }
        let left = known[0].as_ref().map_err(Clone::clone)?;
        check(
            left.learned.contains(&heard),
            &format!("{heard:?} is known of old: {left:?}"),
        )?;
        let get = tool("tcp-get 192.0.2.2 22 2000000 10");
        hosts.left.namespace.ok(&get)?;
    }
    ping.ended_whole("the kernel's own")?;
    drop(download);
    one_by_one(&mut hosts.left.daemon, &a, "10.1.0.2")?;
    // Nothing is left behind: what comes and goes later does so.
    let c = hosts.right.guest("c", 42, 3)?;
    answers(&a, "10.1.0.3")?;
    answers(&c, "fd01::1")?;
    hosts.left.namespace.ok(&format!(
        "ip link set {UPLINK} down; ip link set {UPLINK} up"
    ))?;
    answers(&a, "10.1.0.3")
}

fn of_a_host_without_an_interface(host: &mut Host, family: Family) -> Result<()> {
    let (local, remote) = (family.address(2), family.address(1));
    let network = match family {
        Family::V4 => "24",
        Family::V6 => "64 nodad",
    };
    host.namespace
        .ok(&format!("ip addr add dev {TAP} {local}/{network}"))?;
    kernel_vxlan(&host.namespace, TAP, &local, &remote)?;
    host.daemon.cli(&format!("host add {local} --vni 42"))?;
    let a = host.guest("a", 42, 1)?;
    a.ok("ip link set eth0 mtu 1430")?;
    answers(&a, "10.1.0.2")?;
    answers(&a, "fd01::2")?;
    says_once(&host.namespace, &local, &remote)?;
    let shown = uplink(&host.daemon)?;
    check(shown["mode"] == "TAP", &format!("it is a TAP: {shown}"))?;
    let index = host.namespace.ifindex(TAP)?;
    let mut download = Download::start(&a, &host.namespace, 2)?;
    download.goes_on("before")?;
    let mut known = Known::of(&host.daemon)?;
    for turn in 0..TURNS {
        taken_over(&mut host.daemon, &mut known, &mut [&mut download])
            .map_err(|e| format!("turn {turn}: {e}"))?;
        check(
            known.learned.contains(&(mac(SILENT), local.clone())),
            &format!("who is silent is known of old: {known:?}"),
        )?;
        check(
            host.namespace.ifindex(TAP)? == index,
            "it is the same device",
        )?;
    }
    drop(download);
    one_by_one(&mut host.daemon, &a, "10.1.0.2")?;
    // The next one is a station as the one before was: asked for, it answers.
    host.namespace.ok(&format!("ip neigh flush dev {TAP}"))?;
    answers(&a, "10.1.0.2")?;
    let c = host.guest("c", 42, 3)?;
    answers(&c, "fd01::2")?;
    // It stays when the daemon is killed, and goes with one that is stopped.
    host.daemon.kill_and_restart()?;
    check(
        host.namespace.ifindex(TAP)? == index,
        "it is the same device behind a kill",
    )?;
    answers(&a, "10.1.0.2")?;
    host.daemon.stop()?;
    check(
        !host.namespace.succeeds(&format!("ip link show {TAP}"))?,
        "the device goes with a daemon that is stopped",
    )
}

/// By a TAP device that somebody has put into a bridge: a daemon that is killed leaves it there,
/// and the next one goes on with it.
pub fn a_killed_daemon_leaves_its_device_in_its_bridge() -> Result<()> {
    let (left, right) = cable(1500)?;
    left.ok(&format!(
        "ip addr flush dev {UPLINK}; ip link add br0 type bridge; \
         ip link set {UPLINK} master br0; ip link set br0 up"
    ))?;
    let mut hosts = Hosts {
        left: start(left, 1, Family::V4, &OPTIONS)?,
        right: start(right, 2, Family::V4, &OPTIONS)?,
    };
    hosts
        .left
        .namespace
        .ok(&format!("ip link set {TAP} master br0"))?;
    let done = of_a_device_in_a_bridge(&mut hosts);
    on(&hosts, || done)
}

fn of_a_device_in_a_bridge(hosts: &mut Hosts) -> Result<()> {
    let a = hosts.left.guest("a", 42, 1)?;
    let b = hosts.right.guest("b", 42, 2)?;
    answers(&a, "10.1.0.2")?;
    let left = &mut hosts.left;
    let shown = uplink(&left.daemon)?;
    check(shown["mode"] == "TAP", &format!("it is a TAP: {shown}"))?;
    let index = left.namespace.ifindex(TAP)?;
    let is_in_bridge = |host: &Host| {
        let shown = host.namespace.ok(&format!("ip -o link show {TAP}"))?;
        Ok::<_, String>(shown.contains("master br0"))
    };
    for turn in 0..TURNS {
        let mut download = Download::start(&a, &b, 2)?;
        let mut pings = Pings::start(&b, "10.1.0.1")?;
        pings.are_answered(50)?;
        download.goes_on(&format!("before kill {turn}"))?;
        left.daemon.kill()?;
        left.daemon.restart()?;
        check(
            left.namespace.ifindex(TAP)? == index && is_in_bridge(left)?,
            &format!("kill {turn}: it is the same device, in its bridge"),
        )?;
        download.goes_on(&format!("after kill {turn}"))?;
        pings.are_answered(500)?;
        let (lost, of) = pings.lost()?;
        println!("kill {turn}: of {of} requests {} are lost", lost.len());
        left.daemon.upgrade()?;
        check(
            left.namespace.ifindex(TAP)? == index && is_in_bridge(left)?,
            &format!("upgrade {turn}: it is the same device, in its bridge"),
        )?;
        download.goes_on(&format!("after upgrade {turn}"))?;
    }
    // Somebody has removed it while no daemon ran: it is made anew.
    left.daemon.kill()?;
    left.namespace.ok(&format!("ip link del {TAP}"))?;
    left.daemon.restart()?;
    let made = left.namespace.ifindex(TAP)?;
    check(made != index, "it is another device")?;
    left.namespace
        .ok(&format!("ip link set {TAP} master br0"))?;
    answers(&a, "10.1.0.2")?;
    // An interface has the address by now: nobody has a use for the device any more.
    left.daemon.kill()?;
    left.namespace.ok("ip addr add 192.0.2.1/24 dev br0")?;
    left.daemon.restart()?;
    wait_for("the device to go", PATIENCE, || {
        let there = left.namespace.succeeds(&format!("ip link show {TAP}"))?;
        Ok((!there).then_some(()))
    })
}

/// Three pairs of guests, a worker for each on either host.
fn of_three_workers(hosts: &mut Hosts, queues: u16) -> Result<()> {
    for host in [&hosts.left, &hosts.right] {
        let shown = uplink(&host.daemon)?;
        check(
            shown["queues"] == queues,
            &format!("it has {queues} queues: {shown}"),
        )?;
    }
    let mut guests = Vec::new();
    for pair in 0..3 {
        let left = hosts.left.guest(&format!("l{pair}"), 42, 1 + 2 * pair)?;
        let right = hosts.right.guest(&format!("r{pair}"), 42, 2 + 2 * pair)?;
        answers(&left, &format!("10.1.0.{}", 2 + 2 * pair))?;
        guests.push((left, right, 2 + 2 * pair));
    }
    let started = guests
        .iter()
        .map(|(left, right, last)| Download::start(left, right, *last));
    let mut downloads = started.collect::<Result<Vec<_>>>()?;
    let mut known = Known::of(&hosts.left.daemon)?;
    check(
        known.connections.len() == 3,
        &format!("there are three connections: {known:?}"),
    )?;
    for turn in 0..TURNS {
        let mut all: Vec<&mut Download<'_>> = downloads.iter_mut().collect();
        taken_over(&mut hosts.left.daemon, &mut known, &mut all)
            .map_err(|e| format!("turn {turn}: {e}"))?;
        for host in [&hosts.left, &hosts.right] {
            let all = host.daemon.json("worker list")?;
            let workers = all["workers"].as_array().cloned().unwrap_or_default();
            let has_part = |worker: &Value| {
                let queues = worker["queues"].as_array().map_or(0, Vec::len);
                queues == 1 && number(&worker["frames"]).is_some_and(|frames| frames > 1000)
            };
            check(
                workers.len() == 3 && workers.iter().all(has_part),
                &format!("turn {turn}: each has a NIC, and moves frames: {all}"),
            )?;
        }
        hosts.right.daemon.upgrade()?;
        for download in &mut downloads {
            download.goes_on(&format!("after the other host's upgrade {turn}"))?;
        }
    }
    Ok(())
}

/// One process fails to take a daemon's place when it has all, and another one takes it: nobody
/// notices of either.
fn taken_over(
    daemon: &mut Daemon,
    known: &mut Known,
    downloads: &mut [&mut Download<'_>],
) -> Result<()> {
    let steps = format!("{UNTIL_PORTS}; say(NO, 'I have it all, and do not want it')");
    let fails = other_program::write(daemon.dir(), "fails", &other_program::text(&steps))?;
    let refused = daemon.cli(&format!("upgrade {fails}")).err();
    let refused = refused.unwrap_or_default();
    check(
        refused.contains("I have it all, and do not want it"),
        &format!("the other program's words are passed on: {refused}"),
    )?;
    known.is_known_to(daemon, "a failure")?;
    for download in &mut *downloads {
        download.goes_on("after a failure")?;
    }
    let lost = lost_for_want_of_a_way(daemon)?;
    daemon.upgrade()?;
    known.is_known_to(daemon, "an upgrade")?;
    for download in downloads {
        download.goes_on("after an upgrade")?;
    }
    // The next hops are known before a frame moves.
    let more = lost_for_want_of_a_way(daemon)?.saturating_sub(lost);
    check(
        more == 0,
        &format!(
            "{more} frames are lost for want of a way: {}",
            daemon.cli("drops")?
        ),
    )
}

/// Frames that were dropped for want of a way: the daemon did not know its own addresses, or a next
/// hop.
fn lost_for_want_of_a_way(daemon: &Daemon) -> Result<u64> {
    let of_uplink = uplink(daemon)?;
    let of_nics = daemon.json("drops")?;
    let drops = [&of_uplink, &of_nics].map(|said| said["drops"].as_array());
    let of_the_way = drops.into_iter().flatten().flatten().filter(|drop| {
        let why = drop["reason"].as_str().unwrap_or_default();
        why.contains("not_ours") || why.contains("next_hop")
    });
    Ok(of_the_way.filter_map(|drop| number(&drop["frames"])).sum())
}

/// Without any load, so that nothing is lost for want of room: every echo request of a guest is
/// answered over an upgrade.
fn one_by_one(daemon: &mut Daemon, from: &Namespace, to: &str) -> Result<()> {
    let ping = Pings::start(from, to)?;
    daemon.upgrade()?;
    ping.ended_whole("a guest's")
}

/// A guest's download, of one connection.
struct Download<'a> {
    guest: &'a Namespace,
    client: Process,
    _server: Process,
}

impl<'a> Download<'a> {
    /// From `server`, which has 10.1.0.`last`.
    fn start(guest: &'a Namespace, server: &Namespace, last: u8) -> Result<Self> {
        let _server = serve(server, "tcp-serve 80")?;
        let get = tool(&format!("tcp-get 10.1.0.{last} 80 0 120"));
        Ok(Self {
            guest,
            client: guest.start("download", &get)?,
            _server,
        })
    }

    /// Waits until some more of it has come.
    fn goes_on(&mut self, when: &str) -> Result<()> {
        let start = self.guest.counter("rx_bytes")?;
        wait_for(&format!("the download {when}"), PATIENCE, || {
            Ok((self.guest.counter("rx_bytes")? > start + 5_000_000).then_some(()))
        })?;
        check(
            self.client.ended().is_none(),
            &format!("the download goes on {when}: {}", self.client.log()),
        )
    }
}

/// Echo requests, of which each is to be answered.
struct Pings(Process);

impl Pings {
    fn start(from: &Namespace, to: &str) -> Result<Self> {
        let ping = from.start("pings", &format!("ping -i 0.002 {to}"))?;
        Ok(Self(ping))
    }

    /// Waits until so many have been.
    fn are_answered(&self, count: usize) -> Result<()> {
        wait_for("answers", PATIENCE, || {
            Ok((self.0.log().matches("icmp_seq=").count() >= count).then_some(()))
        })
    }

    /// Ends them: none was lost.
    fn ended_whole(mut self, whose: &str) -> Result<()> {
        let (lost, last) = self.lost()?;
        check(
            last > 100 && lost.is_empty(),
            &format!(
                "nothing of {whose} is lost, of {last} requests {lost:?}: {}",
                tail(&self.0.log(), 4)
            ),
        )
    }

    /// Ends them. Those that were not answered, and how many there were, but for the last ones,
    /// whose answers may be on their way.
    fn lost(&mut self) -> Result<(Vec<u32>, u32)> {
        self.0.signal("INT")?;
        self.0.wait(PATIENCE)?;
        let said = self.0.log();
        let number = |line: &str| {
            let (_, number) = line.split_once("icmp_seq=")?;
            number.split(' ').next()?.parse().ok()
        };
        let answered: BTreeSet<u32> = said.lines().filter_map(number).collect();
        let last = answered.last().copied().unwrap_or_default();
        let lost = (1..=last).filter(|one| !answered.contains(one));
        Ok((lost.collect(), last))
    }
}

/// What a daemon knows that the next one has to know as well.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    /// How the uplink is joined, and why not in a better way.
    joined: [Value; 3],
    /// Who is where in network 42, by MAC address and host.
    learned: Vec<(String, String)>,
    /// Since when nothing was heard of the one that is silent.
    silent_secs: Option<u64>,
    /// Connections by the client's address and port, with their state, and how many frames each
    /// has had.
    connections: BTreeMap<(String, u64), (String, u64)>,
}

impl Known {
    fn of(daemon: &Daemon) -> Result<Self> {
        let shown = uplink(daemon)?;
        let network = daemon.json("network show 42")?;
        let learned = network[0]["learned"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let silent = learned.iter().find(|one| one["mac"] == mac(SILENT));
        let silent_secs = silent.map(|one| number(&one["age_secs"]).unwrap_or_default());
        let place = |one: &Value| (text(&one["mac"]), text(&one["endpoint"]));
        let mut learned: Vec<_> = learned.iter().map(place).collect();
        learned.sort();
        let flows = daemon.json("flows list --protocol tcp")?;
        let flows = flows.as_array().into_iter().flatten();
        let connection = |flow: &Value| {
            let frames = ["original_frames", "reply_frames"].map(|name| number(&flow[name]));
            let port = number(&flow["source_port"]).unwrap_or_default();
            let frames = frames.into_iter().flatten().sum();
            (
                (text(&flow["source"]), port),
                (text(&flow["state"]), frames),
            )
        };
        Ok(Self {
            joined: ["mode", "why", "queues"].map(|name| shown[name].clone()),
            learned,
            silent_secs,
            connections: flows.map(connection).collect(),
        })
    }

    /// Whoever is the daemon now knows it, and has gone on counting.
    fn is_known_to(&mut self, daemon: &Daemon, behind: &str) -> Result<()> {
        let now = Known::of(daemon)?;
        let go_on = self.connections.iter().all(|(ends, (state, frames))| {
            let now = now.connections.get(ends);
            now.is_some_and(|now| now.0 == *state && now.1 >= *frames)
        });
        check(
            go_on
                && !self.connections.is_empty()
                && now.joined == self.joined
                && self.learned.iter().all(|one| now.learned.contains(one))
                && now.silent_secs >= self.silent_secs,
            &format!("behind {behind} it is known as before: {self:?}, {now:?}"),
        )?;
        *self = now;
        Ok(())
    }
}

/// The one uplink.
fn uplink(daemon: &Daemon) -> Result<Value> {
    Ok(daemon.json("uplink list")?["uplinks"][0].clone())
}

/// A machine of network 42 behind a host is heard once: a broadcast of it, as that host sends it.
fn says_once(host: &Namespace, from: &str, to: &str) -> Result<()> {
    let machine = Mac([0x52, 0x54, 0, 0, 7, SILENT]);
    let ours = [10, 1, 0, SILENT].into();
    let inner = build::arp_request(machine, ours, ours);
    let vxlan = [&[8, 0, 0, 0, 0, 0, 42, 0], &inner[..]].concat();
    let hex: String = vxlan.iter().map(|byte| format!("{byte:02x}")).collect();
    host.ok(&format!(
        "python3 -c \"import socket as s; f, t = '{from}', '{to}'; \
         u = s.socket(s.AF_INET6 if ':' in t else s.AF_INET, s.SOCK_DGRAM); \
         u.bind((f, 0)); u.sendto(bytes.fromhex('{hex}'), (t, 4789))\""
    ))
    .map(drop)
}

/// A daemon that is killed leaves its uplink to the next one: what comes meanwhile waits, and is
/// answered.
fn outlives_its_process(hosts: &mut Hosts) -> Result<()> {
    let k = hosts.left.guest("k", 42, 51)?;
    let l = hosts.right.guest("l", 42, 52)?;
    answers(&k, "10.1.0.52")?;
    let left = &mut hosts.left;
    let joined = uplink(&left.daemon)?["mode"].clone();
    for turn in 0..TURNS {
        let mut pings = Pings::start(&l, "10.1.0.51")?;
        pings.are_answered(50)?;
        left.daemon.kill()?;
        left.daemon.restart()?;
        pings.are_answered(200)?;
        let (lost, of) = pings.lost()?;
        // What the daemon was at when it was killed.
        let most = 2;
        check(
            lost.len() <= most,
            &format!("turn {turn}: of {of} requests {lost:?} are lost"),
        )?;
        let mode = &uplink(&left.daemon)?["mode"];
        check(
            *mode == joined,
            &format!("turn {turn}: it is joined by {mode}"),
        )?;
    }
    Ok(())
}

/// A daemon that ends as it is told to gives the kernel its interface back.
fn ends_as_it_is_told(host: &mut Host) -> Result<()> {
    let has_program = |host: &Host| {
        let shown = host.namespace.ok(&format!("ip link show {UPLINK}"))?;
        Ok::<_, String>(shown.contains("xdp"))
    };
    check(has_program(host)?, "a program takes VXLAN")?;
    host.daemon.stop()?;
    check(!has_program(host)?, "the interface is the kernel's")
}
