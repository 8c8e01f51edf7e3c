//! The balancer's state without I/O or clock: what is configured, what is known of the servers'
//! health, and what follows from both. An operation stages its change on a copy, hands what it
//! compiles to the data plane, and keeps it when that has taken it; so a refused one changed
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use health::probe::Subject;
use health::{Change as HealthChange, Health, Job, Kind, Monitor, Programs, State};
use tokio::sync::broadcast;

use super::diff::{Change, ChangeKind, diff};
use super::error::Error;
use super::event::{Event, EventKind, Events};
use super::model::{Encapsulation, Key, Server, ServerState, Service, Services, validate};

/// What the data plane is told of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    pub key: Key,
    pub encapsulation: Encapsulation,
    pub sticky: bool,
    /// Address, weight, and what flows it gets.
    pub servers: Vec<(IpAddr, u16, ServerState)>,
}

/// The data plane, as the registry sees it.
pub trait Forwarding: Send {
    /// Makes the services these, all or nothing. The error is a sentence.
    fn apply(&mut self, services: &[Compiled]) -> Result<(), String>;
}

/// A server of a service: what is checked.
pub type Target = (Key, IpAddr);

pub struct Registry {
    services: Services,
    monitor: Monitor<Target>,
    /// Services whose first round of checks is over. Until then no server gets a packet: servers
    /// answer their first checks one after the other, and connections from before this daemon, of
    /// which it knows nothing, would all go to the first that did.
    open: BTreeSet<Key>,
    /// Services that have their minimum of healthy servers.
    in_service: BTreeSet<Key>,
    events: Events,
    forwarding: Box<dyn Forwarding>,
    /// What checks may run.
    programs: Programs,
}

/// A service as it stands.
pub struct Standing {
    pub in_service: bool,
    pub announced: bool,
    pub healthy: usize,
}

/// A check to be made, with all that it needs.
pub struct Probe {
    pub job: Job<Target>,
    pub kind: Kind,
    pub subject: Subject,
}

impl Registry {
    pub fn new(forwarding: Box<dyn Forwarding>, programs: Programs) -> Registry {
        Registry {
            services: Services::new(),
            monitor: Monitor::default(),
            open: BTreeSet::new(),
            in_service: BTreeSet::new(),
            events: Events::default(),
            forwarding,
            programs,
        }
    }

    // --------------------------------------------------------------------------------------------
    // reading

    pub fn services(&self) -> &Services {
        &self.services
    }

    pub fn service(&self, key: &Key) -> Result<&Service, Error> {
        self.services.get(key).ok_or(Error::NoService(*key))
    }

    pub fn standing(&self, service: &Service) -> Standing {
        Standing {
            in_service: self.in_service.contains(&service.key),
            announced: self.announced(service.key.vip),
            healthy: healthy(service, |address| self.health(service, address)),
        }
    }

    /// Healthy in a service without checks; unknown of a server that is down, which nobody asks.
    pub fn health(&self, service: &Service, address: IpAddr) -> Health {
        match self.state(&service.key, address) {
            Some(state) => state.health,
            None if service.check.is_none() => Health::Healthy,
            None => Health::Unknown,
        }
    }

    /// What checks have found out; none for a server that is not checked.
    pub fn state(&self, key: &Key, address: IpAddr) -> Option<&State> {
        self.monitor.state(&(*key, address))
    }

    /// Some service of the address is in service.
    fn announced(&self, vip: IpAddr) -> bool {
        self.in_service.iter().any(|key| key.vip == vip)
    }

    /// The addresses that are announced.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.in_service.iter().map(|key| key.vip).collect()
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    // -----------------------------------------------------------------------------------------
    // operations

    pub fn put_service(
        &mut self,
        now: Duration,
        service: Service,
        create_only: bool,
    ) -> Result<(), Error> {
        if create_only && self.services.contains_key(&service.key) {
            return Err(Error::ServiceExists(service.key));
        }
        let mut services = self.services.clone();
        services.insert(service.key, service);
        self.commit(now, services).map(drop)
    }

    /// Whether there was one.
    pub fn delete_service(&mut self, now: Duration, key: &Key) -> Result<bool, Error> {
        let mut services = self.services.clone();
        let existed = services.remove(key).is_some();
        self.commit(now, services)?;
        Ok(existed)
    }

    pub fn put_server(
        &mut self,
        now: Duration,
        key: &Key,
        (address, server): (IpAddr, Server),
        create_only: bool,
    ) -> Result<(), Error> {
        let mut service = self.service(key)?.clone();
        let old = service.servers.insert(address, server);
        if create_only && old.is_some() {
            return Err(Error::ServerExists(*key, address));
        }
        service.validate()?;
        self.put_service(now, service, false)
    }

