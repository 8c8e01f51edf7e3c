//! What the repository says of itself: the contracts in docs/ against the tests that name their
//! items, comments against the tree, ARCHITECTURE.md against Cargo.

use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use testkit::image::repository;
use testkit::{Result, process};

fn main() {
    run_each(trials![
        every_item_of_a_contract_is_named_by_a_test,
        every_item_of_security_groups_is_a_session_on_containers_too,
        comments_point_into_the_repository,
        crates_depend_on_what_the_architecture_says,
        every_origin_is_shown_by_its_tests,
        logic_reads_no_clock,
    ])
}

/// A contract is a page of docs/ whose title says so; its items are its lines that begin with a
/// number. A test names one by the page and the number in the comment above it: `security-groups.md
/// 7`, `security-groups.md 3, 5 and 9`.
fn every_item_of_a_contract_is_named_by_a_test() -> Result<()> {
    let mut contracts = BTreeMap::new();
    for page in files(&repository().join("docs"), "md")? {
        let text = read(&page)?;
        if text
            .lines()
            .next()
            .is_some_and(|title| title.contains("contract"))
        {
            contracts.insert(name(&page), items(&text));
        }
    }
    for (page, least) in [("security-groups.md", 17), ("v0-contract.md", 52)] {
        let count = contracts.get(page).map_or(0, BTreeSet::len);
        check(
            count >= least,
            &format!("{page} is a contract of {least} items: {count}"),
        )?;
    }
    for (page, items) in &contracts {
        let whole: BTreeSet<u32> = (1..=items.len() as u32).collect();
        check(
            *items == whole,
            &format!("the items of {page} are numbered from 1 without a gap: {items:?}"),
        )?;
    }
    let (mut tested, mut wrong) = (BTreeMap::new(), Vec::new());
    for path in sources()? {
        for mention in mentions(&path, &read(&path)?)? {
            let Some(items) = contracts.get(&mention.page) else {
                continue;
            };
            for item in mention.items {
                if !items.contains(&item) {
                    wrong.push(format!(
                        "{}: {} has no item {item}",
                        path.display(),
                        mention.page
                    ));
                } else if mention.by_test {
                    tested
                        .entry(mention.page.clone())
                        .or_insert_with(BTreeSet::new)
                        .insert(item);
                }
            }
        }
    }
    for (page, items) in &contracts {
        let named = tested.remove(page).unwrap_or_default();
        for item in items.difference(&named) {
            wrong.push(format!("no test names {page} {item}"));
        }
    }
    check(
        wrong.is_empty(),
        &format!("the lists agree:\n{}", wrong.join("\n")),
    )
}

/// The sessions that `tests/veths` runs on containers' interfaces name all items but two: the
/// shortest time-out is half a minute of a clock that is nobody's to turn, and quotas are the
/// API's, before there is any device.
fn every_item_of_security_groups_is_a_session_on_containers_too() -> Result<()> {
    let sessions = repository().join("crates/dataplane/tests/sessions/contract");
    let (mut named, mut unlisted) = (BTreeSet::new(), Vec::new());
    let list = read(&sessions.join("mod.rs"))?;
    for path in files(&sessions, "rs")? {
        let text = read(&path)?;
        let mentions = mentions(&path, &text)?.into_iter();
        let mentions = mentions.filter(|mention| mention.by_test);
        named.extend(mentions.flat_map(|mention| mention.items));
        for function in text.split("\npub fn ").skip(1) {
            let (name, takes) = function.split_once('(').unwrap_or_default();
            let is_session = takes.trim_start().starts_with("lab: &mut Lab,");
            if is_session && !list.contains(&format!("::{name},")) {
                unlisted.push(name.to_owned());
            }
        }
    }
    let elsewhere = BTreeSet::from([10, 17]);
    let items = items(&read(&repository().join("docs/security-groups.md"))?);
    let expected: BTreeSet<u32> = items.difference(&elsewhere).copied().collect();
    assert_eq!(
        named, expected,
        "items that sessions name, and that they are to"
    );
    check(
        unlisted.is_empty(),
        &format!("all are in the list of contract/mod.rs: {unlisted:?}"),
    )
}

/// The numbers that lines begin with: `7. ICMP and ...`.
fn items(text: &str) -> BTreeSet<u32> {
    text.lines()
        .filter_map(|line| line.split_once(". ")?.0.parse().ok())
        .collect()
}

/// A place where a page is named with items of it.
#[derive(Debug, PartialEq)]
struct Mention {
    page: String,
    items: Vec<u32>,
    /// It stands above a test.
    by_test: bool,
}

fn mentions(path: &Path, text: &str) -> Result<Vec<Mention>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        for (at, _) in line.match_indices(".md ") {
            let begin = line[..at].rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            let items = numbers(&line[at + 4..]);
            if !items.is_empty() {
                found.push(Mention {
                    page: line[begin.map_or(0, |begin| begin + 1)..at + 3].to_owned(),
                    items,
                    by_test: is_above_test(path, &lines[index..])?,
                });
            }
        }
    }
    Ok(found)
}

