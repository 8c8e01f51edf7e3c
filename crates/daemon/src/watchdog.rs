//! Notices a thread of ours that hangs, names it in the log, and ends the process, so that whoever
//! has started the daemon starts it again: half a switch is worse than a restart.
//!
//! A thread that works says so by a number that changes; a thread that has nothing to do says that.
//! Once a second one thread of its own looks at them all. What counts are these looks and not a
//! clock: when the whole process is stopped for a while (SIGSTOP, a debugger, a paused machine),
//! the looks are too. It tells systemd that the daemon lives (WATCHDOG=1, sd_notify(3)), which ends
//! the process when that word does not come, and clients of the API by the health service
//! ([`Health`]).
//!
//! In an upgrade some stand still by intention ([`Pause`]): those are let alone for as long as all
//! its steps may take together, and no longer; the others have to work meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use io::vhost::{PortKey, Server};
use sd_notify::NotifyState;

use crate::app::Operations;
use crate::deaths;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How much longer than a thread an operation may take: one that makes thousands of devices does.
const OPERATION_TIMES: u32 = 30;
/// A key that no NIC has.
const NO_NIC: PortKey = PortKey(u32::MAX);

/// A number that its one thread changes while it works. Alone on its cache lines, so that nobody
/// else's work waits for it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// By its thread alone: no locked instruction.
    #[inline]
    pub fn beat(&self) {
        let beats = self.0.load(Ordering::Relaxed);
        self.0.store(beats.wrapping_add(1), Ordering::Relaxed);
    }
}

/// What a thread looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// It waits for something to do.
    Idle,
    /// It works, and is here.
    At(u64),
}

/// A thread that is looked at.
pub struct Watched {
    name: String,
    sign: Box<dyn Fn() -> Sign + Send>,
    /// How many times as long as others it may stand still.
    times: u32,
    /// It stands still in a pause, by intention.
    pauses: bool,
}

impl Watched {
    /// A thread that beats at least once a second.
    pub fn pulse(name: String, pulse: Arc<Pulse>) -> Watched {
        Watched {
            name,
            sign: Box::new(move || Sign::At(pulse.0.load(Ordering::Relaxed))),
            times: 1,
            pauses: false,
        }
    }

    /// The threads of a [`runtime`], by what tokio counts: one that has been awake since the last
    /// look and has come to the end of no task's turn hangs in one.
    pub fn runtime(name: &str, runtime: &tokio::runtime::Handle) -> Vec<Watched> {
        let metrics = runtime.metrics();
        let worker = |index| {
            let metrics = metrics.clone();
            let sign = move || {
                let parks = metrics.worker_park_unpark_count(index);
                // Odd: it sleeps.
                if parks % 2 == 1 {
                    return Sign::Idle;
                }
                let busy = metrics.worker_total_busy_duration(index);
                Sign::At((busy.as_nanos() as u64).wrapping_add(parks))
            };
            Watched {
                name: format!("{name} thread {index}"),
                sign: Box::new(sign),
                times: 1,
                pauses: false,
            }
        };
        (0..metrics.num_workers()).map(worker).collect()
    }

    /// The thread of the vhost-user server.
    pub fn vhost(server: &Arc<Server>) -> Result<Watched, String> {
        let server = Arc::downgrade(server);
        let ask = move || {
            let server = Weak::upgrade(&server);
            let asked = server.map(|server| drop(server.nic(NO_NIC)));
            asked.is_some()
        };
        Watched::asked("the vhost-user thread", 1, ask)
    }

    /// The controller, which every operation of either API has for itself while it runs.
    pub fn controller(operations: &Arc<Operations>) -> Result<Watched, String> {
        let operations = Arc::downgrade(operations);
        let ask = move || {
            let operations = Weak::upgrade(&operations);
            let asked = operations.map(|operations| drop(operations.control()));
            asked.is_some()
        };
        Watched::asked("an operation of the API", OPERATION_TIMES, ask)
    }

