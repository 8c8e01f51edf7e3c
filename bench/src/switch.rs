//! This switch and its peers on one core, compared window by window.
//!
//! A round starts all switches anew, connects two guests to each, halts them, and runs test after
//! test in [`passes`]; for 64 KiB frames, for many rules and for a third guest once more with
//! guests and configurations made for them. Between passes the distance of the two cores is
//! measured, and a pass counts for the regime that held at both its ends.

use std::time::Duration;

use crate::entrant::{Entrant, QUIET};
use crate::hugepages::HugePages;
use crate::load::Load;
use crate::options::Options;
use crate::passes::{self, Cores};
use crate::peers::{Peer, PeerError, Setup};
use crate::plan::{BASE, Plan, Row, Test};
use crate::report::{Ratios, Samples};
use crate::results::{Column, Results};
use crate::{aims, ceiling, interrupt, plot, table, wake};

/// For one switch (512 MiB) and two guests.
const HUGE_PAGES: u64 = 300;

/// One measurement of the driver's own limits.
const CEILING: Duration = Duration::from_millis(300);

/// Runs it and prints the tables.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let mut plan = Plan::new(options.quick, &options.row);
    plan.rounds = options.rounds.unwrap_or(plan.rounds);
    let chosen = |peer: &Peer| {
        let named = |part: &String| peer.name().contains(part.as_str());
        options.only.is_empty() || options.only.iter().any(named)
    };
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(chosen).collect();
    let results = measure_all(&plan, &peers, options.core)?;
    for (regime, table) in results.tables() {
        print!("{}{}", table::text(regime, table), aims::text(table));
    }
    if let Some(out) = &options.out {
        for (regime, table) in results.kept() {
            let picture = format!("\n![](switch-{regime}.svg)\n");
            table::write(out, "switch", regime, table, &picture, &aims::page(table))?;
            plot::write(out, regime, table)?;
        }
    }
    Ok(results.ratios(aims::ratios))
}

/// Floods alone: this switch and OVS-DPDK, which both track connections.
pub fn floods(quick: bool) -> Result<Ratios, PeerError> {
    let peers = [Peer::ButterflyRules, Peer::OvsCt];
    let results = measure_all(&Plan::of_floods(quick), &peers, 0)?;
    for (regime, table) in results.tables() {
        print!("{}", table::text(regime, table));
    }
    Ok(results.ratios(aims::of_each))
}

/// Round by round.
fn measure_all(plan: &Plan, peers: &[Peer], core: usize) -> Result<Results<Row, Peer>, PeerError> {
    let _pages = HugePages::reserve(HUGE_PAGES * peers.len() as u64)?;
    let cores = Cores::new(core);
    println!(
        "{} rounds of {} switches, at most {} minutes",
        plan.rounds,
        peers.len(),
        plan.budget.as_secs() / 60
    );
    let mut results = Results::new(plan.rows(), peers.to_vec());
    passes::rounds(plan.rounds, plan.budget, || {
        round(cores, plan, peers, &mut results)
    })?;
    Ok(results)
}

/// All switches, all tests.
fn round(
    cores: Cores,
    plan: &Plan,
    peers: &[Peer],
    results: &mut Results<Row, Peer>,
) -> Result<(), PeerError> {
    measure_machine(cores, plan, results)?;
    // Setup by setup, and what keeps its core awake by itself.
    let together = Setup::ALL.map(|setup| (setup, false));
    for (setup, apart) in together.into_iter().chain([(Setup::Small, true)]) {
        let tests: Vec<Test> = plan
            .tests
            .iter()
            .copied()
            .filter(|test| test.setup() == setup)
            .collect();
        let takes = |peer: &Peer| tests.iter().any(|test| peer.takes(*test));
        let own = peers
            .iter()
            .copied()
            .filter(|peer| peer.keeps_awake() == apart);
        let mut entrants = start(own.filter(takes), cores, setup)?;
        for test in tests {
            measure(test, cores, plan, &mut entrants, results)?;
        }
    }
    Ok(())
}

/// Starts switches one after the other. What fails is said and left out; only an interruption ends
/// the run.
fn start(
    peers: impl Iterator<Item = Peer>,
    cores: Cores,
    setup: Setup,
) -> Result<Vec<Entrant>, PeerError> {
    let mut entrants = Vec::new();
    for peer in peers {
        entrants.extend(passes::said(
            peer.name(),
            Entrant::start(peer, cores.switch, setup),
        ));
        interrupt::check()?;
    }
    Ok(entrants)
}

/// One test of all switches that take it.
fn measure(
    test: Test,
    cores: Cores,
    plan: &Plan,
    entrants: &mut [Entrant],
    results: &mut Results<Row, Peer>,
) -> Result<(), PeerError> {
    let mut entrants: Vec<&mut Entrant> = entrants
        .iter_mut()
        .filter(|entrant| entrant.peer.takes(test))
        .collect();
    if entrants.is_empty() {
        return Ok(());
    }
    for entrant in &mut entrants {
        entrant.begin(test);
        interrupt::check()?;
    }
    passes::run(
        cores,
        plan.passes(test),
        &mut entrants,
        results,
        |entrant| entrant.window(plan),
    )?;
    for entrant in &mut entrants {
        entrant.end();
    }
    interrupt::check()
}

/// What limits all of them: the driver alone, and how fast a sleeping thread is woken.
fn measure_machine(
    cores: Cores,
    plan: &Plan,
    results: &mut Results<Row, Peer>,
) -> Result<(), PeerError> {
    let before = cores.regime();
    let many = Load::Udp {
        frame_len: 64,
        flows: 1000,
    };
    let mut notes = Vec::new();
    for (what, load) in [
        ("driver, Mframes/s", BASE),
        ("driver that writes to each frame, Mframes/s", many),
    ] {
        notes.push((
            what,
            Samples::from(ceiling::measure(cores.switch, load, CEILING)?).scaled(1e-6),
        ));
    }
    if plan.tests.contains(&Test::Idle) {
        let times = wake::measure(cores.switch, plan.first_frames, QUIET)?;
        notes.push((aims::WAKE, Samples::from(times).scaled(1e6)));
    }
    let after = cores.regime();
    for (what, samples) in notes {
        results.note(before, after, what, &samples);
    }
    Ok(())
}
