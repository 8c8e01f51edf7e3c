//! Announcing: packaging/balance-hook puts a service's address into the kernel's routes, from where
//! a routing daemon, BIRD or FRR, tells a router about it; and takes it out again. Or the daemon
//! has a BIRD of its own (`--balance-bgp`), and a router that is BIRD is told; `frr_router.rs` has
//! one that is FRR. When another program takes the daemon's place, nothing is withdrawn, nor
//! announced anew.

use butterfly_tests::bird::{self, Bird};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use butterfly_tests::lab::check;
use butterfly_tests::web::Web;
use testkit::frr::{self, Speaker};
use testkit::image::repository;
use testkit::{PATIENCE, Result, wait_for};

use crate::stage::{SERVICE, Stage, VIP};
use crate::upgrade::failing;

/// What an upgrade needs.
const LASTING: [&str; 4] = ["--store", "{dir}/store", "--keeper", "{dir}/keeper"];

/// What the balancer's host announces: routes of the hook, and nothing else.
const ANNOUNCER: &str = r#"
protocol kernel { learn; ipv4 { import filter { if krt_source = 66 then accept; reject; };
                         export none; }; }
protocol bgp { local 10.1.2.3 as 65001; neighbor 10.1.2.1 as 65002; connect retry time 1;
               connect delay time 1;
               ipv4 { import none; export all; next hop self; }; }
"#;
/// What the client's host receives becomes its routes.
const RECEIVER: &str = r#"
protocol kernel { ipv4 { import none; export all; }; }
protocol bgp { local 10.1.2.1 as 65002; neighbor 10.1.2.3 as 65001; connect retry time 1;
               connect delay time 1;
               ipv4 { import all; export none; }; }
"#;

/// By two BIRDs.
pub fn addresses_are_announced_by_bird(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let _announcer = Bird::start(&stage.balancer, "10.1.2.3", ANNOUNCER)?;
    let _receiver = Bird::start(&stage.client, "10.1.2.1", RECEIVER)?;
    announces(stage)
}

/// By two FRRs, the balancer's as packaging/balance-hook says it is to be set up.
pub fn addresses_are_announced_by_frr(stage: &mut Stage) -> Result<()> {
    if !frr::is_here() {
        eprintln!("skipped: there is no FRR here (tools/setup.sh installs Debian's)");
        return Ok(());
    }
    let (us, them) = ((65001, "10.1.2.3"), (65002, "10.1.2.1"));
    let config = " address-family ipv4 unicast\n  redistribute kernel route-map services\n \
                 exit-address-family\n\
                 ip prefix-list services permit 0.0.0.0/0 ge 32\n\
                 route-map services permit 10\n match ip address prefix-list services\n";
    let _announcer = Speaker::start(&stage.balancer, us, them, config)?;
    let _receiver = Speaker::start(&stage.client, them, us, "")?;
    announces(stage)
}

/// The hook of somebody else's route to the address: it fails, and the route is as it was.
pub fn another_s_route_is_no_announcement(stage: &mut Stage) -> Result<()> {
    let hook = repository().join("packaging/balance-hook");
    for (family, address) in [("-4", "192.0.2.99"), ("-6", "2001:db8::99")] {
        let routes = format!("ip {family} route show type blackhole");
        let run = |what: &str| {
            stage
                .balancer
                .ok(&format!("{} {what} {address}", hook.display()))
        };
        for _ in 0..2 {
            run("announce")?;
            check(stage.balancer.ok(&routes)?.contains(address), "announced")?;
        }
        for _ in 0..2 {
            run("withdraw")?;
            let left = stage.balancer.ok(&routes)?;
            check(!left.contains(address), "withdrawn, and again")?;
        }
        stage.balancer.ok(&format!(
            "ip {family} route add blackhole {address} proto 99"
        ))?;
        check(run("announce").is_err(), "there is another's")?;
        run("withdraw")?;
        let left = stage.balancer.ok(&format!("{routes} proto 99"))?;
        check(left.contains(address), "another's stays")?;
        stage
            .balancer
            .ok(&format!("ip {family} route del blackhole {address}"))?;
    }
    Ok(())
}

