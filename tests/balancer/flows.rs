//! Flows: to whom they go, and that they stay.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use butterfly_tests::lab::check;
use butterfly_tests::web::Connections;
use testkit::{PATIENCE, Result};

use crate::cpus::{Pinned, packets_by_cpu};
use crate::flood;
use crate::stage::{SERVICE, Stage, VIP, service};

/// By weight, exactly counted; a sticky client has one server.
pub fn flows_are_spread_and_counted(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11*3"
    ))?;
    let connections = stage.open(400)?;
    let (light, heavy) = (connections.to("s0"), connections.to("s1"));
    check(light + heavy == 400, "both servers are all there is")?;
    check(
        (60..140).contains(&light),
        &format!("{light} of 400 go to the server of weight 1 in 4"),
    )?;
    check(
        stage.counter("10.1.2.10", "flows")? == light as u64,
        "flows of the first are exact",
    )?;
    check(
        stage.counter("10.1.2.11", "flows")? == heavy as u64,
        "flows of the second are exact",
    )?;
    // SYN, ACK, request, ACK of the answer.
    let packets = stage.counter("10.1.2.10", "packets")?;
    check(
        packets >= 3 * light as u64,
        &format!("{packets} packets of {light} flows"),
    )?;
    drop(connections);
    // Sticky: one client, one server.
    stage
        .daemon
        .cli(&format!("service set {SERVICE} --sticky"))?;
    let connections = stage.open(50)?;
    check(
        connections.to("s0") == 50 || connections.to("s1") == 50,
        "a client of a sticky service has one server",
    )
}

/// Servers join, drain, die and are taken out, and the client moves to another CPU each time: no
/// flow whose server lives notices.
pub fn ten_thousand_connections_survive(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12"
    ))?;
    let pinned = Pinned::new();
    let mut connections = stage.open(10_000)?;
    for server in &stage.servers[..3] {
        let flows = connections.to(&server.name);
        check(
            (2_500..4_200).contains(&flows),
            &format!("{flows} flows to {}", server.name),
        )?;
        check(
            stage.counter(&server.address, "flows")? == flows as u64,
            &format!("flows of {} are counted exactly", server.name),
        )?;
    }
    // One joins.
    stage.set_services(&format!("service server add {SERVICE} 10.1.2.13"))?;
    asked_from(stage, &pinned, 1, &mut connections)
        .map_err(|e| format!("after a server joined: {e}"))?;
    check(
        stage.open(400)?.to("s3") > 50,
        "the newcomer gets its share",
    )?;
    // One drains: it keeps its flows and gets no new ones.
    stage
        .daemon
        .cli(&format!("service server drain {SERVICE} 10.1.2.10"))?;
    asked_from(stage, &pinned, 0, &mut connections)
        .map_err(|e| format!("after a server began to drain: {e}"))?;
    check(
        stage.open(400)?.to("s0") == 0,
        "a draining server gets no new flows",
    )?;
    // One dies: the flows of the others do not notice.
    stage.servers[1].host.ok("ip link set eth0 down")?;
    stage.servers[1].web = None;
    stage.daemon.cli(&format!(
        "service server set {SERVICE} 10.1.2.11 --state down"
    ))?;
    connections.give_up("s1");
    asked_from(stage, &pinned, 1, &mut connections)
        .map_err(|e| format!("after a server died: {e}"))?;
    check(
        stage.open(400)?.to("s1") == 0,
        "a dead server gets no flows",
    )?;
    // It is taken out, with the one that drains; what is left goes on.
    stage
        .daemon
        .cli(&format!("service server del {SERVICE} 10.1.2.11"))?;
    asked_from(stage, &pinned, 0, &mut connections)
        .map_err(|e| format!("after a server was deleted: {e}"))?;
    check(
        connections.len() > 5_000,
        &format!("{} connections are left", connections.len()),
    )
}

/// Asks again on all connections, from a CPU, until the balancer's program has run there for a
/// tenth of them: packets are handled where they are sent, but for those that come while another
/// CPU is still at the ones before.
fn asked_from(
    stage: &Stage,
    pinned: &Pinned,
    cpu: usize,
    connections: &mut Connections,
) -> Result<()> {
    const TIMES: usize = 10;
    let before = packets_by_cpu(stage.daemon.pid())?;
    let cpu = pinned.to(cpu);
    let enough = connections.len() as u64 / 10;
    let mut grown = 0;
    for _ in 0..TIMES {
        connections.ask_all()?;
        let now = packets_by_cpu(stage.daemon.pid())?;
        grown = now.get(&cpu).copied().unwrap_or_default()
            - before.get(&cpu).copied().unwrap_or_default();
        if grown >= enough {
            return Ok(());
        }
    }
    Err(format!(
        "CPU {cpu} handled {grown} packets only, of {enough}, after {before:?}"
    ))
}

