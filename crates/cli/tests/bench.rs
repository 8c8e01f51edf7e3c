//! `butterfly bench` on this host: it measures, says what limits it, and leaves nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::process;

/// Folders of measurements, of this program's calls or others'.
fn folders(temporary: &Path) -> usize {
    let entries = std::fs::read_dir(temporary).expect("a folder");
    entries.count()
}

fn butterflyd() -> String {
    let daemon = Path::new(env!("CARGO_BIN_EXE_butterfly")).with_file_name("butterflyd");
    daemon.display().to_string()
}

#[test]
fn a_host_is_measured_and_what_limits_it_is_said() {
    let temporary = tempfile::tempdir().expect("a folder");
    let bench = |more: &[&str]| {
        let place = format!("TMPDIR={}", temporary.path().display());
        let daemon = butterflyd();
        let own = env!("CARGO_BIN_EXE_butterfly");
        let mut words = vec!["env", &place, own, "-e", "unix:/nonexistent/api.sock"];
        words.extend(more);
        words.extend(["bench", "--seconds", "1", "--daemon", &daemon]);
        process::run(&words)
    };
    let said = bench(&["--json"]).unwrap_or_else(|e| panic!("{e}"));
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{said}: {e}"));
    let rows = said["rows"].as_array().expect("rows");
    let rules: Vec<_> = rows.iter().map(|row| row["rules"].as_str()).collect();
    assert_eq!(rules, [Some("none"), Some("1"), Some("100")]);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or_default();
        assert!(number("frames_per_second") > 1000.0, "{row}");
        assert!(number("switch_cycles_per_frame") > 0.0, "{row}");
    }
    let findings = said["findings"].as_array().expect("findings");
    for check in [
        "governor",
        "idle_states",
        "isolcpus",
        "smt",
        "numa",
        "huge_pages",
    ] {
        assert!(findings.iter().any(|one| one["check"] == check), "{check}");
    }
    let text = bench(&[]).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        text.starts_with("RULES") && text.contains("hat limits"),
        "{text}"
    );
    assert_eq!(folders(temporary.path()), 0, "its folder is gone");
}

#[test]
fn without_a_daemon_s_program_it_says_so() {
    let own = env!("CARGO_BIN_EXE_butterfly");
    let error = process::run(&[own, "bench", "--daemon", "/nonexistent/butterflyd"]);
    let error = error.expect_err("there is no such program");
    assert!(
        error.contains("/nonexistent/butterflyd cannot be started"),
        "{error}"
    );
}

#[test]
fn a_daemon_that_ends_at_once_is_told_by_its_last_line() {
    let temporary = tempfile::tempdir().expect("a folder");
    let place = format!("TMPDIR={}", temporary.path().display());
    let daemon = butterflyd();
    let own = env!("CARGO_BIN_EXE_butterfly");
    let words = ["env", &place, own, "bench", "--core", "4000"];
    let error = process::run(&[&words[..], &["--daemon", &daemon]].concat());
    let error = error.expect_err("there is no such core");
    for part in ["has ended", "4000"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(folders(temporary.path()), 0, "its folder is gone");
}

/// Processes that have a name of this folder among their words.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("UTF-8");
    let entries = std::fs::read_dir("/proc").expect("proc(5)").flatten();
    let words = entries.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    words
        .map(|words| String::from_utf8_lossy(&words).into_owned())
        .filter(|words| words.contains(folder))
        .collect()
}

#[test]
fn a_signal_ends_the_daemon_and_its_folder_too() {
    for (name, signal) in [("SIGTERM", "-TERM"), ("SIGHUP", "-HUP"), ("SIGINT", "-INT")] {
        let temporary = tempfile::tempdir().expect("a folder");
        let bench = Command::new(env!("CARGO_BIN_EXE_butterfly"))
            .env("TMPDIR", temporary.path())
            .args(["bench", "--seconds", "15", "--daemon", &butterflyd()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("butterfly");
        let until = Instant::now() + Duration::from_secs(60);
        while processes_of(temporary.path()).is_empty() {
            assert!(Instant::now() < until, "there is no daemon");
            std::thread::sleep(Duration::from_millis(10));
        }
        process::run(&["kill", signal, &bench.id().to_string()]).unwrap_or_else(|e| panic!("{e}"));
        let ended = bench.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains(name), "{said}");
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert_eq!(processes_of(temporary.path()), [""; 0]);
        assert_eq!(folders(temporary.path()), 0, "{name}: its folder is left");
    }
}
