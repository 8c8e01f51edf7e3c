//! What is known of the services' servers beside what is declared: their health, and what follows
//! from it. No I/O and no clock: the checks are made by whoever asks for them, and time is handed
//! in. Owned by the controller, which declares services through it (`controller/services.rs`).

use crate::model::{DeclaredServer, DeclaredService, DeclaredServices, ServiceKey, State};
use health::{Change, Health, Job, Kind, Monitor, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// A server of a service: what is checked.
pub type Target = (ServiceKey, IpAddr);

/// A check to be made, with all that it needs.
pub struct Probe {
    /// To be given back with the outcome.
    pub job: Job<Target>,
    /// What is done.
    pub kind: Kind,
    /// Whom it is done to.
    pub subject: Subject,
}

/// What checks have found out, as another process's controller [goes
/// on](crate::Controller::take_up_health) with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownHealth {
    /// Services whose first round of checks is over.
    pub open: BTreeSet<ServiceKey>,
    /// What is known of each server, and when it is checked next.
    pub servers: Vec<(Target, health::State, Duration)>,
}

/// A service as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// It has its minimum of healthy servers.
    pub in_service: bool,
    /// Some service of its address has.
    pub announced: bool,
    /// Servers that are up and healthy.
    pub healthy: usize,
}

/// What is known of servers, and of services by it.
#[derive(Default)]
pub(crate) struct Checks {
    monitor: Monitor<Target>,
    /// Services whose first round of checks is over. Until then no server gets a packet: servers
    /// answer their first checks one after the other, and connections from before this daemon, of
    /// which it knows nothing, would all go to the first that did.
    open: BTreeSet<ServiceKey>,
    /// Services that have their minimum of healthy servers.
    in_service: BTreeSet<ServiceKey>,
}

/// Services that came into service or went out of it, and addresses likewise.
#[derive(Default)]
pub(crate) struct Turned {
    pub services: Vec<ServiceKey>,
    pub addresses: Vec<IpAddr>,
}

impl Checks {
    pub fn standing(&self, service: &DeclaredService) -> Standing {
        Standing {
            in_service: self.in_service.contains(&service.key),
            announced: self.is_announced(service.key.vip()),
            healthy: healthy(service, |address| self.health(service, address)),
        }
    }

    /// Healthy in a service without checks; unknown of a server that is down, which nobody asks.
    pub fn health(&self, service: &DeclaredService, address: IpAddr) -> Health {
        match self.state(&service.key, address) {
            Some(state) => state.health,
            None if service.check.is_none() => Health::Healthy,
            None => Health::Unknown,
        }
    }

    /// What checks have found out; none for a server that is not checked.
    pub fn state(&self, key: &ServiceKey, address: IpAddr) -> Option<&health::State> {
        self.monitor.state(&(*key, address))
    }

    pub fn is_announced(&self, vip: IpAddr) -> bool {
        self.in_service.iter().any(|key| key.vip() == vip)
    }

