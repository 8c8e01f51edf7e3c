//! Connections of real sockets as `butterfly flows` shows them, finds them and forgets them.

use std::net::SocketAddr;

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use butterfly_tests::web::{Connections, Web, serve_if_asked};
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::process::{self, Process};
use testkit::{PATIENCE, Result, wait_for};

fn main() {
    serve_if_asked().expect("a web server in a process of its own");
    run_each(trials![
        filters_choose,
        killed_connections_end,
        connections_are_logged,
    ])
}

/// Two namespaces on one host: `left` 10.1.0.1, which may send, and `right` 10.1.0.2 in group
/// `web`, whose port 80 is open and which serves there.
struct Pair {
    left: Namespace,
    _right: Namespace,
    _server: Web,
    daemon: Daemon,
}

impl Pair {
    fn start(options: &[&str]) -> Result<Pair> {
        let daemon = Daemon::start(options)?;
        daemon.cli("sg add web + sg rule add web --ip-proto tcp --port 80")?;
        daemon.cli("sg rule add web --ip-proto udp --port 53")?;
        let host = |name: &str, last: u8, group: &str| -> Result<Namespace> {
            let mac = format!("52:54:00:00:01:0{last}");
            daemon.cli(&format!(
                "nic add --id {name} --mac {mac} --vni 7 --ip 10.1.0.{last} {group} \
                 --type tap --path bf-{name} --enable-antispoof"
            ))?;
            let namespace = Namespace::new()?;
            let address = format!("10.1.0.{last}/24");
            namespace.adopt(&format!("bf-{name}"), &mac, &[&address])?;
            Ok(namespace)
        };
        let (left, right) = (host("left", 1, "")?, host("right", 2, "--sg web")?);
        let server = Web::serve(&right, 80, "right")?;
        Ok(Pair {
            left,
            _right: right,
            _server: server,
            daemon,
        })
    }

    fn connect(&self, count: usize) -> Result<Connections> {
        Connections::open(&self.left, SERVER, count)
    }

    fn list(&self, words: &str) -> Result<Vec<Value>> {
        let all = self.daemon.json(&format!("flows list {words}"))?;
        let all = all.as_array().cloned();
        all.ok_or_else(|| format!("`flows list {words}` gives no list"))
    }
}

const SERVER: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2)),
    80,
);

fn filters_choose() -> Result<()> {
    let pair = Pair::start(&[])?;
    let open = pair.connect(3)?;
    pair.left
        .ok("bash -c 'echo hello > /dev/udp/10.1.0.2/53'")?;
    let all = pair.list("")?;
    check(all.len() == 4, &format!("there are four: {all:?}"))?;
    let tcp = pair.list("right --protocol tcp")?;
    check(tcp.len() == 3, &format!("three of them are TCP: {tcp:?}"))?;
    let rule = &tcp[0]["ingress_rule"];
    check(
        rule["group"] == "web" && rule["rule"]["ports"]["start"] == 80,
        &format!("the rule that let it in is told: {:?}", tcp[0]),
    )?;
    let port = &tcp[0]["source_port"];
    for (words, count) in [
        ("--group web".to_owned(), 4),
        ("--port 53".to_owned(), 1),
        ("--port 80 --state established".to_owned(), 3),
        (format!("--port 80 --port {port}"), 1),
        ("--address 10.1.0.2 --address 10.1.0.0/24".to_owned(), 4),
        ("--address 10.1.1.0/24".to_owned(), 0),
        ("--state one_way --state syn_sent".to_owned(), 1),
        ("left --verdict allowed".to_owned(), 4),
        ("--verdict undecided".to_owned(), 0),
    ] {
        let found = pair.list(&words)?;
        check(
            found.len() == count,
            &format!("`{words}` finds {count}: {found:?}"),
        )?;
    }
    for (words, why) in [
        ("--group nobody", "there is no security group 'nobody'"),
        ("--state open", "none of syn_sent"),
        ("--address 10.1.0.300", "10.1.0.300"),
    ] {
        let error = pair.daemon.cli(&format!("flows list {words}")).err();
        let error = error.unwrap_or_default();
        check(error.contains(why), &format!("`{words}`: {error}"))?;
    }
    // A rule elsewhere: what was decided before is decided again.
    pair.daemon.cli("sg add other")?;
    pair.daemon
        .cli("sg rule add web --ip-proto tcp --port 81")?;
    let undecided = pair.list("--verdict undecided")?;
    check(
        undecided.len() == 4,
        &format!("rules have changed: {undecided:?}"),
    )?;
    let watched = pair
        .daemon
        .cli("flows list --port 80 --watch=0.1 --count 2")?;
    check(
        watched.matches("10.1.0.2:80").count() == 6 && watched.contains("Mbit/s"),
        &format!("two tables of three: {watched}"),
    )?;
    check(open.len() == 3, "the connections are open still")
}

