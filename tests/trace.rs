//! `butterfly trace` beside what really happens: what it says passes does, what it says would help
//! helps, nothing is changed by asking, and the other host says the same.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use butterfly_tests::Daemon;
use butterfly_tests::daemon::program;
use butterfly_tests::hosts::{Family, Hosts, answers};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_each(trials![
        what_would_help_helps,
        every_refusal_is_named,
        a_known_connection_is_told,
        across_two_hosts,
        a_frame_of_a_file_is_the_frame,
        a_capture_is_read_by_tcpdump,
        a_capture_of_the_wire_has_outer_headers,
        a_slow_reader_loses_frames_and_nobody_else,
        what_happens_is_told_live,
    ])
}

/// Two namespaces on one host, each in the group of its name: `left` 10.1.0.1, `right` 10.1.0.2.
struct Pair {
    left: Namespace,
    right: Namespace,
    daemon: Daemon,
}

impl Pair {
    fn start() -> Result<Pair> {
        let daemon = Daemon::start(&[])?;
        let host = |name: &str, last: u8| -> Result<Namespace> {
            let mac = format!("52:54:00:00:01:0{last}");
            daemon.cli(&format!(
                "sg add {name} + nic add --id {name} --mac {mac} --vni 7 --ip 10.1.0.{last} \
                 fd01::{last} --sg {name} --type tap --path bf-{name} --enable-antispoof"
            ))?;
            let namespace = Namespace::new()?;
            let addresses = [&*format!("10.1.0.{last}/24"), &*format!("fd01::{last}/64")];
            namespace.adopt(&format!("bf-{name}"), &mac, &addresses)?;
            Ok(namespace)
        };
        Ok(Pair {
            left: host("left", 1)?,
            right: host("right", 2)?,
            daemon,
        })
    }
}

/// Exit code, and what it prints as JSON.
fn trace(daemon: &Daemon, line: &str) -> Result<(i32, Value)> {
    let mut command = Command::new(program("butterfly"));
    command.args(["--json", "-e", &daemon.endpoint(), "trace"]);
    let done = command.args(line.split_whitespace()).output();
    let done = done.map_err(|error| format!("butterfly trace: {error}"))?;
    let text = String::from_utf8_lossy(&done.stdout);
    let value = serde_json::from_str(&text).map_err(|error| {
        let said = String::from_utf8_lossy(&done.stderr);
        format!("`trace {line}` printed {text}{said}: {error}")
    })?;
    Ok((done.status.code().unwrap_or(-1), value))
}

/// It is dropped for this reason; gives what would help.
fn dropped(daemon: &Daemon, line: &str, reason: &str) -> Result<Vec<String>> {
    let (code, told) = trace(daemon, line)?;
    let right = code == 1 && told["reason"] == reason && told["passes"] == false;
    check(
        right,
        &format!("`trace {line}` is dropped by {reason}: {code} {told:#}"),
    )?;
    let remedies = told["remedies"].as_array().cloned().unwrap_or_default();
    Ok(remedies
        .iter()
        .filter_map(|one| Some(one.as_str()?.to_owned()))
        .collect())
}

fn passes(daemon: &Daemon, line: &str) -> Result<Value> {
    let (code, told) = trace(daemon, line)?;
    let right = code == 0 && told["passes"] == true;
    check(right, &format!("`trace {line}` passes: {code} {told:#}"))?;
    Ok(told)
}

/// How many connections are tracked: their ages change by themselves.
fn connections(daemon: &Daemon) -> Result<Option<usize>> {
    Ok(daemon.json("flows")?.as_array().map(Vec::len))
}

