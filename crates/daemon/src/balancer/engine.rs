//! The data plane in the kernel: crates/balancer, loaded when it is needed first, and a follower that tells it the ways to
//! the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use balancer::{Balancer, Follower, Options, Reason, ServiceKey, State, Tunnel, Weight};
use rustix::net::{AddressFamily, SocketType, netdevice};
use tokio::runtime::Handle;
use xdp::{Feature, Interfaces};

use super::book::{Compiled, Target};
use super::model::{Encapsulation, Key, Protocol, ServerState};
use super::plane::{Counters, Interface, Mode, Plane, Stats, Way};
use super::probe::Door;
use crate::kernel::Kernel;

/// The balancer, once somebody has asked for it.
pub struct Engine {
    options: Options,
    programs: Arc<Mutex<Interfaces>>,
    kernel: Arc<Kernel>,
    running: Mutex<Option<Arc<Running>>>,
    /// Of health checks: opened by the first.
    door: Mutex<Option<Arc<Door>>>,
}

/// A loaded program and those who keep it up to date.
pub struct Running {
    pub balancer: Mutex<Balancer>,
    follower: Follower,
    interfaces: Mutex<Attached>,
}

/// Where the programs run.
struct Attached {
    /// All features', whose programs are chained.
    programs: Arc<Mutex<Interfaces>>,
    /// By name: the interface, a bond's ports behind it, and how it is attached.
    by_name: BTreeMap<String, (Vec<u32>, Mode)>,
}

impl Engine {
    /// Nothing is loaded yet.
    pub fn new(max_flows: u32, programs: Arc<Mutex<Interfaces>>, kernel: Arc<Kernel>) -> Engine {
        Engine {
            options: Options {
                max_flows,
                ..Options::default()
            },
            programs,
            kernel,
            running: Mutex::new(None),
            door: Mutex::new(None),
        }
    }

    /// What runs, if anything does.
    pub fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    /// The way of health checks, made if need be. The error is a sentence.
    pub fn door(&self) -> Result<Arc<Door>, String> {
        let mut door = lock(&self.door);
        if let Some(door) = &*door {
            return Ok(door.clone());
        }
        let running = self.running().ok_or("nothing is balanced")?;
        let made = Arc::new(Door::open(&lock(&running.balancer))?);
        let interfaces = lock(&running.interfaces);
        let ports: Vec<u32> = interfaces.by_name.values().map(|(ports, _)| ports[0]).collect();
        for ifindex in ports {
            let mut programs = lock(&interfaces.programs);
            let added = programs.add(ifindex, Feature::Probe, &made.program, None);
            added.map_err(|e| format!("the program of health checks: {e}"))?;
        }
        Ok(door.insert(made).clone())
    }

    /// Loads the program unless that is done.
    fn start(&self) -> Result<Arc<Running>, String> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Ok(running.clone());
        }
        let failed = |e: balancer::Error| format!("the load balancer cannot be started: {e}");
        let mirror = Handle::current().block_on(self.kernel.mirror())?;
        let started = Arc::new(Running {
            balancer: Mutex::new(Balancer::new(&self.options).map_err(failed)?),
            follower: Follower::new(mirror).map_err(failed)?,
            interfaces: Mutex::new(Attached {
                programs: self.programs.clone(),
                by_name: BTreeMap::new(),
            }),
        });
        let following = started.clone();
        Handle::current().spawn(async move {
            // It ends with the daemon.
            if let Err(e) = following.follower.run(&following.balancer).await {
                tracing::error!("the load balancer no longer follows routes and neighbours: {e}");
            }
        });
        tracing::info!(
            "the load balancer's program is loaded, for {} flows",
            self.options.max_flows
        );
        Ok(running.insert(started).clone())
    }
}

