//! Flows: to whom they go, and that they stay.

use butterfly_tests::lab::check;
use testkit::Result;

use crate::stage::{SERVICE, Stage};

/// By weight, exactly counted; a sticky client has one server.
pub fn are_spread_and_counted(stage: &mut Stage) -> Result<()> {
    stage.tell(&format!("service add {SERVICE} --server 10.1.2.10 10.1.2.11*3"))?;
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
    stage.daemon.cli(&format!("service set {SERVICE} --sticky"))?;
    let connections = stage.open(50)?;
    check(
        connections.to("s0") == 50 || connections.to("s1") == 50,
        "a client of a sticky service has one server",
    )
}

/// Servers join, drain, die and are taken out: no flow whose server lives notices.
pub fn ten_thousand_survive(stage: &mut Stage) -> Result<()> {
    stage.tell(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12"
    ))?;
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
    stage.tell(&format!("service server add {SERVICE} 10.1.2.13"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server joined: {e}"))?;
    check(stage.open(400)?.to("s3") > 50, "the newcomer gets its share")?;
    // One drains: it keeps its flows and gets no new ones.
    stage
        .daemon
        .cli(&format!("service server drain {SERVICE} 10.1.2.10"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server began to drain: {e}"))?;
    check(
        stage.open(400)?.to("s0") == 0,
        "a draining server gets no new flows",
    )?;
    // One dies: the flows of the others do not notice.
    stage.servers[1].host.ok("ip link set eth0 down")?;
    stage.servers[1].web = None;
    stage
        .daemon
        .cli(&format!("service server set {SERVICE} 10.1.2.11 --state down"))?;
    connections.give_up("s1");
    connections
        .ask_all()
        .map_err(|e| format!("after a server died: {e}"))?;
    check(stage.open(400)?.to("s1") == 0, "a dead server gets no flows")?;
    // It is taken out, with the one that drains; what is left goes on.
    stage
        .daemon
        .cli(&format!("service server del {SERVICE} 10.1.2.11"))?;
    connections
        .ask_all()
        .map_err(|e| format!("after a server was deleted: {e}"))?;
    check(
        connections.len() > 5_000,
        &format!("{} connections are left", connections.len()),
    )
}