fn what_would_help_helps() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    for to in ["10.1.0.2", "fd01::2"] {
        let ping = format!("ping -q -c 1 -W 1 {to}");
        let traced = format!("left icmp {to}");
        check(!pair.left.succeeds(&ping)?, "nothing comes in by default")?;
        let before = daemon.drops("right", "INGRESS", &["no_ingress_rule"])?;
        let flows = connections(daemon)?;
        let mut help = Vec::new();
        for _ in 0..20 {
            help = dropped(daemon, &traced, "no_ingress_rule")?;
        }
        let after = daemon.drops("right", "INGRESS", &["no_ingress_rule"])?;
        check(before == after, "a trace counts nothing")?;
        check(connections(daemon)? == flows, "a trace makes no flow")?;
        let [line] = &help[..] else {
            return Err(format!("one line would help: {help:?}"));
        };
        let line = line.strip_prefix("butterfly ").unwrap_or_default();
        daemon.cli(line)?;
        passes(daemon, &traced)?;
        answers(&pair.left, to)?;
        // The other way it still does not.
        dropped(
            daemon,
            &traced.replace("left", "right").replace('2', "1"),
            "no_ingress_rule",
        )?;
    }
    let text = daemon.cli("trace left icmp 10.1.0.2")?;
    for part in [
        "to NIC right:",
        "group right of NIC right allows it by: in icmp",
        "passes",
    ] {
        check(text.contains(part), &format!("it says '{part}': {text}"))?;
    }
    // Who has no group is told how to get one.
    daemon.cli("nic sg set right")?;
    let help = dropped(daemon, "left tcp 10.1.0.2:80", "no_ingress_rule")?;
    for line in help {
        let line = line.replace("butterfly ", "").replace("GROUP", "web");
        daemon.cli(&line)?;
    }
    passes(daemon, "left tcp 10.1.0.2:80").map(drop)
}

fn every_refusal_is_named() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    daemon.cli("sg rule add right --ip-proto tcp --port 80-90")?;
    let near = dropped(daemon, "left tcp 10.1.0.2:91", "no_ingress_rule")?;
    check(near.len() == 1, &format!("{near:?}"))?;
    let (_, told) = trace(daemon, "left udp 10.1.0.2:80")?;
    let miss = &told["targets"][0]["groups"][0]["misses"][0]["differs"];
    check(
        *miss == serde_json::json!(["protocol"]),
        &format!("{told:#}"),
    )?;
    for (line, reason) in [
        ("left tcp 10.1.0.2:80 --tcp-flags ack", "tcp_not_syn"),
        ("left tcp 10.1.0.2:80 --tcp-flags syn,fin", "tcp_bad_flags"),
        ("left tcp 10.1.0.2:80 --source 10.1.0.9", "ip_spoofed"),
        (
            "left tcp 10.1.0.2:80 --source-mac 52:54:00:00:01:09",
            "mac_spoofed",
        ),
        (
            "left tcp 10.1.0.2:80 --dest-mac 52:54:00:00:01:09",
            "no_destination",
        ),
        (
            "left tcp 10.1.0.2:80 --dest-mac 52:54:00:00:01:01",
            "hairpin",
        ),
        (
            "left udp 10.1.0.2:80 --fragment 64+ --payload 64",
            "fragment_without_first",
        ),
        ("left arp 10.1.0.2 --source 10.1.0.9", "arp_spoofed"),
        ("left arp fd01::2 --source fd01::9", "ip_spoofed"),
        (
            "left --frame 5254000001025254000001010800450000",
            "truncated",
        ),
    ] {
        // A later fragment would be held back: it has not come to nothing yet.
        if reason == "fragment_without_first" {
            let (code, told) = trace(daemon, line)?;
            let held = told["steps"].to_string().contains("held back");
            check(code == 1 && held, &format!("{line}: {told:#}"))?;
            continue;
        }
        dropped(daemon, line, reason)?;
    }
    let (_, told) = trace(daemon, "left tcp 10.1.0.2:80 --tcp-flags ack")?;
    let steps = told["targets"][0]["steps"].to_string();
    check(
        steps.contains("its sender gets a reset"),
        &format!("{told:#}"),
    )?;
    passes(daemon, "left arp 10.1.0.2")?;
    passes(daemon, "left arp fd01::2")?;
    // Where rules are asked, only ARP and IP pass.
    dropped(daemon, "left tcp 10.1.0.2:80 --vlan 5", "ethertype")?;
    daemon.cli("nic update right --link down")?;
    let help = dropped(daemon, "left tcp 10.1.0.2:80", "link_down")?;
    daemon.cli(&help[0].replace("butterfly ", ""))?;
    passes(daemon, "left tcp 10.1.0.2:80")?;
    // What is asked wrongly is said by its name.
    for (line, said) in [
        ("trace nobody tcp 10.1.0.2:80", "nobody"),
        ("trace left tcp 8.8.8.8:80", "8.8.8.8"),
        (
            "trace uplink --host 192.0.2.9 --vni 7 udp 10.1.0.1:1",
            "no uplink",
        ),
    ] {
        let error = daemon.cli(line).err().unwrap_or_default();
        check(error.contains(said), &format!("{line}: {error}"))?;
    }
    Ok(())
}

