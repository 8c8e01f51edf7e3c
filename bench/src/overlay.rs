//! Frames to another host and from there, over a veth: this switch and its peers as hosts of an
//! overlay, in alternating rounds.
//!
//! A round starts all hosts anew, each in a namespace of its own with its end of a cable, connects
//! guest 0 to each, halts them and sends frames in each direction in [`passes`]; for 64 KiB frames
//! once more with guests made for them. The far end of a cable only counts ([`cable`]), and sends
//! what guest 1 would. The engine alone, without veth and driver, is measured behind it
//! ([`crate::tunnel`]).

mod cable;
mod guest;
mod host;
mod kernel;

use std::time::Duration;

use crate::hugepages::HugePages;
use crate::load::Load;
use crate::options::Options;
use crate::passes::{self, Cores};
use crate::peers::PeerError;
use crate::report::Ratios;
use crate::results::{self, Column, Results, Row as _, Table};
use crate::{interrupt, table, tunnel};
use host::Host;

/// For one switch (512 MiB) and one guest.
const HUGE_PAGES: u64 = 300;

/// A direction and a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// From the guest to the uplink.
    ToWire(Load),
    /// From the uplink to the guest.
    FromWire(Load),
}

impl results::Row for Row {
    fn name(self) -> String {
        match self {
            Row::ToWire(load) => format!("to_wire_{}", load.name()),
            Row::FromWire(load) => format!("from_wire_{}", load.name()),
        }
    }

    fn unit(self) -> (&'static str, f64) {
        ("kframes/s", 1e-3)
    }
}

/// A host of the overlay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// This switch, 100 stateful rules, AF_XDP.
    Butterfly,
    /// This switch, built with DPDK, on DPDK's packet socket.
    ButterflyDpdk,
    /// OVS-DPDK with the same rules, on a packet socket.
    OvsAfPacket,
    /// OVS-DPDK with the same rules, on AF_XDP.
    OvsAfXdp,
    /// vxlan, bridge and nftables with the same rules.
    Kernel,
    /// Nobody: what the far end could send to a host that does nothing with it.
    Sender,
}

impl Peer {
    /// All of them, ours first.
    pub const ALL: [Peer; 6] = [
        Peer::Butterfly,
        Peer::ButterflyDpdk,
        Peer::OvsAfXdp,
        Peer::OvsAfPacket,
        Peer::Kernel,
        Peer::Sender,
    ];

    /// OVS 3.1 drops what a tunnel would have to segment.
    fn takes(self, row: Row) -> bool {
        match (self, row) {
            (Peer::Sender, Row::ToWire(_)) => false,
            (_, Row::ToWire(Load::Tso)) => !matches!(self, Peer::OvsAfPacket | Peer::OvsAfXdp),
            _ => true,
        }
    }
}

impl Column for Peer {
    const OURS: Peer = Peer::Butterfly;

    fn name(self) -> &'static str {
        match self {
            Peer::Butterfly => "butterfly",
            Peer::ButterflyDpdk => "butterfly-dpdk",
            Peer::OvsAfPacket => "ovs-afpacket",
            Peer::OvsAfXdp => "ovs-afxdp",
            Peer::Kernel => "kernel",
            Peer::Sender => "sender alone",
        }
    }

    fn is_limit(self) -> bool {
        self == Peer::Sender
    }
}

/// How long and how often.
struct Plan {
    /// In this order; those with large frames have guests of their own.
    rows: Vec<Row>,
    rounds: usize,
    /// Windows that each host has with a row in a round.
    passes: usize,
    window: Duration,
    /// No round is begun that would not end within it.
    budget: Duration,
}

impl Plan {
    /// `only`: the rows whose names begin with one of these.
    fn new(quick: bool, only: &[String]) -> Plan {
        let sizes: &[usize] = if quick {
            &[64, 512, 1518]
        } else {
            &[64, 128, 256, 512, 1024, 1518]
        };
        let loads = sizes.iter().map(|&frame_len| Load::Udp {
            frame_len,
            flows: 1,
        });
        let there = loads.clone().chain([Load::Tso]).map(Row::ToWire);
        let chosen = |row: &Row| {
            only.is_empty()
                || only
                    .iter()
                    .any(|start| row.name().starts_with(start.as_str()))
        };
        Plan {
            rows: there
                .chain(loads.map(Row::FromWire))
                .filter(chosen)
                .collect(),
            rounds: if quick { 3 } else { 7 },
            passes: if quick { 10 } else { 15 },
            window: Duration::from_millis(80),
            budget: Duration::from_secs(if quick { 210 } else { 1200 }),
        }
    }
}

/// Runs it and prints the tables.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let mut plan = Plan::new(options.quick, &options.row);
    plan.rounds = options.rounds.unwrap_or(plan.rounds);
    let chosen = |peer: &Peer| {
        let named = |part: &String| peer.name().contains(part.as_str());
        options.only.is_empty() || options.only.iter().any(named)
    };
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(chosen).collect();
    let _pages = HugePages::reserve(HUGE_PAGES * peers.len() as u64)?;
    let cores = Cores::new(options.core);
    let mut results = Results::new(plan.rows.clone(), peers.clone());
    passes::rounds(plan.rounds, plan.budget, || {
        round(cores, &plan, &peers, &mut results)
    })?;
    for (regime, table) in results.tables() {
        print!("{}", table::text(regime, table));
    }
    if let Some(out) = &options.out {
        for (regime, table) in results.kept() {
            table::write(out, "overlay", regime, table, "", "")?;
        }
    }
    let mut ratios = results.ratios(Table::ratios);
    if options.row.is_empty() {
        ratios.extend(tunnel::run(options.quick, &[])?);
    }
    Ok(ratios)
}

/// All hosts, all rows.
fn round(
    cores: Cores,
    plan: &Plan,
    peers: &[Peer],
    results: &mut Results<Row, Peer>,
) -> Result<(), PeerError> {
    for large in [false, true] {
        let rows: Vec<Row> = plan
            .rows
            .iter()
            .copied()
            .filter(|row| (*row == Row::ToWire(Load::Tso)) == large)
            .collect();
        let mut hosts = Vec::new();
        for peer in peers
            .iter()
            .filter(|peer| rows.iter().any(|row| peer.takes(*row)))
        {
            hosts.extend(passes::said(
                peer.name(),
                Host::start(*peer, cores.switch, large),
            ));
            interrupt::check()?;
        }
        for row in rows {
            let mut hosts: Vec<&mut Host> = hosts
                .iter_mut()
                .filter(|host| host.peer.takes(row))
                .collect();
            for host in &mut hosts {
                host.begin(row);
            }
            passes::run(cores, plan.passes, &mut hosts, results, |host| {
                host.window(row, plan.window)
            })?;
            for host in &mut hosts {
                host.end();
            }
        }
    }
    Ok(())
}
