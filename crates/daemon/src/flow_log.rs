//! The flow log: connections that begin and end, and packets that are refused, written down as they
//! happen: to a file as JSON lines, to collectors as IPFIX, and to who watches.
//!
//! The workers tell of them through bounded rings ([`dataplane::flow::log`]), and only while
//! somebody wants it. One thread takes them out, gives them names and hands them on. It may wait,
//! for a disk or for the controller; the workers do not notice, and what they had to leave out is
//! counted. The file and the collectors are that thread's alone, which is asked by messages: nobody
//! else waits for a disk, least of all with the controller in hand.

mod collector;
mod file;
mod names;
mod watching;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// Messages that the thread has not come to. Of more it needs none to look at who watches.
const MESSAGES: usize = 16;
/// How long who reads files again waits for this one.
const REOPENING: Duration = Duration::from_secs(5);

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
    watchers: Watchers,
    /// How many of them there may be.
    watching: Shares,
    /// Where records are written, if anywhere.
    path: Option<PathBuf>,
    messages: SyncSender<Message>,
    /// Until the thread has them.
    outputs: Mutex<Option<Outputs>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread alone has.
struct Outputs {
    file: Option<LogFile>,
    collectors: Vec<Collector>,
    messages: Receiver<Message>,
}

/// What the thread is asked.
enum Message {
    /// To see who watches.
    Look,
    /// To open the file by its name again, and say so.
    Reopen(SyncSender<Result<String, String>>),
    /// To write what is there still, and end.
    Stop,
}

impl FlowLog {
    /// What the settings ask for. The error is a sentence.
    pub fn open(file: Option<PathBuf>, collectors: &[String]) -> Result<FlowLog, String> {
        let path = file.clone();
        let collectors = collectors.iter().map(|to| Collector::new(to));
        let (messages, received) = sync_channel(MESSAGES);
        let outputs = Outputs {
            file: file.map(LogFile::open).transpose()?,
            collectors: collectors.collect::<Result<_, String>>()?,
            messages: received,
        };
        Ok(FlowLog(Arc::new(Shared {
            counts: Counts::default(),
            watchers: Watchers::default(),
            watching: Shares::new(
                "streams of WatchFlows",
                watching::EACH_MAX,
                watching::ALL_MAX,
            ),
            path,
            messages,
            outputs: Mutex::new(Some(outputs)),
            thread: Mutex::new(None),
        })))
    }

    /// What was told and lost.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Opens the file by its name again, for whoever has moved it away.
    pub fn reopen(&self) -> Result<Option<String>, String> {
        self.reopen_within(REOPENING)
    }

    fn reopen_within(&self, wait: Duration) -> Result<Option<String>, String> {
        let Some(path) = &self.0.path else {
            return Ok(None);
        };
        let (answer, answered) = sync_channel(1);
        let asked = self.0.messages.try_send(Message::Reopen(answer)).ok();
        match asked.and_then(|()| answered.recv_timeout(wait).ok()) {
            Some(reopened) => reopened.map(Some),
            None => Err(format!(
                "the flow log {}: what is written to it does not come to an end",
                path.display()
            )),
        }
    }

    /// Begins to look at what the workers tell, while anybody wants it.
    pub fn start(&self, operations: Arc<Operations>, switch: Arc<Switch>) -> Result<(), String> {
        let Some(outputs) = lock(&self.0.outputs).take() else {
            return Ok(());
        };
        let log = self.clone();
        let thread = std::thread::Builder::new().name("flow-log".into());
        let thread = thread.spawn(move || log.run(outputs, &operations, &switch));
        let thread = thread.map_err(|e| format!("the flow log's thread cannot be started: {e}"))?;
        *lock(&self.0.thread) = Some(thread);
        Ok(())
    }

    /// Writes what is there still, and ends. Waits for that.
    pub fn stop(&self) {
        if let Some(thread) = lock(&self.0.thread).take() {
            // One that has ended, also by a panic, takes no message.
            let _ = self.0.messages.send(Message::Stop);
            let _ = thread.join();
        }
    }

    /// All that is of a caller's reach, and of this NIC if it is named, from now on. Waits for
    /// nothing.
    pub fn watch(&self, caller: &Caller, nic: String) -> Result<Watching, Status> {
        let share = self.0.watching.take(caller)?;
        let watching = self.0.watchers.add(caller.reach().clone(), nic, share);
        // Behind those that are in its place the thread looks all the same.
        let _ = self.0.messages.try_send(Message::Look);
        Ok(watching)
    }

