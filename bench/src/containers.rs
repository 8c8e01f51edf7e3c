//! Two containers that talk: by this switch with rules, by OVS-DPDK with the same, by the kernel's
//! bridge, by that with nftables, and by a bare cable, all with the kernel's own TCP and UDP in
//! namespaces; and two on two hosts, by this switch's overlay and by the kernel's vxlan with rules,
//! over a veth between them; and over one that carries, as a wire does, packets of its MTU alone.
//!
//! All of them are up at once and have their windows in turn, forth in one round and back in the
//! next. Ratios are medians of the rounds' own. Each window begins with a spell that does not
//! count: connections are made, and the switch has told the kernel of them. What another switch
//! cannot do is said, and left out; what ours cannot do ends the run.

mod entrants;
mod rows;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::peers::PeerError;
use crate::report::{Ratios, Samples};
use crate::{idle, interrupt, table};
use entrants::Entrant;
use rows::{ROWS, Row, WINDOWS};

/// `butterfly-bench containers`.
#[derive(clap::Args)]
pub struct Options {
    /// Four rounds of short windows.
    #[arg(long)]
    quick: bool,
    /// Measure only those whose names contain all of these.
    #[arg(long)]
    only: Vec<String>,
    /// Where the table and the data are written: containers.md, .tsv.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What is measured, in the order of its turns: on one host, and on two.
const ENTRANTS: [&str; 15] = [
    "ours",
    "ours_by_worker",
    "ours_tap",
    "ovs_tap",
    "bridge",
    "bridge_nft",
    "veth",
    "overlay",
    "overlay_packet",
    "overlay_by_worker",
    "overlay_vxlan_nft",
    "wire",
    "wire_packet",
    "wire_by_worker",
    "wire_vxlan_nft",
];

/// Whose ratios are told, and to whom.
const RATIOS: [(&str, &[&str]); 6] = [
    (
        "ours",
        &[
            "ours_by_worker",
            "ours_tap",
            "ovs_tap",
            "bridge",
            "bridge_nft",
            "veth",
        ],
    ),
    ("ours_tap", &["ovs_tap", "bridge", "bridge_nft"]),
    ("overlay", &["overlay_by_worker", "overlay_vxlan_nft"]),
    ("overlay_packet", &["overlay", "overlay_vxlan_nft"]),
    ("wire", &["wire_by_worker", "wire_vxlan_nft"]),
    ("wire_packet", &["wire", "wire_vxlan_nft"]),
];

/// Measures all of them. The last line's ratios are [`RATIOS`].
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let (rounds, window) = match options.quick {
        true => (4, Duration::from_millis(500)),
        false => (12, Duration::from_millis(1000)),
    };
    let chosen = |name: &&str| options.only.iter().all(|part| name.contains(part.as_str()));
    let mut entrants = Vec::new();
    for name in ENTRANTS.into_iter().filter(chosen) {
        match entrants::start(name) {
            Ok(entrant) => entrants.push(entrant),
            // What this kernel or this host has not is left out.
            Err(why) if entrants::is_peer(name) => println!("no {name}: {why}"),
            Err(why) => return Err(why),
        }
    }
    for round in 0..rounds {
        let count = entrants.len();
        for place in 0..count {
            let place = if round % 2 == 0 {
                place
            } else {
                count - 1 - place
            };
            measure(&mut entrants[place], window)?;
            interrupt::check()?;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    print(&entrants);
    if let Some(out) = &options.out {
        write(out, &entrants, rounds)?;
    }
    let mut ratios = ratios(&entrants);
    for entrant in &entrants {
        for (host, daemons) in entrant.daemons.iter().enumerate() {
            let pids: Vec<u32> = daemons.iter().map(|daemon| daemon.pid()).collect();
            let used = idle::measure(&pids, Duration::from_secs(3))?;
            println!("{} while nothing is sent: {used}", entrant.name);
            if host == 0 {
                ratios.push(format!("idle_percent_{}", entrant.name), used.percent);
            }
        }
    }
    Ok(ratios)
}

/// A window of each row that has not failed before.
fn measure(entrant: &mut Entrant, window: Duration) -> Result<(), PeerError> {
    for (rows, of) in WINDOWS {
        if rows.iter().any(|row| entrant.lacks(*row)) {
            continue;
        }
        match of(&entrant.ends, window) {
            Ok(values) => {
                for (row, value) in rows.iter().zip(values) {
                    entrant.saw(*row, value);
                }
            }
            Err(why) if entrants::is_peer(entrant.name) => {
                for row in *rows {
                    println!("no {} of {}: {why}", row.name(), entrant.name);
                    entrant.leave_out(*row);
                }
            }
            Err(why) => return Err(PeerError(format!("{}: {why}", entrant.name))),
        }
    }
    Ok(())
}

/// What the rounds say of one beside another.
struct Quotient {
    row: Row,
    ours: &'static str,
    other: &'static str,
    samples: Samples,
}

/// Of [`RATIOS`], by row.
fn quotients(entrants: &[Entrant]) -> Vec<Quotient> {
    let by_name = |name: &str| entrants.iter().find(|it| it.name == name);
    let mut quotients = Vec::new();
    for row in ROWS {
        for (ours, others) in RATIOS {
            let Some(ours) = by_name(ours) else { continue };
            for other in others.iter().filter_map(|name| by_name(name)) {
                quotients.push(Quotient {
                    row,
                    ours: ours.name,
                    other: other.name,
                    samples: ours.seen(row).quotients(&other.seen(row)),
                });
            }
        }
    }
    quotients
}

fn ratios(entrants: &[Entrant]) -> Ratios {
    let mut ratios = Ratios::default();
    for it in quotients(entrants) {
        let name = format!("{}_{}_to_{}", it.row.name(), it.ours, it.other);
        ratios.push(name, it.samples.median());
    }
    ratios
}

fn print(entrants: &[Entrant]) {
    println!("medians, and from the least tenth to the greatest\n");
    for row in ROWS {
        println!("{}, {}", row.title(), row.unit());
        for entrant in entrants {
            if entrant.lacks(row) {
                println!("  {:18} left out", entrant.name);
                continue;
            }
            let seen = entrant.seen(row);
            let [low, middle, high] = [0.1, 0.5, 0.9].map(|share| seen.quantile(share));
            println!(
                "  {:18} {middle:10.2}  {low:10.2} .. {high:.2}",
                entrant.name
            );
        }
    }
}

/// The page and the data.
fn write(dir: &Path, entrants: &[Entrant], rounds: usize) -> Result<(), PeerError> {
    let head = format!("{}; {}; {rounds} rounds", table::machine(), table::date());
    let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name).collect();
    let mut page = format!(
        "# bench-containers\n\n{head}. Medians, half the spread behind. As data: \
         [containers.tsv](containers.tsv).\n\n| | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let mut data = table::data_head(&head);
    for row in ROWS {
        let cells = entrants.iter().map(|entrant| entrant.seen(row).summary());
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(
            page,
            "| {}, {} | {} |",
            row.title(),
            row.unit(),
            cells.join(" | ")
        );
        for entrant in entrants {
            data += &table::data_line(row.name(), entrant.name, row.unit(), &entrant.seen(row));
        }
    }
    page += "\n| | one | over the other | |\n|---|---|---|---|\n";
    for it in quotients(entrants) {
        let Quotient {
            row,
            ours,
            other,
            samples,
        } = &it;
        let summary = samples.summary();
        let _ = writeln!(page, "| {} | {ours} | {other} | {summary} |", row.title());
        // Of an entrant beside which two of ours stand, the page has the first.
        let first = RATIOS.iter().find(|(_, others)| others.contains(other));
        if first.is_some_and(|(first, _)| first == ours) {
            data += &table::data_line(row.name(), other, table::OURS_OVER_IT, samples);
        }
    }
    table::put(dir, "containers", page, data)
}
