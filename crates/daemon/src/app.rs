//! What the APIs work on: the controller behind its lock, the log's level, the workers, and the
//! request to stop.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use control::model::SocketAccess;
use control::{Author, Controller};
use io::trace::Folder;
use io::vhost::Server;
use rustix::time::{ClockId, clock_gettime};
use store::{Announced, Ticket};
use tokio::sync::{Semaphore, watch};

use crate::access::{Caller, Refusal};
use crate::balancer;
use crate::held::Held;
use crate::logging::{Level, LogControl};
use crate::reload::Reload;
use crate::router;
use crate::sflow::Sflow;
use crate::shares::Shares;
use crate::stored::Stored;
use crate::unix_socket::Names;
use crate::upgrade::Upgrade;
use crate::uplinks;
use crate::v1::bounds;
use crate::v1::budget::Budget;
use crate::v1::capture;
use crate::v1::turns::{Count, Turns};
use crate::watchdog::Health;
use crate::worker_thread::WorkerThreads;

/// Streams of events of one client, and of all: each asks for the controller once an event. As many
/// of the daemon's health.
const WATCHING_EACH: usize = 16;
const WATCHING_ALL: usize = 128;
/// Captures and live traces of one client but root.
const CAPTURING_EACH: usize = 4;
/// The others are for root.
const CAPTURING_ALL: usize = capture::AT_ONCE * 3 / 4;
/// Lists of routes and neighbours that one client may have on their way, and all.
const LISTING_EACH: usize = 8;
const LISTING_ALL: usize = 32;

/// Operations of v1 that are carried out at one time, and the long ones of them.
const OPERATIONS: Count = Count { each: 8, all: 32 };
const LONG_OPERATIONS: Count = Count { each: 1, all: 4 };

/// What operations need, and no more: no socket, no worker.
pub struct Operations {
    controller: Mutex<Controller>,
    /// Who has it has the controller next: whoever asks for that again and again lets others have
    /// it in between.
    next: Mutex<()>,
    /// The level of the log can be changed.
    pub(crate) log: LogControl,
    clock: fn() -> u64,
    /// `None`: nothing outlives the process.
    stored: Option<Arc<Stored>>,
    /// Whom sockets of NICs are given to.
    names: Names,
}

/// A request that may change something, from before it is carried out until it may be answered.
pub struct Changing<'a> {
    announced: Option<Announced<'a>>,
    unsettled: Arc<Unsettled>,
}

impl Changing<'_> {
    /// Returns when what has been changed by now outlives the process: then it may be answered.
    /// Waits for the disk. An error: it does not, and is undone.
    pub fn settle(self) -> Result<(), control::Error> {
        drop(self.announced);
        self.unsettled.settle()
    }

    /// For a client that will ask something else, and waits with that.
    pub fn settle_soon(self) {
        drop(self.announced);
        self.unsettled.settle_soon();
    }
}

/// What a request has changed since it began, until somebody waits for the disk with it. Who
/// carries it out has it too: where the client goes away meanwhile, nobody ever waits, and what was
/// changed is synced soon after the last who has this has let it go.
pub struct Unsettled {
    operations: Arc<Operations>,
    /// The last change before it. `None`: nothing outlives the process.
    since: Option<Ticket>,
    is_settled: AtomicBool,
}

impl Unsettled {
    fn settle(&self) -> Result<(), control::Error> {
        self.is_settled.store(true, Ordering::Relaxed);
        match (&self.operations.stored, self.since) {
            (Some(stored), Some(since)) => stored.settle(since, &self.operations),
            _ => Ok(()),
        }
    }

    fn settle_soon(&self) {
        if self.is_settled.swap(true, Ordering::Relaxed) {
            return;
        }
        if let (Some(stored), Some(since)) = (&self.operations.stored, self.since)
            && stored.last() != since
        {
            stored.settle_soon(since, &self.operations);
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.settle_soon();
    }
}

/// The controller, held. When it is let go, others have it first; then whoever had it waits for
/// what goes on of their operation (an interface's removal).
pub struct ControlGuard<'a>(Option<MutexGuard<'a, Controller>>);

