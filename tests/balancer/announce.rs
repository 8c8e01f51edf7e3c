//! Announcing: packaging/balance-hook puts a service's address into the kernel's routes, from where a routing daemon, here
//! BIRD, tells a router about it; and takes it out again.

use std::path::Path;

use butterfly_tests::lab::check;
use testkit::image::repository;
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::{Result, wait_for};

use crate::stage::{PATIENCE, SERVICE, Stage, VIP};

/// What the balancer's host tells: routes of the hook, and nothing else.
const TELLER: &str = r#"
protocol kernel { learn; ipv4 { import filter { if krt_source = 66 then accept; reject; }; export none; }; }
protocol bgp { local 10.1.2.3 as 65001; neighbor 10.1.2.1 as 65002; connect retry time 1; connect delay time 1;
               ipv4 { import none; export all; next hop self; }; }
"#;
/// What the client's host hears becomes its routes.
const HEARER: &str = r#"
protocol kernel { ipv4 { import none; export all; }; }
protocol bgp { local 10.1.2.1 as 65002; neighbor 10.1.2.3 as 65001; connect retry time 1; connect delay time 1;
               ipv4 { import all; export none; }; }
"#;

/// An address comes into the routers' tables with its service, and leaves them when too few servers are left.
pub fn by_a_routing_daemon(stage: &mut Stage) -> Result<()> {
    if testkit::process::run(&["bird", "--version"]).is_err() {
        eprintln!("skipped: there is no BIRD here (tools/setup.sh installs Debian's)");
        return Ok(());
    }
    let hook = repository().join("packaging/balance-hook");
    stage.restart(&["--balance-hook", &hook.display().to_string()])?;
    // Nobody told the client by hand.
    stage.client.ok(&format!("ip route del {VIP}"))?;
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let _teller = bird(&stage.balancer, dir.path(), "teller", TELLER)?;
    let _hearer = bird(&stage.client, dir.path(), "hearer", HEARER)?;
    let heard = |stage: &Stage, expected: &str| {
        wait_for(
            &format!("the client's route to be '{expected}'"),
            PATIENCE,
            || {
                let route = stage.client.ok(&format!("ip route show {VIP}"))?;
                let via = route.split(" dev ").next().unwrap_or_default().trim();
                Ok((via == expected).then_some(()))
            },
        )
    };
    let by_way = format!("{VIP} via 10.1.2.3");
    stage.tell(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 --min-healthy 2"
    ))?;
    heard(stage, &by_way)?;
    check(
        stage.open(20)?.len() == 20,
        "clients reach the service by the route they heard of",
    )?;
    stage
        .daemon
        .cli(&format!("service server drain {SERVICE} 10.1.2.10"))?;
    heard(stage, "")?;
    stage
        .daemon
        .cli(&format!("service server set {SERVICE} 10.1.2.10 --state up"))?;
    heard(stage, &by_way)?;
    // A daemon that stops takes its addresses along.
    stage.daemon.stop()?;
    heard(stage, "")?;
    check(
        stage.balancer.ok("ip route show proto 66")?.is_empty(),
        "and leaves no route behind",
    )
}

fn bird(host: &Namespace, dir: &Path, name: &str, protocols: &str) -> Result<Process> {
    let (config, socket) = (dir.join(format!("{name}.conf")), dir.join(format!("{name}.ctl")));
    let id = if name == "teller" { "10.1.2.3" } else { "10.1.2.1" };
    let text = format!("router id {id};\nprotocol device {{ scan time 1; }}\n{protocols}");
    std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    host.start(
        name,
        &format!("bird -f -c {} -s {}", config.display(), socket.display()),
    )
}