fn a_known_connection_is_told() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    daemon.cli("sg rule add right --ip-proto udp --port 53")?;
    pair.left
        .ok("echo hello > /dev/udp/10.1.0.2/53 || true; bash -c 'exec \
             3<>/dev/udp/10.1.0.2/53; echo hi >&3; sleep 0.1'")?;
    let flows = daemon.json("flows left")?;
    let all = flows.as_array().cloned().unwrap_or_default();
    let flow = all.iter().find(|flow| flow["destination_port"] == 53);
    let flow = flow.ok_or_else(|| format!("a connection to port 53 is tracked: {flows}"))?;
    let (sport, frames) = (&flow["source_port"], flow["original_frames"].clone());
    let told = passes(
        daemon,
        &format!("left udp 10.1.0.2:53 --source 10.1.0.1:{sport}"),
    )?;
    let target = &told["targets"][0];
    check(
        target["flow"]["source_port"] == *sport && target["groups"] == serde_json::json!([]),
        &format!("it is of the connection, and no group is asked: {target:#}"),
    )?;
    // Its answer needs no rule, and nothing of it has changed by asking.
    passes(
        daemon,
        &format!("right udp 10.1.0.1:{sport} --source 10.1.0.2:53"),
    )?;
    dropped(
        daemon,
        "right udp 10.1.0.1:9 --source 10.1.0.2:53",
        "no_ingress_rule",
    )?;
    let again = daemon.json("flows left")?;
    let all = again.as_array().cloned().unwrap_or_default();
    let same = all.iter().any(|flow| {
        flow["source_port"] == *sport
            && flow["original_frames"] == frames
            && flow["state"] == "one_way"
    });
    check(same, &format!("the connection is as it was: {again:#}"))
}

fn across_two_hosts() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    let a = hosts.left.guest("a", 42, 1)?;
    let _b = hosts.right.guest("b", 42, 2)?;
    answers(&a, "10.1.0.2")?;
    let mac = butterfly_tests::hosts::mac(2);
    let via = format!("--via 192.0.2.2={}", hosts.right.daemon.endpoint());
    let line = format!("a tcp 10.1.0.2:80 --dest-mac {mac} {via}");
    let told = passes(&hosts.left.daemon, &line)?;
    let there = &told["other_hosts"][0];
    let right = told["targets"][0]["endpoint"] == "192.0.2.2"
        && told["targets"][0]["uplink"] == "uplink0"
        && there["host"] == "192.0.2.2"
        && there["trace"]["targets"][0]["nic"] == "b";
    check(right, &format!("it goes to b on the other host: {told:#}"))?;
    // What the other host refuses is refused.
    hosts.right.daemon.cli("sg rule del open --ip-proto all")?;
    let (code, told) = trace(&hosts.left.daemon, &line)?;
    let there = &told["other_hosts"][0]["trace"];
    check(
        code == 1 && there["reason"] == "no_ingress_rule",
        &format!("the other host drops it: {code} {told:#}"),
    )?;
    // Asked of the other host itself, the answer is that as well.
    let host = "uplink --vni 42 --host 192.0.2.1 tcp 10.1.0.2:80 --source 10.1.0.1";
    let line = format!("{host} --source-mac {}", butterfly_tests::hosts::mac(1));
    dropped(&hosts.right.daemon, &line, "no_ingress_rule")?;
    hosts.right.daemon.cli("sg rule add open --ip-proto all")?;
    passes(&hosts.right.daemon, &line)?;
    let mac = butterfly_tests::hosts::mac(2);
    let line = line.replace("--vni 42", "--vni 43") + &format!(" --dest-mac {mac}");
    dropped(&hosts.right.daemon, &line, "unknown_vni").map(drop)
}

