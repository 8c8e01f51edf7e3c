//! Who drives the guests while something happens to their switch: streams at a fixed rate, on a
//! thread of its own.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::end::End;
use super::stream::{self, Fate, Stream};
use crate::interrupt;
use crate::peers::PeerError;

/// How long frames pass before something happens, and after it.
const BESIDE: Duration = Duration::from_millis(50);

/// Frames of each stream that have to come behind it.
const AFTER: usize = 50;

/// A stream that does not go on by then has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// Frames that have not come by then, while others do not either, are lost.
const LATE: Duration = Duration::from_millis(100);

/// Guests and their streams.
pub struct Traffic {
    /// By their number.
    pub ends: Vec<End>,
    streams: Vec<Stream>,
    /// Between two frames of a stream.
    spacing: Duration,
}

/// What the streams saw of one event.
#[derive(Debug, Default)]
pub struct Seen {
    /// Of each stream.
    pub blackouts: Vec<Duration>,
    /// Of all of them.
    pub fate: Fate,
}

/// How far the watch and the event are.
#[derive(Default)]
pub struct Progress {
    /// Frames pass: it may happen.
    pub ready: AtomicBool,
    /// It has happened.
    pub over: AtomicBool,
}

impl Traffic {
    /// Streams between these guests.
    pub fn new(ends: Vec<End>, streams: Vec<Stream>) -> Traffic {
        // What one thread can do for all of them.
        let spacing = Duration::from_micros(if streams.len() > 2 { 500 } else { 100 });
        Traffic {
            ends,
            streams,
            spacing,
        }
    }

    /// Waits until every stream passes.
    pub fn meet(&mut self) -> Result<(), PeerError> {
        let progress = Progress::default();
        progress.over.store(true, Ordering::Release);
        self.watch(&progress).map(drop)
    }

    /// Sends and receives until `progress` is over and every stream has gone on behind that.
    pub fn watch(&mut self, progress: &Progress) -> Result<Seen, PeerError> {
        // A sleep is to end when it should.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
        self.streams.iter_mut().for_each(Stream::begin);
        let begun = Instant::now();
        let mut next = begun;
        // Since when what is waited for is waited for; before `ready` that is the streams.
        let (mut since, mut over) = (Duration::ZERO, false);
        loop {
            self.send()?;
            self.receive(begun);
            let now = begun.elapsed();
            let goes_on = |stream: &Stream| stream.goes_on(since, AFTER);
            let passed = now >= since + BESIDE && self.streams.iter().all(goes_on);
            if !progress.ready.load(Ordering::Acquire) {
                progress.ready.store(passed, Ordering::Release);
            } else if !over && progress.over.load(Ordering::Acquire) {
                (since, over) = (now, true);
            } else if over && passed {
                break;
            }
            let waits = over || !progress.ready.load(Ordering::Acquire);
            if waits && now > since + PATIENCE {
                let silent = self
                    .streams
                    .iter()
                    .find(|stream| !stream.goes_on(since, AFTER));
                let of = silent.map_or(0, |stream| stream.from);
                let what = format!("the stream of guest {of} does not go on within {PATIENCE:?}");
                return Err(PeerError(what));
            }
            interrupt::check()?;
            next = (next + self.spacing).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.settle(begun)?;
        let blackouts = self.streams.iter().filter_map(Stream::blackout);
        let mut seen = Seen {
            blackouts: blackouts.collect(),
            fate: Fate::default(),
        };
        for fate in self.streams.iter().map(Stream::fate) {
            seen.fate += fate;
        }
        Ok(seen)
    }

    /// Takes what is still on its way.
    fn settle(&mut self, begun: Instant) -> Result<(), PeerError> {
        let mut last = Instant::now();
        while !self.streams.iter().all(Stream::is_whole) && last.elapsed() < LATE {
            interrupt::check()?;
            if self.receive(begun) > 0 {
                last = Instant::now();
            }
            self.ends.iter_mut().try_for_each(End::tend)?;
            std::thread::sleep(self.spacing);
        }
        Ok(())
    }

    /// A frame of each stream; what finds no room is not sent.
    fn send(&mut self) -> Result<(), PeerError> {
        self.ends.iter_mut().try_for_each(End::tend)?;
        for stream in &mut self.streams {
            let end = &mut self.ends[stream.from];
            if end.send(stream.frame()) {
                stream.sent();
            }
        }
        Ok(())
    }

    /// How many frames of the streams have come.
    fn receive(&mut self, begun: Instant) -> usize {
        let mut count = 0;
        for stream in &mut self.streams {
            let at = begun.elapsed();
            self.ends[stream.to].receive(|frame| {
                if let Some(number) = stream::number(frame) {
                    stream.came(number, at);
                    count += 1;
                }
            });
        }
        count
    }
}
