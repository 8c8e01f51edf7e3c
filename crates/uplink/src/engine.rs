//! Brings what is in line with the plan, again and again: joins, leaves, and joins anew what has
//! changed under its ports.
//!
//! The caller hands in the kernel's tables whenever they change ([`Engine::reconcile`]), tells of
//! ports that broke ([`Engine::broke`]), and calls now and then for what sends no message
//! ([`Engine::look`]). What failed is tried again with each of these. Nothing here waits but for a
//! queue that the kernel is letting go of.

mod handover;
mod joining;
mod reserved;
mod tap;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::port::Port;
use io::xsk::{XskHandle, XskStatistics};
use netlink::Snapshot;
use sys::ethtool;
use xdp::Interfaces;

use crate::dpdk_uplink::DpdkUplink;
use crate::facts::Fact;
use crate::interface::Mode;
use crate::layout::{Counters, QUEUES, UPLINKS};
use crate::plan::{UplinkSettings, Wanted, plan};
use crate::program::{Groups, Program};
use crate::station::Station;
pub use handover::is_tap_name;
use handover::{HandedOver, Holder};
use joining::Active;
use reserved::Reserved;

/// Where ports go: the workers, or a test.
pub trait Ports: Send {
    /// Gives the port of an uplink's queue to whoever moves its frames.
    ///
    /// # Errors
    /// A sentence on why nobody takes it: the process is stopping.
    fn attach(&mut self, number: u32, queue: u16, port: Port) -> Result<(), String>;

    /// Ends it: when this returns its socket is closed.
    fn detach(&mut self, number: u32, queue: u16);
}

/// Who takes packets out of what comes by an uplink before its packet socket gets them, at tc
/// ingress.
pub trait Arrivals: Send + Sync {
    /// An uplink with this interface is joined by such a socket.
    fn join(&self, number: u32, ifindex: u32);

    /// That one is going to be left: from now on its port gets all packets.
    fn leave(&self, number: u32);
}

/// How uplinks are joined, all of them.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// VXLAN's UDP port.
    pub port: u16,
    /// Multicast groups that carry flooded frames.
    pub groups: Option<Groups>,
    /// Frames that wait in each direction of each queue at most.
    pub frames: u32,
    /// Join by packet sockets also what could be joined by XDP.
    pub packet: bool,
    /// Ask the kernel to do its part within our calls while a port is polled.
    pub busy_poll: bool,
}

/// The uplinks of a host.
pub struct Engine {
    settings: UplinkSettings,
    options: Options,
    /// Shared with the other features that run programs on interfaces.
    interfaces: Arc<Mutex<Interfaces>>,
    ports: Box<dyn Ports>,
    arrivals: Option<Arc<dyn Arrivals>>,
    /// Loaded with the first uplink; the error is a sentence.
    program: Option<Result<Program, String>>,
    /// By number; a name keeps its number until another one needs it.
    names: Vec<String>,
    active: BTreeMap<u32, Active>,
    endpoints: Vec<(IpAddr, u16)>,
    /// Why the program does not know them.
    untold: Option<String>,
    reserved: Reserved,
    /// We, on a TAP device.
    station: Arc<Station>,
    /// The device that DPDK drives, an uplink under the name of the kernel's end of it.
    dpdk: Option<Arc<DpdkUplink>>,
    /// An interface has had one of our addresses, or has been named: from then on we wait for it to
    /// return.
    found: bool,
    facts: Vec<Fact>,
    homeless: Vec<IpAddr>,
    stopped: bool,
    /// Another process is to go on.
    still: bool,
    /// It does not, and what was said meanwhile was not heard.
    missed: bool,
    /// What another process hands over.
    handed: HandedOver,
    /// Who has sockets outlive this process, if anybody does.
    holder: Option<Holder>,
}

impl Engine {
    /// No uplink yet.
    pub fn new(
        settings: UplinkSettings,
        options: Options,
        interfaces: Arc<Mutex<Interfaces>>,
        ports: Box<dyn Ports>,
    ) -> Engine {
        Engine {
            station: Arc::new(Station::new(&settings.addresses, options.port)),
            settings,
            options,
            interfaces,
            ports,
            arrivals: None,
            program: None,
            names: Vec::new(),
            active: BTreeMap::new(),
            dpdk: None,
            endpoints: Vec::new(),
            untold: None,
            reserved: Reserved::new(options.port),
            facts: Vec::new(),
            found: false,
            homeless: Vec::new(),
            stopped: false,
            still: false,
            missed: false,
            handed: HandedOver::default(),
            holder: None,
        }
    }

