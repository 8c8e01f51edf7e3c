//! Where the log goes and how much of it: the journal, syslog or standard error, at a level that
//! can be changed while the daemon runs. Lines that repeat are counted (`log_repeats`).

mod journal;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::log_repeats::Repeats;

/// At most so many bytes of a text, and that the others were cut off.
pub fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let begin = &text[..text.floor_char_boundary(max)];
    Cow::Owned(format!("{begin}… (cut: {} bytes in all)", text.len()))
}

/// How much is logged; the names are the original's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    None,
    Error,
    Warning,
    Info,
    Debug,
}

const NAMES: [(Level, &str, LevelFilter); 5] = [
    (Level::None, "none", LevelFilter::OFF),
    (Level::Error, "error", LevelFilter::ERROR),
    (Level::Warning, "warning", LevelFilter::WARN),
    (Level::Info, "info", LevelFilter::INFO),
    (Level::Debug, "debug", LevelFilter::DEBUG),
];

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        NAMES
            .iter()
            .find(|(_, name, _)| *name == text)
            .map(|(level, ..)| *level)
            .ok_or_else(|| format!("log level '{text}' is not none, error, warning, info or debug"))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[*self as usize].1)
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> LevelFilter {
        NAMES[level as usize].2
    }
}

/// Changes the level of the running log.
#[derive(Clone)]
pub struct LogControl {
    level: reload::Handle<LevelFilter, Registry>,
    on_stderr: bool,
    repeats: Repeats,
}

impl LogControl {
    /// Of no log at all: a level is taken and forgotten.
    pub fn detached() -> LogControl {
        let (_, level) = reload::Layer::new(LevelFilter::OFF);
        LogControl {
            level,
            on_stderr: false,
            repeats: Repeats::default(),
        }
    }

    /// Sets the level from now on; what it was.
    pub(crate) fn set(&self, level: Level) -> Level {
        let before = self.level();
        // Fails only when the subscriber is gone, which lives as long as the process.
        let _ = self.level.reload(LevelFilter::from(level));
        before
    }

    /// Says for ever how often lines were repeated that were held back meanwhile.
    pub(crate) fn say_repeated(&self) -> impl Future<Output = ()> + Send + 'static {
        self.repeats.clone().run()
    }

    /// Says it at once: the process ends.
    pub(crate) fn say_all_repeated(&self) {
        self.repeats.say_all();
    }

    /// Says why the process ends.
    pub fn last_words(&self, why: &str) {
        tracing::error!("{why}");
        // Whoever started us by hand may not read the journal.
        if !self.on_stderr || self.level() == Level::None {
            eprintln!("butterflyd: {why}");
        }
    }

    pub(crate) fn level(&self) -> Level {
        let filter = self.level.clone_current().unwrap_or(LevelFilter::OFF);
        NAMES
            .iter()
            .find(|(.., known)| *known == filter)
            .map_or(Level::None, |(level, ..)| *level)
    }
}

/// Starts the log of the process. To be called once.
pub fn start(level: Level, no_syslog: bool) -> LogControl {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(level));
    let repeats = Repeats::default();
    let journal = if no_syslog { None } else { journal() };
    let on_stderr = journal.is_none();
    let output = journal.unwrap_or_else(standard_error);
    tracing_subscriber::registry()
        .with(output.with_filter(repeats.clone()).with_filter(filter))
        .init();
    LogControl {
        level: handle,
        on_stderr,
        repeats,
    }
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// The journal, else syslog, where one of them listens.
fn journal() -> Option<Output> {
    if let Ok(journal) = journal::Journal::connect() {
        return Some(journal.boxed());
    }
    if Path::new("/dev/log").exists() {
        let (options, facility) = (
            syslog_tracing::Options::LOG_PID,
            syslog_tracing::Facility::Daemon,
        );
        if let Some(syslog) = syslog_tracing::Syslog::new(c"butterflyd", options, facility) {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(syslog)
                .without_time()
                .with_ansi(false);
            return Some(layer.with_level(false).with_target(false).boxed());
        }
    }
    None
}

fn standard_error() -> Output {
    use std::io::IsTerminal;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_levels_fit() {
        for (index, (level, name, filter)) in NAMES.into_iter().enumerate() {
            assert_eq!(level as usize, index);
            assert_eq!(
                (name.parse(), level.to_string().as_str()),
                (Ok(level), name)
            );
            assert_eq!(LevelFilter::from(level), filter);
        }
        assert!("loud".parse::<Level>().unwrap_err().contains("'loud'"));
    }
}
