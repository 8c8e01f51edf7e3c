//! What a run has measured: samples by regime, row and peer, each with the pass in which it was
//! taken.
//!
//! In a pass every peer has one window, one after the other, a fraction of a second apart
//! ([`crate::passes`]). So two peers are compared pass by pass: what the machine does to both is in
//! both.

use std::collections::BTreeMap;

use crate::regime::Regime;
use crate::report::{Ratios, Samples};

/// The name of what began in one regime and ended in the other.
const MIXED: &str = "mixed";

/// One line of a table.
pub trait Row: Copy + PartialEq {
    /// The name in tables, data and ratios.
    fn name(self) -> String;

    /// The unit it is shown in, and how many of them the measured one is.
    fn unit(self) -> (&'static str, f64);
}

/// Who is measured.
pub trait Column: Copy + PartialEq {
    /// This project as it is compared with the others.
    const OURS: Self;

    /// The name in tables and ratios.
    fn name(self) -> &'static str;

    /// Whether it stands beside the others only to show a limit.
    fn is_limit(self) -> bool {
        false
    }
}

/// One sample, in the unit of the row's kind (seconds, frames a second).
#[derive(Clone, Copy)]
pub struct Seen<R, P> {
    pub row: R,
    pub peer: P,
    pub value: f64,
}

/// What was measured while the cores were near, or far, or became one from the other.
pub struct Table<R, P> {
    /// In the order of the plan.
    pub rows: Vec<R>,
    /// Those chosen.
    pub peers: Vec<P>,
    /// By row, then by peer: the number of the pass, and the value.
    samples: Vec<Vec<Vec<(u32, f64)>>>,
    /// Nanoseconds of a cache line there and back, before and after each pass.
    pub round_trips: Samples,
    /// What belongs to no peer: what it is with its unit.
    pub notes: BTreeMap<&'static str, Samples>,
    /// Passes in it.
    pub passes: u32,
}

impl<R: Row, P: Column> Table<R, P> {
    fn new(rows: &[R], peers: &[P]) -> Table<R, P> {
        Table {
            rows: rows.to_vec(),
            peers: peers.to_vec(),
            samples: vec![vec![Vec::new(); peers.len()]; rows.len()],
            round_trips: Samples::default(),
            notes: BTreeMap::new(),
            passes: 0,
        }
    }

    fn push(&mut self, pass: u32, seen: Seen<R, P>) {
        let row = self.rows.iter().position(|row| *row == seen.row);
        let peer = self.peers.iter().position(|peer| *peer == seen.peer);
        if let (Some(row), Some(peer)) = (row, peer) {
            self.samples[row][peer].push((pass, seen.value));
        }
    }

    /// By pass; empty when nothing was measured.
    fn cell(&self, row: R, peer: P) -> &[(u32, f64)] {
        let row = self.rows.iter().position(|other| *other == row);
        let peer = self.peers.iter().position(|other| *other == peer);
        row.zip(peer)
            .map_or(&[], |(row, peer)| &self.samples[row][peer])
    }

    /// The samples of a row and a peer; empty when there are none.
    pub fn get(&self, peer: P, row: R) -> Samples {
        Samples::from(
            self.cell(row, peer)
                .iter()
                .map(|(_, value)| *value)
                .collect::<Vec<_>>(),
        )
    }

    /// Ours over another's, one sample for each pass in which both were measured.
    pub fn ratio(&self, row: R, other: P) -> Samples {
        let theirs: BTreeMap<u32, f64> = self.cell(row, other).iter().copied().collect();
        let ours = self.cell(row, P::OURS).iter();
        let quotients = ours.filter_map(|(pass, value)| Some(value / theirs.get(pass)?));
        Samples::from(quotients.collect::<Vec<_>>())
    }

    /// Whom ours is compared with.
    pub fn others(&self) -> Vec<P> {
        let others = self.peers.iter().copied();
        others
            .filter(|peer| *peer != P::OURS && !peer.is_limit())
            .collect()
    }

    /// All ratios of what was measured more than once: their medians.
    pub fn ratios(&self) -> Ratios {
        let mut ratios = Ratios::default();
        for row in &self.rows {
            for peer in self.others() {
                let ratio = self.ratio(*row, peer);
                if ratio.count() > 1 {
                    ratios.push(format!("{}_vs_{}", row.name(), peer.name()), ratio.median());
                }
            }
        }
        ratios
    }

    /// Has ours been measured in every row, more than once?
    pub fn is_whole(&self) -> bool {
        self.rows
            .iter()
            .all(|row| self.cell(*row, P::OURS).len() > 1)
    }
}

/// Tables by the name of their regime.
pub struct Results<R, P> {
    rows: Vec<R>,
    peers: Vec<P>,
    tables: BTreeMap<&'static str, Table<R, P>>,
    passes: u32,
}

impl<R: Row, P: Column> Results<R, P> {
    /// Nothing measured yet.
    pub fn new(rows: Vec<R>, peers: Vec<P>) -> Results<R, P> {
        Results {
            rows,
            peers,
            tables: BTreeMap::new(),
            passes: 0,
        }
    }

