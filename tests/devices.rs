//! Our programs on a host with VLAN and bond devices, which this machine's kernel may not have: a
//! guest with Debian's kernel. Its NICs are as hypervisors have them (virtio-net, XDP in the
//! driver; one is VMware's, which takes VLAN tags out of frames); at the far end of its four cables
//! is another guest, whose kernel is the peer: router, LACP, vxlan.

use butterfly_tests::cables;
use butterfly_tests::lab::{Download, check, says, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use std::time::Duration;
use testkit::qemu::Guest;
use testkit::{Result, wait_for};

fn main() {
    run_trials::<Pair>(
        &[],
        &trials![
            forwards_from_a_bond_to_a_vlan,
            the_daemon_routes_between_vlans_and_a_bond,
            routes_from_a_nic_that_takes_tags_out,
            a_veth_may_hide_tags,
            vxlan_over_a_vlan,
            vxlan_over_a_vlan_of_a_nic_that_takes_tags_out,
            vxlan_beside_a_vlan_of_a_nic_that_takes_tags_out,
            vxlan_over_a_bond,
            vxlan_by_two_ways_at_once,
        ],
    );
}

/// Two guests on four cables: VLANs 5 and 6 on the first, an LACP bond of the next two, VMware's
/// NIC on the host's end of the last.
struct Pair {
    host: Guest,
    peer: Guest,
    _cables: tempfile::TempDir,
}

/// How long an exchange may take: guests without KVM on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// On both: what is there for all trials. `$me` is 1 on the host and 2 on its peer.
const DEVICES: &str = "set -e; modprobe tun
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
    net.ipv6.conf.default.accept_dad=0
    ip link add link eth0 name vlan6 type vlan id 6
    ip link add bond1 type bond mode 802.3ad miimon 50 lacp_rate fast xmit_hash_policy layer3+4
    for port in eth1 eth2; do
        ethtool -s $port speed 1000 duplex full; ip link set $port down
        ip link set $port master bond1
    done
    ip link set vlan6 up; ip link set bond1 up; ip link set eth3 up
    ip addr add 192.0.2.$me/24 dev vlan6; ip addr add fd06::$me/64 dev vlan6
    ip addr add 198.51.100.$me/24 dev bond1; ip addr add fd07::$me/64 dev bond1
    ip addr add 203.0.113.$me/32 dev lo";

/// What a trial left, on both. A namespace lives on as long as a connection that was cut off in it,
/// with its VLAN, if that is not deleted first.
const RESET: &str = "killall -9 butterfly butterflyd guest 2>/dev/null; rm -rf /tmp/* /run/bf
    for name in a east plain; do ip -n $name link del vlan5 2>/dev/null
    ip netns del $name 2>/dev/null; done
    for link in vx vlan5 bond5 nic5 near0; do ip link del $link 2>/dev/null; done
    until [ -e /sys/class/net/eth3 ]; do sleep 0.1; done
    ip addr flush dev eth3; ip link set eth3 up; ethtool -K eth3 rxvlan on 2>/dev/null
    ip route flush proto static; ip -6 route flush proto static; true";

impl Stage for Pair {
    fn start(_: &[&str]) -> Result<Self> {
        let (host, peer, cables) = cables::start("peer")?;
        host.ok(&format!("modprobe vmxnet3; me=1; {DEVICES}"))?;
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
            let said = guest.ok("ip -s addr; ip route; ip neigh
                 grep -A 5 'Active Aggregator' /proc/net/bonding/bond1
                 for what in status 'uplink list' drops 'nic stats'
                 do butterfly -e unix:/run/bf/api.sock $what; done
                 tail -n 50 /run/log; true");
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
    for line in [
        "taking over vlan5: native XDP.",
        "taking over bond1: native XDP.",
    ] {
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
    check(
        most > 100,
        &format!("the downloads went the fast way: {counted}"),
    )?;
    goes_on()?;

    forward(host)?;
    goes_on()?;
    host.ok("kill -9 $(cat /run/pid)")?;
    goes_on()?;
    no_program_is_left(host)
}

const BUTTERFLY: &str = "butterfly -e unix:/run/bf/api.sock";

/// A daemon without an uplink.
fn daemon(host: &Guest) -> Result<()> {
    host.ok(
        "mkdir /run/bf; : >/run/log; butterflyd --no-syslog -s /run/bf --api \
         unix:/run/bf/api.sock >/run/log 2>&1 &",
    )?;
    says(host, "/run/log", "is ready").map(drop)
}

/// What the daemon's router has counted of an interface, of IPv4.
fn counted(host: &Guest, interface: &str, counter: &str) -> Result<u64> {
    let text = host.ok(&format!(
        "{BUTTERFLY} router status | awk '$1 == \"{interface}\" && \
         $2 == \"{counter}\" {{ print $3 }}'"
    ))?;
    // What has not happened has no line.
    let number = format!("0{}", text.trim()).parse();
    number.map_err(|_| format!("{interface} has no number of {counter}: {text:?}"))
}

/// A VLAN on the bond and one on a NIC, through the daemon: in native mode; then in generic mode,
/// in which the bond's ports run the program, and one leaves and comes back; then the daemon is
/// killed.
fn the_daemon_routes_between_vlans_and_a_bond(pair: &mut Pair) -> Result<()> {
    let (host, peer) = (&pair.host, &pair.peer);
    host.ok("set -e; sysctl -qw net.ipv4.ip_forward=1
         ip link add link eth0 name vlan5 type vlan id 5; ip link set vlan5 up
         ip addr add 10.5.0.1/24 dev vlan5
         ip link add link bond1 name bond5 type vlan id 5; ip link set bond5 up
         ip addr add 10.6.0.1/24 dev bond5")?;
    peer.ok("set -e; ip link add link eth0 name vlan5 type vlan id 5
         ip netns add east; ip link set vlan5 netns east; ip -n east link set vlan5 up
         ip -n east addr add 10.5.0.2/24 dev vlan5; ip -n east route add default via 10.5.0.1
         ip link add link bond1 name bond5 type vlan id 5; ip link set bond5 up
         ip addr add 10.6.0.2/24 dev bond5
         ip route add 10.5.0.0/24 via 10.6.0.1 proto static")?;
    peer.serve("ip netns exec east guest tcp-serve 80")?;
    soon(peer, "ping -q -c 1 -W 1 10.5.0.2")?;
    daemon(host)?;
    let add = |mode: &str| -> Result<()> {
        // The first of them waits for the kernel's verifier, on a processor that is emulated.
        let add = format!(
            "{BUTTERFLY} --timeout 60000 router add bond5 bond1 --mode {mode} && \
             {BUTTERFLY} router add vlan5 --mode native"
        );
        let said = host.ok_within(&add, PATIENCE)?;
        for line in [
            &format!("taking over bond5: {mode} XDP"),
            &format!("taking over bond1: {mode} XDP"),
            "taking over vlan5: native XDP",
        ] {
            check(said.contains(line), &format!("it says '{line}':\n{said}"))?;
        }
        Ok(())
    };
    // Acknowledgements, at the least, come in by the VLAN on the bond and go the fast way.
    let fast = || -> Result<()> {
        let before = counted(host, "bond5", "forwarded")?;
        let got = peer.run("guest tcp-get 10.5.0.2 80 1000000 60", PATIENCE)?;
        check(got.code == 0, &format!("a megabyte comes: {}", got.text))?;
        let grown = counted(host, "bond5", "forwarded")? - before;
        check(grown > 20, &format!("{grown} packets went the fast way"))
    };
    let runs = |device: &str| host.succeeds(&format!("ip link show {device} | grep -q xdp"));

    let download = Download::start(peer, "10.5.0.2", 80)?;
    add("native")?;
    download.goes_on()?;
    check(runs("bond1")? && !runs("eth1")?, "native XDP is the bond's")?;
    fast()?;
    let download = Download::start(peer, "10.5.0.2", 80)?;
    host.ok(&format!("{BUTTERFLY} router del bond1 vlan5 bond5"))?;
    download.goes_on()?;
    no_program_is_left(host)?;

    add("generic")?;
    check(
        !runs("bond1")? && runs("eth1")? && runs("eth2")?,
        "generic XDP is on its ports",
    )?;
    fast()?;
    host.ok("ip link set eth1 nomaster")?;
    soon(host, "! ip link show eth1 | grep -q xdp")?;
    fast()?;
    host.ok("ip link set eth1 down; ip link set eth1 master bond1; ip link set eth1 up")?;
    soon(host, "ip link show eth1 | grep -q xdp")?;
    fast()?;
    let download = Download::start(peer, "10.5.0.2", 80)?;
    host.ok("killall -9 butterflyd")?;
    soon(host, "! ip link | grep -q xdp")?;
    download.goes_on()
}

/// VMware's NIC hands VLAN tags over beside the frames, so that a packet of a VLAN would look like
/// one without: it is asked not to, from the first VLAN on it until it is given back.
fn routes_from_a_nic_that_takes_tags_out(pair: &mut Pair) -> Result<()> {
    let (host, peer) = (&pair.host, &pair.peer);
    let takes_out = |expected: bool| {
        let state = if expected { "on" } else { "off" };
        soon(
            host,
            &format!("ethtool -k eth3 | grep -q 'rx-vlan-offload: {state}'"),
        )
        .map_err(|e| format!("tags are taken out, {expected}: {e}"))
    };
    let vlan = "ip link add link eth3 name nic5 type vlan id 5; ip link set nic5 up; \
                ip addr add 10.5.0.1/24 dev nic5";
    host.ok(&format!(
        "set -e; sysctl -qw net.ipv4.ip_forward=1; ip addr add 10.8.0.1/24 dev eth3; {vlan}"
    ))?;
    // Hosts with a tag and without, both behind the same NIC; both want to 192.0.2.2, which is the
    // peer itself.
    peer.ok("set -e; ip link add link eth3 name nic5 type vlan id 5
         ip netns add east; ip link set nic5 netns east
         ip netns add plain; ip link set eth3 netns plain; ip -n plain link set eth3 up
         ip -n east link set nic5 up
         ip -n plain addr add 10.8.0.2/24 dev eth3; ip -n plain route add default via 10.8.0.1
         ip -n east addr add 10.5.0.2/24 dev nic5; ip -n east route add default via 10.5.0.1
         ip route add 10.5.0.0/24 via 192.0.2.1 proto static
         ip route add 10.8.0.0/24 via 192.0.2.1 proto static")?;
    let plain = "ip netns exec plain ping -q -c 3 -i 0.2 -W 1 192.0.2.2";
    let tagged = "ip netns exec east ping -q -c 3 -i 0.2 -W 1 192.0.2.2";
    soon(peer, plain)?;
    soon(peer, tagged)?;
    host.ok("sysctl -qw net.ipv4.conf.nic5.forwarding=0")?;
    check(
        !peer.succeeds(tagged)?,
        "the kernel forwards nothing from the VLAN",
    )?;
    takes_out(true)?;

    daemon(host)?;
    let said = host.ok(&format!("{BUTTERFLY} router add vlan6 eth3 nic5"))?;
    check(
        said.contains("taking over eth3: generic XDP"),
        &format!("it says so:\n{said}"),
    )?;
    takes_out(false)?;
    soon(peer, plain)?;
    let before = counted(host, "eth3", "forwarded")?;
    check(before > 0, "packets without a tag go the fast way")?;
    check(!peer.succeeds(tagged)?, "nor do we from the VLAN")?;
    let after = [
        counted(host, "eth3", "forwarded")?,
        counted(host, "nic5", "off")?,
    ];
    check(
        after[0] == before && after[1] >= 3,
        &format!("its packets are known to be the VLAN's: {before}, then {after:?}"),
    )?;
    host.ok("sysctl -qw net.ipv4.conf.nic5.forwarding=1")?;
    soon(peer, tagged)?;
    let fast =
        || Ok((counted(host, "nic5", "forwarded")? > 0 || !peer.succeeds(tagged)?).then_some(()));
    wait_for("the VLAN's packets to go the fast way", PATIENCE, fast)?;

    // The offload is as it was when the interface is given back, and as soon as there is no VLAN; a
    // VLAN that comes is seen.
    host.ok(&format!("{BUTTERFLY} router del nic5"))?;
    takes_out(false)?;
    host.ok("ip link del nic5")?;
    takes_out(true)?;
    host.ok(vlan)?;
    takes_out(false)?;
    host.ok(&format!("{BUTTERFLY} router del eth3"))?;
    takes_out(true)?;
    // Shared with the load balancer, the last one gives back.
    host.ok(&format!(
        "{BUTTERFLY} router add eth3; {BUTTERFLY} service interface add eth3; \
         {BUTTERFLY} router del eth3"
    ))?;
    takes_out(false)?;
    host.ok(&format!("{BUTTERFLY} service interface del eth3"))?;
    takes_out(true)?;
    // In the foreground the same; killed, it cannot.
    host.ok("killall butterflyd")?;
    for (signal, given_back) in [("TERM", true), ("KILL", false)] {
        host.ok(": >/run/log; butterfly forward vlan6 eth3 >/run/log 2>&1 & echo $! >/run/pid")?;
        says(host, "/run/log", "are followed.")?;
        takes_out(false)?;
        host.ok(&format!("kill -{signal} $(cat /run/pid)"))?;
        soon(host, "! ip link | grep -q xdp")?;
        takes_out(given_back)?;
        soon(peer, plain)?;
        soon(peer, tagged)?;
    }
    Ok(())
}

/// A VLAN on a veth, whose far end hands tags over beside the frames unless told not to: never
/// taken for packets without a tag.
fn a_veth_may_hide_tags(pair: &mut Pair) -> Result<()> {
    let (host, peer) = (&pair.host, &pair.peer);
    host.ok(
        "set -e; modprobe veth; sysctl -qw net.ipv4.ip_forward=1; ip netns add a
         ip link add near0 type veth peer name far0; ip link set far0 netns a
         ip link set near0 up; ip -n a link set far0 up
         ip link add link near0 name near5 type vlan id 5; ip link set near5 up
         ip addr add 10.5.0.1/24 dev near5; ip addr add 10.8.0.1/24 dev near0
         sysctl -qw net.ipv4.conf.near5.forwarding=0
         ip -n a link add link far0 name far5 type vlan id 5; ip -n a link set far5 up
         ip -n a addr add 10.5.0.2/24 dev far5; ip -n a route add default via 10.5.0.1",
    )?;
    peer.ok("ip route add 10.5.0.0/24 via 192.0.2.1 proto static")?;
    daemon(host)?;
    // None at tc, where tags are never hidden.
    host.ok(&format!(
        "{BUTTERFLY} router add near0 near5 --mode generic && {BUTTERFLY} router add vlan6 --mode \
         native"
    ))?;
    let status = host.ok(&format!("{BUTTERFLY} router status"))?;
    check(
        status.contains("packets without a VLAN tag from near0 are left to the kernel"),
        &format!("it says so:\n{status}"),
    )?;
    let pinging = |txvlan: &str| {
        host.succeeds(&format!(
            "ip netns exec a ethtool -K far0 txvlan {txvlan} && ip netns exec a ping -q -c 3 -i \
             0.2 -W 1 192.0.2.2"
        ))
    };
    let forwarded = || -> Result<[u64; 2]> {
        Ok([
            counted(host, "near0", "forwarded")?,
            counted(host, "near5", "forwarded")?,
        ])
    };
    // What the kernel does not forward is not forwarded here, whether its tag is seen or not.
    for (txvlan, seen) in [("on", 0), ("off", 3)] {
        check(!pinging(txvlan)?, "nothing is forwarded from the VLAN")?;
        let (forwarded, off) = (forwarded()?, counted(host, "near5", "off")?);
        check(
            forwarded == [0, 0] && off >= seen,
            &format!("txvlan {txvlan}: {forwarded:?} forwarded, {off} known to be the VLAN's"),
        )?;
    }
    host.ok("sysctl -qw net.ipv4.conf.near5.forwarding=1")?;
    // The kernel's, and when the tag is seen the fast way's.
    wait_for("answers", PATIENCE, || Ok(pinging("on")?.then_some(())))?;
    check(
        forwarded()? == [0, 0],
        "the kernel forwards what hides its tag",
    )?;
    wait_for("the VLAN's packets to go the fast way", PATIENCE, || {
        check(pinging("off")?, "they are forwarded, by whomever")?;
        let now = forwarded()?;
        check(now[0] == 0, "none is taken for one without a tag")?;
        Ok((now[1] > 0).then_some(()))
    })
}

/// Starts `butterfly forward`, and gives what it says until it forwards.
fn forward(host: &Guest) -> Result<String> {
    host.ok(
        ": >/run/log; butterfly forward vlan5 bond1 --mode native >/run/log 2>&1 & echo $! \
         >/run/pid",
    )?;
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

/// The NIC below the VLAN takes tags out of what it receives, where XDP does not see them: it is
/// told to leave them in, and does as before when the address has gone.
fn vxlan_over_a_vlan_of_a_nic_that_takes_tags_out(pair: &mut Pair) -> Result<()> {
    let takes_out = |state: &str| {
        let said = format!("ethtool -k eth3 | grep -q 'rx-vlan-offload: {state}'");
        soon(&pair.host, &said)
    };
    for (guest, me) in [(&pair.host, 1), (&pair.peer, 2)] {
        guest.ok(&format!(
            "set -e; ip link add link eth3 name nic5 type vlan id 5; ip link set nic5 up; \
             ip addr add 10.5.0.{me}/24 dev nic5"
        ))?;
    }
    takes_out("on")?;
    let said = overlay(pair, "-i 10.5.0.1", "10.5.0.1", "10.5.0.2")?;
    check(
        said.contains("eth3: AF_XDP, generic XDP"),
        &format!("eth3 is joined:\n{said}"),
    )?;
    takes_out("off")?;
    talk(pair)?;
    pair.host.ok("killall butterflyd")?;
    takes_out("on")?;
    no_program_is_left(&pair.host)
}

/// Others are in that VLAN: without its tag what they send would look like another host's.
fn vxlan_beside_a_vlan_of_a_nic_that_takes_tags_out(pair: &mut Pair) -> Result<()> {
    let takes_out = |state: &str| {
        let said = format!("ethtool -k eth3 | grep -q 'rx-vlan-offload: {state}'");
        soon(&pair.host, &said)
    };
    for (guest, me) in [(&pair.host, 1), (&pair.peer, 2)] {
        guest.ok(&format!("ip addr add 10.5.0.{me}/24 dev eth3"))?;
    }
    takes_out("on")?;
    let said = overlay(pair, "-i 10.5.0.1", "10.5.0.1", "10.5.0.2")?;
    check(
        said.contains("eth3: AF_XDP, generic XDP"),
        &format!("eth3 is joined:\n{said}"),
    )?;
    takes_out("on")?;
    pair.host
        .ok("ip link add link eth3 name nic5 type vlan id 5; ip link set nic5 up")?;
    takes_out("off")?;
    talk(pair)?;
    pair.host.ok("ip link del nic5")?;
    takes_out("on")?;
    pair.host.ok("killall butterflyd")?;
    soon(&pair.host, "! killall -0 butterflyd 2>/dev/null")?;
    no_program_is_left(&pair.host)
}

fn vxlan_over_a_bond(pair: &mut Pair) -> Result<()> {
    let said = overlay(pair, "-i fd07::1", "fd07::1", "fd07::2")?;
    check(
        said.contains("bond1: "),
        &format!("bond1 is joined:\n{said}"),
    )?;
    talk(pair)?;
    // One of its ports goes, and comes back.
    for state in ["down", "up"] {
        pair.peer.ok(&format!("ip link set eth1 {state}"))?;
        soon(&pair.host, "ip netns exec a ping -q -c 1 -W 1 10.7.0.2")?;
    }
    talk(pair)
}

/// Both hosts have their address on `lo`, and two next hops to the other's: flows spread over both,
/// and survive one.
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
    host.ok(
        "for port in $(seq 3001 3020); do ip netns exec a guest udp-ping 10.7.0.2 54 10 100 \
         $port || exit 1; done",
    )?;
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

/// A daemon on the host with a container in network 42 (10.7.0.1, fd17::1) and the peer's kernel in
/// the same network (10.7.0.2, fd17::2). Gives what the daemon says of its uplinks.
fn overlay(pair: &Pair, options: &str, local: &str, remote: &str) -> Result<String> {
    pair.peer.ok(&format!(
        "set -e; ip link add vx type vxlan id 42 dstport 4789 local {remote} remote {local}
         ip link set vx address 52:54:00:00:07:02 mtu 1400 up
         ip addr add 10.7.0.2/24 dev vx; ip addr add fd17::2/64 dev vx nodad"
    ))?;
    pair.host.ok(&format!(
        "mkdir /run/bf; : >/run/log; butterflyd --no-syslog -s /run/bf --api unix:/run/bf/api.sock \
         {options} >/run/log 2>&1 &"
    ))?;
    says(&pair.host, "/run/log", "is ready")?;
    pair.host.ok(&format!(
        "set -e
         {BUTTERFLY} sg rule add open --ip-proto all
         {BUTTERFLY} nic add --id a --mac 52:54:00:00:07:01 --vni 42 --ip 10.7.0.1 fd17::1 --sg \
         open --type tap --path bf-a
         {BUTTERFLY} host add {remote} --vni 42
         ip netns add a; ip link set bf-a netns a name eth0
         ip -n a link set eth0 address 52:54:00:00:07:01 mtu 1400 up
         ip -n a addr add 10.7.0.1/24 dev eth0; ip -n a addr add fd17::1/64 dev eth0 nodad"
    ))?;
    soon(&pair.host, "ip netns exec a ping -q -c 1 -W 1 10.7.0.2")?;
    pair.host.ok(&format!("{BUTTERFLY} status"))
}

/// The container and the peer's kernel: ICMP, TCP both ways, UDP in fragments.
fn talk(pair: &Pair) -> Result<()> {
    for server in ["tcp-serve 80", "tcp-sink 81", "udp-serve 53"] {
        pair.peer.serve(&format!("guest {server}"))?;
    }
    for to in ["10.7.0.2", "fd17::2"] {
        soon(
            &pair.host,
            &format!("ip netns exec a ping -q -c 1 -W 1 {to}"),
        )?;
        let said = pair.host.run(
            &format!(
                "in='ip netns exec a guest'; $in udp-ping {to} 53 3 3000 && \
                 $in tcp-get {to} 80 1000000 60 && $in tcp-put {to} 81 1000000 60"
            ),
            PATIENCE,
        )?;
        check(
            said.code == 0,
            &format!("{to} is talked to:\n{}", said.text),
        )?;
    }
    pair.peer.quiet()
}
