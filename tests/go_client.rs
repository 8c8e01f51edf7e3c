//! The Go module against a running daemon: its own tests, as `go test` runs them, with the Go that
//! is installed and with the oldest one that the module says it needs.

use butterfly_tests::Daemon;
use butterfly_tests::trials::run_each;
use testkit::image::repository;
use testkit::netns::Namespace;
use testkit::{Result, process};

/// The last release of the one that go.mod names.
const OLDEST: &str = "go1.19.13";
/// What is installed, whatever the environment says.
const INSTALLED: &str = "local";

fn main() {
    run_each([
        ("the_go_module_drives_a_daemon", || run(INSTALLED)),
        ("so_it_does_with_the_oldest_go", || run(OLDEST)),
    ])
}

fn run(toolchain: &str) -> Result<()> {
    let Some(root) = root_of(toolchain) else {
        eprintln!(
            "skipped: Go has no toolchain {toolchain} here (tools/setup.sh installs Debian's Go)"
        );
        return Ok(());
    };
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    // Where it was fetched to is the module cache, and 1.19 takes what is there for modules, its
    // own library too.
    let link = dir.path().join("go");
    std::os::unix::fs::symlink(root.trim(), &link)
        .map_err(|e| format!("{}: {e}", link.display()))?;
    // A host of its own, with an interface that may be balanced on.
    let host = Namespace::new()?;
    host.ok(
        "ip link add balanced0 type veth peer name far0 && ip link set balanced0 up && \
         ip link set far0 up",
    )?;
    let daemon = Daemon::start_on(Some(host.pid()), &[])?;
    let module = repository().join("clients/go").display().to_string();
    let endpoint = format!("BUTTERFLY_ENDPOINT={}", daemon.endpoint());
    let (root, go) = (
        format!("GOROOT={}", link.display()),
        link.join("bin/go").display().to_string(),
    );
    let interface = "BUTTERFLY_INTERFACE=balanced0";
    // -count=1: what a daemon answers is not to be remembered.
    let words = [
        "env",
        "-C",
        &module,
        &endpoint,
        interface,
        &root,
        "GOTOOLCHAIN=local",
        &go,
        "test",
        "-count=1",
        "./...",
    ];
    let said = process::run(&words).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
    print!("{said}");
    Ok(())
}

/// Where a toolchain is, if the Go command is here and has that one without fetching it.
fn root_of(toolchain: &str) -> Option<String> {
    let toolchain = format!("GOTOOLCHAIN={toolchain}");
    let places = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];
    let root =
        |go: &str| process::run(&["env", "GOPROXY=off", &toolchain, go, "env", "GOROOT"]).ok();
    places.into_iter().find_map(root)
}
