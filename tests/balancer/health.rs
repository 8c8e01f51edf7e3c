//! Health: found out through the service's own address.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use butterfly_tests::lan::take_vip;
use butterfly_tests::web::Web;
use testkit::image::repository;
use testkit::process::{Process, holds_nothing, readers};
use testkit::{PATIENCE, Result, wait_for};

use crate::stage::{SERVICE, Server, Stage, VIP};

/// Checks ask as a client does: a server without the address fails, and a service without servers
/// is withdrawn.
pub fn health_is_asked_through_the_vip(stage: &mut Stage) -> Result<()> {
    // The third server works, but has not got the address.
    stage.servers[2]
        .host
        .ok(&format!("ip addr del {VIP}/32 dev lo"))?;
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    stage.restart(&["--check-programs", "/usr/bin"])?;
    let watch = watch(stage, dir.path())?;
    stage.daemon.cli(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12 --min-healthy 2 \
         --check http --check-path / --check-interval 500 --check-timeout 500 --rise 2 --fall 2"
    ))?;
    stage.healths_become(&["HEALTHY", "HEALTHY", "UNHEALTHY"])?;
    check(
        stage.open(100)?.to("s2") == 0,
        "a server that is not healthy gets no flows",
    )?;
    // It gets the address.
    take_vip(&stage.servers[2].host, VIP)?;
    stage.healths_become(&["HEALTHY", "HEALTHY", "HEALTHY"])?;
    check(stage.open(200)?.to("s2") > 20, "it gets its share")?;
    one_reader_after_the_other(stage, &watch)?;
    // Checks go through the tunnel, which none of them takes off.
    stage
        .daemon
        .cli(&format!("service set {SERVICE} --encapsulation ipip"))?;
    stage.healths_become(&["UNHEALTHY"; 3])?;
    stage
        .daemon
        .cli(&format!("service set {SERVICE} --encapsulation l2"))?;
    stage.healths_become(&["HEALTHY"; 3])?;
    // Two servers stop: below its minimum the service is withdrawn.
    stage.servers[0].web = None;
    stage.servers[1].web = None;
    stage.healths_become(&["UNHEALTHY", "UNHEALTHY", "HEALTHY"])?;
    let show = stage.daemon.cli(&format!("service show {SERVICE}"))?;
    check(
        show.contains("withdrawn"),
        &format!("the service is withdrawn:\n{show}"),
    )?;
    check(
        show.contains("connection refused"),
        &format!("the reason is said:\n{show}"),
    )?;
    // All of it was told to whoever watches, and is in the log.
    for told in [
        "server 10.1.2.12 is unhealthy no answer within 500 ms",
        "server 10.1.2.12 is healthy",
        "service 192.168.101.1:80/tcp is in service: 2 healthy, at least 2",
        "address 192.168.101.1 is announced",
        "server 10.1.2.10 is unhealthy no TCP connection: connection refused",
        "service 192.168.101.1:80/tcp is withdrawn: 1 healthy, at least 2",
        "address 192.168.101.1 is withdrawn",
    ] {
        wait_for(&format!("an event '{told}'"), PATIENCE, || {
            Ok(watch.log().contains(told).then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", watch.log()))?;
    }
    let log = stage.daemon.log();
    for logged in [
        "server 10.1.2.10 is not healthy: ",
        "address 192.168.101.1 is withdrawn",
    ] {
        check(log.contains(logged), &format!("the log says '{logged}'"))?;
    }
    // Other checks, against what is there.
    for kind in ["tcp", "command --check-command /usr/bin/true"] {
        stage
            .daemon
            .cli(&format!("service set {SERVICE} --check {kind}"))?;
        let expected = if kind == "tcp" {
            "UNHEALTHY"
        } else {
            "HEALTHY"
        };
        stage.healths_become(&[expected, expected, "HEALTHY"])?;
    }
    Ok(())
}

/// A daemon that is started again knows no connection, and its servers answer their first checks
/// one after the other: nobody's packets go elsewhere meanwhile.
pub fn checks_keep_connections_over_a_restart(stage: &mut Stage) -> Result<()> {
    let add = format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 10.1.2.12 --check tcp --check-interval \
         500"
    );
    stage.daemon.cli(&add)?;
    stage.healths_become(&["HEALTHY"; 3])?;
    let mut connections = stage.open(300)?;
    check(
        (0..3).all(|n| connections.to(&format!("s{n}")) > 50),
        "all servers have their share",
    )?;
    for round in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        // Their clients speak all the time: what is sent while nobody balances comes again while
        // the servers are being asked.
        let spoken = std::thread::scope(|scope| {
            let asking = scope.spawn(|| connections.ask_until(&stop));
            let mut restart = || {
                stage.restart(&[])?;
                stage.daemon.cli(&add)?;
                stage.healths_become(&["HEALTHY"; 3])
            };
            let restarted = restart();
            stop.store(true, Ordering::Relaxed);
            let asked = asking.join().map_err(|_| "who asks panicked")?;
            restarted.and(asked)
        });
        spoken.map_err(|e| format!("restart {round}: {e}"))?;
    }
    connections.ask_all()
}

