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

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use api::v1;
use control::model::GroupId;
use dataplane::Switch;
use dataplane::flow::{FlowEvent, FlowEvents};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::access::Reach;
use crate::app::Operations;
use collector::Collector;
use file::LogFile;
use names::Names;

/// How often the rings are emptied.
const POLL: Duration = Duration::from_millis(100);
/// Parts on their way to somebody who watches, each of one poll.
const AHEAD: usize = 64;
/// Records of one part at most.
const PART: usize = 4096;

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
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    file: Option<LogFile>,
    collectors: Vec<Collector>,
    watchers: Vec<Watcher>,
    stopped: bool,
}

/// Somebody who watches.
struct Watcher {
    /// What of it is the caller's.
    reach: Reach,
    nic: String,
    parts: Sender<v1::FlowRecords>,
    /// Records that were lost since the last part.
    lost: u64,
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
                watchers: Vec::new(),
                stopped: false,
            }),
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
    pub fn watch(&self, reach: Reach, nic: String) -> Receiver<v1::FlowRecords> {
        let (parts, receiver) = channel(AHEAD);
        self.lock().watchers.push(Watcher {
            reach,
            nic,
            parts,
            lost: 0,
        });
        self.0.changed.notify_all();
        receiver
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
                let mut state = self.lock();
                state.watchers.retain(|watcher| !watcher.parts.is_closed());
                let wanted = state.is_wanted() && !state.stopped;
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
            if !self.lock().is_wanted() {
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
        for watcher in &mut state.watchers {
            of_watchers.fetch_add(watcher.send(records), Ordering::Relaxed);
        }
    }
}

impl State {
    fn is_wanted(&self) -> bool {
        self.file.is_some() || !self.collectors.is_empty() || !self.watchers.is_empty()
    }
}

impl Watcher {
    /// Gives how many were lost since it reads too slowly.
    fn send(&mut self, records: &[v1::FlowRecord]) -> u64 {
        let named = |record: &&v1::FlowRecord| {
            self.nic.is_empty() || [&record.nic, &record.peer_nic].contains(&&self.nic)
        };
        let theirs = |record: &&v1::FlowRecord| match &self.reach {
            Reach::Whole => true,
            reach => wire::Vni::new(record.vni).is_ok_and(|vni| reach.has_network(vni)),
        };
        let records = records.iter().filter(named).filter(theirs);
        let records: Vec<_> = records.map(|record| self.shown(record)).collect();
        let count = records.len() as u64;
        if count == 0 {
            return 0;
        }
        let lost = self.lost;
        match self.parts.try_send(v1::FlowRecords { records, lost }) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => {
                self.lost += count;
                return count;
            }
            Err(TrySendError::Closed(_)) => {}
        }
        0
    }

    /// Without the names of groups that are not the caller's.
    fn shown(&self, record: &v1::FlowRecord) -> v1::FlowRecord {
        let mut shown = record.clone();
        for rule in [&mut shown.egress_rule, &mut shown.ingress_rule] {
            let group = rule.as_ref().map(|rule| GroupId::new(&rule.group));
            let theirs = match group {
                Some(Ok(group)) => self.reach.has_group(&group),
                _ => false,
            };
            if !theirs {
                *rule = None;
            }
        }
        shown
    }
}
