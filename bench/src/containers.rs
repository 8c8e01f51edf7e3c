//! Two containers that talk: by this switch with rules, by the kernel's bridge, by that with
//! nftables, and by a bare cable, all with the kernel's own TCP and UDP in namespaces; and two on
//! two hosts, by this switch's overlay and by the kernel's vxlan with rules, over a veth between
//! them.
//!
//! All of them are up at once and have their windows in turn, forth in one round and back in the
//! next. Ratios are medians of the rounds' own. Each window begins with a spell that does not
//! count: connections are made, and the switch has told the kernel of them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::netns::Namespace;

use crate::peers::process::{Process, run as command};
use crate::peers::{PeerError, butterfly};
use crate::report::{Ratios, Samples};
use crate::{FIRST_RULE_PORT, RULES, TRAFFIC_PORT, idle, interrupt};

/// Where everybody listens.
const PORT: u16 = TRAFFIC_PORT;
/// What does not count at the beginning of a window.
const WARM: Duration = Duration::from_millis(300);
/// Bytes of a datagram that fills a frame of 64 bytes, with Ethernet's checksum.
const SMALL: usize = 18;
/// Bytes that are written to a stream at once.
const CHUNK: usize = 256 << 10;

/// `butterfly-bench containers`.
#[derive(clap::Args)]
pub struct Options {
    /// Four rounds of short windows.
    #[arg(long)]
    quick: bool,
    /// Measure only those whose names contain all of these.
    #[arg(long)]
    only: Vec<String>,
}

/// What is measured on one host and on two, ours first.
const NEAR: [&str; 5] = ["ours", "ours_by_worker", "bridge", "bridge_nft", "veth"];
const FAR: [&str; 3] = ["overlay", "overlay_by_worker", "overlay_vxlan_nft"];

const BY_WORKER: [&str; 2] = ["--kernel-flows", "off"];

fn start(name: &'static str) -> Result<Entrant, PeerError> {
    match name {
        "ours" => ours(name, &[]),
        "ours_by_worker" => ours(name, &BY_WORKER),
        "bridge" => bridge(name, false),
        "bridge_nft" => bridge(name, true),
        "veth" => cable(),
        "overlay" => overlay(name, &[]),
        "overlay_by_worker" => overlay(name, &BY_WORKER),
        _ => vxlan(name),
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    Stream,
    Small,
    Median,
    Late,
    Connections,
}

const ROWS: [Row; 5] = [
    Row::Stream,
    Row::Small,
    Row::Median,
    Row::Late,
    Row::Connections,
];

impl Row {
    fn name(self) -> &'static str {
        match self {
            Row::Stream => "stream",
            Row::Small => "udp64",
            Row::Median => "rtt_p50",
            Row::Late => "rtt_p99",
            Row::Connections => "connections",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Row::Stream => "TCP stream, Gbit/s",
            Row::Small => "UDP of 64 bytes, thousand arrived a second",
            Row::Median => "TCP round trip, us, median",
            Row::Late => "TCP round trip, us, 99 of 100",
            Row::Connections => "TCP connections a second",
        }
    }
}

/// Two containers and what is between them.
struct Entrant {
    name: &'static str,
    ends: [Namespace; 2],
    /// The daemons, dropped before the namespaces that they are in.
    daemons: Vec<Process>,
    _dirs: Vec<tempfile::TempDir>,
    _hosts: Vec<Namespace>,
    /// By row: a number of each round.
    seen: Vec<Vec<f64>>,
}

