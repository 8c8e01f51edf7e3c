//! What outlives the daemon beside what is declared: TAP devices in the containers that they were
//! moved to, connections, and VMMs' sessions. Real daemons are killed and stopped under load;
//! iperf3 and ping are the guests, and rings in this process.

mod common;
#[path = "held/damaged.rs"]
mod damaged;
#[path = "held/options.rs"]
mod options;
#[path = "held/post_copy.rs"]
mod post_copy;
#[path = "held/start.rs"]
mod start;
#[path = "held/upgrade.rs"]
mod upgrade;
#[path = "held/versions.rs"]
mod versions;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use common::{Daemon, PATIENCE, end_keepers, within};
use io::vhost::features::{IN_ORDER, LOG_ALL, PROTOCOL_FEATURES, RING_PACKED};
use io::vhost::request::{GET_FEATURES, SET_FEATURES, SET_LOG_BASE};
use rustix::process::{Pid, Signal, kill_process};
use testkit::netns::Namespace;
use testkit::process::{Process, has_ended, keepers_of};
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::Frontend;
use testkit::wait_for;
use tonic::transport::Channel;
use wire::build;
use wire::offload::Offload;

const LEFT: &str = "10.7.0.1";
const RIGHT: &str = "10.7.0.2";

/// Two containers with a TAP NIC each, and a daemon with a store and a keeper.
struct Pair {
    daemon: Option<Daemon>,
    args: Vec<String>,
    left: Namespace,
    right: Namespace,
    store: tempfile::TempDir,
    /// Of the names of its devices: tests run at the same time.
    number: u32,
}

static PAIRS: AtomicU32 = AtomicU32::new(0);

impl Pair {
    /// `None`, having said why, where it cannot be had.
    async fn new(allow_midstream: bool) -> Option<Pair> {
        if let Err(why) = std::fs::File::options().write(true).open("/dev/net/tun") {
            println!("skipped: /dev/net/tun: {why}");
            return None;
        }
        let (left, right) = match (Namespace::new(), Namespace::new()) {
            (Ok(left), Ok(right)) => (left, right),
            (Err(why), _) | (_, Err(why)) => {
                println!("skipped: no network namespace: {why}");
                return None;
            }
        };
        let store = tempfile::tempdir().unwrap();
        let args = ["--store", "--keeper"].into_iter().zip(["state", "keeper"]);
        let args = args.flat_map(|(option, name)| {
            let path = store.path().join(name);
            [option.to_owned(), path.to_str().unwrap().to_owned()]
        });
        let args: Vec<String> = args.collect();
        let mut pair = Pair {
            daemon: None,
            args,
            left,
            right,
            store,
            number: PAIRS.fetch_add(1, Ordering::Relaxed),
        };
        pair.daemon = Some(Daemon::start(&pair.args()));
        let mut client = pair.daemon().v1().await;
        let rule = |direction: v1::Direction, protocol| v1::Rule {
            direction: direction.into(),
            protocol,
            ..Default::default()
        };
        // NICs that allow everything would have no connections at all.
        let group = v1::Group {
            id: "all".into(),
            rules: vec![
                rule(v1::Direction::Ingress, Some(6)),
                rule(v1::Direction::Ingress, Some(1)),
                rule(v1::Direction::Egress, None),
            ],
            allow_midstream,
            ..Default::default()
        };
        let config = v1::Config {
            nics: vec![pair.nic(1), pair.nic(2)],
            groups: vec![group],
            ..Default::default()
        };
        let request = v1::ApplyRequest {
            config: Some(config),
            dry_run: false,
        };
        within(client.apply(request)).await.unwrap();
        for (namespace, last, ip) in [(&pair.left, 1, LEFT), (&pair.right, 2, RIGHT)] {
            let address = format!("{ip}/24");
            let device = pair.device(last);
            namespace.adopt(&device, &mac(last), &[&address]).unwrap();
            namespace
                .ok(&format!("ip route add 10.8.{last}.0/24 via 10.7.0.77"))
                .unwrap();
        }
        Some(pair)
    }

    fn device(&self, last: u32) -> String {
        format!("bfheld{}.{last}", self.number)
    }

    fn nic(&self, last: u32) -> v1::Nic {
        let (id, ip) = [("l", LEFT), ("r", RIGHT)][last as usize - 1];
        v1::Nic {
            id: id.into(),
            mac: mac(last),
            vni: 7,
            addresses: vec![ip.into()],
            security_groups: vec!["all".into()],
            kind: v1::NicKind::Tap.into(),
            path: self.device(last),
            ..Default::default()
        }
    }

    fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Kills the daemon, and starts the next one.
    fn kill(&mut self) {
        let daemon = self.daemon.take().unwrap();
        self.daemon = Some(daemon.killed_and_started_again(&self.args()));
    }

    /// Stops it as systemd does, and starts the next one; what the first one logged.
    fn restart(&mut self) -> String {
        self.restart_by(common::butterflyd(), |_| ())
    }

    /// The next one is started by this command, behind a look at the folder in between.
    fn restart_by(&mut self, next: Command, look: impl FnOnce(&Path)) -> String {
        let mut daemon = self.daemon.take().unwrap();
        daemon.signal(Signal::TERM);
        daemon.wait();
        let log = daemon.log();
        let (dir, v0) = daemon.ended();
        look(dir.path());
        self.daemon = Some(Daemon::start_as(next, dir, v0, &self.args()));
        log
    }

