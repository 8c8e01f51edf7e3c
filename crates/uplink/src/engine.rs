//! Brings what is in line with the plan, again and again: joins, leaves, and joins anew what has changed under its ports.
//!
//! The caller hands in the kernel's tables whenever they change ([`Engine::reconcile`]), tells of ports that broke
//! ([`Engine::broke`]), and calls now and then for what nobody tells ([`Engine::look`]). What failed is tried again with each of
//! these. Nothing here waits but for a queue that the kernel is letting go of.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::ethtool;
use io::port::Port;
use io::xsk::{Link, XskHandle, XskStatistics};
use netlink::Snapshot;
use xdp::Interfaces;

use crate::facts::Fact;
use crate::interface::{self, Joined, Mode, Wish};
use crate::layout::{Counters, QUEUES, UPLINKS};
use crate::plan::{Plan, Settings, Wanted, plan};
use crate::program::{Groups, Program};

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

/// How uplinks are joined, all of them.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// VXLAN's UDP port.
    pub port: u16,
    /// Multicast groups that carry flooded frames.
    pub groups: Option<Groups>,
    /// Frames that wait in each direction of each queue at most.
    pub frames: u32,
    /// Ask the kernel to do its part within our calls while a port is polled.
    pub busy_poll: bool,
}

/// The uplinks of a host.
pub struct Engine {
    settings: Settings,
    options: Options,
    /// Shared with the other features that run programs on interfaces.
    interfaces: Arc<Mutex<Interfaces>>,
    ports: Box<dyn Ports>,
    /// Loaded with the first uplink; the error is a sentence.
    program: Option<Result<Program, String>>,
    /// By number; a name keeps its number for as long as the process lives.
    names: Vec<String>,
    active: BTreeMap<u32, Active>,
    endpoints: Vec<(IpAddr, u16)>,
    /// A UDP socket on the port of each address, so that the kernel does not answer for what comes to it past the program, and so
    /// that nobody else takes the port. Nobody reads them.
    reserved: BTreeMap<IpAddr, UdpSocket>,
    facts: Vec<Fact>,
    homeless: Vec<IpAddr>,
    looks: u32,
    stopped: bool,
}

/// An interface that is joined.
struct Active {
    ifindex: u32,
    link: Arc<Link>,
    mode: Mode,
    queues: u16,
    mtu_max: u32,
    sockets: Vec<XskHandle>,
    /// A better mode is to be tried.
    retry: bool,
    /// A port of it has broken.
    broken: Option<String>,
}

impl Engine {
    /// No uplink yet.
    pub fn new(
        settings: Settings,
        options: Options,
        interfaces: Arc<Mutex<Interfaces>>,
        ports: Box<dyn Ports>,
    ) -> Engine {
        Engine {
            settings,
            options,
            interfaces,
            ports,
            program: None,
            names: Vec::new(),
            active: BTreeMap::new(),
            endpoints: Vec::new(),
            reserved: BTreeMap::new(),
            facts: Vec::new(),
            homeless: Vec::new(),
            looks: 0,
            stopped: false,
        }
    }

    /// Does what the kernel's tables ask for. Gives all uplinks as they are then.
    pub fn reconcile(&mut self, kernel: &Snapshot) -> &[Fact] {
        if self.stopped {
            return &self.facts;
        }
        let plan = plan(&self.settings, kernel);
        self.reserve(&plan);
        if plan.endpoints != self.endpoints {
            self.endpoints.clone_from(&plan.endpoints);
            self.tell_endpoints();
        }
        let wanted: BTreeMap<u32, &Wanted> = plan
            .uplinks
            .iter()
            .filter_map(|wanted| Some((self.number(&wanted.name)?, wanted)))
            .collect();
        let gone: Vec<u32> = self
            .active
            .keys()
            .copied()
            .filter(|number| !wanted.contains_key(number))
            .collect();
        for number in gone {
            self.leave(number, "it has none of our addresses any more");
        }
        let facts = wanted
            .into_iter()
            .map(|(number, wanted)| self.follow(number, wanted))
            .collect();
        if plan.homeless != self.homeless {
            for ip in &plan.homeless {
                tracing::warn!(
                    "no interface has our address {ip}: hosts reach us there as soon as one has it"
                );
            }
            self.homeless.clone_from(&plan.homeless);
        }
        self.facts = facts;
        &self.facts
    }