/// An address comes into the routers' tables with its service, and leaves them when too few servers
/// are left.
fn announces(stage: &mut Stage) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let (hook, said) = (dir.path().join("hook"), dir.path().join("said"));
    let real = repository().join("packaging/balance-hook");
    let (noted, real) = (said.display(), real.display());
    let text = format!("#!/bin/sh\necho \"$@\" >> {noted}\nexec {real} \"$@\"\n");
    let written = std::fs::write(&hook, text)
        .and_then(|()| std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)));
    written.map_err(|e| format!("{}: {e}", hook.display()))?;
    let said = || std::fs::read_to_string(&said).unwrap_or_default();
    let path = hook.display().to_string();
    stage.restart(&[&["--balance-hook", &path][..], &LASTING].concat())?;
    // Nobody told the client by hand.
    stage.client.ok(&format!("ip route del {VIP}"))?;
    let heard = |stage: &Stage, expected: bool| {
        let what = format!("the client's route by the balancer to be there: {expected}");
        wait_for(&what, PATIENCE, || {
            let route = stage.client.ok(&format!("ip route show {VIP}"))?;
            let is_it = if expected {
                route.contains(" via 10.1.2.3 ")
            } else {
                route.is_empty()
            };
            Ok(is_it.then_some(()))
        })
    };
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 --min-healthy 2"
    ))?;
    heard(stage, true)?;
    check(
        stage.open(20)?.len() == 20,
        "clients reach the service by the route they heard of",
    )?;
    // The next program knows what is announced: it says nothing of it, and withdraws it in time.
    let fails = failing(&stage.daemon)?;
    for _ in 0..2 {
        let refused = stage.daemon.cli(&format!("upgrade {fails}")).err();
        let refused = refused.unwrap_or_default();
        check(refused.contains("it had taken up all"), &refused)?;
        stage.daemon.upgrade()?;
    }
    check(said() == format!("announce {VIP}\n"), &said())?;
    stage
        .daemon
        .cli(&format!("service server drain {SERVICE} 10.1.2.10"))?;
    heard(stage, false)?;
    stage.daemon.cli(&format!(
        "service server set {SERVICE} 10.1.2.10 --state up"
    ))?;
    heard(stage, true)?;
    // A daemon that stops takes its addresses along.
    stage.daemon.stop()?;
    heard(stage, false)?;
    check(
        stage.balancer.ok("ip route show proto 66")?.is_empty(),
        "and leaves no route behind",
    )
}

/// A program that withdraws when it was called for all three addresses, and fails for one of them:
/// the stop waits for none of them behind another, connections are left, and the next daemon
/// withdraws what is not in service by then.
pub fn a_stop_withdraws_side_by_side(stage: &mut Stage) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let [hook, said, fails, three] =
        ["hook", "said", "fails", "three"].map(|name| dir.path().join(name));
    let write = |path: &std::path::Path, text: &str| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    write(
        &hook,
        &format!(
            "#!/bin/sh\necho \"$@\" >> {said}\n[ $1 = withdraw ] || exit 0\n\
             while [ -e {three} ] && [ \"$(grep -c withdraw {said})\" -lt 3 ]\n\
             do sleep 0.01\ndone\n[ $2 != 192.168.101.2 ] || ! [ -e {fails} ]\n",
            said = said.display(),
            fails = fails.display(),
            three = three.display(),
        ),
    )?;
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755))
        .map_err(|e| format!("{}: {e}", hook.display()))?;
    let told = || std::fs::read_to_string(&said).unwrap_or_default();
    let tells = |line: &str| {
        wait_for(&format!("'{line}'"), PATIENCE, || {
            Ok(told().lines().any(|told| told == line).then_some(()))
        })
        .map_err(|e| format!("{e}: {}", told()))
    };
    let path = hook.display().to_string();
    stage.restart(&[&["--balance-hook", &path][..], &LASTING].concat())?;
    for number in 1..=3 {
        stage.set_services(&format!(
            "service add 192.168.101.{number}:80 --server 10.1.2.10 10.1.2.11"
        ))?;
        tells(&format!("announce 192.168.101.{number}"))?;
    }
    // One cannot be withdrawn: neither now nor by the stop.
    write(&fails, "")?;
    stage.daemon.cli("service del 192.168.101.2:80")?;
    tells("withdraw 192.168.101.2")?;
    write(&three, "")?;
    write(&said, "")?;
    stage.daemon.stop()?;
    let log = stage.daemon.log();
    check(
        log.contains("connections are left for the next daemon"),
        &format!("connections are left:\n{log}"),
    )?;
    for number in 1..=3 {
        tells(&format!("withdraw 192.168.101.{number}"))?;
    }
    let file = |folder: &str| stage.daemon.dir().join(folder).join("balance-announced");
    let kept = std::fs::read_to_string(file("store")).unwrap_or_default();
    check(
        kept.starts_with("192.168.101.2\nagain 192.168.101.2\n") && !file("").exists(),
        &format!("beside the store stands what is announced still: {kept}"),
    )?;
    for path in [&fails, &three] {
        std::fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    write(&said, "")?;
    stage.daemon.restart()?;
    for line in [
        "withdraw 192.168.101.2",
        "announce 192.168.101.1",
        "announce 192.168.101.3",
    ] {
        tells(line)?;
    }
    Ok(())
}

