//! What the daemon logs arrives: in a real journal of systemd's, with its fields, and at syslog's
//! socket. Both run in a mount namespace of the test's, where /run and /dev are its own.

use std::path::Path;

use butterfly_tests::lab::check;
use butterfly_tests::program;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::{Result, process};

fn main() {
    run_each(trials![the_journal_has_fields, syslog_has_lines])
}

/// Runs a shell script where /run is empty, with the daemon's program and a folder as `$1` and
/// `$2`.
fn apart(script: &str, folder: &Path) -> Result<String> {
    let begin = "set -e; exec 2>&1; mount -t tmpfs tmpfs /run; ";
    let folder = folder.display().to_string();
    let script = format!("{begin}{DAEMON}{script}");
    let (daemon, cli) = (program("butterflyd"), program("butterfly"));
    let words = [
        "timeout", "120", "unshare", "--mount", "bash", "-c", &script, "bash",
    ];
    process::run(&[&words[..], &[&daemon, &folder, &cli]].concat())
}

/// A daemon that makes a NIC, and stops. What it says itself is not looked at here.
const DAEMON: &str = r#"
until_is() { for i in $(seq 600); do eval "$1" && return; sleep 0.1; done; echo "not: $1"; exit 1; }
run() {
    "$1" -s "$2" --api unix:"$2"/api.sock -e ipc://"$2"/v0.sock 2>/dev/null &
    until_is "$3 -e unix:$2/api.sock status >/dev/null 2>&1"
    "$3" -e unix:"$2"/api.sock nic add --id vm1 --mac 52:54:00:00:00:01 --vni 7 >/dev/null
    kill $!
    wait $! || true
}
"#;

fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))
}

fn the_journal_has_fields() -> Result<()> {
    let dir = folder()?;
    let script = r#"
mkdir -p /run/systemd/journal /run/log/journal
# It wants one, which the namespaces that tests run in need not have.
mount -t cgroup2 cgroup2 /sys/fs/cgroup || true
printf '%032x\n' 42 > "$2"/machine-id
[ -e /etc/machine-id ] && mount --bind "$2"/machine-id /etc/machine-id
/lib/systemd/systemd-journald >/dev/null 2>&1 &
journald=$!
until_is '[ -S /run/systemd/journal/socket ] && ls -d /run/log/journal/*/'
run "$1" "$2" "$3"
read_it() { journalctl -D /run/log/journal/* -q --no-pager SYSLOG_IDENTIFIER=butterflyd "$@"; }
until_is 'read_it -o cat | grep -q "^stopped"'
echo "all:"; read_it -o cat
echo "of vm1:"; read_it -o json BUTTERFLY_NIC=vm1
kill $journald
wait $journald || true
"#;
    let said = apart(script, dir.path())?;
    let (all, of_nic) = said.split_once("of vm1:").ok_or_else(|| said.clone())?;
    check(
        all.contains("is ready: APIs on") && all.contains("waiting for a VMM at"),
        &format!("all lines are there: {said}"),
    )?;
    check(
        all.contains("nic=\"vm1\""),
        &format!("a line says of which NIC it is: {said}"),
    )?;
    let line = of_nic.lines().find(|line| line.starts_with('{'));
    let entry: serde_json::Value = line
        .and_then(|line| serde_json::from_str(line).ok())
        .ok_or_else(|| format!("no entry is found by its field: {said}"))?;
    let message = entry["MESSAGE"].as_str().unwrap_or_default();
    check(
        message.starts_with("waiting for a VMM at")
            && entry["PRIORITY"] == "5"
            && entry["TARGET"]
                .as_str()
                .is_some_and(|target| target.starts_with("butterfly_"))
            && entry["CODE_FILE"]
                .as_str()
                .is_some_and(|file| file.ends_with(".rs")),
        &format!("it has its fields: {entry}"),
    )
}

fn syslog_has_lines() -> Result<()> {
    let dir = folder()?;
    let script = r#"
folder=$2
mkdir "$2"/dev
mount --rbind /dev "$2"/dev
mount -t tmpfs tmpfs /dev
for name in null zero random urandom; do touch /dev/$name
mount --bind "$2"/dev/$name /dev/$name; done
socat -u UNIX-RECV:/dev/log,mode=666 CREATE:"$2"/lines &
socat=$!
until_is '[ -S /dev/log ]'
run "$1" "$2" "$3"
until_is 'tr "\0" "\n" < "$folder"/lines | grep -q "stopped"'
kill $socat
tr "\0" "\n" < "$2"/lines
umount -l "$2"/dev
rmdir "$2"/dev
"#;
    let said = apart(script, dir.path())?;
    // The facility daemon (3) and the severity notice (5) make 29.
    check(
        said.contains("<29>") && said.contains("butterflyd["),
        &format!("lines have a priority and say whose they are: {said}"),
    )?;
    check(
        said.contains("waiting for a VMM at") && said.contains("nic=\"vm1\""),
        &format!("and of which NIC: {said}"),
    )
}
