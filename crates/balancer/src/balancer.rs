//! The balancer: a loaded program, the configuration that is in force, and the operations on it. Every operation either is
//! in force when it returns or has changed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bytemuck::Zeroable;
use wire::Mac;
use xdp::{Feature, Interfaces, Mode, Program, Table, objects};

use crate::compile::{self, Register};
use crate::counters::{Counters, Meters};
use crate::error::Error;
use crate::flows::{Flow, FlowState, Memory};
use crate::halves::Halves;
use crate::hash::{self, Tuple};
use crate::hop::Hop;
use crate::layout::{self, BUCKET_SLOTS, LINKS, MAGLEV_SIZE, TICK_MASK, TICK_SHIFT};
use crate::model::{Server, Service, ServiceKey, Services};
use crate::numbers::Numbers;

/// What is fixed when a balancer is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Flows that are remembered: 1,024 to 67,108,864. Each costs 80 bytes of kernel memory (two 8-byte words, for the table to be half
    /// empty, and their parties' names, 32 bytes each).
    pub max_flows: u32,
    /// Services: 1 to 65,534. Each costs 64 KiB of kernel memory (two Maglev tables).
    pub max_services: u16,
    /// Servers of all services together: 1 to 65,534; a server of two services counts twice.
    pub max_servers: u16,
    /// How long an established flow is kept for sure though it is silent: 5 seconds to 17 hours. Also how long a client of a sticky
    /// service, or the port of a datagram's sender, keeps its server without a packet.
    pub idle: Duration,
    /// Of all hashes. Balancers that shall choose alike share it.
    pub seed: u64,
    /// Who says that a packet's hops are used up or that it is too big. Without one the service's address does.
    pub source_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub source_v6: Option<Ipv6Addr>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_flows: 262_144,
            max_services: 256,
            max_servers: 4_096,
            idle: Duration::from_secs(300),
            seed: 0x6275_7474_6572_666c,
            source_v4: None,
            source_v6: None,
        }
    }
}

/// An interface as the program needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// Which.
    pub ifindex: u32,
    /// Its MAC: frames to others are not ours.
    pub mac: Mac,
    /// What [`Hop::ifindex`] says for it: of a bond's port the bond, of all others itself.
    pub out: u32,
}

impl Interface {
    /// One that is no bond's port.
    pub fn new(ifindex: u32, mac: Mac) -> Self {
        Interface {
            ifindex,
            mac,
            out: ifindex,
        }
    }
}

/// A load balancer in the kernel. Dropped, its interfaces are the kernel's again.
#[derive(Debug)]
pub struct Balancer {
    // The first to be dropped: packets stop coming before the program goes.
    interfaces: Interfaces,
    program: Program,
    links: Table<u32, layout::Link>,
    halves: Halves,
    meters: Meters,
    memory: Memory,
    settings: layout::Settings,
    register: Register,
    services: Services,
    hops: BTreeMap<IpAddr, Hop>,
    known: BTreeMap<u32, Interface>,
}

impl Balancer {
    /// Loads the program, attached nowhere, without services.
    ///
    /// # Errors
    /// An option is out of its range; the kernel refuses (older than 5.18, no CAP_BPF and CAP_NET_ADMIN, no memory).
    pub fn new(options: &Options) -> Result<Self, Error> {
        let settings = settings(options)?;
        let program = Program::load("balancer", objects::BALANCER, |object| {
            configure(object, &settings)
        })?;
        Ok(Balancer {
            interfaces: Interfaces::new(),
            links: program.table("links")?,
            halves: Halves::new(&program, settings)?,
            meters: Meters::new(&program)?,
            memory: Memory::new(&program, settings)?,
            settings,
            register: Register {
                services: Numbers::new(settings.max_services as u16),
                servers: Numbers::new(settings.max_servers as u16),
            },
            services: Services::new(),
            hops: BTreeMap::new(),
            known: BTreeMap::new(),
            program,
        })
    }