    /// A port has broken, and why: its uplink is joined anew with the next [`reconcile`](Self::reconcile).
    pub fn broke(&mut self, number: u32, why: &str) {
        if let Some(active) = self.active.get_mut(&number) {
            active.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Looks at what nobody tells: queues that were added or taken away, another program that is out of the way. True when
    /// [`reconcile`](Self::reconcile) has something to do. To be called every second or so, on a thread of the network namespace.
    pub fn look(&mut self) -> bool {
        self.looks += 1;
        let mut stale = false;
        for (number, active) in &mut self.active {
            let name = self.names.get(*number as usize).map_or("", String::as_str);
            match &active.mode {
                Mode::Xdp { .. } => {
                    let has = ethtool::receive_queues(name).map(|count| count.min(QUEUES));
                    if let Some(count) = has.filter(|count| *count != u32::from(active.queues)) {
                        let why = || format!("it has {count} queue(s) now and not {}", active.queues);
                        active.broken.get_or_insert_with(why);
                        stale = true;
                    }
                }
                Mode::Packet { .. } if self.looks.is_multiple_of(RETRY_LOOKS) => {
                    active.retry = true;
                    stale = true;
                }
                Mode::Packet { .. } => {}
            }
        }
        let unjoined = self.facts.iter().any(|fact| !fact.joined && fact.ifindex != 0);
        stale || unjoined || self.reserved.len() < self.endpoints.len()
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
        let sockets = self.active.get(&number).map_or(&[][..], |active| &active.sockets);
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
        self.reserved.clear();
        self.facts.clear();
    }

    /// The number of a name: its own, or the first free one. `None`: there are too many.
    fn number(&mut self, name: &str) -> Option<u32> {
        let known = self.names.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        (number < UPLINKS_USED).then_some(number as u32)
    }

    /// One uplink: joined, changed, left or joined anew.
    fn follow(&mut self, number: u32, wanted: &Wanted) -> Fact {
        let mut fact = Fact {
            number,
            interface: wanted.name.clone(),
            ifindex: 0,
            joined: false,
            mode: String::new(),
            why: String::new(),
            queues: 0,
            mtu: 0,
            up: false,
            mac: None,
            addresses: wanted.addresses.clone(),
        };
        let link = match &wanted.link {
            Ok(link) => link,
            Err(why) => {
                self.leave(number, why);
                fact.why.clone_from(why);
                return fact;
            }
        };
        let up = link.up && link.running;
        (fact.ifindex, fact.mtu, fact.up, fact.mac) = (link.index, link.mtu, up, link.mac);
        if let Some(why) = self.active.get(&number).and_then(|active| active.is_stale(link)) {
            self.leave(number, &why);
        }
        let done = match self.active.get_mut(&number) {
            None => self.join(number, wanted, link),
            Some(active) => {
                active.link.change(link.mtu, up);
                match std::mem::take(&mut active.retry) {
                    true => self.improve(number, wanted, link),
                    false => Ok(()),
                }
            }
        };
        if let Err(why) = done {
            if self
                .facts
                .iter()
                .all(|known| known.number != number || known.why != why)
            {
                tracing::warn!("uplink '{}' cannot be joined: {why}", wanted.name);
            }
            fact.why = why;
            return fact;
        }
        if let Some(active) = self.active.get(&number) {
            fact.joined = true;
            fact.mode = active.mode.to_string();
            fact.why = active.mode.why().to_owned();
            fact.queues = u32::from(active.queues);
        }
        fact
    }

    /// Joins in the best way there is.
    fn join(&mut self, number: u32, wanted: &Wanted, link: &netlink::Link) -> Result<(), String> {
        self.load();
        let wish = self.wish(wanted, number, link);
        let joined = match self.program() {
            Err(why) => interface::join_packet(&wish, self.options.port, why).map_err(|e| e.to_string()),
            Ok(program) => {
                let mut interfaces = lock(&self.interfaces);
                interface::join(program, &mut interfaces, &wish, self.options.port).map_err(|e| e.to_string())
            }
        };
        self.install(number, wanted, &wish, joined?)
    }

    /// Tries XDP in the place of a packet socket; what is stays when it is refused again.
    fn improve(&mut self, number: u32, wanted: &Wanted, link: &netlink::Link) -> Result<(), String> {
        let wish = self.wish(wanted, number, link);
        let Ok(program) = self.program() else {
            return Ok(());
        };
        let joined = interface::join_xdp(program, &mut lock(&self.interfaces), &wish);
        let Ok(joined) = joined else { return Ok(()) };
        self.leave(number, "XDP is possible now");
        self.install(number, wanted, &wish, joined)
    }

    fn wish(&self, wanted: &Wanted, number: u32, link: &netlink::Link) -> Wish {
        Wish {
            name: wanted.name.clone(),
            ifindex: link.index,
            number,
            queues: link.rx_queues.max(1),
            link: Arc::new(Link::new(link.mtu, link.up && link.running)),
            frames: self.options.frames,
            mode: wanted.only_generic.map(|_| xdp::Mode::Generic),
            busy_poll: self.options.busy_poll,
        }
    }

    fn install(&mut self, number: u32, wanted: &Wanted, wish: &Wish, joined: Joined) -> Result<(), String> {
        let Joined {
            ports,
            sockets,
            mut mode,
            mtu_max,
        } = joined;
        if let (Mode::Xdp { why_generic, .. }, Some(why)) = (&mut mode, wanted.only_generic) {
            *why_generic = Some(why.to_owned());
        }
        let queues = ports.len() as u16;
        let remark = match mode.why() {
            "" => String::new(),
            why => format!("; {why}"),
        };
        let mtu = wish.link.mtu();
        tracing::info!(
            "uplink '{}' is joined: {mode}, {queues} queue(s), MTU {mtu}{remark}",
            wanted.name
        );
        let active = Active {
            ifindex: wish.ifindex,
            link: wish.link.clone(),
            queues,
            mtu_max,
            sockets,
            retry: false,
            broken: None,
            mode,
        };
        self.active.insert(number, active);
        for (queue, port) in (0..).zip(ports) {
            if let Err(why) = self.ports.attach(number, queue, Port::from(port)) {
                self.leave(number, &why);
                return Err(why);
            }
        }
        Ok(())
    }

    /// The interface first, so that the kernel gets what nobody would read; then the ports.
    fn leave(&mut self, number: u32, why: &str) {
        let Some(active) = self.active.remove(&number) else {
            return;
        };
        let name = self.names.get(number as usize).map_or("?", String::as_str);
        tracing::info!("uplink '{name}' is left: {why}");
        if let (Mode::Xdp { .. }, Some(Ok(program))) = (&active.mode, &self.program) {
            interface::leave(program, &mut lock(&self.interfaces), active.ifindex);
        }
        for queue in 0..active.queues {
            self.ports.detach(number, queue);
        }
    }

    /// Loads the program when it is first wanted; what the kernel said once it will say again.
    fn load(&mut self) {
        if self.program.is_none() {
            let loaded = Program::load(self.options.port, self.options.groups).map_err(|e| e.to_string());
            self.program = Some(loaded);
            self.tell_endpoints();
        }
    }

    fn program(&self) -> Result<&Program, String> {
        match &self.program {
            Some(Ok(program)) => Ok(program),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the program is not loaded".to_owned()),
        }
    }

    fn tell_endpoints(&self) {
        if let Some(Ok(program)) = &self.program
            && let Err(error) = program.set_endpoints(&self.endpoints)
        {
            tracing::error!("the uplink's program does not know our addresses: {error}");
        }
    }

    /// Takes the port on each address that is there, and lets go of those that are not.
    fn reserve(&mut self, plan: &Plan) {
        self.reserved
            .retain(|ip, _| plan.endpoints.iter().any(|(here, _)| here == ip));
        for &(ip, _) in &plan.endpoints {
            if self.reserved.contains_key(&ip) {
                continue;
            }
            match UdpSocket::bind((ip, self.options.port)) {
                Ok(socket) => drop(self.reserved.insert(ip, socket)),
                // An address that is being looked for in its network yet, or another VXLAN endpoint's.
                Err(error) => tracing::debug!("UDP port {} of {ip} is not ours: {error}", self.options.port),
            }
        }
    }
}

impl Active {
    /// Why it has to be joined anew, if it has to.
    fn is_stale(&self, link: &netlink::Link) -> Option<String> {
        if self.ifindex != link.index {
            return Some("another interface has its name".to_owned());
        }
        if link.mtu > self.mtu_max {
            return Some(format!("MTU {} is more than its buffers were made for", link.mtu));
        }
        self.broken.clone()
    }
}

/// A better mode is tried so often: every so many looks.
const RETRY_LOOKS: u32 = 5;

/// The data plane has room for fewer than the program.
const UPLINKS_USED: usize = if UPLINKS < 16 { UPLINKS as usize } else { 16 };

fn lock(interfaces: &Mutex<Interfaces>) -> MutexGuard<'_, Interfaces> {
    // Each call leaves the list whole.
    interfaces.lock().unwrap_or_else(PoisonError::into_inner)
}