    /// Whether there was one.
    pub fn delete_server(
        &mut self,
        now: Duration,
        key: &Key,
        address: IpAddr,
    ) -> Result<bool, Error> {
        let mut service = self.service(key)?.clone();
        let existed = service.servers.remove(&address).is_some();
        self.put_service(now, service, false)?;
        Ok(existed)
    }

    /// Makes the services exactly these; what differs.
    pub fn apply(
        &mut self,
        now: Duration,
        services: Services,
        dry_run: bool,
    ) -> Result<Vec<Change>, Error> {
        match dry_run {
            true => {
                self.admit(&services)?;
                Ok(diff(&self.services, &services))
            }
            false => self.commit(now, services),
        }
    }

    // ---------------------------------------------------------------------------------------------
    // health

    /// When the next check is due.
    pub fn next_check(&self) -> Option<Duration> {
        self.monitor.next()
    }

    /// Checks to be made now; each has to come back by [`Registry::checked`].
    pub fn checks(&mut self, now: Duration) -> Vec<Probe> {
        let jobs = self.monitor.start(now);
        jobs.into_iter().filter_map(|job| self.probe(job)).collect()
    }

    fn probe(&self, job: Job<Target>) -> Option<Probe> {
        let (key, address) = &job.target;
        let service = self.services.get(key)?;
        let server = service.servers.get(address)?;
        let subject = Subject {
            service: (key.vip, service.check_port(server)?).into(),
            protocol: key.protocol.name(),
            server: *address,
        };
        let kind = service.check.as_ref()?.kind.clone();
        Some(Probe { job, kind, subject })
    }

    /// What a check came to. An error: the data plane has not taken what follows, and will with the
    /// next change.
    pub fn checked(
        &mut self,
        now: Duration,
        job: Job<Target>,
        outcome: Result<(), String>,
    ) -> Result<(), Error> {
        let Some(HealthChange { target, health }) = self.monitor.finish(now, job, outcome) else {
            return Ok(());
        };
        let detail = self
            .monitor
            .state(&target)
            .map(|state| state.detail.clone());
        self.events.send(EventKind::Health {
            key: target.0,
            server: target.1,
            health,
            detail: detail.unwrap_or_default(),
        });
        let opened = self.newly_open(&self.services, |service, address| {
            self.health(service, address)
        });
        self.open.extend(&opened);
        let now = self.compile(&self.services, |service, address| {
            self.health(service, address)
        });
        let applied = self.begin_with_all(&opened, &now);
        let applied = applied.and_then(|()| self.forwarding.apply(&now));
        self.settle();
        applied.map_err(Error::Unavailable)
    }

    /// Services that open are compiled with all their servers first: a packet amid a connection
    /// that is not remembered here belongs to the server that the whole set would have chosen, also
    /// where some of it do not work now.
    fn begin_with_all(&mut self, opened: &BTreeSet<Key>, now: &[Compiled]) -> Result<(), String> {
        let whole = self.compile(&self.services, |service, address| {
            match opened.contains(&service.key) {
                true => Health::Healthy,
                false => self.health(service, address),
            }
        });
        match whole == now {
            true => Ok(()),
            false => self.forwarding.apply(&whole),
        }
    }

    /// Those of the services that are not open yet, and of whose servers something is known, all of
    /// them.
    fn newly_open(
        &self,
        services: &Services,
        health: impl Fn(&Service, IpAddr) -> Health,
    ) -> BTreeSet<Key> {
        let is_known = |service: &Service| {
            let mut asked = asked(service).peekable();
            asked.peek().is_some()
                && asked.all(|address| health(service, *address) != Health::Unknown)
        };
        let closed = services
            .values()
            .filter(|service| !self.open.contains(&service.key));
        closed
            .filter(|service| is_known(service))
            .map(|service| service.key)
            .collect()
    }

    fn compile(
        &self,
        services: &Services,
        health: impl Fn(&Service, IpAddr) -> Health,
    ) -> Vec<Compiled> {
        compile(services, |service, address| {
            match self.open.contains(&service.key) {
                true => health(service, address),
                false => Health::Unknown,
            }
        })
    }

    // --------------------------------------------------------------------------------------------
    // changes

    fn commit(&mut self, now: Duration, services: Services) -> Result<Vec<Change>, Error> {
        self.admit(&services)?;
        let changes = diff(&self.services, &services);
        if changes.is_empty() {
            return Ok(changes);
        }
        let opened = self.newly_open(&services, |service, address| {
            self.first_health(service, address)
        });
        let before = self.open.clone();
        self.open.extend(opened);
        self.open.retain(|key| services.contains_key(key));
        let compiled = self.compile(&services, |service, address| {
            self.first_health(service, address)
        });
        if let Err(why) = self.forwarding.apply(&compiled) {
            self.open = before;
            return Err(Error::Unavailable(why));
        }
        self.watch(now, &services);
        self.services = services;
        for change in &changes {
            self.events.send(match change.kind {
                ChangeKind::Deleted => EventKind::Deleted(change.key),
                ChangeKind::Created | ChangeKind::Updated(_) => EventKind::Changed(change.key),
            });
        }
        self.settle();
        Ok(changes)
    }

