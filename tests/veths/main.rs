//! The sessions of docs/security-groups.md, those of `crates/dataplane/tests/sessions/contract`, on
//! containers' interfaces of a daemon that has the kernel forward known flows.

mod lab;

#[path = "../../crates/dataplane/tests/sessions/contract/mod.rs"]
mod contract;

use std::panic::{AssertUnwindSafe, catch_unwind};

use butterfly_tests::trials::{Trials, run_named};
use contract::SESSIONS;
use contract::words::FAMILIES;
use lab::{Lab, SHARE};

fn main() {
    let mut trials: Trials<Lab> = Vec::new();
    for &(name, session) in SESSIONS {
        for family in FAMILIES {
            let body = move |lab: &mut Lab| {
                let done = catch_unwind(AssertUnwindSafe(|| session(lab, family)));
                done.map_err(|panic| said(&*panic))
            };
            let name = format!("{name}_{}", format!("{family:?}").to_lowercase());
            trials.push((name, Box::new(body)));
        }
    }
    let share: &str = SHARE.to_string().leak();
    run_named(vec!["--max-flows-per-nic", share].leak(), trials)
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}
