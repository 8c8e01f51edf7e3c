//! The data plane in the kernel: crates/balancer, loaded when it is needed first, and a follower
//! that tells it the next hops of the servers.

mod attached;
mod doorway;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use balancer::{Balancer, Follower, Options, Reason, Server, ServerCounters, ServiceKey, Services};
use control::{InterfaceStatus, KnownHealth, Target};
use netlink::Kinds;
use rustix::net::{AddressFamily, SocketType, netdevice};
use sys::handed::{Handed, Items};
use tokio::runtime::Handle;
use xdp::{Interfaces, Mode};

use self::attached::Attached;
use self::doorway::Doorway;
use super::handover;
use super::plane::{Counters, ServerHop, Stats};
use super::probe::Door;
use crate::held::{Held, bytes};
use crate::kernel::Kernel;
use crate::states::InterfaceStates;

/// What is held for the next daemon, by its kind and name there; the maps are handed over as that,
/// too.
const HELD: &str = "balancer";
const MAPS: &str = "maps";
const TABLES: &str = "tables";
const HEALTH: &str = "health";

/// The balancer, once somebody has asked for it.
pub struct Engine {
    options: Options,
    programs: Arc<Mutex<Interfaces>>,
    kernel: Arc<Kernel>,
    states: InterfaceStates,
    running: Mutex<Option<Arc<Running>>>,
    /// Interfaces that come are another process's to take; changed under the lock of `running`.
    still: AtomicBool,
    /// What the daemon before has run by, until it is loaded here.
    handed: Mutex<Option<Handed>>,
    /// The tables of one that was killed or stopped, until they are in force.
    tables: Mutex<Option<Vec<u8>>>,
    /// Where what the next daemon is to find is held.
    held: Option<Arc<Held>>,
    /// How often services or servers' health have changed.
    changes: AtomicU64,
    /// Nothing is taken down: the next daemon finds all as it is.
    staying: AtomicBool,
    /// The way of health checks into the room: opened by the first check.
    doorway: Arc<Doorway>,
}

/// A loaded program and those who keep it up to date.
pub struct Running {
    pub balancer: Mutex<Balancer>,
    pub follower: Follower,
    interfaces: Mutex<Attached>,
    /// Names of interfaces, by their number, that lose what is sent to servers out of them.
    losing: Mutex<BTreeMap<u32, String>>,
}

impl Running {
    /// What is sent out of by programs in the drivers of interfaces: to servers, and back to
    /// clients.
    fn native_outputs(&self) -> BTreeSet<u32> {
        let native = lock(&self.interfaces).native();
        if native.is_empty() {
            return native;
        }
        let balancer = lock(&self.balancer);
        let ways = balancer.hops().values().map(|hop| hop.ifindex);
        ways.chain(native).collect()
    }

    /// Remembers which interfaces lose frames now, and says what is new about that.
    fn note_losing(&self, now: BTreeMap<u32, String>) {
        let before = std::mem::replace(&mut *lock(&self.losing), now.clone());
        for (ifindex, name) in &now {
            if !before.contains_key(ifindex) {
                tracing::warn!("balancing: {}, whatever health checks find", loss(name));
            }
        }
        for (ifindex, name) in before {
            if !now.contains_key(&ifindex) {
                tracing::info!("balancing: nothing that is sent to {name} is lost any more");
            }
        }
    }
}

/// What is wrong with an interface that loses what is sent to it, in a sentence.
pub fn loss(name: &str) -> String {
    format!(
        "what is sent out of {name} from XDP is lost, as its driver takes no such frames (a veth \
         does when its other end has GRO or a program; mode tc sends everywhere)"
    )
}

impl Engine {
    /// Nothing is loaded yet. What becomes of its interfaces is left in `states`. `handed` is what
    /// the daemon [hands over](Self::hand_over) whose place this one takes, or what is held of one
    /// that has ended; in `held` this one's is.
    pub fn new(
        options: Options,
        programs: Arc<Mutex<Interfaces>>,
        kernel: Arc<Kernel>,
        states: InterfaceStates,
        mut handed: Items,
        held: Option<Arc<Held>>,
    ) -> Engine {
        let tables = handed.remove(TABLES).and_then(|item| bytes(TABLES, item));
        Engine {
            options,
            programs,
            kernel,
            states,
            running: Mutex::new(None),
            still: AtomicBool::new(false),
            handed: Mutex::new(handed.remove(MAPS)),
            tables: Mutex::new(tables),
            held,
            changes: AtomicU64::new(0),
            staying: AtomicBool::new(false),
            doorway: Arc::default(),
        }
    }

