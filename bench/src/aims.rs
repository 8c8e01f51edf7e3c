//! What the project aims at, and whether it is reached: with its switch by a table.

use std::fmt::Write as _;

use crate::exchange::Kind;
use crate::load::Load;
use crate::peers::Peer;
use crate::plan::Row;
use crate::report::{Ratios, Samples};
use crate::results::{Column, Row as _, Table};

/// The note of how fast a thread is woken that does nothing else.
pub const WAKE: &str = "a sleeping thread woken, us";

/// An aim and what was measured.
pub struct Aim {
    what: String,
    value: Samples,
    reached: bool,
}

impl Aim {
    /// It is reached if that holds of the median.
    pub fn new(what: String, value: Samples, reached: impl Fn(f64) -> bool) -> Aim {
        let reached = reached(value.median());
        Aim {
            what,
            value,
            reached,
        }
    }

    /// The line that is printed.
    pub fn line(&self) -> String {
        let reached = if self.reached { "reached" } else { "MISSED " };
        format!("{reached} {}: {}\n", self.what, self.value.summary())
    }
}

/// The aims as they are printed.
pub fn text(table: &Table<Row, Peer>) -> String {
    all(table).iter().map(Aim::line).collect()
}

/// The aims as a table for the documentation.
pub fn page(table: &Table<Row, Peer>) -> String {
    let mut out = String::from("\n| aim | value | |\n|---|---|---|\n");
    for aim in all(table) {
        let reached = if aim.reached { "reached" } else { "missed" };
        let _ = writeln!(
            out,
            "| {} | {} | {reached} |",
            aim.what,
            aim.value.summary()
        );
    }
    out
}

/// Ours over every other's, and how ours compares with itself and with fixed numbers.
pub fn ratios(table: &Table<Row, Peer>) -> Ratios {
    let mut ratios = table.ratios();
    let first_frame = table.get(Peer::OURS, Row::FirstFrame { longest: false });
    if let Some(wakes) = table.notes.get(WAKE) {
        ratios.push(
            "first_frame_p50_vs_wake",
            first_frame.scaled(1e6).median() / wakes.median(),
        );
    }
    for aim in own(table) {
        ratios.push(aim.what, aim.value.median());
    }
    ratios
}

/// What each switch has, of all that was measured more than once.
pub fn of_each(table: &Table<Row, Peer>) -> Ratios {
    let mut ratios = Ratios::default();
    for row in &table.rows {
        for peer in &table.peers {
            let seen = table.get(*peer, *row);
            if seen.count() > 1 {
                ratios.push(format!("{}_{}", row.name(), peer.name()), seen.median());
            }
        }
    }
    ratios
}

/// Nothing about what was not measured more than once.
fn all(table: &Table<Row, Peer>) -> Vec<Aim> {
    let alone = Row::RoundTrip {
        loaded: false,
        per_mille: 500,
    };
    let at_least = [
        (udp(64, 1), Peer::Testpmd, 1.5),
        (udp(64, 1), Peer::OvsNormal, 2.5),
        (udp(64, 1_000), Peer::OvsCt, 10.0),
        (udp(1518, 1), Peer::Testpmd, 1.5),
        (Row::Rate(Load::Tso), Peer::TestpmdLarge, 1.4),
        (Row::Exchanges(Kind::Connection), Peer::OvsCt, 3.0),
    ];
    let mut aims = Vec::new();
    for (row, peer, least) in at_least {
        let what = format!("{} at least {least} times {}", row.name(), peer.name());
        aims.push(Aim::new(what, table.ratio(row, peer), |value| {
            value >= least
        }));
    }
    for peer in [Peer::OvsNormal, Peer::OvsCt] {
        let what = format!("{} below {}", alone.name(), peer.name());
        aims.push(Aim::new(what, table.ratio(alone, peer), |value| {
            value < 1.0
        }));
    }
    aims.extend(own(table));
    aims.retain(|aim| aim.value.count() > 1);
    aims
}

/// 64 bytes over so many flows, and others of one flow.
fn udp(frame_len: usize, flows: u32) -> Row {
    Row::Rate(Load::Udp { frame_len, flows })
}

/// Those that compare this switch with itself or with a fixed number.
fn own(table: &Table<Row, Peer>) -> Vec<Aim> {
    let first_frame = |peer| {
        table
            .get(peer, Row::FirstFrame { longest: false })
            .scaled(1e6)
    };
    let own = |row| table.get(Peer::OURS, row);
    let aims = [
        Aim::new(
            "million_flows_vs_one".to_owned(),
            own(Row::OfOne),
            |value| value >= 0.5,
        ),
        Aim::new("idle_percent".to_owned(), own(Row::IdleCpu), |value| {
            value < 0.5
        }),
        Aim::new(
            "first_frame_us".to_owned(),
            first_frame(Peer::OURS),
            |value| value < 50.0,
        ),
        Aim::new(
            "first_frame_awake_us".to_owned(),
            first_frame(Peer::ButterflyAwake),
            |value| value < 50.0,
        ),
    ];
    aims.into_iter()
        .filter(|aim| aim.value.count() > 1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::results::{Results, Seen};
    use crate::table;

    #[test]
    fn ratios_and_aims_speak_of_what_was_measured_more_than_once() {
        let rows = [udp(64, 1), udp(1518, 1), Row::IdleCpu];
        let near = Regime {
            round_trip_ns: 70.0,
        };
        let mut results = Results::new(rows.to_vec(), vec![Peer::ButterflyRules, Peer::Testpmd]);
        let seen = |peer, row, value| Seen { row, peer, value };
        for (pass, sample) in [1.0, 1.1, 1.2].into_iter().enumerate() {
            let mut pass_seen = vec![
                seen(Peer::ButterflyRules, udp(64, 1), 33e6 * sample),
                seen(Peer::Testpmd, udp(64, 1), 20e6 * sample),
            ];
            if pass == 0 {
                pass_seen.push(seen(Peer::ButterflyRules, udp(1518, 1), 9e6));
                pass_seen.push(seen(Peer::Testpmd, udp(1518, 1), 5e6));
            }
            results.add(near, near, &pass_seen);
        }
        let tables = results.tables();
        let (regime, table) = tables[0];
        assert!(!table.is_whole(), "idle was not measured");
        assert_eq!(ratios(table).to_string(), "64_vs_testpmd-io=1.65");
        let aims = all(table);
        assert_eq!(aims.len(), 1);
        assert!(aims[0].reached);
        let text = table::text(regime, table);
        assert!(
            text.contains("36.3 ±9%") && text.contains("one sample"),
            "{text}"
        );
    }
}