/// Measures all of them. The last line's ratios are ours to each of the others, on one host and
/// over the overlay.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let (rounds, window) = match options.quick {
        true => (4, Duration::from_millis(500)),
        false => (12, Duration::from_millis(1000)),
    };
    let chosen = |name: &&&str| options.only.iter().all(|part| name.contains(part.as_str()));
    let mut entrants = Vec::new();
    for &name in NEAR.iter().chain(&FAR).filter(chosen) {
        match start(name) {
            Ok(entrant) => entrants.push(entrant),
            // What this kernel has not is left out.
            Err(why) if name.ends_with("_nft") => println!("no {name}: {why}"),
            Err(why) => return Err(why),
        }
    }
    for round in 0..rounds {
        let count = entrants.len();
        for place in 0..count {
            let place = if round % 2 == 0 {
                place
            } else {
                count - 1 - place
            };
            let entrant = &mut entrants[place];
            let values = measure(&entrant.ends, window)
                .map_err(|e| PeerError(format!("{}: {e}", entrant.name)))?;
            for (seen, value) in entrant.seen.iter_mut().zip(values) {
                seen.push(value);
            }
            interrupt::check()?;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    let mut ratios = Ratios::default();
    table(&entrants);
    for (row, what) in ROWS.iter().enumerate() {
        for scene in [&NEAR[..], &FAR[..]] {
            let mut there = entrants.iter().filter(|it| scene.contains(&it.name));
            let Some(ours) = there.next() else { continue };
            for other in there {
                let name = format!("{}_{}_to_{}", what.name(), ours.name, other.name);
                ratios.push(name, of_rounds(&ours.seen[row], &other.seen[row]));
            }
        }
    }
    for entrant in &entrants {
        for (host, daemon) in entrant.daemons.iter().enumerate() {
            let used = idle::measure(&[daemon.pid()], Duration::from_secs(3))?;
            println!("{} while nothing is sent: {used}", entrant.name);
            if host == 0 {
                ratios.push(format!("idle_percent_{}", entrant.name), used.percent);
            }
        }
    }
    Ok(ratios)
}

fn of_rounds(ours: &[f64], others: &[f64]) -> f64 {
    let mut ratios = Samples::default();
    for (ours, other) in ours.iter().zip(others) {
        ratios.push(ours / other);
    }
    ratios.median()
}

fn table(entrants: &[Entrant]) {
    println!("medians, and from the least tenth to the greatest\n");
    for (row, what) in ROWS.iter().enumerate() {
        println!("{}", what.unit());
        for entrant in entrants {
            let mut seen = Samples::default();
            entrant.seen[row].iter().for_each(|value| seen.push(*value));
            let [low, middle, high] = [0.1, 0.5, 0.9].map(|share| seen.quantile(share));
            println!(
                "  {:16} {middle:10.2}  {low:10.2} .. {high:.2}",
                entrant.name
            );
        }
    }
}

fn failed(what: &str) -> impl Fn(String) -> PeerError {
    let what = what.to_owned();
    move |why| PeerError(format!("{what}: {why}"))
}

fn address(end: usize) -> IpAddr {
    Ipv4Addr::new(10, 7, 0, 1 + end as u8).into()
}

impl Entrant {
    fn new(name: &'static str, ends: [Namespace; 2]) -> Entrant {
        Entrant {
            name,
            ends,
            daemons: Vec::new(),
            _dirs: Vec::new(),
            _hosts: Vec::new(),
            seen: vec![Vec::new(); ROWS.len()],
        }
    }
}

fn two() -> Result<[Namespace; 2], PeerError> {
    let one = || Namespace::new().map_err(failed("a namespace"));
    Ok([one()?, one()?])
}

/// This switch: NICs of type veth under a hundred rules, the last of which lets the traffic in.
fn ours(name: &'static str, options: &[&str]) -> Result<Entrant, PeerError> {
    let host = Namespace::new().map_err(failed("a namespace"))?;
    let ends = two()?;
    let (daemon, dir) = switch(&host, options)?;
    for (end, namespace) in ends.iter().enumerate() {
        add(&host, dir.path(), end, namespace)?;
    }
    Ok(Entrant {
        daemons: vec![daemon],
        _dirs: vec![dir],
        _hosts: vec![host],
        ..Entrant::new(name, ends)
    })
}

/// This switch on two hosts that are told where the containers are.
fn overlay(name: &'static str, options: &[&str]) -> Result<Entrant, PeerError> {
    let hosts = wire()?;
    let ends = two()?;
    let (mut daemons, mut dirs) = (Vec::new(), Vec::new());
    for (end, host) in hosts.iter().enumerate() {
        let own = endpoint(end);
        let all = [&["-i", own.as_str()][..], options].concat();
        let (daemon, dir) = switch(host, &all)?;
        add(host, dir.path(), end, &ends[end])?;
        let there = 1 - end;
        let line = format!(
            "binding add --vni 7 --mac 52:54:00:00:07:0{there} --ip {} --host {}",
            address(there),
            endpoint(there)
        );
        butterfly_command(host, dir.path(), &line)?;
        daemons.push(daemon);
        dirs.push(dir);
    }
    Ok(Entrant {
        daemons,
        _dirs: dirs,
        _hosts: hosts.into(),
        ..Entrant::new(name, ends)
    })
}

/// Two hosts, and a veth between them as their uplinks.
fn wire() -> Result<[Namespace; 2], PeerError> {
    let hosts = two()?;
    let line = format!(
        "ip link add uplink0 type veth peer name uplink0 netns {}",
        hosts[1].pid()
    );
    hosts[0].ok(&line).map_err(failed("veth"))?;
    for (end, host) in hosts.iter().enumerate() {
        let line = format!(
            "ip addr add {}/24 dev uplink0 && ip link set uplink0 up",
            endpoint(end)
        );
        host.ok(&line).map_err(failed("uplink0"))?;
    }
    Ok(hosts)
}

fn endpoint(end: usize) -> String {
    format!("192.0.2.{}", 1 + end)
}

/// A daemon in a namespace, and the rules.
fn switch(host: &Namespace, options: &[&str]) -> Result<(Process, tempfile::TempDir), PeerError> {
    let dir = tempfile::tempdir().map_err(|e| PeerError(format!("a folder: {e}")))?;
    let daemon = butterfly::daemon_in(Some(host.pid()), dir.path(), None, options)?;
    let ports: Vec<String> = (1..RULES / 2)
        .map(|rule| (FIRST_RULE_PORT + rule).to_string())
        .collect();
    let cli = |words: &str| butterfly_command(host, dir.path(), words);
    for protocol in ["tcp", "udp"] {
        let ports = ports.join(",");
        cli(&format!(
            "sg rule add g --ip-proto {protocol} --port {ports}"
        ))?;
        cli(&format!(
            "sg rule add g --ip-proto {protocol} --port {PORT}"
        ))?;
    }
    Ok((daemon, dir))
}

/// A container's NIC.
fn add(host: &Namespace, dir: &Path, end: usize, container: &Namespace) -> Result<(), PeerError> {
    let line = format!(
        "nic add --id c{end} --mac 52:54:00:00:07:0{end} --vni 7 --ip {}/24 --sg g --type veth \
         --netns {} --path bb-{end}",
        address(end),
        container.pid()
    );
    butterfly_command(host, dir, &line).map(drop)
}

fn butterfly_command(host: &Namespace, dir: &Path, words: &str) -> Result<String, PeerError> {
    let mut program = Process::command_in(Some(host.pid()), butterfly::sibling("butterfly")?);
    program
        .arg("-e")
        .arg(format!("unix:{}", dir.join("api.sock").display()))
        .args(words.split_whitespace());
    command(&mut program)
}

/// The kernel's bridge; with a hundred rules of nftables, which know no connections where the
/// kernel has no connection tracking for bridges.
fn bridge(name: &'static str, rules: bool) -> Result<Entrant, PeerError> {
    let host = Namespace::new().map_err(failed("a namespace"))?;
    let ends = two()?;
    let ok = |line: &str| host.ok(line).map_err(failed(name));
    ok("ip link add br0 type bridge && ip link set br0 up")?;
    for (end, namespace) in ends.iter().enumerate() {
        ok(&format!(
            "ip link add p{end} type veth peer name eth0 netns {} && \
             ip link set p{end} master br0 up",
            namespace.pid()
        ))?;
        dress(namespace, end)?;
    }
    if rules {
        let mut text = String::from(
            "table bridge b {\n chain f {\n  type filter hook forward priority 0; policy drop;\n  \
             ether type arp accept\n",
        );
        let stateful = host.succeeds(
            "nft 'table bridge t { chain f { ct state established accept; }; }' && \
             nft delete table bridge t",
        );
        match stateful.map_err(failed(name))? {
            true => text += "  ct state established accept\n",
            false => {
                println!("{name}: no connection tracking for bridges here: answers by their port");
                for protocol in ["tcp", "udp"] {
                    text += &format!("  {protocol} sport {PORT} accept\n");
                }
            }
        }
        text += &accepts("");
        text += " }\n}\n";
        ok(&format!("nft -f - <<'END'\n{text}END"))?;
    }
    Ok(Entrant {
        _hosts: vec![host],
        ..Entrant::new(name, ends)
    })
}

/// The hundred rules, each for what this matches.
fn accepts(what: &str) -> String {
    let ports = (1..RULES / 2).map(|rule| FIRST_RULE_PORT + rule);
    let ports: Vec<u16> = ports.chain([PORT]).collect();
    let rule = |(protocol, port)| format!("  {what}{protocol} dport {port} accept\n");
    let of = |protocol| ports.iter().map(move |port| (protocol, port));
    of("tcp").chain(of("udp")).map(rule).collect()
}

/// The kernel's own overlay: on each of two hosts a bridge, a vxlan device and a hundred rules of
/// nftables with connection tracking, which the bridge's packets pass (br_netfilter).
fn vxlan(name: &'static str) -> Result<Entrant, PeerError> {
    let hosts = wire()?;
    let ends = two()?;
    for (end, host) in hosts.iter().enumerate() {
        let ok = |line: &str| host.ok(line).map_err(failed(name));
        ok("test -e /proc/sys/net/bridge/bridge-nf-call-iptables")?;
        ok(&format!(
            "ip link add br0 type bridge && ip link set br0 up && \
             ip link add p{end} mtu 1450 type veth peer name eth0 mtu 1450 netns {} && \
             ip link add tunnel mtu 1450 type vxlan id 7 dstport 4789 local {} remote {} \
                 dev uplink0 noudpcsum && \
             for port in p{end} tunnel; do ip link set $port master br0 up; done",
            ends[end].pid(),
            endpoint(end),
            endpoint(1 - end)
        ))?;
        dress(&ends[end], end)?;
        let own = address(end);
        ok(&format!(
            "sysctl -q -w net.bridge.bridge-nf-call-iptables=1 && nft -f - <<'END'\n\
             table ip b {{\n chain f {{\n  type filter hook forward priority 0; policy drop;\n  \
             ct state established,related accept\n  ip saddr {own} accept\n{} }}\n}}\nEND",
            accepts(&format!("ip daddr {own} "))
        ))?;
    }
    Ok(Entrant {
        _hosts: hosts.into(),
        ..Entrant::new(name, ends)
    })
}

/// A veth pair, one end in each.
fn cable() -> Result<Entrant, PeerError> {
    let ends = two()?;
    let line = format!(
        "ip link add eth0 type veth peer name eth0 netns {}",
        ends[1].pid()
    );
    ends[0].ok(&line).map_err(failed("veth"))?;
    for (end, namespace) in ends.iter().enumerate() {
        dress(namespace, end)?;
    }
    Ok(Entrant::new("veth", ends))
}

fn dress(namespace: &Namespace, end: usize) -> Result<(), PeerError> {
    let line = format!(
        "ip addr add {}/24 dev eth0 && ip link set eth0 up",
        address(end)
    );
    namespace.ok(&line).map(drop).map_err(failed("eth0"))
}

/// A window of each row.
fn measure(ends: &[Namespace; 2], window: Duration) -> Result<Vec<f64>, String> {
    let (median, late) = round_trips(ends, window)?;
    Ok(vec![
        stream(ends, window)?,
        small(ends, window)?,
        median,
        late,
        connections(ends, window)?,
    ])
}

fn io<T>(what: &str, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|e| format!("{what}: {e}"))
}

