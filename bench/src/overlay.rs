//! Frames to another host and from there, over a veth: this switch and its peers as hosts of an overlay, in alternating rounds.
//!
//! A round starts each host anew in a namespace of its own, connects guest 0 to it, sends frames in each direction and stops it;
//! for 64 KiB frames once more with a guest made for them. The far end of the cable only counts ([`cable`]), and sends
//! what guest 1 would. The engine alone, without veth and driver, is measured behind it ([`crate::tunnel`]).

mod cable;
mod guest;
mod kernel;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use wire::offload::Offload;

use crate::guest::Guest;
use crate::hugepages::HugePages;
use crate::load::{self, Load, Turns};
use crate::peers::ovs::host::{self as ovs, Wire};
use crate::peers::{PeerError, Running, butterfly};
use crate::report::Ratios;
use crate::{interrupt, regime, tunnel};
use cable::{ADDRESSES, CHUNK, Cable, MACS, UPLINK};
use guest::Side;
use table::{Row, Table};

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// For one switch (512 MiB) and one guest.
const HUGE_PAGES: u64 = 640;

/// Until guest 0 is reached and reaches the far end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Samples that one measurement gives.
const WINDOWS: u32 = 3;

/// A host of the overlay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// This switch, 100 stateful rules, AF_XDP.
    Butterfly,
    /// OVS-DPDK with the same rules, on a packet socket.
    OvsAfPacket,
    /// The same on AF_XDP.
    OvsAfXdp,
    /// vxlan, bridge and nftables with the same rules.
    Kernel,
}

impl Peer {
    /// All of them, ours first.
    pub const ALL: [Peer; 4] = [Peer::Butterfly, Peer::OvsAfXdp, Peer::OvsAfPacket, Peer::Kernel];

    /// The name in tables and in the ratios.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Butterfly => "butterfly",
            Peer::OvsAfPacket => "ovs-afpacket",
            Peer::OvsAfXdp => "ovs-afxdp",
            Peer::Kernel => "kernel",
        }
    }

    /// OVS 3.1 drops what a tunnel would have to segment.
    fn takes(self, load: Load) -> bool {
        load != Load::Tso || matches!(self, Peer::Butterfly | Peer::Kernel)
    }
}

/// What the command line says.
#[derive(clap::Args)]
pub struct Options {
    /// Fewer sizes and rounds: under five minutes.
    #[arg(long)]
    quick: bool,
    /// The core of the switch; the guest and the far end run on the other.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Measure only the hosts whose names contain one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Rounds, for fewer or more than usual.
    #[arg(long)]
    rounds: Option<usize>,
    /// Where the table and the data are written: overlay.md and overlay.tsv.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs it and prints the table.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let sizes: &[usize] = if options.quick {
        &[64, 512, 1518]
    } else {
        &[64, 128, 256, 512, 1024, 1518]
    };
    let mut loads: Vec<Load> = sizes
        .iter()
        .map(|frame_len| Load::Udp {
            frame_len: *frame_len,
            flows: 1,
        })
        .collect();
    loads.push(Load::Tso);
    let chosen = |peer: &Peer| {
        let named = |part: &String| peer.name().contains(part.as_str());
        options.only.is_empty() || options.only.iter().any(named)
    };
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(chosen).collect();
    let time = Duration::from_millis(if options.quick { 300 } else { 900 });
    let budget = Duration::from_secs(if options.quick { 210 } else { 1200 });
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 7 });
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let driver_core = usize::from(options.core == 0);
    let mut table = Table::new(&loads, &peers);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for round in 1..=rounds {
        if start.elapsed() + longest > budget {
            println!("the time is over after {} rounds", round - 1);
            break;
        }
        let begun = Instant::now();
        let cores = regime::measure(driver_core, options.core);
        table.round_trips.push(cores.round_trip_ns);
        measure_sender(&loads, time, &mut table)?;
        for peer in &peers {
            for large in [false, true] {
                let its = |load: &&Load| peer.takes(**load) && (**load == Load::Tso) == large;
                let loads: Vec<Load> = loads.iter().filter(its).copied().collect();
                if let Err(error) = session(*peer, options.core, &loads, time, &mut table) {
                    interrupt::check()?;
                    eprintln!("round {round}: {} is not measured: {error}", peer.name());
                }
            }
        }
        eprintln!(
            "round {round} of {rounds}: cores {} ({:.0} ns), {:.0} s",
            cores.name(),
            cores.round_trip_ns,
            begun.elapsed().as_secs_f64()
        );
        longest = longest.max(begun.elapsed());
    }
    print!("{}", table.text());
    if let Some(out) = &options.out {
        table.write(out)?;
    }
    let mut ratios = table.ratios();
    ratios.extend(tunnel::run(options.quick, &[])?);
    Ok(ratios)
}

