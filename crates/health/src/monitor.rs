//! Which checks are due, and what their results change. Time is handed in.
//!
//! A target that is added is checked at once. Later checks are spread over the interval by the
//! order in which the targets came, so that a thousand servers are not asked in the same
//! millisecond for ever. A target has one check out at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::check::Policy;
use crate::state::{Health, State};

/// Before a check is made again that could not be made.
const AGAIN: Duration = Duration::from_secs(1);

/// Targets by their names, and when each is due.
pub struct Monitor<T> {
    targets: BTreeMap<T, Target>,
    /// Those that have no check out, by the time of their next one.
    due: BTreeSet<(Duration, T)>,
    /// The number of the last target that came.
    added: u64,
}

struct Target {
    policy: Policy,
    state: State,
    /// Its place among all that ever came: tells its checks from those of an earlier one of the
    /// same name.
    number: u64,
    /// Its first check has begun.
    checked: bool,
    /// When its next check begins, unless the one before it is still out.
    next: Duration,
}

/// A check to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job<T> {
    /// The server to ask.
    pub target: T,
    /// Within this time.
    pub timeout: Duration,
    number: u64,
}

/// A target's health has turned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change<T> {
    /// Whose.
    pub target: T,
    /// To what.
    pub health: Health,
}

impl<T: Ord + Clone> Default for Monitor<T> {
    fn default() -> Monitor<T> {
        Monitor {
            targets: BTreeMap::new(),
            due: BTreeSet::new(),
            added: 0,
        }
    }
}

impl<T: Ord + Clone> Monitor<T> {
    /// Begins to watch a target that is taken for `health` until checks say otherwise; or watches
    /// one by another policy, from its next check on.
    pub fn add(&mut self, now: Duration, target: T, policy: Policy, health: Health) {
        if let Some(known) = self.targets.get_mut(&target) {
            known.policy = policy;
            return;
        }
        self.added += 1;
        let new = Target {
            policy,
            state: State::new(now, health),
            number: self.added,
            checked: false,
            next: now,
        };
        self.due.insert((now, target.clone()));
        self.targets.insert(target, new);
    }

    /// Forgets a target; the result of a check that is out will mean nothing.
    pub fn remove(&mut self, target: &T) {
        if let Some(gone) = self.targets.remove(target) {
            self.due.remove(&(gone.next, target.clone()));
        }
    }

    /// What is known of a target.
    pub fn state(&self, target: &T) -> Option<&State> {
        self.targets.get(target).map(|target| &target.state)
    }

    /// The targets, in their order.
    pub fn targets(&self) -> impl Iterator<Item = &T> {
        self.targets.keys()
    }

    /// All that is known of each target, and when its next check begins.
    pub fn known(&self) -> impl Iterator<Item = (&T, &State, Duration)> {
        let targets = self.targets.iter();
        targets.map(|(name, target)| (name, &target.state, target.next))
    }

    /// Goes on with a target as another monitor of the same clock [knew](Monitor::known) it, if it
    /// is one of this one's and no check of it has begun.
    pub fn take_up(&mut self, now: Duration, name: &T, state: State, next: Duration) {
        let Some(target) = self.targets.get_mut(name).filter(|one| !one.checked) else {
            return;
        };
        self.due.remove(&(target.next, name.clone()));
        target.next = next.min(now + target.policy.interval);
        self.due.insert((target.next, name.clone()));
        target.checked = state.health != Health::Unknown;
        target.state = State {
            since: state.since.min(now),
            ..state
        };
    }

    /// When the next check is due; none while all of them are out.
    pub fn next(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The checks that are due, to be made now. Each has to come back by
    /// [`finish`](Monitor::finish) or [`put_off`](Monitor::put_off).
    pub fn start(&mut self, now: Duration) -> Vec<Job<T>> {
        let mut jobs = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some((_, name)) = self.due.pop_first() else {
                break;
            };
            let Some(target) = self.targets.get_mut(&name) else {
                continue;
            };
            target.next = following(target, now);
            target.checked = true;
            jobs.push(Job {
                target: name,
                timeout: target.policy.timeout,
                number: target.number,
            });
        }
        jobs
    }

    /// What a check came to, and took: nothing, or the sentence that says why it failed. The health
    /// if it has turned by it.
    pub fn finish(
        &mut self,
        now: Duration,
        job: Job<T>,
        took: Duration,
        outcome: Result<(), String>,
    ) -> Option<Change<T>> {
        // Late by more than an interval: at once, not all that were missed.
        let target = self.back(&job, |next| next.max(now))?;
        let health = target.state.record(&target.policy, now, took, outcome)?;
        Some(Change {
            target: job.target,
            health,
        })
    }

