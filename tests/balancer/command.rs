//! `butterfly balance`.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use testkit::{Result, wait_for};

use crate::interfaces::taken;
use crate::stage::{PATIENCE, Stage, VIP};

/// In the foreground, with a table; the interface is given back however it ends.
pub fn balances_without_a_daemon(stage: &mut Stage) -> Result<()> {
    stage.daemon.cli("service interface del eth0")?;
    check(!taken(stage)?, "the interface is the kernel's")?;
    let command = format!(
        "{} balance eth0 10.1.2.3 {VIP} 10.1.2.10 10.1.2.11 --mode generic",
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
        let packets = all.and_then(|line| line.split_whitespace().nth(5)?.parse::<u64>().ok());
        Ok(packets.filter(|packets| *packets >= 300))
    })?;
    let ended = balance.terminate(PATIENCE)?;
    check(ended.success(), "it ends when asked to")?;
    check(!taken(stage)?, "and gives the interface back")?;
    let mut balance = stage.balancer.start("balance", &command)?;
    wait_for("a program on the interface", PATIENCE, || {
        Ok(taken(stage)?.then_some(()))
    })?;
    balance.kill();
    check(!taken(stage)?, "also when it is killed")
}
