//! Operations on services and their servers, and what checks of them come to.

use super::{Controller, of};
use crate::diff::Diff;
use crate::error::Error;
use crate::event::EventKind;
use crate::model::{
    Config, DeclaredServer, DeclaredService, DeclaredServices, Feature, Interface, ServiceKey,
};
use crate::services::{KnownHealth, Probe, Standing, Target};
use crate::stage::Change;
use health::{Health, Job};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

impl Controller {
    // -----------------------------------------------------------------------------------------
    // reading

    /// All services, by key.
    pub fn services(&self) -> &DeclaredServices {
        &self.state.services
    }

    /// One service.
    pub fn service(&self, key: &ServiceKey) -> Result<&Arc<DeclaredService>, Error> {
        let found = self.state.services.get(key);
        found.ok_or(Error::NoService(*key))
    }

    /// How a service stands.
    pub fn standing(&self, service: &DeclaredService) -> Standing {
        self.checks.standing(service)
    }

    /// A server's health: healthy in a service without checks, unknown of a server that is down.
    pub fn server_health(&self, service: &DeclaredService, address: IpAddr) -> Health {
        self.checks.health(service, address)
    }

    /// What checks have found out; none for a server that is not checked.
    pub fn server_state(&self, key: &ServiceKey, address: IpAddr) -> Option<&health::State> {
        self.checks.state(key, address)
    }

    /// The addresses of services that are to be announced.
    pub fn announced_addresses(&self) -> BTreeSet<IpAddr> {
        self.checks.addresses()
    }

    /// The time of [`server_state`](Controller::server_state) and of checks.
    pub fn now(&self) -> Duration {
        self.features.now()
    }

    // -----------------------------------------------------------------------------------------
    // operations

    /// Makes a service be as given, whole; with `create_only` it must not be there.
    pub fn put_service(
        &mut self,
        service: DeclaredService,
        create_only: bool,
    ) -> Result<Diff, Error> {
        service.validate()?;
        if create_only && self.state.services.contains_key(&service.key) {
            return Err(Error::ServiceExists(service.key));
        }
        let mut services = (*self.state.services).clone();
        services.insert(service.key, Arc::new(service));
        self.commit(vec![Change::Services(services)], false)
    }

    /// Removes a service; one that is not there is removed already.
    pub fn delete_service(&mut self, key: &ServiceKey) -> Result<Diff, Error> {
        let mut services = (*self.state.services).clone();
        services.remove(key);
        let forget = self.forget(|unmade, gone| {
            let services = unmade.services.iter().flatten();
            let own = services.filter(|(other, _)| *other == key);
            gone.services = Some(own.map(|(key, service)| (*key, service.clone())).collect());
        });
        self.commit(vec![Change::Services(services), forget], false)
    }

    /// Adds a server or changes it; with `create_only` it must not be there.
    pub fn put_server(
        &mut self,
        key: &ServiceKey,
        (address, server): (IpAddr, DeclaredServer),
        create_only: bool,
    ) -> Result<Diff, Error> {
        let mut service = (**self.service(key)?).clone();
        let old = service.servers.insert(address, server);
        if create_only && old.is_some() {
            return Err(Error::ServerExists(*key, address));
        }
        self.put_service(service, false)
    }

    /// Removes a server; one that is not there is removed already.
    pub fn delete_server(&mut self, key: &ServiceKey, address: IpAddr) -> Result<Diff, Error> {
        let mut service = (**self.service(key)?).clone();
        service.servers.remove(&address);
        self.put_service(service, false)
    }

    /// Makes the services exactly these, and the interfaces that they are balanced on, if they are
    /// given. With `dry_run` only says what would change.
    pub fn apply_services(
        &mut self,
        services: DeclaredServices,
        interfaces: Option<Vec<Interface>>,
        dry_run: bool,
    ) -> Result<Diff, Error> {
        let listed = interfaces.iter();
        let said = Config {
            services: Some(services.clone()),
            interfaces: listed
                .map(|list| (Feature::Balancer, list.clone()))
                .collect(),
            router_acl: None,
            ..(*self.state.unmade).clone()
        };
        let forget = self.forget_beside(&said);
        let interfaces = interfaces.map(|list| Change::Interfaces(Feature::Balancer, list));
        let changes = [Change::Services(services), forget].into_iter();
        let changes = changes.chain(interfaces);
        self.commit(changes.collect(), dry_run)
    }

    // -----------------------------------------------------------------------------------------
    // health

    /// When the next check is due.
    pub fn next_check(&self) -> Option<Duration> {
        self.checks.next()
    }

    /// Checks to be made now; each has to come back by [`Controller::checked`] or
    /// [`Controller::not_checked`].
    pub fn due_checks(&mut self) -> Vec<Probe> {
        self.checks.start(self.features.now(), &self.state.services)
    }

    /// What checks have found out.
    pub fn known_health(&self) -> KnownHealth {
        self.checks.known()
    }

    /// Goes on with what another process's controller of the same services has found out, by a
    /// clock that both have. Before the first check.
    pub fn take_up_health(&mut self, known: KnownHealth) -> Result<(), Error> {
        let services = &self.state.services;
        self.checks.take_up(self.features.now(), known, services);
        let applied = self.features.balance(&self.checks.now(services));
        self.settle();
        applied.map_err(of(Feature::Balancer))
    }

    /// What a check came to, and took. An error: the data plane has not taken what follows, and
    /// will with the next change.
    pub fn checked(
        &mut self,
        job: Job<Target>,
        took: Duration,
        outcome: Result<(), String>,
    ) -> Result<(), Error> {
        let turned = self.checks.finish(self.features.now(), job, took, outcome);
        let Some(((key, server), health, detail)) = turned else {
            return Ok(());
        };
        self.send_event(EventKind::ServerHealth {
            key,
            server,
            health,
            detail,
        });
        let services = &self.state.services;
        let whole = self.checks.open_known(services);
        let steps = whole.into_iter().chain([self.checks.now(services)]);
        let mut applied = Ok(());
        for step in steps {
            applied = applied.and_then(|()| self.features.balance(&step));
        }
        self.settle();
        applied.map_err(of(Feature::Balancer))
    }

    /// A check could not be made, which is not its server's fault.
    pub fn not_checked(&mut self, job: &Job<Target>, why: String) {
        self.checks.put_off(self.features.now(), job, why);
    }

    /// Tells what came into service or went out of it.
    pub(super) fn settle(&mut self) {
        let turned = self.checks.settle(&self.state.services);
        for key in turned.services {
            // One that was deleted has had its event.
            let Some(service) = self.state.services.get(&key) else {
                continue;
            };
            let standing = self.checks.standing(service);
            self.send_event(EventKind::InService {
                key,
                in_service: standing.in_service,
                healthy: standing.healthy,
                min_healthy: service.min_healthy,
            });
        }
        for vip in turned.addresses {
            let announced = self.checks.is_announced(vip);
            self.send_event(EventKind::Address { vip, announced });
        }
    }
}