    /// A check could not be made, which says nothing of the server: it is due again, soon.
    pub fn put_off(&mut self, now: Duration, job: &Job<T>, why: String) {
        if let Some(target) = self.back(job, |_| now + AGAIN) {
            target.state.detail = why;
        }
    }

    /// The target of a check that is back, unless it is gone, with the time of its next one.
    fn back(
        &mut self,
        job: &Job<T>,
        next: impl FnOnce(Duration) -> Duration,
    ) -> Option<&mut Target> {
        let target = self.targets.get_mut(&job.target)?;
        if target.number != job.number {
            return None;
        }
        target.next = next(target.next);
        self.due.insert((target.next, job.target.clone()));
        Some(target)
    }
}

/// An interval later; after the first check, anywhere within one, by the golden ratio of its
/// number: neighbours are far apart however many there are.
fn following(target: &Target, now: Duration) -> Duration {
    let interval = target.policy.interval;
    if target.checked {
        return now + interval;
    }
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let part = target.number.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64;
    now + interval.mul_f64(part.max(0.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Policy {
        Policy {
            interval: SECOND * 2,
            timeout: SECOND,
            rise: 2,
            fall: 3,
        }
    }

    /// Runs the clock to `until`, every check taking 10 ms; what changed and when.
    fn run(
        monitor: &mut Monitor<&'static str>,
        from: Duration,
        until: Duration,
        works: impl Fn(&str) -> bool,
    ) -> Vec<(u128, &'static str, Health)> {
        let took = Duration::from_millis(10);
        let (mut now, mut changes) = (from, Vec::new());
        while let Some(at) = monitor.next().filter(|at| *at <= until) {
            now = now.max(at);
            for job in monitor.start(now) {
                let outcome = match works(job.target) {
                    true => Ok(()),
                    false => Err("connection refused".to_owned()),
                };
                let change = monitor.finish(now + took, job, took, outcome);
                changes.extend(change.map(|c| (now.as_millis() / 1000, c.target, c.health)));
            }
        }
        changes
    }

    #[test]
    fn a_day_in_the_life_of_two_servers() {
        let mut monitor = Monitor::default();
        monitor.add(Duration::ZERO, "a", policy(), Health::Unknown);
        monitor.add(Duration::ZERO, "b", policy(), Health::Unknown);
        let first = run(&mut monitor, Duration::ZERO, SECOND, |name| name == "a");
        assert_eq!(
            first,
            [(0, "a", Health::Healthy), (0, "b", Health::Unhealthy)]
        );
        // A day without news.
        let day = SECOND * 86_400;
        assert_eq!(run(&mut monitor, SECOND, day, |name| name == "a"), []);
        // Then both turn: `fall` times 2 s, `rise` times 2 s.
        let turned = run(&mut monitor, day, day + SECOND * 10, |name| name == "b");
        let mut names: Vec<_> = turned
            .iter()
            .map(|(_, name, health)| (*name, *health))
            .collect();
        names.sort_by_key(|(name, _)| *name);
        assert_eq!(names, [("a", Health::Unhealthy), ("b", Health::Healthy)]);
        let at = |name| turned.iter().find(|(_, who, _)| *who == name).unwrap().0 - 86_400;
        assert!(
            (4..=6).contains(&at("a")) && (2..=4).contains(&at("b")),
            "{turned:?}"
        );
        assert_eq!(monitor.state(&"a").unwrap().detail, "connection refused");
    }

    #[test]
    fn one_check_is_out_at_a_time_and_late_ones_are_not_made_up_for() {
        let mut monitor = Monitor::default();
        monitor.add(Duration::ZERO, "a", policy(), Health::Unknown);
        let job = monitor.start(Duration::ZERO).remove(0);
        assert_eq!((monitor.next(), job.timeout), (None, SECOND));
        assert_eq!(monitor.start(SECOND * 60), []);
        monitor.finish(SECOND * 60, job, SECOND, Ok(()));
        assert_eq!(monitor.start(SECOND * 60).len(), 1);
        assert_eq!(monitor.start(SECOND * 61), []);
    }

    /// However often it cannot be made.
    #[test]
    fn a_check_that_was_not_made_says_nothing_of_its_server() {
        let mut monitor = Monitor::default();
        monitor.add(Duration::ZERO, "a", policy(), Health::Unknown);
        run(&mut monitor, Duration::ZERO, SECOND, |_| true);
        let mut now = monitor.next().unwrap();
        for _ in 0..10 {
            let job = monitor.start(now).remove(0);
            monitor.put_off(now, &job, "no descriptor".to_owned());
            let state = monitor.state(&"a").unwrap();
            let known = (state.health, state.against, state.detail.as_str());
            assert_eq!(known, (Health::Healthy, 0, "no descriptor"));
            assert_eq!(monitor.next(), Some(now + AGAIN));
            now += AGAIN;
        }
        let job = monitor.start(now).remove(0);
        monitor.finish(now, job, SECOND, Ok(()));
        assert_eq!(monitor.state(&"a").unwrap().detail, "");
        // One that is gone is not due again.
        let job = monitor.start(now + SECOND * 2).remove(0);
        monitor.remove(&"a");
        monitor.put_off(now + SECOND * 2, &job, String::new());
        assert_eq!(monitor.next(), None);
    }

    #[test]
    fn the_result_of_a_target_that_is_gone_means_nothing() {
        let mut monitor = Monitor::default();
        monitor.add(Duration::ZERO, "a", policy(), Health::Unknown);
        let old = monitor.start(Duration::ZERO).remove(0);
        monitor.remove(&"a");
        assert_eq!(monitor.finish(SECOND, old.clone(), SECOND, Ok(())), None);
        // Nor for its successor of the same name.
        monitor.add(SECOND, "a", policy(), Health::Unknown);
        assert_eq!(monitor.finish(SECOND, old, SECOND, Ok(())), None);
        assert_eq!(monitor.state(&"a").unwrap().health, Health::Unknown);
        assert_eq!(monitor.start(SECOND).len(), 1);
    }

    #[test]
    fn another_policy_keeps_what_is_known() {
        let mut monitor = Monitor::default();
        monitor.add(Duration::ZERO, "a", policy(), Health::Unknown);
        run(&mut monitor, Duration::ZERO, SECOND, |_| true);
        let eager = Policy {
            fall: 1,
            ..policy()
        };
        monitor.add(SECOND, "a", eager, Health::Unknown);
        assert_eq!(monitor.state(&"a").unwrap().health, Health::Healthy);
        let changes = run(&mut monitor, SECOND, SECOND * 4, |_| false);
        assert_eq!(changes.len(), 1);
    }

    #[test]
    fn another_monitor_goes_on_as_if_it_had_been_there_all_the_time() {
        let mut before = Monitor::default();
        for name in ["a", "b"] {
            before.add(Duration::ZERO, name, policy(), Health::Unknown);
        }
        run(&mut before, Duration::ZERO, SECOND * 9, |name| name == "a");
        // One more failure of three.
        let at = before.next().unwrap();
        run(&mut before, at, at + SECOND * 2, |_| false);
        let now = at + SECOND * 2;
        let mut after = Monitor::default();
        for name in ["a", "b", "new"] {
            after.add(now, name, policy(), Health::Unknown);
        }
        for (name, state, next) in before.known() {
            after.take_up(now, name, state.clone(), next);
        }
        after.take_up(now, &"gone", State::new(now, Health::Healthy), now);
        assert!(after.targets().eq(&["a", "b", "new"]));
        assert_eq!(after.state(&"new").unwrap().health, Health::Unknown);
        after.remove(&"new");
        assert!(after.known().eq(before.known()));
        let late = now + SECOND * 60;
        let works = |name: &str| name == "b";
        assert_eq!(
            run(&mut after, now, late, works),
            run(&mut before, now, late, works)
        );
        // What cannot be: a check in a year, a turn that is to come.
        let mut other = Monitor::default();
        other.add(now, "a", policy(), Health::Unknown);
        other.take_up(
            now,
            &"a",
            State::new(late, Health::Healthy),
            late * 1_000_000,
        );
        assert_eq!(other.next(), Some(now + policy().interval));
        assert_eq!(other.state(&"a").unwrap().since, now);
    }

    #[test]
    fn a_thousand_targets_are_spread_over_the_interval() {
        let names: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let mut monitor = Monitor::default();
        for name in &names {
            monitor.add(Duration::ZERO, name.as_str(), policy(), Health::Unknown);
        }
        for job in monitor.start(Duration::ZERO) {
            monitor.finish(Duration::ZERO, job, SECOND, Ok(()));
        }
        // In each tenth of an interval from the first on, about a tenth of them.
        let mut tenths = Vec::new();
        for tenth in 1..=10 {
            let jobs = monitor.start(Duration::from_millis(200 * tenth));
            tenths.push(jobs.len());
        }
        assert_eq!(tenths.iter().sum::<usize>(), 1000);
        assert!(
            tenths
                .iter()
                .skip(1)
                .all(|count| (80..=120).contains(count)),
            "{tenths:?}"
        );
    }
}