impl Plane for Engine {
    fn apply(&self, services: &[Compiled]) -> Result<(), String> {
        if services.is_empty() && self.running().is_none() {
            return Ok(());
        }
        let running = self.start()?;
        let services = services.iter().map(service).collect::<Result<Vec<_>, _>>();
        let services: balancer::Services = services.map_err(|e| e.to_string())?.into_iter().collect();
        let known = lock(&running.balancer).services().targets();
        // New servers get a second to say where they are, so that their first flows find them.
        if !services.targets().is_subset(&known) {
            let learnt = Handle::current().block_on(running.follower.learn(&running.balancer, &services));
            learnt.map_err(|e| e.to_string())?;
        }
        lock(&running.balancer).apply(services).map_err(|e| e.to_string())
    }

    fn interfaces(&self) -> Vec<Interface> {
        let Some(running) = self.running() else {
            return vec![];
        };
        let interfaces = lock(&running.interfaces);
        let interface = |(name, (_, mode)): (&String, &(Vec<u32>, Mode))| Interface {
            name: name.clone(),
            mode: Some(*mode),
        };
        interfaces.by_name.iter().map(interface).collect()
    }

    fn add_interface(&self, name: &str, mode: Option<Mode>) -> Result<Interface, String> {
        let running = self.start()?;
        // In this order everywhere: door, interfaces, balancer.
        let door = lock(&self.door);
        let mut interfaces = lock(&running.interfaces);
        let old = interfaces.by_name.get(name).map(|(_, mode)| *mode);
        if let Some(old) = old.filter(|old| mode.is_none_or(|mode| mode == *old)) {
            return Ok(Interface {
                name: name.to_owned(),
                mode: Some(old),
            });
        }
        let found = running
            .follower
            .interfaces(name)
            .map_err(|e| format!("interface {name}: {e}"))?;
        interfaces.remove(name, &running)?;
        let added = interfaces.add(name, &found, mode, &running, door.as_deref());
        if added.is_err() {
            interfaces.remove(name, &running)?;
        }
        let mode = added.map_err(|why| format!("interface {name}: {why}"))?;
        tracing::info!("balancing on {name}, {mode:?}");
        Ok(Interface {
            name: name.to_owned(),
            mode: Some(mode),
        })
    }

    fn delete_interface(&self, name: &str) -> Result<bool, String> {
        let Some(running) = self.running() else {
            return Ok(false);
        };
        let existed = lock(&running.interfaces).remove(name, &running)?;
        if existed {
            tracing::info!("{name} is given back");
        }
        Ok(existed)
    }

    fn stats(&self) -> Result<Stats, String> {
        let Some(running) = self.running() else {
            return Ok(Stats::default());
        };
        let counters = lock(&running.balancer).counters().map_err(|e| e.to_string())?;
        let server =
            |((key, address), counters): (&(ServiceKey, std::net::IpAddr), &balancer::ServerCounters)| {
                let counters = Counters {
                    packets: counters.packets,
                    bytes: counters.bytes,
                    flows: counters.flows,
                };
                ((model_key(key), *address), counters)
            };
        let drop = |reason: Reason| (reason.name(), reason.description(), counters.reason(reason));
        Ok(Stats {
            servers: counters.servers.iter().map(server).collect(),
            drops: Reason::ALL.into_iter().map(drop).collect(),
        })
    }

    fn ways(&self) -> BTreeMap<Target, Way> {
        let Some(running) = self.running() else {
            return BTreeMap::new();
        };
        let balancer = lock(&running.balancer);
        let hops = balancer.hops();
        let mut targets = BTreeSet::new();
        for service in balancer.services().iter() {
            targets.extend(
                service
                    .servers()
                    .map(|server| (model_key(&service.key()), server.address())),
            );
        }
        let way = |address| match hops.get(&address) {
            Some(hop) => Way::Known {
                interface: interface_name(hop.ifindex),
                mac: hop.mac.to_string(),
            },
            None => Way::Unknown("no route to it, or its next hop does not answer".into()),
        };
        targets
            .into_iter()
            .map(|target| (target, way(target.1)))
            .collect()
    }
}

