//! A router that is FRR, told by the daemon's own BGP (`--balance-bgp`): from the first service to
//! the daemon's end, whichever it is, and a host that falls silent.

use std::time::{Duration, Instant};

use butterfly_tests::bird;
use butterfly_tests::lab::check;
use serde_json::Value;
use testkit::frr::{self, Speaker};
use testkit::process;
use testkit::{PATIENCE, Result, wait_for};

use crate::announce::{SETTINGS, bird_of, running, serve, told, wait_for_route};
use crate::stage::{SERVICE, Stage, VIP};

/// The session as the router has it. It waits 240 s for a word of a neighbour that closes nothing:
/// what goes sooner was told.
const SESSION: &str = " neighbor 10.1.2.3 password secret#1\n neighbor 10.1.2.3 timers 80 240\n";
/// Long before the hold time is over.
const AT_ONCE: Duration = Duration::from_secs(10);

/// FRR in the client's namespace, or `None` where a test needs what is not installed.
fn router(stage: &Stage, more: &str) -> Result<Option<Speaker>> {
    if !bird::is_here() {
        return Ok(None);
    }
    if !frr::is_here() {
        eprintln!("skipped: there is no FRR here (tools/setup.sh installs Debian's)");
        return Ok(None);
    }
    let (us, them) = ((65001, "10.1.2.3"), (65002, "10.1.2.1"));
    Speaker::start(&stage.client, them, us, &format!("{SESSION}{more}")).map(Some)
}

pub fn the_daemon_s_own_bgp_tells_frr(stage: &mut Stage) -> Result<()> {
    let Some(router) = router(stage, "")? else {
        return Ok(());
    };
    let settings = told(stage, SETTINGS)?;
    serve(stage)?;
    let route = || json(&router, &format!("show bgp ipv4 unicast {VIP}/32 json"));
    let path = route()?["paths"][0].clone();
    for (what, expected) in [
        ("/community/string", "65001:100"),
        ("/largeCommunity/string", "65001:7:8"),
        ("/nexthops/0/ip", "10.1.2.3"),
        ("/aspath/string", "65001"),
    ] {
        let said = path.pointer(what).and_then(Value::as_str);
        check(
            said == Some(expected),
            &format!("{what} is {expected}: {path}"),
        )?;
    }
    let metric_becomes = |metric: u64| {
        wait_for(&format!("the metric to be {metric}"), PATIENCE, || {
            Ok((route()?["paths"][0]["metric"] == metric).then_some(()))
        })
    };
    metric_becomes(50)?;
    check(
        stage.open(20)?.len() == 20,
        "clients reach the service by the route",
    )?;

    // A server less, a higher metric; none, no route.
    let drain = |server: &str| {
        let line = format!("service server drain {SERVICE} {server}");
        stage.daemon.cli(&line)
    };
    drain("10.1.2.10")?;
    metric_becomes(60)?;
    drain("10.1.2.11")?;
    wait_for_route(stage, false)?;
    for server in ["10.1.2.10", "10.1.2.11"] {
        let line = format!("service server set {SERVICE} {server} --state up");
        stage.daemon.cli(&line)?;
    }
    metric_becomes(50)?;
    let neighbour = || {
        let all = json(&router, "show bgp neighbors 10.1.2.3 json")?;
        Ok::<Value, String>(all["10.1.2.3"].clone())
    };
    let now = neighbour()?;
    check(
        now["bgpState"] == "Established" && now["connectionsDropped"] == 0,
        &format!("all of that was one session: {now}"),
    )?;

    // The daemon is killed: the kernel ends its BIRD, which closes the session.
    let bird = bird_of(stage)?;
    let begin = Instant::now();
    process::run(&["kill", "-KILL", &stage.daemon.pid().to_string()])?;
    wait_for_route(stage, false)?;
    check(begin.elapsed() < AT_ONCE, "it is not the hold time")?;
    wait_for("its BIRD to be gone", PATIENCE, || {
        Ok((!running(bird)).then_some(()))
    })?;

    // The next one stops as it should: it withdraws the route, and then closes the session.
    stage.daemon.kill_and_restart()?;
    wait_for_route(stage, true)?;
    let before = neighbour()?["messageStats"]["updatesRecv"].as_u64();
    stage.daemon.stop()?;
    wait_for_route(stage, false)?;
    wait_for("the session to be closed", PATIENCE, || {
        let reason = neighbour()?["lastNotificationReason"].clone();
        let reason = reason.as_str().unwrap_or_default();
        Ok(reason.starts_with("Cease").then_some(()))
    })
    .map_err(|e| format!("{e}: {}", neighbour().unwrap_or_default()))?;
    check(
        neighbour()?["messageStats"]["updatesRecv"].as_u64() > before,
        "the route was withdrawn before the session was closed",
    )?;
    drop(settings);
    Ok(())
}

/// The balancer's host says nothing any more, and closes nothing: BFD tells.
pub fn a_silent_host_is_missed_by_frr(stage: &mut Stage) -> Result<()> {
    let Some(router) = router(stage, " neighbor 10.1.2.3 bfd\n")? else {
        return Ok(());
    };
    let _settings = told(stage, &format!("{SETTINGS}bfd = yes\n"))?;
    serve(stage)?;
    wait_for("BFD to be up", PATIENCE, || {
        let peers = json(&router, "show bfd peers json")?;
        Ok((peers[0]["status"] == "up").then_some(()))
    })
    .map_err(|e| format!("{e}: {}", router.ask("show bfd peers").unwrap_or_default()))?;
    check(falls_silent(stage)? < AT_ONCE, "it is not the hold time")
}

/// Without BFD the hold time does: of both sides' the shorter one.
pub fn a_silent_host_is_missed_by_frr_without_bfd(stage: &mut Stage) -> Result<()> {
    let Some(_router) = router(stage, "")? else {
        return Ok(());
    };
    let _settings = told(stage, &SETTINGS.replace("hold = 240", "hold = 3"))?;
    serve(stage)?;
    let after = falls_silent(stage)?;
    check(
        after > Duration::from_secs(1),
        &format!("the hold time was waited for, and not {after:?}"),
    )
}

/// How long it takes until the route is gone when the daemon's BIRD stands still.
fn falls_silent(stage: &Stage) -> Result<Duration> {
    let pid = bird_of(stage)?.to_string();
    let begin = Instant::now();
    process::run(&["kill", "-STOP", &pid])?;
    let done = wait_for_route(stage, false);
    let after = begin.elapsed();
    process::run(&["kill", "-CONT", &pid])?;
    done.map(|()| after)
}

fn json(router: &Speaker, command: &str) -> Result<Value> {
    let answer = router.ask(command)?;
    serde_json::from_str(&answer).map_err(|e| format!("{command}: {e}: {answer}"))
}
