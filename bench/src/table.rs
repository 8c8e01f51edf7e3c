//! A table as text, as data, and as ratios.
//!
//! No number is given without its spread: each is the median of its samples with half the way from the least to
//! the most behind it, and what was measured once is not shown.

use std::fmt::Write as _;
use std::path::Path;

use crate::load::Load;
use crate::peers::{Peer, PeerError};
use crate::plan::Row;
use crate::report::{Ratios, Samples};
use crate::results::Table;

/// The table as it is printed.
pub fn text(regime: &str, table: &Table) -> String {
    let mut out = format!(
        "\ncores {regime}, {} rounds; a cache line there and back: {} ns\n{:<26}",
        table.rounds,
        table.round_trips.summary(),
        "",
    );
    for peer in &table.peers {
        let _ = write!(out, "{:>18}", peer.name());
    }
    out.push('\n');
    for row in &table.rows {
        let (unit, scale) = row.unit();
        let _ = write!(out, "{:<26}", format!("{} {unit}", row.name()));
        for peer in &table.peers {
            let samples = table.get(*peer, *row).scaled(scale);
            let _ = write!(out, "{:>18}", samples.summary());
        }
        out.push('\n');
    }
    let [plain, rewriting] = table
        .ceilings
        .each_ref()
        .map(|samples| samples.scaled(1e-6).summary());
    let _ = writeln!(
        out,
        "the guests' driver alone: {plain} Mframes/s, {rewriting} when it writes to every frame"
    );
    let _ = writeln!(
        out,
        "a sleeping thread woken: {} us",
        table.wakes.scaled(1e6).summary()
    );
    for (aim, value, reached) in aims(table) {
        let _ = writeln!(
            out,
            "{} {aim}: {value:.2}",
            if reached { "reached" } else { "MISSED " }
        );
    }
    out
}

/// The same as a table for the documentation, `switch-REGIME.md`.
pub fn write_markdown(dir: &Path, regime: &str, table: &Table) -> Result<(), PeerError> {
    let path = dir.join(format!("switch-{regime}.md"));
    let mut out = format!(
        "# bench-switch, cores {regime}\n\n{}; {}; {} rounds. A cache line there and back: {} ns. The guests' driver \
         alone: {} \
         million frames a second, {} when it writes to every frame; a sleeping thread is woken in {} us. Medians, half the spread behind. As data: \
         [switch-{regime}.tsv](switch-{regime}.tsv).\n\n![](switch-{regime}.svg)\n\n| |",
        machine(),
        date(),
        table.rounds,
        table.round_trips.summary(),
        table.ceilings[0].scaled(1e-6).summary(),
        table.ceilings[1].scaled(1e-6).summary(),
        table.wakes.scaled(1e6).summary(),
    );
    for peer in &table.peers {
        let _ = write!(out, " {} |", peer.name());
    }
    let _ = write!(out, "\n|---|{}\n", "---|".repeat(table.peers.len()));
    for row in &table.rows {
        let (unit, scale) = row.unit();
        let _ = write!(out, "| {}, {unit} |", row.name());
        for peer in &table.peers {
            let _ = write!(out, " {} |", table.get(*peer, *row).scaled(scale).summary());
        }
        out.push('\n');
    }
    out.push_str("\n| aim | value | |\n|---|---|---|\n");
    for (aim, value, reached) in aims(table) {
        let _ = writeln!(
            out,
            "| {aim} | {value:.2} | {} |",
            if reached { "reached" } else { "missed" }
        );
    }
    std::fs::write(&path, out).map_err(|error| PeerError(format!("{}: {error}", path.display())))
}

/// The same as data, one line a row and switch, with the machine above.
pub fn write(dir: &Path, regime: &str, table: &Table) -> Result<(), PeerError> {
    let path = dir.join(format!("switch-{regime}.tsv"));
    let fail = |error: std::io::Error| PeerError(format!("{}: {error}", path.display()));
    let trip = &table.round_trips;
    let mut out = format!(
        "# {}\n# cores {regime}: a cache line there and back {:.0} ns ({:.0}..{:.0}); {} rounds; {}\n",
        machine(),
        trip.median(),
        trip.quantile(0.0),
        trip.quantile(1.0),
        table.rounds,
        date(),
    );
    out += "row\tswitch\tunit\tmedian\tleast\tmost\tsamples\n";
    let mut line = |row: &str, peer: &str, unit: &str, samples: &Samples| {
        if samples.count() > 1 {
            let [median, least, most] = [0.5, 0.0, 1.0].map(|share| samples.quantile(share));
            let count = samples.count();
            let _ = writeln!(
                out,
                "{row}\t{peer}\t{unit}\t{median:.4}\t{least:.4}\t{most:.4}\t{count}"
            );
        }
    };
    for row in &table.rows {
        let (unit, scale) = row.unit();
        for peer in &table.peers {
            line(
                &row.name(),
                peer.name(),
                unit,
                &table.get(*peer, *row).scaled(scale),
            );
        }
    }
    for (name, samples) in ["driver", "driver_rewriting"].iter().zip(&table.ceilings) {
        line(name, "none", "Mframes/s", &samples.scaled(1e-6));
    }
    line("wake", "none", "us", &table.wakes.scaled(1e6));
    std::fs::create_dir_all(dir).map_err(fail)?;
    std::fs::write(&path, out).map_err(fail)
}