/// The daemon is stopped (SIGSTOP): flows stay with their servers, and new ones go to those that it
/// has known to be well. Whom it finds sick when it goes on gets no more.
pub fn a_daemon_that_stands_still_balances_on(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 --check tcp --check-interval 500"
    ))?;
    stage.healths_become(&["HEALTHY"; 2])?;
    let mut connections = stage.open(200)?;
    let still = stage.daemon.stand_still()?;
    // Longer than the router is waited for.
    std::thread::sleep(Duration::from_secs(7));
    connections.ask_all()?;
    let new = stage.open(200)?;
    for server in ["s0", "s1"] {
        check(new.to(server) > 40, &format!("{server} gets its share"))?;
    }
    stage.servers[1].web = None;
    drop(still);
    stage.healths_become(&["HEALTHY", "UNHEALTHY"])?;
    check(stage.open(100)?.to("s1") == 0, "who is sick gets no flows")?;
    connections.give_up("s1");
    connections.ask_all()
}

/// Balancers of one seed, which a file has, choose alike, and those of another one otherwise: who
/// does not know it cannot tell which flows meet.
pub fn balancers_of_one_seed_choose_alike(stage: &mut Stage) -> Result<()> {
    let folder = tempfile::tempdir().map_err(|e| format!("a folder: {e}"))?;
    let file = folder.path().join("seed");
    let mut chosen = |seed: &str| -> Result<Vec<String>> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options
            .open(&file)
            .and_then(|mut file| file.write_all(seed.as_bytes()));
        written.map_err(|e| format!("{}: {e}", file.display()))?;
        stage.restart(&["--balance-seed", &file.display().to_string()])?;
        stage.set_services(&format!(
            "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
        ))?;
        let to = service()?;
        // TIME-WAIT is not theirs: they end with a reset.
        let servers = stage.client.inside(|| {
            let ports = 20_000..20_064;
            ports
                .map(|port| ask_from(port, to))
                .collect::<std::io::Result<_>>()
        })?;
        servers.map_err(|e| format!("connections from ports of their own: {e}"))
    };
    let first = chosen("0123456789abcdef\n")?;
    check(
        chosen("0123456789abcdef")? == first,
        "the same seed chooses the same servers",
    )?;
    check(
        chosen("0123456789abcdee")? != first,
        "another seed chooses others",
    )
}

/// Which server answers a connection from this port, which is then reset.
fn ask_from(port: u16, to: SocketAddr) -> std::io::Result<String> {
    use rustix::net;

    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
    net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, Some(PATIENCE))?;
    net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    net::bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port)))?;
    net::connect(&socket, &to)?;
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: vip\r\n\r\n")?;
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer)?;
    answer.truncate(length);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.rsplit_once("\r\n\r\n") {
        Some((_, server)) if !server.is_empty() => Ok(server.to_owned()),
        _ => Err(std::io::Error::other(format!("the answer is {answer:?}"))),
    }
}

/// A flood of SYNs while servers change and the table of flows is as small as it gets: connections
/// go on, and new ones are made.
pub fn a_flood_displaces_no_connection(stage: &mut Stage) -> Result<()> {
    // For 2,048 words. Some may be lost where veth's queues are short; five times the table is
    // enough.
    const FLOOD: u32 = 30_000;
    const ENOUGH: u64 = 10_000;
    stage.restart(&["--balance-max-flows", "1024"])?;
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    let mut connections = stage.open(400)?;
    // From now on flows are remembered where servers have changed.
    stage.set_services(&format!("service server add {SERVICE} 10.1.2.12"))?;
    connections
        .ask_all()
        .map_err(|e| format!("before the flood: {e}"))?;
    stage.open_more(&mut connections, 100)?;
    let vip = VIP.parse().map_err(|e| format!("{VIP}: {e}"))?;
    let flows = |stage: &Stage| -> Result<u64> {
        (0..3)
            .map(|n| stage.counter(&format!("10.1.2.1{n}"), "flows"))
            .sum()
    };
    let before = flows(stage)?;
    flood::syns(&stage.client, vip, 80, FLOOD)?;
    let came = flows(stage)? - before;
    check(
        (ENOUGH..=FLOOD.into()).contains(&came),
        &format!("{came} of {FLOOD} SYNs came through"),
    )?;
    connections
        .ask_all()
        .map_err(|e| format!("after the flood: {e}"))?;
    // Now all depends on what is remembered.
    stage.set_services(&format!("service server add {SERVICE} 10.1.2.13"))?;
    flood::syns(&stage.client, vip, 80, FLOOD)?;
    connections
        .ask_all()
        .map_err(|e| format!("after a flood and a change: {e}"))?;
    check(connections.len() == 500, "none is lost")?;
    check(stage.open(100)?.len() == 100, "and new ones are made")
}
