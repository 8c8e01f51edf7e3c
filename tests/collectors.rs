//! Collectors get what a host sees: mirrored frames by a kernel's own VXLAN device and as ERSPAN
//! that Wireshark's dissector reads, samples as sFlow.

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    run_each(trials![
        a_kernel_takes_mirrored_frames,
        erspan_is_dissected,
        samples_reach_a_collector,
        a_nic_is_sampled_at_its_own_rate,
    ])
}

/// Two namespaces on one host: `left` 10.1.0.1, which may send, and `right` 10.1.0.2, whose TCP
/// port 81 and UDP port 53 are open. A collector on a wire of the host's: it has 192.0.2.9, the
/// host 192.0.2.1.
struct Host {
    left: Namespace,
    right: Namespace,
    collector: Namespace,
    daemon: Daemon,
}

const MACS: [&str; 2] = ["52:54:00:00:01:01", "52:54:00:00:01:02"];

impl Host {
    fn start(options: &[&str]) -> Result<Host> {
        let collector = Namespace::new()?;
        let pid = collector.pid();
        process::run(&["ip", "link", "del", "bf-wire"]).ok();
        process::run(
            &format!("ip link add bf-wire type veth peer name eth0 netns {pid}")
                .split(' ')
                .collect::<Vec<_>>(),
        )?;
        process::run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "bf-wire"])?;
        process::run(&["ip", "link", "set", "bf-wire", "up"])?;
        collector.ok("ip addr add 192.0.2.9/24 dev eth0 && ip link set eth0 up")?;
        let daemon = Daemon::start(options)?;
        daemon.cli("sg add web + sg rule add web --ip-proto tcp --port 81")?;
        daemon.cli("sg rule add web --ip-proto udp --port 53")?;
        let host = |name: &str, last: usize, group: &str| -> Result<Namespace> {
            let mac = MACS[last - 1];
            daemon.cli(&format!(
                "nic add --id {name} --mac {mac} --vni 7 --ip 10.1.0.{last} {group} \
                 --type tap --path bf-{name}"
            ))?;
            let namespace = Namespace::new()?;
            let address = format!("10.1.0.{last}/24");
            namespace.adopt(&format!("bf-{name}"), mac, &[&address])?;
            Ok(namespace)
        };
        let (left, right) = (host("left", 1, "")?, host("right", 2, "--sg web")?);
        Ok(Host {
            left,
            right,
            collector,
            daemon,
        })
    }

    /// What the collector hears from now on.
    fn listen(&self, device: &str, filter: &str) -> Result<PacketDump> {
        let path = self.daemon.dir().join(format!("{device}.pcap"));
        let file = path.display().to_string();
        let command = format!("tcpdump -U -i {device} -w {file} {filter}");
        let process = self.collector.start("tcpdump", &command)?;
        wait_for("tcpdump to listen", PATIENCE, || {
            Ok(process.log().contains("listening").then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", process.log()))?;
        Ok(PacketDump {
            file,
            _process: process,
        })
    }

    /// A datagram from `left` to `right`.
    fn say(&self, port: u16, word: &str) -> Result<()> {
        let command = format!("bash -c 'echo -n {word} > /dev/udp/10.1.0.2/{port}'");
        self.left.ok(&command).map(drop)
    }

    /// A collector that writes what it is told into files of this folder.
    fn sfcapd(&self, folder: &str) -> Result<Process> {
        process::run(&["mkdir", folder])?;
        let command = format!("sfcapd -p 6343 -l {folder}");
        let sfcapd = self.collector.start("sfcapd", &command)?;
        wait_for("sfcapd to listen", PATIENCE, || {
            let listens = "ss -uln | grep -q ':6343 '";
            Ok(self.collector.succeeds(listens)?.then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", sfcapd.log()))?;
        Ok(sfcapd)
    }

    fn metrics(&self) -> Result<String> {
        let socket = self.daemon.dir().join("metrics.sock");
        let socket = socket.display().to_string();
        let url = "http://localhost/metrics";
        process::run(&["curl", "-sf", "--unix-socket", &socket, url])
    }

    fn mirrored(&self, nic: &str) -> Result<[u64; 2]> {
        let stats = self.daemon.json(&format!("nic stats {nic}"))?;
        let stats = &stats[0];
        let count = |name: &str| butterfly_tests::daemon::number(&stats[name]);
        match (count("mirrored_frames"), count("mirror_lost_frames")) {
            (Some(all), Some(lost)) => Ok([all, lost]),
            _ => Err(format!("no counts of a mirror: {stats}")),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The other end goes with its namespace.
        process::run(&["ip", "link", "del", "bf-wire"]).ok();
    }
}

/// What tcpdump writes.
struct PacketDump {
    file: String,
    _process: Process,
}

impl PacketDump {
    /// Fields of each packet that fits, a line each.
    fn fields(&self, filter: &str, fields: &[&str]) -> Result<Vec<String>> {
        let mut words = vec!["tshark", "-n", "-r", &self.file, "-Y", filter];
        words.extend([
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
        ]);
        words.extend(["-o", "udp.check_checksum:TRUE", "-T", "fields"]);
        for field in fields {
            words.extend(["-e", field]);
        }
        // A packet that is being written is none yet, of which tshark complains.
        let output = process::output(&words)?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The values of a field: a packet may have several, which tshark puts together.
    fn values(&self, filter: &str, field: &str) -> Result<Vec<String>> {
        let lines = self.fields(filter, &[field])?;
        let values = lines.iter().flat_map(|line| line.split(','));
        let values = values.filter(|value| !value.is_empty());
        Ok(values.map(str::to_owned).collect())
    }

    fn wait(&self, filter: &str, fields: &[&str], count: usize) -> Result<Vec<String>> {
        let what = format!("{count} of {filter}");
        let found = wait_for(&what, PATIENCE, || {
            let lines = self.fields(filter, fields)?;
            Ok((lines.len() >= count).then_some(lines))
        });
        found.map_err(|e| format!("{e}: {:?}", self.fields("frame", &["frame.protocols"])))
    }
}

fn a_kernel_takes_mirrored_frames() -> Result<()> {
    let mut host = Host::start(&["--store", "{dir}/state"])?;
    let collector = &host.collector;
    collector.ok("ip link add vx type vxlan id 77 dstport 4789 local 192.0.2.9 dev eth0")?;
    collector.ok("ip link set vx up")?;
    let set = "--mirror vxlan:192.0.2.9,id=77";
    host.daemon.cli(&format!("nic update right {set}"))?;
    let shown = host.daemon.cli("nic show right")?;
    check(
        shown.contains("vxlan:192.0.2.9,port=4789,id=77") && shown.contains("mirrored:"),
        &format!("the mirror is shown: {shown}"),
    )?;
    let heard = host.listen("vx", "")?;
    host.say(54, "refused")?;
    host.say(53, "allowed")?;
    let answer = "icmp || udp.dstport == 53";
    // `right` has no server, and says so: that is seen, too.
    let seen = heard.wait(answer, &["ip.src", "ip.dst", "udp.dstport"], 2)?;
    check(
        seen[0].starts_with("10.1.0.1\t10.1.0.2\t53") && seen[1].starts_with("10.1.0.2"),
        &format!("both directions are there: {seen:?}"),
    )?;
    let refused = heard.fields("udp.dstport == 54 && !icmp", &["ip.src"])?;
    check(
        refused.is_empty(),
        &format!("what `right` never got is not: {refused:?}"),
    )?;
    // Large segments: longer than the wire's MTU with the headers, cut, and fragmented on the way.
    let server = host
        .right
        .start("socat", "socat -u TCP-LISTEN:81 CREATE:/dev/null")?;
    wait_for("socat to listen", PATIENCE, || {
        let listens = "ss -tln | grep -q ':81 '";
        Ok(host.right.succeeds(listens)?.then_some(()))
    })
    .map_err(|e| format!("{e}\n{}", server.log()))?;
    host.left
        .ok("bash -c 'head -c 200000 /dev/zero > /dev/tcp/10.1.0.2/81'")?;
    let stream = "tcp.dstport == 81 && tcp.len > 0";
    wait_for("the stream", PATIENCE, || {
        let lens = heard.fields(stream, &["tcp.len"])?;
        let sum: u64 = lens.iter().filter_map(|len| len.parse::<u64>().ok()).sum();
        Ok((sum >= 200_000).then_some(()))
    })?;
    let longest = heard.fields("tcp && frame.len > 1514", &["frame.len"])?;
    check(
        longest.is_empty(),
        &format!("large frames are cut: {longest:?}"),
    )?;
    let wrong = "ip.checksum.status == 0 || tcp.checksum.status == 0 || udp.checksum.status == 0";
    // An ICMP error quotes what had come, whose checksum was left to the receiver.
    let wrong = heard.fields(&format!("({wrong}) && !icmp"), &["frame.number", "ip.src"])?;
    check(
        wrong.is_empty(),
        &format!("all checksums are complete: {wrong:?}"),
    )?;
    let [all, lost] = host.mirrored("right")?;
    check(all > 10 && lost == 0, &format!("{all} copies, {lost} lost"))?;
    drop(heard);

    // It outlives the daemon, and ends when it is told to.
    host.daemon.stop_and_restart()?;
    let shown = host.daemon.json("config get")?;
    let mirror = |config: &Value| {
        let nics = config["nics"].as_array().cloned().unwrap_or_default();
        let right = nics.into_iter().find(|nic| nic["id"] == "right");
        right.map(|nic| nic["mirror"].clone()).unwrap_or_default()
    };
    check(
        mirror(&shown)["address"] == "192.0.2.9",
        &format!("it is in the store: {shown}"),
    )?;
    host.daemon.cli("nic update right --mirror none")?;
    check(
        mirror(&host.daemon.json("config get")?).is_null(),
        "the mirror is gone",
    )
}

fn erspan_is_dissected() -> Result<()> {
    let host = Host::start(&["--metrics", "unix:{dir}/metrics.sock"])?;
    let refused = |words: &str, why: &str| {
        let error = host.daemon.cli(words).err().unwrap_or_default();
        check(error.contains(why), &format!("`{words}`: {error}"))
    };
    refused(
        "nic update left --mirror erspan:192.0.2.9,id=2000",
        "mirror session '2000' is not within 1 and 1023",
    )?;
    refused(
        "nic update left --mirror erspan:192.0.2.9,port=4789",
        "which has no ports",
    )?;
    refused(
        "nic update left --mirror vxlan:224.0.0.9",
        "is not the address of one host",
    )?;
    let heard = host.listen("eth0", "proto gre")?;
    let options = "id=7,direction=out,snap-len=60";
    host.daemon.cli(&format!(
        "nic update left --mirror erspan:192.0.2.9,{options}"
    ))?;
    host.say(54, "refused")?;
    host.say(53, "allowed-and-longer-than-that-it-is-cut")?;
    let fields = [
        "erspan.version",
        "erspan.spanid",
        "erspan.index",
        "erspan.truncated",
        "gre.sequence_number",
        "udp.dstport",
    ];
    let seen = heard.wait("erspan && udp", &fields, 2)?;
    // Neighbours were asked for before: numbers go on, whatever was sent.
    let cells: Vec<Vec<&str>> = seen.iter().map(|line| line.split('\t').collect()).collect();
    let sequence = |line: &[&str]| line[4].parse::<u64>().ok();
    check(
        cells[0][..4] == ["1", "7", "1", "0"]
            && cells[1][..4] == ["1", "7", "1", "1"]
            && (cells[0][5], cells[1][5]) == ("54", "53")
            && sequence(&cells[1]) == sequence(&cells[0]).map(|number| number + 1),
        &format!("what `left` has sent is told: {seen:?}"),
    )?;
    let others = heard.fields("erspan && icmp", &["ip.src"])?;
    check(
        others.is_empty(),
        &format!("one direction alone: {others:?}"),
    )?;
    // A collector that there is no way to: copies are lost, and nothing else.
    host.daemon
        .cli("nic update left --mirror erspan:198.51.100.9")?;
    let before = host.daemon.stat("right", "ingress_frames")?;
    host.say(53, "on")?;
    let [all, lost] = wait_for("copies to be lost", PATIENCE, || {
        let counts = host.mirrored("left")?;
        Ok((counts[1] > 0).then_some(counts))
    })?;
    check(all == lost, &format!("{all} copies, {lost} lost"))?;
    let after = host.daemon.stat("right", "ingress_frames")?;
    check(after > before, "the datagram itself has arrived")?;
    let page = host.metrics()?;
    let line = format!("butterfly_nic_mirror_lost_frames_total{{nic=\"left\"}} {lost}");
    check(
        page.contains(&line) && !page.contains("mirrored_frames_total{nic=\"right\"}"),
        &format!("the metrics have it: {line}"),
    )
}

fn samples_reach_a_collector() -> Result<()> {
    let to = ["--sflow", "192.0.2.9:6343", "--sflow-rate", "1"];
    let mut host = Host::start(&[&to[..], &["--metrics", "unix:{dir}/metrics.sock"]].concat())?;
    let collected = host.daemon.dir().join("collected").display().to_string();
    let mut sfcapd = host.sfcapd(&collected)?;
    let heard = host.listen("eth0", "udp port 6343")?;
    for _ in 0..3 {
        host.say(53, "allowed")?;
        host.say(54, "refused")?;
    }
    // The datagrams of `left`, inside of samples: beside those are the host's own to the collector.
    let ports = wait_for("samples of six datagrams", PATIENCE, || {
        let ports = heard.values("sflow", "udp.dstport")?;
        let of = |port: &str| ports.iter().filter(|one| *one == port).count();
        Ok((of("53") >= 3 && of("54") >= 3).then_some(ports))
    })
    .map_err(|e| format!("{e}: {:?}", heard.fields("sflow", &["frame.protocols"])))?;
    check(!ports.is_empty(), "there are some")?;
    for (field, value) in [
        ("sflow_245.version", "5"),
        ("sflow_245.agent", "192.0.2.1"),
        ("sflow_245.header_protocol", "1"),
    ] {
        let values = heard.values("sflow", field)?;
        check(
            !values.is_empty() && values.iter().all(|one| one == value),
            &format!("{field} is {value}: {values:?}"),
        )?;
    }
    let broken = heard.fields("_ws.malformed", &["frame.number"])?;
    check(
        broken.is_empty(),
        &format!("no datagram is malformed: {broken:?}"),
    )?;
    // Each interface's counters are told within 20 seconds, with its name.
    let names = wait_for("counters", PATIENCE, || {
        let hex = process::output(&["tshark", "-n", "-r", &heard.file, "-Y", "sflow", "-x"])?;
        let hex = String::from_utf8_lossy(&hex.stdout).into_owned();
        let octets = heard.values("sflow", "sflow_245.ifinoct")?;
        Ok((octets.len() >= 2 && hex.contains("left")).then_some(octets))
    })?;
    check(names.len() >= 2, &format!("both NICs are told: {names:?}"))?;
    let page = host.metrics()?;
    let is_counted = |name: &str, some: bool| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let count = line.and_then(|count| count.trim().parse::<f64>().ok());
        check(
            count.is_some_and(|count| (count > 0.0) == some),
            &format!("{name} is told: {count:?}"),
        )
    };
    is_counted("butterfly_sflow_samples_total{kind=\"flow\"}", true)?;
    is_counted("butterfly_sflow_samples_total{kind=\"counters\"}", true)?;
    is_counted("butterfly_sflow_lost_samples_total{place=\"ring\"}", false)?;
    // A collector that is no dissector has them as well: 258 is sFlow's code for a rule's refusal.
    sfcapd.terminate(PATIENCE)?;
    let columns = "fmt:%sa %dap %in %out";
    let flows = process::run(&["nfdump", "-q", "-N", "-R", &collected, "-o", columns])?;
    let cells = flows.lines().map(|line| line.split_whitespace().collect());
    let cells: Vec<Vec<&str>> = cells.collect();
    for (port, output) in [("53", "2"), ("54", "258")] {
        let to = format!("10.1.0.2:{port}");
        let row = ["10.1.0.1", &to, "1", output];
        let count = cells.iter().filter(|cells| cells[..] == row).count();
        check(count >= 3, &format!("sfcapd has {row:?}: {flows}"))?;
    }
    host.daemon.stop()
}

fn a_nic_is_sampled_at_its_own_rate() -> Result<()> {
    let to = ["--sflow", "192.0.2.9:6343", "--sflow-rate", "0"];
    let mut host = Host::start(&[&to[..], &["--store", "{dir}/state"]].concat())?;
    let collected = host.daemon.dir().join("collected").display().to_string();
    let mut sfcapd = host.sfcapd(&collected)?;
    let heard = host.listen("eth0", "udp port 6343")?;
    let refused = host.daemon.cli("nic update left --sflow-rate 16777217");
    let why = "NIC 'left': sFlow rate '16777217' is not within 0 and 16777216";
    check(
        refused.as_ref().is_err_and(|e| e.contains(why)),
        &format!("a rate beyond is refused: {refused:?}"),
    )?;
    // 60 before it has a rate, 61 while all is taken, 62 after that.
    host.say(60, "before")?;
    host.daemon.cli("nic update left --sflow-rate 1")?;
    for _ in 0..5 {
        host.say(61, "all")?;
    }
    let samples = |port: &str, count: usize| {
        wait_for(&format!("{count} samples of port {port}"), PATIENCE, || {
            let ports = heard.values("sflow", "udp.dstport")?;
            let count_now = ports.iter().filter(|one| *one == port).count();
            Ok((count_now >= count).then_some(()))
        })
    };
    samples("61", 5)?;
    // What the guest's kernel says by itself (ARP) is a frame as any other.
    let pools = heard.values("sflow", "sflow.flow_sample.sample_pool")?;
    let numbers: Vec<u32> = pools.iter().filter_map(|pool| pool.parse().ok()).collect();
    check(
        numbers.len() >= 5 && numbers.iter().copied().eq(1..=numbers.len() as u32),
        &format!("of one in one, each adds one to the pool, from the first on: {pools:?}"),
    )?;
    host.daemon.cli("nic update left --sflow-rate 0")?;
    host.say(62, "after")?;
    host.daemon.cli("nic update left --sflow-rate 4")?;
    let shown = host.daemon.cli("nic show left")?;
    check(
        shown.contains("1 of 4 frames"),
        &format!("the rate is shown: {shown}"),
    )?;
    let many = "for n in $(seq 400); do echo -n some > /dev/udp/10.1.0.2/53; done";
    host.left.ok(&format!("bash -c '{many}'"))?;
    // 100 are expected, with a deviation of 9: fewer than 40 come once in 10^13 runs.
    samples("53", 40)?;
    let ports = heard.values("sflow", "udp.dstport")?;
    check(
        !ports.iter().any(|port| port == "60" || port == "62"),
        &format!("what was sent without a rate is not sampled: {ports:?}"),
    )?;
    let rates = heard.values("sflow", "sflow.flow_sample.sampling_rate")?;
    let of = |rate: &str| rates.iter().filter(|one| *one == rate).count();
    check(
        of("1") >= 5 && of("4") >= 40 && of("1") + of("4") == rates.len(),
        &format!("each sample says its rate: {rates:?}"),
    )?;
    // The collector multiplies by it.
    sfcapd.terminate(PATIENCE)?;
    let packets = |port: &str| -> Result<u64> {
        let filter = format!("dst port {port}");
        let all = [
            "nfdump", "-q", "-N", "-R", &collected, "-o", "fmt:%pkt", &filter,
        ];
        let lines = process::run(&all)?;
        Ok(lines
            .lines()
            .filter_map(|line| line.trim().parse::<u64>().ok())
            .sum())
    };
    let (all, some) = (packets("61")?, packets("53")?);
    check(
        all == 5 && some >= 4 * 40 && some % 4 == 0,
        &format!("sfcapd has {all} packets of 5, and about {some} of 400"),
    )?;
    // It outlives the daemon, and ends when it is told to.
    host.daemon.stop_and_restart()?;
    let rate = |host: &Host| -> Result<Value> {
        let shown = host.daemon.json("config get")?;
        let nics = shown["nics"].as_array().cloned().unwrap_or_default();
        let left = nics.into_iter().find(|nic| nic["id"] == "left");
        Ok(left
            .map(|nic| nic["sflow_rate"].clone())
            .unwrap_or_default())
    };
    check(
        rate(&host)? == 4,
        &format!("it is in the store: {:?}", rate(&host)?),
    )?;
    host.daemon.cli("nic update left --sflow-rate default")?;
    check(
        rate(&host)?.is_null(),
        "the daemon's rate is in force again",
    )?;
    host.daemon.stop()
}