    /// Adds a pass that began in one regime and ended in another, or the same. What is not in the
    /// plan is left out.
    pub fn add(&mut self, before: Regime, after: Regime, seen: &[Seen<R, P>]) {
        self.passes += 1;
        let pass = self.passes;
        let table = self.table(before, after);
        table.passes += 1;
        table.round_trips.push(before.round_trip_ns);
        table.round_trips.push(after.round_trip_ns);
        for seen in seen {
            table.push(pass, *seen);
        }
    }

    /// Adds samples of what belongs to no peer.
    pub fn note(&mut self, before: Regime, after: Regime, what: &'static str, samples: &Samples) {
        self.table(before, after)
            .notes
            .entry(what)
            .or_default()
            .extend(samples);
    }

    fn table(&mut self, before: Regime, after: Regime) -> &mut Table<R, P> {
        let name = if before.name() == after.name() {
            before.name()
        } else {
            MIXED
        };
        let new = || Table::new(&self.rows, &self.peers);
        self.tables.entry(name).or_insert_with(new)
    }

    /// The tables that are worth keeping: not of what was measured in a part, or while the cores
    /// moved.
    pub fn kept(&self) -> impl Iterator<Item = (&'static str, &Table<R, P>)> {
        let tables = self.tables().into_iter();
        tables.filter(|(regime, table)| *regime != MIXED && table.is_whole())
    }

    /// What `of` says of the regime that held longest, and of the others what was not measured in
    /// it.
    pub fn ratios(&self, of: impl Fn(&Table<R, P>) -> Ratios) -> Ratios {
        let mut ratios = Ratios::default();
        for (_, table) in self.tables().into_iter().rev() {
            ratios.extend_missing(of(table));
        }
        ratios
    }

    /// All tables: the one with the most passes is the last.
    pub fn tables(&self) -> Vec<(&'static str, &Table<R, P>)> {
        let mut tables: Vec<_> = self
            .tables
            .iter()
            .map(|(name, table)| (*name, table))
            .collect();
        tables.sort_by_key(|(_, table)| table.passes);
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Kind;
    use crate::peers::Peer;
    use crate::plan::Row;

    const NEAR: Regime = Regime {
        round_trip_ns: 70.0,
    };
    const FAR: Regime = Regime {
        round_trip_ns: 500.0,
    };

    fn seen(peer: Peer, value: f64) -> Seen<Row, Peer> {
        Seen {
            row: Row::Exchanges(Kind::Connection),
            peer,
            value,
        }
    }

    #[test]
    fn passes_of_two_regimes_do_not_meet_in_one_table() {
        let mut results = Results::new(vec![Row::Exchanges(Kind::Connection)], vec![Peer::Testpmd]);
        for (before, after, rate) in [
            (NEAR, NEAR, 10.0),
            (NEAR, NEAR, 12.0),
            (FAR, FAR, 4.0),
            (NEAR, FAR, 6.0),
        ] {
            // The second is not in the plan: left out.
            results.add(
                before,
                after,
                &[seen(Peer::Testpmd, rate), seen(Peer::OvsCt, rate)],
            );
        }
        let tables = results.tables();
        let medians: Vec<_> = tables
            .iter()
            .map(|(name, table)| {
                (
                    *name,
                    table.passes,
                    table
                        .get(Peer::Testpmd, Row::Exchanges(Kind::Connection))
                        .median(),
                )
            })
            .collect();
        assert_eq!(
            medians,
            [("far", 1, 4.0), ("mixed", 1, 6.0), ("near", 2, 12.0)]
        );
    }

    #[test]
    fn peers_are_compared_pass_by_pass() {
        let (ours, other) = (Peer::ButterflyRules, Peer::Testpmd);
        let mut results = Results::new(vec![Row::Exchanges(Kind::Connection)], vec![ours, other]);
        // The machine becomes twice as slow, and in one pass ours fails.
        for (mine, theirs) in [
            (Some(30.0), 20.0),
            (None, 20.0),
            (Some(15.0), 10.0),
            (Some(16.0), 10.0),
        ] {
            let mut pass = vec![seen(other, theirs)];
            pass.extend(mine.map(|rate| seen(ours, rate)));
            results.add(NEAR, NEAR, &pass);
        }
        let tables = results.tables();
        let ratio = tables[0].1.ratio(Row::Exchanges(Kind::Connection), other);
        assert_eq!(
            (ratio.count(), ratio.median(), ratio.quantile(1.0)),
            (3, 1.5, 1.6)
        );
        assert_eq!(
            tables[0].1.ratios().to_string(),
            "connections_vs_testpmd-io=1.50"
        );
    }
}