    /// All that the containers see of their devices.
    fn seen(&self) -> Vec<String> {
        let one = |namespace: &Namespace| {
            let address = namespace.ok("ip -o addr show dev eth0").unwrap();
            // For a second the kernel looks whether others have an address of IPv6.
            let address = address.replace(" tentative", "");
            let link = namespace.ok("ip -o link show dev eth0").unwrap();
            assert!(link.contains("LOWER_UP"), "no carrier: {link}");
            let routes = namespace.ok("ip route show").unwrap();
            [address, link, routes]
        };
        [&self.left, &self.right]
            .into_iter()
            .flat_map(one)
            .collect()
    }

    /// An iperf3 that listens in the right container.
    fn server(&self) -> Process {
        let server = self.right.start("iperf3", "iperf3 -s --forceflush");
        let server = server.unwrap();
        wait_for("iperf3 to listen", PATIENCE, || {
            Ok(server.log().contains("listening").then_some(()))
        })
        .unwrap();
        server
    }

    fn keeper(&self) -> Option<u32> {
        keepers_of(&self.store.path().join("keeper"))
            .first()
            .copied()
    }
}

/// The keeper outlives daemons, and is not to outlive the test.
impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.daemon.take());
        end_keepers(self.store.path());
    }
}

fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

fn mac(last: u32) -> String {
    format!("52:54:00:07:00:{last:02x}")
}

/// Seconds between two answers at the most, of a ping every 5 ms (`ping -D`).
fn longest_gap(ping: &str) -> f64 {
    let times: Vec<f64> = ping
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok())
        .collect();
    assert!(times.len() > 100, "{ping}");
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.fold(0.0, f64::max)
}

/// Runs iperf3 and ping for four seconds, and `interrupt` in their midst; what passed in each half
/// of a second, and the longest time without an answer.
fn under_load(pair: &mut Pair, interrupt: impl FnOnce(&mut Pair)) -> (Vec<f64>, f64) {
    let _server = pair.server();
    let load = format!("timeout 30 iperf3 -J -i 0.5 -t 4 -c {RIGHT}");
    let mut load = pair.left.start("load", &load).unwrap();
    let ping = format!("ping -D -i 0.005 -w 4 {RIGHT}");
    let mut ping = pair.left.start("ping", &ping).unwrap();
    wait_for("traffic", PATIENCE, || {
        Ok((pair.right.counter("rx_bytes")? > 10_000_000).then_some(()))
    })
    .unwrap();
    interrupt(pair);
    load.wait(Duration::from_secs(30)).unwrap();
    ping.wait(Duration::from_secs(30)).unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&load.log()).unwrap_or_else(|e| panic!("{e}: {}", load.log()));
    assert_eq!(report["error"], serde_json::Value::Null, "{report}");
    let halves = report["intervals"].as_array().unwrap().iter();
    let halves = halves.map(|half| half["sum"]["bytes"].as_f64().unwrap());
    (halves.collect(), longest_gap(&ping.log()))
}

fn goes_on(halves: &[f64], log: &str) {
    let last = &halves[halves.len() - 2..];
    assert!(
        last.iter().all(|bytes| *bytes > 1_000_000.0),
        "TCP does not go on: {halves:?}\n{log}"
    );
}

/// `kill -9`: the devices stay, with all that is theirs; who may begin amid a connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn devices_stay_in_their_containers_when_the_daemon_is_killed_under_load() {
    let Some(mut pair) = Pair::new(true).await else {
        return;
    };
    let before = pair.seen();
    let mut took = Duration::ZERO;
    let (halves, gap) = under_load(&mut pair, |pair| {
        let start = Instant::now();
        pair.kill();
        took = start.elapsed();
    });
    println!(
        "killed: {:.0} ms without an answer, {} ms from the kill until the next daemon is ready",
        gap * 1e3,
        took.as_millis()
    );
    goes_on(&halves, &pair.daemon().log());
    assert_eq!(pair.seen(), before);
    assert!(gap < took.as_secs_f64() + 0.5, "{gap} s, {took:?}");
    // Ten in a row, with nothing in between.
    for _ in 0..10 {
        pair.kill();
    }
    assert_eq!(pair.seen(), before);
    pair.left.ok(&format!("ping -c 1 -W 5 {RIGHT}")).unwrap();
}

