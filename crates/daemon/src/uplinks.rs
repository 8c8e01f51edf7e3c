//! The uplinks of this host, owned by a task: it hears of changes of the kernel's tables and of
//! ports that broke, and lets the [engine](uplink::Engine) do what they ask for, on a thread that
//! may wait. [`Control`] begins it, with the first uplink.

mod control;
mod losses;

pub use control::{Control, Setup, is_of_others};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dataplane::{PortSlot, QueueId};
use io::port::Port;
use io::xsk::XskStatistics;
use netlink::{Kinds, Mirror};
use sys::handed::Items;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use uplink::layout::Counters;
use uplink::{Engine, Fact, Options, Ports, Station, UplinkSettings};
use xdp::Interfaces;

use crate::start_gate::StartGate;
use losses::Losses;

/// How often the engine looks at what changes without a message.
const LOOK: Duration = Duration::from_secs(2);

/// The end where workers report ports that broke. A port breaks once, so that this cannot grow
/// beyond what is joined.
#[derive(Clone)]
pub struct Breaks(mpsc::UnboundedSender<(u32, String)>);

/// The end where those reports arrive.
pub struct Broken(mpsc::UnboundedReceiver<(u32, String)>);

/// Makes both ends.
pub fn breaks() -> (Breaks, Broken) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Breaks(sender), Broken(receiver))
}

impl Breaks {
    /// From a worker's thread; does not wait. Slots of NICs are not for us.
    pub fn leave(&self, slot: PortSlot, why: &str) {
        if let Some(number) = number(slot) {
            // Nobody listens any more: the daemon is stopping.
            let _ = self.0.send((number, why.to_owned()));
        }
    }
}

/// A handle by which other parts of the daemon read the uplinks.
pub struct Uplinks {
    engine: Arc<Mutex<Engine>>,
    told: Arc<watch::Sender<Arc<[Fact]>>>,
    kernel: Arc<Mirror>,
    station: Arc<Station>,
    losses: Arc<Losses>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Uplinks {
    /// Starts to follow the kernel; the interfaces that are there are joined in a moment. `equip`
    /// gives the engine what else it has.
    pub fn start(
        settings: UplinkSettings,
        options: Options,
        interfaces: Arc<Mutex<Interfaces>>,
        gate: Arc<StartGate>,
        kernel: Arc<Mirror>,
        broken: Broken,
        equip: impl FnOnce(Engine) -> Engine,
    ) -> Uplinks {
        let engine = equip(Engine::new(
            settings,
            options,
            interfaces,
            Box::new(Queues(gate)),
        ));
        let station = engine.station();
        let engine = Arc::new(Mutex::new(engine));
        let told = Arc::new(watch::Sender::new(Arc::from([])));
        let losses = Arc::new(Losses::default());
        let following = follow(
            engine.clone(),
            kernel.watch(),
            broken,
            told.clone(),
            losses.clone(),
        );
        let task = tokio::spawn(following);
        Uplinks {
            engine,
            told,
            kernel,
            station,
            losses,
            task: Mutex::new(Some(task)),
        }
    }

    /// All uplinks as they are now.
    pub fn facts(&self) -> Arc<[Fact]> {
        self.told.borrow().clone()
    }

    /// The uplink that an interface is; of a VLAN, the one below.
    pub fn of_interface(&self, name: &str) -> Option<Fact> {
        let below = self.kernel.snapshot().link_named(name)?.vlan;
        let facts = self.facts();
        let is_it = |fact: &&Fact| match below {
            Some(vlan) => fact.ifindex == vlan.parent,
            None => fact.interface == name,
        };
        facts.iter().find(is_it).cloned()
    }

    /// To be told when one comes, goes or changes.
    pub fn watch(&self) -> watch::Receiver<Arc<[Fact]>> {
        self.told.subscribe()
    }

    /// Joins those that are named now, and leaves those that are not any more. All as they are
    /// then. Waits for the kernel: not for a runtime's thread.
    fn name(&self, interfaces: &[String]) -> Arc<[Fact]> {
        let mut engine = lock(&self.engine);
        engine.name(interfaces);
        let facts: Arc<[Fact]> = Arc::from(engine.reconcile(&self.kernel.snapshot()));
        // With the engine locked: what the task finds out later is told later.
        publish(&self.told, facts.clone());
        facts
    }

    /// Stands still, and gives what the next process goes on by.
    fn hand_over(&self) -> std::io::Result<Items> {
        lock(&self.engine).hand_over()
    }

    /// What is left by a process that has ended, and that no interface has asked for, goes.
    fn forget_left(&self) {
        lock(&self.engine).forget_left();
    }

    /// That process does not.
    fn go_on(&self) {
        lock(&self.engine).go_on();
    }

    /// The workers' queues of uplinks.
    fn queues(&self) -> Vec<QueueId> {
        let id = |(number, pair)| QueueId {
            slot: PortSlot::uplink(number),
            pair,
        };
        lock(&self.engine).queues().into_iter().map(id).collect()
    }

    /// What the kernel knows.
    pub fn kernel(&self) -> &Mirror {
        &self.kernel
    }

    /// We, on the TAP device that is made where no interface is.
    pub fn station(&self) -> Arc<Station> {
        self.station.clone()
    }

    /// What the kernel has counted for the sockets of an uplink.
    pub fn statistics(&self, number: u32) -> XskStatistics {
        lock(&self.engine).statistics(number)
    }

    /// What the XDP program has counted on all uplinks.
    pub fn counters(&self) -> Counters {
        lock(&self.engine).counters()
    }

    /// All interfaces are the kernel's alone again. Waits for the workers: not for a runtime's
    /// thread.
    pub fn stop(&self) {
        if let Some(task) = self
            .task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            task.abort();
        }
        lock(&self.engine).stop();
    }

