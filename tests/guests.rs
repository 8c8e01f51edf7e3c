//! Guests as guests are: they offload, or do not; they reboot, crash and return; they share a host
//! with namespaces.

use butterfly_tests::daemon::number;
use butterfly_tests::lab::{Download, Lab, VNI, address_command, check, mac, pings, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::run_trials;
use serde_json::Value;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::process;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_trials::<Lab>(
        // More than the machine has cores, as small as ours are; the guests' NICs are spread over
        // them.
        &["--workers", "3", "--store", "{dir}/state"],
        &trials![
            workers_hand_frames_over,
            another_network_hears_nothing,
            a_nic_has_several_addresses,
            segments_of_64_kib_cross_whole,
            a_guest_without_offloads,
            each_feature_alone_can_be_missing,
            a_namespace_is_a_guest,
            statistics_agree_with_the_guest,
            a_packet_trace_can_be_read,
            bench_nics_send_and_answer,
            a_nic_goes_and_returns_under_its_guest,
            the_daemon_is_killed_and_returns,
            a_guest_reboots,
            a_guest_is_killed_and_returns,
        ],
    );
}

const B4: &str = "10.0.0.2";
const B6: &str = "fd00::2";

/// All three guests let everything in.
fn open(lab: &Lab) -> Result<()> {
    lab.cli(
        "sg rule add open --ip-proto all + nic sg set a open + nic sg set b open + nic sg set \
         c open",
    )
    .map(drop)
}

/// The three guests are not all with one worker, and hear each other all the same, under rules.
fn workers_hand_frames_over(lab: &mut Lab) -> Result<()> {
    let handed_over = || -> Result<u64> {
        let all = lab.daemon.json("worker list")?;
        let workers = all["workers"]
            .as_array()
            .ok_or(format!("no workers in {all}"))?;
        check(
            workers.len() == 3,
            &format!("there are three workers: {all}"),
        )?;
        let frames = |worker: &Value| number(&worker["handed_over"]);
        workers
            .iter()
            .map(frames)
            .sum::<Option<u64>>()
            .ok_or(format!("no handed_over in {all}"))
    };
    lab.cli(
        "sg rule add web --ip-proto tcp --port 80 + sg rule add web --ip-proto icmp + nic sg \
         set b web + nic sg set c web",
    )?;
    let before = handed_over()?;
    lab.b().serve("guest tcp-serve 80")?;
    lab.c().serve("guest tcp-serve 80")?;
    let from_to = [
        (lab.a(), B4),
        (lab.a(), "10.0.0.3"),
        (lab.b(), "10.0.0.3"),
        (lab.c(), B6),
    ];
    for (from, to) in from_to {
        check(pings(from, to)?, &format!("{to} answers {}", from.name()))?;
        from.ok(&format!("guest tcp-get {to} 80 5000000 20"))?;
    }
    check(
        handed_over()? > before,
        "frames are handed over between workers",
    )?;
    // A rule that goes stops what runs between two workers, too.
    let downloads = [
        Download::start(lab.a(), B4, 80)?,
        Download::start(lab.b(), "10.0.0.3", 80)?,
    ];
    lab.cli("sg del web")?;
    downloads.iter().try_for_each(Download::stops)
}

/// A NIC in another VNI, of the same MAC and addresses as b.
fn another_network_hears_nothing(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    let (a, b) = (lab.a(), lab.b());
    let twin = mac(1);
    lab.cli(&format!(
        "nic add --id twin --mac {twin} --vni 43 --ip {B4} {B6} --sg open --type tap --path bf-twin"
    ))?;
    let namespace = Namespace::new()?;
    namespace.adopt("bf-twin", &twin, &["10.0.0.2/24", "fd00::2/64"])?;
    b.serve("guest tcp-serve 80")?;
    for to in [B4, B6] {
        a.ok(&format!(
            "ip neigh flush dev eth0; ping -c 3 -i 0.2 -W 1 {to} && \
             guest tcp-get {to} 80 1000000 10"
        ))?;
    }
    check(
        namespace.counter("rx_packets")? == 0,
        "the NIC in the other network heard nothing",
    )?;

    // A kernel says something of its own now and then, but not this much.
    const MANY: u64 = 40;
    let heard = || -> Result<u64> {
        Ok(a.counter("eth0", "rx_packets")? + lab.c().counter("eth0", "rx_packets")?)
    };
    let before = heard()?;
    for ping in ["-b 10.0.0.255", "ff02::1%eth0", "10.0.0.1", "fd00::3"] {
        let answered = namespace.succeeds(&format!("ping -q -c {MANY} -i 0.02 -W 1 {ping}"))?;
        // All nodes of the link are oneself, too.
        check(
            !answered || ping.starts_with("ff02"),
            "nobody answers in the other network",
        )?;
    }
    check(
        heard()? < before + MANY,
        "what it broadcasts stays in its network",
    )
}

