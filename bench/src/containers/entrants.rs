//! Who carries frames between two containers: our daemons, OVS-DPDK, the kernel's bridge, a cable.
//! Each is two network namespaces with an `eth0`, and what is between them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use testkit::netns::Namespace;

use super::rows::{ROWS, Row};
use crate::hugepages::HugePages;
use crate::peers::process::{Process, run as command};
use crate::peers::{PeerError, butterfly, guest_mac, ovs};
use crate::report::Samples;
use crate::{FIRST_RULE_PORT, RULES, TRAFFIC_PORT};

/// Where everybody listens.
pub const PORT: u16 = TRAFFIC_PORT;

const BY_WORKER: [&str; 2] = ["--kernel-flows", "off"];
/// What comes from the other host is the kernel's, too.
const PACKET: [&str; 2] = ["--uplink-mode", "packet"];

/// For OVS (64 MiB).
const HUGE_PAGES: u64 = 40;

/// Two containers and what is between them.
pub struct Entrant {
    pub name: &'static str,
    pub ends: [Namespace; 2],
    /// What runs on each host, ended before the namespaces that it is in.
    pub daemons: Vec<Vec<Process>>,
    _dirs: Vec<tempfile::TempDir>,
    _hosts: Vec<Namespace>,
    _pages: Option<HugePages>,
    /// By row: a number of each round; nothing of a row that is left out.
    seen: [Option<Samples>; ROWS.len()],
}

impl Entrant {
    fn new(name: &'static str, ends: [Namespace; 2]) -> Entrant {
        Entrant {
            name,
            ends,
            daemons: Vec::new(),
            _dirs: Vec::new(),
            _hosts: Vec::new(),
            _pages: None,
            seen: ROWS.map(|_| Some(Samples::default())),
        }
    }

    /// What was seen of a row, one number a round.
    pub fn seen(&self, row: Row) -> Samples {
        self.seen[row as usize].clone().unwrap_or_default()
    }

    /// Adds what a window has shown.
    pub fn saw(&mut self, row: Row, value: f64) {
        if let Some(seen) = &mut self.seen[row as usize] {
            seen.push(value);
        }
    }

    /// From now on it has no such row.
    pub fn leave_out(&mut self, row: Row) {
        self.seen[row as usize] = None;
    }

    pub fn lacks(&self, row: Row) -> bool {
        self.seen[row as usize].is_none()
    }
}

/// Starts one of those that [`super::ENTRANTS`] names.
pub fn start(name: &'static str) -> Result<Entrant, PeerError> {
    match name {
        "ours" => ours(name, &[], add),
        "ours_by_worker" => ours(name, &BY_WORKER, add),
        "ours_tap" => ours(name, &[], add_tap),
        "ovs_tap" => ovs_tap(name),
        "bridge" => bridge(name, false),
        "bridge_nft" => bridge(name, true),
        "veth" => cable(),
        "overlay" => overlay(name, Link::Any, &[]),
        "overlay_packet" => overlay(name, Link::Any, &PACKET),
        "overlay_by_worker" => overlay(name, Link::Any, &BY_WORKER),
        "overlay_vxlan_nft" => vxlan(name, Link::Any),
        "wire" => overlay(name, Link::Mtu, &[]),
        "wire_packet" => overlay(name, Link::Mtu, &PACKET),
        "wire_by_worker" => overlay(name, Link::Mtu, &BY_WORKER),
        _ => vxlan(name, Link::Mtu),
    }
}

/// Whether it is another switch, which may not be there: OVS-DPDK, or nftables with all it takes.
pub fn is_peer(name: &str) -> bool {
    name.starts_with("ovs") || name.ends_with("_nft")
}

fn failed(what: &str) -> impl Fn(String) -> PeerError {
    let what = what.to_owned();
    move |why| PeerError(format!("{what}: {why}"))
}

/// Of a container.
pub fn address(end: usize) -> IpAddr {
    Ipv4Addr::new(10, 7, 0, 1 + end as u8).into()
}

fn two() -> Result<[Namespace; 2], PeerError> {
    let one = || Namespace::new().map_err(failed("a namespace"));
    Ok([one()?, one()?])
}

/// Makes a container's NIC on a host whose daemon has this folder: the end's number, and where it
/// is.
type Add = fn(&Namespace, &Path, usize, &Namespace) -> Result<(), PeerError>;

/// This switch: NICs under a hundred rules, the last of which lets the traffic in; `add` makes one
/// of them, of type veth ([`add`]) or TAP ([`add_tap`]).
fn ours(name: &'static str, options: &[&str], add: Add) -> Result<Entrant, PeerError> {
    let host = Namespace::new().map_err(failed("a namespace"))?;
    let ends = two()?;
    let (daemon, dir) = switch(&host, options)?;
    for (end, namespace) in ends.iter().enumerate() {
        add(&host, dir.path(), end, namespace)?;
    }
    Ok(Entrant {
        daemons: vec![vec![daemon]],
        _dirs: vec![dir],
        _hosts: vec![host],
        ..Entrant::new(name, ends)
    })
}

