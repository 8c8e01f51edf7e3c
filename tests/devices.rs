//! Our programs on a host with VLAN and bond devices, which this machine's kernel may not have: a guest with Debian's kernel.
//! Its NICs are as hypervisors have them (virtio-net, XDP in the driver); at the far end of its three cables is another
//! guest, whose kernel is the peer: router, LACP, vxlan.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::{Download, check, says, soon};
use butterfly_tests::trials::{Stage, run_trials};
use std::time::Duration;
use testkit::Result;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic, Wire};

fn main() {
    run_trials::<Pair>(
        &[],
        &[
            ("forwards_from_a_bond_to_a_vlan", forwards_from_a_bond_to_a_vlan),
            ("vxlan_over_a_vlan", vxlan_over_a_vlan),
            ("vxlan_over_a_bond", vxlan_over_a_bond),
            ("vxlan_by_two_ways_at_once", vxlan_by_two_ways_at_once),
        ],
    );
}

/// Two guests on three cables: VLANs 5 and 6 on the first, an LACP bond of the others.
struct Pair {
    host: Guest,
    peer: Guest,
    _cables: tempfile::TempDir,
}

/// How long an exchange may take: guests without KVM on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// On both: what is there for all trials. `$me` is 1 on the host and 2 on its peer.
const DEVICES: &str = "set -e; modprobe tun
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.default.accept_dad=0
    ip link add link eth0 name vlan6 type vlan id 6
    ip link add bond1 type bond mode 802.3ad miimon 50 lacp_rate fast xmit_hash_policy layer3+4
    for port in eth1 eth2; do
        ethtool -s $port speed 1000 duplex full; ip link set $port down; ip link set $port master bond1
    done
    ip link set vlan6 up; ip link set bond1 up
    ip addr add 192.0.2.$me/24 dev vlan6; ip addr add fd06::$me/64 dev vlan6
    ip addr add 198.51.100.$me/24 dev bond1; ip addr add fd07::$me/64 dev bond1
    ip addr add 203.0.113.$me/32 dev lo";

/// What a trial left, on both.
const RESET: &str = "killall -9 butterfly butterflyd guest 2>/dev/null; rm -rf /tmp/* /run/bf
    for name in a east; do ip netns del $name 2>/dev/null; done
    for link in vx vlan5; do ip link del $link 2>/dev/null; done
    ip route flush proto static; ip -6 route flush proto static; true";