    /// What keeps frames from passing, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let facts = self.facts();
        let of = |fact: &Fact| {
            let name = &fact.interface;
            let why = match (fact.joined, fact.up) {
                (false, _) if fact.why.is_empty() => format!("uplink {name} is not joined"),
                (false, _) => format!("uplink {name} is not joined: {}", fact.why),
                (true, false) => format!("the link of uplink {name} is down"),
                (true, true) => self.losses.of(fact.number)?,
            };
            Some(why)
        };
        facts.iter().filter_map(of).collect()
    }

    /// One line of all, for a status.
    pub fn summary(&self) -> String {
        let engine = lock(&self.engine);
        let describe = |fact: &Fact| describe(fact, &engine.statistics(fact.number));
        let lines: Vec<String> = self.facts().iter().map(describe).collect();
        lines.join("; ")
    }
}

/// `eth1: AF_XDP, native XDP, copy (why), 3 frames lost`.
fn describe(fact: &Fact, counted: &XskStatistics) -> String {
    let mode = match (fact.joined, fact.up) {
        (false, _) => "not joined",
        (true, false) => "link down",
        (true, true) => &fact.mode,
    };
    let why = match fact.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    let lost = match lost(counted) {
        0 => String::new(),
        count => format!(", {count} frames lost"),
    };
    format!("{}: {mode}{why}{lost}", fact.interface)
}

/// Frames that an uplink has lost outside of the data plane.
pub fn lost(counted: &XskStatistics) -> u64 {
    counted.dropped + counted.ring_full + counted.no_buffer + counted.invalid
}

async fn follow(
    engine: Arc<Mutex<Engine>>,
    mut kernel: netlink::Watch,
    mut broken: Broken,
    told: Arc<watch::Sender<Arc<[Fact]>>>,
    losses: Arc<Losses>,
) {
    let mut looked = Instant::now();
    loop {
        let (engine_now, told_now, snapshot) = (engine.clone(), told.clone(), kernel.snapshot());
        let losses_now = losses.clone();
        let reconciled = spawn_blocking(move || {
            let mut engine = lock(&engine_now);
            let facts: Arc<[Fact]> = Arc::from(engine.reconcile(&snapshot));
            // What is lost from now on is news, of those too that are new.
            losses_now.look(&facts, |number| lost(&engine.statistics(number)));
            publish(&told_now, facts);
        });
        // It panicked, or the runtime is going: either way there is nothing to follow with.
        let Ok(()) = reconciled.await else { return };
        let look = || {
            let (engine, losses, facts) = (engine.clone(), losses.clone(), told.borrow().clone());
            spawn_blocking(move || {
                let mut engine = lock(&engine);
                losses.look(&facts, |number| lost(&engine.statistics(number)));
                engine.look()
            })
        };
        if !something_to_do(&engine, &mut kernel, &mut broken, &mut looked, look).await {
            return;
        }
    }
}

fn publish(told: &watch::Sender<Arc<[Fact]>>, facts: Arc<[Fact]>) {
    told.send_if_modified(|known| {
        let differs = *known != facts;
        *known = facts;
        differs
    });
}

/// Waits for it. False when the kernel is not followed any more. However much happens to the kernel
/// meanwhile, there is a look some time after `looked`, the time of the last one.
async fn something_to_do(
    engine: &Arc<Mutex<Engine>>,
    kernel: &mut netlink::Watch,
    broken: &mut Broken,
    looked: &mut Instant,
    look: impl Fn() -> JoinHandle<bool>,
) -> bool {
    loop {
        tokio::select! {
            changed = kernel.changed() => match changed {
                Ok((_, kinds)) if kinds.any(Kinds::LINKS | Kinds::ADDRESSES) => return true,
                Ok(_) => {}
                Err(error) => {
                    tracing::error!("uplinks do not follow the kernel any more: {error}");
                    return false;
                }
            },
            Some((number, why)) = broken.0.recv() => {
                lock(engine).broke(number, &why);
                return true;
            }
            () = sleep_until(*looked + LOOK) => {
                let found = look().await.unwrap_or(false);
                *looked = Instant::now();
                if found {
                    return true;
                }
            }
        }
    }
}

/// The workers' queues.
struct Queues(Arc<StartGate>);

impl Ports for Queues {
    fn attach(&mut self, number: u32, queue: u16, port: Port) -> Result<(), String> {
        let slot = PortSlot::uplink(number);
        let attached = self.0.attach(QueueId { slot, pair: queue }, port);
        attached.map(drop).map_err(|e| e.to_string())
    }

    fn detach(&mut self, number: u32, queue: u16) {
        let slot = PortSlot::uplink(number);
        // A worker that is gone has dropped it already.
        drop(self.0.detach(QueueId { slot, pair: queue }));
    }
}

/// The number of an uplink's slot.
fn number(slot: PortSlot) -> Option<u32> {
    slot.is_uplink().then(|| slot.0 - PortSlot::uplink(0).0)
}

fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    // What a panic left half done the next comparison with the kernel's tables finishes.
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
