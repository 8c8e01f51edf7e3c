//! The threads that move frames, one a worker: each polls while there is something to do and sleeps
//! when there is not. Pinned to a core if one is given.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::balance::QueueBalancer;
use dataplane::flow::FlowMemory;
use dataplane::load::WorkerLoad;
use dataplane::report::PortReport;
use dataplane::{Now, PortSlot, Switch, Worker, WorkerConfig, WorkerGone};

use crate::watchdog::{Pulse, Watched};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The longest sleep: tables do their housekeeping that often.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often the balancer looks.
const BALANCE_EVERY: Duration = Duration::from_secs(1);
/// How often is looked how much of the memory of flows is in use.
const COLLAPSE_EVERY: Duration = Duration::from_millis(100);
/// For how many flows that are to come it has huge pages: 8 MiB, and 200 MiB.
const AHEAD_MIN: usize = 43_690;
const AHEAD_MAX: usize = 1 << 20;
/// How willing a thread that readies memory or takes up connections is to let others run
/// (setpriority(2)).
pub const BEHIND_FRAMES: i32 = 10;
/// Longer than a start takes until frames pass.
const START: Duration = Duration::from_secs(1);
/// Turns between two looks at the wall clock, which may be set while we run.
const WALL_CLOCK_TURNS: u32 = 4096;

/// How the workers are to run.
pub struct WorkerOptions {
    /// One entry a worker: the core to stay on.
    pub cores: Vec<Option<usize>>,
    pub max_flows: u32,
    /// Where flows are, as many as it was made for; `None`: they end with the process.
    pub memory: Option<FlowMemory>,
    /// Flows that are to be taken up at the most, of another process: their memory is made ready
    /// beside all else.
    pub left: usize,
    /// Another daemon forwards until all is ready. Else frames wait for the start, and the memory
    /// of flows must not be in its way.
    pub is_upgrade: bool,
    /// Polling without work for this long, then sleeping.
    pub poll: Duration,
    /// Called on a worker's thread when a port broke its protocol.
    pub on_broken: Arc<dyn Fn(PortSlot, String) + Send + Sync>,
}

/// The running workers.
pub struct WorkerThreads {
    switch: Arc<Switch>,
    cores: Vec<Option<usize>>,
    max_flows: u32,
    /// By worker.
    last: Mutex<Vec<Sample>>,
    /// A beat a turn, by worker.
    pulses: Vec<Arc<Pulse>>,
    /// Those of the workers, and the balancer's.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Ends when the memory of flows is ready for those that are to be taken up.
    ready: Mutex<Option<mpsc::Receiver<()>>>,
}

/// When the loads were last asked for, and how long the worker had slept by then.
struct Sample {
    at: Instant,
    asleep_ns: u64,
}

/// What a worker is doing, for a status.
pub struct LoadReport {
    pub core: Option<usize>,
    pub max_flows: u32,
    /// Awake since the last report, 0..=100.
    pub percent: u32,
    pub load: WorkerLoad,
}

impl WorkerThreads {
    /// Starts the threads; returns when each runs on its core.
    pub fn start(options: WorkerOptions) -> Result<WorkerThreads, String> {
        let (max_flows, poll) = (options.max_flows, options.poll);
        let seed = rand::random();
        let configure = |_| {
            let on_broken = options.on_broken.clone();
            WorkerConfig {
                max_flows,
                max_fragments: 4096,
                max_learned_macs: 65_536,
                seed,
                on_broken: Box::new(move |slot, why| on_broken(slot, why)),
            }
        };
        let memory = options.memory;
        let (switch, workers) = Switch::with_memory(options.cores.len(), memory, configure)
            .map_err(|e| format!("the workers cannot be made: {e}"))?;
        // From here on whoever returns early drops the switch, which ends the threads that run
        // already.
        let switch = Arc::new(switch);
        let mut threads = Vec::new();
        let mut pulses = Vec::new();
        for (number, (worker, core)) in workers.into_iter().zip(&options.cores).enumerate() {
            let pulse = Arc::new(Pulse::default());
            pulses.push(pulse.clone());
            threads.push(start(number, worker, *core, poll, pulse)?);
        }
        let samples = options.cores.iter().map(|_| Sample {
            at: Instant::now(),
            asleep_ns: 0,
        });
        if options.cores.len() > 1 {
            threads.push(start_balancer(&switch)?);
        }
        let mut ready = None;
        if switch.flow_memory().is_some() {
            let (done, ready_when) = mpsc::channel();
            let (left, is_upgrade) = (options.left, options.is_upgrade);
            threads.push(start_flow_memory(&switch, left, is_upgrade, done)?);
            ready = Some(ready_when);
        }
        Ok(WorkerThreads {
            switch,
            last: Mutex::new(samples.collect()),
            cores: options.cores,
            max_flows,
            pulses,
            threads: Mutex::new(threads),
            ready: Mutex::new(ready),
        })
    }

