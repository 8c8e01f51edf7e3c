//! `butterfly balance`.

use std::net::SocketAddr;

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use butterfly_tests::lan::take_vip;
use butterfly_tests::web::{Connections, Web};
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::{PATIENCE, Result, wait_for};

use crate::interfaces::taken;
use crate::stage::{Stage, VIP};

/// Where it is asked what it does.
const SOCKET: &str = "/run/netns/balance.sock";

/// In the foreground, with a table; the interface is given back however it ends.
pub fn one_command_balances_without_a_daemon(stage: &mut Stage) -> Result<()> {
    stage.daemon.cli("service interface del eth0")?;
    check(!taken(stage)?, "the interface is the kernel's")?;
    let command = format!(
        "{} balance eth0 10.1.2.3 {VIP} 10.1.2.10 10.1.2.11 --mode generic --socket {SOCKET}",
        program("butterfly")
    );
    let mut balance = stage.balancer.start("balance", &command)?;
    wait_for("butterfly balance to begin", PATIENCE, || {
        Ok(balance.log().contains("Ctrl-C").then_some(()))
    })?;
    let mut connections = stage.open(100)?;
    connections.ask_all()?;
    let (one, other) = (connections.to("s0"), connections.to("s1"));
    check(
        one + other == 100 && one > 20 && other > 20,
        "both servers have their share",
    )?;
    // SYN, ACK and a request of each at least.
    wait_for("the table to show the flows", PATIENCE, || {
        let log = balance.log();
        let all = log.lines().rev().find(|line| line.starts_with("all "));
        let packets = all.and_then(|line| line.split_whitespace().nth(6)?.parse::<u64>().ok());
        Ok(packets.filter(|packets| *packets >= 300))
    })?;
    // Others ask it what it does, as they ask a daemon.
    let ask = |words: &str| {
        let (butterfly, socket) = (program("butterfly"), SOCKET);
        let asked = stage
            .balancer
            .ok(&format!("{butterfly} -e unix:{socket} {words} 2>&1; true"));
        asked.map(|said| said.trim_end().to_owned())
    };
    let key = format!("{VIP}:80/tcp");
    check(ask("service list")? == key, "its service is listed")?;
    let shown = ask("service show")?;
    check(
        shown.contains("10.1.2.10"),
        &format!("its servers: {shown}"),
    )?;
    let stats = ask("service stats")?;
    let flows = stats.lines().find(|line| line.starts_with(&key));
    let flows = flows.and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    check(
        flows == Some(100),
        &format!("its flows are counted: {stats}"),
    )?;
    let refused = ask(&format!("service del {key}"))?;
    check(refused.contains("only looked at"), &refused)?;
    let ended = balance.terminate(PATIENCE)?;
    check(ended.success(), "it ends when asked to")?;
    check(!taken(stage)?, "and gives the interface back")?;
    check(
        !std::path::Path::new(SOCKET).exists(),
        "its socket has gone",
    )?;
    let mut balance = stage.balancer.start("balance", &command)?;
    wait_for("a program on the interface", PATIENCE, || {
        Ok(taken(stage)?.then_some(()))
    })?;
    balance.kill();
    let _ = std::fs::remove_file(SOCKET);
    check(!taken(stage)?, "also when it is killed")?;
    it_balances_where_it_cannot_print(stage, &command)
}

/// The disk of its log is full: it prints no more, and balances on.
fn it_balances_where_it_cannot_print(stage: &mut Stage, command: &str) -> Result<()> {
    let unheard = format!("{command} >/dev/full");
    let mut balance = stage.balancer.start("unheard", &unheard)?;
    let said = "balancing goes on, and prints nothing any more: No space left on device";
    wait_for("butterfly balance to begin", PATIENCE, || {
        Ok(balance.log().contains(said).then_some(()))
    })?;
    let mut connections = stage.open(100)?;
    connections.ask_all()?;
    check(
        connections.to("s0") + connections.to("s1") == 100,
        "it balances",
    )?;
    let ended = balance.terminate(PATIENCE)?;
    let log = balance.log();
    check(ended.code() == Some(4), &log)?;
    check(log.matches(said).count() == 1, &log)?;
    check(!taken(stage)?, "it gives the interface back")
}