const HELD: &str = "held until it is dropped";

impl Deref for ControlGuard<'_> {
    type Target = Controller;

    fn deref(&self) -> &Controller {
        self.0.as_ref().expect(HELD)
    }
}

impl DerefMut for ControlGuard<'_> {
    fn deref_mut(&mut self) -> &mut Controller {
        self.0.as_mut().expect(HELD)
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        let ending = self.take_ending();
        drop(self.0.take());
        if let Some(ending) = ending {
            ending.wait();
        }
    }
}

impl Operations {
    /// `clock`: Unix seconds.
    pub fn new(controller: Controller, log: LogControl, clock: fn() -> u64) -> Operations {
        Operations {
            controller: Mutex::new(controller),
            next: Mutex::default(),
            log,
            clock,
            stored: None,
            names: Names::default(),
        }
    }

    /// With attachments that ask these names whose sockets are to be.
    pub fn with_names(mut self, names: Names) -> Operations {
        self.names = names;
        self
    }

    /// Has users and groups of these sockets looked up, which may take as long as where they are
    /// kept: before the change that gives them sockets waits for the controller, so that nobody
    /// else has to wait for it.
    pub fn look_up(&self, sockets: &[SocketAccess]) {
        self.names.look_up(sockets);
    }

    /// With a store, from which the controller has come and into which it writes.
    pub fn with_store(mut self, stored: Option<Arc<Stored>>) -> Operations {
        self.stored = stored;
        self
    }

    /// The store, if there is one.
    pub(crate) fn stored(&self) -> Option<&Arc<Stored>> {
        self.stored.as_ref()
    }

    /// Begins a request.
    pub fn changing(self: &Arc<Operations>) -> Changing<'_> {
        self.changing_of(self.unsettled())
    }

    /// What a request that begins now will have changed.
    pub fn unsettled(self: &Arc<Operations>) -> Arc<Unsettled> {
        Arc::new(Unsettled {
            operations: self.clone(),
            since: self.stored.as_ref().map(|stored| stored.last()),
            is_settled: AtomicBool::new(false),
        })
    }

    /// A request that is carried out from now on.
    pub fn changing_of(&self, unsettled: Arc<Unsettled>) -> Changing<'_> {
        Changing {
            announced: self.stored.as_ref().map(|stored| stored.announce()),
            unsettled,
        }
    }

    /// The controller, for one operation of the daemon's own. It waits for the workers: not to be
    /// called on a runtime's thread without `spawn_blocking`, and never by a worker.
    pub fn control(&self) -> ControlGuard<'_> {
        self.control_by(Author::Daemon)
    }

    /// The controller, for one operation of this author's; as [`control`](Operations::control).
    pub fn control_by(&self, author: Author) -> ControlGuard<'_> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        // An operation stages its changes on a copy, so one that panicked left the state as it was.
        let mut controller = self
            .controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(next);
        controller.set_author(author);
        ControlGuard(Some(controller))
    }

    /// The controller, for one operation of a client's, who may still ask for it now that nobody
    /// else has the controller; as [`control`](Operations::control).
    pub fn control_for(&self, caller: &Caller) -> Result<ControlGuard<'_>, Refusal> {
        let control = self.control_by(caller.author());
        caller.look_again()?;
        Ok(control)
    }

    /// Has the log be this much from now on, since this caller asks for it.
    pub(crate) fn set_log_level(&self, level: Level, caller: &Caller) {
        caller.takes_effect();
        let before = self.log.set(level);
        caller.detail(format!("log level: {before} -> {level}"));
    }

    /// The time, Unix seconds.
    pub(crate) fn unix_secs(&self) -> u64 {
        (self.clock)()
    }
}