impl Stage for Pair {
    fn start(_: &[&str]) -> Result<Self> {
        let cables = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let programs = [program("butterfly"), program("butterflyd")];
        let mut host = Machine::named("host")
            .with_tools()
            .with_programs(&programs.each_ref().map(String::as_str));
        let mut peer = Machine::named("peer").with_tools();
        for n in 0..3 {
            let cable = cables.path().join(format!("cable{n}"));
            host = host.with(Nic::new(
                Wire::Listen(cable.clone()),
                &format!("52:54:00:00:01:0{n}"),
            ));
            peer = peer.with(Nic::new(Wire::Connect(cable), &format!("52:54:00:00:02:0{n}")));
        }
        let mut guests = Guest::start_all(&Image::ready()?, &[host, peer])?;
        let (Some(peer), Some(host)) = (guests.pop(), guests.pop()) else {
            return Err("two guests were started".to_owned());
        };
        host.ok(&format!("me=1; {DEVICES}"))?;
        peer.ok(&format!("me=2; {DEVICES}"))?;
        for way in ["192.0.2.2", "198.51.100.2", "fd06::2", "fd07::2"] {
            soon(&host, &format!("ping -q -c 1 -W 1 {way}"))?;
        }
        Ok(Self {
            host,
            peer,
            _cables: cables,
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.host.ok(RESET)?;
        self.peer.ok(RESET).map(drop)
    }

    fn is_running(&mut self) -> bool {
        true
    }

    fn dump(&self) -> String {
        let of = |guest: &Guest| {
            let said = guest.ok(
                "ip -s addr; ip route; ip neigh; grep -A 5 'Active Aggregator' /proc/net/bonding/bond1
                 for what in status 'uplink list' drops 'nic stats'; do butterfly -e unix:/run/bf/api.sock $what; done
                 tail -n 50 /run/log; true",
            );
            format!("=== {}\n{}", guest.name(), said.unwrap_or_else(|e| e))
        };
        of(&self.host) + &of(&self.peer)
    }
}

/// `butterfly forward` while downloads go through: started, stopped, started and killed.
fn forwards_from_a_bond_to_a_vlan(pair: &mut Pair) -> Result<()> {
    let (host, peer) = (&pair.host, &pair.peer);
    host.ok(
        "set -e; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
         ip link add link eth0 name vlan5 type vlan id 5; ip link set vlan5 up
         ip addr add 10.5.0.1/24 dev vlan5; ip addr add fd05::1/64 dev vlan5",
    )?;
    // The east is behind the VLAN; the west is the peer itself.
    peer.ok("set -e; ip link add link eth0 name vlan5 type vlan id 5
         ip netns add east; ip link set vlan5 netns east; ip -n east link set vlan5 up
         ip -n east addr add 10.5.0.2/24 dev vlan5; ip -n east addr add fd05::2/64 dev vlan5 nodad
         ip -n east route add default via 10.5.0.1; ip -n east -6 route add default via fd05::1
         ip route add 10.5.0.0/24 via 198.51.100.1 proto static
         ip -6 route add fd05::/64 via fd07::1 proto static")?;
    peer.serve("ip netns exec east guest tcp-serve 80")?;
    for east in ["10.5.0.2", "fd05::2"] {
        soon(peer, &format!("ping -q -c 1 -W 1 {east}"))?;
    }
    let downloads = [
        Download::start(peer, "10.5.0.2", 80)?,
        Download::start(peer, "fd05::2", 80)?,
    ];
    let goes_on = || downloads.iter().try_for_each(Download::goes_on);

    let said = forward(host)?;
    for line in ["taking over vlan5: native XDP.", "taking over bond1: native XDP."] {
        check(said.contains(line), &format!("it says '{line}':\n{said}"))?;
    }
    goes_on()?;
    host.ok("kill $(cat /run/pid)")?;
    soon(host, "grep -q forwarded /run/log")?;
    let counted = host.ok("grep -w forwarded /run/log")?;
    let most: u64 = counted
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .max()
        .unwrap_or_default();
    check(most > 100, &format!("the downloads went the fast way: {counted}"))?;
    goes_on()?;

    forward(host)?;
    goes_on()?;
    host.ok("kill -9 $(cat /run/pid)")?;
    goes_on()?;
    no_program_is_left(host)
}

/// Starts `butterfly forward`, and gives what it says until it forwards.
fn forward(host: &Guest) -> Result<String> {
    host.ok(": >/run/log; butterfly forward vlan5 bond1 >/run/log 2>&1 & echo $! >/run/pid")?;
    says(host, "/run/log", "are followed.")
}

fn no_program_is_left(host: &Guest) -> Result<()> {
    let links = host.ok("ip link")?;
    check(
        !links.contains("xdp"),
        &format!("the interfaces are the kernel's:\n{links}"),
    )
}

/// The tag of the underlay is put on and taken off by us; the program is on the interface below.
fn vxlan_over_a_vlan(pair: &mut Pair) -> Result<()> {
    let said = overlay(pair, "-i 192.0.2.1", "192.0.2.1", "192.0.2.2")?;
    check(
        said.contains("eth0: AF_XDP, native XDP"),
        &format!("eth0 is joined in its driver:\n{said}"),
    )?;
    talk(pair)?;
    pair.host.ok("killall -9 butterflyd")?;
    soon(&pair.host, "ping -q -c 1 -W 1 192.0.2.2")?;
    no_program_is_left(&pair.host)
}

fn vxlan_over_a_bond(pair: &mut Pair) -> Result<()> {
    let said = overlay(pair, "-i fd07::1", "fd07::1", "fd07::2")?;
    check(said.contains("bond1: "), &format!("bond1 is joined:\n{said}"))?;
    talk(pair)?;
    // One of its ports goes, and comes back.
    for state in ["down", "up"] {
        pair.peer.ok(&format!("ip link set eth1 {state}"))?;
        soon(&pair.host, "ip netns exec a ping -q -c 1 -W 1 10.7.0.2")?;
    }
    talk(pair)
}

/// Both hosts have their address on `lo`, and two ways to the other's: flows spread over both, and survive one.
fn vxlan_by_two_ways_at_once(pair: &mut Pair) -> Result<()> {
    let ways = |me: u8, other: u8| {
        format!(
            "ip route add 203.0.113.{other}/32 src 203.0.113.{me} proto static \
             nexthop via 192.0.2.{other} nexthop via 198.51.100.{other}"
        )
    };
    pair.host.ok(&ways(1, 2))?;
    pair.peer.ok(&ways(2, 1))?;
    let options = "-i 203.0.113.1 --uplink eth0 --uplink bond1";
    overlay(pair, options, "203.0.113.1", "203.0.113.2")?;
    talk(pair)?;
    let (host, peer) = (&pair.host, &pair.peer);
    let received = || -> Result<[u64; 2]> {
        Ok([
            peer.counter("vlan6", "rx_packets")?,
            peer.counter("bond1", "rx_packets")?,
        ])
    };
    let before = received()?;
    // More flows than chance sends one way; LACP and neighbours are a handful.
    peer.serve("guest udp-serve 54")?;
    host.ok("for port in $(seq 3001 3020); do ip netns exec a guest udp-ping 10.7.0.2 54 10 100 $port || exit 1; done")?;
    let after = received()?;
    let grown = [after[0] - before[0], after[1] - before[1]];
    check(
        grown.iter().all(|frames| *frames >= 10) && grown.iter().sum::<u64>() >= 200,
        &format!("flows go both ways: {grown:?} frames"),
    )?;
    host.ok("ip link set vlan6 down")?;
    soon(host, "ip netns exec a ping -q -c 3 -i 0.2 -W 1 10.7.0.2")?;
    talk(pair)?;
    host.ok("ip link set vlan6 up; ip addr replace 192.0.2.1/24 dev vlan6")
        .map(drop)
}

/// A daemon on the host with a container in network 42 (10.7.0.1, fd17::1) and the peer's kernel in the same network
/// (10.7.0.2, fd17::2). Gives what the daemon says of its uplinks.
fn overlay(pair: &Pair, options: &str, local: &str, remote: &str) -> Result<String> {
    let butterfly = "butterfly -e unix:/run/bf/api.sock";
    pair.peer.ok(&format!(
        "set -e; ip link add vx type vxlan id 42 dstport 4789 local {remote} remote {local}
         ip link set vx address 52:54:00:00:07:02 mtu 1400 up
         ip addr add 10.7.0.2/24 dev vx; ip addr add fd17::2/64 dev vx nodad"
    ))?;
    pair.host.ok(&format!(
        "mkdir /run/bf; : >/run/log; butterflyd --no-syslog -s /run/bf --api unix:/run/bf/api.sock {options} >/run/log 2>&1 &"
    ))?;
    says(&pair.host, "/run/log", "is ready")?;
    pair.host.ok(&format!(
        "set -e
         {butterfly} sg rule add open --ip-proto all
         {butterfly} nic add --id a --mac 52:54:00:00:07:01 --vni 42 --ip 10.7.0.1 fd17::1 --sg open --type tap --path bf-a
         {butterfly} endpoint add {remote} --vni 42
         ip netns add a; ip link set bf-a netns a name eth0
         ip -n a link set eth0 address 52:54:00:00:07:01 mtu 1400 up
         ip -n a addr add 10.7.0.1/24 dev eth0; ip -n a addr add fd17::1/64 dev eth0 nodad"
    ))?;
    soon(&pair.host, "ip netns exec a ping -q -c 1 -W 1 10.7.0.2")?;
    pair.host.ok(&format!("{butterfly} status"))
}

/// The container and the peer's kernel: ICMP, TCP both ways, UDP in fragments.
fn talk(pair: &Pair) -> Result<()> {
    for server in ["tcp-serve 80", "tcp-sink 81", "udp-serve 53"] {
        pair.peer.serve(&format!("guest {server}"))?;
    }
    for to in ["10.7.0.2", "fd17::2"] {
        soon(&pair.host, &format!("ip netns exec a ping -q -c 1 -W 1 {to}"))?;
        let said = pair.host.run(
            &format!(
                "in='ip netns exec a guest'; $in udp-ping {to} 53 3 3000 && \
                 $in tcp-get {to} 80 1000000 60 && $in tcp-put {to} 81 1000000 60"
            ),
            PATIENCE,
        )?;
        check(said.code == 0, &format!("{to} is talked to:\n{}", said.text))?;
    }
    pair.peer.quiet()
}