/// What the daemon is told of the client's host, which is a router of another system. Nobody waits
/// for the hold time: what is withdrawn within [`PATIENCE`] was not withdrawn by that.
pub const SETTINGS: &str = "[local]
as = 65001
router-id = 10.1.2.3
communities = 65001:100, 65001:7:8
med = 50
med-per-server = 10
hold = 240
[neighbour 10.1.2.1]
as = 65002
password = secret#1
";
/// The session of [`SETTINGS`], as the router has it.
const ROUTER: &str = r#"
protocol kernel { ipv4 { import none; export all; }; }
protocol bfd { }
protocol bgp daemon { local 10.1.2.1 as 65002; neighbor 10.1.2.3 as 65001; password "secret#1";
               connect retry time 1; connect delay time 1; error wait time 1, 2;
               hold time 240; bfd on;
               ipv4 { import all; export none; }; }
"#;

/// A daemon with settings of BGP alone, to a router that is BIRD: from the first service to the
/// death of the daemon.
pub fn the_daemon_s_own_bgp_tells_bird(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let router = Bird::start(&stage.client, "10.1.2.1", ROUTER)?;
    let _settings = told(stage, SETTINGS)?;
    serve(stage)?;
    // "Network not found" is an error of birdc's.
    let attributes = || {
        router
            .run(&format!("show route for {VIP} all"))
            .unwrap_or_default()
    };
    let has = |what: &str| {
        wait_for(&format!("the route to have {what}"), PATIENCE, || {
            Ok(attributes().contains(what).then_some(()))
        })
        .map_err(|e| format!("{e}: {}", attributes()))
    };
    has("BGP.med: 50")?;
    has("(65001,100)")?;
    has("(65001, 7, 8)")?;
    check(
        stage.open(20)?.len() == 20,
        "clients reach the service by the route",
    )?;

    // A server less, a higher metric; none, no route.
    let drain = |stage: &Stage, server: &str| {
        stage
            .daemon
            .cli(&format!("service server drain {SERVICE} {server}"))
    };
    drain(stage, "10.1.2.10")?;
    has("BGP.med: 60")?;
    drain(stage, "10.1.2.11")?;
    wait_for_route(stage, false)?;
    for server in ["10.1.2.10", "10.1.2.11"] {
        stage
            .daemon
            .cli(&format!("service server set {SERVICE} {server} --state up"))?;
    }
    has("BGP.med: 50")?;

    over_an_upgrade(stage, &router)?;
    drain(stage, "10.1.2.10")?;
    has("BGP.med: 60")?;
    stage.daemon.cli(&format!(
        "service server set {SERVICE} 10.1.2.10 --state up"
    ))?;
    has("BGP.med: 50")?;

    // BIRD itself is gone: another one.
    let first = bird_of(stage)?;
    testkit::process::run(&["kill", "-KILL", &first.to_string()])?;
    wait_for("another BIRD", PATIENCE, || {
        Ok(bird_of(stage).ok().filter(|pid| *pid != first))
    })?;
    has("BGP.med: 50")?;

    // The daemon is killed: the kernel ends its BIRD, which closes the session.
    let second = bird_of(stage)?;
    let begin = Instant::now();
    testkit::process::run(&["kill", "-KILL", &stage.daemon.pid().to_string()])?;
    wait_for_route(stage, false)?;
    check(
        begin.elapsed() < Duration::from_secs(10),
        "long before the hold time of 240 s is over",
    )?;
    wait_for("its BIRD to be gone", PATIENCE, || {
        Ok((!running(second)).then_some(()))
    })?;

    // The next daemon, which stops as it should: the route goes while it still balances.
    stage.daemon.kill_and_restart()?;
    wait_for_route(stage, true)?;
    let third = bird_of(stage)?;
    stage.daemon.stop()?;
    wait_for_route(stage, false)?;
    check(!running(third), "it has taken its BIRD along")?;
    check(
        !stage.daemon.dir().join("bgp").exists(),
        "and the files of it, one of which has a password",
    )
}

