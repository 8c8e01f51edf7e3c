//! Interfaces: shared with the kernel, given back, and taken again.

use std::net::SocketAddr;

use butterfly_tests::lab::check;
use butterfly_tests::web::{Connections, Web};
use testkit::{PATIENCE, Result, wait_for};

use crate::stage::{SERVICE, Stage, VIP};

/// Whether a program runs on the balancer's interface.
pub fn taken(stage: &Stage) -> Result<bool> {
    Ok(stage.balancer.ok("ip link show eth0")?.contains("xdp"))
}

/// One NIC for both, given back when asked for and when the daemon is killed.
pub fn the_interface_stays_the_kernel_s(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!("service add {SERVICE} --server 10.1.2.10"))?;
    let web = Web::serve(&stage.balancer, 8080, "kernel")?;
    let _connections = stage.open(10)?;
    let own: SocketAddr = "10.1.2.3:8080".parse().map_err(|e| format!("{e}"))?;
    let kernel = Connections::open(&stage.client, own, 10)?;
    check(
        kernel.to("kernel") == 10,
        "the kernel has the same interface",
    )?;
    check(
        stage.client.succeeds("ping -q -c 1 -W 1 10.1.2.3")?,
        "and answers pings on it",
    )?;
    drop(web);
    check(taken(stage)?, "a program is attached")?;
    let program = |stage: &Stage| {
        stage
            .balancer
            .ok("ip link show eth0 | grep -o 'prog/xdp id [0-9]*'")
    };
    let before = program(stage)?;
    stage.daemon.cli("service interface reattach eth0")?;
    check(
        program(stage)? == before && stage.open(10)?.len() == 10,
        "the same program, attached anew, balances",
    )?;
    stage.daemon.cli("service interface del eth0")?;
    check(
        !taken(stage)?,
        "the interface is given back when it is asked for",
    )?;
    let said = stage
        .daemon
        .cli("service interface reattach eth0")
        .err()
        .unwrap_or_default();
    check(
        said.contains("nothing is balanced on interface 'eth0'"),
        &format!("what is not attached is not attached again: {said}"),
    )?;
    stage
        .daemon
        .cli(&format!("service interface add eth0 --mode {}", stage.mode))?;
    stage.daemon.kill_and_restart()?;
    check(!taken(stage)?, "and when the daemon is killed")
}

/// A mode that the driver refuses changes nothing: a bridge has no native XDP.
pub fn a_refused_mode_changes_nothing(stage: &mut Stage) -> Result<()> {
    stage
        .balancer
        .ok("ip link add br0 type bridge && ip link set br0 up")?;
    stage
        .daemon
        .cli("service interface add br0 --mode generic")?;
    let refused = stage.daemon.cli("service interface add br0 --mode native");
    let said = refused.err().unwrap_or_default();
    check(
        said.contains("interface br0") && said.contains("native"),
        &format!("it is said what is refused: {said}"),
    )?;
    let all = stage.daemon.json("service interface list")?;
    let bridge = all
        .as_array()
        .and_then(|all| all.iter().find(|one| one["name"] == "br0"));
    check(
        bridge.is_some_and(|one| one["mode"] == "XDP_MODE_GENERIC"),
        &format!("it is balanced on as before: {all}"),
    )?;
    check(
        stage
            .balancer
            .ok("ip link show br0")?
            .contains("xdpgeneric"),
        "and has its program",
    )?;
    stage.daemon.cli("service interface del br0").map(drop)
}

/// A check that finds a server well says nothing of the way that clients' packets take: what the
/// driver loses of that is told beside it, when it begins and when it ends.
pub fn an_interface_that_loses_frames_is_told(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 --check tcp --check-interval 500"
    ))?;
    stage.healths_become(&["HEALTHY"])?;
    let connects = |stage: &Stage| {
        let connect = format!("timeout 2 bash -c '</dev/tcp/{VIP}/80'");
        stage.client.succeeds(&connect)
    };
    let told = |stage: &Stage, is: bool| {
        wait_for("what is lost to be told", PATIENCE, || {
            let server = stage
                .daemon
                .json(&format!("service server list {SERVICE}"))?;
            let interface = stage.daemon.json("service interface list")?;
            let (server, interface) = (&server[0]["unreachable"], &interface[0]["detail"]);
            let said = |why: &serde_json::Value| {
                let why = why.as_str().unwrap_or_default();
                why.contains("what is sent out of eth0 from XDP is lost")
            };
            let status = stage.daemon.json("status")?;
            let warned = said(&status["warnings"][0]);
            Ok(([said(server), said(interface), warned] == [is; 3]).then_some(()))
        })?;
        // No reason to restart the daemon, and a line for who asks.
        let (health, warnings) = stage.daemon.health()?;
        check(health.is_empty(), &format!("health prints {health}"))?;
        let warned = warnings.starts_with("warning: what is sent out of eth0 from XDP is lost");
        check(warned == is, &format!("health warns: {warnings}"))
    };
    check(connects(stage)?, "clients are served")?;
    told(stage, false)?;
    for time in 1..=2 {
        stage.let_take(false)?;
        told(stage, true)?;
        check(!connects(stage)?, "no client is served")?;
        stage.healths_become(&["HEALTHY"])?;
        let table = stage.daemon.cli("service interface list")?;
        check(table.contains("GRO"), &format!("what helps:\n{table}"))?;
        stage.let_take(true)?;
        told(stage, false)?;
        check(connects(stage)?, "clients are served again")?;
        // Once each, however often it was looked at.
        let log = stage.daemon.log();
        let count = |what: &str| log.matches(what).count();
        let begins = "balancing: what is sent out of eth0 from XDP is lost";
        let ends = "balancing: nothing that is sent to eth0 is lost any more";
        check(
            (count(begins), count(ends)) == (time, time),
            &format!("the log says so each time:\n{log}"),
        )?;
    }
    Ok(())
}

/// Removed, and made anew under the same name: it is another one to the kernel.
pub fn an_interface_that_comes_back_is_taken_again(stage: &mut Stage) -> Result<()> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    drop(stage.open(10)?);
    let mode_becomes = |stage: &Stage, mode: &str| {
        wait_for(
            &format!("the interface's mode to be {mode}"),
            PATIENCE,
            || {
                let all = stage.daemon.json("service interface list")?;
                Ok((all[0]["mode"] == mode).then_some(()))
            },
        )
    };
    mode_becomes(stage, "XDP_MODE_GENERIC")?;
    stage.balancer.ok("ip link del eth0")?;
    mode_becomes(stage, "XDP_MODE_UNSPECIFIED")?;
    stage
        .lan
        .plug(&stage.balancer, "balancer", &["10.1.2.3/24"])?;
    mode_becomes(stage, "XDP_MODE_GENERIC")?;
    check(taken(stage)?, "the program runs on the new one")?;
    // It has another MAC, which the client would ask for some seconds later.
    stage.client.ok("ip neigh flush dev eth0")?;
    stage.servers_are_reached()?;
    let connections = stage.open(50)?;
    check(
        connections.to("s0") + connections.to("s1") == 50,
        "and services are balanced",
    )
}
