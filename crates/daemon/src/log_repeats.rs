//! The log's limit: a line that is there again is counted, and said once every five seconds with
//! how often it was. So neither a guest nor a peer that errs without end can fill a disk, and no
//! line is lost without a word.
//!
//! A filter of the log's output ([`Repeats`]) sees each line as it would be written, and a task
//! ([`Repeats::run`]) says what was held back when its time has come. The clock is tokio's, so that
//! tests have their own.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::audit::AUDIT;

/// A line is written once in this time.
const EVERY: Duration = Duration::from_secs(5);
/// Lines that are known at a time; where there are more, the quarter that was said first is
/// forgotten.
const LINES: usize = 1024;
/// Where what was held back comes from.
const TARGET: &str = "butterfly_daemon::repeats";

/// The lines of the last five seconds. A handle.
#[derive(Clone, Default)]
pub struct Repeats {
    lines: Arc<Mutex<Lines>>,
    /// Something was held back.
    held: Arc<Notify>,
}

type Lines = HashMap<(Level, String), Line>;

/// Forgets lines that may be said again, and if that are few those that were said first, of which
/// something was held back at last: many at a time, so that a line which is new costs little.
fn make_room(lines: &mut Lines, now: Instant) {
    lines.retain(|_, known| known.again > 0 || now < known.said + EVERY);
    if lines.len() > LINES * 3 / 4 {
        let first = lines.iter();
        let mut first: Vec<_> = first
            .map(|(key, known)| ((known.again > 0, known.said), key.clone()))
            .collect();
        first.sort_by_key(|(order, _)| *order);
        for (_, key) in first.iter().take(LINES / 4) {
            lines.remove(key);
        }
    }
}

/// What is known of a line.
#[derive(Clone, Copy, Debug)]
struct Line {
    said: Instant,
    /// Times that it was not said since.
    again: u64,
}

impl Repeats {
    /// Whether a line is to be written now.
    fn is_new(&self, level: Level, line: String) -> bool {
        let now = Instant::now();
        let mut lines = self.lock();
        if let Some(known) = lines.get_mut(&(level, line.clone()))
            && now < known.said + EVERY
        {
            known.again += 1;
            self.held.notify_one();
            return false;
        }
        if lines.len() >= LINES {
            make_room(&mut lines, now);
        }
        let known = lines.entry((level, line)).or_insert(Line {
            said: now,
            again: 0,
        });
        known.said = now;
        true
    }

    /// Says for ever what was held back, each line when it may be said again.
    pub async fn run(self) {
        loop {
            match self.next_time() {
                None => self.held.notified().await,
                Some(time) => sleep_until(time).await,
            }
            self.say(Instant::now());
        }
    }

    /// When the next line may be said that was held back.
    fn next_time(&self) -> Option<Instant> {
        let lines = self.lock();
        let held = lines.values().filter(|known| known.again > 0);
        held.map(|known| known.said + EVERY).min()
    }

    /// Says at once all that is held back: nothing comes after it.
    pub fn say_all(&self) {
        self.say(Instant::now() + EVERY);
    }