/// Two VIPs with two ports each, on two interfaces, for a time: as much as a sample command can be
/// asked for.
pub fn one_command_balances_several_services(stage: &mut Stage) -> Result<()> {
    const OTHER: &str = "192.168.101.2";
    stage.daemon.cli("service interface del eth0")?;
    let mut more = Vec::new();
    for server in &stage.servers[..2] {
        take_vip(&server.host, OTHER)?;
        more.push(Web::serve(&server.host, 443, &server.name)?);
    }
    // Another client, by another interface of the balancer.
    let second = Namespace::new()?;
    stage.balancer.ok(&format!(
        "ip link add eth1 type veth peer name eth0 netns {} && ip addr add 10.1.3.3/24 dev eth1 && \
         ip link set eth1 up",
        second.pid()
    ))?;
    second.ok(
        "ethtool -K eth0 tx off >/dev/null && ip addr add 10.1.3.1/24 dev eth0 && \
         ip link set eth0 up",
    )?;
    second.ok("ip route add default via 10.1.3.3")?;
    // The servers answer it by the balancer's kernel.
    stage.balancer.ok("sysctl -q -w net.ipv4.ip_forward=1")?;
    for server in &stage.servers[..2] {
        server.host.ok("ip route add 10.1.3.0/24 via 10.1.2.3")?;
    }
    stage
        .client
        .ok(&format!("ip route add {OTHER} via 10.1.2.3"))?;
    let balance = start(
        stage,
        &format!(
            "eth0 10.1.2.3 {VIP} 10.1.2.10 10.1.2.11 --vip {OTHER} -p 80 -p 443 -i eth1 --mode \
             generic"
        ),
    )?;
    for vip in [VIP, OTHER] {
        for port in [80, 443] {
            let to: SocketAddr = format!("{vip}:{port}")
                .parse()
                .map_err(|e| format!("{e}"))?;
            for client in [&stage.client, &second] {
                let connections = Connections::open(client, to, 20)?;
                check(
                    connections.to("s0") > 0 && connections.to("s1") > 0,
                    &format!("both servers have flows of {to}"),
                )?;
            }
        }
    }
    let said = balance.log();
    for service in ["192.168.101.1:443/tcp", "192.168.101.2:80/tcp"] {
        check(
            said.contains(service),
            &format!("{service} is named:\n{said}"),
        )?;
    }
    drop(balance);
    // For a time, and for programs.
    let command = |words: &str| {
        format!(
            "{} balance eth0 10.1.2.3 {VIP} 10.1.2.10 {words}",
            program("butterfly")
        )
    };
    let mut timed = stage
        .balancer
        .start("timed", &command("--mode generic --for 1 --json"))?;
    check(
        timed.wait(PATIENCE)?.success(),
        "it ends when its time is over",
    )?;
    check(!taken(stage)?, "and gives the interface back")?;
    let said = timed.log();
    let line = said.lines().next().unwrap_or_default();
    let value: serde_json::Value =
        serde_json::from_str(line).map_err(|e| format!("{said}: {e}"))?;
    check(
        value["servers"][0]["server"] == "10.1.2.10",
        &format!("a line of JSON a print: {said}"),
    )?;
    // One interface that cannot be had: none is kept.
    let mut refused = stage
        .balancer
        .start("refused", &command("--mode generic -i nosuch0"))?;
    let code = refused.wait(PATIENCE)?.code();
    let why = refused.log();
    check(
        code == Some(1) && why.contains("nosuch0"),
        &format!("it is refused by name: {code:?} {why}"),
    )?;
    check(!taken(stage)?, "and nothing is balanced")
}