    /// Returns when the memory of flows is ready, in an upgrade, for those that are to be taken up.
    pub fn wait_for_flow_memory(&self) {
        let ready = self.ready.lock();
        let ready = ready.unwrap_or_else(PoisonError::into_inner).take();
        // Nothing is said: the other end goes.
        let _ = ready.map(|ready| ready.recv());
    }

    /// For the watchdog.
    pub fn watched(&self) -> Vec<Watched> {
        let each = self.pulses.iter().enumerate();
        each.map(|(number, pulse)| Watched::pulse(format!("worker {number}"), pulse.clone()))
            .collect()
    }

    /// For whoever attaches and detaches ports, and publishes.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    /// The ports of one NIC with their rings, or all without; each with its worker's index.
    pub fn ports(&self, of: Option<PortSlot>) -> Result<Vec<(usize, PortReport)>, WorkerGone> {
        self.switch.ports(of)
    }

    /// The counters of each, by index: for who makes rates of them, and disturbs nobody's.
    pub fn loads(&self) -> Result<Vec<WorkerLoad>, WorkerGone> {
        self.switch.loads()
    }

    /// Connections that each tracks at most.
    pub fn max_flows(&self) -> u32 {
        self.max_flows
    }

    /// What each is doing, by index.
    pub fn reports(&self) -> Result<Vec<LoadReport>, WorkerGone> {
        let loads = self.switch.loads()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let each = loads.into_iter().zip(last.iter_mut()).zip(&self.cores);
        let report = |((load, last), core): ((WorkerLoad, &mut Sample), &Option<usize>)| {
            let passed = now.duration_since(last.at).as_nanos().max(1);
            let asleep = u128::from(load.asleep_ns.saturating_sub(last.asleep_ns)).min(passed);
            *last = Sample {
                at: now,
                asleep_ns: load.asleep_ns,
            };
            LoadReport {
                core: *core,
                max_flows: self.max_flows,
                percent: ((passed - asleep) * 100 / passed) as u32,
                load,
            }
        };
        Ok(each.map(report).collect())
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.switch.stop();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker that panicked has ended the process already.
            let _ = thread.join();
        }
    }
}

fn start(
    number: usize,
    worker: Worker,
    core: Option<usize>,
    poll: Duration,
    pulse: Arc<Pulse>,
) -> Result<JoinHandle<()>, String> {
    let (started, wait) = mpsc::channel();
    let name = format!("worker{number}");
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let pinned = core.map_or(Ok(()), pin);
        let ready = pinned.is_ok();
        // The one who waits is below.
        let _ = started.send(pinned);
        if ready {
            run(worker, poll, &pulse);
        }
    });
    let thread = thread.map_err(|e| format!("a worker's thread cannot be started: {e}"))?;
    wait.recv()
        .unwrap_or_else(|_| Err("a worker's thread ended at once".into()))?;
    Ok(thread)
}

