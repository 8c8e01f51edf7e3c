//! Two hosts whose link loses, delays, reorders, doubles and corrupts frames, and goes away: a
//! guest with Debian's kernel bridges their uplinks, and its netem does that (this machine's kernel
//! may have none). Hosts and their guests are namespaces, as in `hosts.rs`; every byte that a TCP
//! stream brings is compared with what was sent.

use butterfly_tests::hosts::{Family, Host, Hosts, UPLINK, address, answers, serve, tool};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use std::time::Duration;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_trials::<LossyLink>(
        &[],
        &trials![
            frames_are_lost,
            frames_come_in_another_order,
            frames_come_twice_and_corrupt,
            the_link_comes_and_goes,
            the_link_is_narrow,
        ],
    );
}

/// The guests are `a` on the left, 10.1.0.1, and `b` on the right, 10.1.0.2. They go first, then
/// the hosts, then what joins them.
struct LossyLink {
    a: Namespace,
    b: Namespace,
    hosts: Hosts,
    bridge: Guest,
}

/// Bytes of a stream: some 1400 segments.
const BYTES: u32 = 2_000_000;

/// Both addresses of `b`.
const B: [&str; 2] = ["10.1.0.2", "fd01::2"];

impl Stage for LossyLink {
    fn start(options: &[&str]) -> Result<Self> {
        let ends = [Namespace::new()?, Namespace::new()?];
        let mut machine = Machine::named("bridge").with_tools();
        for (n, end) in ends.iter().enumerate() {
            let nic = Nic::plain(Wire::tap(end, UPLINK), &format!("52:54:00:00:03:0{n}"));
            machine = machine.with(nic);
        }
        let bridge = Guest::start(&Image::ready()?, &machine)?;
        bridge.ok("set -e; ip link add br0 type bridge; ip link set br0 up
             for port in eth0 eth1; do ip link set $port master br0; done")?;
        let [left, right] = ends;
        address(&left, 1)?;
        address(&right, 2)?;
        let hosts = Hosts {
            left: Host::start(left, 1, Family::V4, options)?,
            right: Host::start(right, 2, Family::V4, options)?,
        };
        let a = hosts.left.guest("a", 42, 1)?;
        let b = hosts.right.guest("b", 42, 2)?;
        Ok(Self {
            a,
            b,
            hosts,
            bridge,
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.bridge.ok(
            "for port in eth0 eth1; do tc qdisc del dev $port root 2>/dev/null; \
             ip link set $port up; done",
        )?;
        B.iter().try_for_each(|to| answers(&self.a, to))
    }

    fn is_running(&mut self) -> bool {
        self.hosts.left.daemon.is_running() && self.hosts.right.daemon.is_running()
    }

    fn dump(&self) -> String {
        let bridge = self.bridge.ok("ip -s link; tc -s qdisc");
        self.hosts.dump() + &bridge.unwrap_or_else(|e| e)
    }
}

impl LossyLink {
    /// What the link does to frames from now on, in both directions.
    fn netem(&self, what: &str) -> Result<()> {
        let command = format!(
            "for port in eth0 eth1; do tc qdisc replace dev $port root netem limit 10000 {what}; \
             done"
        );
        self.bridge.ok(&command).map(drop)
    }

    /// Streams of `BYTES` both ways, over both families, arrive as they were sent.
    fn streams_are_whole(&self) -> Result<()> {
        let _servers = [
            serve(&self.b, "tcp-serve 80")?,
            serve(&self.b, "tcp-sink 81")?,
        ];
        for to in B {
            self.a.ok(&tool(&format!("tcp-get {to} 80 {BYTES} 60")))?;
            self.a.ok(&tool(&format!("tcp-put {to} 81 {BYTES} 60")))?;
        }
        Ok(())
    }
}

fn frames_are_lost(link: &mut LossyLink) -> Result<()> {
    link.netem("delay 1ms loss 2%")?;
    link.streams_are_whole()?;
    let said = link
        .bridge
        .ok("tc -s qdisc show dev eth0; tc -s qdisc show dev eth1")?;
    check(
        said.matches("dropped").count() == 2 && !said.contains("dropped 0,"),
        &format!("frames were lost both ways:\n{said}"),
    )
}

/// Neither TCP segments nor datagrams are merged across one that is not there yet.
fn frames_come_in_another_order(link: &mut LossyLink) -> Result<()> {
    link.netem("delay 3ms reorder 40%")?;
    link.streams_are_whole()?;
    for receiver in [&link.a, &link.b] {
        let early = tcp_counter(receiver, "TCPOFOQueue")?;
        check(early > 0, "segments came before those in front of them")?;
    }
    wait_for("datagrams in another order", PATIENCE, || {
        Ok(datagrams(link)?.then_some(()))
    })
}

/// Checksums that are wrong stay wrong: nothing is merged under a right one, and nobody is told
/// that it is right.
fn frames_come_twice_and_corrupt(link: &mut LossyLink) -> Result<()> {
    link.netem("delay 1ms corrupt 1% duplicate 5%")?;
    link.streams_are_whole()?;
    for receiver in [&link.a, &link.b] {
        let twice =
            tcp_counter(receiver, "TCPDSACKOfoRecv")? + tcp_counter(receiver, "TCPDSACKOldSent")?;
        check(twice > 0, "segments came twice")?;
    }
    wait_for("corrupt datagrams", PATIENCE, || {
        datagrams(link)?;
        let wrong = udp_counter(&link.b, "InCsumErrors")?;
        Ok((wrong > 0).then_some(()))
    })
}

/// A download outlives a link that is away for longer than a retransmission takes, and our own end
/// of it going down and up.
fn the_link_comes_and_goes(link: &mut LossyLink) -> Result<()> {
    let _server = serve(&link.b, "tcp-serve 80 1000000")?;
    let mut download = link
        .a
        .start("download", &tool("tcp-get 10.1.0.2 80 3000000 60"))?;
    let away = link.bridge.begin(
        "for n in 1 2 3 4; do ip link set eth1 down; sleep 0.4; ip link set eth1 up; sleep 0.4; \
         done",
        PATIENCE,
    )?;
    for _ in 0..4 {
        link.hosts.left.namespace.ok(&format!(
            "ip link set {UPLINK} down; ip link set {UPLINK} up"
        ))?;
        answers(&link.a, "10.1.0.2")?;
    }
    let said = away.wait()?;
    check(
        said.code == 0,
        &format!("the link goes away:\n{}", said.text),
    )?;
    let ended = download.wait(Duration::from_secs(60))?;
    check(
        ended.success(),
        &format!("the download is whole:\n{}", download.log()),
    )
}

/// The way to the other host carries less than the link, which the kernel knows, and the guests
/// take no notice of the MTU that they are told: they hear of it packet by packet, although packets
/// are lost.
fn the_link_is_narrow(link: &mut LossyLink) -> Result<()> {
    link.netem("delay 1ms loss 1%")?;
    let narrow = |host: &Host, other: u8, verb: &str| {
        let route = format!("ip route {verb} 192.0.2.{other}/32 dev {UPLINK} mtu 1400");
        host.namespace.ok(&route)
    };
    let set_mtu = |mtu: u16| -> Result<()> {
        for guest in [&link.a, &link.b] {
            guest.ok(&format!("ip link set eth0 mtu {mtu}"))?;
        }
        Ok(())
    };
    narrow(&link.hosts.left, 2, "add")?;
    narrow(&link.hosts.right, 1, "add")?;
    set_mtu(1500)?;
    for to in B {
        // 1400 less the outer headers.
        wait_for("the guest to hear of the MTU", PATIENCE, || {
            link.a
                .succeeds(&format!("ping -q -c 1 -W 1 -s 1400 -M do {to}"))?;
            Ok(link
                .a
                .ok(&format!("ip route get {to}"))?
                .contains("mtu 1350")
                .then_some(()))
        })?;
    }
    link.streams_are_whole()?;
    narrow(&link.hosts.left, 2, "del")?;
    narrow(&link.hosts.right, 1, "del")?;
    set_mtu(1450)
}

/// 200 numbered datagrams of one size go from `a` to `b`, in frames of ten (UDP_SEGMENT). What
/// arrives is whole, and came from there; gives whether any came before one that was sent earlier.
/// Some may be lost.
fn datagrams(link: &LossyLink) -> Result<bool> {
    let receive = "import socket as s; u = s.socket(s.AF_INET, s.SOCK_DGRAM); \
        u.bind(('10.1.0.2', 5000)); u.settimeout(1)
print('bound', flush=True)
came = []
try:
    u.settimeout(10); came.append(u.recv(9000)); u.settimeout(0.5)
    while True: came.append(u.recv(9000))
except TimeoutError: pass
whole = all(len(one) == 800 and one == one[:4] * 200 and int(one[:4]) < 200 for one in came)
print('whole' if whole and came else 'broken', 'sorted' if came == sorted(came) else 'mixed', \
len(came), flush=True)";
    let receiver = link
        .b
        .start("receiver", &format!("python3 -c \"{receive}\""))?;
    let said = |words: &[&str]| {
        wait_for(&format!("{words:?}: {}", receiver.log()), PATIENCE, || {
            let log = receiver.log();
            Ok(words.iter().any(|word| log.contains(word)).then_some(log))
        })
    };
    said(&["bound"])?;
    link.a.ok(
        "python3 -c \"import socket as s; u = s.socket(s.AF_INET, s.SOCK_DGRAM); \
        u.setsockopt(s.IPPROTO_UDP, 103, 800)
for first in range(0, 200, 10): u.sendto(b''.join(b'%04d' % n * 200 for n in range(first, first + \
10)), ('10.1.0.2', 5000))\"",
    )?;
    let log = said(&["whole", "broken"])?;
    check(
        log.contains("whole"),
        &format!("datagrams arrive as they were sent: {log}"),
    )?;
    Ok(log.contains("mixed"))
}

fn tcp_counter(namespace: &Namespace, name: &str) -> Result<u64> {
    counter(namespace, "netstat", name)
}

fn udp_counter(namespace: &Namespace, name: &str) -> Result<u64> {
    counter(namespace, "snmp", &format!("Udp{name}"))
}

/// One of the kernel's counters of a namespace, as nstat names it or without the protocol.
fn counter(namespace: &Namespace, file: &str, name: &str) -> Result<u64> {
    let text = namespace.ok(&format!("cat /proc/{}/net/{file}", namespace.pid()))?;
    // Lines go in pairs, each beginning with the protocol: names, then values.
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let protocol = names.split(':').next().unwrap_or_default();
        let at = names
            .split_whitespace()
            .position(|word| word == name || format!("{protocol}{word}") == name);
        if let Some(value) = at.and_then(|at| values.split_whitespace().nth(at)) {
            return value.parse().map_err(|_| format!("{name} is {value:?}"));
        }
    }
    Err(format!("no {name} in /proc/net/{file}"))
}