fn a_frame_of_a_file_is_the_frame() -> Result<()> {
    let pair = Pair::start()?;
    let file = pair.daemon.dir().join("left.pcapng");
    let frames = [
        wire::build::frame(mac(1), mac(2))
            .ip([10, 1, 0, 1], [10, 1, 0, 2])
            .udp(1, 2)
            .build(),
        wire::build::frame(mac(9), mac(2))
            .ip([10, 1, 0, 1], [10, 1, 0, 2])
            .udp(1, 2)
            .build(),
    ];
    let mut bytes = Vec::new();
    wire::pcapng::section_header(&mut bytes, "a test");
    wire::pcapng::interface(&mut bytes, "left", 0);
    for frame in &frames {
        let packet = wire::pcapng::PacketBlock {
            interface: 0,
            time_ns: 0,
            frame_len: frame.len() as u32,
            data: frame,
            direction: None,
            comment: None,
        };
        wire::pcapng::packet(&mut bytes, &packet);
    }
    std::fs::write(&file, &bytes).map_err(|error| error.to_string())?;
    let file = file.display();
    dropped(
        &pair.daemon,
        &format!("left --pcap {file}"),
        "no_ingress_rule",
    )?;
    dropped(
        &pair.daemon,
        &format!("left --pcap {file} --number 2"),
        "mac_spoofed",
    )?;
    let error = pair
        .daemon
        .cli(&format!("trace left --pcap {file} --number 3"));
    let error = error.err().unwrap_or_default();
    check(error.contains("has 2 frames, no frame 3"), &error)
}

/// A capture that runs; what it writes goes to a file.
struct Capturing {
    child: Child,
    file: PathBuf,
}

impl Capturing {
    fn start(daemon: &Daemon, words: &[&str]) -> Result<Capturing> {
        let file = daemon.dir().join("capture.pcapng");
        let mut command = Command::new(program("butterfly"));
        command
            .args(["-e", &daemon.endpoint(), "capture", "--write"])
            .arg(&file);
        let child = command.args(words).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|error| error.to_string())?;
        let capturing = Capturing { child, file };
        // Its header is there once the workers have begun.
        wait_for("the capture to begin", PATIENCE, || {
            let size = std::fs::metadata(&capturing.file).map_or(0, |file| file.len());
            Ok((size > 0).then_some(()))
        })?;
        Ok(capturing)
    }

    /// Interrupts it; gives what tcpdump reads in the file, and what it said itself.
    fn end(mut self) -> Result<(String, String)> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)
            .map_err(|error| error.to_string())?;
        self.child.wait().map_err(|error| error.to_string())?;
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr
                .read_to_string(&mut said)
                .map_err(|error| error.to_string())?;
        }
        let read = Command::new("tcpdump")
            .args(["-n", "-r"])
            .arg(&self.file)
            .output();
        let read = read.map_err(|error| error.to_string())?;
        check(
            read.status.success(),
            &String::from_utf8_lossy(&read.stderr),
        )?;
        Ok((String::from_utf8_lossy(&read.stdout).into_owned(), said))
    }

    /// The file's bytes, as far as they are there.
    fn has(&self, text: &str) -> bool {
        let bytes = std::fs::read(&self.file).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }
}

fn a_capture_is_read_by_tcpdump() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    daemon.cli("sg rule add right --ip-proto icmp")?;
    answers(&pair.left, "10.1.0.2")?;
    let epoch = daemon.json("status")?["epoch"].clone();
    let words = ["left", "right", "icmp", "or", "udp", "port", "9"];
    let capturing = Capturing::start(daemon, &words)?;
    pair.left.ok("ping -q -c 3 -i 0.2 -W 5 10.1.0.2")?;
    pair.left.ok("bash -c 'echo x > /dev/udp/10.1.0.2/9'")?;
    wait_for("the drop to be captured", PATIENCE, || {
        Ok(capturing.has("dropped: no_ingress_rule").then_some(()))
    })?;
    check(
        daemon.json("status")?["epoch"] == epoch,
        "no flow is decided again",
    )?;
    let (text, said) = capturing.end()?;
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    // Each is seen at its sender and at its receiver.
    let all = (
        count("ICMP echo request"),
        count("ICMP echo reply"),
        count(".9: UDP"),
    );
    check(
        all == (6, 6, 2) && count("") == 14,
        &format!("{all:?}: {text}"),
    )?;
    check(said.contains("14 frames captured"), &said)?;
    // One NIC, one direction, with an end, and only what is dropped.
    let line = |words: &str| {
        let file = daemon.dir().join("short.pcapng");
        let _ = std::fs::remove_file(&file);
        let line = format!("capture --write {} {words}", file.display());
        std::thread::scope(|scope| {
            let run = scope.spawn(|| daemon.cli(&line));
            while !run.is_finished() {
                let _ = pair
                    .left
                    .succeeds("ping -q -c 1 -W 1 10.1.0.2; bash -c 'echo x > /dev/udp/10.1.0.2/9'");
            }
            run.join().map_err(|_| "the capture panicked".to_string())?
        })?;
        let read = Command::new("tcpdump")
            .args(["-n", "-r"])
            .arg(&file)
            .output();
        let read = read.map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8_lossy(&read.stdout).into_owned())
    };
    let text = line("right --dir in --frames 4 -- icmp")?;
    check(
        text.lines().count() == 4 && text.matches("echo request").count() == 4,
        &text,
    )?;
    let text = line("right --dropped --frames 2 --snap-len 60")?;
    check(
        text.lines().count() == 2 && text.matches(".9: UDP").count() == 2,
        &text,
    )?;
    for (words, said) in [
        ("nobody --write /dev/null/x", "nobody"),
        (
            "left --write /dev/null -- tcp prot 1",
            "filter 'tcp prot 1'",
        ),
        ("left --uplink --write /dev/null", "left"),
    ] {
        let error = daemon
            .cli(&format!("capture {words}"))
            .err()
            .unwrap_or_default();
        check(error.contains(said), &format!("{words}: {error}"))?;
    }
    Ok(())
}