    /// What runs, if anything does.
    pub fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    /// The way of health checks, made if need be. The error is a sentence.
    pub fn door(&self) -> Result<Arc<Door>, String> {
        let running = self.running().ok_or("nothing is balanced")?;
        self.doorway.open(&running)
    }

    /// How often the way of health checks has been found to be none.
    pub fn breaks(&self) -> u64 {
        self.doorway.breaks()
    }

    /// Why a check says nothing of its server that began when there were so many
    /// [`breaks`](Self::breaks), and has failed by now. It may ask the kernel.
    pub fn hindrance(&self, breaks: u64) -> Option<String> {
        self.doorway.hindrance(breaks)
    }

    /// Loads the program unless that is done.
    fn start(&self) -> Result<Arc<Running>, String> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Ok(running.clone());
        }
        let failed = |e: balancer::Error| format!("the load balancer cannot be started: {e}");
        let mirror = Handle::current().block_on(self.kernel.mirror())?;
        let mut balancer = self.load().map_err(failed)?;
        if let Some(held) = &self.held {
            held.hold_item(HELD, MAPS, &balancer.hand_over().map_err(failed)?);
            let held = held.clone();
            balancer.keep_tables(move |tables| held.hold_bytes(HELD, TABLES, tables));
        }
        let mut interfaces = Attached::new(self.programs.clone(), self.states.clone());
        if self.still.load(Ordering::Relaxed) {
            interfaces.stand_still();
        }
        let started = Arc::new(Running {
            balancer: Mutex::new(balancer),
            follower: Follower::new(mirror).map_err(failed)?,
            interfaces: Mutex::new(interfaces),
            losing: Mutex::default(),
        });
        let following = started.clone();
        Handle::current().spawn(async move {
            // It ends with the daemon.
            if let Err(e) = following.follower.run(&following.balancer).await {
                tracing::error!("the load balancer no longer follows routes and neighbours: {e}");
            }
        });
        Handle::current().spawn(follow_interfaces(started.clone(), self.doorway.clone()));
        Handle::current().spawn(doorway::look_after(started.clone(), self.doorway.clone()));
        Handle::current().spawn(follow_losses(started.clone()));
        tracing::info!(
            "the load balancer's program is loaded, for {} flows",
            self.options.max_flows
        );
        Ok(running.insert(started).clone())
    }

    /// The program, with the maps of the daemon before where there are some. One that was killed
    /// or stopped may have been of another version, or have had other limits or another seed: then
    /// flows begin anew.
    fn load(&self) -> Result<Balancer, balancer::Error> {
        let Some(handed) = lock(&self.handed).take() else {
            return Balancer::new(&self.options);
        };
        let mut tables = lock(&self.tables);
        let Some(left) = &*tables else {
            return Balancer::handed(&self.options, handed);
        };
        let why = match Balancer::handed(&self.options, handed) {
            Ok(balancer) if balancer.can_take_up(left) => return Ok(balancer),
            Ok(_) => "its tables cannot be".to_owned(),
            Err(e) => e.to_string(),
        };
        tracing::warn!("flows that the daemon before has balanced begin anew: {why}");
        *tables = None;
        Balancer::new(&self.options)
    }

    /// Goes on where a daemon that was killed or stopped has ended. The error is a sentence.
    pub fn take_up_left(&self) -> Result<(), String> {
        let Some(left) = lock(&self.tables).take() else {
            return Ok(());
        };
        self.take_up(Some(&left))?;
        if self.running().is_some() {
            tracing::info!("flows stay with the servers that the daemon before has chosen");
        }
        Ok(())
    }

    /// Lets go of what is held, unless the next daemon is to find it.
    pub fn release(&self) {
        if let Some(held) = &self.held {
            held.release_items(HELD);
        }
    }

    /// How often services or servers' health have changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Has what is known of servers' health held, for a daemon after one that is killed.
    pub fn hold_health(&self, known: &KnownHealth) {
        if let Some(held) = &self.held {
            held.hold_bytes(HELD, HEALTH, &handover::write(known));
        }
    }

    /// From now on nothing changes, and nothing is taken down: programs balance as they do, and
    /// the next daemon goes on with that. Whether there is anything.
    pub fn stay(&self) -> bool {
        let Some(running) = self.running().filter(|_| self.held.is_some()) else {
            return false;
        };
        self.staying.store(true, Ordering::Relaxed);
        // What is dropped lets go of interfaces.
        std::mem::forget((running, self.programs.clone()));
        true
    }

    fn is_staying(&self) -> bool {
        self.staying.load(Ordering::Relaxed)
    }

    /// What the daemon that takes this one's place runs by.
    pub fn hand_over(&self) -> Result<Items, String> {
        let Some(running) = self.running() else {
            return Ok(Items::new());
        };
        let maps = lock(&running.balancer).hand_over();
        let maps = maps.map_err(|e| e.to_string())?;
        Ok(Items::from([(MAPS.to_owned(), maps)]))
    }

    /// What that daemon goes on with; nothing changes here from now on. `None`: nothing runs.
    pub fn leave(&self) -> Option<Vec<u8>> {
        let running = self.running()?;
        Some(lock(&running.balancer).leave())
    }

    /// From now on interfaces that come are another process's to take. Those that go, too, are
    /// followed only when this one [goes on](Self::go_on).
    pub fn stand_still(&self) {
        if let Some(running) = self.set_still(true) {
            lock(&running.interfaces).stand_still();
        }
    }

    /// The other process has not taken this one's place, or this one has taken its: changes that
    /// have waited are made, and interfaces that came or went meanwhile are followed.
    pub fn go_on(&self) {
        let Some(running) = self.set_still(false) else {
            return;
        };
        if let Err(e) = lock(&running.balancer).go_on() {
            tracing::error!("the load balancer is as it was before the upgrade: {e}");
        }
        let door = self.doorway.door();
        lock(&running.interfaces).go_on(&running, door.as_deref());
    }

    /// For what is [started](Self::start) from now on; gives what runs already.
    fn set_still(&self, still: bool) -> Option<Arc<Running>> {
        let running = lock(&self.running);
        self.still.store(still, Ordering::Relaxed);
        running.clone()
    }

    /// Goes on with what the daemon before has [left](Self::leave). The error is a sentence.
    pub fn take_up(&self, left: Option<&[u8]>) -> Result<(), String> {
        let Some(running) = self.running() else {
            return Ok(());
        };
        let mut balancer = lock(&running.balancer);
        match left {
            Some(left) => balancer.take_up(left).map_err(|e| e.to_string()),
            None if balancer.is_held() => {
                Err("the daemon before does not say where flows go".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Makes the services these, all or nothing. The error is a sentence.
    pub fn apply(&self, services: Services) -> Result<(), String> {
        if self.is_staying() || services.is_empty() && self.running().is_none() {
            return Ok(());
        }
        let running = self.start()?;
        self.changes.fetch_add(1, Ordering::Relaxed);
        let known = lock(&running.balancer).services().targets();
        let applied = match services.targets().is_subset(&known) {
            true => lock(&running.balancer).apply(services),
            false => {
                Handle::current().block_on(running.follower.apply(&running.balancer, services))
            }
        };
        applied.map_err(|e| e.to_string())
    }

    /// The interfaces that it works on, by name.
    pub fn interfaces(&self) -> Vec<InterfaceStatus> {
        let Some(running) = self.running() else {
            return vec![];
        };
        let interfaces = lock(&running.interfaces);
        interfaces.list()
    }

    /// Names of those that lose what services send out of them, be they balanced on or the way to
    /// servers alone.
    pub fn losing(&self) -> BTreeSet<String> {
        let losing = |running: Arc<Running>| lock(&running.losing).values().cloned().collect();
        self.running().map(losing).unwrap_or_default()
    }

    /// What is not as the kernel's routes, neighbours and interfaces say, and why no health check
    /// can be made, a sentence each.
    pub fn troubles(&self) -> Vec<String> {
        let Some(running) = self.running() else {
            return vec![];
        };
        let troubles = running.follower.troubles();
        let said = |why| format!("the load balancer is not as the kernel's tables say: {why}");
        let unchecked = self.doorway.trouble();
        let unchecked = unchecked.map(|why| format!("no health check can be made: {why}"));
        let troubles = troubles.borrow();
        troubles.iter().map(said).chain(unchecked).collect()
    }

    /// One of them.
    pub fn interface(&self, name: &str) -> Option<InterfaceStatus> {
        let running = self.running()?;
        lock(&running.interfaces).status(name)
    }

    /// Begins to work on an interface, or works on it in another mode. The error is a sentence.
    pub fn add_interface(&self, name: &str, mode: Option<Mode>) -> Result<InterfaceStatus, String> {
        let running = self.start()?;
        // In this order everywhere: door, interfaces, balancer.
        let door = self.doorway.door();
        lock(&running.interfaces).want(name, mode, &running, door.as_deref())
    }

    /// Leaves an interface and takes it again, for a NIC that has lost the program. The error is a
    /// sentence; it is wanted as before.
    pub fn reattach_interface(&self, name: &str) -> Result<InterfaceStatus, String> {
        let running = self.running().ok_or_else(|| attached::not_balanced(name))?;
        let door = self.doorway.door();
        lock(&running.interfaces).reattach(name, &running, door.as_deref())
    }

    /// Gives an interface back; whether it was one.
    pub fn delete_interface(&self, name: &str) -> bool {
        if self.is_staying() {
            return true;
        }
        let running = self.running();
        running.is_some_and(|running| lock(&running.interfaces).give_back(name, &running))
    }

    /// Undoes what was done to an interface since it was said to be so. The error is a sentence.
    pub fn restore_interface(
        &self,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String> {
        let running = match (self.running(), &before) {
            (Some(running), _) => running,
            (None, None) => return Ok(()),
            (None, Some(_)) => self.start()?,
        };
        let door = self.doorway.door();
        lock(&running.interfaces).restore(name, before, &running, door.as_deref())
    }

    /// Counters, at one moment.
    pub fn stats(&self) -> Result<Stats, String> {
        let Some(running) = self.running() else {
            return Ok(Stats::default());
        };
        let counters = lock(&running.balancer)
            .counters()
            .map_err(|e| e.to_string())?;
        let server = |((key, address), counters): (&(ServiceKey, IpAddr), &ServerCounters)| {
            let counters = Counters {
                packets: counters.packets,
                bytes: counters.bytes,
                flows: counters.flows,
            };
            ((*key, *address), counters)
        };
        let packets = |reason: Reason| (reason, counters.reason(reason));
        Ok(Stats {
            servers: counters.servers.iter().map(server).collect(),
            reasons: Reason::ALL.into_iter().map(packets).collect(),
        })
    }

    /// Where the servers' packets go.
    pub fn next_hops(&self) -> BTreeMap<Target, ServerHop> {
        let Some(running) = self.running() else {
            return BTreeMap::new();
        };
        let balancer = lock(&running.balancer);
        let losing = lock(&running.losing);
        let way = |server: &Server| match balancer.way(server) {
            Ok(hop) => ServerHop::Known {
                interface: interface_name(hop.ifindex),
                mac: hop.mac.to_string(),
                loss: losing.get(&hop.ifindex).map(|name| loss(name)),
            },
            Err(why) => ServerHop::Unknown(why.to_string()),
        };
        let mut all = BTreeMap::new();
        for service in balancer.services().iter() {
            let target = |server: &Server| (service.key(), server.address());
            all.extend(
                service
                    .servers()
                    .map(|server| (target(server), way(server))),
            );
        }
        all
    }
}

/// What is held of a daemon that was killed or stopped, and what it knew of servers' health.
pub fn left(held: &Held) -> (Items, Option<KnownHealth>) {
    let mut items = held.left_items(HELD);
    // Flows say nothing without the tables that their numbers are of.
    if !items.contains_key(TABLES) {
        items.clear();
    }
    let health = items.remove(HEALTH).and_then(|item| bytes(HEALTH, item));
    let read = |bytes: Vec<u8>| {
        let said = |e: &String| tracing::warn!("servers' health is not taken up: {e}");
        handover::read(&bytes).inspect_err(said).ok()
    };
    (items, health.and_then(read))
}

/// Takes interfaces that come back and lets go of those that went, for ever.
async fn follow_interfaces(running: Arc<Running>, doorway: Arc<Doorway>) {
    let mut watch = running.follower.watch();
    loop {
        tokio::task::block_in_place(|| {
            let door = doorway.door();
            lock(&running.interfaces).follow(&running, door.as_deref());
        });
        // An interface that was wanted meanwhile is looked at by who wanted it.
        loop {
            match watch.changed().await {
                Ok((_, kinds)) if kinds.any(Kinds::LINKS) => break,
                Ok(_) => (),
                // The follower says so.
                Err(_) => return,
            }
        }
    }
}

/// Asks after each look at the kernel's tables, every two seconds at least, which interfaces lose
/// frames, for ever: a health check comes from a socket, and may find a server well that no client
/// reaches.
async fn follow_losses(running: Arc<Running>) {
    let mut looked = running.follower.looked();
    let mut failed = false;
    while looked.changed().await.is_ok() {
        // Who takes an interface holds what is asked for here, and waits for this runtime.
        let ways = tokio::task::block_in_place(|| running.native_outputs());
        match running.follower.lose_frames(ways).await {
            Ok(losing) => running.note_losing(losing),
            Err(e) if !failed => {
                failed = true;
                tracing::warn!("which interfaces lose frames cannot be found out: {e}");
            }
            Err(_) => {}
        }
    }
}

/// An interface's name; its number where it has gone.
fn interface_name(ifindex: u32) -> String {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let name = socket.and_then(|socket| netdevice::index_to_name(&socket, ifindex));
    name.unwrap_or_else(|_| ifindex.to_string())
}

/// Each operation on what is locked is a whole: what a panicking thread left is usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
