//! Samples, their median and spread, and the last line that scripts read.

use std::fmt;

/// Measurements of one thing, in the order they were taken.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value below which `share` (0..=1) of them lie; NaN when there are none.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        sorted
            .get((last * share).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// From the tenth part that is least to the tenth that is most, as a share of the median; 0
    /// when they are the same. Of up to five samples these are the least and the most.
    pub fn spread(&self) -> f64 {
        let [low, high] = [0.1, 0.9].map(|share| self.quantile(share));
        if low == high {
            return 0.0;
        }
        (high - low) / self.median()
    }
}

impl From<Vec<f64>> for Samples {
    fn from(values: Vec<f64>) -> Samples {
        Samples(values)
    }
}

impl Samples {
    /// Adds those of another run.
    pub fn extend(&mut self, other: &Samples) {
        self.0.extend(&other.0);
    }

    /// These samples in a unit of which one is `1 / scale` of this one.
    pub fn scaled(&self, scale: f64) -> Samples {
        Samples(self.0.iter().map(|value| value * scale).collect())
    }

    /// How many times each of `other` goes into each of these, which were taken beside them.
    pub fn quotients(&self, other: &Samples) -> Samples {
        Samples(
            self.0
                .iter()
                .zip(&other.0)
                .map(|(own, other)| own / other)
                .collect(),
        )
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The median and half the spread, `12.3 ±4%`. A single sample has no spread and is not shown.
    pub fn summary(&self) -> String {
        match self.count() {
            0 => "-".to_owned(),
            1 => "one sample".to_owned(),
            _ => {
                let median = self.median();
                let digits = match median.abs() {
                    value if value >= 100.0 => 0,
                    value if value >= 10.0 => 1,
                    value if value >= 1.0 => 2,
                    _ => 3,
                };
                format!("{median:.digits$} ±{:.0}%", self.spread() * 50.0)
            }
        }
    }
}

/// The ratios of a run: `name=value` pairs on the last line of its output.
#[derive(Default)]
pub struct Ratios(Vec<(String, f64)>);

impl Ratios {
    /// Adds one; a ratio of what was not measured is left out.
    pub fn push(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.0.push((name.into(), value));
        }
    }
}

impl Ratios {
    /// Adds those of another run.
    pub fn extend(&mut self, other: Ratios) {
        self.0.extend(other.0);
    }

    /// Adds those whose names are not there yet.
    pub fn extend_missing(&mut self, other: Ratios) {
        for (name, value) in other.0 {
            if self.0.iter().all(|(own, _)| *own != name) {
                self.0.push((name, value));
            }
        }
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let gap = if index > 0 { " " } else { "" };
            write!(f, "{gap}{name}={value:.2}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread_do_not_depend_on_the_order() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 2.0, 5.0, 4.0] {
            samples.push(value);
        }
        assert_eq!(
            (
                samples.median(),
                samples.quantile(0.0),
                samples.quantile(1.0)
            ),
            (3.0, 1.0, 5.0)
        );
        assert!((samples.spread() - 4.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_number_is_shown_with_its_spread_or_not_at_all() {
        let mut samples = Samples::default();
        assert_eq!(samples.summary(), "-");
        samples.push(9.0);
        assert_eq!(samples.summary(), "one sample");
        samples.push(10.0);
        samples.push(11.0);
        assert_eq!(samples.summary(), "10.0 ±10%");
    }

    #[test]
    fn what_was_not_measured_is_not_reported() {
        let mut ratios = Ratios::default();
        ratios.push("rate", 1.5);
        ratios.push("missing", Samples::default().median());
        assert_eq!(ratios.to_string(), "rate=1.50");
    }
}