fn a_capture_of_the_wire_has_outer_headers() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    let a = hosts.left.guest("a", 42, 1)?;
    let _b = hosts.right.guest("b", 42, 2)?;
    answers(&a, "10.1.0.2")?;
    let words = ["uplink0", "--uplink", "udp", "port", "4789"];
    let capturing = Capturing::start(&hosts.left.daemon, &words)?;
    a.ok("ping -q -c 3 -i 0.2 -W 5 10.1.0.2")?;
    wait_for("the packets to be captured", PATIENCE, || {
        let size = std::fs::metadata(&capturing.file).map_or(0, |file| file.len());
        Ok((size > 6 * 180).then_some(()))
    })?;
    let (text, _) = capturing.end()?;
    let there =
        text.matches("192.0.2.1.").count() >= 3 && text.contains("VXLAN, flags [I] (0x08), vni 42");
    check(there && text.contains("ICMP echo reply"), &text)
}

/// Nobody reads for a while: the transfer goes on, and what was lost is counted.
fn a_slow_reader_loses_frames_and_nobody_else() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    daemon.cli("sg rule add right --ip-proto tcp --port 5201")?;
    let server = pair.right.start("iperf3", "iperf3 -s --forceflush")?;
    wait_for("iperf3 to listen", PATIENCE, || {
        Ok(server.log().contains("listening").then_some(()))
    })?;
    let mut command = Command::new(program("butterfly"));
    command.args(["-e", &daemon.endpoint(), "capture", "right"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let mut first = [0; 28];
    stdout
        .read_exact(&mut first)
        .map_err(|error| error.to_string())?;
    pair.left.ok("timeout 30 iperf3 -c 10.1.0.2 -t 3")?;
    let pid = rustix::process::Pid::from_child(&child);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    // It is told within a second or two, behind what waited.
    std::thread::sleep(std::time::Duration::from_secs(3));
    rustix::process::kill_process(pid, rustix::process::Signal::INT)
        .map_err(|error| error.to_string())?;
    let bytes = reader.join().map_err(|_| "the reader panicked")?;
    let bytes = bytes.map_err(|error| error.to_string())?;
    child.wait().map_err(|error| error.to_string())?;
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr
            .read_to_string(&mut said)
            .map_err(|error| error.to_string())?;
    }
    check(said.contains("lost since they were not read"), &said)?;
    check(bytes.len() < 64 << 20, "what waits for a reader is bounded")?;
    // It is over: nothing is caught for nobody.
    pair.left.ok("timeout 30 iperf3 -c 10.1.0.2 -t 1").map(drop)
}

fn mac(last: u8) -> wire::Mac {
    wire::Mac([0x52, 0x54, 0, 0, 1, last])
}