    /// Something that answers when it is asked, by a thread that may hang with it: once a second,
    /// until `ask` says that it is gone. It may take `times` as long as a thread that works, and
    /// answers nobody in a pause.
    fn asked(
        name: &str,
        times: u32,
        ask: impl Fn() -> bool + Send + 'static,
    ) -> Result<Watched, String> {
        let pulse = Arc::new(Pulse::default());
        let beats = pulse.clone();
        let ask = move || {
            while ask() {
                beats.beat();
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new()
            .name("asks".into())
            .spawn(ask)
            .map_err(|e| format!("the thread that asks {name}: {e}"))?;
        Ok(Watched {
            times,
            pauses: true,
            ..Watched::pulse(name.into(), pulse)
        })
    }
}

/// A runtime with so many threads, to be looked at by [`Watched::runtime`]. tokio tells what a
/// thread has done when that looks for events, which is behind 61 tasks by default: many that take
/// long, one after the other, would look like one that hangs. So it looks behind each, which costs
/// a system call.
pub fn runtime(threads: usize) -> tokio::runtime::Builder {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).event_interval(1);
    builder
}

/// How often a thread was seen in the same place.
struct Seen {
    watched: Watched,
    last: Sign,
    still: u32,
}

impl Seen {
    fn new(watched: Watched) -> Seen {
        Seen {
            watched,
            last: Sign::Idle,
            still: 0,
        }
    }

    /// Nothing has moved for so many looks, or as many times that as it may; in a pause it is let
    /// alone for `pause` looks besides.
    fn hangs(&self, looks: u32, pause: u32) -> bool {
        let pause = if self.watched.pauses { pause } else { 0 };
        self.still
            >= looks
                .saturating_mul(self.watched.times)
                .saturating_add(pause)
    }

    /// It goes on behind a pause: what was seen before says nothing.
    fn begin_anew(&mut self) {
        (self.last, self.still) = (Sign::Idle, 0);
    }

    /// Looks again. Gives for how many looks nothing has moved.
    fn look(&mut self) -> u32 {
        let sign = (self.watched.sign)();
        self.still = match sign {
            Sign::At(_) if sign == self.last => self.still + 1,
            _ => 0,
        };
        self.last = sign;
        self.still
    }
}

/// Whether the daemon works, for those who ask by grpc.health.v1. Cheap to clone.
#[derive(Clone)]
pub struct Health {
    state: tokio::sync::watch::Sender<bool>,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            state: tokio::sync::watch::Sender::new(false),
        }
    }
}

impl Health {
    /// Says whether requests are served and frames move.
    pub fn set(&self, serving: bool) {
        self.state.send_if_modified(|now| {
            let changed = *now != serving;
            *now = serving;
            changed
        });
    }

    /// What was said last, and what will be.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<bool> {
        self.state.subscribe()
    }
}

/// The thread that looks. It ends when this is dropped.
pub struct Watchdog {
    pause: Pause,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Watching,
    /// Some stand still by intention, for so many looks at the most.
    Pausing(u32),
    /// The daemon is stopping: threads end, which may take long; systemd is told that we live.
    Stopping,
    Ended,
}

impl Phase {
    /// For how many looks who pauses is let alone; none: nobody is looked at.
    fn pause(self) -> Option<u32> {
        match self {
            Phase::Watching => Some(0),
            Phase::Pausing(looks) => Some(looks),
            Phase::Stopping | Phase::Ended => None,
        }
    }
}

impl Watchdog {
    /// Watches. A thread that has not moved for `patience` looks ends the process; 0: none does,
    /// and systemd alone is told.
    pub fn start(watched: Vec<Watched>, patience: u32, health: Health) -> Result<Watchdog, String> {
        let stop = Arc::new((Mutex::new(Phase::Watching), Condvar::new()));
        let phase = stop.clone();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watch(watched, patience, &health, &phase))
            .map_err(|e| format!("the watchdog's thread cannot be started: {e}"))?;
        Ok(Watchdog {
            pause: Pause(stop),
            thread: Some(thread),
        })
    }

    /// The daemon is about to stop: its threads are let alone from now on.
    pub fn stopping(&self) {
        self.pause.enter(Phase::Stopping);
    }

    /// For whoever has threads stand still for a while.
    pub fn pause(&self) -> Pause {
        self.pause.clone()
    }
}

