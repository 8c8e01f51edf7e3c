//! TAP NICs in network namespaces, as containers would have them: two hosts with a kernel each and
//! no QEMU between.

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::time::Duration;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Body); 12] = trials![
        ping_by_rule,
        iperf3_tcp_passes_unsegmented,
        iperf3_udp_loses_nothing_at_a_low_rate,
        a_connection_is_cut_and_does_not_return,
        offloads_off_in_the_kernel,
        larger_frames_with_a_larger_mtu,
        a_deleted_nic_takes_its_device_with_it,
        a_device_that_went_with_its_namespace_is_made_again,
        the_same_nic_add_makes_a_device_again,
        who_comes_to_a_network_is_announced_there,
        tcp_keeps_to_what_its_nic_may_send,
        tcp_keeps_to_what_its_nic_may_be_sent,
    ];
    let trials = trials.map(|(name, body)| Trial::test(name, move || run(body)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

type Body = fn(&Pair) -> Result<()>;

/// Two namespaces, `left` 10.1.0.1 and `right` 10.1.0.2 in one VNI, each in the group of its name.
struct Pair {
    left: Namespace,
    right: Namespace,
    daemon: Daemon,
}

fn run(body: Body) -> std::result::Result<(), Failed> {
    let pair = Pair::start(1500)?;
    body(&pair).map_err(|e| format!("{e}\n{}", pair.daemon.dump()).into())
}

/// Its line: 10.1.0.LAST, in the group of its name.
fn nic_add(name: &str, last: u8, mtu: u16) -> String {
    format!(
        "nic add --id {name} --mac 52:54:00:00:01:0{last} --vni 7 --ip 10.1.0.{last} \
         fd01::{last} --sg {name} --type tap --path bf-{name} --mtu {mtu}"
    )
}

impl Pair {
    fn start(mtu: u16) -> Result<Self> {
        let daemon = Daemon::start(&[])?;
        let host = |name: &str, last: u8| -> Result<Namespace> {
            let mac = format!("52:54:00:00:01:0{last}");
            daemon.cli(&format!("sg add {name} + {}", nic_add(name, last, mtu)))?;
            let namespace = Namespace::new()?;
            namespace.adopt(
                &format!("bf-{name}"),
                &mac,
                &[&format!("10.1.0.{last}/24"), &format!("fd01::{last}/64")],
            )?;
            Ok(namespace)
        };
        Ok(Self {
            left: host("left", 1)?,
            right: host("right", 2)?,
            daemon,
        })
    }

    /// The left namespace goes, and its device with it; why its NIC is then broken.
    fn loses_left(&self) -> Result<String> {
        process::run(&["kill", "-9", &self.left.pid().to_string()])?;
        wait_for("the NIC to be broken", PATIENCE, || {
            let status = self.daemon.json("nic details left")?[0].clone();
            let broken = status["state"]
                .as_str()
                .is_some_and(|state| state.ends_with("BROKEN"));
            Ok(broken.then(|| status["detail"].as_str().unwrap_or_default().to_owned()))
        })
    }

    /// Its device is here, for the next container, and works there.
    fn next_left_works(&self) -> Result<()> {
        let again = Namespace::new()?;
        let addresses = ["10.1.0.1/24", "fd01::1/64"];
        again.adopt("bf-left", "52:54:00:00:01:01", &addresses)?;
        self.daemon.cli("sg rule add right --ip-proto icmp")?;
        again.ok("ping -q -c 1 -W 2 10.1.0.2").map(drop)
    }

    fn serve(&self) -> Result<Process> {
        let server = self.right.start("iperf3", "iperf3 -s --forceflush")?;
        wait_for("iperf3 to listen", PATIENCE, || {
            Ok(server.log().contains("listening").then_some(()))
        })?;
        Ok(server)
    }

    /// Runs iperf3 from the left, and gives its summary.
    fn iperf3(&self, options: &str) -> Result<Value> {
        let text = self.left.ok(&format!("timeout 30 iperf3 -J {options}"))?;
        serde_json::from_str(&text).map_err(|e| format!("iperf3 printed {text}: {e}"))
    }
}

fn ping_by_rule(pair: &Pair) -> Result<()> {
    for (to, cidr) in [("10.1.0.2", "10.1.0.1/32"), ("fd01::2", "fd01::1/128")] {
        let ping = format!("ping -q -c 2 -i 0.2 -W 1 {to}");
        check(
            !pair.left.succeeds(&ping)?,
            &format!("{to} is dropped by default"),
        )?;
        pair.daemon
            .cli(&format!("sg rule add right --ip-proto icmp --cidr {cidr}"))?;
        check(
            pair.left.succeeds(&ping)?,
            &format!("{to} answers by the rule"),
        )?;
        pair.daemon
            .cli(&format!("sg rule del right --ip-proto icmp --cidr {cidr}"))?;
        check(
            !pair.left.succeeds(&ping)?,
            &format!("{to} is dropped again"),
        )?;
    }
    Ok(())
}

fn iperf3_tcp_passes_unsegmented(pair: &Pair) -> Result<()> {
    pair.daemon
        .cli("sg rule add right --ip-proto tcp --port 5201")?;
    let _server = pair.serve()?;
    for to in ["10.1.0.2", "fd01::2"] {
        for direction in ["", "-R"] {
            let nic = if direction.is_empty() {
                "right"
            } else {
                "left"
            };
            let stats = |name| pair.daemon.stat(nic, name);
            let (bytes, frames) = (stats("ingress_bytes")?, stats("ingress_frames")?);
            let report = pair.iperf3(&format!("-c {to} -t 2 {direction}"))?;
            let received = report["end"]["sum_received"]["bytes"]
                .as_f64()
                .unwrap_or_default();
            check(
                received > 10e6,
                &format!("{received} bytes passed in 2 s to {to} {direction}"),
            )?;
            let mean = (stats("ingress_bytes")? - bytes) / (stats("ingress_frames")? - frames);
            check(
                mean > 5000,
                &format!("frames to {nic} are {mean} bytes long on average"),
            )?;
        }
    }
    Ok(())
}

fn iperf3_udp_loses_nothing_at_a_low_rate(pair: &Pair) -> Result<()> {
    pair.daemon.cli(
        "sg rule add right --ip-proto tcp --port 5201 + sg rule add right --ip-proto udp \
         --port 5201",
    )?;
    let _server = pair.serve()?;
    for (to, full) in [
        ("10.1.0.2", "UdpRcvbufErrors"),
        ("fd01::2", "Udp6RcvbufErrors"),
    ] {
        // What comes while iperf3 waits for a core does not fit into its socket for long.
        let at_the_socket = || -> Result<u64> {
            let told = pair.right.ok(&format!("nstat -asz {full}"))?;
            let number = told
                .split_whitespace()
                .skip_while(|word| *word != full)
                .nth(1);
            number
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| format!("no number of {full} in {told:?}"))
        };
        let before = at_the_socket()?;
        let report = pair.iperf3(&format!("-u -c {to} -b 10M -t 1"))?;
        let at_the_socket = at_the_socket()? - before;
        let sum = &report["end"]["sum"];
        let (packets, lost) = (
            sum["packets"].as_u64().unwrap_or(0),
            sum["lost_packets"].as_u64().unwrap_or(u64::MAX),
        );
        check(
            packets > 500 && lost <= at_the_socket,
            &format!(
                "{lost} of {packets} datagrams to {to} were lost, {at_the_socket} of them at their \
                 socket"
            ),
        )?;
    }
    Ok(())
}

fn a_connection_is_cut_and_does_not_return(pair: &Pair) -> Result<()> {
    const RULE: &str = "right --ip-proto tcp --port 5201";
    pair.daemon.cli(&format!("sg rule add {RULE}"))?;
    let _server = pair.serve()?;
    let mut client = pair
        .left
        .start("client", "iperf3 -c 10.1.0.2 -t 120 -b 50M")?;
    let moves_within = |patience, moving: bool| {
        wait_for(&format!("traffic to move: {moving}"), patience, || {
            let before = pair.right.counter("rx_bytes")?;
            // the interval that a rate is taken over
            std::thread::sleep(Duration::from_millis(300));
            let came = pair.right.counter("rx_bytes")? - before;
            Ok(((came > 100_000) == moving).then_some(()))
        })
    };
    let moves = |moving| moves_within(PATIENCE, moving);
    moves(true)?;
    pair.daemon.cli(&format!("sg rule del {RULE}"))?;
    moves(false)?;
    // A connection begins with a SYN: the rule's return does not revive one whose state was cut ...
    pair.daemon.cli(&format!(
        "sg add --silent-midstream right + sg rule add {RULE}"
    ))?;
    // Ten seconds have several retransmissions of TCP's in them (RFC 6298 2.1: doubled each time).
    check(
        moves_within(Duration::from_secs(10), true).is_err(),
        "a connection that was cut stays cut",
    )?;
    // ... unless the group says otherwise.
    pair.daemon.cli("sg add --allow-midstream right")?;
    moves(true)?;
    // Forgotten, it is ended at once: its client need not wait.
    pair.daemon.cli(
        "sg add --allow-midstream=false --silent-midstream=false right + flows kill --port 5201 \
         --yes",
    )?;
    client.wait(PATIENCE).map(drop)
}

/// The kernel of one side computes and cuts everything itself; the other side's does not mind.
fn offloads_off_in_the_kernel(pair: &Pair) -> Result<()> {
    pair.daemon
        .cli("sg rule add right --ip-proto all + sg rule add left --ip-proto all")?;
    let _server = pair.serve()?;
    if !pair.left.succeeds("command -v ethtool")? {
        return Err("ethtool is not installed: run make setup".to_owned());
    }
    pair.left
        .ok("ethtool -K eth0 tso off gso off gro off tx off rx off sg off")?;
    for to in ["10.1.0.2", "fd01::2"] {
        for direction in ["", "-R"] {
            let report = pair.iperf3(&format!("-c {to} -t 1 {direction}"))?;
            let received = report["end"]["sum_received"]["bytes"]
                .as_f64()
                .unwrap_or_default();
            check(
                received > 1e6,
                &format!("{received} bytes passed in 1 s to {to} {direction}"),
            )?;
        }
    }
    Ok(())
}

/// Bits a second of payload that arrived, of a run of TCP.
fn tcp_rate(pair: &Pair, options: &str) -> Result<f64> {
    let report = pair.iperf3(options)?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.ok_or_else(|| format!("iperf3 {options} told no rate: {report}"))
}

/// What a NIC sends beyond its limit waits: its TCP fills the limit, as behind the kernel's own
/// shaper (tbf) where this kernel has that, and no frame is dropped.
fn tcp_keeps_to_what_its_nic_may_send(pair: &Pair) -> Result<()> {
    const LIMIT: f64 = 50e6;
    pair.daemon
        .cli("sg rule add right --ip-proto tcp --port 5201")?;
    let _server = pair.serve()?;
    let unlimited = tcp_rate(pair, "-c 10.1.0.2 -t 1")?;
    check(
        unlimited > 4.0 * LIMIT,
        &format!("{unlimited} bits a second without a limit"),
    )?;
    for to in ["10.1.0.2", "fd01::2"] {
        pair.daemon
            .cli("nic update left --limit-out 50mbit,burst=64kb")?;
        let shown = pair.daemon.cli("nic show left")?;
        check(shown.contains("50mbit,burst=64kb"), &shown)?;
        let dropped = pair.daemon.stat("left", "egress_drops")?;
        let rate = tcp_rate(pair, &format!("-c {to} -t 4 -O 1"))?;
        println!("limit {LIMIT}: TCP carries {rate} to {to}");
        // Headers are charged, too: 66 to 86 bytes of 1,514. On a busy machine senders wait longer.
        check(
            (0.6 * LIMIT..LIMIT).contains(&rate),
            &format!("{rate} of {LIMIT} bits a second to {to}"),
        )?;
        check(
            pair.daemon.stat("left", "egress_drops")? == dropped,
            "nothing is dropped for the limit",
        )?;
        check(
            pair.daemon.stat("left", "egress_waits")? > 0,
            "its queue has waited",
        )?;
        pair.daemon.cli("nic update left --limit-out none")?;
        let rate = tcp_rate(pair, &format!("-c {to} -t 1"))?;
        check(
            rate > 2.0 * LIMIT,
            &format!("{rate} bits a second when the limit is gone"),
        )?;
    }
    let tbf = "tc qdisc replace dev eth0 root tbf rate 50mbit burst 64kb latency 50ms";
    if pair.left.succeeds(tbf)? {
        let rate = tcp_rate(pair, "-c 10.1.0.2 -t 4 -O 1")?;
        println!("limit {LIMIT}: TCP carries {rate} behind the kernel's tbf");
    } else {
        println!("this kernel has no tbf to compare with");
    }
    Ok(())
}

/// What a NIC is sent beyond its limit waits a little, so that TCP fills the limit, too; what is
/// more is dropped, whoever sends.
fn tcp_keeps_to_what_its_nic_may_be_sent(pair: &Pair) -> Result<()> {
    pair.daemon.cli(
        "sg rule add right --ip-proto tcp --port 5201 + sg rule add right --ip-proto udp --port \
         5201",
    )?;
    let _server = pair.serve()?;
    for (limit, to) in [(10, "10.1.0.2"), (50, "fd01::2"), (500, "10.1.0.2")] {
        pair.daemon
            .cli(&format!("nic update right --limit-in {limit}mbit"))?;
        let rate = tcp_rate(pair, &format!("-c {to} -t 4 -O 1"))?;
        let limit = f64::from(limit) * 1e6;
        println!("limit {limit}: TCP carries {rate} to a NIC at {to} that may be sent no more");
        // As above.
        check(
            (0.6 * limit..limit).contains(&rate),
            &format!("{rate} of {limit} bits a second to {to}"),
        )?;
    }
    let drops = pair.daemon.cli("drops right")?;
    check(drops.contains("bit_limit"), &drops)?;
    // A datagram stream of twice the packets that it may be sent.
    pair.daemon
        .cli("nic update right --limit-in packets=1000,packets-burst=10")?;
    let report = pair.iperf3("-u -c 10.1.0.2 -l 500 -b 8M -t 2")?;
    let lost = report["end"]["sum"]["lost_percent"].as_f64();
    let lost = lost.ok_or_else(|| format!("iperf3 told no loss: {report}"))?;
    check(
        (40.0..60.0).contains(&lost),
        &format!("{lost} % of twice the packets are lost"),
    )?;
    let drops = pair.daemon.cli("drops right")?;
    check(drops.contains("packet_limit"), &drops)
}

fn larger_frames_with_a_larger_mtu(pair: &Pair) -> Result<()> {
    pair.daemon.cli("nic del left right")?;
    let pair = Pair::start(9000)?;
    pair.daemon.cli("sg rule add right --ip-proto icmp")?;
    for side in [&pair.left, &pair.right] {
        let link = side.ok("ip link show eth0")?;
        check(
            link.contains("mtu 9000"),
            &format!("the device has the MTU that was asked for: {link}"),
        )?;
    }
    pair.left
        .ok("ping -q -c 2 -i 0.2 -W 1 -M do -s 8900 10.1.0.2 && \
             ping -q -c 2 -i 0.2 -W 1 -M do -s 8900 fd01::2")
        .map(drop)
}

/// A guest that is there already has said where it is to the network that it was in: as one that
/// moved to this host, whose NIC waited for its connections elsewhere.
fn who_comes_to_a_network_is_announced_there(pair: &Pair) -> Result<()> {
    let put = |vni: u32| {
        pair.daemon.cli(&format!(
            "nic add --replace --id left --mac 52:54:00:00:01:01 --vni {vni} --ip 10.1.0.1 \
             fd01::1 --sg left --type tap --path bf-left --mtu 1500"
        ))
    };
    put(8)?;
    let hears = pair.right.start("hears", "tcpdump -l -n -i eth0 rarp")?;
    let until = |word: &str| {
        let hears = || Ok(hears.log().contains(word).then_some(()));
        wait_for(word, PATIENCE, hears)
    };
    until("listening on")?;
    put(7)?;
    until("who-is 52:54:00:00:01:01")
}

fn a_deleted_nic_takes_its_device_with_it(pair: &Pair) -> Result<()> {
    pair.left.ok("ip link show eth0")?;
    pair.daemon.cli("nic del left")?;
    check(
        !pair.left.succeeds("ip link show eth0")?,
        "the device is gone from its namespace",
    )?;
    check(
        process::run(&["ip", "link"])?.matches("bf-left").count() == 0,
        "and has not come back to the host",
    )
}

fn a_device_that_went_with_its_namespace_is_made_again(pair: &Pair) -> Result<()> {
    let daemon = &pair.daemon;
    let file = daemon.dir().join("host.json");
    std::fs::write(&file, daemon.cli("config")?).map_err(|e| e.to_string())?;
    let apply = |options: &str| daemon.cli(&format!("apply {} {options}", file.display()));
    let why = pair.loses_left()?;
    assert_eq!(apply("-n")?, format!("would heal nic left: {why}\n"));
    assert_eq!(apply("")?, format!("healed nic left: {why}\n"));
    assert_eq!(apply("")?, "", "once");
    pair.next_left_works()
}

/// The line that has made it, once more: nothing is to be replaced, and the device is there again.
fn the_same_nic_add_makes_a_device_again(pair: &Pair) -> Result<()> {
    let add = || pair.daemon.cli(&nic_add("left", 1, 1500));
    let device = || process::run(&["ip", "link", "show", "dev", "bf-left"]);
    for _ in 0..2 {
        // While the device is there, in its namespace, it stays there.
        add()?;
        check(
            pair.left.succeeds("ip link show eth0")?,
            "it is where it was",
        )?;
        check(device().is_err(), "and not here")?;
    }
    let why = pair.loses_left()?;
    check(device().is_err(), &format!("it is gone: {why}"))?;
    add()?;
    let state = pair.daemon.json("nic details left")?[0]["state"].clone();
    check(
        state
            .as_str()
            .is_some_and(|state| !state.ends_with("BROKEN")),
        &format!("it is no longer broken: {state}"),
    )?;
    pair.next_left_works()
}
