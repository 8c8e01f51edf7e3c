//! The switch alone with the guests' driver on the other core: a worker in this process, on a
//! thread of its own.
//!
//! `path` has everything on one core, where no cache line goes to and fro; `switch` has processes,
//! sessions and peers, and takes minutes. This is what lies between, to compare two builds by in
//! turn: frames a second with one flow, with many, and of the largest size, the cycles of each
//! step, and round trips alone and beside 80 % of the rate. The worker's thread does what the
//! daemon's does, but does not sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dataplane::PortSlot;
use dataplane::load::{STEPS, WorkerLoad};

use crate::load::Load;
use crate::path::{self, MAX_FLOWS, Switch};
use crate::peers::PeerError;
use crate::plan::{PER_MILLE, Row};
use crate::report::{Ratios, Samples};
use crate::results::Row as _;
use crate::{latency, rate, regime};

/// One measurement.
const WINDOW: Duration = Duration::from_millis(300);

/// Runs it and prints the table.
pub fn run(core: usize, rounds: usize, only: &[String]) -> Result<Ratios, PeerError> {
    let driver = usize::from(core == 0);
    let mut ratios = Ratios::default();
    let chosen =
        |name: &str| only.is_empty() || only.iter().any(|start| name.starts_with(start.as_str()));
    let near = regime::measure_apart(driver, core)?;
    println!("a cache line there and back: {:.0} ns", near.round_trip_ns);
    for (frame_len, flows) in [(64, 1), (64, 1_000), (64, 1_000_000), (1518, 1)] {
        let load = Load::Udp { frame_len, flows };
        let round_trips = (frame_len, flows) == (64, 1) && chosen("rtt");
        if !chosen(&load.name()) && !round_trips {
            continue;
        }
        let mut rows = Rows::default();
        for _ in 0..rounds {
            round([core, driver], load, round_trips, &mut rows)?;
        }
        let best = rows.rates.quantile(1.0);
        let mean = rows.load.frames as f64 / rows.load.busy_turns as f64;
        println!(
            "{:<14} {} Mframes/s, best {:.1}; {mean:.1} frames a busy turn",
            load.name(),
            rows.rates.scaled(1e-6).summary(),
            best * 1e-6,
        );
        let steps = rows.load.steps.iter().zip(STEPS);
        let steps = steps.filter(|(step, _)| step.frames > 0);
        let steps = steps
            .map(|(step, name)| format!("{name} {:.1}", step.cycles as f64 / step.frames as f64));
        println!(
            "  TSC cycles a frame: {}",
            steps.collect::<Vec<_>>().join(", ")
        );
        ratios.push(format!("{}_mfps", load.name()), best * 1e-6);
        for (loaded, times) in [(false, &rows.alone), (true, &rows.loaded)] {
            for (per_mille, times) in PER_MILLE.into_iter().zip(times) {
                let name = Row::RoundTrip { loaded, per_mille }.name();
                if times.count() > 0 {
                    println!("{name:<18} {} us", times.scaled(1e6).summary());
                    ratios.push(format!("{name}_us"), times.median() * 1e6);
                }
            }
        }
    }
    Ok(ratios)
}

/// What was measured in all rounds.
#[derive(Default)]
struct Rows {
    rates: Samples,
    /// By [`PER_MILLE`].
    alone: [Samples; PER_MILLE.len()],
    loaded: [Samples; PER_MILLE.len()],
    /// Of the last round's worker, while rates were measured.
    load: WorkerLoad,
}

/// A new worker on the first core, and the guests' driver on the second.
fn round(
    cores: [usize; 2],
    load: Load,
    round_trips: bool,
    rows: &mut Rows,
) -> Result<(), PeerError> {
    let mut guests = [path::guest(load)?, path::guest(load)?];
    let ports = vec![
        (PortSlot(0).into(), guests[0].port()?),
        (PortSlot(1).into(), guests[1].port()?),
    ];
    let mut switch = Switch::new(ports, MAX_FLOWS, path::snapshot(crate::RULES)?)?;
    let (handle, stop) = (switch.handle(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            regime::pin(cores[0]);
            while !stop.load(Ordering::Relaxed) {
                switch.turn();
                std::hint::spin_loop();
            }
        });
        let driver = scope.spawn(|| {
            regime::pin(cores[1]);
            measure(&mut guests, load, round_trips, &handle, rows)
        });
        let done = driver.join();
        stop.store(true, Ordering::Relaxed);
        done.map_err(|_| PeerError("the guests' driver panicked".to_owned()))?
    })
}

fn measure(
    guests: &mut [crate::guest::Guest; 2],
    load: Load,
    round_trips: bool,
    switch: &dataplane::Switch,
    rows: &mut Rows,
) -> Result<(), PeerError> {
    rate::meet(guests)?;
    let rates = Samples::from(rate::measure(guests, load, WINDOW)?);
    rows.rates.extend(&rates);
    let loads = switch
        .loads()
        .map_err(|error| PeerError(error.to_string()))?;
    rows.load = loads.into_iter().next().unwrap_or_default();
    if round_trips {
        latency::begin(guests)?;
        let alone = Samples::from(latency::alone(guests, WINDOW)?);
        let loaded = Samples::from(latency::loaded(guests, 0.8 * rates.median(), WINDOW)?);
        for (index, per_mille) in PER_MILLE.into_iter().enumerate() {
            let share = f64::from(per_mille) / 1000.0;
            rows.alone[index].push(alone.quantile(share));
            rows.loaded[index].push(loaded.quantile(share));
        }
    }
    Ok(())
}