fn a_nic_has_several_addresses(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    lab.cli("nic update b --ip 10.0.0.2 fd00::2 10.0.0.22 192.168.7.2 fd00::22 2001:db8::2")?;
    lab.b().ok(
        "ip addr add 10.0.0.22/24 dev eth0; ip addr add 192.168.7.2/24 dev eth0; \
         ip addr add fd00::22/64 dev eth0; \
         ip addr add 2001:db8::2/64 dev eth0",
    )?;
    lab.cli("nic update a --ip 10.0.0.1 fd00::1 192.168.7.1 2001:db8::1")?;
    lab.a()
        .ok("ip addr add 192.168.7.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0")?;
    for to in [
        B4,
        B6,
        "10.0.0.22",
        "192.168.7.2",
        "fd00::22",
        "2001:db8::2",
    ] {
        check(pings(lab.a(), to)?, &format!("{to} answers"))?;
    }
    // All of them are members of a group the NIC is in.
    lab.cli(
        "sg add --replace open + sg rule add peers --ip-proto icmp --sg-members open + nic sg set \
         a peers",
    )?;
    lab.b()
        .ok("ping -c 2 -i 0.2 -W 1 -I 192.168.7.2 192.168.7.1 && \
             ping -c 2 -i 0.2 -W 1 -I 2001:db8::2 2001:db8::1")
        .map(drop)
}

/// What one NIC handed over is what the other got: 64 KiB at a time, nothing segmented in between.
fn segments_of_64_kib_cross_whole(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    lab.b().serve("guest tcp-serve 80")?;
    for to in [B4, B6] {
        let before = (
            lab.daemon.stat("a", "ingress_frames")?,
            lab.daemon.stat("a", "ingress_bytes")?,
        );
        lab.a().ok(&format!("guest tcp-get {to} 80 50000000 20"))?;
        let frames = lab.daemon.stat("a", "ingress_frames")? - before.0;
        let bytes = lab.daemon.stat("a", "ingress_bytes")? - before.1;
        check(bytes >= 50_000_000, "all bytes are counted")?;
        let mean = bytes / frames;
        check(
            mean > 10_000,
            &format!("frames are {mean} bytes long on average, far above the MTU"),
        )?;
    }
    Ok(())
}

/// A guest that negotiates nothing, towards one that negotiates all: segmented and completed on the
/// way to it.
fn a_guest_without_offloads(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    let guest = fourth_guest(lab, Nic::plain)?;
    exchange(lab, &guest)?;
    let mean = guest.counter("eth0", "rx_bytes")? / guest.counter("eth0", "rx_packets")?;
    check(
        mean <= 1514,
        &format!("it gets frames of {mean} bytes on average, within the MTU"),
    )
}

fn each_feature_alone_can_be_missing(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    let variants: [fn(&mut Nic); 5] = [
        |nic| nic.segmentation = false,
        |nic| nic.mergeable = false,
        |nic| nic.event_index = false,
        |nic| nic.indirect = false,
        |nic| nic.checksum = false,
    ];
    for change in variants {
        let guest = fourth_guest(lab, |wire, mac| {
            let mut nic = Nic::new(wire, mac);
            change(&mut nic);
            nic
        })?;
        exchange(lab, &guest)?;
    }
    Ok(())
}

/// A guest `d`, 10.0.0.4, that lets everything in.
fn fourth_guest(lab: &Lab, nic: impl FnOnce(Wire, &str) -> Nic) -> Result<Guest> {
    lab.cli(&format!(
        "nic add --id d --mac {} --vni {VNI} --ip 10.0.0.4 fd00::4 --sg open",
        mac(3)
    ))?;
    let nic = nic(Wire::VhostUser(lab.daemon.socket("d")), &mac(3));
    let guest = Guest::start(&Image::ready()?, &Machine::named("d").with(nic))?;
    guest.ok(&address_command(3))?;
    Ok(guest)
}

/// Both directions, both families, TCP and UDP, in fragments too.
fn exchange(lab: &Lab, guest: &Guest) -> Result<()> {
    let b = lab.b();
    b.quiet()?;
    for server in [
        "tcp-serve 80",
        "tcp-sink 81",
        "udp-serve 53",
        "sctp-serve 9",
    ] {
        b.serve(&format!("guest {server}"))?;
    }
    for to in [B4, B6] {
        guest.ok(&format!(
            "ping -c 2 -i 0.2 -W 2 {to} && guest tcp-get {to} 80 5000000 20"
        ))?;
        guest.ok(&format!(
            "guest tcp-put {to} 81 5000000 20 && guest udp-ping {to} 53 3 6000"
        ))?;
        guest.ok(&format!("guest sctp-ping {to} 9 3 5"))?;
    }
    Ok(())
}

