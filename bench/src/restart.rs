//! How long no frame passes, and which connections end, when the switch is killed, upgraded or
//! restarted: this one, and beside it OVS-DPDK, in the same run.
//!
//! A stream of small frames with numbers goes from one guest to another at a fixed rate
//! ([`traffic`]). Its *blackout* is the longest time between two arrivals around the event without
//! the usual one ([`stream::blackout`]); *lost* are the numbers that never come. What a stream sees
//! when nothing happens, which is the machine and the driver, is measured beside it. Before the
//! event there are established connections, and behind it their server speaks: what does not arrive
//! is lost ([`connections`]). A round starts all scenes anew, one after the other, and has each
//! event happen several times to each.
//!
//! A virtual machine loses its processors now and then. Some have a quota of processor time for
//! each 100 ms: two daemons and the driver use it up, and nothing runs until the next period.
//! *Undisturbed* are the events in which no processor was taken away.

mod connections;
mod end;
mod scene;
mod stream;
mod traffic;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::hugepages::HugePages;
use crate::passes::{self, Cores};
use crate::peers::PeerError;
use crate::report::{Ratios, Samples};
use crate::{interrupt, table};
use scene::{Cost, Event, Kind, Scene};
use stream::Fate;

/// For OVS (512 MiB).
const HUGE_PAGES: u64 = 300;

/// Below this it is to be, in milliseconds: behind a kill 99 in 100 blackouts, behind an upgrade,
/// and what an upgrade aims at.
const KILL_MS: f64 = 100.0;
const UPGRADE_MS: f64 = 20.0;
const UPGRADE_AIM_MS: f64 = 5.0;

/// What the command line says.
#[derive(clap::Args)]
pub struct Options {
    /// Fewer events and connections: under five minutes.
    #[arg(long)]
    quick: bool,
    /// The core of the switch; the guests' driver runs on another.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Measure only the scenes with these names: split, packed, split64, packed64, tap, overlay,
    /// ovs.
    #[arg(long)]
    only: Vec<String>,
    /// Rounds, for fewer or more than usual.
    #[arg(long)]
    rounds: Option<usize>,
    /// Events of each kind in a round, for fewer or more than usual.
    #[arg(long)]
    events: Option<usize>,
    /// Connections between two guests, for fewer or more than usual: up to 3,000,000.
    #[arg(long)]
    connections: Option<usize>,
    /// Where the table and the data are written: restart.md, .tsv.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// How often, and with how many connections.
struct Plan {
    rounds: usize,
    /// Of each kind in a round.
    events: usize,
    /// Of each kind in a round, of a switch that takes seconds for one.
    slow_events: usize,
    connections: usize,
    /// No round is begun that would not end within it.
    budget: Duration,
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let (rounds, events, slow_events, connections, budget) = match options.quick {
            true => (2, 5, 2, 4_000, 200),
            false => (5, 20, 4, 1_000_000, 1_500),
        };
        Plan {
            rounds: options.rounds.unwrap_or(rounds),
            events: options.events.unwrap_or(events),
            slow_events: options.events.unwrap_or(slow_events),
            connections: options.connections.unwrap_or(connections),
            budget: Duration::from_secs(budget),
        }
    }
}

/// What an event has cost each time.
#[derive(Default)]
struct Costs {
    /// How often it happened.
    events: usize,
    /// In milliseconds.
    blackouts: Samples,
    /// Of those the ones of events in which no processor was taken away.
    undisturbed: Samples,
    fate: Fate,
    asked: usize,
    lost: usize,
}

impl Costs {
    fn add(&mut self, cost: &Cost) {
        self.events += 1;
        for blackout in &cost.seen.blackouts {
            let ms = blackout.as_secs_f64() * 1e3;
            self.blackouts.push(ms);
            if !cost.disturbed {
                self.undisturbed.push(ms);
            }
        }
        self.fate += cost.seen.fate;
        self.asked += cost.asked;
        self.lost += cost.lost;
    }

    /// Median, 99 in 100 and the most, in milliseconds.
    fn quantiles(&self) -> [f64; 3] {
        [0.5, 0.99, 1.0].map(|share| self.blackouts.quantile(share))
    }