/// This switch's rules over every other, row by row, and what the project aims at.
pub fn ratios(table: &Table) -> Ratios {
    let mut ratios = Ratios::default();
    let ours = Peer::ButterflyRules;
    for row in &table.rows {
        for peer in table.peers.iter().filter(|peer| **peer != ours) {
            let ratio = median(table, ours, *row) / median(table, *peer, *row);
            ratios.push(format!("{}_vs_{}", row.name(), peer.name()), ratio);
        }
    }
    let first_frame = median(table, ours, Row::FirstFrame { longest: false });
    ratios.push("first_frame_p50_vs_wake", first_frame / table.wakes.median());
    for (name, value, _) in own_aims(table) {
        ratios.push(name, value);
    }
    ratios
}

fn median(table: &Table, peer: Peer, row: Row) -> f64 {
    let samples = table.get(peer, row);
    if samples.count() > 1 {
        samples.median()
    } else {
        f64::NAN
    }
}

/// 64 bytes over so many flows, and others of one flow.
fn udp(frame_len: usize, flows: u32) -> Row {
    Row::Rate(Load::Udp { frame_len, flows })
}

/// What is aimed at, the value, and whether it is there; nothing about what was not measured.
fn aims(table: &Table) -> Vec<(String, f64, bool)> {
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
        (Row::Connections, Peer::OvsCt, 3.0),
    ];
    let ratio = |row, peer| median(table, Peer::ButterflyRules, row) / median(table, peer, row);
    let mut aims: Vec<(String, f64, bool)> = at_least
        .into_iter()
        .map(|(row, peer, least)| {
            let value = ratio(row, peer);
            let name = format!("{} at least {least} times {}", row.name(), peer.name());
            (name, value, value >= least)
        })
        .collect();
    for peer in [Peer::OvsNormal, Peer::OvsCt] {
        let value = ratio(alone, peer);
        aims.push((
            format!("{} below {}", alone.name(), peer.name()),
            value,
            value < 1.0,
        ));
    }
    aims.extend(own_aims(table).map(|(name, value, reached)| (name.to_owned(), value, reached)));
    aims.retain(|(_, value, _)| value.is_finite());
    aims
}

/// Those that compare this switch with itself or with a fixed number.
fn own_aims(table: &Table) -> [(&'static str, f64, bool); 4] {
    let first_frame = |peer| median(table, peer, Row::FirstFrame { longest: false }) * 1e6;
    let own = |row| median(table, Peer::ButterflyRules, row);
    let many = own(udp(64, 1_000_000)) / own(udp(64, 1));
    let idle = own(Row::IdleCpu);
    let [first, awake] = [Peer::ButterflyRules, Peer::ButterflyAwake].map(first_frame);
    [
        ("million_flows_vs_one", many, many >= 0.5),
        ("idle_percent", idle, idle < 0.5),
        ("first_frame_us", first, first < 50.0),
        ("first_frame_awake_us", awake, awake < 50.0),
    ]
}

/// The processor, how many of them, and the kernel without its builder's suffix.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(": "));
        value.map_or("?", |(_, value)| value.trim()).to_owned()
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} (family {}, model {}), {} processors, Linux {}",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        // Not those that this thread may use: it is pinned.
        info.lines().filter(|line| line.starts_with("processor")).count(),
        kernel.trim().split('-').next().unwrap_or_default()
    )
}

/// Today, in UTC.
pub fn date() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let (year, month, day) = civil(now.div_euclid(86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(mut days: i64) -> (i64, u8, u8) {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + i64::from(is_leap(year)) {
        days -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + i64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (789, (1972, 2, 29)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(civil(days), date);
        }
    }

    #[test]
    fn ratios_and_aims_speak_of_what_was_measured_more_than_once() {
        let rows = [udp(64, 1), udp(1518, 1), Row::IdleCpu];
        let mut table = Table::new(&rows, &[Peer::ButterflyRules, Peer::Testpmd]);
        for sample in [1.0, 1.1, 1.2] {
            table.push(Peer::ButterflyRules, udp(64, 1), 33e6 * sample);
            table.push(Peer::Testpmd, udp(64, 1), 20e6 * sample);
        }
        table.push(Peer::ButterflyRules, udp(1518, 1), 9e6);
        table.push(Peer::Testpmd, udp(1518, 1), 5e6);
        assert_eq!(ratios(&table).to_string(), "64_vs_testpmd-io=1.65");
        let aims = aims(&table);
        assert_eq!(aims.len(), 1);
        assert!(aims[0].2, "{aims:?}");
        let text = text("near", &table);
        assert!(text.contains("36.3 ±9%") && text.contains("one sample"), "{text}");
    }
}
