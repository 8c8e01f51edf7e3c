//! The README against the tree: its quickstart is run as it stands there, its folders are those that there are.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::image::repository;
use testkit::{Result, process};

fn main() {
    let trials = vec![
        Trial::test("the_quickstart_ends_in_a_ping", || {
            quickstart().map_err(Failed::from)
        }),
        Trial::test("every_folder_has_a_line", || folders().map_err(Failed::from)),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn quickstart() -> Result<()> {
    let readme =
        std::fs::read_to_string(repository().join("README.md")).map_err(|e| format!("no README.md: {e}"))?;
    let (_, section) = readme
        .split_once("## Quickstart")
        .ok_or("the README has no quickstart")?;
    let (section, _) = section
        .split_once("\n## ")
        .ok_or("nothing is behind the quickstart")?;
    let commands: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    // The README names the optimised programs; here they are the ones beside this test.
    let folder = program("butterfly").replace("/butterfly", "");
    let script = commands.join("\n").replace("$PWD/target/release", &folder);

    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let words = [
        "bash",
        "-e",
        "-c",
        &script.replace("ping -c 3 -W 1 10.0.0.2", "ping -c 3 -W 1 10.0.0.2 || true"),
    ];
    let said = process::run_within(&words, Duration::from_secs(60), &dir.path().join("log"))?;
    let first = said
        .find("3 packets transmitted, 0 received")
        .ok_or(format!("the first ping passed:\n{said}"))?;
    check(
        said[first..].contains("no_ingress_rule"),
        "the drop's reason is shown",
    )?;
    check(
        said[first..].contains("3 packets transmitted, 3 received"),
        &format!("the second ping passes:\n{said}"),
    )?;
    check(!std::path::Path::new("/tmp/bf").exists(), "nothing is left of it")
}

/// Every folder of the top and every crate is in the table, and nothing else is.
fn folders() -> Result<()> {
    let root = repository();
    let files = process::run(&[
        "git",
        "-C",
        &root.display().to_string(),
        "ls-files",
        "-co",
        "--exclude-standard",
    ])?;
    let folder = |path: &str| -> Option<String> {
        let (top, rest) = path.split_once('/')?;
        match (top, rest.split_once('/')) {
            (hidden, _) if hidden.starts_with('.') => None,
            ("crates", Some((name, _))) => Some(format!("crates/{name}")),
            _ => Some(top.to_owned()),
        }
    };
    let there: BTreeSet<String> = files.lines().filter_map(folder).collect();
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|e| format!("no README.md: {e}"))?;
    let line = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let told: BTreeSet<String> = readme.lines().filter_map(line).collect();
    check(
        there == told,
        &format!("the README's folders {told:?} are those of the tree, {there:?}"),
    )
}
