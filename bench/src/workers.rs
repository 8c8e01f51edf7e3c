//! One worker against two: what they cost each other ([`crate::sharing`]), and the rate of two
//! pairs of guests, each pair a network of its own, driven by one driver.
//!
//! The driver alone does many times what two workers do (`switch` prints its ceiling), so one core
//! is enough for it; with the two workers that makes three. Where there are fewer the workers would
//! share a core with each other or with the driver, and the number would mean nothing: it is not
//! measured.

use std::time::Duration;

use crate::guest::Guest;
use crate::hugepages::HugePages;
use crate::load::{Load, Turns};
use crate::peers::{PeerError, butterfly};
use crate::plan::{BASE, Row};
use crate::rate;
use crate::regime;
use crate::report::{Ratios, Samples};
use crate::results::Row as _;
use crate::sharing;

/// Guest memory only.
const HUGE_PAGES: u64 = 64;

const PAIRS: usize = 2;

/// What the command line says.
#[derive(clap::Args)]
pub struct Options {
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
    /// The core of the guests' driver; the workers run on the first two that are left.
    #[arg(long, default_value_t = 2)]
    driver: usize,
    /// Measure even where there are not three processors: only to see that it works.
    #[arg(long)]
    anyway: bool,
}

/// Runs it and prints the table.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ratios = Ratios::default();
    if processors < 2 {
        println!("skipped: two workers need two processors");
        ratios.push("skipped", 1.0);
        return Ok(ratios);
    }
    print_regime()?;
    sharing::run([0, 1], options.quick, &mut ratios)?;
    if processors < 3 && !options.anyway {
        println!(
            "no rates: two workers and the guests' driver need three processors, here are \
             {processors}"
        );
        return Ok(ratios);
    }
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let driver = options.driver.min(processors - 1);
    let mut cores = (0..processors).filter(|core| *core != driver || processors < 3);
    let [first, second] = [0, 1].map(|core| cores.next().unwrap_or(core));
    regime::pin(driver);
    let many = Load::Udp {
        frame_len: 64,
        flows: 1_000,
    };
    for load in [BASE, many] {
        let mut samples = [Samples::default(), Samples::default()];
        for _ in 0..if options.quick { 2 } else { 7 } {
            for (workers, samples) in [first.to_string(), format!("{first},{second}")]
                .iter()
                .zip(&mut samples)
            {
                for rate in measure(workers, load)? {
                    samples.push(rate);
                }
            }
        }
        let name = Row::Rate(load).name();
        let [one, two] = samples
            .each_ref()
            .map(|samples| samples.scaled(1e-6).summary());
        println!("{name:<14} one worker {one} Mframes/s, two {two}");
        ratios.push(
            format!("{name}_two_vs_one"),
            samples[1].median() / samples[0].median(),
        );
    }
    Ok(ratios)
}

/// How far the two cores are from each other.
fn print_regime() -> Result<(), PeerError> {
    let regime = regime::measure_apart(0, 1)?;
    let path = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let siblings = std::fs::read_to_string(path).unwrap_or_default();
    println!(
        "{} cores: a cache line there and back takes {:.0} ns; threads of the first one's core: {}",
        regime.name(),
        regime.round_trip_ns,
        siblings.trim()
    );
    Ok(())
}

/// Frames a second that reach their guests, in each of [`rate::WINDOWS`] windows.
fn measure(cores: &str, load: Load) -> Result<Vec<f64>, PeerError> {
    let dir =
        tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
    let running = butterfly::start_pairs(dir.path(), cores, true, PAIRS)?;
    let mut pairs = Vec::new();
    let mut sessions = Vec::new();
    for running in &running {
        let mut guests = [Guest::new(1024, 2_036)?, Guest::new(1024, 2_036)?];
        sessions.push(running.connect(&guests)?);
        rate::meet(&mut guests)?;
        rate::prepare(&mut guests, load)?;
        pairs.push(guests);
    }
    let mut pairs: Vec<&mut [Guest; 2]> = pairs.iter_mut().collect();
    let mut turns = Turns::of(load);
    let window = Duration::from_millis(300);
    // The first gives the workers time to share the queues.
    let mut flood = |window| rate::flood_pairs(&mut pairs, &mut turns, 0, window, window);
    flood(Duration::from_secs(2))?;
    (0..rate::WINDOWS).map(|_| flood(window)).collect()
}