    /// The addresses that are announced.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.in_service.iter().map(|key| key.vip()).collect()
    }

    /// All that checks have found out.
    pub fn known(&self) -> KnownHealth {
        let servers = self.monitor.known();
        KnownHealth {
            open: self.open.clone(),
            servers: servers
                .map(|(target, state, next)| (*target, state.clone(), next))
                .collect(),
        }
    }

    /// Goes on with what another one has found out of these services.
    pub fn take_up(&mut self, now: Duration, known: KnownHealth, services: &DeclaredServices) {
        for (target, state, next) in known.servers {
            self.monitor.take_up(now, &target, state, next);
        }
        let open = known.open.into_iter();
        self.open
            .extend(open.filter(|key| services.contains_key(key)));
    }

    /// When the next check is due.
    pub fn next(&self) -> Option<Duration> {
        self.monitor.next()
    }

    /// Checks to be made now; each has to come back by [`finish`](Checks::finish) or
    /// [`put_off`](Checks::put_off).
    pub fn start(&mut self, now: Duration, services: &DeclaredServices) -> Vec<Probe> {
        let jobs = self.monitor.start(now);
        let probe = |job: Job<Target>| {
            let (key, address) = &job.target;
            let service = services.get(key)?;
            let server = service.servers.get(address)?;
            let subject = Subject {
                service: (key.vip(), service.check_port(server)?).into(),
                protocol: key.protocol().name(),
                server: *address,
            };
            let kind = service.check.as_ref()?.kind.clone();
            Some(Probe { job, kind, subject })
        };
        jobs.into_iter().filter_map(probe).collect()
    }

    /// What a check came to, if a server's health has turned by it; and why it is not well.
    pub fn finish(
        &mut self,
        now: Duration,
        job: Job<Target>,
        took: Duration,
        outcome: Result<(), String>,
    ) -> Option<(Target, Health, String)> {
        let Change { target, health } = self.monitor.finish(now, job, took, outcome)?;
        let state = self.monitor.state(&target);
        let detail = state.map(|state| state.detail.clone());
        Some((target, health, detail.unwrap_or_default()))
    }

    /// A check could not be made.
    pub fn put_off(&mut self, now: Duration, job: &Job<Target>, why: String) {
        self.monitor.put_off(now, job, why);
    }

    /// Opens the services of whose servers something is known now. They are compiled with all their
    /// servers first, if there are any: a packet amid a connection that is not remembered here
    /// belongs to the server that the whole set would have chosen, also where some of it do not
    /// work now.
    pub fn open_known(&mut self, services: &DeclaredServices) -> Option<::model::Services> {
        let opened = self.newly_open(services, |service, address| self.health(service, address));
        self.open.extend(&opened);
        let whole = self.compile(services, &self.open, |service, address| {
            match opened.contains(&service.key) {
                true => Health::Healthy,
                false => self.health(service, address),
            }
        });
        (whole != self.now(services)).then_some(whole)
    }

    /// What the data plane is to be told as things are.
    pub fn now(&self, services: &DeclaredServices) -> ::model::Services {
        self.compile(services, &self.open, |service, address| {
            self.health(service, address)
        })
    }

    /// What the data plane is to be told when `old` becomes `new`, and which services are open
    /// then.
    pub fn after(
        &self,
        old: &DeclaredServices,
        new: &DeclaredServices,
    ) -> (::model::Services, BTreeSet<ServiceKey>) {
        let first = |service: &DeclaredService, address| self.first_health(old, service, address);
        let mut open = self.open.clone();
        open.extend(self.newly_open(new, first));
        open.retain(|key| new.contains_key(key));
        (self.compile(new, &open, first), open)
    }

    /// `old` has become `new`, with these open: exactly the servers that are to be checked are.
    pub fn follow(
        &mut self,
        now: Duration,
        old: &DeclaredServices,
        new: &DeclaredServices,
        open: BTreeSet<ServiceKey>,
    ) {
        self.open = open;
        let mut wanted = BTreeMap::new();
        for service in new.values() {
            let Some(check) = &service.check else {
                continue;
            };
            for address in asked(service) {
                let health = self.first_health(old, service, *address);
                wanted.insert((service.key, *address), (check.policy, health));
            }
        }
        let gone = self.monitor.targets().filter(|t| !wanted.contains_key(*t));
        let gone: Vec<Target> = gone.copied().collect();
        for target in &gone {
            self.monitor.remove(target);
        }
        for (target, (policy, health)) in wanted {
            self.monitor.add(now, target, policy, health);
        }
    }

    /// Finds services and addresses that came into service or went out of it. They are told for
    /// routers: packets that come go to the servers that are left in either case.
    pub fn settle(&mut self, services: &DeclaredServices) -> Turned {
        let before = self.addresses();
        let has_minimum = |service: &&DeclaredService| {
            let healthy = healthy(service, |address| self.health(service, address));
            let open = self.open.contains(&service.key) || asked(service).next().is_none();
            open && healthy >= service.min_healthy as usize
        };
        let all = services.values().map(|service| &**service);
        let now: BTreeSet<ServiceKey> = all.filter(has_minimum).map(|s| s.key).collect();
        let turned = self.in_service.symmetric_difference(&now).copied();
        let turned: Vec<ServiceKey> = turned.collect();
        self.in_service = now;
        let after = self.addresses();
        Turned {
            services: turned,
            addresses: before.symmetric_difference(&after).copied().collect(),
        }
    }

    /// Those of the services that are not open yet, and of whose servers something is known, all of
    /// them.
    fn newly_open(
        &self,
        services: &DeclaredServices,
        health: impl Fn(&DeclaredService, IpAddr) -> Health,
    ) -> BTreeSet<ServiceKey> {
        let is_known = |service: &DeclaredService| {
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
        services: &DeclaredServices,
        open: &BTreeSet<ServiceKey>,
        health: impl Fn(&DeclaredService, IpAddr) -> Health,
    ) -> ::model::Services {
        let compiled = |service: &DeclaredService| {
            let is_open = open.contains(&service.key);
            let health = |address| match is_open {
                true => health(service, address),
                false => Health::Unknown,
            };
            let mut compiled = ::model::Service::new(service.key).sticky(service.sticky);
            for (address, server) in &service.servers {
                // A server that is not known to work gets nothing; one that drains keeps its flows
                // while it does.
                let state = match (server.state, health(*address)) {
                    (state, Health::Healthy) => state,
                    (_, Health::Unknown | Health::Unhealthy) => State::Down,
                };
                // An address that is no host's was refused when the service was declared.
                if let Ok(new) = ::model::Server::new(*address) {
                    compiled.set(
                        new.weight(server.weight)
                            .state(state)
                            .tunnel(service.tunnel),
                    );
                }
            }
            compiled
        };
        services.values().map(|service| compiled(service)).collect()
    }

    /// A server that got flows before its service was checked gets them on until checks say
    /// otherwise; one that is new to a service with checks waits for the first.
    fn first_health(
        &self,
        old: &DeclaredServices,
        service: &DeclaredService,
        address: IpAddr,
    ) -> Health {
        let served = |old: &DeclaredService| {
            let server = old.servers.get(&address);
            server.is_some_and(|server| server.state != State::Down)
        };
        match self.state(&service.key, address) {
            _ if service.check.is_none() => Health::Healthy,
            Some(state) => state.health,
            None if old.get(&service.key).is_some_and(|old| served(old)) => Health::Healthy,
            None => Health::Unknown,
        }
    }
}

/// The servers that are not down by what was asked for.
fn asked(service: &DeclaredService) -> impl Iterator<Item = &IpAddr> {
    let up = service
        .servers
        .iter()
        .filter(|(_, server)| server.state != State::Down);
    up.map(|(address, _)| address)
}

fn healthy(service: &DeclaredService, health: impl Fn(IpAddr) -> Health) -> usize {
    let fit = |(address, server): &(&IpAddr, &DeclaredServer)| {
        server.state == State::Up && health(**address) == Health::Healthy
    };
    service.servers.iter().filter(fit).count()
}