fn killed_connections_end() -> Result<()> {
    let pair = Pair::start(&["--audit", "{dir}/audit"])?;
    let open = pair.connect(3)?;
    let error = pair.daemon.cli("flows kill left").err().unwrap_or_default();
    check(
        error.contains("3 connections would be forgotten: say --yes"),
        &format!("nobody can be asked: {error}"),
    )?;
    let error = pair
        .daemon
        .cli("flows kill --yes")
        .err()
        .unwrap_or_default();
    check(error.contains("say which"), &format!("not all: {error}"))?;
    check(pair.list("")?.len() == 3, "nothing is forgotten yet")?;
    // One needs no question.
    let one = pair.list("")?[0]["source_port"].clone();
    pair.daemon
        .cli(&format!("flows kill left --port 80 --port {one}"))?;
    let left = pair.list("")?;
    check(
        left.len() == 2 && left.iter().all(|flow| flow["source_port"] != one),
        &format!("that one is gone: {left:?}"),
    )?;
    let told = pair
        .daemon
        .json("flows kill --group web --protocol tcp --yes")?;
    check(
        told["done"][0]["flows"] == 2,
        &format!("both are gone: {told}"),
    )?;
    check(pair.list("")?.is_empty(), "no connection is left")?;
    // In the middle of a connection nothing passes any more, here its end; a new one does.
    let dropped = pair.daemon.drops("left", "EGRESS", &[])?;
    drop(open);
    wait_for("segments to be refused", PATIENCE, || {
        let now = pair.daemon.drops("left", "EGRESS", &[])?;
        Ok((now >= dropped + 3).then_some(()))
    })?;
    check(pair.connect(1)?.len() == 1, "a new one is answered")?;
    let audit = std::fs::read_to_string(pair.daemon.dir().join("audit"));
    let audit = audit.map_err(|error| error.to_string())?;
    let lines: Vec<&str> = audit
        .lines()
        .filter(|line| line.contains("DeleteFlows"))
        .collect();
    check(
        lines.len() == 2 && lines[1].contains("\"group\":\"web\"") && lines[1].contains("\"ok\""),
        &format!("the audit log has both: {audit}"),
    )
}

/// A collector of Debian's nfdump.
struct Collector {
    process: Process,
    folder: String,
}

const COLLECTOR: &str = "127.0.0.1:9995";

