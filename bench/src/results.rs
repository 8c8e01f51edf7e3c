//! What a run has measured: samples by regime, row and switch.

use std::collections::BTreeMap;

use crate::peers::Peer;
use crate::plan::Row;
use crate::regime::Regime;
use crate::report::Samples;

/// The name of what began in one regime and ended in the other.
pub const MIXED: &str = "mixed";

/// What was measured while the cores were near, or far, or became one from the other.
#[derive(Clone)]
pub struct Table {
    /// In the order of the plan.
    pub rows: Vec<Row>,
    /// Those chosen.
    pub peers: Vec<Peer>,
    /// By row, then by switch.
    samples: Vec<Vec<Samples>>,
    /// Nanoseconds of a cache line there and back, twice a round.
    pub round_trips: Samples,
    /// The driver's own limit in frames a second: as it is, and when it rewrites each frame.
    pub ceilings: [Samples; 2],
    /// Seconds until a thread that does nothing else is woken.
    pub wakes: Samples,
    /// Rounds in it.
    pub rounds: usize,
}

impl Table {
    /// Nothing measured yet.
    pub fn new(rows: &[Row], peers: &[Peer]) -> Table {
        Table {
            rows: rows.to_vec(),
            peers: peers.to_vec(),
            samples: vec![vec![Samples::default(); peers.len()]; rows.len()],
            round_trips: Samples::default(),
            ceilings: Default::default(),
            wakes: Samples::default(),
            rounds: 0,
        }
    }

    /// Adds a sample, in the unit of the row's kind (seconds, frames a second).
    pub fn push(&mut self, peer: Peer, row: Row, value: f64) {
        if let (Some(row), Some(peer)) = (self.row(row), self.peer(peer)) {
            self.samples[row][peer].push(value);
        }
    }

    /// The samples of a row and a switch; empty when there are none.
    pub fn get(&self, peer: Peer, row: Row) -> Samples {
        let found = self.row(row).zip(self.peer(peer));
        found.map_or_else(Samples::default, |(row, peer)| self.samples[row][peer].clone())
    }

    /// Adds another round's.
    fn extend(&mut self, other: &Table) {
        for (own, other) in self
            .samples
            .iter_mut()
            .flatten()
            .zip(other.samples.iter().flatten())
        {
            own.extend(other);
        }
        self.round_trips.extend(&other.round_trips);
        for (own, other) in self.ceilings.iter_mut().zip(&other.ceilings) {
            own.extend(other);
        }
        self.wakes.extend(&other.wakes);
        self.rounds += other.rounds;
    }

    fn row(&self, row: Row) -> Option<usize> {
        self.rows.iter().position(|other| *other == row)
    }

    fn peer(&self, peer: Peer) -> Option<usize> {
        self.peers.iter().position(|other| *other == peer)
    }
}

/// Tables by the name of their regime.
#[derive(Default)]
pub struct Results(BTreeMap<&'static str, Table>);

impl Results {
    /// Adds a round that began in one regime and ended in another, or the same.
    pub fn add(&mut self, before: Regime, after: Regime, mut round: Table) {
        round.round_trips.push(before.round_trip_ns);
        round.round_trips.push(after.round_trip_ns);
        round.rounds = 1;
        let name = if before.name() == after.name() {
            before.name()
        } else {
            MIXED
        };
        match self.0.get_mut(name) {
            Some(table) => table.extend(&round),
            None => {
                self.0.insert(name, round);
            }
        }
    }

    /// All tables: the one with the most rounds is the last.
    pub fn tables(&self) -> Vec<(&'static str, &Table)> {
        let mut tables: Vec<_> = self.0.iter().map(|(name, table)| (*name, table)).collect();
        tables.sort_by_key(|(_, table)| table.rounds);
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_two_regimes_do_not_meet_in_one_table() {
        let (near, far) = (Regime { round_trip_ns: 70.0 }, Regime { round_trip_ns: 500.0 });
        let mut results = Results::default();
        for (before, after, rate) in [
            (near, near, 10.0),
            (near, near, 12.0),
            (far, far, 4.0),
            (near, far, 6.0),
        ] {
            let mut round = Table::new(&[Row::Connections], &[Peer::Testpmd]);
            round.push(Peer::Testpmd, Row::Connections, rate);
            // Not in the plan: left out.
            round.push(Peer::OvsCt, Row::Connections, rate);
            results.add(before, after, round);
        }
        let seen: Vec<_> = results
            .tables()
            .iter()
            .map(|(name, table)| {
                (
                    *name,
                    table.rounds,
                    table.get(Peer::Testpmd, Row::Connections).median(),
                )
            })
            .collect();
        assert_eq!(seen, [("far", 1, 4.0), ("mixed", 1, 6.0), ("near", 2, 12.0)]);
    }
}
