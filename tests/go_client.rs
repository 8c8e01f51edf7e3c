//! The Go module against a running daemon: its own tests, as `go test` runs them.

use butterfly_tests::Daemon;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::image::repository;
use testkit::{Result, process};

fn main() {
    let trial = Trial::test("the_go_module_drives_a_daemon", || run().map_err(Failed::from));
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn run() -> Result<()> {
    let Some(go) = go() else {
        eprintln!("skipped: there is no Go here (tools/setup.sh installs Debian's)");
        return Ok(());
    };
    let daemon = Daemon::start(&[])?;
    let module = repository().join("clients/go").display().to_string();
    let endpoint = format!("BUTTERFLY_ENDPOINT={}", daemon.endpoint());
    // -count=1: what a daemon answers is not to be remembered.
    let words = ["env", "-C", &module, &endpoint, &go, "test", "-count=1", "./..."];
    let said = process::run(&words).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
    print!("{said}");
    Ok(())
}

fn go() -> Option<String> {
    let places = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];
    let works = |go: &&str| process::run(&[go, "version"]).is_ok();
    places.into_iter().find(works).map(str::to_owned)
}