    /// Runs on an interface, in native mode or, where that is refused, in generic mode; gives which.
    ///
    /// # Errors
    /// There is a program already, ours or another's; no such interface; its index clashes.
    pub fn attach(&mut self, interface: Interface, mode: Option<Mode>) -> Result<Mode, Error> {
        self.set_interface(interface)?;
        match self
            .interfaces
            .add(interface.ifindex, Feature::Balancer, &self.program, mode)
        {
            Ok((mode, _)) => Ok(mode),
            Err(error) => {
                if self.interfaces.features(interface.ifindex).is_empty() {
                    self.forget_interface(interface.ifindex)?;
                }
                Err(error.into())
            }
        }
    }

    /// Gives an interface back, with a bond its ports.
    ///
    /// # Errors
    /// The kernel refuses to write the map.
    pub fn detach(&mut self, ifindex: u32) -> Result<(), Error> {
        self.interfaces.remove(ifindex, Feature::Balancer);
        let its = self
            .known
            .values()
            .filter(|known| known.ifindex == ifindex || known.out == ifindex);
        let its: Vec<u32> = its.map(|known| known.ifindex).collect();
        its.into_iter().try_for_each(|known| self.forget_interface(known))
    }

    /// The program, for somebody whose [`Interfaces`] several features share: attach it there, and tell the interface by
    /// [`set_interface`](Self::set_interface).
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Takes packets of an interface, or learns that its MAC is another.
    ///
    /// # Errors
    /// Its index clashes with another's.
    pub fn set_interface(&mut self, interface: Interface) -> Result<(), Error> {
        let ifindex = interface.ifindex;
        let clash = |other: &&u32| **other != ifindex && *other % LINKS == ifindex % LINKS;
        if let Some(other) = self.known.keys().find(clash) {
            return Err(Error::InterfaceClash {
                ifindex,
                other: *other,
            });
        }
        let link = layout::Link {
            ifindex,
            out: interface.out,
            mac: interface.mac.0,
            reserved: [0; 2],
        };
        self.links.set(&(ifindex % LINKS), &link)?;
        self.known.insert(ifindex, interface);
        Ok(())
    }

    /// Leaves an interface's packets alone.
    ///
    /// # Errors
    /// The kernel refuses to write the map.
    pub fn forget_interface(&mut self, ifindex: u32) -> Result<(), Error> {
        if self.known.remove(&ifindex).is_some() {
            self.links.set(&(ifindex % LINKS), &layout::Link::zeroed())?;
        }
        Ok(())
    }