/// The interface of checks is the host's: whoever sets it down takes no server from anybody, and it
/// is set up again.
pub fn an_interface_of_checks_that_is_down_is_no_server_s_failure(stage: &mut Stage) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let watch = two_checked_servers(stage, dir.path())?;
    let interface = format!("bfc{}", stage.daemon.pid());
    for time in 1..=2 {
        stage
            .balancer
            .ok(&format!("ip link set {interface} down"))?;
        let down = format!(
            "no health check can be made: the interface {interface} of health checks is down"
        );
        said_again(stage, &down, time)?;
        let flags = stage.balancer.ok(&format!("ip -o link show {interface}"))?;
        check(flags.contains(",UP"), &format!("it is set up: {flags}"))?;
        checks_are_made(stage, &watch, time)?;
    }
    Ok(())
}

/// Whoever removes it does no more harm: another one is made, and until that is done the daemon
/// says what is missing. Here that takes as long as the process does that makes namespaces.
pub fn an_interface_of_checks_that_is_gone_is_made_again(stage: &mut Stage) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let watch = two_checked_servers(stage, dir.path())?;
    let interface = format!("bfc{}", stage.daemon.pid());
    let gone = format!("the interface {interface} of health checks is gone");
    for time in 1..=2 {
        let still = stage.daemon.namespace_helper_stands_still()?;
        stage.balancer.ok(&format!("ip link del {interface}"))?;
        wait_for("a warning of what is gone", PATIENCE, || {
            let warnings = stage.daemon.json("status")?["warnings"].to_string();
            let (health, told) = stage.daemon.health()?;
            check(health.is_empty(), &format!("health prints {health}"))?;
            let is_told = warnings.contains(&gone) && told.contains(&gone);
            Ok(is_told.then_some(()))
        })?;
        // Checks were due meanwhile.
        let not_made = format!("a health check cannot be made, and will be tried again: {gone}");
        wait_for("a check that is not made", PATIENCE, || {
            Ok((stage.daemon.log().matches(&not_made).count() >= time).then_some(()))
        })?;
        stage.healths_become(&["HEALTHY"; 2])?;
        drop(still);
        said_again(stage, &format!("no health check can be made: {gone}"), time)?;
        checks_are_made(stage, &watch, time)?;
        let warnings = stage.daemon.json("status")?["warnings"].to_string();
        check(
            !warnings.contains(&interface),
            &format!("nothing is wrong any more: {warnings}"),
        )?;
    }
    Ok(())
}

/// Two healthy servers, one failure of which is enough; and who watches them.
fn two_checked_servers(stage: &Stage, dir: &Path) -> Result<Process> {
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 --check tcp --check-interval 1000 \
         --check-timeout 1000 --rise 1 --fall 1"
    ))?;
    stage.healths_become(&["HEALTHY"; 2])?;
    watch(stage, dir)
}

/// The log says what is wrong, and then so often in all that it is so no more.
fn said_again(stage: &Stage, wrong: &str, times: usize) -> Result<()> {
    wait_for(&format!("'{wrong}', and its end"), PATIENCE, || {
        let log = stage.daemon.log();
        let ends = log.matches("health checks are made again").count();
        Ok((log.contains(wrong) && ends >= times).then_some(()))
    })
}