/// One for the process; every server holds it.
pub struct App {
    pub operations: Arc<Operations>,
    pub workers: Arc<WorkerThreads>,
    /// For its sessions to be looked at; NICs come and go by the controller.
    pub vhost: Arc<Server>,
    /// Where the APIs listen, as they are spelt on the command line.
    pub endpoints: Vec<String>,
    /// What joins this host to others, if anything does.
    pub uplinks: Arc<uplinks::Control>,
    pub balancer: Arc<balancer::Engine>,
    /// With those who are told of services' addresses.
    pub bgp: balancer::bgp::Sessions,
    pub router: Arc<router::Control>,
    /// Of NICs' packets.
    pub traces: Folder,
    /// What is told to those who ask for it.
    pub health: Health,
    /// What can be read again.
    pub reload: Reload,
    /// Samples for collectors, if there are any.
    pub sflow: Sflow,
    /// Another program in this one's place.
    pub upgrade: Upgrade,
    /// What outlives the daemon, if anything does.
    pub held: Option<Arc<Held>>,
    /// Memory for answers.
    pub replies: Budget,
    /// Streams of events, and captures and live traces.
    pub watching: Shares,
    pub capturing: Shares,
    /// Streams of the daemon's health.
    pub watching_health: Shares,
    /// Routes and neighbours that are being told.
    pub listing: Shares,
    /// Operations of v1.
    pub turns: Turns,
    /// Requests that wait for the disk.
    pub settling: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

/// What runs on this host's interfaces.
pub struct Features {
    pub uplinks: Arc<uplinks::Control>,
    pub balancer: Arc<balancer::Engine>,
    pub router: Arc<router::Control>,
    pub traces: Folder,
    pub reload: Reload,
    pub upgrade: Upgrade,
    pub held: Option<Arc<Held>>,
}

impl App {
    pub fn new(
        operations: Operations,
        workers: Arc<WorkerThreads>,
        vhost: Arc<Server>,
        endpoints: Vec<String>,
        features: Features,
    ) -> App {
        App {
            operations: Arc::new(operations),
            workers,
            vhost,
            endpoints,
            uplinks: features.uplinks,
            balancer: features.balancer,
            bgp: balancer::bgp::Sessions::default(),
            router: features.router,
            traces: features.traces,
            health: Health::default(),
            reload: features.reload,
            sflow: Sflow::default(),
            upgrade: features.upgrade,
            held: features.held,
            replies: bounds::replies(),
            watching: Shares::new("streams of events", WATCHING_EACH, WATCHING_ALL),
            watching_health: Shares::new("streams of health", WATCHING_EACH, WATCHING_ALL),
            capturing: Shares::new("captures and live traces", CAPTURING_EACH, CAPTURING_ALL),
            listing: Shares::new("lists of routes and neighbours", LISTING_EACH, LISTING_ALL),
            turns: Turns::new(OPERATIONS, LONG_OPERATIONS),
            settling: Arc::new(Semaphore::new(bounds::SETTLING_AT_ONCE)),
            stop: watch::Sender::new(false),
        }
    }

    /// [`Operations::control`].
    pub fn control(&self) -> ControlGuard<'_> {
        self.operations.control()
    }

    /// Asks the daemon to stop, as SIGTERM does.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns when the daemon is to stop.
    pub async fn stopping(&self) {
        // The sender lives in self: this cannot fail.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }
}

/// The wall clock, seconds.
pub fn unix_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Nanoseconds of a clock that only runs forward: for rates.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use control::HostSettings;

    use super::*;
    use crate::nowhere::Nowhere;

    #[test]
    fn who_takes_the_controller_again_at_once_lets_who_waits_have_it() {
        let controller = Controller::new(
            HostSettings::default(),
            Box::new(Nowhere),
            Arc::new(Nowhere),
        );
        let operations = Operations::new(controller, LogControl::detached(), || 0);
        let (operations, had) = (&operations, &AtomicBool::new(false));
        thread::scope(|threads| {
            for _ in 0..100 {
                had.store(false, Ordering::SeqCst);
                let held = operations.control();
                let waiter = threads.spawn(move || {
                    let control = operations.control();
                    had.store(true, Ordering::SeqCst);
                    drop(control);
                });
                // It stands in line.
                while operations.next.try_lock().is_ok() {
                    thread::yield_now();
                }
                drop(held);
                let again = operations.control();
                assert!(had.load(Ordering::SeqCst));
                drop(again);
                waiter.join().unwrap();
            }
        });
    }
}