    /// The interfaces whose packets are taken.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.known.values()
    }

    /// What the program was loaded with.
    pub fn settings(&self) -> &layout::Settings {
        &self.settings
    }

    /// The number that the program knows a server by, for as long as it is in the configuration.
    pub fn server_number(&self, key: &ServiceKey, address: IpAddr) -> Option<u16> {
        self.register.servers.of(&(*key, address))
    }

    /// The configuration in force.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Puts a whole configuration in force, at once. Flows of servers that stay go on.
    ///
    /// # Errors
    /// More services or servers than there is room for.
    pub fn apply(&mut self, services: Services) -> Result<(), Error> {
        let keys: BTreeSet<_> = services.iter().map(Service::key).collect();
        let servers: BTreeSet<_> = services
            .iter()
            .flat_map(|service| service.servers().map(|server| (service.key(), server.address())))
            .collect();
        let mut register = self.register.clone();
        let full = |what, room: u32, asked| Error::Full {
            what,
            room: room as usize - 1,
            asked,
        };
        if !register.services.assign(&keys) {
            return Err(full("services", self.settings.max_services, keys.len()));
        }
        if !register.servers.assign(&servers) {
            return Err(full("servers", self.settings.max_servers, servers.len()));
        }
        let image = compile::compile(
            &self.settings,
            &services,
            &self.hops,
            &register,
            self.halves.image(),
        )?;
        for (owner, number) in register.servers.iter() {
            if self.register.servers.of(owner) != Some(number) {
                self.meters.reset(number)?;
            }
        }
        self.halves.publish(image)?;
        self.register = register;
        self.services = services;
        Ok(())
    }

    /// Adds a service.
    ///
    /// # Errors
    /// It is there already; there is no room.
    pub fn add_service(&mut self, service: Service) -> Result<(), Error> {
        let key = service.key();
        self.change(|services| match services.set(service) {
            None => Ok(()),
            Some(_) => Err(Error::ServiceExists(key)),
        })
    }

    /// Changes a service as a whole, its servers included.
    ///
    /// # Errors
    /// It is not there; there is no room.
    pub fn set_service(&mut self, service: Service) -> Result<(), Error> {
        let key = service.key();
        self.change(|services| services.set(service).map(|_| ()).ok_or(Error::NoService(key)))
    }

    /// Takes a service out; its packets are the kernel's.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_service(&mut self, key: ServiceKey) -> Result<(), Error> {
        self.change(|services| services.remove(&key).map(|_| ()).ok_or(Error::NoService(key)))
    }

    /// Adds a server to a service.
    ///
    /// # Errors
    /// There is no such service, it has this server already, there is no room.
    pub fn add_server(&mut self, key: ServiceKey, server: Server) -> Result<(), Error> {
        let address = server.address();
        self.change(|services| match service(services, key)?.set(server) {
            None => Ok(()),
            Some(_) => Err(Error::ServerExists { key, address }),
        })
    }

    /// Changes a server: weight, state, tunnel.
    ///
    /// # Errors
    /// There is no such service or server.
    pub fn set_server(&mut self, key: ServiceKey, server: Server) -> Result<(), Error> {
        let address = server.address();
        self.change(|services| match service(services, key)?.set(server) {
            Some(_) => Ok(()),
            None => Err(Error::NoServer { key, address }),
        })
    }

    /// Takes a server out of a service; its flows go to others.
    ///
    /// # Errors
    /// There is no such service or server.
    pub fn remove_server(&mut self, key: ServiceKey, address: IpAddr) -> Result<(), Error> {
        self.change(|services| match service(services, key)?.remove(address) {
            Some(_) => Ok(()),
            None => Err(Error::NoServer { key, address }),
        })
    }

    /// Says how servers are reached: all ways that are known, by server address. A server without one gets nothing.
    ///
    /// # Errors
    /// The kernel refuses to write the maps.
    pub fn set_hops(&mut self, hops: BTreeMap<IpAddr, Hop>) -> Result<(), Error> {
        if hops == self.hops {
            return Ok(());
        }
        let image = compile::compile(
            &self.settings,
            &self.services,
            &hops,
            &self.register,
            self.halves.image(),
        )?;
        self.halves.publish(image)?;
        self.hops = hops;
        Ok(())
    }

    /// The ways that are known.
    pub fn hops(&self) -> &BTreeMap<IpAddr, Hop> {
        &self.hops
    }

    /// All counters.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.meters.read(&self.register)
    }

    /// How many flows each server has: those that are not closed and were seen within [`Options::idle`]. Reads the whole flow table.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn live_flows(&self) -> Result<BTreeMap<(ServiceKey, IpAddr), u64>, Error> {
        self.memory.live(&self.register)
    }

    /// Up to `limit` flows that got past their first packet. Reads the whole flow table.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn flows(&self, limit: usize) -> Result<Vec<Flow>, Error> {
        self.memory.flows(&self.register, limit)
    }

    /// Where a flow's next packet goes, and what is remembered of it: `None` when nothing is, and the answer is its client's server (of a
    /// sticky service) or Maglev's. No answer at all: the flow's address and port have no service, or none of its servers is up.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn explain(&self, tuple: &Tuple) -> Result<Option<(IpAddr, Option<FlowState>)>, Error> {
        let Some(service) = self.service_of(tuple) else {
            return Ok(None);
        };
        let number = self
            .register
            .services
            .of(&service.key())
            .expect("in force, so registered");
        let owner = |number| {
            let mut all = self.register.servers.iter();
            all.find(|(owner, its)| *its == number && owner.0 == service.key())
                .map(|(owner, _)| owner.1)
        };
        if let Some((server, state)) = self.memory.find(tuple, number)?
            && let Some(address) = owner(server)
        {
            return Ok(Some((address, Some(state))));
        }
        if service.sticky
            && let Some(address) = self.memory.find_client(tuple, number)?.and_then(owner)
        {
            return Ok(Some((address, None)));
        }
        let hash = match service.sticky {
            true => hash::of_client(self.settings.seed, tuple.client, tuple.vip),
            false => hash::of_flow(self.settings.seed, tuple),
        };
        let table = &self.halves.image().maglevs[&u32::from(number)];
        let slot = hash::reduce(hash, MAGLEV_SIZE as u32);
        Ok(owner(table.slots[slot as usize]).map(|address| (address, None)))
    }

    fn service_of(&self, tuple: &Tuple) -> Option<&Service> {
        let port = std::num::NonZeroU16::new(tuple.port);
        let key = |port| ServiceKey::new(tuple.vip, tuple.protocol, port).ok();
        let own = key(port).and_then(|key| self.services.get(&key));
        own.or_else(|| key(None).and_then(|key| self.services.get(&key)))
    }

    fn change(&mut self, edit: impl FnOnce(&mut Services) -> Result<(), Error>) -> Result<(), Error> {
        let mut services = self.services.clone();
        edit(&mut services)?;
        self.apply(services)
    }
}