fn to() -> SocketAddr {
    SocketAddr::new(address(1), PORT)
}

fn listen(end: &Namespace) -> Result<TcpListener, String> {
    io("listen", end.inside(|| TcpListener::bind(to()))?)
}

/// A connection between both; the sockets are their namespaces' wherever they are used. The first
/// one of two that have just come up waits for their links.
fn connected(ends: &[Namespace; 2], listener: &TcpListener) -> Result<[TcpStream; 2], String> {
    let limit = Duration::from_secs(10);
    let client = io(
        "connect",
        ends[0].inside(|| TcpStream::connect_timeout(&to(), limit))?,
    )?;
    let (server, _) = io("accept", listener.accept())?;
    for socket in [&client, &server] {
        io("nodelay", socket.set_nodelay(true))?;
        io("time-out", socket.set_read_timeout(Some(limit)))?;
    }
    Ok([client, server])
}

/// Gbit/s that arrive.
fn stream(ends: &[Namespace; 2], window: Duration) -> Result<f64, String> {
    let listener = listen(ends.last().ok_or("two ends")?)?;
    let [mut client, mut server] = connected(ends, &listener)?;
    let (ended, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![7; CHUNK];
            while !ended.load(Ordering::Relaxed) {
                if client.write_all(&chunk).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
        });
        scope.spawn(|| {
            let mut chunk = vec![0; CHUNK];
            while let Ok(count) = server.read(&mut chunk)
                && count > 0
            {
                arrived.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let rate = counted(&arrived, window);
        ended.store(true, Ordering::Relaxed);
        Ok(rate * 8.0 / 1e9)
    })
}

/// What is added a second, after the spell that does not count.
fn counted(number: &AtomicU64, window: Duration) -> f64 {
    std::thread::sleep(WARM);
    let (begun, before) = (Instant::now(), number.load(Ordering::Relaxed));
    std::thread::sleep(window);
    let more = number.load(Ordering::Relaxed) - before;
    more as f64 / begun.elapsed().as_secs_f64()
}

/// Thousands of small datagrams that arrive in a second.
fn small(ends: &[Namespace; 2], window: Duration) -> Result<f64, String> {
    let [from, at] = ends;
    let server = io("bind", at.inside(|| UdpSocket::bind(to()))?)?;
    let client = io("bind", from.inside(|| UdpSocket::bind((address(0), 0)))?)?;
    io("connect", client.connect(to()))?;
    io(
        "time-out",
        server.set_read_timeout(Some(Duration::from_millis(50))),
    )?;
    let (ended, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // What finds no room is sent again.
                let _ = client.send(&[7; SMALL]);
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; SMALL];
            while !ended.load(Ordering::Relaxed) {
                if server.recv(&mut buffer).is_ok() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let rate = counted(&arrived, window);
        ended.store(true, Ordering::Relaxed);
        Ok(rate / 1e3)
    })
}