/// A TAP NIC in a namespace with a real guest as its peer.
fn a_namespace_is_a_guest(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    let own = "52:54:00:00:00:40";
    lab.cli(&format!(
        "nic add --id tap --mac {own} --vni {VNI} --ip 10.0.0.40 fd00::40 --sg open --type tap \
         --path bf-tap"
    ))?;
    let namespace = Namespace::new()?;
    namespace.adopt("bf-tap", own, &["10.0.0.40/24", "fd00::40/64"])?;
    for to in [B4, B6] {
        namespace.ok(&format!("ping -c 3 -i 0.2 -W 1 {to}"))?;
    }
    let tool = testkit::image::repository().join("target/guest/root/bin/guest");
    let sink = namespace.start("guest", &format!("{} tcp-sink 81", tool.display()))?;
    let source = namespace.start("source", &format!("{} tcp-serve 80", tool.display()))?;
    for program in [&sink, &source] {
        wait_for("a server to listen", PATIENCE, || {
            Ok(program.log().contains("listening").then_some(()))
        })?;
    }
    for to in ["10.0.0.40", "fd00::40"] {
        lab.b().ok(&format!(
            "guest tcp-put {to} 81 20000000 20 && guest tcp-get {to} 80 20000000 20"
        ))?;
    }
    let mean =
        lab.daemon.stat("tap", "ingress_bytes")? / lab.daemon.stat("tap", "ingress_frames")?;
    check(
        mean > 3000,
        &format!("the namespace gets frames of {mean} bytes on average: not segmented either"),
    )
}

/// What the daemon counts is what the guest's kernel counts: its counters leave out nothing but
/// frames still in flight.
fn statistics_agree_with_the_guest(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    let (a, b) = (lab.a(), lab.b());
    let daemon = || -> Result<[u64; 4]> {
        let stat = |name| lab.daemon.stat("b", name);
        Ok([
            stat("ingress_frames")?,
            stat("ingress_bytes")?,
            stat("egress_frames")?,
            stat("egress_bytes")?,
        ])
    };
    let guest = || -> Result<[u64; 4]> {
        let count = |name| b.counter("eth0", name);
        Ok([
            count("rx_packets")?,
            count("rx_bytes")?,
            count("tx_packets")?,
            count("tx_bytes")?,
        ])
    };
    // Both at a moment when nothing moves.
    let both = || {
        wait_for("a quiet moment", PATIENCE, || {
            let before = daemon()?;
            let guest = guest()?;
            Ok((daemon()? == before).then_some((before, guest)))
        })
    };
    a.ok(&format!("ping -c 1 -W 1 {B4}"))?;
    let (daemon_before, guest_before) = both()?;
    a.ok(&format!("ping -c 20 -i 0.05 -W 1 -s 1000 {B4}"))?;
    let (daemon, guest) = both()?;
    let difference =
        |now: [u64; 4], then: [u64; 4]| std::array::from_fn::<u64, 4, _>(|i| now[i] - then[i]);
    let (daemon, guest) = (
        difference(daemon, daemon_before),
        difference(guest, guest_before),
    );
    check(
        daemon == guest,
        &format!("the daemon counted {daemon:?} and the guest {guest:?}"),
    )?;
    check(
        daemon[0] >= 20 && daemon[1] >= 20 * 1042,
        &format!("{daemon:?} holds the pings"),
    )
}

fn a_packet_trace_can_be_read(lab: &mut Lab) -> Result<()> {
    let (a, b) = (lab.a(), lab.b());
    b.serve("guest tcp-serve 80")?;
    lab.cli("sg rule add web --ip-proto icmp + nic sg set b web")?;
    let path = lab.daemon.dir().join("b.pcapng");
    let path = path.display();
    lab.cli(&format!(
        "nic update b --packet-trace true --trace-path {path}"
    ))?;
    a.ok(&format!("ping -c 3 -i 0.2 -W 1 {B4}"))?;
    check(
        !a.succeeds(&format!("guest tcp-get {B4} 80 1 1"))?,
        "TCP is dropped",
    )?;
    lab.cli("nic update b --packet-trace false")?;
    let text = wait_for("the trace", PATIENCE, || {
        let text = process::run(&["tcpdump", "-n", "-r", &path.to_string()])?;
        Ok(
            (text.contains("Flags [S]") && text.matches("ICMP echo reply").count() >= 3)
                .then_some(text),
        )
    })?;
    check(
        text.matches("10.0.0.1 > 10.0.0.2: ICMP echo request")
            .count()
            == 3,
        &format!("it has the ping:\n{text}"),
    )?;
    // A dropped frame carries its reason as a comment.
    let bytes =
        std::fs::read(path.to_string()).map_err(|e| format!("cannot read the trace: {e}"))?;
    let drops = lab.daemon.json("drops b")?.to_string();
    let named = drops.split('"').any(|word| {
        word.len() > 6
            && word.contains('_')
            && bytes
                .windows(word.len())
                .any(|window| window == word.as_bytes())
    });
    check(
        named,
        &format!("the trace names the reason of the drop, one of {drops}"),
    )?;
    // And it is over.
    let len = bytes.len();
    a.ok(&format!("ping -c 1 -W 1 {B4}"))?;
    let now = std::fs::metadata(path.to_string())
        .map_err(|e| format!("the trace is gone: {e}"))?
        .len();
    check(now == len as u64, "nothing is written any more")
}