fn service(services: &mut Services, key: ServiceKey) -> Result<&mut Service, Error> {
    services.get_mut(&key).ok_or(Error::NoService(key))
}

/// Addresses and services have eight times the room that they need in their tables.
const SPARSE: u32 = 8;

fn settings(options: &Options) -> Result<layout::Settings, Error> {
    let within = |option, value: u64, least: u64, most: u64| {
        let good = (least..=most).contains(&value);
        good.then_some(value).ok_or(Error::Option {
            option,
            value,
            least,
            most,
        })
    };
    let flows = within("max_flows", options.max_flows.into(), 1 << 10, 1 << 26)?;
    let services = within("max_services", options.max_services.into(), 1, 65_534)?;
    let servers = within("max_servers", options.max_servers.into(), 1, 65_534)?;
    let idle = within("idle (seconds)", options.idle.as_secs(), 5, 17 * 3600)?;
    let places = (services as u32 * SPARSE).next_power_of_two();
    Ok(layout::Settings {
        seed: options.seed,
        buckets: (2 * flows).div_ceil(BUCKET_SLOTS as u64) as u32,
        vips: places,
        ports: places,
        // Number 0 is nobody's.
        max_services: services as u32 + 1,
        max_servers: servers as u32 + 1,
        idle: ((idle * 1_000_000_000).div_ceil(1 << TICK_SHIFT) as u32).min(TICK_MASK),
        source4: options.source_v4.map_or([0; 4], |ip| ip.octets()),
        source6: options.source_v6.map_or([0; 16], |ip| ip.octets()),
        padding: [0; 4],
    })
}

fn configure(object: &mut libbpf_rs::OpenObject, settings: &layout::Settings) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        match map.name().to_str().unwrap_or_default() {
            "vips" => map.set_max_entries(2 * settings.vips)?,
            "ports" => map.set_max_entries(2 * settings.ports)?,
            "maglevs" => map.set_max_entries(2 * settings.max_services)?,
            "servers" => map.set_max_entries(2 * settings.max_servers)?,
            "server_counters" => map.set_max_entries(settings.max_servers)?,
            "flows" => map.set_max_entries(settings.buckets)?,
            "flow_names" => map.set_max_entries(settings.buckets * BUCKET_SLOTS as u32)?,
            name if name.ends_with(".rodata.settings") => {
                map.set_initial_value(bytemuck::bytes_of(settings))?
            }
            _ => {}
        }
    }
    Ok(())
}