    /// With this device of DPDK's.
    pub fn with_dpdk(mut self, dpdk: Option<Arc<DpdkUplink>>) -> Engine {
        self.dpdk = dpdk;
        self
    }

    /// With somebody who takes packets before packet sockets do.
    pub fn with_arrivals(mut self, arrivals: Arc<dyn Arrivals>) -> Engine {
        self.arrivals = Some(arrivals);
        self
    }

    /// Says which interfaces are named, which the next [`reconcile`](Self::reconcile) joins and
    /// leaves.
    pub fn name(&mut self, interfaces: &[String]) {
        self.settings.interfaces = interfaces.to_vec();
    }

    /// Does what the kernel's tables ask for. Gives all uplinks as they are then.
    pub fn reconcile(&mut self, kernel: &Snapshot) -> &[Fact] {
        if self.stopped || self.still {
            return &self.facts;
        }
        self.missed = false;
        let plan = plan(&self.settings, kernel);
        self.reserved
            .follow(plan.endpoints.iter().map(|(ip, _)| *ip));
        if plan.endpoints != self.endpoints || self.untold.is_some() {
            self.endpoints.clone_from(&plan.endpoints);
            self.set_endpoints();
        }
        let mut wanted: BTreeMap<u32, &Wanted> = BTreeMap::new();
        for one in &plan.uplinks {
            if let Some(number) = self.number(&one.name, |number| wanted.contains_key(&number)) {
                wanted.insert(number, one);
            }
        }
        self.found |= !plan.uplinks.is_empty();
        let tap = self
            .settings
            .tap
            .clone()
            .filter(|_| plan.nowhere && !self.found);
        let tap = tap.and_then(|name| Some((self.number(&name, |_| false)?, name)));
        let is_gone = |number: &u32| {
            !wanted.contains_key(number) && tap.as_ref().is_none_or(|(tap, _)| tap != number)
        };
        let gone: Vec<u32> = self.active.keys().copied().filter(is_gone).collect();
        for number in gone {
            self.leave(number, "it is not named, and has none of our addresses");
        }
        let mut facts: Vec<Fact> = wanted
            .into_iter()
            .map(|(number, wanted)| self.follow(number, wanted))
            .collect();
        facts.extend(tap.map(|(number, name)| self.follow_tap(number, &name, kernel)));
        if plan.homeless != self.homeless {
            let on_tap = facts.iter().any(|fact| fact.tap && fact.joined);
            for ip in plan.homeless.iter().filter(|_| !on_tap) {
                tracing::warn!(
                    "no interface has our address {ip}: hosts reach us there as soon as one has it"
                );
            }
            self.homeless.clone_from(&plan.homeless);
        }
        self.facts = facts;
        &self.facts
    }

