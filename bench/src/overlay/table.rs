//! What a run has measured: samples by row and host; as text, for the documentation, as data, and as ratios.

use std::fmt::Write as _;
use std::path::Path;

use super::Peer;
use crate::load::Load;
use crate::peers::PeerError;
use crate::report::{Ratios, Samples};
use crate::table::{date, machine};

/// A direction and a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// From the guest to the uplink.
    ToWire(Load),
    /// From the uplink to the guest.
    FromWire(Load),
}

impl Row {
    /// The name in tables and in the ratios.
    fn name(self) -> String {
        match self {
            Row::ToWire(load) => format!("to_wire_{}", load.name()),
            Row::FromWire(load) => format!("from_wire_{}", load.name()),
        }
    }
}

/// Frames a second, all of them.
pub struct Table {
    rows: Vec<Row>,
    peers: Vec<Peer>,
    /// By row, then by host; behind them what the sender could have sent.
    samples: Vec<Vec<Samples>>,
    /// Nanoseconds of a cache line from core to core and back, once a round.
    pub round_trips: Samples,
}

impl Table {
    /// Nothing measured yet.
    pub fn new(loads: &[Load], peers: &[Peer]) -> Table {
        let to = loads.iter().copied().map(Row::ToWire);
        let small = loads.iter().copied().filter(|load| *load != Load::Tso);
        let rows: Vec<Row> = to.chain(small.map(Row::FromWire)).collect();
        Table {
            samples: vec![vec![Samples::default(); peers.len() + 1]; rows.len()],
            rows,
            peers: peers.to_vec(),
            round_trips: Samples::default(),
        }
    }

    /// Adds a sample of a host.
    pub fn push(&mut self, peer: Peer, row: Row, rate: f64) {
        let column = self.peers.iter().position(|other| *other == peer);
        if let Some((row, column)) = self.row(row).zip(column) {
            self.samples[row][column].push(rate);
        }
    }

    /// Adds a sample of what is sent from the wire at the most.
    pub fn sender(&mut self, load: Load, rate: f64) {
        let column = self.peers.len();
        if let Some(row) = self.row(Row::FromWire(load)) {
            self.samples[row][column].push(rate);
        }
    }

    fn row(&self, row: Row) -> Option<usize> {
        self.rows.iter().position(|other| *other == row)
    }

    /// The hosts' names, and the sender's.
    fn columns(&self) -> Vec<&'static str> {
        let names = self.peers.iter().map(|peer| peer.name());
        names.chain(["sender alone"]).collect()
    }

    /// Each row's name and its cells: thousands of frames a second.
    fn cells(&self) -> impl Iterator<Item = (String, Vec<String>)> + '_ {
        self.rows.iter().zip(&self.samples).map(|(row, samples)| {
            let cells = samples.iter().map(|samples| samples.scaled(1e-3).summary());
            (row.name(), cells.collect())
        })
    }

    /// The table as it is printed.
    pub fn text(&self) -> String {
        let mut out = format!("\n{:<22}", "thousand frames a s");
        for name in self.columns() {
            let _ = write!(out, "{name:>16}");
        }
        out.push('\n');
        for (name, cells) in self.cells() {
            let _ = write!(out, "{name:<22}");
            for cell in cells {
                let _ = write!(out, "{cell:>16}");
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "a cache line there and back: {} ns",
            self.round_trips.summary()
        );
        out
    }

    /// The same as a page and as data.
    pub fn write(&self, dir: &Path) -> Result<(), PeerError> {
        let fail = |error: std::io::Error| PeerError(format!("{}: {error}", dir.display()));
        std::fs::create_dir_all(dir).map_err(fail)?;
        let head = format!(
            "{}; {}; a cache line there and back: {} ns",
            machine(),
            date(),
            self.round_trips.summary()
        );
        let mut page = format!(
            "# bench-overlay\n\n{head}. Thousand frames a second: medians, half the spread behind. As data: \
             [overlay.tsv](overlay.tsv).\n\n| | {} |\n|---|{}\n",
            self.columns().join(" | "),
            "---|".repeat(self.columns().len())
        );
        for (name, cells) in self.cells() {
            let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
        }
        std::fs::write(dir.join("overlay.md"), page).map_err(fail)?;
        let mut data = format!("# {head}\nrow\thost\tsamples\tmedian\tleast\tmost\n");
        for (row, samples) in self.rows.iter().zip(&self.samples) {
            for (name, samples) in self.columns().iter().zip(samples) {
                if samples.count() > 1 {
                    let [median, least, most] = [0.5, 0.0, 1.0].map(|share| samples.quantile(share));
                    let count = samples.count();
                    let _ = writeln!(
                        data,
                        "{}\t{name}\t{count}\t{median:.0}\t{least:.0}\t{most:.0}",
                        row.name()
                    );
                }
            }
        }
        std::fs::write(dir.join("overlay.tsv"), data).map_err(fail)
    }

    /// Ours over every other's, row by row.
    pub fn ratios(&self) -> Ratios {
        let mut ratios = Ratios::default();
        let ours = self.peers.iter().position(|peer| *peer == Peer::Butterfly);
        let Some(ours) = ours else { return ratios };
        for (row, samples) in self.rows.iter().zip(&self.samples) {
            for (peer, other) in self.peers.iter().zip(samples) {
                if *peer != Peer::Butterfly && other.count() > 1 {
                    let name = format!("{}_vs_{}", row.name(), peer.name());
                    ratios.push(name, samples[ours].median() / other.median());
                }
            }
        }
        ratios
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_ours_over_what_was_measured_more_than_once() {
        let load = Load::Udp {
            frame_len: 64,
            flows: 1,
        };
        let mut table = Table::new(&[load, Load::Tso], &[Peer::Butterfly, Peer::Kernel]);
        for rate in [3e6, 3.3e6] {
            table.push(Peer::Butterfly, Row::ToWire(load), rate);
            table.push(Peer::Kernel, Row::ToWire(load), rate / 3.0);
        }
        table.push(Peer::Butterfly, Row::FromWire(load), 2e6);
        table.push(Peer::Kernel, Row::FromWire(load), 1e6);
        table.sender(load, 4e6);
        assert_eq!(table.ratios().to_string(), "to_wire_64_vs_kernel=3.00");
        let text = table.text();
        assert!(
            text.contains("to_wire_tso64k") && text.contains("one sample"),
            "{text}"
        );
    }
}