    fn run(&self, mut outputs: Outputs, operations: &Operations, switch: &Switch) {
        let mut events: Option<FlowEvents> = None;
        let mut names = Names::default();
        let mut taken: Vec<FlowEvent> = Vec::new();
        loop {
            let wanted = outputs.are_there() || self.0.watchers.are_there();
            if wanted && events.is_none() {
                // Workers that have ended tell nothing.
                events = switch.log_flows(&self.0.counts.ring).ok();
                if events.is_none() {
                    return;
                }
            } else if !wanted && events.take().is_some() {
                let _ = switch.end_flow_log();
            }
            let stopped = outputs.next_message(events.is_some());
            if let Some(events) = &events {
                taken.clear();
                events.take(&mut taken);
                for part in taken.chunks(PART) {
                    let records = names.name(part, &|| operations.control());
                    self.hand_on(&mut outputs, &records);
                }
            }
            if stopped {
                return;
            }
        }
    }

    fn hand_on(&self, outputs: &mut Outputs, records: &[v1::FlowRecord]) {
        let counts = &self.0.counts;
        for record in records {
            let kind = match record.kind() {
                v1::flow_record::Kind::Unspecified | v1::flow_record::Kind::Begin => 0,
                v1::flow_record::Kind::End => 1,
                v1::flow_record::Kind::Denied => 2,
            };
            counts.told[kind].fetch_add(1, Ordering::Relaxed);
        }
        let [of_file, of_collectors, of_watchers] = &counts.outputs;
        // What may wait comes last.
        of_watchers.fetch_add(self.0.watchers.publish(records), Ordering::Relaxed);
        for collector in &mut outputs.collectors {
            of_collectors.fetch_add(collector.send(records), Ordering::Relaxed);
        }
        if let Some(file) = &mut outputs.file {
            of_file.fetch_add(file.write(records), Ordering::Relaxed);
        }
    }
}

impl Outputs {
    fn are_there(&self) -> bool {
        self.file.is_some() || !self.collectors.is_empty()
    }

    /// Does what is asked next: waits for it, for [`POLL`] at most while there are events to be
    /// taken. True: to end.
    fn next_message(&mut self, is_polling: bool) -> bool {
        let message = match is_polling {
            true => self.messages.recv_timeout(POLL),
            false => self.messages.recv().map_err(RecvTimeoutError::from),
        };
        match message {
            Ok(Message::Look) | Err(RecvTimeoutError::Timeout) => false,
            Ok(Message::Reopen(answer)) => {
                if let Some(file) = &mut self.file {
                    // Who asked may not wait any more.
                    let _ = answer.try_send(file.reopen());
                }
                false
            }
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => true,
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;
    use crate::access::Peer;

    const PATIENCE: Duration = Duration::from_secs(20);
    /// Bytes that one takes.
    const PIPE: u64 = 64 << 10;

    /// A pipe that nobody reads stands for it.
    #[test]
    fn a_disk_that_hangs_is_waited_for_by_the_log_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flows.json");
        let log = FlowLog::open(Some(path.clone()), &[]).unwrap();
        let mut outputs = lock(&log.0.outputs).take().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(writer));
        outputs.file = Some(LogFile::with(path.clone(), pipe));
        let records = vec![
            v1::FlowRecord {
                reason: "x".repeat(1000),
                ..Default::default()
            };
            100
        ];
        let (writes, written) = (log.clone(), records.clone());
        let writing = std::thread::spawn(move || {
            writes.hand_on(&mut outputs, &written);
            while !outputs.next_message(false) {}
            outputs
        });
        let begun = Instant::now();
        while rustix::io::ioctl_fionread(&reader).unwrap() < PIPE {
            assert!(begun.elapsed() < PATIENCE, "the pipe is full");
            std::thread::sleep(Duration::from_millis(1));
        }
        let asks = log.clone();
        let (done, dones) = channel();
        std::thread::spawn(move || {
            let error = asks.reopen_within(Duration::from_millis(1)).unwrap_err();
            // More of them than messages that may wait.
            let caller = Caller::seeing(&Peer::unknown());
            for _ in 0..2 * MESSAGES {
                drop(asks.watch(&caller, String::new()).unwrap());
            }
            done.send(error).unwrap();
        });
        let error = dones.recv_timeout(PATIENCE).expect("nobody waits for it");
        assert!(error.contains("flows.json: what is written"), "{error}");
        assert!(!writing.is_finished());
        // When it goes on, what was asked is done, and what it has taken is not lost.
        drop(reader);
        log.0.messages.send(Message::Stop).unwrap();
        let mut outputs = writing.join().unwrap();
        let lost = log.counts().lost()[1];
        assert!((30..50).contains(&lost), "{lost} of 100");
        assert_eq!(outputs.file.as_mut().unwrap().write(&records), 0);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 100);
    }
}