    /// 99 in 100 of undisturbed events, in milliseconds, if there were any.
    fn undisturbed(&self) -> Option<f64> {
        (self.undisturbed.count() > 0).then(|| self.undisturbed.quantile(0.99))
    }
}

/// One line of the table.
struct Row {
    kind: Kind,
    event: Event,
    costs: Costs,
}

impl Row {
    /// In data and ratios.
    fn name(&self) -> String {
        format!("{}_{}", self.event.name(), self.kind.name())
    }

    /// What stands behind its name, in the printed table as on the page.
    fn cells(&self) -> [String; 11] {
        let Costs {
            blackouts,
            undisturbed,
            fate,
            asked,
            lost,
            ..
        } = &self.costs;
        let [middle, late, most] = self.costs.quantiles().map(|ms| format!("{ms:.2}"));
        let alone = self.costs.undisturbed();
        let alone = alone.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        let [of, of_alone] = [blackouts, undisturbed].map(|all| all.count().to_string());
        let [asked, lost] = [*asked, *lost].map(|count| count.to_string());
        let [sent, missing, twice] =
            [fate.sent, fate.lost, fate.twice].map(|count| count.to_string());
        [
            middle, late, most, of, alone, of_alone, sent, missing, twice, asked, lost,
        ]
    }
}

/// Runs it and prints the table.
pub fn run(options: &Options) -> Result<Ratios, PeerError> {
    let plan = Plan::new(options);
    let chosen = |kind: &Kind| {
        options.only.is_empty() || options.only.iter().any(|name| name == kind.name())
    };
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(chosen).collect();
    if kinds.is_empty() {
        let names = Kind::ALL.map(Kind::name).join(", ");
        return Err(PeerError(format!(
            "there is no scene '{}', but {names}",
            options.only.join("', '")
        )));
    }
    let mut rows = Vec::new();
    for kind in &kinds {
        for event in Event::ALL.into_iter().filter(|event| kind.takes(*event)) {
            rows.push(Row {
                kind: *kind,
                event,
                costs: Costs::default(),
            });
        }
    }
    let cores = Cores::new(options.core);
    passes::rounds(plan.rounds, plan.budget, || {
        for kind in &kinds {
            passes::said(kind.name(), round(*kind, cores, &plan, &mut rows));
            interrupt::check()?;
        }
        Ok(())
    })?;
    rows.retain(|row| row.costs.blackouts.count() > 0);
    print!("{}", text(&rows));
    print!("{}", aims(&rows));
    if let Some(out) = &options.out {
        write(out, &rows, plan.connections)?;
    }
    Ok(ratios(&rows))
}

/// All events of a scene, in turn.
fn round(kind: Kind, cores: Cores, plan: &Plan, rows: &mut [Row]) -> Result<(), PeerError> {
    let (_pages, events) = match kind {
        Kind::Ovs => (Some(HugePages::reserve(HUGE_PAGES)?), plan.slow_events),
        _ => (None, plan.events),
    };
    let mut scene = Scene::start(kind, cores, plan.connections)?;
    for _ in 0..events {
        for row in rows.iter_mut().filter(|row| row.kind == kind) {
            let cost = scene.undergo(row.event);
            let cost = cost.map_err(|error| PeerError(format!("{}: {error}", row.event.name())))?;
            row.costs.add(&cost);
            interrupt::check()?;
        }
    }
    Ok(())
}

/// The table as it is printed.
fn text(rows: &[Row]) -> String {
    let mut out = format!(
        "\nmilliseconds without a frame, and in undisturbed events; frames; connections\n\
         {:<18} {:>9} {:>9} {:>9} {:>6} {:>9} {:>6} {:>9} {:>7} {:>7} {:>9} {:>7}\n",
        "", "p50", "p99", "max", "of", "p99", "of", "sent", "lost", "twice", "asked", "lost"
    );
    for row in rows {
        let [
            middle,
            late,
            most,
            of,
            alone,
            of_alone,
            sent,
            lost,
            twice,
            asked,
            gone,
        ] = row.cells();
        let _ = writeln!(
            out,
            "{:<18} {middle:>9} {late:>9} {most:>9} {of:>6} {alone:>9} {of_alone:>6} {sent:>9} \
             {lost:>7} {twice:>7} {asked:>9} {gone:>7}",
            row.name(),
        );
    }
    out
}