/// With --stay it balances on when it ends, however it ends, and the next one goes on with its
/// flows and counters, other servers or not.
pub fn one_command_goes_on_where_another_ended(stage: &mut Stage) -> Result<()> {
    stage.daemon.cli("service interface del eth0")?;
    let words = |servers: &str, more: &str| {
        format!("eth0 10.1.2.3 {VIP} {servers} --mode {} {more}", stage.mode)
    };
    let two = words("10.1.2.10 10.1.2.11", "--stay");
    let all = words("10.1.2.10 10.1.2.11 10.1.2.12", "--stay --json");
    let other = words("10.1.2.10", "");
    let folder = stage.balancer.ok("stat -Lc %i /proc/self/ns/net")?;
    let folder = format!("/sys/fs/bpf/butterfly/balance-{}", folder.trim());
    let mut balance = start(stage, &two)?;
    // Not before it has all in force.
    wait_for("butterfly balance to begin", PATIENCE, || {
        let log = balance.log();
        Ok(log
            .lines()
            .any(|line| line.starts_with("all "))
            .then_some(()))
    })?;
    let mut old = stage.open(100)?;
    balance.terminate(PATIENCE)?;
    let said = format!(
        "balanced on without this command, as now: eth0. The next with --stay goes on; rm -r \
         {folder} ends it"
    );
    check(
        balance.log().contains(&said),
        &format!("it says what it leaves: {}", balance.log()),
    )?;
    check(taken(stage)?, "the interface has its program")?;
    old.ask_all()?;
    let mut more = stage.open(100)?;
    // Whoever does not go on with it is told.
    let command = format!("{} balance {other}", program("butterfly"));
    let mut refused = stage.balancer.start("refused", &command)?;
    let code = refused.wait(PATIENCE)?.code();
    let hint = format!("--stay goes on with them, and rm -r {folder} ends them");
    check(
        code == Some(1) && refused.log().contains(&hint),
        &format!("{code:?} {}", refused.log()),
    )?;
    for turn in 0..3 {
        let mut balance = start(stage, &all)?;
        wait_for("its report", PATIENCE, || {
            Ok(balance.log().contains("\"flows\"").then_some(()))
        })?;
        for connections in [&mut old, &mut more] {
            connections.ask_all()?;
        }
        if turn == 0 {
            more = stage.open(100)?;
            check(more.to("s2") > 10, "the newcomer has its share")?;
        }
        balance.kill();
        check(taken(stage)?, "the interface has its program")?;
        for connections in [&mut old, &mut more] {
            connections.ask_all()?;
        }
    }
    let mut balance = start(stage, &all)?;
    let flows = wait_for("its report", PATIENCE, || {
        let log = balance.log();
        let first = log.lines().find(|line| line.starts_with('{'));
        let report = first.and_then(|line| serde_json::from_str::<Value>(line).ok());
        Ok(report.map(|report| sum_of_flows(&report)))
    })?;
    check(flows == 300, &format!("{flows} flows of 300 are counted"))?;
    balance.terminate(PATIENCE)?;
    stage.balancer.ok(&format!("rm -r {folder}"))?;
    wait_for("the interface to be the kernel's", PATIENCE, || {
        Ok((!taken(stage)?).then_some(()))
    })
}

/// Flows of all servers, of a report in JSON.
fn sum_of_flows(report: &Value) -> u64 {
    let servers = report["servers"].as_array().into_iter().flatten();
    servers.filter_map(|server| server["flows"].as_u64()).sum()
}

/// `butterfly balance` with these words, once a program is attached.
fn start(stage: &Stage, words: &str) -> Result<Process> {
    let command = format!("{} balance {words}", program("butterfly"));
    let mut process = stage.balancer.start("balance", &command)?;
    wait_for("butterfly balance to begin", PATIENCE, || {
        if let Some(ended) = process.ended() {
            return Err(format!("it ended with {ended}: {}", process.log()));
        }
        Ok(taken(stage)?.then_some(()))
    })?;
    Ok(process)
}
