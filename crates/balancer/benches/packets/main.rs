//! `make bench-balancer`: what the load balancer's program costs, packet by packet, beside a program that only sends back.
//!
//! Each row is nanoseconds by BPF_PROG_TEST_RUN over frames of many flows (`bpf/again.bpf.c`), less the same with the empty program in
//! its place, the two measured in turn, medians of all rounds. Then frames a second over veth
//! for real, and what a flow costs in memory. The last line is the ratios as `name=value` pairs. `--quick`: fewer rounds.

mod again;
mod live;
mod rows;

fn main() {
    // `cargo bench` passes flags of its own.
    let quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 7 } else { 31 };
    println!(
        "nanoseconds a packet, net of an empty program that sends back (XDP_TX); medians of {rounds} rounds"
    );
    let mut ratios = rows::measure(rounds);
    ratios.extend(live::measure(rounds));
    ratios.push(("bytes_per_flow".to_owned(), rows::bytes_per_flow()));
    println!("peers: neither xvs nor Katran is on this machine");
    let pairs: Vec<_> = ratios
        .iter()
        .map(|(name, value)| format!("{name}={value:.1}"))
        .collect();
    println!("{}", pairs.join(" "));
}