/// `kill -9` where groups take nothing amid a connection: connections go on in their state, with
/// counters, ten times in a row; and what a group allows no more does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_when_the_daemon_is_killed() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let _server = pair.server();
    let load = format!("iperf3 -t 120 -c {RIGHT}");
    let _load = pair.left.start("load", &load).unwrap();
    let bytes = || pair.right.counter("rx_bytes");
    let passes = |what: &str| {
        let start = bytes().unwrap();
        wait_for(what, PATIENCE, || {
            Ok((bytes()? > start + 10_000_000).then_some(()))
        })
        .unwrap();
    };
    passes("traffic");
    let mut before = connections(&pair).await;
    assert!(before.len() >= 2, "{before:?}");
    let mut gaps = Vec::new();
    for kill in 0..10 {
        let ping = format!("ping -D -i 0.002 -w 2 {RIGHT}");
        let mut ping = pair.left.start("ping", &ping).unwrap();
        passes("traffic before the kill");
        let daemon = pair.daemon.take().unwrap();
        let args = pair.args();
        pair.daemon = Some(daemon.killed_and_started_again(&args));
        let log = says_that_they_go_on(pair.daemon());
        assert!(!log.contains("cannot be"), "kill {kill}: {log}");
        passes(&format!("traffic after kill {kill}"));
        let after = connections(&pair).await;
        for (ports, (state, frames, age)) in &before {
            let now = after
                .get(ports)
                .unwrap_or_else(|| panic!("kill {kill}: {ports:?} is not in {after:?}"));
            assert_eq!(state, &now.0, "kill {kill}");
            assert!(now.1 >= *frames && now.2 >= *age, "kill {kill}: {now:?}");
        }
        before = after;
        ping.wait(Duration::from_secs(30)).unwrap();
        gaps.push(longest_gap(&ping.log()));
    }
    gaps.sort_by(f64::total_cmp);
    println!(
        "killed ten times: {:.0} ms without an answer (median), {:.0} ms at the most",
        gaps[5] * 1e3,
        gaps[9] * 1e3
    );
    // Killed, and allowed no more by what was declared meanwhile.
    let mut client = pair.daemon().v1().await;
    allow_nothing(&mut client).await;
    drop(client);
    pair.kill();
    nothing_arrives(&pair);
}

/// A daemon that is killed while it takes connections up leaves two memories of them, and the next
/// one finds all in both; the connections that have moved meanwhile go on from where they are.
#[tokio::test(flavor = "multi_thread")]
async fn daemons_are_killed_while_they_take_connections_up() {
    /// More than are taken up until the daemon is ready.
    const MANY: u16 = 60_000;
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let mut client = pair.daemon().v1().await;
    let rule = |direction: v1::Direction, protocol| v1::Rule {
        direction: direction.into(),
        protocol,
        ..Default::default()
    };
    let ingress = [1, 6, 17].map(|protocol| rule(v1::Direction::Ingress, Some(protocol)));
    let egress = rule(v1::Direction::Egress, None);
    let group = v1::Group {
        id: "all".into(),
        rules: ingress.into_iter().chain([egress]).collect(),
        ..Default::default()
    };
    let group = v1::PutGroupRequest { group: Some(group) };
    within(client.put_group(group)).await.unwrap();
    drop(client);
    let _server = pair.server();
    let load = format!("iperf3 -t 120 -c {RIGHT}");
    let _load = pair.left.start("load", &load).unwrap();
    let sent = pair.left.inside(|| {
        let socket = std::net::UdpSocket::bind((LEFT, 0)).unwrap();
        for port in 1..=MANY {
            socket.send_to(b"", (RIGHT, port)).unwrap();
            // No faster than the device's queue is emptied.
            if port % 100 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    sent.unwrap();
    let before = connections(&pair).await;
    let many = count(&pair, 17).await;
    // On a busy machine the device's queue drops some.
    assert!(many > usize::from(MANY) / 2, "{many}");
    let mut amid = 0;
    for _ in 0..6 {
        let daemon = pair.daemon.take().unwrap();
        let daemon = daemon.killed_and_started_again(&pair.args());
        amid += usize::from(daemon.log().contains("while it took connections up"));
        pair.daemon = Some(daemon);
    }
    assert!(amid > 0, "none was killed amid it");
    let start = pair.right.counter("rx_bytes").unwrap();
    wait_for("traffic", PATIENCE, || {
        let now = pair.right.counter("rx_bytes")?;
        Ok((now > start + 10_000_000).then_some(()))
    })
    .unwrap();
    let after = connections(&pair).await;
    for (ports, (state, frames, _)) in &before {
        let now = after
            .get(ports)
            .unwrap_or_else(|| panic!("{ports:?} is not in {after:?}"));
        assert_eq!(state, &now.0);
        assert!(now.1 >= *frames, "{now:?}");
    }
    assert_eq!(count(&pair, 17).await, many);
    says_that_they_go_on(pair.daemon());
    println!("{amid} of 6 were killed amid it");
}

/// How many flows of a protocol there are.
async fn count(pair: &Pair, protocol: u32) -> usize {
    let mut client = pair.daemon().v1().await;
    let request = v1::ListFlowsRequest::default();
    let flows = within(client.list_flows(request)).await;
    let (mut flows, mut count) = (flows.unwrap().into_inner(), 0);
    while let Some(flow) = within(flows.message()).await.unwrap() {
        count += usize::from(flow.protocol == protocol);
    }
    count
}

/// Waits until the daemon has taken up all connections that were left; its log.
fn says_that_they_go_on(daemon: &Daemon) -> String {
    let said = || {
        let log = daemon.log();
        Ok(log.contains("connections go on").then_some(log))
    };
    wait_for("connections that go on", PATIENCE, said).unwrap()
}

/// The group of all NICs has no rule any more.
async fn allow_nothing(client: &mut ButterflyClient<Channel>) {
    let closed = v1::PutGroupRequest {
        group: Some(v1::Group {
            id: "all".into(),
            ..Default::default()
        }),
    };
    within(client.put_group(closed)).await.unwrap();
}

/// For half a second.
fn nothing_arrives(pair: &Pair) {
    let start = pair.right.counter("rx_packets").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(pair.right.counter("rx_packets").unwrap(), start);
}

/// TCP connections by their ports: state, frames and age of each.
async fn connections(pair: &Pair) -> BTreeMap<(u32, u32), (String, u64, u64)> {
    let mut client = pair.daemon().v1().await;
    let request = v1::ListFlowsRequest::default();
    let mut flows = within(client.list_flows(request))
        .await
        .unwrap()
        .into_inner();
    let mut found = BTreeMap::new();
    while let Some(flow) = within(flows.message()).await.unwrap() {
        if flow.protocol == 6 {
            let ports = (flow.source_port, flow.destination_port);
            let frames = flow.original_frames + flow.reply_frames;
            found.insert(ports, (flow.state, frames, flow.age_secs));
        }
    }
    found
}

/// Two guests by vhost-user, of which the first sends to the second.
struct Guests {
    daemon: Option<Daemon>,
    args: Vec<String>,
    store: tempfile::TempDir,
    vmms: [Frontend; 2],
    from: Guest,
    to: Guest,
    /// Frames that were sent, and how often each has come.
    sent: u32,
    came: BTreeMap<u32, u32>,
    taken_back: u32,
    /// When the last one came, and the longest time between two.
    last: Instant,
    gap: Duration,
}

/// The port that the rules allow, and one that they do not.
const ALLOWED: u16 = 7;
const FORBIDDEN: u16 = 8;

/// Datagrams to the one port come in.
fn rule_of_what_passes() -> v1::Rule {
    v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(17),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: ALLOWED.into(),
            end: ALLOWED.into(),
        })),
        ..Default::default()
    }
}