impl Collector {
    fn start(dir: &std::path::Path) -> Result<Collector> {
        let folder = dir.join("collected").display().to_string();
        process::run(&["mkdir", &folder])?;
        let words = ["nfcapd", "-b", "127.0.0.1", "-p", "9995", "-w", &folder];
        let process = Process::start("nfcapd", &words, &dir.join("nfcapd.log"))?;
        wait_for("nfcapd to listen", PATIENCE, || {
            Ok(process.log().contains("Startup").then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", process.log()))?;
        Ok(Collector { process, folder })
    }

    /// Ends it; gives what it has collected: protocol, ports, TCP flags, packets and bytes of both
    /// directions, a line each.
    fn collected(mut self) -> Result<String> {
        self.process.terminate(PATIENCE)?;
        let columns = "fmt:%pr %sap %dap %flg %ipkt %ibyt %opkt %obyt";
        process::run(&["nfdump", "-q", "-N", "-R", &self.folder, "-o", columns])
    }
}

fn connections_are_logged() -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let collector = Collector::start(dir.path())?;
    let file = dir.path().join("flows.json");
    let log = file.display().to_string();
    let mut pair = Pair::start(&["--flow-log", &log, "--ipfix", COLLECTOR])?;
    let records = |file: &std::path::Path| -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{log}: {e}"))?;
        let lines = text.lines().map(serde_json::from_str);
        let lines: std::result::Result<Vec<Value>, _> = lines.collect();
        lines.map_err(|e| format!("a line that is no JSON: {e}: {text}"))
    };
    let logged = |what: &str, fits: &dyn Fn(&Value) -> bool| -> Result<Value> {
        let found = wait_for(what, PATIENCE, || {
            Ok(records(&file)?.into_iter().find(|record| fits(record)))
        });
        found.map_err(|e| format!("{e}: {:?}", records(&file)))
    };
    let is = |record: &Value, kind: &str, port: u16| {
        record["kind"] == format!("KIND_{kind}") && record["destination_port"] == port
    };
    let open = pair.connect(1)?;
    let begin = logged("a beginning", &|record| is(record, "BEGIN", 80))?;
    check(
        begin["nic"] == "left"
            && begin["peer_nic"] == "right"
            && begin["vni"] == 7
            && begin["source"] == "10.1.0.1"
            && begin["ingress_rule"]["group"] == "web"
            && begin["ingress_rule"]["rule"]["ports"]["start"] == 80,
        &format!("it says who, where and by which rule: {begin}"),
    )?;
    drop(open);
    let end = logged("an end", &|record| is(record, "END", 80))?;
    check(
        end["reason"] == "closed"
            && end["source_port"] == begin["source_port"]
            && end["original_tcp_flags"] == 19
            && end["original_frames"].as_u64() >= Some(4)
            && end["reply_bytes"].as_u64() > Some(100),
        &format!("it says what was carried: {end}"),
    )?;
    pair.left
        .ok("bash -c 'for n in 1 2 3; do echo no > /dev/udp/10.1.0.2/54; done'")?;
    let denied = logged("a refusal", &|record| is(record, "DENIED", 54))?;
    check(
        denied["reason"] == "no_ingress_rule" && denied["nic"] == "left",
        &format!("it says why: {denied}"),
    )?;
    // Whoever watches is told the same, and the file that was moved away is begun anew.
    let moved = dir.path().join("moved.json");
    std::fs::rename(&file, &moved).map_err(|e| e.to_string())?;
    pair.daemon.cli("reload")?;
    let watched = std::thread::scope(|scope| -> Result<String> {
        let watch = scope.spawn(|| pair.daemon.cli("--json watch --of flows --count 1"));
        // It has to be there before the connection is.
        let begun = wait_for("somebody to watch", PATIENCE, || {
            pair.left
                .ok("bash -c 'echo hello > /dev/udp/10.1.0.2/53; sleep 0.2'")?;
            Ok(watch.is_finished().then_some(()))
        });
        begun?;
        watch.join().map_err(|_| "the watcher panicked")?
    })?;
    check(
        watched.contains("\"destination_port\":53"),
        &format!("the watcher is told: {watched}"),
    )?;
    let udp = logged("a beginning in the new file", &|record| {
        is(record, "BEGIN", 53)
    })?;
    check(udp["protocol"] == 17, &format!("of UDP: {udp}"))?;
    pair.daemon.cli("flows kill left --protocol udp --yes")?;
    let killed = logged("its end", &|record| is(record, "END", 53))?;
    check(killed["reason"] == "killed", &format!("why: {killed}"))?;
    // What has come when it stops is written before.
    pair.daemon.stop()?;
    let collected = collector.collected()?;
    let has = |words: &[&str]| {
        let mut lines = collected.lines().map(str::split_whitespace);
        lines.any(|line| {
            let cells: Vec<&str> = line.take(3).collect();
            cells[0] == words[0] && words.iter().all(|word| cells.concat().contains(word))
        })
    };
    check(
        has(&["6", "10.1.0.1:", "10.1.0.2:80"])
            && has(&["17", "10.1.0.2:53"])
            && has(&["17", "10.1.0.1:0", "10.1.0.2:54"]),
        &format!("the collector has them: {collected}"),
    )?;
    // Its bytes are those of IP.
    let count = |way: &str| {
        let of = |what: &str| end[format!("{way}_{what}")].as_u64().unwrap_or_default();
        let (frames, bytes) = (of("frames"), of("bytes"));
        format!("{frames} {}", bytes - 14 * frames)
    };
    let carried = format!("...A..SF {} {}", count("original"), count("reply"));
    let lines = collected.lines().map(str::split_whitespace);
    let mut lines = lines.map(|cells| cells.skip(3).collect::<Vec<_>>().join(" "));
    check(
        lines.any(|line| line == carried),
        &format!("one has carried {carried}: {collected}"),
    )
}
