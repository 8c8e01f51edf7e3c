//! What a run has measured, as a table on the way and as files at the end.

use std::fmt::Write as _;
use std::path::Path;

/// All rows and ratios, in the order they were measured.
#[derive(Default)]
pub struct Results {
    rows: Vec<Row>,
    ratios: Vec<(String, f64)>,
}

/// One thing of one of the peers.
struct Row {
    what: String,
    who: &'static str,
    /// Sorted.
    samples: Vec<f64>,
}

impl Results {
    /// Takes down the samples of a row, in nanoseconds, and gives their median.
    pub fn add(&mut self, what: &str, who: &'static str, mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        let row = Row {
            what: what.to_owned(),
            who,
            samples,
        };
        let (median, half) = (row.median(), row.half_spread());
        println!("{what:<28} {who:<12} {median:>9.1} ns ±{half:.0}%");
        self.rows.push(row);
        median
    }

    /// A number for the last line.
    pub fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.push((name.to_owned(), value));
    }

    /// The last line.
    pub fn pairs(&self) -> String {
        let pair = |(name, value): &(String, f64)| format!("{name}={value:.2}");
        self.ratios.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// `router.tsv` and `router.md` in a folder.
    pub fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder can be made");
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?");
        let mut data = "what\twho\tunit\tmedian\tleast\tmost\tsamples\n".to_owned();
        let mut text = format!(
            "# bench-router\n\nNanoseconds, medians, half the spread behind; the machine's load was {load}. As data: [router.tsv](router.tsv).\n\n"
        );
        text += "| what | who | ns | |\n|---|---|---|---|\n";
        for row in &self.rows {
            let (median, half) = (row.median(), row.half_spread());
            let (least, most) = (row.samples[0], row.samples[row.samples.len() - 1]);
            let _ = writeln!(
                data,
                "{}\t{}\tns\t{median:.1}\t{least:.1}\t{most:.1}\t{}",
                row.what,
                row.who,
                row.samples.len()
            );
            let _ = writeln!(text, "| {} | {} | {median:.1} | ±{half:.0}% |", row.what, row.who);
        }
        text += "\n| ratio | |\n|---|---|\n";
        for (name, value) in &self.ratios {
            let _ = writeln!(text, "| {name} | {value:.2} |");
        }
        for (name, content) in [("router.tsv", data), ("router.md", text)] {
            std::fs::write(folder.join(name), content).expect("a file can be written");
        }
    }
}

impl Row {
    fn median(&self) -> f64 {
        self.samples[self.samples.len() / 2]
    }

    /// Half the way from the least to the most, in percent of the median.
    fn half_spread(&self) -> f64 {
        (self.samples[self.samples.len() - 1] - self.samples[0]) / 2.0 / self.median() * 100.0
    }
}
