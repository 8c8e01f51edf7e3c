//! A table as text, as a page, and as data.
//!
//! No number is given without its spread: each is the median of its samples with half the way from
//! the least tenth to the greatest behind it, and what was measured once is not shown. Ratios are
//! of windows of the same pass.

use std::fmt::Write as _;
use std::path::Path;

use crate::peers::PeerError;
use crate::report::Samples;
use crate::results::{Column, Row, Table};

/// The unit of a ratio of windows that followed each other.
pub const OURS_OVER_IT: &str = "ours over it";

/// The table as it is printed.
pub fn text<R: Row, P: Column>(regime: &str, table: &Table<R, P>) -> String {
    let mut out = format!(
        "\ncores {regime}, {} passes; a cache line there and back: {} ns\n",
        table.passes,
        table.round_trips.summary(),
    );
    let mut line = |first: &str, cells: &[String]| {
        let _ = write!(out, "{first:<26}");
        for cell in cells {
            let _ = write!(out, "{cell:>18}");
        }
        out.push('\n');
    };
    let [values, ratios] = [values(table), ratios(table)];
    for part in [values, ratios] {
        line("", &part.columns);
        for (name, cells) in &part.lines {
            line(name, cells);
        }
    }
    for (what, samples) in &table.notes {
        let _ = writeln!(out, "{what}: {}", samples.summary());
    }
    out
}

/// Medians and spreads, or ratios, as words.
struct Part {
    columns: Vec<String>,
    lines: Vec<(String, Vec<String>)>,
}

fn values<R: Row, P: Column>(table: &Table<R, P>) -> Part {
    let cells = |row: R| {
        let cell = |peer: &P| table.get(*peer, row).scaled(row.unit().1).summary();
        table.peers.iter().map(cell).collect()
    };
    let line = |row: &R| (format!("{} {}", row.name(), row.unit().0), cells(*row));
    Part {
        columns: table
            .peers
            .iter()
            .map(|peer| peer.name().to_owned())
            .collect(),
        lines: table.rows.iter().map(line).collect(),
    }
}

fn ratios<R: Row, P: Column>(table: &Table<R, P>) -> Part {
    let others = table.others();
    let cells = |row: R| {
        others
            .iter()
            .map(|peer| table.ratio(row, *peer).summary())
            .collect()
    };
    Part {
        columns: others
            .iter()
            .map(|peer| format!("/ {}", peer.name()))
            .collect(),
        lines: table
            .rows
            .iter()
            .map(|row| (row.name(), cells(*row)))
            .collect(),
    }
}

/// Writes the table as a page and as data, `NAME-REGIME.md` and `.tsv`. What else the page says is
/// in `below`, which follows its head, and `behind`, which follows its tables.
pub fn write<R: Row, P: Column>(
    dir: &Path,
    name: &str,
    regime: &str,
    table: &Table<R, P>,
    below: &str,
    behind: &str,
) -> Result<(), PeerError> {
    let head = format!(
        "{}; {}; {} passes; a cache line there and back: {} ns",
        machine(),
        date(),
        table.passes,
        table.round_trips.summary()
    );
    let mut page = format!(
        "# bench-{name}, cores {regime}\n\n{head}. Medians, half the spread behind. As data: \
         [{name}-{regime}.tsv]({name}-{regime}.tsv).\n{below}"
    );
    for part in [values(table), ratios(table)] {
        let _ = write!(
            page,
            "\n| | {} |\n|---|{}\n",
            part.columns.join(" | "),
            "---|".repeat(part.columns.len())
        );
        for (name, cells) in &part.lines {
            let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
        }
    }
    page.push('\n');
    for (what, samples) in &table.notes {
        let _ = writeln!(page, "- {what}: {}", samples.summary());
    }
    page.push_str(behind);
    let name = format!("{name}-{regime}");
    put(dir, &name, page, data(&head, table))
}

/// Writes NAME.md and NAME.tsv.
pub fn put(dir: &Path, name: &str, page: String, data: String) -> Result<(), PeerError> {
    for (ending, text) in [("md", page), ("tsv", data)] {
        let path = dir.join(format!("{name}.{ending}"));
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text));
        written.map_err(|error| PeerError(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// How a file of data begins.
pub fn data_head(head: &str) -> String {
    format!("# {head}\nrow\tpeer\tunit\tmedian\tleast tenth\tgreatest tenth\tsamples\n")
}

/// A line of data; nothing of what was measured once.
pub fn data_line(row: &str, peer: &str, unit: &str, samples: &Samples) -> String {
    if samples.count() < 2 {
        return String::new();
    }
    let [median, low, high] = [0.5, 0.1, 0.9].map(|share| samples.quantile(share));
    let count = samples.count();
    format!("{row}\t{peer}\t{unit}\t{median:.4}\t{low:.4}\t{high:.4}\t{count}\n")
}

/// One line a row and peer, ratios included.
fn data<R: Row, P: Column>(head: &str, table: &Table<R, P>) -> String {
    let mut out = data_head(head);
    let mut line = |row: &str, peer: &str, unit: &str, samples: &Samples| {
        out += &data_line(row, peer, unit, samples);
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
    for row in &table.rows {
        for peer in table.others() {
            line(
                &row.name(),
                peer.name(),
                OURS_OVER_IT,
                &table.ratio(*row, peer),
            );
        }
    }
    for (what, samples) in &table.notes {
        line(what, "none", "", samples);
    }
    out
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
        info.lines()
            .filter(|line| line.starts_with("processor"))
            .count(),
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
}
