//! The balancer: a loaded program, the configuration that is in force, and the operations on it.
//! Every operation either is in force when it returns or has changed nothing; while another
//! process's balancer is about to go on in this one's place, it waits ([`Balancer::is_held`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use bytemuck::Zeroable;
use wire::Mac;
use xdp::{Interfaces, Program, Table, objects};

use crate::attached_interface::AttachedInterface;
use crate::compile::{self, Image, Register};
use crate::counters::Meters;
use crate::error::Error;
use crate::flows::{Memory, now_ns};
use crate::halves::Halves;
use crate::handover::{KeepTables, Maps};
use crate::hop::{self, Hop, NoWay};
use crate::layout::{self, LINKS};
use crate::numbers::Numbers;
use crate::options::{self, Options};
use model::ServiceKey;
use model::{Server, Service, Services};

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
    pub(crate) attached: Interfaces,
    pub(crate) interfaces: Vec<AttachedInterface>,
    pub(crate) program: Program,
    links: Table<u32, layout::Link>,
    pub(crate) halves: Halves,
    pub(crate) meters: Meters,
    pub(crate) memory: Memory,
    pub(crate) settings: layout::ProgramSettings,
    pub(crate) settle: Duration,
    pub(crate) register: Register,
    pub(crate) services: Services,
    pub(crate) hops: BTreeMap<IpAddr, Hop>,
    /// What is in force stays so: `services` and `hops` wait ([`is_held`](Self::is_held)).
    pub(crate) held: bool,
    pub(crate) known: BTreeMap<u32, Interface>,
    pub(crate) keep: Option<KeepTables>,
}

impl Balancer {
    /// Loads the program, for XDP and for tc ingress, attached nowhere, without services.
    ///
    /// # Errors
    /// An option is out of its range; the kernel refuses (older than 5.18, no CAP_BPF and
    /// CAP_NET_ADMIN, no memory).
    pub fn new(options: &Options) -> Result<Self, Error> {
        Self::load(options, None)
    }

    /// With maps of its own, or some of another process's.
    pub(crate) fn load(options: &Options, others: Option<&Maps>) -> Result<Self, Error> {
        let settings = options::settings(options)?;
        let program = Program::load_both(
            "balancer",
            objects::BALANCER,
            objects::tc::BALANCER,
            |object| {
                options::configure(object, &settings)?;
                others.map_or(Ok(()), |maps| maps.put_into(object))
            },
        )?;
        Ok(Balancer {
            attached: Interfaces::new(),
            interfaces: Vec::new(),
            links: program.table("links")?,
            halves: Halves::new(&program, settings)?,
            meters: Meters::new(&program)?,
            memory: Memory::new(&program, settings)?,
            settings,
            settle: options.settle,
            register: Register {
                services: Numbers::new(settings.max_services as u16),
                servers: Numbers::new(settings.max_servers as u16),
            },
            services: Services::new(),
            hops: BTreeMap::new(),
            held: false,
            known: BTreeMap::new(),
            keep: None,
            program,
        })
    }

    /// The program, for somebody whose [`Interfaces`] several features share: attach it there, and
    /// tell the interface by [`set_interface`](Self::set_interface).
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
            self.links
                .set(&(ifindex % LINKS), &layout::Link::zeroed())?;
        }
        Ok(())
    }

    /// The interfaces whose packets are taken.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.known.values()
    }

    /// What the program was loaded with.
    pub fn settings(&self) -> &layout::ProgramSettings {
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
        self.apply_with(services, self.hops.clone())
    }

    /// Makes the services these, and sets how all servers are reached, as
    /// [`set_hops`](Self::set_hops) does: a server that is new and whose next hop is known has its
    /// share at once.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_with(
        &mut self,
        services: Services,
        hops: BTreeMap<IpAddr, Hop>,
    ) -> Result<(), Error> {
        self.put_in_force(services, hops, None)
    }

    /// [`apply_with`](Self::apply_with), with the tables of `before` in the place of those in
    /// force.
    pub(crate) fn put_in_force(
        &mut self,
        services: Services,
        hops: BTreeMap<IpAddr, Hop>,
        before: Option<&Image>,
    ) -> Result<(), Error> {
        if self.held {
            (self.services, self.hops) = (services, hops);
            return Ok(());
        }
        let keys: BTreeSet<_> = services.iter().map(Service::key).collect();
        let servers: BTreeSet<_> = services
            .iter()
            .flat_map(|service| {
                service
                    .servers()
                    .map(|server| (service.key(), server.address()))
            })
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
            &hops,
            &register,
            before.unwrap_or(self.halves.image()),
            now_ns(),
        )?;
        for (owner, number) in register.servers.iter() {
            if self.register.servers.of(owner) != Some(number) {
                self.meters.reset(number)?;
            }
        }
        self.publish(Some(register), image)?;
        self.services = services;
        self.hops = hops;
        Ok(())
    }

    /// Puts tables in force, and other numbers with them where there are some: everything that is
    /// in force comes to be so here.
    pub(crate) fn publish(
        &mut self,
        register: Option<Register>,
        image: Image,
    ) -> Result<(), Error> {
        // Before any flow goes by tables that nobody else knows.
        if let Some(keep) = &mut self.keep {
            keep.write(register.as_ref().unwrap_or(&self.register), &image);
        }
        if let Err(error) = self.halves.publish(image) {
            if let Some(keep) = &mut self.keep {
                keep.write(&self.register, self.halves.image());
            }
            return Err(error);
        }
        if let Some(register) = register {
            self.register = register;
        }
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
        self.change(|services| {
            services
                .set(service)
                .map(|_| ())
                .ok_or(Error::NoService(key))
        })
    }

    /// Takes a service out; its packets are the kernel's.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_service(&mut self, key: ServiceKey) -> Result<(), Error> {
        self.change(|services| {
            services
                .remove(&key)
                .map(|_| ())
                .ok_or(Error::NoService(key))
        })
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

    /// Says how servers are reached: all next hops that are known, by server address. A server
    /// without one gets nothing, and no new flow of a service that has others.
    ///
    /// # Errors
    /// The kernel refuses to write the maps.
    pub fn set_hops(&mut self, hops: BTreeMap<IpAddr, Hop>) -> Result<(), Error> {
        if hops == self.hops || self.held {
            self.hops = hops;
            return Ok(());
        }
        let image = compile::compile(
            &self.settings,
            &self.services,
            &hops,
            &self.register,
            self.halves.image(),
            now_ns(),
        )?;
        self.publish(None, image)?;
        self.hops = hops;
        Ok(())
    }

    /// The next hops that are known.
    pub fn hops(&self) -> &BTreeMap<IpAddr, Hop> {
        &self.hops
    }

    /// How packets get to a server of a service's.
    ///
    /// # Errors
    /// None does: it gets nothing, and no new flow of a service that has others.
    pub fn way(&self, server: &Server) -> Result<&Hop, NoWay> {
        hop::way(server, self.hops.get(&server.address()))
    }

    fn change(
        &mut self,
        edit: impl FnOnce(&mut Services) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut services = self.services.clone();
        edit(&mut services)?;
        self.apply(services)
    }
}

fn service(services: &mut Services, key: ServiceKey) -> Result<&mut Service, Error> {
    services.get_mut(&key).ok_or(Error::NoService(key))
}
