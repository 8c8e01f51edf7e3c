//! The project's benchmarks: itself and its peers, side by side in one run, as ratios.
//!
//! Speed on a shared machine means nothing by itself, so nothing here is compared with a number
//! from another day, nor from another minute: all switches are up at once, have short windows in
//! turn ([`passes`]), and what is reported are medians, their spread and the ratio to the peer of
//! windows that follow each other. `switch` measures frames from guest to guest, `path` where the
//! cycles of a frame go, `control` the time a request takes, `restart` how long nothing passes when
//! the switch itself goes. The last line of each is its ratios as `name=value` pairs.

mod aims;
mod beside;
mod ceiling;
mod changes;
mod connections;
mod containers;
mod control;
mod devices;
mod durable;
mod entrant;
mod exchange;
mod flood;
mod guest;
mod hugepages;
mod idle;
mod interrupt;
mod latency;
mod load;
mod neighbours;
mod options;
mod overlay;
mod page;
mod passes;
mod path;
mod peers;
mod plan;
mod plot;
mod rate;
mod regime;
mod report;
mod restart;
mod results;
mod ring;
mod scale;
mod seeing;
mod sharing;
mod short;
mod switch;
mod table;
mod tunnel;
mod wake;
mod workers;

use clap::Parser;

/// Rules that every filtering switch has to look at.
pub const RULES: u16 = 100;

/// The rules that the traffic does not match are for TCP ports from here on.
pub const FIRST_RULE_PORT: u16 = 20_000;

/// The benchmark's traffic goes to this port, and with many flows to the next ones as well: a range
/// of [`TRAFFIC_PORTS`], which is one rule here and one masked match in OVS, for TCP and for UDP.
pub const TRAFFIC_PORT: u16 = 7_040;

/// How many destination ports the last rule allows: a power of two that divides [`TRAFFIC_PORT`].
pub const TRAFFIC_PORTS: u16 = 128;

/// Measures the switch and its control plane beside their peers.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Frames and connections a second, round trips and idle cost, on one core: this switch,
    /// testpmd, OVS-DPDK.
    Switch(options::Options),
    /// What two workers cost each other, with flows of their own and with the same; and one worker
    /// against two by their rates, where there are three processors.
    Workers(workers::Options),
    /// Cycles a frame, step by step, of the switch alone: no other process, no other core.
    Path {
        /// A tenth of the windows.
        #[arg(long)]
        quick: bool,
        /// Measure only the loads whose names begin with one of these.
        #[arg(long)]
        only: Vec<String>,
    },
    /// Frames a second and round trips of the switch alone, a worker in this process, the guests'
    /// driver on the other core.
    Beside {
        /// The core of the worker.
        #[arg(long, default_value_t = 0)]
        core: usize,
        /// How often each is measured.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Measure only the rows whose names begin with one of these.
        #[arg(long)]
        only: Vec<String>,
    },
    /// What is left of a worker to two guests beside one that does its worst.
    Neighbours {
        /// A tenth of the turns.
        #[arg(long)]
        quick: bool,
    },
    /// What metrics, a log of connections, a capture and a live trace of another guest cost a
    /// stream.
    Seeing {
        /// A quarter of the windows, and shorter ones.
        #[arg(long)]
        quick: bool,
        /// The core of the worker.
        #[arg(long, default_value_t = 0)]
        core: usize,
    },
    /// Nanoseconds a frame to and from another host, of the engine alone: guest's rings, rules,
    /// VXLAN, rings of AF_XDP in memory.
    Tunnel {
        /// A tenth of the windows.
        #[arg(long)]
        quick: bool,
        /// Measure only the loads whose names begin with one of these.
        #[arg(long)]
        only: Vec<String>,
    },
    /// Frames at random over an overlay of 10,667 hosts, 350,000 networks and 15,000 machines,
    /// beside those of one tunnel: nanoseconds a frame, of the engine alone.
    Scale {
        /// A tenth of the windows.
        #[arg(long)]
        quick: bool,
    },
    /// Frames a second to another host and from there, over a veth: this switch, OVS-DPDK, the
    /// kernel.
    Overlay(options::Options),
    /// How long no frame passes, and which connections are lost, when the switch is killed,
    /// upgraded or restarted, beside OVS-DPDK's restart.
    Restart(restart::Options),
    /// Two containers that talk: this switch with a hundred rules, OVS-DPDK with the same, the
    /// kernel's bridge without and with nftables, a bare veth pair; idle cost.
    Containers(containers::Options),
    /// Microseconds until a change is in force at 16,000 NICs and 10,000 rules, for how long it
    /// keeps a worker from polling, and what a request takes at 1,000 NICs; how long 2,000 TAP NICs
    /// take to go.
    Control {
        /// Fewer requests.
        #[arg(long)]
        quick: bool,
        /// Only what needs no daemon: changes at 16,000 NICs.
        #[arg(long)]
        changes: bool,
        /// Only 2,000 TAP NICs that go; fails where one of the project's aims is missed.
        #[arg(long, conflicts_with = "changes")]
        devices: bool,
    },
    /// Writes docs/performance.md from the data in docs/performance.
    Page,
}

fn main() -> std::process::ExitCode {
    let command = Command::parse();
    if let Err(error) = interrupt::install() {
        eprintln!("butterfly-bench: {error}");
        return std::process::ExitCode::FAILURE;
    }
    let ratios = match command {
        Command::Switch(options) => switch::run(&options),
        Command::Workers(options) => workers::run(&options),
        Command::Path { quick, only } => path::run(quick, &only),
        Command::Beside { core, rounds, only } => beside::run(core, rounds, &only),
        Command::Neighbours { quick } => neighbours::run(quick),
        Command::Seeing { quick, core } => seeing::run(quick, core),
        Command::Tunnel { quick, only } => tunnel::run(quick, &only),
        Command::Scale { quick } => scale::run(quick),
        Command::Overlay(options) => overlay::run(&options),
        Command::Restart(options) => restart::run(&options),
        Command::Containers(options) => containers::run(&options),
        Command::Control { changes: true, .. } => changes::run(),
        Command::Control { devices: true, .. } => devices::run(),
        Command::Control { quick, .. } => control::run(if quick { 200 } else { 2000 }),
        Command::Page => page::run().map_err(peers::PeerError),
    };
    match ratios {
        Ok(ratios) => {
            println!("{ratios}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("butterfly-bench: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
