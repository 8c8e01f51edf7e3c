//! `butterfly bench` on this host: it measures, says what limits it, and leaves nothing behind.

use std::path::Path;

use serde_json::Value;
use testkit::process;

/// Folders of measurements, of this program's calls or others'.
fn folders(temporary: &Path) -> usize {
    let entries = std::fs::read_dir(temporary).expect("a folder");
    entries.count()
}

#[test]
fn a_host_is_measured_and_what_limits_it_is_said() {
    let temporary = tempfile::tempdir().expect("a folder");
    let bench = |more: &[&str]| {
        let place = format!("TMPDIR={}", temporary.path().display());
        let daemon = Path::new(env!("CARGO_BIN_EXE_butterfly")).with_file_name("butterflyd");
        let daemon = daemon.display().to_string();
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