/// Microseconds of one byte there and back, one outstanding: median, and of 99 in 100.
fn round_trips(ends: &[Namespace; 2], window: Duration) -> Result<(f64, f64), String> {
    let listener = listen(&ends[1])?;
    let [mut client, mut server] = connected(ends, &listener)?;
    let mut times = Samples::default();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while server.read_exact(&mut byte).is_ok() && server.write_all(&byte).is_ok() {}
        });
        let begun = Instant::now();
        while begun.elapsed() < WARM + window {
            let start = Instant::now();
            let mut byte = [7];
            io("write", client.write_all(&byte))?;
            io("read", client.read_exact(&mut byte))?;
            if begun.elapsed() > WARM {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        drop(client);
        Ok::<_, String>(())
    })?;
    Ok((times.median(), times.quantile(0.99)))
}

/// Connections a second, one after the other: made, a byte each way, closed.
fn connections(ends: &[Namespace; 2], window: Duration) -> Result<f64, String> {
    let listener = listen(&ends[1])?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0];
            while let Ok((mut server, _)) = listener.accept()
                && !ended.load(Ordering::Relaxed)
            {
                let _ = server.read_exact(&mut byte);
                let _ = server.write_all(&byte);
            }
        });
        let done = ends[0].inside(|| {
            let (begun, mut made) = (Instant::now(), 0u64);
            while begun.elapsed() < window {
                let mut client = TcpStream::connect(to())?;
                client.write_all(&[7])?;
                client.read_exact(&mut [0])?;
                made += 1;
            }
            let rate = made as f64 / begun.elapsed().as_secs_f64();
            ended.store(true, Ordering::Relaxed);
            // For who waits for the next one.
            drop(TcpStream::connect(to()));
            Ok(rate)
        });
        io("connections", done?)
    })
}
