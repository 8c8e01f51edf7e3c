//! Nanoseconds a packet by BPF_PROG_TEST_RUN: all of the program, from the Ethernet header to the
//! redirect; beside it the least that forwards by `bpf_fib_lookup` (`bpf/fib.bpf.c`). And what a
//! live frame takes with the smallest table and the largest, to the most destinations.

use std::net::IpAddr;
use std::time::Instant;

use xdp::{Program, Scatter, Verdict, objects};

use crate::lab::{destinations, frame, inside, large, load, namespace, prefixes};
use crate::live::Cable;
use crate::ours::Ours;
use crate::turns::Turns;
use testkit::netns::Namespace;
use testkit::results::Results;

const ROUTES: [(&str, usize); 4] = [
    ("10", 10),
    ("1k", 1_000),
    ("100k", 100_000),
    ("1M", 1_000_000),
];
/// Seconds for a table to be followed.
const PATIENCE: u64 = 60;
const DESTINATIONS: [(&str, usize); 3] = [("1", 1), ("8k", 8_192), ("1M", 1 << 20)];
/// Live frames of a window: as many as there are destinations at most.
const FRAMES: u32 = 1 << 20;

/// Packets before a window.
const WARM_UP: u32 = 1 << 16;

/// What a table of some size costs, nanoseconds by round.
#[derive(Default)]
struct Costs {
    /// The router's and the kernel's lookup, by destinations.
    lookup: [[Vec<f64>; 2]; DESTINATIONS.len()],
    live: Vec<f64>,
}

/// Ours and the kernel's lookup by routes and destinations, of each family; what a million routes
/// cost in terms of ten. Tables of all sizes are there at once, each in a namespace of its own, and
/// have windows in turn.
pub fn measure(results: &mut Results, rounds: usize) {
    for v6 in [false, true] {
        let turns = Turns::new(ROUTES.len());
        let all: Vec<Costs> = std::thread::scope(|scope| {
            let turns = &turns;
            let begin = |number| scope.spawn(move || table(v6, number, turns, rounds));
            let threads: Vec<_> = (0..ROUTES.len()).map(begin).collect();
            let costs = threads.into_iter().map(|thread| thread.join());
            costs
                .map(|costs| costs.expect("a table was measured"))
                .collect()
        });
        report(results, if v6 { "v6" } else { "v4" }, all);
    }
}

fn report(results: &mut Results, family: &str, all: Vec<Costs>) {
    let (least, most) = (&all[0], &all[ROUTES.len() - 1]);
    for (at, (to, _)) in DESTINATIONS.iter().enumerate() {
        let name = format!("{family}_1M_to_10_routes_{to}_dst");
        results.ratio_by_round(&name, &most.lookup[at][0], &least.lookup[at][0]);
    }
    let name = format!("live_{family}_1M_to_10_routes");
    results.ratio_by_round(&name, &most.live, &least.live);
    for ((routes, _), costs) in ROUTES.into_iter().zip(all) {
        for ((to, _), [mine, kernels]) in DESTINATIONS.into_iter().zip(costs.lookup) {
            let what = format!("{family} {routes} routes {to} dst");
            results.add(&what, "router", "ns", mine);
            results.add(&what, "fib_lookup", "ns", kernels);
        }
        let what = format!("live {family} {routes} routes 1M dst");
        results.add(&what, "router", "ns", costs.live);
    }
}

/// Measures the table of `ROUTES[number]` when it is its turn.
fn table(v6: bool, number: usize, turns: &Turns, rounds: usize) -> Costs {
    let namespace = namespace();
    let mut costs = Costs::default();
    inside(&namespace, async || {
        turns.join();
        let turn = turns.take(number);
        let (ours, prefixes) = follow(&namespace, v6, ROUTES[number]).await;
        let program =
            |name, object| Program::load(name, object, |_| Ok(())).expect("the program loads");
        let (empty, fib) = (
            program("transmit", objects::TRANSMIT),
            program("fib", objects::FIB),
        );
        let most = DESTINATIONS
            .map(|(_, count)| count as u32)
            .into_iter()
            .max();
        let scatter = Scatter::new(most.unwrap_or(1)).expect("the program loads");
        let cable = Cable::new(&namespace, &[&scatter]);
        let frame = frame(v6, 64);
        drop(turn);
        for ((_, count), [mine, kernels]) in DESTINATIONS.into_iter().zip(&mut costs.lookup) {
            let turn = turns.take(number);
            let to = destinations(&prefixes, count);
            scatter.set_frame(&frame, &to, 0).expect("there is room");
            drop(turn);
            let times = (count as u32).max(1 << 18);
            let once = |program: &Program, verdict| {
                scatter.hand_on_to(program).expect("one of XDP");
                let run = |times| {
                    let run = xdp::run(scatter.program(), &frame, cable.east, times)
                        .expect("the kernel tries it");
                    assert_eq!(run.verdict, verdict);
                    run.took.as_nanos() as f64
                };
                // What the others have pushed out of the caches comes back first.
                run(WARM_UP);
                run(times)
            };
            for round in 0..=rounds {
                let _turn = turns.take(number);
                let nothing = once(&empty, Verdict::Transmit);
                let net = once(ours.service.router.program(), Verdict::Redirect) - nothing;
                let theirs = once(&fib, Verdict::Redirect) - nothing;
                // The first one fills the caches.
                if round > 0 {
                    mine.push(net);
                    kernels.push(theirs);
                }
            }
        }
        scatter
            .hand_on_to(ours.service.router.program())
            .expect("one of XDP");
        for round in 0..=rounds {
            let _turn = turns.take(number);
            let took = cable.once(&scatter, &frame, FRAMES);
            if round > 0 {
                costs.live.push(took);
            }
        }
    });
    costs
}

/// A router with so many routes, which it has followed, and their prefixes.
async fn follow(
    namespace: &Namespace,
    v6: bool,
    (name, routes): (&str, usize),
) -> (Ours, Vec<(IpAddr, u8)>) {
    let prefixes = prefixes(v6, routes);
    let before = resident_kib();
    let mut ours = Ours::start(&large()).await;
    // The router follows while `ip -batch` adds: what it takes longer is its own.
    let had = ours.prefixes(v6);
    let took = load(namespace, &prefixes).as_secs_f64();
    let start = Instant::now();
    ours.until_within(PATIENCE, "million", |ours| {
        ours.prefixes(v6) >= had + routes
    })
    .await;
    assert_eq!(ours.notes(), Vec::<String>::new());
    let behind = start.elapsed().as_secs_f64();
    let memory = (resident_kib() - before) / 1024;
    let lines = ours.report().tables[usize::from(v6)].nodes;
    println!(
        "{}, {name} routes: added in {took:.2} s, followed {behind:.2} s later; \
         the table takes {} KiB, this process {memory} MiB more",
        if v6 { "v6" } else { "v4" },
        lines / 16
    );
    (ours, prefixes)
}

/// Memory of this process that is resident.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
