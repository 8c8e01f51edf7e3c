//! docs/balancer.md and docs/drops.md name what there is.

use butterfly_balancer::{Options, Reason};

/// Each reason is a line of the table with its name and its description, in this order.
#[test]
fn drops_are_listed_as_they_are() {
    let page = include_str!("../../../docs/drops.md");
    let mut sections = page.split("\n## ");
    let ours = sections.find(|section| section.starts_with("The load balancer"));
    let rows: Vec<&str> = ours
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    assert_eq!(rows.len(), Reason::ALL.len());
    for (row, reason) in rows.iter().zip(Reason::ALL) {
        let expected = format!("| `{}` | {} | ", reason.name(), reason.description());
        assert!(
            row.starts_with(&expected),
            "docs/drops.md: {row}\nexpected: {expected}"
        );
    }
}

#[test]
fn the_page_knows_every_reason_and_the_defaults() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/balancer.md"
    ))
    .expect("the page");
    let told = |reason: &&Reason| page.contains(&format!("`{}`", reason.name()));
    let silent: Vec<_> = Reason::ALL.iter().filter(|reason| !told(reason)).collect();
    assert!(silent.is_empty(), "not told: {silent:?}");
    let options = Options::default();
    let grouped = |number: u32| {
        let digits = number.to_string();
        let (head, tail) = digits.split_at(digits.len().saturating_sub(3));
        if head.is_empty() {
            tail.to_owned()
        } else {
            format!("{head},{tail}")
        }
    };
    for (option, value) in [
        ("max_flows", grouped(options.max_flows)),
        ("max_services", grouped(options.max_services.into())),
        ("max_servers", grouped(options.max_servers.into())),
    ] {
        assert!(
            page.contains(&format!("`{option}`, {value} by default")),
            "{option} is {value} by default"
        );
    }
}