/// By a daemon that may do what the shipped unit lets it: it cannot become BIRD's user, and BIRD
/// may do what the daemon may. The port of BGP is below 1024.
pub fn the_unit_s_daemon_speaks_bgp(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let _router = Bird::start(&stage.client, "10.1.2.1", ROUTER)?;
    let told = Told::with(SETTINGS)?;
    let owner = Some(rustix::process::Uid::from_raw(65_534));
    let given = rustix::fs::chown(told.file.path(), owner, None);
    given.map_err(|e| format!("{}: {e}", told.file.path().display()))?;
    stage.restart_unprivileged(&["--balance-bgp", told.path()])?;
    serve(stage)
}

/// Another program has BGP's port, so that BIRD gives the session up: the daemon says that nobody
/// hears of addresses, and they are announced when the port is free.
pub fn a_session_that_bird_gives_up_is_told_and_tried_again(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let _router = Bird::start(&stage.client, "10.1.2.1", ROUTER)?;
    let other = Web::serve(&stage.balancer, 179, "other")?;
    let settings = Told::with(&SETTINGS.replace("hold = 240", "hold = 3"))?;
    let metrics = ["--metrics", "unix:{dir}/metrics.sock"];
    stage.restart(&[&settings.options()[..], &metrics].concat())?;
    stage.client.ok(&format!("ip route del {VIP}"))?;
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    let socket = stage
        .daemon
        .dir()
        .join("metrics.sock")
        .display()
        .to_string();
    let state = |number: u8| -> Result<bool> {
        let words = [
            "curl",
            "-sS",
            "--unix-socket",
            &socket,
            "http://localhost/metrics",
        ];
        let page = testkit::process::run(&words)?;
        let series = format!("butterfly_bgp_session_state{{neighbour=\"10.1.2.1\"}} {number}");
        Ok(page.lines().any(|line| line == series))
    };
    let warnings = |stage: &Stage| -> Result<String> {
        Ok(stage.daemon.json("status")?["warnings"].to_string())
    };
    let missed = "the BGP session with 10.1.2.1 (AS 65002) is not established, and no address is \
                  announced by it: Down, Error: No listening socket";
    wait_for("a warning of the session", PATIENCE, || {
        Ok((warnings(stage)?.contains(missed) && state(0)?).then_some(()))
    })
    .map_err(|e| format!("{e}: {}", warnings(stage).unwrap_or_default()))?;
    let (health, told) = stage.daemon.health()?;
    check(
        health.is_empty() && told.contains(missed),
        &format!("health prints {health} and warns: {told}"),
    )?;
    drop(other);
    wait_for_route(stage, true)?;
    wait_for("the session to be told as established", PATIENCE, || {
        Ok((state(6)? && !warnings(stage)?.contains("BGP")).then_some(()))
    })
}

