//! Nanoseconds a packet by BPF_PROG_TEST_RUN: all of the program, from the Ethernet header to the redirect; beside it the
//! least that forwards by `bpf_fib_lookup` (`bpf/fib.bpf.c`). And what a live frame takes with the smallest table and the
//! largest, to the most destinations.

use std::time::Instant;

use xdp::{Program, Verdict, objects};

use crate::lab::{destinations, frame, inside, large, load, namespace, prefixes};
use crate::live;
use crate::ours::Ours;
use crate::scatter::Scatter;
use testkit::results::Results;

const ROUTES: [(&str, usize); 4] = [("10", 10), ("1k", 1_000), ("100k", 100_000), ("1M", 1_000_000)];
/// Seconds for a table to be followed.
const PATIENCE: u64 = 60;
const DESTINATIONS: [(&str, usize); 3] = [("1", 1), ("8k", 8_192), ("1M", 1 << 20)];

/// What a table of some size costs, nanoseconds.
struct Costs {
    /// By destinations.
    lookup: Vec<f64>,
    live: f64,
}

/// Ours and the kernel's lookup by routes and destinations, of each family; what a million routes cost in terms of ten.
pub fn measure(results: &mut Results, rounds: usize) {
    for family in ["v4", "v6"] {
        let mut ours = Vec::new();
        for (name, routes) in ROUTES {
            ours.push(row(results, family, (name, routes), rounds));
        }
        let (least, most) = (&ours[0], &ours[ROUTES.len() - 1]);
        for (at, (name, _)) in DESTINATIONS.iter().enumerate() {
            let ratio = most.lookup[at] / least.lookup[at];
            results.ratio(&format!("{family}_1M_to_10_routes_{name}_dst"), ratio);
        }
        results.ratio(&format!("live_{family}_1M_to_10_routes"), most.live / least.live);
    }
}

fn row(results: &mut Results, family: &str, (name, routes): (&str, usize), rounds: usize) -> Costs {
    let v6 = family == "v6";
    let namespace = namespace();
    let prefixes = prefixes(v6, routes);
    let mut costs = Costs {
        lookup: Vec::new(),
        live: 0.0,
    };
    inside(&namespace, async || {
        let before = resident_kib();
        let mut ours = Ours::start(&large()).await;
        let program = |name, object| Program::load(name, object, |_| Ok(())).expect("the program loads");
        let (empty, fib) = (
            program("transmit", objects::TRANSMIT),
            program("fib", objects::FIB),
        );
        // The router follows while `ip -batch` adds: what it takes longer is its own.
        let had = ours.prefixes(v6);
        let took = load(&namespace, &prefixes).as_secs_f64();
        let start = Instant::now();
        ours.until_within(PATIENCE, "million", |ours| ours.prefixes(v6) >= had + routes)
            .await;
        assert_eq!(ours.notes(), Vec::<String>::new());
        let behind = start.elapsed().as_secs_f64();
        let memory = (resident_kib() - before) / 1024;
        let lines = ours.report().tables[usize::from(v6)].nodes;
        println!(
            "{family}, {name} routes: added in {took:.2} s, followed {behind:.2} s later; the table takes {} KiB, this process {memory} MiB more",
            lines / 16
        );
        let scatter = Scatter::new();
        let east = namespace.ifindex("east").expect("an interface");
        let frame = frame(v6, 64);
        for (to, count) in DESTINATIONS {
            scatter.tell(&frame, &destinations(&prefixes, count), 0);
            let times = (count as u32).max(1 << 18);
            let once = |program: &Program, verdict| {
                scatter.hand_on_to(program);
                let run = xdp::run(&scatter.program, &frame, east, times).expect("the kernel tries it");
                assert_eq!(run.verdict, verdict);
                run.took.as_nanos() as f64
            };
            let (mut mine, mut kernels) = (Vec::new(), Vec::new());
            for round in 0..=rounds {
                let nothing = once(&empty, Verdict::Transmit);
                let net = once(ours.service.router.program(), Verdict::Redirect) - nothing;
                let theirs = once(&fib, Verdict::Redirect) - nothing;
                // The first one fills the caches.
                if round > 0 {
                    mine.push(net);
                    kernels.push(theirs);
                }
            }
            let what = format!("{family} {name} routes {to} dst");
            costs.lookup.push(results.add(&what, "router", "ns", mine));
            results.add(&what, "fib_lookup", "ns", kernels);
        }
        scatter.hand_on_to(ours.service.router.program());
        let live = live::through(&scatter, &namespace, &frame, rounds);
        costs.live = results.add(
            &format!("live {family} {name} routes 1M dst"),
            "router",
            "ns",
            live,
        );
    });
    costs
}

/// Of this process.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