/// OVS-DPDK with TAP devices that are moved into the containers, and the rules as it has them for
/// guests.
fn ovs_tap(name: &'static str) -> Result<Entrant, PeerError> {
    let pages = HugePages::reserve(HUGE_PAGES)?;
    let host = Namespace::new().map_err(failed("a namespace"))?;
    let ends = two()?;
    let dir = folder()?;
    let daemons = ovs::start_taps(dir.path(), host.pid())?;
    for (end, namespace) in ends.iter().enumerate() {
        adopt(namespace, &host, &ovs::tap(end), end)?;
    }
    Ok(Entrant {
        daemons: vec![daemons],
        _dirs: vec![dir],
        _hosts: vec![host],
        _pages: Some(pages),
        ..Entrant::new(name, ends)
    })
}

/// Moves a host's device into a container.
fn adopt(
    container: &Namespace,
    host: &Namespace,
    device: &str,
    end: usize,
) -> Result<(), PeerError> {
    let own = format!("{}/24", address(end));
    let mac = guest_mac(end)?.to_string();
    container
        .adopt_from(host, device, &mac, &[&own])
        .map_err(failed(device))
}

/// What the link between two hosts carries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// What it is given, as a veth does: a packet of 64 KiB passes whole, for whoever can send and
    /// take one.
    Any,
    /// Packets of its MTU, as a wire: who sends more cuts it, who receives merges it (GRO).
    Mtu,
}

/// This switch on two hosts that are told where the containers are.
fn overlay(name: &'static str, link: Link, options: &[&str]) -> Result<Entrant, PeerError> {
    let hosts = two_hosts(link)?;
    let ends = two()?;
    let (mut daemons, mut dirs) = (Vec::new(), Vec::new());
    for (end, host) in hosts.iter().enumerate() {
        let own = endpoint(end);
        let all = [&["-i", own.as_str()][..], options].concat();
        let (daemon, dir) = switch(host, &all)?;
        add(host, dir.path(), end, &ends[end])?;
        let there = 1 - end;
        let line = format!(
            "binding add --vni 7 --mac {} --ip {} --host {}",
            guest_mac(there)?,
            address(there),
            endpoint(there)
        );
        butterfly_command(host, dir.path(), &line)?;
        daemons.push(vec![daemon]);
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
fn two_hosts(link: Link) -> Result<[Namespace; 2], PeerError> {
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
        if link == Link::Mtu {
            let line = "ethtool -K uplink0 tso off gso off tx-udp_tnl-segmentation off \
                        tx-udp_tnl-csum-segmentation off gro on";
            host.ok(line).map_err(failed("uplink0"))?;
        }
    }
    Ok(hosts)
}

fn endpoint(end: usize) -> String {
    format!("192.0.2.{}", 1 + end)
}

/// A daemon in a namespace, and the rules.
fn switch(host: &Namespace, options: &[&str]) -> Result<(Process, tempfile::TempDir), PeerError> {
    let dir = folder()?;
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

fn folder() -> Result<tempfile::TempDir, PeerError> {
    tempfile::tempdir().map_err(|e| PeerError(format!("a folder: {e}")))
}

/// What is said of any container's NIC; where the address is set up by us, its network too.
fn nic(end: usize, length: &str) -> Result<String, PeerError> {
    let (mac, ip) = (guest_mac(end)?, address(end));
    Ok(format!(
        "nic add --id c{end} --mac {mac} --vni 7 --ip {ip}{length} --sg g"
    ))
}

/// A container's NIC.
fn add(host: &Namespace, dir: &Path, end: usize, container: &Namespace) -> Result<(), PeerError> {
    let (nic, pid) = (nic(end, "/24")?, container.pid());
    let line = format!("{nic} --type veth --netns {pid} --path bb-{end}");
    butterfly_command(host, dir, &line).map(drop)
}

/// A container's NIC that is a TAP device, moved into it.
fn add_tap(
    host: &Namespace,
    dir: &Path,
    end: usize,
    container: &Namespace,
) -> Result<(), PeerError> {
    let device = format!("tap{end}");
    let line = format!("{} --type tap --path {device}", nic(end, "")?);
    butterfly_command(host, dir, &line)?;
    adopt(container, host, &device, end)
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
fn vxlan(name: &'static str, link: Link) -> Result<Entrant, PeerError> {
    let hosts = two_hosts(link)?;
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