/// No server was taken for ill but by this, so often in all: one stops and is found out, and comes
/// back.
fn checks_are_made(stage: &mut Stage, watch: &Process, times: usize) -> Result<()> {
    let unhealthy = || watch.log().matches("is unhealthy").count();
    check(
        unhealthy() == times - 1,
        &format!("all have stayed healthy:\n{}", watch.log()),
    )?;
    stage.servers[0].web = None;
    stage.healths_become(&["UNHEALTHY", "HEALTHY"])?;
    stage.servers[0].web = Some(Web::serve(&stage.servers[0].host, 80, "s0")?);
    stage.healths_become(&["HEALTHY"; 2])?;
    wait_for("that to be told", PATIENCE, || {
        Ok((unhealthy() == times).then_some(()))
    })
}

/// Answers are parsed by a process that holds nothing; where it ends, the next one goes on. That
/// says nothing of a server: one failure of its own would be enough.
fn one_reader_after_the_other(stage: &mut Stage, watch: &Process) -> Result<()> {
    stage
        .daemon
        .cli(&format!("service set {SERVICE} --fall 1"))?;
    let unhealthy = || watch.log().matches("is unhealthy").count();
    let before = unhealthy();
    let pid = stage.daemon.pid();
    for _ in 0..4 {
        let now = readers(pid);
        let [reader] = now[..] else {
            return Err(format!("not one reader, but {now:?}"));
        };
        testkit::process::run(&["kill", "-9", &reader.to_string()])?;
        // A moment after it has begun it has given up all.
        wait_for("the next reader, that holds nothing", PATIENCE, || {
            let now = readers(pid);
            let is_next = |next: &u32| *next != reader && holds_nothing(*next);
            Ok((now.len() == 1 && now.iter().all(is_next)).then_some(()))
        })?;
    }
    // A few rounds.
    std::thread::sleep(Duration::from_secs(2));
    let log = watch.log();
    check(unhealthy() == before, &format!("all stay healthy:\n{log}"))?;
    stage
        .daemon
        .cli(&format!("service set {SERVICE} --fall 2"))?;
    stage.healths_become(&["HEALTHY"; 3])
}

fn watch(stage: &Stage, dir: &Path) -> Result<Process> {
    let (butterfly, endpoint) = (program("butterfly"), stage.daemon.endpoint());
    let words = [
        &butterfly,
        "-e",
        &endpoint,
        "service",
        "watch",
        "--snapshot",
    ];
    let process = Process::start("watch", &words, &dir.join("watch.log"))?;
    wait_for("service watch to begin", PATIENCE, || {
        Ok(process
            .log()
            .contains("that is all there is now")
            .then_some(()))
    })?;
    Ok(process)
}

