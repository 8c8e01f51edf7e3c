//! The flow log: connections that begin and end, and packets that are refused, written down as they
//! happen: to a file as JSON lines, to collectors as IPFIX, and to who watches.
//!
//! The workers tell of them through bounded rings ([`dataplane::flow::log`]), and only while
//! somebody wants it. One thread takes them out, gives them names and hands them on. It may wait,
//! for a disk or for the controller; the workers do not notice, and what they had to leave out is
//! counted.

mod collector;
mod file;
mod names;
mod watching;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use api::v1;
use dataplane::Switch;
use dataplane::flow::{FlowEvent, FlowEvents};
use tonic::Status;

use crate::access::Caller;
use crate::app::Operations;
use crate::shares::Shares;
use collector::Collector;
use file::LogFile;
use names::Names;
use watching::Watchers;
pub use watching::Watching;

/// How often the rings are emptied.
const POLL: Duration = Duration::from_millis(100);
/// Records of one part at most.
const PART: usize = 1024;

/// What was told, and what was lost.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections that began and that ended, and sums of refused packets.
    pub told: [AtomicU64; 3],
    /// By the workers: no room in a ring, or too many different refusals in one second.
    pub ring: Arc<AtomicU64>,
    /// By the file, by collectors, and by those who watch.
    pub outputs: [AtomicU64; 3],
}

/// Names of [`Counts::told`], as metrics have them.
pub const KINDS: [&str; 3] = ["begin", "end", "denied"];
/// Names of where records are lost: the workers, then [`Counts::outputs`].
pub const PLACES: [&str; 4] = ["ring", "file", "ipfix", "watch"];

impl Counts {
    /// In the order of [`KINDS`].
    pub fn told(&self) -> [u64; 3] {
        self.told
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// In the order of [`PLACES`].
    pub fn lost(&self) -> [u64; 4] {
        let [file, ipfix, watch] = &self.outputs;
        [&*self.ring, file, ipfix, watch].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Who wants to know of connections. Cheap to clone.
#[derive(Clone)]
pub struct FlowLog(Arc<Shared>);

struct Shared {
    counts: Counts,
    state: Mutex<State>,
    watchers: Watchers,
    /// How many of them there may be.
    watching: Shares,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    file: Option<LogFile>,
    collectors: Vec<Collector>,
    stopped: bool,
}

impl FlowLog {
    /// What the settings ask for. The error is a sentence.
    pub fn open(file: Option<PathBuf>, collectors: &[String]) -> Result<FlowLog, String> {
        let collectors = collectors.iter().map(|to| Collector::new(to));
        Ok(FlowLog(Arc::new(Shared {
            counts: Counts::default(),
            state: Mutex::new(State {
                file: file.map(LogFile::open).transpose()?,
                collectors: collectors.collect::<Result<_, String>>()?,
                stopped: false,
            }),
            watchers: Watchers::default(),
            watching: Shares::new(
                "streams of WatchFlows",
                watching::EACH_MAX,
                watching::ALL_MAX,
            ),
            changed: Condvar::new(),
            thread: Mutex::new(None),
        })))
    }

    /// What was told and lost.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Opens the file by its name again, for whoever has moved it away.
    pub fn reopen(&self) -> Result<Option<String>, String> {
        match &mut self.lock().file {
            Some(file) => file.reopen().map(Some),
            None => Ok(None),
        }
    }

    /// Begins to look at what the workers tell, while anybody wants it.
    pub fn start(&self, operations: Arc<Operations>, switch: Arc<Switch>) -> Result<(), String> {
        let log = self.clone();
        let thread = std::thread::Builder::new().name("flow-log".into());
        let thread = thread.spawn(move || log.run(&operations, &switch));
        let thread = thread.map_err(|e| format!("the flow log's thread cannot be started: {e}"))?;
        *self.thread() = Some(thread);
        Ok(())
    }

    /// Writes what is there still, and ends. Waits for that.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.0.changed.notify_all();
        if let Some(thread) = self.thread().take() {
            // One that panicked has ended, too.
            let _ = thread.join();
        }
    }

    /// All that is of a caller's reach, and of this NIC if it is named, from now on.
    pub fn watch(&self, caller: &Caller, nic: String) -> Result<Watching, Status> {
        let share = self.0.watching.take(caller)?;
        let watching = self.0.watchers.add(caller.reach().clone(), nic, share);
        // The thread looks at this under its lock, or waits.
        drop(self.lock());
        self.0.changed.notify_all();
        Ok(watching)
    }

    /// Somebody wants to know.
    fn is_wanted(&self, state: &State) -> bool {
        state.file.is_some() || !state.collectors.is_empty() || self.0.watchers.are_there()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.0.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, operations: &Operations, switch: &Switch) {
        let mut events: Option<FlowEvents> = None;
        let mut names = Names::default();
        let mut taken: Vec<FlowEvent> = Vec::new();
        loop {
            let stopped = {
                let state = self.lock();
                let wanted = self.is_wanted(&state) && !state.stopped;
                match (&events, wanted) {
                    (None, false) if !state.stopped => {
                        let waited = self.0.changed.wait(state);
                        drop(waited);
                        continue;
                    }
                    (Some(_), true) => {
                        let waited = self.0.changed.wait_timeout(state, POLL);
                        drop(waited);
                        false
                    }
                    _ => state.stopped,
                }
            };
            if events.is_none() && !stopped {
                // Workers that have ended tell nothing.
                events = switch.log_flows(&self.0.counts.ring).ok();
                if events.is_none() {
                    return;
                }
                continue;
            }
            if let Some(events) = &events {
                taken.clear();
                events.take(&mut taken);
                for part in taken.chunks(PART) {
                    let records = names.name(part, &|| operations.control());
                    self.hand_on(&records);
                }
            }
            if stopped {
                return;
            }
            let state = self.lock();
            let wanted = self.is_wanted(&state);
            drop(state);
            if !wanted {
                events = None;
                let _ = switch.end_flow_log();
            }
        }
    }

    fn hand_on(&self, records: &[v1::FlowRecord]) {
        let counts = &self.0.counts;
        for record in records {
            let kind = match record.kind() {
                v1::flow_record::Kind::Unspecified | v1::flow_record::Kind::Begin => 0,
                v1::flow_record::Kind::End => 1,
                v1::flow_record::Kind::Denied => 2,
            };
            counts.told[kind].fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.lock();
        let [of_file, of_collectors, of_watchers] = &counts.outputs;
        if let Some(file) = &mut state.file {
            of_file.fetch_add(file.write(records), Ordering::Relaxed);
        }
        for collector in &mut state.collectors {
            of_collectors.fetch_add(collector.send(records), Ordering::Relaxed);
        }
        drop(state);
        of_watchers.fetch_add(self.0.watchers.publish(records), Ordering::Relaxed);
    }
}
