//! `make bench-balancer`: what the load balancer's program costs, packet by packet, beside its
//! peers.
//!
//! Nanoseconds by BPF_PROG_TEST_RUN over frames of many flows (`bpf/again.bpf.c`), less the same
//! with an empty program that sends back (XDP_TX) in its place; beside it a program of the usual
//! design (`classic.rs`). Then frames a second over veth for real, beside that program and the
//! kernel's own balancer, nftables (`live.rs`), real sockets over veths as the kernel sets them
//! (`sockets.rs`), and what a flow costs in memory. All who are compared take turns; medians of all
//! rounds. The last line is the ratios as `name=value` pairs. `--quick`: fewer rounds; `--out DIR`:
//! where the table and the data go; `rows`, `live` or `sockets`: that part alone.

mod again;
mod classic;
mod live;
mod measure;
mod memory;
mod rows;
mod sockets;
mod stage;

use testkit::results::Results;

fn main() {
    // `cargo bench` passes flags of its own.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|word| word == "--quick");
    let out = words.iter().position(|word| word == "--out");
    let named = words
        .iter()
        .any(|word| ["rows", "live", "sockets"].contains(&word.as_str()));
    let wanted = |part: &str| !named || words.iter().any(|word| word == part);
    let rounds = if quick { 7 } else { 31 };
    let mut results = Results::new("balancer");
    if wanted("rows") {
        measure::all(&mut results, rounds);
    }
    if wanted("live") {
        live::measure(&mut results, rounds);
    }
    if wanted("sockets") {
        sockets::measure(&mut results, if quick { 5 } else { 15 });
    }
    memory::measure(&mut results);
    if let Some(folder) = out.and_then(|at| words.get(at + 1)) {
        results
            .write(folder.as_ref())
            .expect("the files can be written");
    }
    println!("{}", results.pairs());
}