/// A guest's NIC.
fn nic(id: &str, last: u32) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: mac(last),
        vni: 7,
        addresses: vec![format!("10.7.0.{last}")],
        security_groups: vec!["one".into()],
        ..Default::default()
    }
}

impl Guests {
    /// The VMMs' connections are whole, and nothing is sent any more: how many frames were lost,
    /// and how many came twice.
    fn ended_whole(&mut self, kind: &str) -> (usize, usize) {
        // It is the same connection, and nothing is half said on it.
        for vmm in &mut self.vmms {
            assert!(vmm.get(GET_FEATURES).unwrap() & PROTOCOL_FEATURES != 0);
        }
        // All that was offered comes back, each once (the driver sees to that).
        let until = Instant::now() + PATIENCE;
        while self.from.transmitq.outstanding() > 0 {
            assert!(Instant::now() < until, "{kind}: descriptors are lost");
            self.taken_back += self.from.reclaim() as u32;
            self.receive();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.receive();
        let twice = self.came.values().filter(|times| **times > 1).count();
        (self.sent as usize - self.came.len(), twice)
    }

    async fn new(features: u64) -> Guests {
        Guests::with(features, &[]).await
    }

    /// Of a daemon with these options besides.
    async fn with(features: u64, options: &[&str]) -> Guests {
        let store = tempfile::tempdir().unwrap();
        let args = ["--store", "--keeper"].into_iter().zip(["state", "keeper"]);
        let args = args.flat_map(|(option, name)| {
            let path = store.path().join(name);
            [option.to_owned(), path.to_str().unwrap().to_owned()]
        });
        let options = options.iter().map(|&option| option.to_owned());
        let args: Vec<String> = args.chain(options).collect();
        let given: Vec<&str> = args.iter().map(String::as_str).collect();
        let daemon = Daemon::start(&given);
        let group = v1::Group {
            id: "one".into(),
            rules: vec![rule_of_what_passes()],
            ..Default::default()
        };
        let config = v1::Config {
            nics: vec![nic("a", 1), nic("b", 2)],
            groups: vec![group],
            ..Default::default()
        };
        let request = v1::ApplyRequest {
            config: Some(config),
            dry_run: false,
        };
        within(daemon.v1().await.apply(request)).await.unwrap();
        let boot = |id: &str| {
            let guest = Guest::new(GuestOptions {
                features,
                ..GuestOptions::default()
            });
            let path = daemon.path(&format!("qemu-vhost-{id}"));
            let mut vmm = Frontend::connect(&path).unwrap();
            vmm.negotiate(features | PROTOCOL_FEATURES).unwrap();
            vmm.start(&guest, [0, 0]).unwrap();
            (vmm, guest)
        };
        let ((one, from), (other, to)) = (boot("a"), boot("b"));
        Guests {
            daemon: Some(daemon),
            args,
            store,
            vmms: [one, other],
            from,
            to,
            sent: 0,
            came: BTreeMap::new(),
            taken_back: 0,
            last: Instant::now(),
            gap: Duration::ZERO,
        }
    }

    /// Sends and receives what there is room for: a frame with its number, each tenth besides with
    /// one that may not come.
    fn turn(&mut self) {
        let ports = [ALLOWED, FORBIDDEN];
        for port in &ports[..1 + usize::from(self.sent.is_multiple_of(10))] {
            let mut frame = build::frame(mac(1).parse().unwrap(), mac(2).parse().unwrap())
                .ip(Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2))
                .udp(40_000, *port)
                .payload(&self.sent.to_be_bytes())
                .build();
            frame.resize(60, 0);
            if self.from.send(&frame, Offload::default(), &Shape::whole()) && *port == ALLOWED {
                self.sent += 1;
            }
        }
        self.from.transmitq.publish();
        self.taken_back += self.from.reclaim() as u32;
        self.receive();
        std::thread::sleep(Duration::from_micros(200));
    }