/// Starts the thread that moves queues from workers that have much to do to those that have little.
/// Once a second it looks at numbers that the workers have noted; it wakes none of them but to move
/// a queue. Ends with the workers.
fn start_balancer(switch: &Arc<Switch>) -> Result<JoinHandle<()>, String> {
    let switch = switch.clone();
    let run = move || {
        let mut balancer = QueueBalancer::default();
        while !switch.wait_stopping(BALANCE_EVERY) {
            match switch.balance(&mut balancer, sys::cycles::now()) {
                Ok(Some(moved)) => tracing::info!(
                    "queue {} of the NIC in slot {} goes from worker {} to worker {}, which has \
                     less to do",
                    moved.queue.pair,
                    moved.queue.slot.0,
                    moved.from,
                    moved.to
                ),
                Ok(None) => {}
                Err(WorkerGone) => return,
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("balancer".into())
        .spawn(run);
    thread.map_err(|e| format!("the balancer's thread cannot be started: {e}"))
}

/// The system gives memory that outlives the process huge pages by itself, or never.
fn has_huge_shared_memory() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

/// Starts the thread that makes huge pages of the memory of flows as it comes into use, if the
/// system does not: a lookup at random would miss the TLB besides the cache. In an upgrade it has
/// that ready for those that were left, and drops `ready` then. Ends with the workers.
///
/// Else huge pages come after the start. The system makes one with the address space locked, and
/// waits for all processors meanwhile (`lru_add_drain_all`): what other threads map waits for up to
/// 5 ms with it.
fn start_flow_memory(
    switch: &Arc<Switch>,
    left: usize,
    is_upgrade: bool,
    ready: mpsc::Sender<()>,
) -> Result<JoinHandle<()>, String> {
    let switch = switch.clone();
    let run = move || {
        if has_huge_shared_memory() {
            return;
        }
        // What moves frames is to have the cores first.
        let _ = setpriority_process(None, BEHIND_FRAMES);
        let mut ready = is_upgrade.then_some(ready);
        if !is_upgrade && switch.wait_stopping(START) {
            return;
        }
        // Those that were left are no new ones when they come.
        let (mut done, mut used, mut ahead) = (0, left, AHEAD_MIN.max(left));
        let mut has_index = false;
        // A page at a time: who has this core for longer has guests and their frames wait for a
        // whole turn of the scheduler's, 5 ms, however nice it is. And not for a daemon that is
        // about to end.
        let go_on = |took| !switch.wait_stopping(took) && !switch.is_paused();
        loop {
            let now = switch.collapse_flow_memory(&mut done, ahead, go_on);
            // Who has no flows needs none of its memory.
            if !has_index && now + left > 0 {
                has_index = switch.collapse_flow_index(go_on);
            }
            // Its end says so.
            drop(ready.take());
            // As many as come until the next look but one, if they go on coming as they do.
            ahead = (2 * now.saturating_sub(used)).clamp(AHEAD_MIN, AHEAD_MAX);
            used = used.max(now);
            if switch.wait_stopping(COLLAPSE_EVERY) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("flow-memory".into())
        .spawn(run);
    thread.map_err(|e| format!("the thread of the memory of flows cannot be started: {e}"))
}

fn pin(core: usize) -> Result<(), String> {
    let mut cores = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(format!("there is no core {core}"));
    }
    cores.set(core);
    sched_setaffinity(None, &cores)
        .map_err(|e| format!("the worker cannot run on core {core}: {e}"))
}

/// Until it is told to stop.
fn run(mut worker: Worker, poll: Duration, pulse: &Pulse) {
    let poll_ns = poll.as_nanos() as u64;
    let mut clock = Clock::new();
    let mut idle_since = clock.now().mono_ns;
    loop {
        let now = clock.now();
        let turn = worker.turn(now);
        pulse.beat();
        if turn.stopped {
            return;
        }
        if turn.frames > 0 || turn.messages > 0 || turn.commands > 0 || turn.busy {
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

/// The time as workers have it.
pub fn now() -> Now {
    Clock::new().now()
}

fn unix_offset() -> i128 {
    nanos(ClockId::Realtime) - nanos(ClockId::Monotonic)
}

fn nanos(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}