fn bench_nics_send_and_answer(lab: &mut Lab) -> Result<()> {
    lab.cli("sg rule add ping --ip-proto icmp + nic sg set b ping")?;
    let bench = |id: &str, last: u8, more: &str| {
        format!(
            "nic add --id {id} --mac 52:54:00:00:00:{last} --vni {VNI} --ip 10.0.0.{last} --sg \
             ping --type bench {more}"
        )
    };
    lab.cli(&bench("answers", 51, "--btype ICMP_RCV_LIKE"))?;
    lab.cli(&bench(
        "asks",
        52,
        "--btype ICMP_SND_LIKE --dip 10.0.0.51 --dmac 52:54:00:00:00:51",
    ))?;
    let grows = |nic: &str, name: &str| {
        let before = lab.daemon.stat(nic, name)?;
        wait_for(&format!("{name} of {nic} to grow"), PATIENCE, || {
            Ok((lab.daemon.stat(nic, name)? > before + 100).then_some(()))
        })
    };
    for (nic, name) in [
        ("asks", "egress_frames"),
        ("answers", "ingress_frames"),
        ("answers", "egress_frames"),
        ("asks", "ingress_frames"),
    ] {
        grows(nic, name)?;
    }
    lab.cli("nic del asks")?;
    check(pings(lab.a(), "10.0.0.51")?, "it answers a guest's ping")?;
    lab.cli(&bench(
        "asks",
        52,
        &format!("--btype ICMP_SND_LIKE --dip {B4} --dmac {}", mac(1)),
    ))?;
    grows("asks", "ingress_frames").map_err(|e| format!("a guest answers it: {e}"))
}

/// The daemon is the server: QEMU comes back when the NIC does.
fn a_nic_goes_and_returns_under_its_guest(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    for round in 0..5 {
        check(
            pings(lab.a(), B4)?,
            &format!("b answers before round {round}"),
        )?;
        lab.cli("nic del b")?;
        check(!pings(lab.a(), B4)?, "b is gone")?;
        check(!lab.daemon.socket("b").exists(), "and so is its socket")?;
        lab.cli(&format!(
            "nic add --id b --mac {} --vni {VNI} --ip {B4} {B6} --sg open",
            mac(1)
        ))?;
        soon(lab.a(), &format!("ping -c 1 -W 1 {B4}"))?;
    }
    Ok(())
}

/// Its sockets are left behind; the guests find the new ones. Nobody tells the next daemon
/// anything.
fn the_daemon_is_killed_and_returns(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    check(pings(lab.a(), B4)?, "b answers")?;
    let declared = lab.cli("config")?;
    lab.daemon.kill_and_restart()?;
    check(lab.cli("config")? == declared, "all that was declared is")?;
    for to in [B4, B6] {
        soon(lab.a(), &format!("ping -c 1 -W 1 {to}"))?;
    }
    Ok(())
}

fn a_guest_reboots(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    for _ in 0..3 {
        lab.guests[1].reboot()?;
        lab.b().ok(&address_command(1))?;
        soon(lab.a(), &format!("ping -c 1 -W 1 {B4}"))?;
        lab.b().serve("guest tcp-serve 80")?;
        lab.a().ok(&format!("guest tcp-get {B6} 80 5000000 10"))?;
    }
    Ok(())
}

/// Killed in the middle of a download, as a crash would.
fn a_guest_is_killed_and_returns(lab: &mut Lab) -> Result<()> {
    open(lab)?;
    for _ in 0..5 {
        lab.b().serve("guest tcp-serve 80")?;
        let [a, b, _] = &mut lab.guests[..] else {
            return Err("there are three guests".to_owned());
        };
        let download = Download::start(a, B4, 80)?;
        b.kill_and_restart()?;
        download.stops()?;
        lab.a().quiet()?;
        lab.b().ok(&address_command(1))?;
        soon(lab.a(), &format!("ping -c 1 -W 1 {B4}"))?;
        check(pings(lab.c(), B6)?, "c reaches it too")?;
    }
    Ok(())
}