    fn receive(&mut self) {
        for received in self.to.receive() {
            let udp = &received.frame[34..];
            assert_eq!(
                udp[2..4],
                ALLOWED.to_be_bytes(),
                "it is forbidden, and came"
            );
            let number = u32::from_be_bytes(udp[8..12].try_into().unwrap());
            *self.came.entry(number).or_default() += 1;
            self.gap = self.gap.max(self.last.elapsed());
            self.last = Instant::now();
        }
    }

    /// Goes on until so many frames more have come.
    fn flow(&mut self, more: usize, what: &str) {
        let wanted = self.came.len() + more;
        let until = Instant::now() + PATIENCE;
        while self.came.len() < wanted {
            let log = || self.daemon.as_ref().map(Daemon::log);
            assert!(Instant::now() < until, "{what}: {:?}", log());
            self.turn();
        }
    }

    /// The next daemon, while frames are sent; how long none came.
    fn replaced(
        &mut self,
        replace: impl FnOnce(Daemon, &[&str]) -> Daemon + Send + 'static,
    ) -> Duration {
        let (daemon, args) = (self.daemon.take().unwrap(), self.args.clone());
        self.gap = Duration::ZERO;
        let next = std::thread::spawn(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            replace(daemon, &args)
        });
        while !next.is_finished() {
            self.turn();
        }
        self.daemon = Some(next.join().unwrap());
        self.flow(100, "frames after a daemon was replaced");
        self.gap
    }

    /// `kill -9`, and the next one, while nothing is sent.
    fn killed(&mut self) {
        let daemon = self.daemon.take().unwrap();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.daemon = Some(daemon.killed_and_started_again(&args));
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        drop(self.daemon.take());
        end_keepers(self.store.path());
    }
}

/// `kill -9` under a stream of frames: the VMMs do not notice, rings of either kind go on, no
/// descriptor is lost or given back twice, and nothing comes that the rules forbid. Ten times in a
/// row, and then a stop and a start.
#[tokio::test(flavor = "multi_thread")]
async fn vmms_keep_their_connections_when_the_daemon_is_killed() {
    for (kind, features) in [
        ("split", 0),
        ("packed", RING_PACKED),
        ("in order", IN_ORDER),
    ] {
        let mut guests = Guests::new(common::FEATURES | features).await;
        guests.flow(100, "frames before");
        let killed = |daemon: Daemon, args: &[&str]| daemon.killed_and_started_again(args);
        let mut gaps: Vec<Duration> = (0..10).map(|_| guests.replaced(killed)).collect();
        gaps.sort();
        let stopped = guests.replaced(|mut daemon, args| {
            daemon.signal(Signal::TERM);
            daemon.wait();
            let (dir, v0) = daemon.ended();
            Daemon::start_in(dir, v0, args)
        });
        let log = guests.daemon.as_ref().unwrap().log();
        assert_eq!(
            log.matches("session of the process before goes on").count(),
            2,
            "{log}"
        );
        let (lost, twice) = guests.ended_whole(kind);
        println!(
            "{kind}: without a frame {} ms (median of ten kills), {} ms at the most; {} ms over a \
             stop; of {} frames {lost} lost and {twice} twice",
            gaps[5].as_millis(),
            gaps[9].as_millis(),
            stopped.as_millis(),
            guests.sent
        );
        // Those in flight when it was killed or stopped: of two batches at the most.
        assert!(
            lost <= 12 * 128,
            "{kind}: {lost} of {} are lost",
            guests.sent
        );
        assert!(
            twice <= 12 * 64,
            "{kind}: {twice} of {} came twice",
            guests.sent
        );
    }
}

/// One that is killed while it takes up what the one before has left, at any moment of that: the
/// next one finds it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn daemons_are_killed_amid_their_start() {
    const MOMENTS: u32 = 24;
    for (kind, features) in [("split", 0), ("packed", RING_PACKED)] {
        let mut guests = Guests::new(common::FEATURES | features).await;
        guests.flow(100, "frames before");
        let begun = Instant::now();
        guests.killed();
        let took = begun.elapsed();
        guests.flow(100, "frames of the second");
        guests.replaced(move |daemon, args| {
            let (dir, v0) = daemon.killed();
            for moment in 1..=MOMENTS {
                // A little longer than it took, since each has a place in the order of all.
                let after = took * moment / (MOMENTS - 4);
                Daemon::killed_amid_its_start(&dir, &v0, args, after);
            }
            Daemon::start_in(dir, v0, args)
        });
        let log = guests.daemon.as_ref().unwrap().log();
        let go_on = log.matches("session of the process before goes on").count();
        assert_eq!(go_on, 2, "{kind}: {log}");
        let (lost, twice) = guests.ended_whole(kind);
        println!(
            "{kind}: {MOMENTS} killed within {} ms of their start; of {} frames {lost} lost and \
             {twice} twice",
            took.as_millis(),
            guests.sent
        );
        let kills = MOMENTS as usize + 2;
        assert!(lost <= kills * 128, "{kind}: {lost} are lost");
        assert!(twice <= kills * 64, "{kind}: {twice} came twice");
    }
}

