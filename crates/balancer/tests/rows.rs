//! The rows of `rows/`, as tests: of the program in XDP, and of the same at tc ingress; with this
//! library, and with the Go one (`go/balancer`).

#[path = "rows/buffers.rs"]
mod buffers;
#[path = "rows/mod.rs"]
mod rows;

use libtest_mimic::{Arguments, Trial};
use rows::player;

fn main() {
    let all = rows::all().flat_map(|(name, body)| {
        [
            trial(name.clone(), body),
            trial(format!("tc::{name}"), move || rows::stage::at_tc(body)),
            trial(format!("go::{name}"), move || in_go(body)),
            trial(format!("go::tc::{name}"), move || {
                in_go(move || rows::stage::at_tc(body))
            }),
        ]
    });
    let buffers = buffers::TRIALS.iter().flat_map(|(name, body)| {
        let body = *body;
        [
            trial(format!("buffers::{name}"), body),
            trial(format!("go::buffers::{name}"), move || in_go(body)),
        ]
    });
    let both = trial("go::both_libraries_choose_alike".into(), || {
        if player::is_here() {
            rows::both_libraries_choose_alike();
        }
    });
    let all = all.chain(buffers).chain([both]);
    libtest_mimic::run(&Arguments::from_args(), all.collect()).exit()
}

fn trial(name: String, body: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        body();
        Ok(())
    })
}

/// Plays rows on the Go library, if there is a Go to build it with.
fn in_go(body: impl FnOnce()) {
    if player::is_here() {
        player::in_go(body);
    }
}