/// What the project aims at, reached or missed, of its own switch.
fn aims(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut aim = |reached: bool, what: String| {
        let reached = if reached { "reached" } else { "MISSED " };
        let _ = writeln!(out, "{reached} {what}");
    };
    for row in rows.iter().filter(|row| row.kind != Kind::Ovs) {
        let name = row.name();
        let (late, lost) = (row.costs.quantiles()[1], row.costs.lost);
        let limits: &[f64] = match row.event {
            Event::Kill => &[KILL_MS],
            Event::Upgrade => &[UPGRADE_MS, UPGRADE_AIM_MS],
            Event::Quiet | Event::Restart => continue,
        };
        for limit in limits {
            let alone = row.costs.undisturbed();
            let alone = alone.map(|ms| format!(", undisturbed {ms:.2}"));
            aim(
                late < *limit,
                format!(
                    "{name}_p99 below {limit} ms: {late:.2}{}",
                    alone.unwrap_or_default()
                ),
            );
        }
        aim(lost == 0, format!("{name}, no connection lost: {lost}"));
    }
    out
}

/// The last line.
fn ratios(rows: &[Row]) -> Ratios {
    let mut ratios = Ratios::default();
    for row in rows {
        let name = row.name();
        for (what, value) in ["p50", "p99", "max"].into_iter().zip(row.costs.quantiles()) {
            ratios.push(format!("{name}_{what}_ms"), value);
        }
        if let Some(ms) = row.costs.undisturbed() {
            ratios.push(format!("{name}_undisturbed_p99_ms"), ms);
        }
        ratios.push(format!("{name}_lost_frames"), row.costs.fate.lost as f64);
        ratios.push(format!("{name}_lost_connections"), row.costs.lost as f64);
    }
    let first = Kind::ALL[0];
    for event in [Event::Kill, Event::Restart] {
        let of = |kind| {
            rows.iter()
                .find(|row| row.kind == kind && row.event == event)
        };
        if let (Some(ours), Some(theirs)) = (of(first), of(Kind::Ovs)) {
            let [ours, theirs] = [ours, theirs].map(|row| row.costs.blackouts.median());
            ratios.push(format!("{}_p50_vs_ovs", event.name()), ours / theirs);
        }
    }
    ratios
}