/// SIGTERM and a start, as `systemctl restart`: also a group that takes nothing amid a connection
/// has its connections go on.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_over_a_restart() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let before = pair.seen();
    let mut took = Duration::ZERO;
    let mut said = String::new();
    let (halves, gap) = under_load(&mut pair, |pair| {
        let start = Instant::now();
        said = pair.restart_by(common::butterflyd(), |folder| {
            assert!(!folder.join("connections").exists(), "they are in memory");
        });
        took = start.elapsed();
    });
    println!(
        "restarted: {:.0} ms without an answer, {} ms from the signal until the next daemon is \
         ready",
        gap * 1e3,
        took.as_millis()
    );
    let log = says_that_they_go_on(pair.daemon());
    assert!(said.contains("connections are left"), "{said}");
    assert!(!said.contains(" 0 connections are left"), "{said}");
    goes_on(&halves, &log);
    assert_eq!(pair.seen(), before);
    assert!(!pair.daemon().path("connections").exists());
    // What a group allows no more does not go on, whatever was left.
    let mut client = pair.daemon().v1().await;
    let _server = pair.server();
    // Not by way of another program, which would be ended alone.
    let load = format!("iperf3 -t 10 -c {RIGHT}");
    let _load = pair.left.start("load", &load).unwrap();
    let bytes = || pair.right.counter("rx_bytes");
    let start = bytes().unwrap();
    wait_for("traffic", PATIENCE, || {
        Ok((bytes()? > start + 10_000_000).then_some(()))
    })
    .unwrap();
    allow_nothing(&mut client).await;
    drop(client);
    pair.restart();
    nothing_arrives(&pair);
}

/// Where another program is there to be started next, which may be of another version, connections
/// go on by way of a file.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_over_a_restart_by_another_program() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let program = pair.store.path().join("butterflyd");
    std::fs::copy(common::PROGRAM, &program).unwrap();
    pair.restart_by(common::butterflyd_at(&program), |_| ());
    let mut said = String::new();
    let (halves, _) = under_load(&mut pair, |pair| {
        let another = program.with_extension("new");
        std::fs::copy(common::PROGRAM, &another).unwrap();
        std::fs::rename(&another, &program).unwrap();
        said = pair.restart_by(common::butterflyd_at(&program), |folder| {
            assert!(folder.join("connections").exists());
        });
    });
    let log = says_that_they_go_on(pair.daemon());
    assert!(!said.contains(" 0 connections are left"), "{said}");
    goes_on(&halves, &log);
    assert!(!pair.daemon().path("connections").exists());
}

/// Nobody waits for a daemon's memory to be taken apart: a process that shares it ends behind it,
/// and holds nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn its_memory_outlives_a_daemon_by_a_moment() {
    for signal in [Signal::KILL, Signal::TERM] {
        let mut guests = Guests::new(common::FEATURES).await;
        guests.flow(100, "frames");
        let mut daemon = guests.daemon.take().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let file = |pid: u32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        let holders: Vec<u32> = children
            .filter(|pid| file(*pid, "comm").unwrap() == "memory\n")
            .collect();
        let &[holder] = &holders[..] else {
            panic!("{holders:?}");
        };
        let maps = file(holder, "maps").unwrap();
        assert!(maps.contains("butterfly-flows"), "{maps}");
        let open = std::fs::read_dir(format!("/proc/{holder}/fd")).unwrap();
        assert_eq!(open.count(), 0);
        assert!(!has_ended(holder));
        daemon.signal(signal);
        daemon.wait();
        wait_for("the memory to go", PATIENCE, || {
            Ok(has_ended(holder).then_some(()))
        })
        .unwrap();
    }
}

