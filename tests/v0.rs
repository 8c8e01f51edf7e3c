//! API v0 spoken by a client that shares nothing with ours (`v0_client.py`): libzmq, a protobuf
//! written by hand, another AES. It ends with the request that stops the daemon.

use butterfly_tests::Daemon;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::image::repository;
use testkit::{PATIENCE, Result, process, wait_for};

/// 32 bytes of key in base64, as `openssl rand -base64 32` writes them.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

fn main() {
    let trials = vec![
        Trial::test("a_foreign_client_in_clear", || {
            run(false).map_err(Failed::from)
        }),
        Trial::test("a_foreign_client_encrypted", || {
            run(true).map_err(Failed::from)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn run(encrypted: bool) -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let key = dir.path().join("key").display().to_string();
    std::fs::write(&key, KEY).map_err(|e| format!("cannot write {key}: {e}"))?;
    process::run(&["chmod", "600", &key])?;
    let options: &[&str] = &["-k", &key];
    let mut daemon = Daemon::start(if encrypted { options } else { &[] })?;

    let client = repository()
        .join("tests/v0_client.py")
        .display()
        .to_string();
    let (endpoint, folder) = (daemon.endpoint_v0(), daemon.dir().display().to_string());
    // Debian's own, whichever python comes first on the path: the packages of tools/setup.sh are
    // for this one.
    let mut words = vec!["/usr/bin/python3", &client, &endpoint, &folder];
    if encrypted {
        words.push(&key);
    }
    process::run(&words).map_err(|e| format!("{e}\n{}", daemon.log()))?;
    wait_for("the daemon to stop as it was told", PATIENCE, || {
        Ok((!daemon.is_running()).then_some(()))
    })
}
