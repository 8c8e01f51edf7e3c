//! `make bench-router`: what the router costs beside the kernel, in namespaces of its own.
//!
//! Nanoseconds a packet by BPF_PROG_TEST_RUN, net of an empty program in the same place, by routes
//! and destinations (`lookup.rs`); live frames over veths (`live.rs`); UDP round trips
//! (`roundtrip.rs`); real sockets over veths as the kernel sets them (`sockets.rs`); access lists
//! by the number of their rules (`acl.rs`); two CPUs beside one (`cpus.rs`). Peers alternate in one
//! run; medians of all rounds. The last line is the ratios as `name=value` pairs. `--quick`: fewer
//! rounds; `--out DIR`: where the table and the data go; `lookup`, `live`, `roundtrip`, `sockets`,
//! `acl` or `cpus`: that part alone.

mod acl;
mod cpus;
mod lab;
mod live;
mod lookup;
#[path = "../../tests/router/ours.rs"]
mod ours;
mod roundtrip;
mod sockets;
mod turns;

use testkit::results::Results;

fn main() {
    // `cargo bench` passes flags of its own.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|word| word == "--quick");
    let out = words.iter().position(|word| word == "--out");
    let parts = ["lookup", "live", "roundtrip", "sockets", "acl", "cpus"];
    let named = words.iter().any(|word| parts.contains(&word.as_str()));
    let wanted = |part: &str| !named || words.iter().any(|word| word == part);
    let mut results = Results::new("router");
    if wanted("live") {
        live::measure(&mut results, if quick { 25 } else { 75 });
    }
    if wanted("cpus") {
        cpus::measure(&mut results, if quick { 5 } else { 15 });
    }
    if wanted("acl") {
        acl::measure(&mut results, if quick { 3 } else { 11 });
    }
    if wanted("roundtrip") {
        roundtrip::measure(&mut results, if quick { 5 } else { 15 });
    }
    if wanted("sockets") {
        sockets::measure(&mut results, if quick { 5 } else { 15 });
    }
    if wanted("lookup") {
        lookup::measure(&mut results, if quick { 5 } else { 21 });
    }
    if let Some(folder) = out.and_then(|at| words.get(at + 1)) {
        results
            .write(folder.as_ref())
            .expect("the files can be written");
    }
    println!("{}", results.pairs());
}