/// The page and the data.
fn write(dir: &Path, rows: &[Row], connections: usize) -> Result<(), PeerError> {
    let events = rows.iter().map(|row| row.costs.events).max();
    let head = format!(
        "{}; {}; {connections} connections between two guests; at most {} events of each kind",
        table::machine(),
        table::date(),
        events.unwrap_or(0)
    );
    let mut page = format!(
        "# bench-restart\n\n{head}. Milliseconds without a frame, of all streams and events; \
         undisturbed are events in which the hypervisor took no processor away. As data: \
         [restart.tsv](restart.tsv).\n\n\
         | | p50 | p99 | most | of | undisturbed p99 | of | frames sent | lost | twice | \
         connections asked | lost |\n\
         |---|{}\n",
        "---|".repeat(11)
    );
    let mut data = table::data_head(&head);
    for row in rows {
        let Costs {
            blackouts,
            fate,
            lost,
            ..
        } = &row.costs;
        let [middle, late, most] = row.costs.quantiles();
        let count = blackouts.count();
        let _ = writeln!(page, "| {} | {} |", row.name(), row.cells().join(" | "));
        // Of what stands in one column the rows have one name.
        let (peer, kind) = match row.kind {
            Kind::Ovs => ("ovs", Kind::ALL[0]),
            kind => ("butterfly", kind),
        };
        let name = format!("{}_{}", row.event.name(), kind.name());
        let [low, high] = [0.1, 0.9].map(|share| blackouts.quantile(share));
        let _ = writeln!(
            data,
            "{name}_p50\t{peer}\tms\t{middle:.4}\t{low:.4}\t{high:.4}\t{count}"
        );
        let once = [
            ("p99", "ms", late),
            ("max", "ms", most),
            ("lost_frames", "frames", fate.lost as f64),
            ("lost_connections", "connections", *lost as f64),
        ];
        let alone = row.costs.undisturbed();
        let alone = alone.map(|ms| ("undisturbed_p99", "ms", ms));
        for (what, unit, value) in once.into_iter().chain(alone) {
            let _ = writeln!(
                data,
                "{name}_{what}\t{peer}\t{unit}\t{value:.4}\t{value:.4}\t{value:.4}\t1"
            );
        }
    }
    table::put(dir, "restart", page, data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use traffic::Seen;

    /// In the last event processors were taken away.
    fn row(kind: Kind, event: Event, ms: &[u64], lost: usize) -> Row {
        let (mut costs, all) = (Costs::default(), ms.len());
        for (at, ms) in ms.iter().enumerate() {
            costs.add(&Cost {
                seen: Seen {
                    blackouts: vec![Duration::from_millis(*ms)],
                    fate: Fate {
                        sent: 100,
                        lost: 1,
                        twice: 0,
                    },
                },
                lost,
                asked: 10,
                disturbed: at + 1 == all,
            });
        }
        Row { kind, event, costs }
    }

    #[test]
    fn aims_are_of_our_kills_and_upgrades_and_ratios_of_all() {
        let rows = [
            row(Kind::Tap, Event::Quiet, &[1, 1, 1], 0),
            row(Kind::ALL[0], Event::Kill, &[20, 30, 120], 0),
            row(Kind::Tap, Event::Upgrade, &[6, 7, 8], 1),
            row(Kind::Ovs, Event::Kill, &[2_000, 3_000, 4_000], 10),
        ];
        assert_eq!(
            aims(&rows),
            "MISSED  kill_split_p99 below 100 ms: 120.00, undisturbed 30.00\n\
             reached kill_split, no connection lost: 0\n\
             reached upgrade_tap_p99 below 20 ms: 8.00, undisturbed 7.00\n\
             MISSED  upgrade_tap_p99 below 5 ms: 8.00, undisturbed 7.00\n\
             MISSED  upgrade_tap, no connection lost: 3\n"
        );
        let line = ratios(&rows).to_string();
        for pair in [
            "quiet_tap_p50_ms=1.00",
            "kill_split_p99_ms=120.00 kill_split_max_ms=120.00 kill_split_undisturbed_p99_ms=30.00",
            "kill_split_lost_frames=3.00",
            "kill_ovs_lost_connections=30.00",
            "kill_p50_vs_ovs=0.01",
        ] {
            assert!(line.contains(pair), "{pair} is not in: {line}");
        }
    }

    #[test]
    fn what_is_written_has_a_row_for_both_switches() {
        let rows = [
            row(Kind::ALL[0], Event::Kill, &[20, 30, 40], 0),
            row(Kind::Ovs, Event::Kill, &[2_000, 3_000, 4_000], 10),
        ];
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &rows, 10).unwrap();
        let data = std::fs::read_to_string(dir.path().join("restart.tsv")).unwrap();
        let head = "; 10 connections between two guests; at most 3 events of each kind\n";
        assert!(data.starts_with("# ") && data.contains(head), "{data}");
        for line in [
            "kill_split_p50\tbutterfly\tms\t30.0000\t20.0000\t40.0000\t3\n",
            "kill_split_p99\tovs\tms\t4000.0000\t4000.0000\t4000.0000\t1\n",
            "kill_split_lost_connections\tovs\tconnections\t30.0000\t30.0000\t30.0000\t1\n",
        ] {
            assert!(data.contains(line), "{line} is not in: {data}");
        }
        let page = std::fs::read_to_string(dir.path().join("restart.md")).unwrap();
        assert!(page.contains(
            "| kill_ovs | 3000.00 | 4000.00 | 4000.00 | 3 | 3000.00 | 2 | 300 | 3 | 0 | 30 | 30 |"
        ));
    }
}