/// Frames that `trace --live` tells while something is sent again and again; the trace ends by
/// itself.
fn live(daemon: &Daemon, words: &str, send: impl Fn() -> Result<()>) -> Result<Vec<Value>> {
    let text = std::thread::scope(|scope| -> Result<String> {
        let told = scope.spawn(|| daemon.cli(&format!("--json trace --live {words}")));
        wait_for("the trace to have enough", PATIENCE, || {
            send()?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            Ok(told.is_finished().then_some(()))
        })?;
        told.join().map_err(|_| "the trace panicked")?
    })?;
    let lines = text.lines().map(serde_json::from_str);
    let lines: std::result::Result<Vec<Value>, _> = lines.collect();
    lines.map_err(|e| format!("a line that is no JSON: {e}: {text}"))
}

fn what_happens_is_told_live() -> Result<()> {
    let pair = Pair::start()?;
    let daemon = &pair.daemon;
    daemon.cli("sg rule add right --ip-proto udp --port 53")?;
    // The first asks who has the address; of that nothing is told, by the filter.
    let send = || {
        let each = "for port in 53 54; do echo x > /dev/udp/10.1.0.2/$port; done";
        pair.left.ok(&format!("bash -c '{each}'")).map(drop)
    };
    let frames = live(daemon, "left udp --frames 20", send)?;
    check(
        frames.len() == 20,
        &format!("as many as asked: {}", frames.len()),
    )?;
    let to = |frame: &Value, port: u16| {
        let what = frame["what"].as_str().unwrap_or_default();
        what.contains(&format!("> 10.1.0.2:{port}, UDP"))
    };
    let of = |port| frames.iter().filter(move |frame| to(frame, port));
    check(of(53).count() >= 5 && of(54).count() >= 5, "both are told")?;
    for frame in of(53) {
        let target = &frame["trace"]["targets"][0];
        let right = frame["delivered"] == true
            && frame["direction"] == "DIRECTION_EGRESS"
            && target["nic"] == "right"
            // A source port that one of them had before is of a known connection.
            && (target["groups"][0]["group"] == "right" || target["flow"]["state"] == "one_way")
            && butterfly_tests::daemon::number(&frame["inside_nanos"]) > Some(0);
        check(right, &format!("it passes by its rule: {frame:#}"))?;
    }
    for frame in of(54) {
        let right = frame["delivered"] == false
            && frame["reason"] == "no_ingress_rule"
            && frame["trace"]["remedies"][0]
                .as_str()
                .is_some_and(|line| line.contains("sg rule add right"));
        check(right, &format!("it is dropped, and why: {frame:#}"))?;
    }
    // As the receiver sees them.
    let frames = live(daemon, "right udp --frames 10", send)?;
    let fits = |frame: &Value, delivered: bool, reason: &str| {
        frame["direction"] == "DIRECTION_INGRESS"
            && frame["delivered"] == delivered
            && frame["reason"] == reason
    };
    check(
        frames.iter().any(|frame| fits(frame, true, ""))
            && frames
                .iter()
                .any(|frame| fits(frame, false, "no_ingress_rule")),
        &format!("what enters is told, and what does not: {frames:?}"),
    )?;
    // More than the rate is counted and not told.
    let flood = || {
        let burst = "for n in $(seq 40); do echo x > /dev/udp/10.1.0.2/53; done";
        pair.left.ok(&format!("bash -c '{burst}'")).map(drop)
    };
    let frames = live(daemon, "left udp --rate 10 --seconds 2", flood)?;
    let lost = frames.iter().map(|frame| &frame["lost"]);
    let lost: u64 = lost.filter_map(butterfly_tests::daemon::number).sum();
    check(
        frames.len() <= 40 && lost > 20,
        &format!("{} told, {lost} not", frames.len()),
    )?;
    let line = daemon.cli("trace --live nobody");
    check(
        line.is_err_and(|e| e.contains("nobody")),
        "there is no such NIC",
    )?;
    // For people, on lines.
    let text = std::thread::scope(|scope| -> Result<String> {
        let told = scope.spawn(|| daemon.cli("trace --live left udp -n 4 --verbose"));
        wait_for("the trace to have enough", PATIENCE, || {
            send()?;
            Ok(told.is_finished().then_some(()))
        })?;
        told.join().map_err(|_| "the trace panicked")?
    })?;
    check(
        text.contains("passes, to right, by a rule of right") || text.contains("passes, to right"),
        &format!("where to and why: {text}"),
    )
}