/// Has those that stand still by intention let alone: the vhost-user thread, and whoever waits for
/// the controller.
#[derive(Clone)]
pub struct Pause(Arc<(Mutex<Phase>, Condvar)>);

impl Pause {
    /// They stand still from now on. Who does so for longer than this, and for its patience
    /// besides, hangs.
    pub fn begin(&self, at_most: Duration) {
        let looks = at_most.as_millis().div_ceil(LOOK.as_millis());
        self.enter(Phase::Pausing(u32::try_from(looks).unwrap_or(u32::MAX)));
    }

    /// They go on.
    pub fn end(&self) {
        self.enter(Phase::Watching);
    }

    fn enter(&self, phase: Phase) {
        let (now, changed) = &*self.0;
        let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended does not begin anew.
        if *now != Phase::Ended {
            *now = phase;
        }
        changed.notify_all();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.pause.enter(Phase::Ended);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(watched: Vec<Watched>, patience: u32, health: &Health, phase: &(Mutex<Phase>, Condvar)) {
    let told = sd_notify::watchdog_enabled().is_some();
    let mut all: Vec<Seen> = watched.into_iter().map(Seen::new).collect();
    let mut paused = false;
    loop {
        let now = phase.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *now == Phase::Ended {
            return;
        }
        let waited = phase.1.wait_timeout(now, LOOK);
        let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let pause = now.pause();
        drop(now);
        // A look that comes early would count as one.
        if !waited.timed_out() {
            continue;
        }
        if let Some(pause) = pause.filter(|_| patience > 0) {
            if paused && pause == 0 {
                let those = all.iter_mut().filter(|seen| seen.watched.pauses);
                those.for_each(Seen::begin_anew);
            }
            paused = pause > 0;
            look(&mut all, patience, pause, health);
        }
        if told {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }
}

/// One look at all of them, of which some may stand still for `pause` looks.
fn look(all: &mut [Seen], patience: u32, pause: u32, health: &Health) {
    all.iter_mut().for_each(|seen| {
        seen.look();
    });
    // Who is still for half of that is told of: there may be time to look elsewhere.
    let half = patience.div_ceil(2);
    health.set(!all.iter().any(|seen| seen.hangs(half, pause)));
    if !all.iter().any(|seen| seen.hangs(patience, pause)) {
        return;
    }
    if pause > 0 {
        tracing::error!("it is amid an upgrade");
    }
    for seen in all.iter().filter(|seen| seen.hangs(half, pause)) {
        tracing::error!("{} has not moved for {} s", seen.watched.name, seen.still);
    }
    tracing::error!(
        "the daemon ends, to be started again: it hangs (--hang-secs says how long is too long)"
    );
    let _ = sd_notify::notify(&[NotifyState::Status("a thread hung")]);
    deaths::note();
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_and_does_not_move_is_seen_and_who_waits_is_not() {
        let pulse = Arc::new(Pulse::default());
        let mut worker = Seen::new(Watched::pulse("w".into(), pulse.clone()));
        assert_eq!(worker.look(), 0);
        assert_eq!([worker.look(), worker.look()], [1, 2]);
        pulse.beat();
        assert_eq!([worker.look(), worker.look()], [0, 1]);
        let mut idle = Seen::new(Watched {
            name: "idle".into(),
            sign: Box::new(|| Sign::Idle),
            times: 1,
            pauses: false,
        });
        assert_eq!([idle.look(), idle.look(), idle.look()], [0; 3]);
    }

    #[test]
    fn a_task_that_blocks_its_runtime_s_thread_is_seen() {
        let runtime = runtime(2).build().unwrap();
        let mut all: Vec<Seen> = Watched::runtime("API", runtime.handle())
            .into_iter()
            .map(Seen::new)
            .collect();
        let (started, begun) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        runtime.spawn(async move {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        begun.recv().unwrap();
        let worst = |all: &mut Vec<Seen>| {
            let looks = all.iter_mut().map(Seen::look);
            let most = looks.max().unwrap();
            std::thread::sleep(Duration::from_millis(5));
            most
        };
        let seen: Vec<u32> = (0..4).map(|_| worst(&mut all)).collect();
        assert!(seen[3] >= 2, "{seen:?}");
        go_on.send(()).unwrap();
        // It has moved: the count begins anew.
        let moves = (0..400).any(|_| worst(&mut all) == 0);
        assert!(moves);
    }

    /// Each ends: twelve of 200 ms are not one of 2.4 s.
    #[test]
    fn tasks_that_take_long_one_after_the_other_are_not_one_that_hangs() {
        const TASKS: usize = 12;
        let runtime = runtime(1).build().unwrap();
        let mut watched = Watched::runtime("API", runtime.handle());
        let mut seen = Seen::new(watched.remove(0));
        let (started, begun) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        // From a task: they are all in its thread's own queue.
        runtime.spawn(async move {
            for _ in 0..TASKS {
                let (started, wait) = (started.clone(), wait.clone());
                tokio::spawn(async move {
                    started.send(()).unwrap();
                    let _ = wait.lock().unwrap().recv();
                });
            }
        });
        for task in 0..TASKS {
            begun.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(seen.look(), 0, "behind {task} that have ended");
            assert_eq!(seen.look(), 1, "this one has not");
            go_on.send(()).unwrap();
        }
    }

    #[test]
    fn an_operation_that_does_not_end_is_seen_after_longer() {
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let (asks, asked) = std::sync::mpsc::channel();
        let other = lock.clone();
        let ask = move || asks.send(()).is_ok() && other.lock().is_ok();
        let mut seen = Seen::new(Watched::asked("an operation", 3, ask).unwrap());
        asked.recv().unwrap();
        let looks = (0..7).map(|_| {
            seen.look();
            [seen.hangs(1, 0), seen.hangs(2, 0)]
        });
        let hangs: Vec<_> = looks.collect();
        assert_eq!(
            hangs[2..],
            [
                [false; 2],
                [true, false],
                [true, false],
                [true, false],
                [true; 2]
            ]
        );
        drop(held);
        // It was asked again.
        asked.recv().unwrap();
        assert_eq!(seen.look(), 0);
    }

    #[test]
    fn health_is_told_before_the_end() {
        let (health, pulse) = (Health::default(), Arc::new(Pulse::default()));
        let mut all = vec![Seen::new(Watched::pulse("w".into(), pulse.clone()))];
        let serving = health.watch();
        look(&mut all, 10, 0, &health);
        assert!(*serving.borrow());
        (0..5).for_each(|_| look(&mut all, 10, 0, &health));
        assert!(!*serving.borrow());
        pulse.beat();
        look(&mut all, 10, 0, &health);
        assert!(*serving.borrow());
    }

    /// A pause is for those that stand still by intention, and for so long.
    #[test]
    fn who_pauses_may_stand_still_for_that_long_and_others_may_not() {
        let phase = Arc::new((Mutex::new(Phase::Watching), Condvar::new()));
        let pause = Pause(phase.clone());
        let now = || phase.0.lock().unwrap().pause();
        assert_eq!(now(), Some(0));
        pause.begin(Duration::from_millis(2500));
        let looks = now().unwrap();
        assert_eq!(looks, 3);
        let still = |pauses| {
            Seen::new(Watched {
                pauses,
                ..Watched::pulse("w".into(), Arc::default())
            })
        };
        let (mut pauses, mut works) = (still(true), still(false));
        let seen = (0..7).map(|_| {
            pauses.look();
            works.look();
            [pauses.hangs(2, looks), works.hangs(2, looks)]
        });
        // Nothing has moved since the look before for 0, 1, 2 .. looks.
        let expected = [
            [false; 2],
            [false; 2],
            [false, true],
            [false, true],
            [false, true],
            [true; 2],
            [true; 2],
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        pause.end();
        assert_eq!(now(), Some(0));
        pauses.begin_anew();
        assert_eq!([pauses.look(), pauses.look()], [0, 1]);
    }

    /// While the daemon stops, its threads end.
    #[test]
    fn who_stops_is_let_alone() {
        let watchdog = Watchdog::start(Vec::new(), 1, Health::default()).unwrap();
        watchdog.stopping();
        let now = || watchdog.pause.0.0.lock().unwrap().pause();
        assert_eq!(now(), None);
    }
}
