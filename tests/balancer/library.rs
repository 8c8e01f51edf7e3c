//! The library alone: its own example, as a program of somebody else's.

use butterfly_tests::lab::check;
use testkit::{PATIENCE, Result, wait_for};

use crate::interfaces::taken;
use crate::stage::Stage;

#[path = "../../crates/balancer/examples/balance.rs"]
mod example;

/// Says to this very program that it is the example.
const ROLE: &str = "BUTTERFLY_TEST_EXAMPLE";

/// Does what the example does if this process was started for that.
pub fn run_if_asked() -> Result<bool> {
    if std::env::var_os(ROLE).is_none() {
        return Ok(false);
    }
    example::main().map_err(|e| e.to_string())?;
    Ok(true)
}

/// No daemon runs, and nothing is in PATH: no clang, no `ip`.
pub fn the_library_balances_without_daemon_and_compiler(stage: &mut Stage) -> Result<()> {
    stage.daemon.stop()?;
    check(!taken(stage)?, "the interface is the kernel's")?;
    // It runs in the driver.
    let _taken = stage.lan.take_from_xdp("balancer")?;
    let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let own = own.display();
    let command = format!(
        "env -i PATH=/nonexistent {ROLE}=1 {own} eth0 192.168.101.1:80 10.1.2.10 10.1.2.11"
    );
    let mut program = stage.balancer.start("example", &command)?;
    wait_for("the example to balance", PATIENCE, || {
        Ok(program.log().contains("balancing").then_some(()))
    })
    .map_err(|e| format!("{e}\n{}", program.log()))?;
    // A server has its share as soon as it has answered: both do by the time that connections to
    // each are made.
    let mut connections = wait_for("both servers to have flows", PATIENCE, || {
        let connections = stage.open(40)?;
        Ok((connections.to("s0") > 0 && connections.to("s1") > 0).then_some(connections))
    })
    .map_err(|e| format!("{e}\n{}", program.log()))?;
    connections.ask_all()?;
    wait_for("counters of both servers", PATIENCE, || {
        let log = program.log();
        let counted = |server: &str| {
            let mut its = log
                .lines()
                .filter_map(|line| line.strip_prefix(server)?.strip_prefix(": "));
            its.next_back()
                .is_some_and(|counts| !counts.starts_with("0 flows"))
        };
        Ok((counted("10.1.2.10") && counted("10.1.2.11")).then_some(()))
    })?;
    program.signal("INT")?;
    check(program.wait(PATIENCE)?.success(), "Ctrl-C ends it")?;
    check(!taken(stage)?, "and the interface is given back")
}
