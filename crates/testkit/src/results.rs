//! What a benchmark has measured: a line a row on the way, files and ratios at the end.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;

/// All rows and ratios, in the order they were measured.
#[derive(Debug)]
pub struct Results {
    name: &'static str,
    rows: Vec<Row>,
    ratios: Vec<(String, f64)>,
}

/// One thing of one of the peers.
#[derive(Debug)]
struct Row {
    what: String,
    who: &'static str,
    unit: &'static str,
    /// Sorted, one at least.
    samples: Vec<f64>,
    /// What stands behind the median: how far to trust it.
    behind: String,
}

impl Results {
    /// None yet, of `make bench-NAME`.
    pub fn new(name: &'static str) -> Self {
        Results {
            name,
            rows: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// Takes down the samples of a row, one at least, and gives their median.
    pub fn add(
        &mut self,
        what: &str,
        who: &'static str,
        unit: &'static str,
        samples: Vec<f64>,
    ) -> f64 {
        let row = Row::new(what, who, unit, samples, |row| {
            format!("±{:.0}%", row.half_spread())
        });
        println!(
            "{what:<28} {who:<12} {:>9.1} {unit} {}",
            row.median(),
            row.behind
        );
        self.take(row)
    }

    /// Takes down samples of many things, one of each, and gives their median. In place of a spread
    /// the row says how many they are, the least and the most.
    pub fn add_many(
        &mut self,
        what: &str,
        who: &'static str,
        unit: &'static str,
        samples: Vec<f64>,
    ) -> f64 {
        let row = Row::new(what, who, unit, samples, |row| {
            let (least, most) = row.range();
            format!("{least:.0} to {most:.0}, of {}", row.samples.len())
        });
        println!("{:>9.1} {unit} ({}) {who} {what}", row.median(), row.behind);
        self.take(row)
    }

    fn take(&mut self, row: Row) -> f64 {
        let median = row.median();
        self.rows.push(row);
        median
    }

    /// A number for the last line.
    pub fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.push((name.to_owned(), value));
    }

    /// How many times `under` goes into `over`, for the last line: the median of the quotients of
    /// samples that were taken one after the other, so that what the machine did to one it did to
    /// the other.
    pub fn ratio_by_round(&mut self, name: &str, over: &[f64], under: &[f64]) {
        let quotients = over.iter().zip(under).map(|(over, under)| over / under);
        let row = Row::new(name, "", "times", quotients.collect(), |row| {
            format!("±{:.0}%", row.half_spread())
        });
        println!("{name:<41} {:>9.2} times {}", row.median(), row.behind);
        self.ratio(name, row.median());
    }

    /// The last line.
    pub fn pairs(&self) -> String {
        let pair = |(name, value): &(String, f64)| format!("{name}={value:.2}");
        self.ratios.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// `NAME.tsv` and `NAME.md` in a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(folder).map_err(fail)?;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?");
        let name = self.name;
        let mut data = "what\twho\tunit\tmedian\tleast\tmost\tsamples\n".to_owned();
        let mut text = format!(
            "# bench-{name}\n\nMedians; behind each half the spread, or where it is of many things \
             the least and the most of how many. The machine's load was {load}. As data: \
             [{name}.tsv]({name}.tsv).\n\n"
        );
        text += "| what | who | | unit | |\n|---|---|---|---|---|\n";
        for row in &self.rows {
            let Row {
                what,
                who,
                unit,
                samples,
                behind,
            } = row;
            let (median, (least, most)) = (row.median(), row.range());
            let _ = writeln!(
                data,
                "{what}\t{who}\t{unit}\t{median:.1}\t{least:.1}\t{most:.1}\t{}",
                samples.len()
            );
            let _ = writeln!(text, "| {what} | {who} | {median:.1} | {unit} | {behind} |");
        }
        if !self.ratios.is_empty() {
            text += "\n| ratio | |\n|---|---|\n";
        }
        for (name, value) in &self.ratios {
            let _ = writeln!(text, "| {name} | {value:.2} |");
        }
        for (kind, content) in [("tsv", data), ("md", text)] {
            std::fs::write(folder.join(format!("{name}.{kind}")), content).map_err(fail)?;
        }
        Ok(())
    }
}

impl Row {
    fn new(
        what: &str,
        who: &'static str,
        unit: &'static str,
        mut samples: Vec<f64>,
        behind: fn(&Row) -> String,
    ) -> Self {
        samples.sort_by(f64::total_cmp);
        let mut row = Row {
            what: what.to_owned(),
            who,
            unit,
            samples,
            behind: String::new(),
        };
        row.behind = behind(&row);
        row
    }

    fn median(&self) -> f64 {
        self.samples[self.samples.len() / 2]
    }

    /// The least and the most.
    fn range(&self) -> (f64, f64) {
        (self.samples[0], self.samples[self.samples.len() - 1])
    }

    /// Half the way from the least to the most, in percent of the median.
    fn half_spread(&self) -> f64 {
        let (least, most) = self.range();
        (most - least) / 2.0 / self.median() * 100.0
    }
}
