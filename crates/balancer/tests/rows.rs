//! The rows of `rows/`, as tests.

#[path = "rows/mod.rs"]
mod rows;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let trial = |(name, body): (String, fn())| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), rows::all().map(trial).collect()).exit()
}
