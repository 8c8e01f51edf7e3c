//! `butterfly support-bundle`: what is in the file, and what it takes to make it.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use api::v1;
use common::grpc::{GrpcStub, Messages};
use common::{command, finish};
use flate2::read::GzDecoder;
use prost::Message;

/// Makes a bundle in this folder, whose programs are all that it finds; what is in it.
#[track_caller]
fn bundle(mut command: Command, dir: &Path, more: &str) -> BTreeMap<String, String> {
    let file = dir.join("bundle.tar.gz");
    command
        .arg("support-bundle")
        .arg(&file)
        .args(["--settings", "/nonexistent"])
        .args(more.split_whitespace())
        .env("PATH", dir);
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(file).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let name = name.strip_prefix("butterfly-support/").unwrap();
        (name.to_owned(), text)
    };
    archive.entries().unwrap().map(read).collect()
}

/// Arguments of a check's program may be secrets, whatever they are called; `systemctl status`
/// lists them.
#[test]
fn the_service_is_told_of_without_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let systemctl = dir.path().join("systemctl");
    let script = "#!/bin/sh\n\
                  case \" $* \" in\n\
                  *' status '*) echo 'CGroup: /system.slice/butterflyd.service'\n\
                  echo '        77 /usr/lib/probe correct-horse';;\n\
                  *' show '*) echo \"$@\"; echo ActiveState=active;;\n\
                  esac\n";
    std::fs::write(&systemctl, script).unwrap();
    std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
    let nobody = command(&["-e".into(), "unix:/nonexistent/api.sock".into()]);
    let files = bundle(nobody, dir.path(), "");
    let unit = &files["unit"];
    assert!(
        unit.ends_with(" butterflyd\nActiveState=active\n"),
        "{unit}"
    );
    for (name, text) in &files {
        assert!(!text.contains("correct-horse"), "{name}: {text}");
    }
}

/// With `--flows` a table of a million connections is asked for, by root.
#[test]
fn connections_take_no_memory() {
    const FLOWS: usize = 3_000;
    const BYTES: usize = 10_000;
    /// What the command may have: about twice the connections.
    const MEMORY: usize = 64 << 20;
    let answer = |method: &str| -> Option<Messages> {
        let flow = |number: usize| v1::Flow {
            nic: "x".repeat(BYTES),
            source: "10.0.0.1".into(),
            age_secs: number as u64,
            ..Default::default()
        };
        let flows = (0..FLOWS).map(move |number| flow(number).encode_to_vec());
        (method == "ListFlows").then(|| Box::new(flows) as Messages)
    };
    let dir = tempfile::tempdir().unwrap();
    let stub = GrpcStub::start_with(dir.path(), answer);
    let mut limited = Command::new("/usr/bin/prlimit");
    limited
        .arg(format!("--data={MEMORY}"))
        .arg(env!("CARGO_BIN_EXE_butterfly"))
        .args(["-e", &stub.endpoint]);
    let files = bundle(limited, dir.path(), "--flows");
    let flows = files.get("flows.jsonl");
    let flows = flows.unwrap_or_else(|| panic!("{}", files["missing"]));
    let lines: Vec<&str> = flows.lines().collect();
    assert_eq!(lines.len(), FLOWS);
    for (number, line) in lines.iter().enumerate() {
        let flow: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(flow["nic"].as_str().map(str::len), Some(BYTES));
        assert_eq!(flow["age_secs"], number);
    }
    // What was beside it meanwhile is gone.
    let mut left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["bundle.tar.gz", "v1.sock"]);
}