impl Attached {
    /// Runs the programs on an interface; a bond's ports are made known.
    fn add(
        &mut self,
        name: &str,
        found: &[balancer::Interface],
        mode: Option<Mode>,
        running: &Running,
        door: Option<&Door>,
    ) -> Result<Mode, String> {
        let said = |e: &dyn std::fmt::Display| e.to_string();
        let mut balancer = lock(&running.balancer);
        let first = found.first().ok_or("there is no such interface")?.ifindex;
        let mut programs = lock(&self.programs);
        let added = programs.add(first, Feature::Balancer, balancer.program(), mode);
        let (mode, _) = added.map_err(|e| said(&e))?;
        let ports = found.iter().map(|interface| interface.ifindex).collect();
        self.by_name.insert(name.to_owned(), (ports, mode));
        if let Some(door) = door {
            let added = programs.add(first, Feature::Probe, &door.program, None);
            added.map_err(|e| said(&e))?;
        }
        let mut known = found.iter().map(|interface| balancer.set_interface(*interface));
        known.try_for_each(|known| known.map_err(|e| said(&e)))?;
        Ok(mode)
    }

    /// Whether it was there.
    fn remove(&mut self, name: &str, running: &Running) -> Result<bool, String> {
        let Some((ports, _)) = self.by_name.remove(name) else {
            return Ok(false);
        };
        let mut balancer = lock(&running.balancer);
        for port in ports {
            lock(&self.programs).remove(port, Feature::Probe);
            lock(&self.programs).remove(port, Feature::Balancer);
            let forgotten = balancer.forget_interface(port);
            forgotten.map_err(|e| format!("interface {name}: {e}"))?;
        }
        Ok(true)
    }
}

fn service(compiled: &Compiled) -> Result<balancer::Service, balancer::Error> {
    let mut service = balancer::Service::new(library_key(&compiled.key)?).sticky(compiled.sticky);
    let tunnel = tunnel(compiled.encapsulation);
    for (address, weight, state) in &compiled.servers {
        let state = match state {
            ServerState::Up => State::Up,
            ServerState::Draining => State::Draining,
            ServerState::Down => State::Down,
        };
        let server = balancer::Server::new(*address)?
            .weight(Weight::new(*weight)?)
            .state(state)
            .tunnel(tunnel);
        service.set(server);
    }
    Ok(service)
}

/// The library's key of a service. An error: its address is none of a host, which the model has refused before.
pub fn library_key(key: &Key) -> Result<ServiceKey, balancer::Error> {
    let protocol = match key.protocol {
        Protocol::Tcp => balancer::Protocol::Tcp,
        Protocol::Udp => balancer::Protocol::Udp,
        Protocol::Sctp => balancer::Protocol::Sctp,
    };
    ServiceKey::new(key.vip, protocol, key.port.and_then(NonZeroU16::new))
}

fn model_key(key: &ServiceKey) -> Key {
    let protocol = match key.protocol() {
        balancer::Protocol::Tcp => Protocol::Tcp,
        balancer::Protocol::Udp => Protocol::Udp,
        balancer::Protocol::Sctp => Protocol::Sctp,
    };
    Key {
        vip: key.vip(),
        protocol,
        port: key.port().map(NonZeroU16::get),
    }
}

fn tunnel(encapsulation: Encapsulation) -> Tunnel {
    // A port of zero is refused where encapsulations are read.
    let port = |port| NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN);
    match encapsulation {
        Encapsulation::L2 => Tunnel::None,
        Encapsulation::Ipip => Tunnel::Ipip,
        Encapsulation::Gre => Tunnel::Gre,
        Encapsulation::Fou(to) => Tunnel::Fou { port: port(to) },
        Encapsulation::Gue(to) => Tunnel::Gue { port: port(to) },
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
