//! `--watch`: a command that prints what has moved since its last print, again and again. Counters
//! are asked for and subtracted here; the daemon keeps nothing for those who watch, and any number
//! of them may.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::session::Session;

/// What is taken for a second when none is said.
const SECOND: Duration = Duration::from_secs(1);

/// `--watch` and `--count`.
#[derive(Args, Debug, Default, PartialEq, Eq)]
pub struct Repeat {
    /// Print rates a second, again every second or every SECS, until interrupted; with --json the
    /// counters, each print a line
    #[arg(
        short,
        long,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = seconds
    )]
    watch: Option<Duration>,
    /// With --watch: end after so many prints
    #[arg(short = 'n', long, value_name = "PRINTS", requires = "watch")]
    count: Option<u64>,
}

/// The value of `--watch`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.01..=86_400.0).contains(&secs) => Ok(Duration::from_secs_f64(secs)),
        _ => Err("seconds are a number from 0.01 to 86400".into()),
    }
}

impl Repeat {
    /// To be watched at all?
    pub fn is_on(&self) -> bool {
        self.watch.is_some()
    }

    /// Prints samples. As text what `text` makes of two of them and the time between, a blank line
    /// between two prints; as JSON each sample, the first at once. Without `--watch`: one print, of
    /// one second.
    pub async fn run<S>(
        &self,
        session: &mut Session,
        mut sample: impl AsyncFnMut(&mut Client) -> Result<S, Error>,
        json: impl Fn(&S) -> Value,
        text: impl Fn(&S, &S, Duration) -> String,
    ) -> Result<(), Error> {
        let (client, out) = session.client_and_output().await?;
        if out.json && !self.is_on() {
            return out.value(&json(&sample(client).await?));
        }
        let mut ticks = tokio::time::interval(self.watch.unwrap_or(SECOND));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut left = match self.is_on() {
            true => self.count,
            false => Some(1),
        };
        let (mut before, mut first) = (None, true);
        while left != Some(0) {
            ticks.tick().await;
            let now = (sample(client).await?, Instant::now());
            if out.json {
                out.value_line(&json(&now.0))?;
            } else if let Some((then, at)) = before.replace(now) {
                let (now, end) = before.as_ref().expect("put there by the line above");
                if !std::mem::take(&mut first) {
                    out.text("\n")?;
                }
                out.text(&text(&then, now, end.duration_since(at)))?;
            } else {
                // The first sample is what the first print is compared with.
                continue;
            }
            out.flush()?;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

/// By how much a counter has grown; one that was reset has nothing to say.
pub fn grown(before: u64, now: u64) -> u64 {
    now.saturating_sub(before)
}

/// A second's part of what came in `time`.
pub fn rate(count: u64, time: Duration) -> String {
    let secs = time.as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{:.0}", count as f64 / secs)
}

/// Bytes in `time` as megabits a second.
pub fn megabits(bytes: u64, time: Duration) -> String {
    let secs = time.as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{:.1}", bytes as f64 * 8.0 / 1e6 / secs)
}

/// `part / whole` with one digit behind the point; empty when there is no whole.
pub fn quotient(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        _ => format!("{:.1}", part as f64 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_second() {
        let half = Duration::from_millis(500);
        assert_eq!(rate(grown(10, 60), half), "100");
        assert_eq!(rate(grown(60, 10), half), "0", "a NIC that was made anew");
        assert_eq!(megabits(125_000, half), "2.0");
        assert_eq!(quotient(10, 4), "2.5");
        assert_eq!(quotient(10, 0), "");
    }

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(seconds("0.1"), Ok(Duration::from_millis(100)));
        for text in ["0", "-1", "1e9", "x", "NaN", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
