//! The daemon's router goes by the access list of a file, or of the declared configuration: from
//! the first packet on, when that changes, and when it loses its interfaces and gets others.

use std::path::Path;
use std::time::Duration;

use butterfly_tests::Daemon;
use butterfly_tests::daemon::number;
use butterfly_tests::lab::check;
use testkit::routed_hosts::WEST;
use testkit::{Result, wait_for};

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

/// Interfaces come for which the compiled list has no room: the router goes on, by the rules as
/// they were, and says so until there is room.
pub fn a_list_that_finds_no_room_ends_nothing(stage: &mut Stage) -> Result<()> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("acl");
    let names: String = (0..300).map(|n| format!("allow in many{n}\n")).collect();
    write(&file, &format!("{PINGS}{names}"))?;
    let words = file.display().to_string();
    let host = Some(stage.hosts.router.pid());
    stage.daemon = Daemon::start_on(host, &["--router-acl", &words])?;
    stage.take_both()?;
    check(answered(stage)? == [true, false], "the rules are in force")?;
    let each = |change: &str| {
        let all = format!("for n in $(seq 0 299); do echo {change}; done | ip -batch -");
        stage.hosts.router.ok(&all)
    };
    let until = |what: &str, behind: bool| {
        wait_for(what, Duration::from_secs(30), || {
            let list = stage.daemon.json("router list")?;
            let why = list[0]["why"].as_str().unwrap_or_default();
            let is_behind = why.contains("more than there is room for");
            Ok((is_behind == behind).then_some(()))
        })
    };
    each("link add many$n type bridge")?;
    until("the trouble", true)?;
    check(answered(stage)? == [true, false], "the rules stay in force")?;
    check(
        stage.hosts.has_program("east0")?,
        "the interfaces are the router's",
    )?;
    each("link del many$n")?;
    until("the way out", false)?;
    check(answered(stage)? == [true, false], "the rules are in force")
}

pub fn a_declared_list_is_stored_and_taken_back(stage: &mut Stage) -> Result<()> {
    let host = Some(stage.hosts.router.pid());
    // An upgrade hands over by both.
    let options = ["--store", "{dir}/state", "--keeper", "{dir}/keeper"];
    stage.daemon = Daemon::start_on(host, &options)?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("declared.json");
    let apply = |stage: &Stage, acl: &str, options: &str| -> Result<String> {
        let interfaces = r#"[ { "name": "east0" }, { "name": "west0" } ]"#;
        let text = format!(r#"{{ "router": {{ "interfaces": {interfaces}{acl} }} }}"#);
        write(&file, &text)?;
        stage
            .daemon
            .cli(&format!("apply {} {options}", file.display()))
    };
    let pings = r#", "acl": { "default": "deny", "rules": [
        "allow in east0 proto 1 out west0", "allow in west0" ] }"#;
    let told = apply(stage, pings, "--dry-run")?;
    let lines = "+ router east0\n+ router west0\n+ router access list\n    \
                 + allow in east0 out west0 proto icmp\n    + allow in west0\n    \
                 ~ no list -> default deny\n";
    check(told == lines, &format!("what would change: {told}"))?;
    check(answered(stage)? == [true, true], "the kernel forwards")?;
    apply(stage, pings, "")?;
    check(
        answered(stage)? == [true, false],
        "IPv4's echoes alone pass",
    )?;
    let acl = stage.daemon.json("router show")?["acl"].clone();
    check(
        number(&acl["rules"][0]["packets"]) == Some(1),
        &format!("the first rule took one echo request: {acl}"),
    )?;
    let config = stage.daemon.json("config get")?;
    let shown = &config["router"]["acl"];
    check(
        shown["default"] == "deny" && shown["rules"][0] == "allow in east0 out west0 proto icmp",
        &format!("it is in the configuration: {config}"),
    )?;
    write(&file, &config.to_string())?;
    let again = stage.daemon.cli(&format!("apply {}", file.display()))?;
    check(
        again.is_empty(),
        &format!("which is what there is: {again}"),
    )?;
    // A mistake changes nothing, and says where it is.
    for (acl, why) in [
        (
            r#"{ "default": "deny", "rules": [ "allow", "allow proto tpc" ] }"#,
            "router: access list: rule 2 'allow proto tpc' is no rule: 'tpc' is no protocol",
        ),
        (
            r#"{ "rules": [ "allow" ] }"#,
            "router: access list: default '' is neither allow nor deny",
        ),
    ] {
        let refused = apply(stage, &format!(r#", "acl": {acl}"#), "");
        let refused = refused.err().unwrap_or_default();
        check(refused.contains(why), &format!("'{why}': {refused}"))?;
    }
    check(answered(stage)? == [true, false], "the rules stay")?;
    // A new process has it from the first packet on, and so has one that takes over.
    stage.daemon.stop_and_restart()?;
    check(answered(stage)? == [true, false], "it is in the store")?;
    stage.daemon.upgrade()?;
    check(answered(stage)? == [true, false], "it goes along")?;
    let revision = |stage: &Stage| -> Result<u64> {
        let history = stage.daemon.json("config history")?;
        number(&history["revisions"][0]["number"]).ok_or_else(|| history.to_string())
    };
    let before = revision(stage)?;
    let told = apply(
        stage,
        r#", "acl": { "default": "deny", "rules": [ "allow ipv6" ] }"#,
        "",
    )?;
    let changed = "~ router access list\n    + allow ipv6\n    \
                   - allow in east0 out west0 proto icmp\n    - allow in west0\n";
    check(told == changed, &format!("what has changed: {told}"))?;
    check(
        answered(stage)? == [false, true],
        "the new rules are in force",
    )?;
    let differs = stage.daemon.cli(&format!("config diff {before}"))?;
    check(
        differs == changed,
        &format!("the history has it: {differs}"),
    )?;
    stage.daemon.cli(&format!("config rollback {before}"))?;
    check(
        answered(stage)? == [true, false],
        "the rules of before are in force",
    )?;
    let told = apply(stage, "", "")?;
    check(
        told.starts_with("- router access list\n"),
        &format!("what is not declared goes: {told}"),
    )?;
    check(answered(stage)? == [true, true], "all is forwarded")?;
    // One of both is enough.
    let words = file.with_extension("acl").display().to_string();
    write(Path::new(&words), PINGS)?;
    stage.daemon = Daemon::start_on(host, &["--router-acl", &words])?;
    let refused = apply(stage, pings, "").err().unwrap_or_default();
    let why = format!("the access list is that of --router-acl {words}: ");
    check(refused.contains(&why), &format!("'{why}': {refused}"))
}