    /// A port has broken, and why: its uplink is joined anew with the next
    /// [`reconcile`](Self::reconcile).
    pub fn broke(&mut self, number: u32, why: &str) {
        if let Some(active) = self.active.get_mut(&number) {
            active.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Looks at what changes without a message: queues that were added or taken away, another
    /// program that is out of the way. True when [`reconcile`](Self::reconcile) has something to
    /// do. To be called every second or so, on a thread of the network namespace.
    pub fn look(&mut self) -> bool {
        if self.still {
            return false;
        }
        let mut stale = self.missed;
        for (number, active) in &mut self.active {
            let name = self.names.get(*number as usize).map_or("", String::as_str);
            match &active.mode {
                Mode::Xdp { .. } => {
                    let has = ethtool::receive_queues(name).map(|count| count.min(QUEUES));
                    if let Some(count) = has.filter(|count| *count != u32::from(active.queues)) {
                        let why =
                            || format!("it has {count} queue(s) now and not {}", active.queues);
                        active.broken.get_or_insert_with(why);
                        stale = true;
                    }
                }
                Mode::Packet { .. } if !self.options.packet => stale |= active.retry.look(),
                Mode::Dpdk { .. } => {
                    if let Some(why) = self.dpdk.as_ref().and_then(|dpdk| dpdk.look()) {
                        active.broken.get_or_insert(why);
                        stale = true;
                    }
                }
                Mode::Packet { .. } | Mode::Tap { .. } => {}
            }
        }
        let unjoined = self
            .facts
            .iter()
            .any(|fact| !fact.joined && fact.ifindex != 0);
        stale || unjoined || self.untold.is_some() || !self.reserved.has_all()
    }

    /// Our station on the TAP device: whoever looks for next hops asks it for neighbours.
    pub fn station(&self) -> Arc<Station> {
        self.station.clone()
    }

    /// All uplinks as they were after the last [`reconcile`](Self::reconcile).
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// What the program has counted on all uplinks.
    pub fn counters(&self) -> Counters {
        match &self.program {
            Some(Ok(program)) => program.counters().unwrap_or_default(),
            _ => Counters::default(),
        }
    }

    /// What the kernel has counted for the sockets of an uplink, all queues together.
    pub fn statistics(&self, number: u32) -> XskStatistics {
        let active = self.active.get(&number);
        if let (Some(Mode::Dpdk { .. }), Some(dpdk)) =
            (active.map(|active| &active.mode), &self.dpdk)
        {
            let counted = dpdk.counters();
            return XskStatistics {
                dropped: counted.errors,
                ring_full: counted.missed,
                no_buffer: counted.no_buffer,
                invalid: counted.unsent,
            };
        }
        let sockets = active.map_or(&[][..], |active| &active.sockets);
        let each = sockets.iter().filter_map(XskHandle::statistics);
        each.fold(XskStatistics::default(), |sum, one| XskStatistics {
            dropped: sum.dropped + one.dropped,
            ring_full: sum.ring_full + one.ring_full,
            no_buffer: sum.no_buffer + one.no_buffer,
            invalid: sum.invalid + one.invalid,
        })
    }

    /// All interfaces are the kernel's alone again, for good.
    pub fn stop(&mut self) {
        self.stopped = true;
        let numbers: Vec<u32> = self.active.keys().copied().collect();
        for number in numbers {
            self.leave(number, "stopping");
        }
        self.reserved.follow(std::iter::empty());
        self.facts.clear();
    }

    /// The number of a name: its own, the first that was never used, or that of an uplink which is
    /// gone. `None`: there are too many. `given`: what others got a moment ago.
    fn number(&mut self, name: &str, given: impl Fn(u32) -> bool) -> Option<u32> {
        if let Some(known) = self.names.iter().position(|known| known == name) {
            return Some(known as u32);
        }
        if self.names.len() < UPLINKS_USED {
            self.names.push(name.to_owned());
            return Some(self.names.len() as u32 - 1);
        }
        let is_gone = |number: &u32| {
            let is_there = self.facts.iter().any(|fact| fact.number == *number);
            !is_there && !self.active.contains_key(number) && !given(*number)
        };
        let number = (0..UPLINKS_USED as u32).find(is_gone)?;
        name.clone_into(&mut self.names[number as usize]);
        Some(number)
    }

    /// Loads the program when it is first wanted; what the kernel said once it will say again.
    fn load(&mut self) {
        if self.program.is_none() {
            let loaded =
                Program::load(self.options.port, self.options.groups).map_err(|e| e.to_string());
            self.program = Some(loaded);
            self.set_endpoints();
        }
    }

    fn program(&self) -> Result<&Program, String> {
        match &self.program {
            Some(Ok(program)) => Ok(program),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the program is not loaded".to_owned()),
        }
    }

    fn set_endpoints(&mut self) {
        let Some(Ok(program)) = &self.program else {
            return;
        };
        let error = program.set_endpoints(&self.endpoints).err();
        let untold = error.map(|error| format!("the program does not know our addresses: {error}"));
        if let Some(why) = untold
            .as_ref()
            .filter(|why| self.untold.as_ref() != Some(why))
        {
            tracing::error!("uplinks: {why}");
        }
        self.untold = untold;
    }
}

/// The data plane has room for fewer than the program.
const UPLINKS_USED: usize = if UPLINKS < 16 { UPLINKS as usize } else { 16 };

fn lock(interfaces: &Mutex<Interfaces>) -> MutexGuard<'_, Interfaces> {
    // Each call leaves the list whole.
    interfaces.lock().unwrap_or_else(PoisonError::into_inner)
}
