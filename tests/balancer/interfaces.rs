//! Interfaces: shared with the kernel, given back, and taken again.

use std::net::SocketAddr;

use butterfly_tests::lab::check;
use butterfly_tests::web::{Connections, Web};
use testkit::{Result, wait_for};

use crate::stage::{PATIENCE, SERVICE, Stage};

/// Whether a program runs on the balancer's interface.
pub fn taken(stage: &Stage) -> Result<bool> {
    Ok(stage.balancer.ok("ip link show eth0")?.contains("xdp"))
}

/// One NIC for both, given back when asked for and when the daemon is killed.
pub fn stay_the_kernel_s(stage: &mut Stage) -> Result<()> {
    stage.tell(&format!("service add {SERVICE} --server 10.1.2.10"))?;
    let web = Web::serve(&stage.balancer, 8080, "kernel")?;
    let _connections = stage.open(10)?;
    let own: SocketAddr = "10.1.2.3:8080".parse().map_err(|e| format!("{e}"))?;
    let kernel = Connections::open(&stage.client, own, 10)?;
    check(kernel.to("kernel") == 10, "the kernel has the same interface")?;
    check(
        stage.client.succeeds("ping -q -c 1 -W 1 10.1.2.3")?,
        "and answers pings on it",
    )?;
    drop(web);
    check(taken(stage)?, "a program is attached")?;
    stage.daemon.cli("service interface del eth0")?;
    check(!taken(stage)?, "the interface is given back when it is asked for")?;
    stage.daemon.cli("service interface add eth0 --mode generic")?;
    stage.daemon.kill_and_restart()?;
    check(!taken(stage)?, "and when the daemon is killed")
}

/// Removed, and made anew under the same name: it is another one to the kernel.
pub fn come_back(stage: &mut Stage) -> Result<()> {
    stage.tell(&format!("service add {SERVICE} --server 10.1.2.10 10.1.2.11"))?;
    drop(stage.open(10)?);
    let mode_becomes = |stage: &Stage, mode: &str| {
        wait_for(&format!("the interface's mode to be {mode}"), PATIENCE, || {
            let all = stage.daemon.json("service interface list")?;
            Ok((all[0]["mode"] == mode).then_some(()))
        })
    };
    mode_becomes(stage, "XDP_MODE_GENERIC")?;
    stage.balancer.ok("ip link del eth0")?;
    mode_becomes(stage, "XDP_MODE_UNSPECIFIED")?;
    stage.lan.plug(&stage.balancer, "balancer", &["10.1.2.3/24"])?;
    mode_becomes(stage, "XDP_MODE_GENERIC")?;
    check(taken(stage)?, "the program runs on the new one")?;
    // It has another MAC, which the client would ask for some seconds later.
    stage.client.ok("ip neigh flush dev eth0")?;
    stage.ways_are_known()?;
    let connections = stage.open(50)?;
    check(
        connections.to("s0") + connections.to("s1") == 50,
        "and services are balanced",
    )
}
