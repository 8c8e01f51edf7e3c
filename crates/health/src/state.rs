//! One server's health: results in a row that agree turn it.

use crate::check::Policy;
use std::time::Duration;

/// What is known of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// No check has ended yet.
    Unknown,
    /// It works.
    Healthy,
    /// It does not.
    Unhealthy,
}

/// A server's health, and how far the other one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// What is known.
    pub health: Health,
    /// When it came to be so, in the monitor's time.
    pub since: Duration,
    /// Why the last check failed, or could not be made; empty when it did not.
    pub detail: String,
    /// What the last check took.
    pub took: Duration,
    /// Results in a row that speak against `health`.
    pub against: u32,
}

impl State {
    /// Taken for `health`: `Unknown` unless something is known of it from elsewhere.
    pub fn new(now: Duration, health: Health) -> State {
        State {
            health,
            since: now,
            detail: String::new(),
            took: Duration::ZERO,
            against: 0,
        }
    }

    /// Takes a result; the health if it has turned. The first of all counts alone, either way.
    pub fn record(
        &mut self,
        policy: &Policy,
        now: Duration,
        took: Duration,
        outcome: Result<(), String>,
    ) -> Option<Health> {
        self.took = took;
        let (says, needed) = match &outcome {
            Ok(()) => (Health::Healthy, policy.rise),
            Err(_) => (Health::Unhealthy, policy.fall),
        };
        self.detail = outcome.err().unwrap_or_default();
        if says == self.health {
            self.against = 0;
            return None;
        }
        self.against += 1;
        if self.health != Health::Unknown && self.against < needed {
            return None;
        }
        (self.health, self.since, self.against) = (says, now, 0);
        Some(says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results as letters: `+` succeeded, `-` failed; the healths after each.
    fn session(rise: u32, fall: u32, results: &str) -> String {
        let policy = Policy {
            rise,
            fall,
            ..Policy::default()
        };
        let mut state = State::new(Duration::ZERO, Health::Unknown);
        let after = |(at, result)| {
            let outcome = match result {
                '+' => Ok(()),
                _ => Err("refused".to_owned()),
            };
            let before = state.health;
            let turned = state.record(&policy, Duration::from_secs(at), Duration::ZERO, outcome);
            assert_eq!(turned, (state.health != before).then_some(state.health));
            if turned.is_some() {
                assert_eq!(state.since, Duration::from_secs(at));
            }
            match state.health {
                Health::Unknown => '?',
                Health::Healthy => 'H',
                Health::Unhealthy => 'U',
            }
        };
        (1..).zip(results.chars()).map(after).collect()
    }

    #[test]
    fn the_first_result_counts_alone() {
        assert_eq!(session(5, 5, "+"), "H");
        assert_eq!(session(5, 5, "-"), "U");
    }

    #[test]
    fn only_results_in_a_row_turn_it() {
        assert_eq!(session(2, 3, "+--+---"), "HHHHHHU");
        assert_eq!(session(2, 3, "+---+-++"), "HHHUUUUH");
        assert_eq!(session(1, 1, "+-+-"), "HUHU");
    }

    #[test]
    fn the_sentence_is_that_of_the_last_check() {
        let policy = Policy::default();
        let mut state = State::new(Duration::ZERO, Health::Unknown);
        state.record(
            &policy,
            Duration::ZERO,
            Duration::ZERO,
            Err("no route".into()),
        );
        assert_eq!(state.detail, "no route");
        state.record(&policy, Duration::ZERO, Duration::ZERO, Ok(()));
        assert_eq!(
            (state.detail.as_str(), state.health),
            ("", Health::Unhealthy)
        );
    }
}