/// The keeper has a device's descriptor as well, which says for ever that there is something to
/// read once the device is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_rests_beside_a_device_that_is_gone() {
    let Some(pair) = Pair::new(false).await else {
        return;
    };
    let mut client = pair.daemon().v1().await;
    pair.left.ok("ip link del eth0").unwrap();
    let begun = Instant::now();
    let request = || v1::GetNicRequest { id: "l".into() };
    loop {
        let nic = within(client.get_nic(request())).await.unwrap();
        if nic.get_ref().state() == v1::PortState::Broken {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it is not told of");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Without work it polls for a moment, and sleeps then.
    let mut turns = async || {
        let workers = within(client.list_workers(v1::ListWorkersRequest {})).await;
        let workers = workers.unwrap().into_inner().workers;
        workers.iter().map(|worker| worker.turns).sum::<u64>()
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = turns().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let in_a_second = turns().await - before;
    assert!(
        in_a_second < 20_000,
        "{in_a_second} turns of the loop in a second"
    );
}

/// What is deleted goes, whoever holds it; so does all when the daemon is told to end for good, and
/// then the keeper has nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_goes_and_the_keeper_ends_with_the_last() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let keeper = pair.keeper().expect("a keeper runs");
    pair.kill();
    assert_eq!(pair.keeper(), Some(keeper), "it outlives the daemon");
    let mut client = pair.daemon().v1().await;
    let request = v1::DeleteNicRequest { id: "r".into() };
    within(client.delete_nic(request)).await.unwrap();
    assert!(!pair.right.succeeds("ip link show eth0").unwrap());
    // Again, and elsewhere; and one that was removed from under us is made anew.
    let put = v1::PutNicRequest {
        nic: Some(pair.nic(2)),
        create_only: true,
    };
    within(client.put_nic(put)).await.unwrap();
    let address = format!("{RIGHT}/24");
    pair.right
        .adopt(&pair.device(2), &mac(2), &[&address])
        .unwrap();
    drop(client);
    let (dir, v0) = pair.daemon.take().unwrap().killed();
    pair.left.ok("ip link del eth0").unwrap();
    pair.daemon = Some(Daemon::start_in(dir, v0, &pair.args()));
    let address = format!("{LEFT}/24");
    pair.left
        .adopt(&pair.device(1), &mac(1), &[&address])
        .unwrap();
    pair.left.ok(&format!("ping -c 1 -W 5 {RIGHT}")).unwrap();

    let mut client = pair.daemon().v1().await;
    within(client.shutdown(v1::ShutdownRequest {}))
        .await
        .unwrap();
    let mut daemon = pair.daemon.take().unwrap();
    daemon.wait();
    wait_for("the devices to go", PATIENCE, || {
        let there = pair.left.succeeds("ip link show eth0")?;
        Ok((!there && pair.keeper().is_none()).then_some(()))
    })
    .unwrap();
    // What is declared is there all the same.
    let (dir, v0) = daemon.ended();
    pair.daemon = Some(Daemon::start_in(dir, v0, &pair.args()));
    pair.left
        .adopt(&pair.device(1), &mac(1), &[&address])
        .unwrap();
}

/// Nothing is lost with the keeper, and the next one has all: then the daemon may die. The next
/// daemon has not started that keeper, and replaces it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_keeper_is_killed_and_then_the_daemon() {
    let Some(mut pair) = Pair::new(true).await else {
        return;
    };
    let before = pair.seen();
    for _ in 0..2 {
        let first = pair.keeper().expect("a keeper runs");
        kill(first);
        wait_for("the next keeper to have all", PATIENCE, || {
            let log = pair.daemon().log();
            Ok(log.contains("has all again").then_some(()))
        })
        .unwrap();
        assert_ne!(pair.keeper(), Some(first));
        assert_eq!(pair.seen(), before);
        pair.kill();
        assert_eq!(pair.seen(), before);
        pair.left.ok(&format!("ping -c 1 -W 5 {RIGHT}")).unwrap();
    }
    // A second daemon has no business with it while the first is there.
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("store");
    let keeper = pair.store.path().join("keeper");
    let output = common::run(&[
        "--no-syslog",
        "--api",
        "none",
        "-s",
        dir.path().to_str().unwrap(),
        "--store",
        other.to_str().unwrap(),
        "--keeper",
        keeper.to_str().unwrap(),
    ]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is another daemon's"), "{said}");
    assert_eq!(pair.seen(), before);
}

/// A keeper that this daemon has not started, and that stays away: its status says so meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_stays_away_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (socket, store) = (path("keeper"), path("store"));
    let args = ["--store", &store, "--keeper", &socket];
    let daemon = Daemon::start(&args).killed_and_started_again(&args);
    let mut client = daemon.v1().await;
    let mut said = async || {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let status = within(client.get_status(v1::GetStatusRequest::default())).await;
        let warnings = status.unwrap().into_inner().warnings;
        warnings.iter().any(|line| line.contains(&socket))
    };
    assert!(!said().await);
    keepers_of(Path::new(&socket)).into_iter().for_each(kill);
    let until = Instant::now() + PATIENCE;
    while !said().await {
        assert!(Instant::now() < until, "no warning:\n{}", daemon.log());
    }
    // Where nobody does within 5 s, the daemon starts the next one.
    let until = Instant::now() + PATIENCE;
    while said().await {
        assert!(Instant::now() < until, "not back:\n{}", daemon.log());
    }
    drop(daemon);
    end_keepers(folder.path());
}

