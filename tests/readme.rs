//! The README and the tutorials against the tree: their commands are run as they stand there and
//! say what the page shows, and the README's folders are those that there are.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use butterfly_tests::trials::run_each;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use testkit::image::repository;
use testkit::{Result, process};

fn main() {
    // The quickstarts share names of namespaces: one after the other.
    run_each([
        ("the_switch_drops_a_ping_then_lets_it_pass", switch),
        ("the_router_forwards_and_the_kernel_after_it", router),
        ("the_balancer_has_two_servers", balancer),
        ("every_folder_has_a_line", folders),
        ("tutorial_two_containers", || tutorial("containers")),
        ("tutorial_two_hosts", || tutorial("two-hosts")),
        ("tutorial_a_router", || tutorial("router")),
        ("tutorial_a_balancer_with_bgp", || tutorial("balancer")),
        ("tutorial_coming_back", || tutorial("crash")),
    ])
}

fn switch() -> Result<()> {
    // The first ping is meant to fail, which ends no shell of a user's.
    let said = quickstart("A switch", "ping -c 3 -W 1 10.0.0.2")?;
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
    check(!Path::new("/tmp/bf").exists(), "nothing is left of it")
}

fn router() -> Result<()> {
    let said = quickstart("A router", "wait")?;
    for line in [
        "taking over eth1: ",
        "taking over eth2: ",
        "20 packets transmitted, 20 received",
        "3 packets transmitted, 3 received",
    ] {
        check(said.contains(line), &format!("'{line}' is said:\n{said}"))?;
    }
    let done = said.matches("iperf Done.").count();
    check(done == 2, &format!("TCP and UDP pass:\n{said}"))?;
    // 20 echo requests and their answers, but for those that waited for a neighbour to be known.
    let forwarded = said.lines().find_map(|line| {
        line.trim()
            .strip_prefix("forwarded ")?
            .split_whitespace()
            .next()?
            .parse::<u32>()
            .ok()
    });
    check(
        forwarded.is_some_and(|packets| packets >= 10),
        &format!("{forwarded:?} packets were forwarded:\n{said}"),
    )
}

fn balancer() -> Result<()> {
    let said = quickstart("A load balancer", "wait")?;
    let answers = said
        .lines()
        .filter(|line| line.starts_with("this is server"))
        .count();
    check(answers == 8, &format!("all eight are answered:\n{said}"))?;
    for line in [
        "balancing 192.168.101.1:80/tcp on eth0: at tc ingress (veth)",
        "2000000 bytes",
    ] {
        check(said.contains(line), &format!("'{line}' is said:\n{said}"))?;
    }
    check(
        !Path::new("/tmp/bf-server1").exists(),
        "nothing is left of it",
    )
}

/// Runs the README's section of this title; `may_fail` is a command of it whose failure does not
/// end it. Gives what it printed.
fn quickstart(title: &str, may_fail: &str) -> Result<String> {
    let readme = std::fs::read_to_string(repository().join("README.md"))
        .map_err(|e| format!("no README.md: {e}"))?;
    let (_, section) = readme
        .split_once(&format!("### {title}"))
        .ok_or(format!("the README has no section '{title}'"))?;
    let section = section.split("\n##").next().unwrap_or(section);
    let commands: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    // The README names the optimised programs; here they are the ones beside this test.
    let folder = folder_of_programs()?;
    let script = commands
        .join("\n")
        .replace("$PWD/target/release", &folder)
        .replace(may_fail, &format!("{may_fail} || true"));
    in_a_shell(&script, Duration::from_secs(60))
}

/// Runs commands in one shell; what they print. However they end, no process of theirs and no name
/// of a network namespace is left.
fn in_a_shell(script: &str, limit: Duration) -> Result<String> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let own_names = "mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; exec bash -e -c \"$0\"";
    let unshare = [
        "unshare",
        "--mount",
        "--mount-proc",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    let line = [&unshare[..], &["sh", "-c", own_names, script]].concat();
    process::run_within(&line, limit, &dir.path().join("log"))
}

/// Runs a page of docs/tutorials: what is marked `sh` are its commands, in one shell, and each line
/// that is marked `text` is said by them, `…` standing for anything.
fn tutorial(name: &str) -> Result<()> {
    let path = repository().join(format!("docs/tutorials/{name}.md"));
    let page = std::fs::read_to_string(&path).map_err(|e| format!("no {name}.md: {e}"))?;
    let blocks = |language: &str| -> Vec<&str> {
        let fence = format!("```{language}\n");
        let begun = page.split(&fence).skip(1);
        begun
            .filter_map(|rest| rest.split_once("```").map(|(block, _)| block))
            .collect()
    };
    let folder = folder_of_programs()?;
    let script = format!("export PATH={folder}:$PATH\n{}", blocks("sh").concat());
    let said = in_a_shell(&script, Duration::from_secs(120))?;
    let mut shown = blocks("text").into_iter().flat_map(str::lines).peekable();
    check(shown.peek().is_some(), "the page shows what is said")?;
    for line in shown {
        let found = said.lines().any(|said| is_like(line, said));
        check(found, &format!("'{line}' is said:\n{said}"))?;
    }
    check(!Path::new("/tmp/bf").exists(), "nothing is left of it")
}

/// Whether the parts of a line between `…` are in what was said, in this order; blanks count once.
fn is_like(line: &str, said: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words(said);
    let mut rest = said.as_str();
    line.split('…')
        .map(words)
        .all(|part| match rest.find(&part) {
            None => false,
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
        })
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
    let readme = std::fs::read_to_string(root.join("README.md"))
        .map_err(|e| format!("no README.md: {e}"))?;
    let line = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let told: BTreeSet<String> = readme.lines().filter_map(line).collect();
    check(
        there == told,
        &format!("the README's folders {told:?} are those of the tree, {there:?}"),
    )
}

/// Where `butterfly` and `butterflyd` are.
fn folder_of_programs() -> Result<String> {
    let program = program("butterfly");
    let folder = program.strip_suffix("/butterfly");
    folder
        .map(str::to_owned)
        .ok_or_else(|| format!("{program} is in no folder"))
}
