//! docs/balancer.md names what there is.

use butterfly_balancer::{Options, Reason};

#[test]
fn the_page_knows_every_reason_and_the_defaults() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/balancer.md"))
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
