//! The rows of `rows/`, as tests: of the program in XDP, and of the same at tc ingress.

#[path = "rows/buffers.rs"]
mod buffers;
#[path = "rows/mod.rs"]
mod rows;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let trial = |(name, body): (String, fn())| {
        let xdp = Trial::test(name.clone(), move || {
            body();
            Ok(())
        });
        let tc = Trial::test(format!("tc::{name}"), move || {
            rows::stage::at_tc(body);
            Ok(())
        });
        [xdp, tc]
    };
    let buffers = buffers::TRIALS.iter().map(|(name, body)| {
        let body = *body;
        Trial::test(format!("buffers::{name}"), move || {
            body();
            Ok(())
        })
    });
    let all = rows::all().flat_map(trial).chain(buffers);
    libtest_mimic::run(&Arguments::from_args(), all.collect()).exit()
}
