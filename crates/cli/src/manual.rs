//! `docs/cli.md` is the help of every command. The test here fails when it lies;
//! `BUTTERFLY_UPDATE_DOCS=1 cargo test -p butterfly-cli manual` writes it anew.

use clap::Command;
use clap::error::ErrorKind;

use crate::chain::ParseError;
use crate::chain::testing::parse_line;
use crate::help;

/// The file, from this crate's folder.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
const HEAD: &str = "\
# The `butterfly` command

This page is the commands' own help, written by a test of `crates/cli`: change the help, not the
page. The options of every command, which the first section lists, are left out of the others.
";

/// The page: the program's help, then that of every command that does something.
fn page() -> String {
    let mut page = HEAD.to_owned();
    section(help::command(), "butterfly".into(), &mut page);
    page
}

fn section(command: Command, name: String, page: &mut String) {
    let mut shown = command.clone().bin_name(&name).term_width(110);
    // Groups of commands list their commands; those follow with their own sections.
    let help = shown.render_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    *page += &format!(
        "\n## `{name}`\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    );
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        section(below.clone(), format!("{name} {}", below.get_name()), page);
    }
}

#[test]
fn the_page_is_the_help() {
    let page = page();
    if std::env::var_os("BUTTERFLY_UPDATE_DOCS").is_some() {
        std::fs::write(PATH, &page).unwrap();
    }
    let written = std::fs::read_to_string(PATH).unwrap_or_default();
    let line = page.lines().zip(written.lines()).position(|(a, b)| a != b);
    assert!(
        page == written,
        "docs/cli.md is not the help any more (first at line {line:?}): BUTTERFLY_UPDATE_DOCS=1 \
         cargo test -p butterfly-cli manual",
    );
}

/// Command lines in the other pages are ones that the program takes.
#[test]
fn commands_that_other_pages_name_exist() {
    const HELP: [ErrorKind; 3] = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    let pages = [
        ("README.md", include_str!("../../../README.md")),
        (
            "docs/balancer.md",
            include_str!("../../../docs/balancer.md"),
        ),
        ("docs/daemon.md", include_str!("../../../docs/daemon.md")),
        ("docs/drops.md", include_str!("../../../docs/drops.md")),
        ("docs/install.md", include_str!("../../../docs/install.md")),
        ("docs/limits.md", include_str!("../../../docs/limits.md")),
        ("docs/router.md", include_str!("../../../docs/router.md")),
        (
            "docs/security.md",
            include_str!("../../../docs/security.md"),
        ),
        ("docs/uplink.md", include_str!("../../../docs/uplink.md")),
        (
            "docs/troubleshooting.md",
            include_str!("../../../docs/troubleshooting.md"),
        ),
        (
            "docs/migration/butterfly.md",
            include_str!("../../../docs/migration/butterfly.md"),
        ),
        (
            "docs/migration/ovs.md",
            include_str!("../../../docs/migration/ovs.md"),
        ),
        (
            "docs/migration/netmap-fwd.md",
            include_str!("../../../docs/migration/netmap-fwd.md"),
        ),
        (
            "docs/migration/xvs.md",
            include_str!("../../../docs/migration/xvs.md"),
        ),
    ];
    let mut named = 0;
    for (name, page) in pages {
        let lines: Vec<_> = page
            .split('`')
            .filter_map(|text| text.strip_prefix("butterfly "))
            .collect();
        named += lines.len();
        for line in lines {
            // What a shell does with its output is the shell's.
            let line = line.split(" > ").next().unwrap_or(line);
            // A word alone stands for its commands, or for what it does with words of its own.
            let alone = !line.contains(' ');
            let refused = match parse_line(line) {
                Err(ParseError::Part(error))
                    if alone && error.kind() == ErrorKind::MissingRequiredArgument =>
                {
                    None
                }
                Err(ParseError::Part(error)) if !HELP.contains(&error.kind()) => Some(error),
                _ => None,
            };
            assert!(refused.is_none(), "{name}: butterfly {line}: {refused:?}");
        }
    }
    assert!(named > 20, "{named} commands are named in all");
}

/// What security.md promises names the test that is the attack: it is there.
#[test]
fn the_tests_that_promises_name_exist() {
    let page = include_str!("../../../docs/security.md");
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut named = 0;
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'));
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit(" | ").next();
        let mut file = "";
        let before = named;
        // Files, each with its tests behind it.
        for name in tests.unwrap_or_default().split('`').skip(1).step_by(2) {
            if name.contains('/') {
                file = name;
                continue;
            }
            let source = std::fs::read_to_string(repository.join(file));
            let source = source.unwrap_or_else(|e| panic!("docs/security.md: {file}: {e}"));
            assert!(
                source.contains(&format!("fn {name}(")),
                "docs/security.md: {file} has no test {name}"
            );
            named += 1;
        }
        assert!(named > before, "no test in: {row}");
    }
    assert!(named > 20, "{named} tests are named");
}

#[test]
fn every_command_shows_an_example() {
    fn check(command: &Command, name: &str) {
        let mut below = command.get_subcommands().peekable();
        if below.peek().is_none() {
            let help = command.clone().render_help().to_string();
            assert!(
                help.contains("Example"),
                "{name} has no example in its help:\n{help}"
            );
        }
        below.for_each(|command| check(command, &format!("{name} {}", command.get_name())));
    }
    check(&help::command(), "butterfly");
}