/// Another program takes the daemon's place, or fails to when it had taken up all: its BIRD goes
/// on, and so does the session with the router, which hears of nothing.
fn over_an_upgrade(stage: &mut Stage, router: &Bird) -> Result<()> {
    let heard = || -> Result<Vec<String>> {
        let all = router.run("show protocols all daemon")?;
        // That it is up, and how often it has heard of routes: a new session counts anew. (Since
        // when it is up moves by milliseconds where the host's clock is adjusted.)
        let state = all.contains("Established").then_some("Established");
        let counts = all.lines().filter(|line| line.contains("Import "));
        Ok(state.into_iter().chain(counts).map(str::to_owned).collect())
    };
    let (bird, before) = (bird_of(stage)?, heard()?);
    // "Import withdraws: 1 ...": a new session would have heard of none.
    let withdrawn = before
        .last()
        .and_then(|line| line.split_whitespace().nth(2));
    check(
        before.len() == 3 && before[0] == "Established" && withdrawn == Some("1"),
        &format!("the router tells of its session: {before:?}"),
    )?;
    let fails = failing(&stage.daemon)?;
    for _ in 0..3 {
        let refused = stage.daemon.cli(&format!("upgrade {fails}")).err();
        let refused = refused.unwrap_or_default();
        check(refused.contains("it had taken up all"), &refused)?;
        stage.daemon.upgrade()?;
        check(bird_of(stage)? == bird, "BIRD goes on")?;
        let now = heard()?;
        check(
            now == before,
            &format!("the router has heard something:\n{before:?}\n{now:?}"),
        )?;
    }
    let log = stage.daemon.log();
    check(!log.contains("BGP: "), &format!("nothing failed:\n{log}"))
}

/// The balancer's host says nothing any more, and closes nothing: BFD tells the router long before
/// the hold time is over.
pub fn bfd_misses_a_host_that_says_nothing(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let _router = Bird::start(&stage.client, "10.1.2.1", ROUTER)?;
    let _settings = told(stage, &format!("{SETTINGS}bfd = yes\n"))?;
    serve(stage)?;
    let pid = bird_of(stage)?.to_string();
    let status = || _router.run("show bfd sessions");
    wait_for("BFD to be up", PATIENCE, || {
        Ok(status()?.contains("Up").then_some(()))
    })
    .map_err(|e| format!("{e}: {}", status().unwrap_or_default()))?;
    testkit::process::run(&["kill", "-STOP", &pid])?;
    let done = wait_for_route(stage, false);
    testkit::process::run(&["kill", "-CONT", &pid])?;
    done
}

/// Settings that cannot be are refused at the start, with a sentence.
pub fn settings_of_bgp_that_cannot_be_are_refused(stage: &mut Stage) -> Result<()> {
    let wrong = told(stage, &SETTINGS.replace("as = 65002", "as = 0"));
    let error = wrong.err().ok_or("a daemon with such settings starts")?;
    check(
        error.contains("[neighbour 10.1.2.1] as = '0': it is reserved"),
        &format!("the daemon says why: {error}"),
    )
}

/// A file of settings, which is there as long as this is.
pub struct Told {
    file: tempfile::NamedTempFile,
}

impl Told {
    fn with(text: &str) -> Result<Told> {
        let failed = |e: std::io::Error| format!("a file with settings: {e}");
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        std::fs::write(file.path(), text).map_err(failed)?;
        Ok(Told { file })
    }

    fn path(&self) -> &str {
        self.file.path().to_str().unwrap_or_default()
    }

    fn options(&self) -> Vec<&str> {
        [&["--balance-bgp", self.path()][..], &LASTING].concat()
    }
}

/// The daemon anew, with these settings of BGP.
pub fn told(stage: &mut Stage, text: &str) -> Result<Told> {
    let told = Told::with(text)?;
    stage.restart(&told.options())?;
    Ok(told)
}

/// A service, whose address the client knows of nobody else.
pub fn serve(stage: &Stage) -> Result<()> {
    stage.client.ok(&format!("ip route del {VIP}"))?;
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    wait_for_route(stage, true)
}

pub fn wait_for_route(stage: &Stage, expected: bool) -> Result<()> {
    let what = format!("the client's route by the balancer to be there: {expected}");
    wait_for(&what, PATIENCE, || {
        let route = stage.client.ok(&format!("ip route show {VIP}"))?;
        let is_it = match expected {
            true => route.contains(" via 10.1.2.3 "),
            false => route.is_empty(),
        };
        Ok(is_it.then_some(()))
    })
}

/// The daemon's BIRD: who listens on its control socket.
pub fn bird_of(stage: &Stage) -> Result<u32> {
    let control = stage.daemon.dir().join("bgp/control");
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", control.display());
    let stream = UnixStream::connect(&control).map_err(|e| failed(&e))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|e| failed(&e))?;
    Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
}

pub fn running(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