    /// Refuses what is too much in all, and what checks may not run.
    fn admit(&self, services: &Services) -> Result<(), Error> {
        validate(services)?;
        for (key, check) in services
            .iter()
            .filter_map(|(key, s)| Some((key, s.check.as_ref()?)))
        {
            check.admit(&self.programs).map_err(|e| {
                let owner = format!("service {key}");
                Error::value(owner, format!("check.{}", e.field), e.value, e.why)
            })?;
        }
        Ok(())
    }

    /// A server that got flows before its service was checked gets them on until checks say
    /// otherwise; one that is new to a service with checks waits for the first.
    fn first_health(&self, service: &Service, address: IpAddr) -> Health {
        let served = |old: &Service| {
            let server = old.servers.get(&address);
            server.is_some_and(|server| server.state != ServerState::Down)
        };
        match self.state(&service.key, address) {
            _ if service.check.is_none() => Health::Healthy,
            Some(state) => state.health,
            None if self.services.get(&service.key).is_some_and(served) => Health::Healthy,
            None => Health::Unknown,
        }
    }

    /// Checks exactly the servers that are to be checked.
    fn watch(&mut self, now: Duration, services: &Services) {
        let mut wanted = BTreeMap::new();
        for service in services.values() {
            let Some(check) = &service.check else {
                continue;
            };
            for (address, server) in &service.servers {
                if server.state != ServerState::Down {
                    let health = self.first_health(service, *address);
                    wanted.insert((service.key, *address), (check.policy, health));
                }
            }
        }
        let gone: Vec<Target> = self
            .monitor
            .targets()
            .filter(|t| !wanted.contains_key(*t))
            .copied()
            .collect();
        for target in &gone {
            self.monitor.remove(target);
        }
        for (target, (policy, health)) in wanted {
            self.monitor.add(now, target, policy, health);
        }
    }

    /// Reports services and addresses that came into service or went out of it. The reports are for
    /// routers: packets that come go to the servers that are left in either case.
    fn settle(&mut self) {
        let before = self.addresses();
        let has_minimum = |service: &&Service| {
            let healthy = healthy(service, |address| self.health(service, address));
            let open = self.open.contains(&service.key) || asked(service).next().is_none();
            open && healthy >= service.min_healthy as usize
        };
        let now: BTreeSet<Key> = self
            .services
            .values()
            .filter(has_minimum)
            .map(|s| s.key)
            .collect();
        let turned: Vec<Key> = self
            .in_service
            .symmetric_difference(&now)
            .copied()
            .collect();
        self.in_service = now;
        for key in turned {
            // One that was deleted has had its event.
            let Some(service) = self.services.get(&key) else {
                continue;
            };
            let standing = self.standing(service);
            let event = EventKind::InService {
                key,
                in_service: standing.in_service,
                healthy: standing.healthy,
                min_healthy: service.min_healthy,
            };
            self.events.send(event);
        }
        let after = self.addresses();
        for vip in before.symmetric_difference(&after) {
            let announced = after.contains(vip);
            self.events.send(EventKind::Address {
                vip: *vip,
                announced,
            });
        }
    }
}

/// The servers that are not down by what was asked for.
fn asked(service: &Service) -> impl Iterator<Item = &IpAddr> {
    let up = service
        .servers
        .iter()
        .filter(|(_, server)| server.state != ServerState::Down);
    up.map(|(address, _)| address)
}

fn healthy(service: &Service, health: impl Fn(IpAddr) -> Health) -> usize {
    let fit = |(address, server): &(&IpAddr, &Server)| {
        server.state == ServerState::Up && health(**address) == Health::Healthy
    };
    service.servers.iter().filter(fit).count()
}

fn compile(services: &Services, health: impl Fn(&Service, IpAddr) -> Health) -> Vec<Compiled> {
    let compiled = |service: &Service| {
        let health = |address| health(service, address);
        let server = |(address, server): (&IpAddr, &Server)| {
            // A server that is not known to work gets nothing; one that drains keeps its flows
            // while it does.
            let state = match (server.state, health(*address)) {
                (state, Health::Healthy) => state,
                (_, Health::Unknown | Health::Unhealthy) => ServerState::Down,
            };
            (*address, server.weight, state)
        };
        Compiled {
            key: service.key,
            encapsulation: service.encapsulation,
            sticky: service.sticky,
            servers: service.servers.iter().map(server).collect(),
        }
    };
    services.values().map(compiled).collect()
}

#[cfg(test)]
mod tests;
