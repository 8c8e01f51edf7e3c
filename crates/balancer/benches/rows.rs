//! `make bench-balancer`: every packet of the tests' own rows (`tests/rows`), timed.
//!
//! Each trial is played several times, its assertions included. The kernel says what each single
//! run took, of a program that has just been called by a system call: as a first packet finds the
//! caches, not as the thousandth in a row does (`benches/packets` times those). Right after it the
//! same frame goes through an empty program, whose time is taken off. A packet has the median of
//! its rounds, a trial the median of its packets, the least and the most. `--quick`: fewer rounds;
//! `--out DIR`: where the table and the data go.

#[path = "../tests/rows/mod.rs"]
mod rows;

use std::cell::RefCell;

use testkit::results::Results;
use xdp::{Program, Run, objects};

thread_local! {
    /// What answers XDP_TX and does nothing else.
    static EMPTY: Program =
        Program::load("transmit", objects::TRANSMIT, |_| Ok(())).expect("the program loads");
    /// Net nanoseconds of the packets since this was last looked at.
    static TIMES: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
}

fn main() {
    // `cargo bench` passes flags of its own.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rounds = if words.iter().any(|word| word == "--quick") {
        3
    } else {
        15
    };
    let out = words.iter().position(|word| word == "--out");
    rows::stage::WATCHER.set(note).expect("nobody else does");
    println!(
        "nanoseconds a packet, net of an empty program; medians of {rounds} rounds; \
         least to most of a trial's packets"
    );
    let mut results = Results::new("balancer-rows");
    let mut all = Vec::new();
    for (name, play) in rows::all() {
        let packets = time(play, rounds);
        if packets.is_empty() {
            println!("{name}: not here, see above");
            continue;
        }
        all.extend(&packets);
        results.add_many(&name, "balancer", "ns", packets);
    }
    results.add_many("all", "balancer", "ns", all);
    if let Some(folder) = out.and_then(|at| words.get(at + 1)) {
        results
            .write(folder.as_ref())
            .expect("the files can be written");
    }
}

fn note(frame: &[u8], run: &Run) {
    let empty = EMPTY.with(|program| xdp::run(program, frame, 0, 1).expect("the kernel tries it"));
    let net = run.took.as_nanos() as f64 - empty.took.as_nanos() as f64;
    TIMES.with_borrow_mut(|times| times.push(net));
}

/// The medians of a trial's packets: of those that every round has sent, for a flood ends where the
/// clock says.
fn time(play: fn(), rounds: usize) -> Vec<f64> {
    let round = |_| {
        play();
        TIMES.take()
    };
    let rounds: Vec<Vec<f64>> = (0..rounds).map(round).collect();
    let packets = rounds.iter().map(Vec::len).min().unwrap_or(0);
    let of_packet = |n: usize| median(rounds.iter().map(|round| round[n]).collect());
    (0..packets).map(of_packet).collect()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
