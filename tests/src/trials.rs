//! Trials that share what takes long to start: guests that boot once for a test binary.

use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use testkit::Result;

/// What is started once and made ready for each trial.
pub trait Stage: Sized + Send + 'static {
    /// Starts all of it, its daemon with these further options.
    fn start(options: &[&str]) -> Result<Self>;

    /// The state every trial begins with, whatever the one before has left.
    fn reset(&mut self) -> Result<()>;

    /// Whether what every trial needs still runs: the daemon.
    fn is_running(&mut self) -> bool;

    /// All that explains a failure.
    fn dump(&self) -> String;
}

/// What a trial does.
pub type Body<S> = fn(&mut S) -> Result<()>;

/// The trials of a binary, each under the name of its function: `trials![one, folder::other]`.
#[macro_export]
macro_rules! trials {
    ($($body:path),+ $(,)?) => {
        [$(($crate::trials::last_segment(stringify!($body)), $body)),+]
    };
}

/// `other` of `folder::other`, which `stringify!` may write with blanks.
pub fn last_segment(path: &'static str) -> &'static str {
    path.rsplit("::").next().unwrap_or(path).trim()
}

/// What a trial does that has no stage.
pub type Alone = fn() -> Result<()>;

/// Runs trials that share nothing, one after the other: `run_each(trials![one, other])`.
pub fn run_each<const N: usize>(trials: [(&'static str, Alone); N]) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = trials.map(|(name, body)| Trial::test(name, move || body().map_err(Failed::from)));
    libtest_mimic::run(&arguments, trials.into()).exit()
}

/// Runs the named trials one after the other, each on the freshly reset stage. A failure carries
/// its dump. The stage starts with the first trial that runs, so that `--list` starts nothing.
pub fn run_trials<S: Stage>(options: &'static [&str], trials: &[(&'static str, Body<S>)]) -> ! {
    let trials = trials.iter().map(|&(name, body)| {
        let body: BoxedBody<S> = Box::new(body);
        (name.to_owned(), body)
    });
    run_named(options, trials.collect())
}

/// What a trial does that is made when the program runs.
pub type BoxedBody<S> = Box<dyn FnOnce(&mut S) -> Result<()> + Send>;

/// Trials with their names.
pub type Trials<S> = Vec<(String, BoxedBody<S>)>;

/// As [`run_trials`].
pub fn run_named<S: Stage>(options: &'static [&str], trials: Trials<S>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    // Leaked on purpose: trials want 'static, and the stage is taken out again below to end it
    // before we exit.
    let stage: &'static Mutex<Option<S>> = Box::leak(Box::new(Mutex::new(None)));
    let trials = trials
        .into_iter()
        .map(|(name, body)| Trial::test(name, move || run_one(stage, options, body)))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(stage.lock().unwrap_or_else(PoisonError::into_inner).take());
    conclusion.exit()
}

fn run_one<S: Stage>(
    stage: &Mutex<Option<S>>,
    options: &[&str],
    body: BoxedBody<S>,
) -> std::result::Result<(), Failed> {
    // A trial that panicked leaves a stage that the next one resets.
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    if stage.is_none() {
        *stage = Some(S::start(options)?);
    }
    let Some(stage) = stage.as_mut() else {
        return Err("the stage is not there".into());
    };
    let begin = Instant::now();
    let outcome = stage
        .reset()
        .map_err(|e| format!("reset: {e}"))
        .and_then(|()| body(stage));
    let alive = stage.is_running();
    if alive && outcome.is_ok() {
        return Ok(());
    }
    let sentence = outcome
        .err()
        .unwrap_or_else(|| "the daemon ended".to_owned());
    Err(format!("after {:?}: {sentence}\n{}", begin.elapsed(), stage.dump()).into())
}
