//! Health: found out through the service's own address.

use butterfly_tests::lab::check;
use butterfly_tests::lan::take_vip;
use testkit::Result;

use crate::stage::{SERVICE, Stage, VIP};

/// As a client asks: a server without the address fails, and a service without servers is withdrawn.
pub fn is_asked_through_the_vip(stage: &mut Stage) -> Result<()> {
    // The third server works, but has not got the address.
    stage.servers[2]
        .host
        .ok(&format!("ip addr del {VIP}/32 dev lo"))?;
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
    // Other checks, against what is there.
    for kind in ["tcp", "command --check-command /bin/true"] {
        stage
            .daemon
            .cli(&format!("service set {SERVICE} --check {kind}"))?;
        let expected = if kind == "tcp" { "UNHEALTHY" } else { "HEALTHY" };
        stage.healths_become(&[expected, expected, "HEALTHY"])?;
    }
    Ok(())
}