/// The keeper is killed under a stream of frames, and then the daemon; several times in a row, and
/// once amid an upgrade: VMMs notice neither.
#[tokio::test(flavor = "multi_thread")]
async fn vmms_keep_their_connections_when_keeper_and_daemon_are_killed() {
    let mut guests = Guests::new(common::FEATURES | RING_PACKED).await;
    guests.flow(100, "frames before");
    let keeper = guests.store.path().join("keeper");
    let kill_keeper = || {
        let held_by = keepers_of(&keeper);
        assert_eq!(held_by.len(), 1, "one keeper");
        kill(held_by[0]);
    };
    for _ in 0..3 {
        kill_keeper();
        let until = Instant::now() + PATIENCE;
        while !guests
            .daemon
            .as_ref()
            .unwrap()
            .log()
            .contains("has all again")
        {
            assert!(Instant::now() < until, "there is no keeper again");
            guests.turn();
        }
        guests.replaced(|daemon, args| daemon.killed_and_started_again(args));
        let log = guests.daemon.as_ref().unwrap().log();
        let gone_on = log.matches("session of the process before goes on");
        assert_eq!(gone_on.count(), 2, "{log}");
    }
    kill_keeper();
    let daemon = guests.daemon.as_mut().unwrap();
    if let Err(refused) = upgrade::upgrade(daemon, "").await {
        // Before it had noticed, or before there was another one.
        assert!(refused.message().contains("keeper"), "{refused}");
    }
    guests.flow(100, "frames behind an upgrade without a keeper");
    assert_eq!(guests.ended_whole("killed with its keeper").1, 0);
}

/// Bytes of a log with a bit for each page below 16 GiB.
const LOG_BYTES: u64 = (16 << 30) / 4096 / 8;

/// A VMM gives a log of written pages.
fn log_of(vmm: &mut Frontend) -> OwnedFd {
    let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&log, LOG_BYTES).unwrap();
    let spec = [LOG_BYTES.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
    vmm.send(SET_LOG_BASE, &spec, &[log.as_fd()]).unwrap();
    vmm.reply(SET_LOG_BASE).unwrap();
    log
}

/// Whether any page is noted in it.
fn is_noted(log: &OwnedFd) -> bool {
    let mut noted = vec![0; LOG_BYTES as usize];
    rustix::io::pread(log, &mut noted, 0).unwrap();
    noted.iter().any(|byte| *byte != 0)
}

/// While a VMM moves its guest its session goes with the daemon, which does not give way; when the
/// move is called off, it outlives the daemon as before. The next daemon has no log of written
/// pages, and waits for one before it writes what is to be noted.
#[tokio::test(flavor = "multi_thread")]
async fn a_vmm_whose_move_was_called_off_keeps_its_connection() {
    let mut guests = Guests::new(common::FEATURES).await;
    guests.flow(100, "frames before");
    let features = common::FEATURES | PROTOCOL_FEATURES;
    for vmm in &mut guests.vmms {
        vmm.take_everything().unwrap();
        log_of(vmm);
        vmm.set(SET_FEATURES, features | LOG_ALL).unwrap();
    }
    guests.flow(100, "frames while it moves");
    let refused = upgrade::upgrade(guests.daemon.as_mut().unwrap(), "").await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("moves its guest"), "{refused}");
    guests.flow(100, "frames behind the refusal");
    for vmm in &mut guests.vmms {
        vmm.set(SET_FEATURES, features).unwrap();
    }
    guests.flow(100, "frames after it was called off");
    guests.upgraded("");
    guests.replaced(|daemon, args| daemon.killed_and_started_again(args));
    // It moves again: nothing comes to it until there is a log, which then knows of it.
    guests.vmms[1]
        .set(SET_FEATURES, features | LOG_ALL)
        .unwrap();
    guests.receive();
    let before = guests.came.len();
    (0..50).for_each(|_| guests.turn());
    assert_eq!(guests.came.len(), before, "it would not be noted");
    let log = log_of(&mut guests.vmms[1]);
    guests.flow(100, "frames when there is a log");
    assert!(is_noted(&log));
    guests.vmms[1].set(SET_FEATURES, features).unwrap();
    assert_eq!(guests.ended_whole("after a move that was called off").1, 0);
}

/// What a guest has a hand in may be what ends each daemon that takes it up: behind the third that
/// ends of itself nothing of it is taken up, and VMMs connect anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_ended_three_daemons_does_not_end_the_fourth() {
    const HANGS: [&str; 2] = ["--hang-secs", "1"];
    let mut guests = Guests::new(common::FEATURES).await;
    guests.flow(100, "frames before");
    // Killed: that is no end of its own.
    guests.replaced(|daemon, args| {
        let (dir, v0) = daemon.killed();
        Daemon::start_in(dir, v0, &[args, &HANGS].concat())
    });
    for _ in 0..2 {
        guests.replaced(|mut daemon, args| {
            daemon.hangs("worker0");
            let (dir, v0) = daemon.ended();
            Daemon::start_in(dir, v0, &[args, &HANGS].concat())
        });
        let log = guests.daemon.as_ref().unwrap().log();
        assert!(log.contains("goes on"), "{log}");
    }
    let mut daemon = guests.daemon.take().unwrap();
    daemon.hangs("worker0");
    let (dir, v0) = daemon.ended();
    let args: Vec<&str> = guests.args.iter().map(String::as_str).collect();
    let daemon = Daemon::start_in(dir, v0, &args);
    let log = daemon.log();
    assert!(log.contains("have ended of themselves within"), "{log}");
    assert!(!log.contains("go on"), "{log}");
    assert!(!log.contains("goes on"), "{log}");
    for (vmm, id) in guests.vmms.iter_mut().zip(["a", "b"]) {
        assert!(vmm.get(GET_FEATURES).is_err(), "its connection has ended");
        common::boot(&daemon, id);
    }
    guests.daemon = Some(daemon);
}