    /// Without the lock: what is said comes through the filter.
    fn say(&self, now: Instant) {
        let mut due = Vec::new();
        for ((level, line), known) in self.lock().iter_mut() {
            if known.again > 0 && known.said + EVERY <= now {
                due.push((*level, line.clone(), known.again));
                *known = Line {
                    said: now.min(Instant::now()),
                    again: 0,
                };
            }
        }
        for (level, line, again) in due {
            say(level, &line, again);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // Each change of it is a whole.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// At the level of the line itself, which a macro has to know beforehand.
fn say(level: Level, line: &str, again: u64) {
    let times = format!("(repeated {again} times)");
    match level {
        Level::ERROR => tracing::error!(target: TARGET, "{line} {times}"),
        Level::WARN => tracing::warn!(target: TARGET, "{line} {times}"),
        Level::INFO => tracing::info!(target: TARGET, "{line} {times}"),
        Level::DEBUG => tracing::debug!(target: TARGET, "{line} {times}"),
        _ => tracing::trace!(target: TARGET, "{line} {times}"),
    }
}

impl<S> Filter<S> for Repeats {
    /// What libraries tell of their own work is left out but for warnings: it is theirs to debug.
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *meta.level() <= Level::WARN || meta.target().starts_with("butterfly_")
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let meta = event.metadata();
        // A line of the audit log is never the same as another, and can be long.
        if [TARGET, AUDIT].contains(&meta.target()) {
            return true;
        }
        let mut written = Written::default();
        event.record(&mut written);
        self.is_new(*meta.level(), written.line)
    }
}

/// A line as it is written: the message, and what else it has.
#[derive(Default)]
struct Written {
    line: String,
}

impl Visit for Written {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let gap = if self.line.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.line, "{gap}{value:?}"),
            name => write!(self.line, "{gap}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    /// What was written.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut log = self.0.lock().expect("nobody has panicked");
            log.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        /// The lines since the last call.
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().expect("nobody has panicked"));
            let text = String::from_utf8(bytes).expect("text");
            text.lines().map(|line| line.trim().to_owned()).collect()
        }
    }

    /// A log with its filter, until the guard is dropped.
    fn log() -> (Log, Repeats, tracing::subscriber::DefaultGuard) {
        let (log, repeats) = (Log::default(), Repeats::default());
        let writer = log.clone();
        let output = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .without_time()
            .with_ansi(false)
            .with_target(false);
        let registry = tracing_subscriber::registry().with(output.with_filter(repeats.clone()));
        let guard = tracing::subscriber::set_default(registry);
        (log, repeats, guard)
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_said_once_in_five_seconds_with_how_often_it_was() {
        let (log, repeats, _guard) = log();
        let running = tokio::spawn(repeats.run());
        let wait = |millis| tokio::time::sleep(Duration::from_millis(millis));
        for _ in 0..18 {
            tracing::warn!(target: "butterfly_test", peer = 7, "no route");
            tracing::info!(target: "butterfly_test", "another");
            wait(100).await;
        }
        assert_eq!(log.take(), ["WARN no route peer=7", "INFO another"]);
        // A line that differs in a value is another line, and so is one of another level.
        tracing::warn!(target: "butterfly_test", peer = 8, "no route");
        tracing::error!(target: "butterfly_test", "another");
        assert_eq!(log.take(), ["WARN no route peer=8", "ERROR another"]);
        wait(3300).await;
        let mut said = log.take();
        said.sort();
        assert_eq!(
            said,
            [
                "INFO another (repeated 17 times)",
                "WARN no route peer=7 (repeated 17 times)"
            ]
        );
        // As long as it goes on, once every five seconds.
        let mut times = 0;
        for _ in 0..200 {
            tracing::warn!(target: "butterfly_test", peer = 7, "no route");
            wait(100).await;
            times += log.take().len();
        }
        assert!((3..=4).contains(&times), "{times} lines in 20 seconds");
        // After a pause it is as any other.
        wait(20_000).await;
        log.take();
        tracing::warn!(target: "butterfly_test", peer = 7, "no route");
        assert_eq!(log.take(), ["WARN no route peer=7"]);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn lines_of_the_audit_log_are_all_said_and_none_is_kept() {
        let (log, repeats, _guard) = log();
        for _ in 0..3 {
            tracing::info!(target: AUDIT, "{}", "x".repeat(1 << 20));
        }
        assert_eq!(log.take().len(), 3);
        assert_eq!(repeats.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_at_the_end_is_said() {
        let (log, repeats, _guard) = log();
        for _ in 0..3 {
            tracing::error!(target: "butterfly_test", "gone");
        }
        repeats.say_all();
        assert_eq!(log.take(), ["ERROR gone", "ERROR gone (repeated 2 times)"]);
        repeats.say_all();
        assert_eq!(log.take(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_lines_are_kept_than_there_is_room_for() {
        let (log, repeats, _guard) = log();
        for n in 0..3 * LINES {
            tracing::warn!(target: "butterfly_test", "line {n}");
        }
        assert_eq!(log.take().len(), 3 * LINES);
        assert!((LINES * 3 / 4..=LINES).contains(&repeats.lock().len()));
        tracing::warn!(target: "butterfly_test", "line {}", 3 * LINES - 1);
        assert_eq!(log.take(), [""; 0]);
        // What is held back of a line is said, however many come behind it.
        for n in 0..LINES {
            tracing::warn!(target: "butterfly_test", "flood {n}");
        }
        let flood = log.take();
        tracing::warn!(target: "butterfly_test", "line {}", 3 * LINES - 1);
        assert_eq!(flood.len(), LINES);
        assert_eq!(log.take(), [""; 0]);
        // Five seconds later they make room for others.
        tokio::time::sleep(EVERY).await;
        for n in 0..=LINES / 4 {
            tracing::warn!(target: "butterfly_test", "new {n}");
        }
        assert!(repeats.lock().len() <= LINES / 4 + 2);
    }
}
