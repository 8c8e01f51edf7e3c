//! Frames a second from guest to guest through each switch on one core, in alternating rounds.

use std::time::Duration;

use crate::guest::Guest;
use crate::hugepages::HugePages;
use crate::load::{self, Load};
use crate::peers::{Peer, PeerError};
use crate::regime;
use crate::report::{Ratios, Samples};

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// For one switch (512 MiB) and two guests.
const HUGE_PAGES: u64 = 640;

/// What is measured, how long, how often.
struct Plan {
    loads: Vec<Load>,
    rounds: usize,
    duration: Duration,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        let udp = |frame_len, flows| Load::Udp { frame_len, flows };
        if quick {
            let loads = vec![udp(64, 1), udp(64, 1_000_000), udp(1518, 1), Load::Tso];
            return Plan {
                loads,
                rounds: 3,
                duration: Duration::from_millis(500),
            };
        }
        let sizes = [64, 256, 512, 1024, 1518].map(|size| udp(size, 1));
        let flows = [1_000, 10_000, 100_000, 1_000_000].map(|flows| udp(64, flows));
        let loads = [&sizes[..], &flows[..], &[Load::Tso]].concat();
        Plan {
            loads,
            rounds: 7,
            duration: Duration::from_secs(1),
        }
    }
}

/// Runs it and prints the table.
pub fn run(quick: bool, core: usize, only: &[String]) -> Result<Ratios, PeerError> {
    let plan = Plan::new(quick);
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let driver_core = usize::from(core == 0);
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(|peer| chosen(*peer, only)).collect();
    // samples[peer][load]
    let mut samples = vec![vec![Samples::default(); plan.loads.len()]; peers.len()];
    let mut round_trips = Samples::default();
    for round in 1..=plan.rounds {
        let regime = regime::measure(driver_core, core);
        round_trips.push(regime.round_trip_ns);
        eprintln!(
            "round {round} of {}: cores are {} ({:.0} ns)",
            plan.rounds,
            regime.name(),
            regime.round_trip_ns
        );
        for (peer, samples) in peers.iter().zip(&mut samples) {
            if let Err(error) = measure(*peer, core, &plan, samples) {
                eprintln!("{}: not measured: {error}", peer.name());
            }
        }
    }
    let regime = regime::Regime {
        round_trip_ns: round_trips.median(),
    };
    println!(
        "cores {}: a cache line there and back {:.0} ns (spread {:.0} %); {} rounds of {} ms",
        regime.name(),
        regime.round_trip_ns,
        round_trips.spread() * 100.0,
        plan.rounds,
        plan.duration.as_millis()
    );
    print_table(&peers, &plan, &samples);
    Ok(ratios(&peers, &plan, &samples))
}

fn chosen(peer: Peer, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| peer.name().contains(part.as_str()))
}

/// One round of one switch: all loads. A guest with 64 KiB buffers needs a connection of its own.
fn measure(peer: Peer, core: usize, plan: &Plan, samples: &mut [Samples]) -> Result<(), PeerError> {
    for large in [false, true] {
        let wanted = |load: &Load| matches!(load, Load::Tso) == large;
        if !plan.loads.iter().any(wanted) {
            continue;
        }
        let dir = tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
        let running = peer.start(dir.path(), core)?;
        let (ring, frame_max) = if large {
            (RING_LARGE, 65_536)
        } else {
            (RING, 2_036)
        };
        let mut guests = [Guest::new(ring, frame_max)?, Guest::new(ring, frame_max)?];
        let sessions = running.connect(&guests)?;
        for (load, samples) in plan
            .loads
            .iter()
            .zip(samples.iter_mut())
            .filter(|(load, _)| wanted(load))
        {
            samples.push(load::rate(&mut guests, *load, plan.duration)?);
        }
        drop(sessions);
    }
    Ok(())
}

fn print_table(peers: &[Peer], plan: &Plan, samples: &[Vec<Samples>]) {
    print!("{:<18}", "Mframes/s");
    for peer in peers {
        print!("{:>24}", peer.name());
    }
    println!();
    for (index, load) in plan.loads.iter().enumerate() {
        print!("{:<18}", load.name());
        for samples in samples {
            let samples = &samples[index];
            let rate = samples.median();
            let gbit = rate * load.frame_bytes() as f64 * 8e-9;
            print!(
                "{:>9.3} {gbit:>6.1}G ±{:>3.0}%",
                rate * 1e-6,
                samples.spread() * 50.0
            );
        }
        println!();
    }
}

/// Ours over each peer's, for every load.
fn ratios(peers: &[Peer], plan: &Plan, samples: &[Vec<Samples>]) -> Ratios {
    let mut ratios = Ratios::default();
    let rate = |peer: Peer, load: usize| {
        let found = peers.iter().position(|other| *other == peer);
        found.map_or(f64::NAN, |found| samples[found][load].median())
    };
    for (index, load) in plan.loads.iter().enumerate() {
        let ours = rate(Peer::ButterflyRules, index);
        for peer in [Peer::Testpmd, Peer::OvsNormal, Peer::OvsCt] {
            ratios.push(
                format!("{}_vs_{}", load.name(), peer.name()),
                ours / rate(peer, index),
            );
        }
        ratios.push(
            format!("{}_rules_vs_open", load.name()),
            ours / rate(Peer::ButterflyOpen, index),
        );
    }
    ratios
}