/// HTTP, HTTPS, DNS by both transports and a program, each against a server that is well, one that
/// listens and is ill, and one that is well and has not got the service's address.
pub fn every_kind_of_check_tells(stage: &mut Stage) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let [well, ill, without, _] = stage.servers.as_slice() else {
        return Err("the stage has four servers".into());
    };
    let _servers = [
        serve(well, dir.path(), "well", VIP)?,
        serve(ill, dir.path(), "wrong", VIP)?,
        serve(without, dir.path(), "well", "0.0.0.0")?,
    ];
    without.host.ok(&format!("ip addr del {VIP}/32 dev lo"))?;
    let greeted = command(dir.path())?;
    // No program is run unless the administrator says of which folder.
    let asked =
        format!("service add {VIP}:7 --server 10.1.2.10 --check command --check-command {greeted}");
    let refused = stage.daemon.cli(&asked).err().unwrap_or_default();
    check(
        refused.contains("this daemon runs no programs (--check-programs"),
        &format!("a program is refused: {refused}"),
    )?;
    stage.restart(&[
        "--check-programs",
        &dir.path().join("programs").display().to_string(),
    ])?;
    let other =
        format!("service add {VIP}:7 --server 10.1.2.10 --check command --check-command /bin/sh");
    let refused = stage.daemon.cli(&other).err().unwrap_or_default();
    check(
        refused.contains("'/bin/sh' is not in "),
        &format!("another one is refused: {refused}"),
    )?;
    let http = "--check-host shop.example.org --check-path /healthz --check-status 204";
    let name = "--check-name up.example.org --check-type AAAA";
    // What is asked, what the ill one is told to be, and whether it is found out.
    let kinds = [
        ("8080", format!("--check http {http}"), "HTTP status 500"),
        ("443", format!("--check https {http}"), "HTTP status 500"),
        ("53/udp", format!("--check dns {name}"), "DNS answer 2: "),
        (
            "53/tcp",
            format!("--check dns-tcp {name}"),
            "DNS answer 2: ",
        ),
        (
            "7",
            format!("--check command --check-command {greeted}"),
            "ended with exit status: 1",
        ),
        // It takes connections.
        ("all", "--check tcp --check-port 8080".to_owned(), ""),
    ];
    for (port, asked, _) in &kinds {
        stage.daemon.cli(&format!(
            "service add {VIP}:{port} --server 10.1.2.10 10.1.2.11 10.1.2.12 --check-interval 1000 \
             --fall 1 {asked}"
        ))?;
    }
    for (port, asked, why) in &kinds {
        let service = format!("{VIP}:{port}");
        let ill = if why.is_empty() {
            "HEALTHY"
        } else {
            "UNHEALTHY"
        };
        stage
            .healths_of_become(&service, &["HEALTHY", ill, "UNHEALTHY"])
            .map_err(|e| format!("{asked}: {e}"))?;
        let shown = stage.daemon.cli(&format!("service show {service}"))?;
        check(
            shown.contains(why),
            &format!("{asked} says '{why}':\n{shown}"),
        )?;
    }
    // Another question than the server has an answer to: the host, the path, the status and the
    // name are asked for.
    for (port, option) in [
        ("8080", "--check-host www.example.org"),
        ("443", "--check-path /"),
        ("53/udp", "--check-name down.example.org"),
        ("53/tcp", "--check-name down.example.org"),
    ] {
        let service = format!("{VIP}:{port}");
        stage
            .daemon
            .cli(&format!("service set {service} {option}"))?;
        stage
            .healths_of_become(&service, &["UNHEALTHY"; 3])
            .map_err(|e| format!("{option}: {e}"))?;
    }
    Ok(())
}

/// All that is asked for, on a server.
fn serve(server: &Server, dir: &Path, mood: &str, address: &str) -> Result<Process> {
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    let (certificate, key) = (certificate.display(), key.display());
    if !dir.join("key.pem").exists() {
        server.host.ok(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj \
             /CN=anybody -keyout {key} -out {certificate}"
        ))?;
    }
    let script = repository().join("tests/health_servers.py");
    let process = server.host.start(
        "health-servers",
        &format!(
            "python3 {} {certificate} {key} {mood} {address}",
            script.display()
        ),
    )?;
    wait_for("the servers of health checks", PATIENCE, || {
        Ok(process.log().contains("listening").then_some(()))
    })
    .map_err(|e| format!("{e}\n{}", process.log()))?;
    Ok(process)
}

/// A program that speaks to what it is told to check, by bash's own means.
fn command(dir: &Path) -> Result<String> {
    let path = dir.join("programs/greeted");
    let script = "#!/bin/bash\n\
                  [ \"$BUTTERFLY_VIP $BUTTERFLY_PORT $BUTTERFLY_PROTOCOL\" = '192.168.101.1 7 tcp' \
                  ] || exit 2\n\
                  exec 3<>\"/dev/tcp/${BUTTERFLY_CHECK_ADDRESS/://}\" || exit 3\n\
                  read -r said <&3\n\
                  [ \"$said\" = hello ]\n";
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    std::fs::create_dir(dir.join("programs")).map_err(failed)?;
    std::fs::write(&path, script).map_err(failed)?;
    // It runs as nobody.
    for file in [dir, &dir.join("programs"), &path] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(path.display().to_string())
}
