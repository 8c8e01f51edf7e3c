//! `butterfly support-bundle` of a daemon that has secrets: what an issue needs is in it, and the
//! secrets are not.

use butterfly_tests::Daemon;
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use std::os::unix::fs::PermissionsExt;
use testkit::{Result, process};

fn main() {
    run_each(trials![with_a_daemon_and_without])
}

const SECRET: &str = "correct-horse-battery";

fn with_a_daemon_and_without() -> Result<()> {
    let failed = |e: std::io::Error| e.to_string();
    let mut daemon = Daemon::start(&[])?;
    daemon.cli(
        "nic add --id vnic_7 --mac 02:00:00:00:00:07 --vni 7 --ip 10.0.0.7 --type bench \
         --btype ICMP_RCV_LIKE",
    )?;
    daemon.cli(&format!(
        "service add 198.51.100.7:80 --server 10.1.2.10 --check http --check-path \
         /up?token={SECRET}"
    ))?;
    let dir = tempfile::tempdir().map_err(failed)?;
    let settings = dir.path().join("butterflyd.ini");
    let text = format!("[general]\nip = 192.0.2.1\n[security]\nv0-password = {SECRET}\n");
    std::fs::write(&settings, text).map_err(failed)?;
    let bundle = |name: &str| format!("{}/{name}.tar.gz", dir.path().display());
    let write = |daemon: &Daemon, name: &str| {
        daemon.json(&format!(
            "support-bundle {} --flows --settings {}",
            bundle(name),
            settings.display()
        ))
    };
    let told = write(&daemon, "first")?;
    check(
        told["file"] == bundle("first").as_str(),
        &format!("the file is named: {told}"),
    )?;
    let mode = std::fs::metadata(bundle("first"))
        .map_err(failed)?
        .permissions()
        .mode();
    check(mode & 0o777 == 0o600, "others cannot read it")?;
    let unpacked = dir.path().join("unpacked").display().to_string();
    process::run(&["mkdir", &unpacked])?;
    process::run(&["tar", "-xzf", &bundle("first"), "-C", &unpacked])?;
    let read = |name: &str| {
        std::fs::read_to_string(format!("{unpacked}/butterfly-support/{name}"))
            .map_err(|e| format!("{name}: {e}; {told}"))
    };
    for (name, expected) in [
        ("config.json", "vnic_7"),
        ("status.json", "\"version\""),
        ("services.json", "/up?(left out)"),
        ("butterflyd.ini", "v0-password =(left out)"),
        ("doctor.json", "kernel_version"),
        ("workers.json", "busy_ns"),
        ("flows.jsonl", ""),
        ("links", "lo:"),
        ("kernel", "Linux"),
    ] {
        let text = read(name)?;
        check(
            text.contains(expected),
            &format!("{name} has {expected}: {text}"),
        )?;
    }
    let found = process::output(&["grep", "-r", SECRET, &unpacked])?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    check(found.is_empty(), &format!("no secret is in it:\n{found}"))?;
    let again = write(&daemon, "first").err().unwrap_or_default();
    check(
        again.contains("cannot be made"),
        &format!("a file that is there stays: {again}"),
    )?;

    daemon.stop()?;
    let told = write(&daemon, "second")?;
    let missing = told["missing"].to_string();
    check(
        missing.contains("the daemon's files"),
        &format!("what is missing is told: {told}"),
    )
}
