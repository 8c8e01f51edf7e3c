//! This switch and its peers on one core, in alternating rounds.
//!
//! A round starts each switch anew, connects two guests to it, runs all tests and stops it; for 64 KiB frames once
//! more with guests and a configuration made for them. Before and after a round the distance of the two cores is
//! measured, and a round counts for the regime that held all through it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::guest::Guest;
use crate::hugepages::HugePages;
use crate::load::Load;
use crate::peers::{Peer, PeerError, Running};
use crate::plan::{BASE, PER_MILLE, Plan, Row, Test};
use crate::report::{Ratios, Samples};
use crate::results::{MIXED, Results, Table};
use crate::{ceiling, connections, idle, interrupt, latency, plot, rate, regime, table, wake};

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// For one switch (512 MiB) and two guests.
const HUGE_PAGES: u64 = 640;

/// Before the first frame after a quiet time. A worker sleeps much sooner.
const QUIET: Duration = Duration::from_millis(20);

/// What the command line says.
#[derive(clap::Args)]
pub struct Options {
    /// Fewer sizes, rounds and seconds: under five minutes.
    #[arg(long)]
    quick: bool,
    /// The core of the switch; the guests' driver runs on the other.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Measure only the switches whose names contain one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Measure only the rows whose names begin with one of these.
    #[arg(long)]
    row: Vec<String>,
    /// Rounds, for fewer or more than usual.
    #[arg(long)]
    rounds: Option<usize>,
    /// Where the data, the table and the plot of each regime are written: switch-near.tsv, .md and .svg.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs it and prints the tables.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let mut plan = Plan::new(options.quick, &options.row);
    plan.rounds = options.rounds.unwrap_or(plan.rounds);
    let chosen = |peer: &Peer| {
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|part| peer.name().contains(part.as_str()))
    };
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(chosen).collect();
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let driver_core = usize::from(options.core == 0);
    println!(
        "{} rounds of {} switches, at most {} minutes",
        plan.rounds,
        peers.len(),
        plan.budget.as_secs() / 60
    );
    let mut results = Results::default();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for round in 1..=plan.rounds {
        if start.elapsed() + longest > plan.budget {
            println!("the time is over after {} rounds", round - 1);
            break;
        }
        let begun = Instant::now();
        let before = regime::measure(driver_core, options.core);
        let mut table = Table::new(&plan.rows(), &peers);
        measure_driver(options.core, &plan, &mut table)?;
        if plan.tests.contains(&Test::Idle) {
            let times = Samples::from(wake::measure(options.core, plan.first_frames, QUIET)?);
            table.wakes.push(times.median());
        }
        for peer in &peers {
            eprint!("round {round}: {} ...", peer.name());
            let begun = Instant::now();
            measure(*peer, options.core, &plan, &mut table)?;
            eprintln!(" {:.1} s", begun.elapsed().as_secs_f64());
        }
        let after = regime::measure(driver_core, options.core);
        eprintln!(
            "round {round} of {}: cores {} before ({:.0} ns), {} after ({:.0} ns); {:.0} s",
            plan.rounds,
            before.name(),
            before.round_trip_ns,
            after.name(),
            after.round_trip_ns,
            begun.elapsed().as_secs_f64()
        );
        results.add(before, after, table);
        longest = longest.max(begun.elapsed());
    }
    let mut ratios = Ratios::default();
    for (regime, table) in results.tables() {
        print!("{}", table::text(regime, table));
        // A table of rounds that were neither near nor far is shown, and is nothing to keep.
        if let Some(out) = options.out.as_ref().filter(|_| regime != MIXED) {
            table::write(out, regime, table)?;
            table::write_markdown(out, regime, table)?;
            plot::write(out, regime, table)?;
        }
        ratios = table::ratios(table);
    }
    Ok(ratios)
}

/// The driver's own limits.
fn measure_driver(core: usize, plan: &Plan, table: &mut Table) -> Result<(), PeerError> {
    let many = Load::Udp {
        frame_len: 64,
        flows: 1000,
    };
    for (load, samples) in [BASE, many].into_iter().zip(&mut table.ceilings) {
        for rate in ceiling::measure(core, load, plan.duration)? {
            samples.push(rate);
        }
    }
    Ok(())
}

/// One round of one switch: all tests. What fails is said and left out; only an interruption ends the run.
fn measure(peer: Peer, core: usize, plan: &Plan, table: &mut Table) -> Result<(), PeerError> {
    for large in [false, true] {
        let tests: Vec<Test> = plan
            .tests
            .iter()
            .copied()
            .filter(|test| test.is_large() == large && peer.takes(*test))
            .collect();
        if tests.is_empty() {
            continue;
        }
        if let Err(error) = session(peer, core, plan, large, &tests, table) {
            interrupt::check()?;
            eprint!(" not measured: {error};");
        }
    }
    Ok(())
}

/// Starts a switch, connects guests and runs tests.
fn session(
    peer: Peer,
    core: usize,
    plan: &Plan,
    large: bool,
    tests: &[Test],
    table: &mut Table,
) -> Result<(), PeerError> {
    let dir = tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
    let running = peer.start(dir.path(), core, large)?;
    let (ring, frame_max) = if large {
        (RING_LARGE, 65_536)
    } else {
        (RING, 2_036)
    };
    let mut guests = [Guest::new(ring, frame_max)?, Guest::new(ring, frame_max)?];
    let _sessions = running.connect(&guests)?;
    rate::meet(&mut guests)?;
    for test in tests {
        running.forget_connections()?;
        if let Err(error) = one(*test, peer, plan, &running, &mut guests, table) {
            interrupt::check()?;
            eprint!(" {}: {error};", test.rows()[0].name());
            rate::drain(&mut guests)?;
        }
    }
    Ok(())
}

fn one(
    test: Test,
    peer: Peer,
    plan: &Plan,
    running: &Running,
    guests: &mut [Guest; 2],
    table: &mut Table,
) -> Result<(), PeerError> {
    match test {
        Test::Rate(load) => {
            for rate in rate::measure(guests, load, plan.duration)? {
                table.push(peer, Row::Rate(load), rate);
            }
        }
        Test::Connections => {
            for rate in connections::measure(guests, plan.duration)? {
                table.push(peer, Row::Connections, rate);
            }
        }
        Test::Alone | Test::Loaded => {
            let loaded = test == Test::Loaded;
            let most = table.get(peer, Row::Rate(BASE)).median();
            if loaded && !most.is_finite() {
                return Err(PeerError("the rate that 80 % are of is not known".to_owned()));
            }
            for _ in 0..rate::WINDOWS {
                let duration = plan.duration / rate::WINDOWS;
                let times = if loaded {
                    latency::loaded(guests, 0.8 * most, duration)?
                } else {
                    latency::alone(guests, duration)?
                };
                let times = Samples::from(times);
                for per_mille in PER_MILLE {
                    let time = times.quantile(f64::from(per_mille) / 1000.0);
                    table.push(peer, Row::RoundTrip { loaded, per_mille }, time);
                }
            }
        }
        Test::Idle => {
            for _ in 0..2 {
                let used = idle::measure(&running.pids(), plan.idle / 2)?;
                table.push(peer, Row::IdleCpu, used.percent);
                if peer.sleeps() && used.percent > 1.0 {
                    eprint!(" not idle: {used};");
                }
                let times = Samples::from(latency::after_quiet(guests, plan.first_frames, QUIET)?);
                table.push(peer, Row::FirstFrame { longest: false }, times.median());
                table.push(peer, Row::FirstFrame { longest: true }, times.quantile(1.0));
            }
        }
    }
    Ok(())
}
