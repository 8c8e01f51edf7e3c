//! Announcing: packaging/balance-hook puts a service's address into the kernel's routes, from where
//! a routing daemon, BIRD or FRR, tells a router about it; and takes it out again.

use butterfly_tests::bird::{self, Bird};
use butterfly_tests::lab::check;
use testkit::frr::{self, Speaker};
use testkit::image::repository;
use testkit::{PATIENCE, Result, wait_for};

use crate::stage::{SERVICE, Stage, VIP};

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

/// By two BIRDs.
pub fn by_bird(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    let _teller = Bird::start(&stage.balancer, "10.1.2.3", TELLER)?;
    let _hearer = Bird::start(&stage.client, "10.1.2.1", HEARER)?;
    announces(stage)
}

/// By two FRRs, the balancer's as packaging/balance-hook says it is to be set up.
pub fn by_frr(stage: &mut Stage) -> Result<()> {
    if !frr::is_here() {
        eprintln!("skipped: there is no FRR here (tools/setup.sh soak installs Debian's)");
        return Ok(());
    }
    let (us, them) = ((65001, "10.1.2.3"), (65002, "10.1.2.1"));
    let tells = " address-family ipv4 unicast\n  redistribute kernel route-map services\n exit-address-family\n\
                 ip prefix-list services permit 0.0.0.0/0 ge 32\n\
                 route-map services permit 10\n match ip address prefix-list services\n";
    let _teller = Speaker::start(&stage.balancer, us, them, tells)?;
    let _hearer = Speaker::start(&stage.client, them, us, "")?;
    announces(stage)
}

/// An address comes into the routers' tables with its service, and leaves them when too few servers
/// are left.
fn announces(stage: &mut Stage) -> Result<()> {
    let hook = repository().join("packaging/balance-hook");
    stage.restart(&["--balance-hook", &hook.display().to_string()])?;
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
    stage.tell(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11 --min-healthy 2"
    ))?;
    heard(stage, true)?;
    check(
        stage.open(20)?.len() == 20,
        "clients reach the service by the route they heard of",
    )?;
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
