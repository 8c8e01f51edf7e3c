//! What our client sends over API v0 is what the original's sends, byte for byte: the commands and
//! frames are those of `crates/api/tests/v0_vectors`, recorded from the unmodified client.

mod common;

use std::path::{Path, PathBuf};

use api::encrypted::{Key, decrypt};
use common::zmq::{ZmqStub, answer};
use common::{butterfly, run};

/// The recorded files and the table of commands.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/v0_vectors")
}

/// Name and command of each row of the folder's README.
fn rows() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let row = |line: &str| {
        let (name, command) = line.strip_prefix("| ")?.split_once(" | `")?;
        Some((name.to_owned(), command.strip_suffix("` |")?.to_owned()))
    };
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    assert_eq!(rows.len(), 13);
    rows
}

fn recorded(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    let digits = text.trim();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn our_client_sends_what_the_original_s_sends() {
    let dir = tempfile::tempdir().unwrap();
    let stub = ZmqStub::start(dir.path());
    for (name, command) in rows() {
        let ran = butterfly(&stub.endpoint, &command);
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
        let sent: Vec<String> = stub.frames().iter().map(|frame| hex(frame)).collect();
        assert_eq!(
            sent,
            [hex(&recorded(&format!("{name}.clear.hex")))],
            "{command}"
        );
    }
}

#[test]
fn encrypted_it_holds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let key: [u8; 32] = std::array::from_fn(|at| at as u8);
    let stub = ZmqStub::start_with(dir.path(), Some(key.into()), answer);
    let file = dir.path().join("key");
    std::fs::write(&file, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
    for (name, command) in rows() {
        let mut args: Vec<String> = ["-e", &stub.endpoint, "-k", file.to_str().unwrap()]
            .map(str::to_owned)
            .to_vec();
        args.extend(command.split(' ').map(str::to_owned));
        let ran = run(&args);
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
        let open = |frame: &Vec<u8>| {
            let messages = api::strict::decode_request(frame).unwrap();
            let bytes = messages.encrypted.unwrap().aes256cbc_sha512.unwrap();
            hex(&decrypt(&Key::from(key), &bytes).unwrap())
        };
        let sent: Vec<String> = stub.frames().iter().map(open).collect();
        assert_eq!(
            sent,
            [hex(&recorded(&format!("{name}.clear.hex")))],
            "{command}"
        );
    }
}