/// What the far end could send to a host that does nothing with it.
fn measure_sender(loads: &[Load], time: Duration, table: &mut Table) -> Result<(), PeerError> {
    let cable = Cable::lay(true)?;
    let _sink = cable::sink(&cable.host, UPLINK)?;
    for load in loads.iter().filter(|load| **load != Load::Tso) {
        let frame = tunnel::wrapped(&load::request_from_afar(load.frame_bytes())?)?;
        for _ in 0..WINDOWS {
            let (before, start) = (cable::received(&cable.host, UPLINK)?, Instant::now());
            cable.at_far_end(|far| {
                while start.elapsed() < time / WINDOWS {
                    interrupt::check()?;
                    far.send(&frame, CHUNK)?;
                }
                Ok(())
            })?;
            let count = cable::received(&cable.host, UPLINK)? - before;
            table.sender(*load, count as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// Starts a host, connects its guest, and measures some loads in both directions.
fn session(
    peer: Peer,
    core: usize,
    loads: &[Load],
    time: Duration,
    table: &mut Table,
) -> Result<(), PeerError> {
    if loads.is_empty() {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
    let cable = Cable::lay(matches!(peer, Peer::Butterfly | Peer::Kernel))?;
    let (mut side, _running) = match start(peer, &cable, dir.path(), core)? {
        Started::Switch(running) => {
            let (ring, frame_max) = match loads.contains(&Load::Tso) {
                true => (RING_LARGE, 65_536),
                false => (RING, 2_036),
            };
            let guest = Guest::new(ring, frame_max)?;
            let _sessions = running.connect(std::slice::from_ref(&guest))?;
            let guest = Box::new(guest);
            (Side::Rings { guest, _sessions }, Some(running))
        }
        Started::Kernel(ports) => (Side::Ports(ports), None),
    };
    meet(&cable, &mut side)?;
    for load in loads {
        let mut out = |rate| table.push(peer, Row::ToWire(*load), rate);
        if let Err(error) = to_wire(*load, &cable, &mut side, time, &mut out) {
            interrupt::check()?;
            eprintln!("{}: {} to the wire: {error}", peer.name(), load.name());
        }
        if *load == Load::Tso {
            continue;
        }
        let mut arrived = |rate| table.push(peer, Row::FromWire(*load), rate);
        if let Err(error) = from_wire(*load, &cable, &mut side, time, &mut arrived) {
            interrupt::check()?;
            eprintln!("{}: {} from the wire: {error}", peer.name(), load.name());
        }
    }
    Ok(())
}

/// A host that waits for its guest, or has it.
enum Started {
    Switch(Running),
    Kernel(Box<kernel::Ports>),
}

fn start(peer: Peer, cable: &Cable, dir: &std::path::Path, core: usize) -> Result<Started, PeerError> {
    let holder = cable.host.pid();
    let ends = ovs::Ends {
        holder,
        uplink: UPLINK,
        addresses: ADDRESSES,
        macs: MACS.map(|mac| mac.to_string()),
    };
    Ok(match peer {
        Peer::Butterfly => Started::Switch(butterfly::start_host(dir, core, holder, UPLINK, ADDRESSES)?),
        Peer::OvsAfPacket => Started::Switch(ovs::start(dir, core, Wire::AfPacket, &ends)?),
        Peer::OvsAfXdp => Started::Switch(ovs::start(dir, core, Wire::AfXdp, &ends)?),
        Peer::Kernel => Started::Kernel(kernel::start(cable, core)?.into()),
    })
}

/// Waits until the guests hear each other: guest 0 begins, as rules allow, and is answered.
fn meet(cable: &Cable, side: &mut Side) -> Result<(), PeerError> {
    let answer = tunnel::wrapped(&load::datagram(1, 60)?)?;
    let (start, sent, got) = (Instant::now(), cable.arrived()?, side.arrived()?);
    loop {
        side.say(&load::datagram(0, 60)?)?;
        interrupt::sleep(Duration::from_millis(10))?;
        cable.at_far_end(|far| far.send(&answer, 1))?;
        interrupt::sleep(Duration::from_millis(10))?;
        let heard = side.take() > 0 || side.arrived()? > got;
        if heard && cable.arrived()? > sent {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            let what = if heard {
                "the far end does not hear the guest"
            } else {
                "the guest hears nothing"
            };
            return Err(PeerError(what.to_owned()));
        }
    }
}

/// From guest 0 to the wire: frames a second, in windows, counted at the far end.
fn to_wire(
    load: Load,
    cable: &Cable,
    side: &mut Side,
    time: Duration,
    mut seen: impl FnMut(f64),
) -> Result<(), PeerError> {
    let script = load::script(load)?;
    for (from, frame) in &script.first {
        match from {
            0 => side.say(frame)?,
            _ => {
                let frame = tunnel::wrapped(frame)?;
                cable.at_far_end(|far| far.send(&frame, 1))?;
            }
        }
        interrupt::sleep(Duration::from_millis(10))?;
    }
    side.take();
    side.prepare(&script.frame, &script.offload);
    let mut turns = Turns::of(load);
    let pieces = tunnel::pieces(load) as f64;
    for window in 0..=WINDOWS {
        let (before, start) = (cable.arrived()?, Instant::now());
        side.flood(&script.frame, &script.offload, &mut turns, time / WINDOWS)?;
        let rate = (cable.arrived()? - before) as f64 / pieces / start.elapsed().as_secs_f64();
        if rate == 0.0 {
            return Err(PeerError("nothing arrives".to_owned()));
        }
        // The first is for warming up.
        if window > 0 {
            seen(rate);
        }
    }
    settle(side)
}

/// From the wire to guest 0: frames a second, in windows, counted where they arrive.
fn from_wire(
    load: Load,
    cable: &Cable,
    side: &mut Side,
    time: Duration,
    mut seen: impl FnMut(f64),
) -> Result<(), PeerError> {
    let frame = tunnel::wrapped(&load::request_from_afar(load.frame_bytes())?)?;
    side.prepare(&load::datagram(0, 60)?, &Offload::default());
    for window in 0..=WINDOWS {
        let before = side.arrived()?;
        let start = Instant::now();
        let taken = cable.at_far_end(|far| {
            let mut taken = 0;
            while start.elapsed() < time / WINDOWS {
                interrupt::check()?;
                far.send(&frame, CHUNK)?;
                taken += side.take();
            }
            Ok(taken)
        })?;
        let count = taken + side.arrived()? - before;
        if count == 0 {
            return Err(PeerError("nothing arrives".to_owned()));
        }
        if window > 0 {
            seen(count as f64 / start.elapsed().as_secs_f64());
        }
    }
    settle(side)
}

/// Waits until nothing arrives any more.
fn settle(side: &mut Side) -> Result<(), PeerError> {
    let mut before = side.arrived()?;
    loop {
        interrupt::sleep(Duration::from_millis(30))?;
        let now = side.arrived()?;
        if side.take() == 0 && now == before {
            return Ok(());
        }
        before = now;
    }
}