/// `3, 5 and 9: ...`
fn numbers(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for word in text
        .split([' ', ',', ':', '.', ')', ';'])
        .filter(|word| !word.is_empty())
    {
        match word.parse() {
            Ok(number) => numbers.push(number),
            Err(_) if word == "and" && !numbers.is_empty() => {}
            Err(_) => break,
        }
    }
    numbers
}

/// A comment, attributes, and then a function that [is a test](is_test); in a file of golden
/// sessions a request with its answer.
fn is_above_test(path: &Path, lines: &[&str]) -> Result<bool> {
    let is_comment = |line: &str| {
        line.starts_with("//") || line.starts_with('#') // attributes of Rust's, too
    };
    let Some(line) = lines.iter().find(|line| !is_comment(line)) else {
        return Ok(false);
    };
    if path.extension().is_some_and(|has| has == "txt") {
        return Ok(line.starts_with(">>>"));
    }
    let words = line.split_once("fn ").or(line.split_once("func "));
    let Some((_, function)) = words.or(line.split_once("def ")) else {
        return Ok(false);
    };
    let name = function.split(['(', '<']).next().unwrap_or_default();
    is_test(path, name)
}

/// Each row of docs/origins.md names tests that are there, or says that it is missing or not here;
/// and what its middle cell names is there too: pages, files, commands and options.
fn every_origin_is_shown_by_its_tests() -> Result<()> {
    let docs = repository().join("docs");
    let (cli, daemon) = (read(&docs.join("cli.md"))?, read(&docs.join("daemon.md"))?);
    let (mut wrong, mut rows) = (Vec::new(), 0);
    for line in read(&docs.join("origins.md"))?.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !line.starts_with("| ") || cells[0] == "property" {
            continue;
        }
        let [_, place, tests] = cells[..] else {
            wrong.push(format!("this row has not three cells: {line}"));
            continue;
        };
        rows += 1;
        let tests = quoted(tests);
        let untested = place.contains("**missing**: ") || place.starts_with("not here: [");
        if !tests.len().is_multiple_of(2) || tests.is_empty() && !untested {
            wrong.push(format!("it names no test, or one file too many: {line}"));
        }
        for pair in tests.chunks_exact(2) {
            if !is_test(&repository().join(&pair[0]), &pair[1])? {
                wrong.push(format!("{} has no test {}", pair[0], pair[1]));
            }
        }
        for page in place
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if !docs.join(page).exists() {
                wrong.push(format!("there is no page {page}"));
            }
        }
        // What is missing may name what is to be.
        for name in quoted(place.split("**missing**").next().unwrap_or_default()) {
            let good = if name.starts_with("butterfly ") {
                cli.contains(&format!("## `{name}`\n"))
            } else if name.starts_with("--") {
                cli.contains(&name) || daemon.contains(&name)
            } else if name.contains('/') {
                repository().join(&name).exists()
            } else {
                true
            };
            if !good {
                wrong.push(format!("there is no {name}"));
            }
        }
    }
    check(rows > 50, &format!("the page has {rows} rows"))?;
    check(
        wrong.is_empty(),
        &format!("docs/origins.md is true:\n{}", wrong.join("\n")),
    )
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// A function of that name is in the file, and somebody runs it: a harness by its attribute or its
/// name (Go), or a list of trials, in this file or beside it; in Python, which has no harness here,
/// its main().
fn is_test(file: &Path, name: &str) -> Result<bool> {
    let Ok(text) = read(file) else {
        return Ok(false);
    };
    if text.contains(&format!("\nfunc {name}(t *testing.T)")) {
        return Ok(name.starts_with("Test"));
    }
    if text.contains(&format!("\ndef {name}(")) {
        let main = text.split_once("\ndef main(");
        return Ok(main.is_some_and(|(_, main)| main.contains(&format!("    {name}("))));
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    let defines = |line: &&str| line.contains(&head) && !line.starts_with("//");
    let Some(at) = lines.iter().position(defines) else {
        return Ok(false);
    };
    let above = lines[..at]
        .iter()
        .rev()
        .take_while(|line| !line.is_empty() && **line != "}");
    if above
        .into_iter()
        .any(|line| line.starts_with("#[") && (line.contains("test]") || line.contains("test(")))
    {
        return Ok(true);
    }
    let mut beside = files(file.parent().unwrap_or(file), "rs")?;
    if let Some(parent) = file.parent().and_then(Path::parent) {
        beside.extend(files(parent, "rs")?);
    }
    for path in beside {
        if listed(&read(&path)?).contains(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The functions that lists of a text name: in brackets or behind a macro, each behind its module,
/// as the last word of a pair, called by a closure, or by a trial of their name.
fn listed(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let opened = ["! {", "["].map(|bracket| text.split(bracket).skip(1));
    let opened = opened.into_iter().flatten();
    for list in opened {
        let list = list.split([']', '}']).next().unwrap_or_default();
        for entry in list.split(',') {
            let entry = entry.trim().trim_end_matches(')');
            let name = entry.rsplit([':', '(', ' ']).next().unwrap_or_default();
            if !name.is_empty() && name.chars().all(is_name) {
                found.insert(name);
            }
        }
    }
    let called = text.lines().map(str::trim).filter_map(|line| {
        let (_, call) = line.split_once("|| ")?;
        call.split_once('(')
    });
    let trials = text.lines().map(str::trim).filter_map(|line| {
        let (call, failed) = line.split_once('(')?;
        failed
            .contains("map_err(Failed::from)")
            .then_some((call, failed))
    });
    found.extend(called.chain(trials).map(|(name, _)| name));
    let named = text.split("trial(\"").skip(1);
    let named = named.filter_map(|rest| rest.split('"').next()?.rsplit("::").next());
    found.extend(named);
    found
}

/// Whoever has the repository has all that it speaks of.
fn comments_point_into_the_repository() -> Result<()> {
    // In two pieces, so that they are not found here.
    let outside = [
        concat!("..", "/shared"),
        concat!("contract", ", item"),
        concat!("Contract", ", item"),
        concat!("contract", "'s item"),
        concat!("DESIGN", ".md"),
    ];
    let mut wrong = Vec::new();
    for path in sources()? {
        for (index, line) in read(&path)?.lines().enumerate() {
            if outside.iter().any(|what| line.contains(what)) {
                wrong.push(format!("{}:{}: {line}", path.display(), index + 1));
            }
        }
    }
    check(
        wrong.is_empty(),
        &format!("no comment points outside:\n{}", wrong.join("\n")),
    )
}

/// Logic is handed the time. `dataplane/src/watch.rs` alone reads a counter of cycles, of which
/// nothing is decided.
fn logic_reads_no_clock() -> Result<()> {
    const CLOCKS: [&str; 4] = [
        "Instant::now",
        "SystemTime::now",
        "cycles::now",
        "clock_gettime",
    ];
    let mut readers = BTreeSet::new();
    for logic in ["control", "dataplane", "health", "model", "wire"] {
        let folder = repository().join("crates").join(logic).join("src");
        for path in files(&folder, "rs")? {
            let text = read(&path)?;
            if CLOCKS.iter().any(|clock| text.contains(clock)) {
                readers.insert(format!("{logic}/{}", name(&path)));
            }
        }
    }
    check(
        readers == BTreeSet::from(["dataplane/watch.rs".to_owned()]),
        &format!("clocks are read in {readers:?}"),
    )
}

/// The table "Who owns what" against what Cargo knows: each crate of ours, and those of ours that
/// it is built on.
fn crates_depend_on_what_the_architecture_says() -> Result<()> {
    let manifest = repository().join("Cargo.toml").display().to_string();
    let words = [
        "cargo",
        "metadata",
        "--offline",
        "--no-deps",
        "--format-version",
        "1",
        "--manifest-path",
        &manifest,
    ];
    let metadata: Value =
        serde_json::from_str(&process::run(&words)?).map_err(|e| format!("cargo metadata: {e}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let ours = |name: &Value| Some(name.as_str()?.strip_prefix("butterfly-")?.to_owned());
    let mut known = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let folder = package["manifest_path"].as_str().unwrap_or_default();
        if !folder.contains("/crates/") {
            continue;
        }
        let dependencies = list(&package["dependencies"])
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| ours(&dependency["name"]))
            .collect();
        known.insert(ours(&package["name"]).unwrap_or_default(), dependencies);
    }
    let said = table(&read(&repository().join("ARCHITECTURE.md"))?)?;
    let show = |all: &BTreeMap<String, BTreeSet<String>>| {
        all.iter()
            .map(|(name, of)| {
                format!(
                    "{name}: {}\n",
                    of.iter().cloned().collect::<Vec<_>>().join(", ")
                )
            })
            .collect::<String>()
    };
    check(
        known == said,
        &format!(
            "ARCHITECTURE.md's table is Cargo's:\nCargo has\n{}\nthe table has\n{}",
            show(&known),
            show(&said)
        ),
    )
}

/// Name and dependencies of each row `| `name` | owns | a, b |`; none is a dash.
fn table(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| crate |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, dependencies] = cells[..] else {
            return Err(format!("this row has not three cells: {row}"));
        };
        let dependencies = dependencies
            .split(", ")
            .filter(|&name| name != "–")
            .map(str::to_owned);
        table.insert(name.trim_matches('`').to_owned(), dependencies.collect());
    }
    Ok(table)
}

/// All that is written by hand and compiled or run.
fn sources() -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for folder in [
        "crates",
        "tests",
        "bench",
        "bpf",
        "clients",
        "fuzz",
        "proto",
        "tools",
        "packaging",
    ] {
        for extension in ["rs", "h", "c", "go", "py", "sh", "proto", "toml"] {
            all.extend(files(&repository().join(folder), extension)?);
        }
    }
    let sessions = repository().join("crates/daemon/tests/golden");
    all.extend(files(&sessions, "txt")?);
    check(
        all.len() > 300,
        &format!("there are sources: {}", all.len()),
    )?;
    Ok(all)
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry
            .map_err(|e| format!("{}: {e}", folder.display()))?
            .path();
        if path.is_dir() {
            // What fuzzing makes is not ours.
            if name(&path) != "target" {
                found.extend(files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|has| has == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}
