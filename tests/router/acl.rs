//! The daemon's router goes by the access list of a file: from the first packet on, when the file
//! changes, and when it loses its interfaces and gets others.

use std::path::Path;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::number;
use butterfly_tests::lab::check;
use testkit::Result;
use testkit::routed_hosts::WEST;

use super::Stage;

const PINGS: &str = "default deny\nallow in east0 out west0 ipv4 proto icmp\nallow in west0\n";

/// Which of the two addresses of the west answer the east.
fn answered(stage: &Stage) -> Result<[bool; 2]> {
    let [four, six] = WEST.map(|address| {
        let ping = format!("ping -q -c 1 -W 1 {address}");
        stage.hosts.east.succeeds(&ping)
    });
    Ok([four?, six?])
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}

pub fn a_file_s_rules_are_followed(stage: &mut Stage) -> Result<()> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("acl");
    let words = file.display().to_string();
    check(answered(stage)? == [true, true], "the kernel forwards")?;
    let options = [
        "--router-acl",
        &words,
        "--router",
        "east0",
        "--router",
        "west0",
    ];
    let host = Some(stage.hosts.router.pid());
    write(&file, "default deny\nallow proto tpc\n")?;
    let refused = Daemon::start_on(host, &options).err().unwrap_or_default();
    check(
        refused.contains("line 2: 'tpc' is no protocol"),
        &format!("a file with a mistake is no start: {refused}"),
    )?;
    write(&file, PINGS)?;
    stage.daemon = Daemon::start_on(host, &options)?;
    check(
        answered(stage)? == [true, false],
        "IPv4's echoes alone pass",
    )?;
    let denied = stage.counter("east0", "ipv6", "denied")?;
    check(denied >= 1, &format!("{denied} packets were denied"))?;
    let acl = stage.daemon.json("router show")?["acl"].clone();
    let rule = &acl["rules"][0];
    check(
        rule["rule"] == "allow ipv4 in east0 out west0 proto icmp"
            && number(&rule["packets"]) == Some(1)
            && number(&rule["bytes"]) == Some(84),
        &format!("the first rule took one echo request: {acl}"),
    )?;
    let default = &acl["default"];
    check(
        default["rule"] == "default deny" && number(&default["packets"]) >= Some(denied),
        &format!("no rule took the others: {acl}"),
    )?;
    let shown = stage.daemon.cli("router show")?;
    check(
        shown.contains("  allow ipv4 in east0 out west0 proto icmp")
            && shown.contains("default deny"),
        &format!("the rules are shown: {shown}"),
    )?;
    // A mistake changes nothing, and the log and the command say where it is.
    write(&file, "default allow\nallow from 10.1.0.0/33\n")?;
    let refused = stage.daemon.cli("reload").err().unwrap_or_default();
    check(
        refused.contains(&format!("{words}: line 2: ")),
        &format!("the mistake is named: {refused}"),
    )?;
    check(answered(stage)? == [true, false], "the rules stay")?;
    // They outlive the router's interfaces, without which it does not run.
    for name in ["east0", "west0"] {
        stage.daemon.cli(&format!("router del {name}"))?;
    }
    check(
        answered(stage)? == [true, true],
        "the kernel forwards again",
    )?;
    stage.take_both()?;
    check(
        answered(stage)? == [true, false],
        "the rules are in force again",
    )?;
    write(&file, "default deny\nallow ipv6\n")?;
    let said = stage.daemon.cli("reload")?;
    check(
        said.contains(&format!("{words}: 1 rules of the access list")),
        &format!("the file is read again: {said}"),
    )?;
    check(
        answered(stage)? == [false, true],
        "the new rules are in force",
    )
}
