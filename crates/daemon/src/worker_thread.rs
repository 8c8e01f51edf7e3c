//! The thread that moves frames: polls while there is something to do, sleeps when there is not. Pinned to a core
//! if one is given. To the controller it is the data plane.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::{DataPlane, DataPlaneError};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::load::WorkerLoad;
use dataplane::report::PortReport;
use dataplane::{Now, PortSlot, PortUid, RuleSlot, Snapshot, Worker, WorkerConfig, WorkerGone, WorkerHandle};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The longest sleep: tables do their housekeeping that often.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Turns between two looks at the wall clock, which may be set while we run.
const WALL_CLOCK_TURNS: u32 = 4096;

/// How the worker is to run.
pub struct WorkerOptions {
    /// The core to stay on.
    pub core: Option<usize>,
    pub max_flows: u32,
    /// Polling without work for this long, then sleeping.
    pub poll: Duration,
    /// Called on the worker's thread when a port broke its protocol.
    pub on_broken: Box<dyn Fn(PortSlot, String) + Send>,
}

/// The running worker.
pub struct WorkerThread {
    handle: WorkerHandle,
    core: Option<usize>,
    max_flows: u32,
    last: Mutex<Sample>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// When the load was last asked for, and how long the worker had slept by then.
struct Sample {
    at: Instant,
    asleep_ns: u64,
}

/// What the worker is doing, for a status.
pub struct LoadReport {
    pub core: Option<usize>,
    pub max_flows: u32,
    /// Awake since the last report, 0..=100.
    pub percent: u32,
    pub load: WorkerLoad,
}

impl WorkerThread {
    /// Starts the thread; returns when it runs on its core.
    pub fn start(options: WorkerOptions) -> Result<WorkerThread, String> {
        let (core, max_flows, poll) = (options.core, options.max_flows, options.poll);
        let config = WorkerConfig {
            max_flows,
            max_fragments: 4096,
            max_learned_macs: 65_536,
            seed: rand::random(),
            on_broken: options.on_broken,
        };
        let (worker, handle) = Worker::new(config).map_err(|e| format!("the worker cannot be made: {e}"))?;
        let (started, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("worker".into()).spawn(move || {
            let pinned = core.map_or(Ok(()), pin);
            let ready = pinned.is_ok();
            // The one who waits is below.
            let _ = started.send(pinned);
            if ready {
                run(worker, poll);
            }
        });
        let thread = thread.map_err(|e| format!("the worker's thread cannot be started: {e}"))?;
        wait.recv()
            .unwrap_or_else(|_| Err("the worker's thread ended at once".into()))?;
        let last = Mutex::new(Sample {
            at: Instant::now(),
            asleep_ns: 0,
        });
        Ok(WorkerThread {
            handle,
            core,
            max_flows,
            last,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// For whoever attaches and detaches ports.
    pub fn handle(&self) -> &WorkerHandle {
        &self.handle
    }

    /// What each worker is doing, by index.
    pub fn reports(&self) -> Result<Vec<LoadReport>, WorkerGone> {
        Ok(vec![self.report()?])
    }

    /// The ports of one NIC with their rings, or all without; each with its worker's index.
    pub fn ports(&self, of: Option<PortSlot>) -> Result<Vec<(usize, PortReport)>, WorkerGone> {
        Ok(self.handle.ports(of)?.into_iter().map(|port| (0, port)).collect())
    }

    fn report(&self) -> Result<LoadReport, WorkerGone> {
        let load = self.handle.load()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let passed = now.duration_since(last.at).as_nanos().max(1);
        let asleep = u128::from(load.asleep_ns.saturating_sub(last.asleep_ns)).min(passed);
        *last = Sample {
            at: now,
            asleep_ns: load.asleep_ns,
        };
        let percent = ((passed - asleep) * 100 / passed) as u32;
        Ok(LoadReport {
            core: self.core,
            max_flows: self.max_flows,
            percent,
            load,
        })
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.handle.stop();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A worker that panicked has ended the process already.
            let _ = thread.join();
        }
    }
}

fn pin(core: usize) -> Result<(), String> {
    let mut cores = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(format!("there is no core {core}"));
    }
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(|e| format!("the worker cannot run on core {core}: {e}"))
}

/// Until it is told to stop.
fn run(mut worker: Worker, poll: Duration) {
    let poll_ns = poll.as_nanos() as u64;
    let mut clock = Clock::new();
    let mut idle_since = clock.now().mono_ns;
    loop {
        let now = clock.now();
        let turn = worker.turn(now);
        if turn.stopped {
            return;
        }
        if turn.frames > 0 || turn.commands > 0 || turn.busy {
            idle_since = now.mono_ns;
        } else if now.mono_ns.saturating_sub(idle_since) >= poll_ns {
            worker.sleep(now, SLEEP_MAX);
            idle_since = clock.after_sleep().mono_ns;
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The monotonic clock, and the wall clock as an offset to it: one system clock is read a turn.
struct Clock {
    unix_offset_ns: i128,
    turns: u32,
}

impl Clock {
    fn new() -> Clock {
        Clock {
            unix_offset_ns: unix_offset(),
            turns: 0,
        }
    }

    fn now(&mut self) -> Now {
        self.turns += 1;
        if self.turns >= WALL_CLOCK_TURNS {
            return self.after_sleep();
        }
        let mono_ns = nanos(ClockId::Monotonic);
        Now {
            mono_ns: mono_ns as u64,
            unix_ns: (mono_ns + self.unix_offset_ns) as u64,
        }
    }

    fn after_sleep(&mut self) -> Now {
        *self = Clock::new();
        self.now()
    }
}

fn unix_offset() -> i128 {
    nanos(ClockId::Realtime) - nanos(ClockId::Monotonic)
}

fn nanos(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl DataPlane for WorkerThread {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        self.handle.publish(snapshot).map_err(gone)
    }

    fn port_counters(&self, slot: PortSlot) -> PortCounters {
        self.handle.counters().port(slot)
    }

    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        self.handle.counters().rule(slot)
    }

    fn flows(&self, port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        self.handle.flows(port).map_err(gone)
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        self.handle.import_flows(flows).map_err(gone)
    }
}

fn gone(e: WorkerGone) -> DataPlaneError {
    DataPlaneError(e.to_string())
}
