//! Sessions with services, their servers and the interfaces of features: a load balancer and a
//! router that write down what they are told, a clock of their own, servers that work or not.

use super::world::{self, Shared};
use crate::model::{
    AccessList, Config, DeclaredServer, DeclaredService, DeclaredServices, Feature, Group,
    IdPattern, Interface, Mode, Part, PartLimits, Protocol, ServiceKey, State, Tunnel, Weight,
    service_key,
};
use crate::*;
use health::{Check, CheckError, Kind, Policy};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;

const SECOND: Duration = Duration::from_secs(1);

/// What the features of the world are and have been.
#[derive(Default)]
struct Plane {
    now: Duration,
    /// The last set of services, in words.
    told: String,
    /// All of them.
    history: Vec<String>,
    /// The load balancer refuses.
    refuse: bool,
    /// By feature and name: how it is attached, and was asked to be.
    attached: BTreeMap<(Feature, String), (Mode, Option<Mode>)>,
    /// Interfaces that cannot be had.
    refused: Vec<&'static str>,
    /// What packets are judged by, and whenever that changed how many interfaces there were.
    acl: Option<AccessList>,
    judged: Vec<usize>,
}

#[derive(Clone, Default)]
struct Host(Arc<Mutex<Plane>>);

impl Host {
    fn plane(&self) -> MutexGuard<'_, Plane> {
        self.0.lock().unwrap()
    }
}

impl Features for Host {
    fn now(&self) -> Duration {
        self.plane().now
    }

    fn admit(&self, _: &Check) -> Result<(), CheckError> {
        Ok(())
    }

    fn balance(&mut self, services: &::model::Services) -> Result<(), String> {
        let mut plane = self.plane();
        if plane.refuse {
            return Err("the kernel has no memory".into());
        }
        let words = |service: &::model::Service| {
            let servers = service.servers().map(|server| {
                let (weight, state) = (server.weight.get(), server.state);
                format!(" {}*{weight} {state}", server.address())
            });
            format!("{}{}", service.key(), servers.collect::<String>())
        };
        let told = services.iter().map(words).collect::<Vec<_>>().join("; ");
        plane.history.push(told.clone());
        plane.told = told;
        Ok(())
    }

    fn judge(&mut self, acl: Option<&AccessList>) -> Result<(), String> {
        let mut plane = self.plane();
        let interfaces = plane.attached.len();
        plane.judged.push(interfaces);
        plane.acl = acl.cloned();
        Ok(())
    }

    fn take(
        &mut self,
        feature: Feature,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<InterfaceStatus, String> {
        let mut plane = self.plane();
        if plane.refused.contains(&name) {
            return Err(format!("interface {name}: there is no such interface"));
        }
        let whose = (feature, name.to_owned());
        let now = plane.attached.get(&whose).map(|(mode, _)| *mode);
        let mode_now = mode.or(now).unwrap_or(Mode::Native);
        plane.attached.insert(whose, (mode_now, mode));
        drop(plane);
        Ok(self.interface(feature, name)?.unwrap())
    }

    fn interface(&self, feature: Feature, name: &str) -> Result<Option<InterfaceStatus>, String> {
        let plane = self.plane();
        let found = plane.attached.get(&(feature, name.to_owned()));
        Ok(found.map(|(mode, asked)| InterfaceStatus {
            name: name.to_owned(),
            mode: Some(*mode),
            why: String::new(),
            asked: *asked,
        }))
    }

    fn reattach(&mut self, name: &str) -> Result<InterfaceStatus, String> {
        let whose = (Feature::Balancer, name.to_owned());
        let (_, asked) = self.plane().attached[&whose];
        self.take(Feature::Balancer, name, asked)
    }

    fn give_back(&mut self, feature: Feature, name: &str) -> Result<(), String> {
        let before = self.plane().attached.remove(&(feature, name.to_owned()));
        before
            .map(drop)
            .ok_or_else(|| format!("{name} is not ours"))
    }

    fn restore(
        &mut self,
        feature: Feature,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String> {
        let mut plane = self.plane();
        let whose = (feature, name.to_owned());
        match before {
            None => plane.attached.remove(&whose),
            Some(InterfaceStatus { mode, asked, .. }) => {
                plane.attached.insert(whose, (mode.unwrap(), asked))
            }
        };
        Ok(())
    }
}

/// A journal that others can read, and that refuses when it is told to.
#[derive(Clone, Default)]
struct RecordedJournal(Arc<Mutex<(Vec<Change>, bool)>>);

impl Journal for RecordedJournal {
    fn record(&mut self, change: &Change) -> Result<(), Error> {
        let mut journal = self.0.lock().unwrap();
        if journal.1 {
            return Err(Error::Journal("the disk is full".into()));
        }
        journal.0.push(change.clone());
        Ok(())
    }
}

struct Session {
    controller: Controller,
    host: Host,
    world: Shared,
    events: Receiver<Event>,
}

impl Session {
    fn new() -> Session {
        let (controller, world) = world::controller();
        let host = Host::default();
        let controller = controller.with_features(Box::new(host.clone()));
        let events = controller.subscribe();
        Session {
            controller,
            host,
            world,
            events,
        }
    }

    fn put(&mut self, service: DeclaredService) -> Result<(), Error> {
        self.controller.put_service(service, false).map(drop)
    }

    /// Runs the clock for a while; the servers whose addresses end in these digits work.
    fn run(&mut self, time: Duration, well: &str) {
        let end = self.controller.now() + time;
        while let Some(at) = self.controller.next_check().filter(|at| *at <= end) {
            let now = self.controller.now().max(at);
            self.host.plane().now = now;
            for probe in self.controller.due_checks() {
                let works = probe
                    .subject
                    .server
                    .to_string()
                    .ends_with(|c| well.contains(c));
                let outcome = if works {
                    Ok(())
                } else {
                    Err("connection refused".into())
                };
                let took = Duration::ZERO;
                self.controller.checked(probe.job, took, outcome).unwrap();
            }
        }
        self.host.plane().now = end;
    }

    fn told(&self) -> String {
        self.host.plane().told.clone()
    }

    /// The events since the last call, in words.
    fn events(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            events.push(match event.kind {
                EventKind::ServiceChanged(key) => format!("{key} changed"),
                EventKind::ServiceRemoved(key) => format!("{key} deleted"),
                EventKind::ServerHealth {
                    server,
                    health,
                    detail,
                    ..
                } => format!("{server} {health:?} {detail}")
                    .trim_end()
                    .to_owned(),
                EventKind::InService {
                    in_service,
                    healthy,
                    min_healthy,
                    ..
                } => format!("in service: {in_service}, {healthy} of {min_healthy}"),
                EventKind::Address { vip, announced } => format!("{vip} announced: {announced}"),
                EventKind::InterfaceChanged(feature, one) => {
                    format!("{feature} {} {:?}", one.name, one.mode)
                }
                EventKind::InterfaceRemoved(feature, name) => format!("{feature} {name} deleted"),
                EventKind::InterfaceState(feature, status) => {
                    format!(
                        "{feature} {}: {:?} {}",
                        status.name, status.mode, status.why
                    )
                }
                EventKind::NicAdded(id) => format!("nic {id}"),
                other => format!("{other:?}"),
            });
        }
        events
    }

    /// The interfaces of a feature as they are: name, mode, what was asked for.
    fn attached(&self, feature: Feature) -> Vec<(String, Mode, Option<Mode>)> {
        let plane = self.host.plane();
        let own = plane.attached.iter().filter(|(key, _)| key.0 == feature);
        own.map(|((_, name), (mode, asked))| (name.clone(), *mode, *asked))
            .collect()
    }
}

fn key(port: u16) -> ServiceKey {
    service_key([192, 0, 2, 1].into(), Protocol::Tcp, NonZeroU16::new(port)).unwrap()
}

fn service(port: u16, servers: &[u8]) -> DeclaredService {
    let server = |last: &u8| {
        let server = DeclaredServer {
            weight: Weight::ONE,
            state: State::Up,
            check_port: None,
        };
        (IpAddr::from([10, 0, 0, *last]), server)
    };
    DeclaredService {
        key: key(port),
        tunnel: Tunnel::None,
        sticky: false,
        min_healthy: 1,
        check: None,
        servers: servers.iter().map(server).collect(),
    }
}

fn checked(port: u16, servers: &[u8]) -> DeclaredService {
    let check = Check {
        policy: Policy::default(),
        port: None,
        kind: Kind::Tcp,
    };
    DeclaredService {
        check: Some(check),
        ..service(port, servers)
    }
}

fn interface(name: &str, mode: Option<Mode>) -> Interface {
    Interface::new(name, mode).unwrap()
}

#[test]
fn without_checks_all_servers_are_healthy() {
    let mut session = Session::new();
    session.put(service(80, &[2, 1])).unwrap();
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 up"
    );
    assert_eq!(
        session.events(),
        [
            "192.0.2.1:80/tcp changed",
            "in service: true, 2 of 1",
            "192.0.2.1 announced: true"
        ]
    );
    // Asked twice is asked once.
    session.put(service(80, &[1, 2])).unwrap();
    assert_eq!(session.events(), [""; 0]);
    assert!(session.controller.next_check().is_none());
}

#[test]
fn a_service_comes_and_goes_with_its_servers() {
    let mut session = Session::new();
    session
        .put(DeclaredService {
            min_healthy: 2,
            ..checked(80, &[1, 2, 3])
        })
        .unwrap();
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 down 10.0.0.2*1 down 10.0.0.3*1 down"
    );
    assert_eq!(session.events(), ["192.0.2.1:80/tcp changed"]);
    session.run(SECOND, "12");
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 up 10.0.0.3*1 down"
    );
    assert_eq!(
        session.events(),
        [
            "10.0.0.1 Healthy",
            "10.0.0.2 Healthy",
            "10.0.0.3 Unhealthy connection refused",
            "in service: true, 2 of 2",
            "192.0.2.1 announced: true",
        ]
    );
    // The second dies: after three checks it is out, and with it the service.
    session.run(SECOND * 7, "1");
    assert_eq!(
        session.events(),
        [
            "10.0.0.2 Unhealthy connection refused",
            "in service: false, 1 of 2",
            "192.0.2.1 announced: false",
        ]
    );
    // Who still comes is served by the one that is left.
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 down 10.0.0.3*1 down"
    );
    // The third comes.
    session.run(SECOND * 5, "13");
    assert_eq!(
        session.events(),
        [
            "10.0.0.3 Healthy",
            "in service: true, 2 of 2",
            "192.0.2.1 announced: true"
        ]
    );
}

#[test]
fn a_service_opens_whole_after_its_first_round_of_checks() {
    let mut session = Session::new();
    session.put(checked(80, &[1, 2, 3])).unwrap();
    let jobs = session.controller.due_checks();
    let down = "192.0.2.1:80/tcp 10.0.0.1*1 down 10.0.0.2*1 down 10.0.0.3*1 down";
    let mut answer = |nth: usize, outcome: Result<(), String>| {
        let job = jobs[nth].job.clone();
        let took = Duration::ZERO;
        session.controller.checked(job, took, outcome).unwrap();
    };
    answer(0, Ok(()));
    answer(2, Ok(()));
    assert_eq!(session.host.plane().told, down, "one has not answered yet");
    answer(1, Err("timed out".into()));
    // Whole first: a connection from before knows its server by it, whether or not another one
    // works.
    let history = session.host.plane().history.clone();
    assert_eq!(
        history[history.len() - 2..],
        [
            "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 up 10.0.0.3*1 up",
            "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 down 10.0.0.3*1 up"
        ]
    );
    // A server that comes later waits alone.
    session.put(checked(80, &[1, 2, 3, 4])).unwrap();
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 down 10.0.0.3*1 up 10.0.0.4*1 down"
    );
}

#[test]
fn another_controller_goes_on_with_what_is_known() {
    let mut before = Session::new();
    before.put(checked(80, &[1, 2])).unwrap();
    before.run(SECOND * 3, "1");
    // Nobody has asked its server yet.
    before.put(checked(81, &[3])).unwrap();
    let (known, now) = (before.controller.known_health(), before.controller.now());
    let after = |services: &[DeclaredService]| {
        let mut after = Session::new();
        after.host.plane().now = now;
        for service in services {
            after.put(service.clone()).unwrap();
        }
        after.events();
        after.controller.take_up_health(known.clone()).unwrap();
        after
    };
    let mut same = after(&[checked(80, &[1, 2]), checked(81, &[3])]);
    assert_eq!(same.told(), before.told());
    assert_eq!(same.controller.known_health(), known);
    assert_eq!(
        same.events(),
        ["in service: true, 1 of 1", "192.0.2.1 announced: true"]
    );
    // What is turned by checks from now on is the same, too.
    before.events();
    for session in [&mut before, &mut same] {
        session.run(SECOND * 20, "23");
    }
    assert_eq!(same.events(), before.events());
    assert_eq!(same.told(), before.told());
    // Of what one does not have it takes nothing.
    let other = after(&[checked(82, &[1])]);
    assert_eq!(other.told(), "192.0.2.1:82/tcp 10.0.0.1*1 down");
    assert!(other.controller.known_health().open.is_empty());
}

#[test]
fn an_address_is_announced_while_one_of_its_services_is() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.put(service(443, &[1])).unwrap();
    session.events();
    let existed = |diff: Diff| !diff.is_empty();
    assert_eq!(
        session.controller.delete_service(&key(80)).map(existed),
        Ok(true)
    );
    assert_eq!(session.events(), ["192.0.2.1:80/tcp deleted"]);
    assert_eq!(
        session.controller.delete_service(&key(80)).map(existed),
        Ok(false)
    );
    session.put(service(443, &[])).unwrap();
    assert_eq!(
        session.events(),
        [
            "192.0.2.1:443/tcp changed",
            "in service: false, 0 of 1",
            "192.0.2.1 announced: false"
        ]
    );
}

#[test]
fn a_check_that_comes_later_takes_nobody_out_of_service() {
    let mut session = Session::new();
    session.put(service(80, &[1, 2])).unwrap();
    session.events();
    session.put(checked(80, &[1, 2, 3])).unwrap();
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 up 10.0.0.3*1 down"
    );
    session.run(SECOND * 8, "13");
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 down 10.0.0.3*1 up"
    );
    // Without checks again: all are taken for healthy.
    session.put(service(80, &[1, 2, 3])).unwrap();
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 up 10.0.0.2*1 up 10.0.0.3*1 up"
    );
}

#[test]
fn a_server_that_drains_or_is_down() {
    let mut session = Session::new();
    session.put(checked(80, &[1, 2])).unwrap();
    session.run(SECOND, "12");
    let key = key(80);
    let mut set = |last: u8, state| {
        let address = IpAddr::from([10, 0, 0, last]);
        let server = DeclaredServer {
            weight: Weight::ONE,
            state,
            check_port: None,
        };
        session
            .controller
            .put_server(&key, (address, server), false)
            .unwrap();
    };
    set(1, State::Draining);
    set(2, State::Down);
    // Nobody takes new flows: the service is withdrawn.
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 draining 10.0.0.2*1 down"
    );
    // A draining server is still asked, and loses its flows when it dies; one that is down is left
    // alone.
    session.run(SECOND * 8, "2");
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.1*1 down 10.0.0.2*1 down"
    );
    assert!(
        session
            .controller
            .server_state(&key, [10, 0, 0, 2].into())
            .is_none()
    );
}

#[test]
fn a_refused_change_changed_nothing() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.events();
    session.host.plane().refuse = true;
    let refused = session.put(checked(80, &[1, 2]));
    assert_eq!(
        refused,
        Err(Error::Feature {
            feature: Feature::Balancer,
            why: "the kernel has no memory".into()
        })
    );
    assert_eq!(session.events(), [""; 0]);
    assert!(session.controller.next_check().is_none());
    let key = key(80);
    assert_eq!(session.controller.service(&key).unwrap().servers.len(), 1);
}

/// The audit log has such lines, and is given away.
#[test]
fn that_secrets_of_a_check_have_changed_is_said_and_they_are_not() {
    let with = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let mut service = checked(80, &[1]);
        service.check.as_mut().unwrap().kind = Kind::Command(health::Command(words));
        Some(Arc::new(service))
    };
    let change = ServiceChange {
        key: key(80),
        from: with(&["/probe", "--password", "hunter1"]),
        to: with(&["/probe", "--password", "hunter2"]),
    };
    let every = "every 2000 ms within 1000 ms, rise 2, fall 3";
    assert_eq!(
        change.fields(),
        [FieldChange {
            field: "check".into(),
            from: format!("command /probe (2 words left out) {every}"),
            to: format!("command /probe (2 words left out) {every} (what is left out has changed)"),
        }]
    );
}

#[test]
fn a_whole_configuration_at_once() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.put(service(81, &[1])).unwrap();
    let first = DeclaredService {
        sticky: true,
        min_healthy: 0,
        ..service(80, &[2])
    };
    let wanted = [first, service(82, &[3])];
    let wanted = wanted.map(|service| (service.key, Arc::new(service)));
    let wanted = DeclaredServices::from(wanted);
    let words = |diff: Diff| -> Vec<String> {
        let detail = |field: &FieldChange| {
            let FieldChange { field, from, to } = field;
            format!("{field}: {from} -> {to}")
        };
        let line = |change: &ServiceChange| match (&change.from, &change.to) {
            (None, _) => format!("+ {}", change.key),
            (_, None) => format!("- {}", change.key),
            _ => {
                let details: Vec<_> = change.fields().iter().map(detail).collect();
                format!("~ {} {}", change.key, details.join(", "))
            }
        };
        diff.services.iter().map(line).collect()
    };
    let expected = [
        "~ 192.0.2.1:80/tcp sticky: false -> true, min_healthy: 1 -> 0, server 10.0.0.2: none -> \
         up weight 1, server 10.0.0.1: up weight 1 -> none",
        "- 192.0.2.1:81/tcp",
        "+ 192.0.2.1:82/tcp",
    ];
    let before = session.told();
    let dry = session
        .controller
        .apply_services(wanted.clone(), None, true)
        .unwrap();
    assert_eq!(words(dry), expected);
    assert_eq!(session.told(), before);
    let done = session
        .controller
        .apply_services(wanted.clone(), None, false)
        .unwrap();
    assert_eq!(words(done), expected);
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.2*1 up; 192.0.2.1:82/tcp 10.0.0.3*1 up"
    );
    assert_eq!(
        session.controller.apply_services(wanted, None, false),
        Ok(Diff::default())
    );
}

#[test]
fn servers_that_a_service_has_less_are_counted() {
    let mut session = Session::new();
    session.put(service(80, &[1, 2, 3])).unwrap();
    let mut servers_gone = |servers: &[u8]| {
        let wanted = service(80, servers);
        let wanted = [(wanted.key, Arc::new(wanted))].into();
        let dry = session.controller.apply_services(wanted, None, true);
        dry.unwrap().deleted().servers
    };
    assert_eq!(servers_gone(&[4]), 2);
    assert_eq!(servers_gone(&[4, 5, 6]), 0);
}

/// A document with a NIC, a service and interfaces.
fn document(session: &Session) -> Config {
    let nic = world::nic("vnic_1", 1, &[]);
    let service = service(80, &[1]);
    let balanced = vec![interface("eth1", None), interface("eth2", Some(Mode::Tc))];
    let routed = vec![interface("eth3", None)];
    let joined = vec![interface("eth4", None)];
    Config {
        nics: [(nic.id.clone(), nic)].into(),
        services: Some([(service.key, Arc::new(service))].into()),
        interfaces: [
            (Feature::Balancer, balanced),
            (Feature::Router, routed),
            (Feature::Uplink, joined),
        ]
        .into(),
        ..session.controller.config()
    }
}

#[test]
fn a_document_of_all_parts_is_one_change() {
    let mut session = Session::new();
    let journal = RecordedJournal::default();
    session.controller = session.controller.with_journal(Box::new(journal.clone()));
    let events = session.controller.subscribe();
    session.events = events;
    let wanted = document(&session);
    let dry = session.controller.apply(wanted.clone(), true).unwrap();
    assert!(session.events().is_empty() && journal.0.lock().unwrap().0.is_empty());
    let author = Author::Client("a test".into());
    session.controller.set_author(author.clone());
    assert_eq!(session.controller.apply(wanted.clone(), false), Ok(dry));
    assert_eq!(session.controller.config(), wanted);
    assert_eq!(
        session.events(),
        [
            "nic vnic_1",
            "192.0.2.1:80/tcp changed",
            "balancer eth1 None",
            "balancer eth2 Some(Tc)",
            "router eth3 None",
            "uplink eth4 None",
            "in service: true, 1 of 1",
            "192.0.2.1 announced: true",
        ],
        "in one order"
    );
    let recorded = std::mem::take(&mut journal.0.lock().unwrap().0);
    let [change] = recorded.as_slice() else {
        panic!("{recorded:?}")
    };
    assert_eq!((&change.author, change.objects.len()), (&author, 6));
    assert!(matches!(
        &change.objects[1],
        ObjectChange::Service(_, BeforeAfter { before: None, after: Some(service) })
            if service.servers.len() == 1
    ));
    // Applied again it changes nothing, and nobody hears of it.
    assert_eq!(session.controller.apply(wanted, false), Ok(Diff::default()));
    assert!(session.events().is_empty() && journal.0.lock().unwrap().0.is_empty());
    let all = session.controller.amounts();
    assert_eq!((all.services, all.servers, all.uplinks), (1, 1, 1));
    assert_eq!((all.balancer_interfaces, all.router_interfaces), (2, 1));
    let emptied = session.controller.apply(Config::empty(), true).unwrap();
    // Its server goes with the service.
    let gone = Amounts { servers: 0, ..all };
    assert_eq!(emptied.deleted(), gone);
}

/// By which the history keeps room for the others.
#[test]
fn a_change_of_who_has_a_part_is_recorded_as_a_part_s() {
    let mut session = Session::new();
    let journal = RecordedJournal::default();
    session.controller = session.controller.with_journal(Box::new(journal.clone()));
    let part = Part {
        networks: vec![42..=42],
        groups: vec![IdPattern::Id("b".into())],
        nics: None,
        limits: PartLimits::default(),
    };
    for (id, parts) in [("a", vec![]), ("b", vec![part])] {
        session.controller.set_parts(parts);
        let group = Group::new(world::group_id(id));
        session.controller.put_group(group).unwrap();
    }
    let recorded = &journal.0.lock().unwrap().0;
    let of_part: Vec<bool> = recorded.iter().map(|change| change.of_part).collect();
    assert_eq!(of_part, [false, true]);
}

#[test]
fn what_was_not_made_goes_as_what_was_does() {
    let mut session = Session::new();
    let journal = RecordedJournal::default();
    session.controller = session.controller.with_journal(Box::new(journal.clone()));
    let recorded = || -> Vec<ObjectChange> {
        let changes = std::mem::take(&mut journal.0.lock().unwrap().0);
        changes.into_iter().flat_map(|one| one.objects).collect()
    };
    let (unmade, empty) = (document(&session), Config::empty());
    session.controller.set_unmade(unmade.clone());
    let dry = session.controller.apply(empty.clone(), true);
    assert_eq!(dry, Ok(Diff::between(&unmade, &empty)));
    assert!(recorded().is_empty());

    let id = world::nic_id("vnic_1");
    let deleted = session.controller.delete_nic(&id).unwrap();
    assert_eq!(deleted.to_string(), "- nic vnic_1\n");
    assert!(matches!(
        &recorded()[..],
        [ObjectChange::Nic(gone, BeforeAfter { after: None, .. })] if *gone == id
    ));
    assert!(session.controller.delete_nic(&id).unwrap().is_empty());
    let eth1 = session
        .controller
        .delete_interface(Feature::Balancer, "eth1");
    assert_eq!((eth1, recorded().len()), (Ok(true), 1));
    // Of services and interfaces this says nothing.
    let said = session.controller.apply(Config::default(), false).unwrap();
    assert!(said.is_empty() && recorded().is_empty());
    // What is declared anew is made.
    session.put(service(80, &[1])).unwrap();
    let left = session.controller.unmade();
    assert!(left.services.as_ref().unwrap().is_empty());
    recorded();
    session.controller.apply(empty.clone(), false).unwrap();
    assert_eq!(recorded().len(), 4, "the service and three interfaces");
    assert!(Diff::between(session.controller.unmade(), &empty).is_empty());

    session.controller.set_unmade(unmade);
    let none = DeclaredServices::new();
    let apply =
        |list, session: &mut Session| session.controller.apply_services(none.clone(), list, false);
    assert_eq!(apply(None, &mut session).unwrap().services.len(), 1);
    assert_eq!(recorded().len(), 1);
    let eth1 = vec![interface("eth1", None)];
    apply(Some(eth1), &mut session).unwrap();
    let left = session.controller.unmade();
    assert!(left.interfaces[&Feature::Balancer].is_empty());
    assert_eq!(
        (left.nics.len(), left.interfaces[&Feature::Router].len()),
        (1, 1)
    );
}

#[test]
fn what_a_late_step_refuses_is_undone_in_all_parts() {
    let mut session = Session::new();
    let journal = RecordedJournal::default();
    session.controller = session.controller.with_journal(Box::new(journal.clone()));
    session.put(service(81, &[7])).unwrap();
    let eth1 = interface("eth1", None);
    session
        .controller
        .add_interface(Feature::Balancer, eth1)
        .unwrap();
    let (before, told) = (session.controller.config(), session.told());
    let attached = session.attached(Feature::Balancer);
    let mut wanted = document(&session);
    wanted.interfaces.insert(
        Feature::Balancer,
        vec![
            interface("eth2", None),
            interface("eth1", Some(Mode::Generic)),
        ],
    );
    session.events();
    journal.0.lock().unwrap().0.clear();
    session.world.log();

    // The last of the interfaces.
    session.host.plane().refused = vec!["eth3"];
    let refused = session.controller.apply(wanted.clone(), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "interface eth3: there is no such interface"
    );
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    // The journal.
    session.host.plane().refused = vec![];
    journal.0.lock().unwrap().1 = true;
    let refused = session.controller.apply(wanted.clone(), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the change cannot be recorded: the disk is full"
    );
    // The workers: what was recorded is recorded the other way round.
    journal.0.lock().unwrap().1 = false;
    session.world.world().refuse_publish = true;
    session.controller.apply(wanted.clone(), false).unwrap_err();
    session.world.world().refuse_publish = false;
    let recorded = std::mem::take(&mut journal.0.lock().unwrap().0);
    assert_eq!(recorded.len(), 2);
    assert_eq!(recorded[0].clone().inverse(), recorded[1]);

    assert_eq!(session.controller.config(), before);
    assert_eq!(session.told(), told);
    assert_eq!(session.attached(Feature::Balancer), attached);
    assert!(session.attached(Feature::Router).is_empty());
    assert!(session.world.world().open.is_empty());
    assert!(session.events().is_empty());
    assert_eq!(
        session.world.log(),
        [
            "open vnic_1 /run/butterfly/qemu-vhost-vnic_1",
            "close vnic_1"
        ]
        .repeat(3)
    );
    // And then nothing is in the way.
    session.controller.apply(wanted, false).unwrap();
    assert_eq!(
        session.attached(Feature::Balancer),
        [
            ("eth1".into(), Mode::Generic, Some(Mode::Generic)),
            ("eth2".into(), Mode::Native, None)
        ]
    );
}

#[test]
fn parts_that_are_not_given_stay() {
    let mut session = Session::new();
    let wanted = document(&session);
    session.controller.apply(wanted.clone(), false).unwrap();
    let nobody = Config {
        services: None,
        interfaces: BTreeMap::new(),
        ..Config::default()
    };
    session.controller.apply(nobody, false).unwrap();
    let now = session.controller.config();
    assert!(now.nics.is_empty());
    assert_eq!(
        (&now.services, &now.interfaces),
        (&wanted.services, &wanted.interfaces)
    );
    // What is given is exactly this.
    let empty = Config {
        services: Some(DeclaredServices::new()),
        interfaces: [(Feature::Balancer, vec![])].into(),
        ..Config::default()
    };
    let diff = session.controller.apply(empty, false).unwrap();
    assert_eq!(
        diff.to_string(),
        "- service 192.0.2.1:80/tcp\n- balancer interface eth1\n- balancer interface eth2\n"
    );
    assert!(session.attached(Feature::Balancer).is_empty());
    assert_eq!(session.attached(Feature::Router).len(), 1);
}

#[test]
fn what_goes_goes_first_and_any_mode_will_do_where_none_is_said() {
    let mut session = Session::new();
    let declare = |session: &mut Session, list: &[(&str, Option<Mode>)]| {
        let list = list.iter().map(|(name, mode)| interface(name, *mode));
        let config = Config {
            interfaces: [(Feature::Router, list.collect())].into(),
            ..Config::default()
        };
        session.controller.apply(config, false).unwrap().to_string()
    };
    let (native, generic) = (Some(Mode::Native), Some(Mode::Generic));
    declare(
        &mut session,
        &[("eth1", native), ("eth2", None), ("eth3", generic)],
    );
    assert_eq!(
        declare(
            &mut session,
            &[("eth4", native), ("eth2", native), ("eth3", None)]
        ),
        "- router interface eth1\n~ router interface eth2: mode any -> native\n\
         + router interface eth4\n"
    );
    assert_eq!(
        declare(
            &mut session,
            &[("eth4", native), ("eth2", native), ("eth3", None)]
        ),
        "",
        "and then all is so"
    );
    let twice = vec![interface("eth1", None); 2];
    let config = Config {
        interfaces: [(Feature::Router, twice)].into(),
        ..Config::default()
    };
    let refused = session.controller.apply(config, false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "interface eth1 of the router is there twice"
    );
    assert_eq!(
        Interface::new("a/b", None).unwrap_err().to_string(),
        "interface: name 'a/b' is no name of an interface"
    );
}

#[test]
fn the_router_s_access_list_is_in_force_before_its_interfaces() {
    let mut session = Session::new();
    let list = |rule: &str| {
        Arc::new(AccessList {
            rules: vec![rule.parse().unwrap()],
            default_allows: false,
        })
    };
    let declare = |session: &mut Session, names: &[&str], acl: Option<Arc<AccessList>>| {
        let interfaces = names.iter().map(|name| interface(name, None)).collect();
        let config = Config {
            interfaces: [(Feature::Router, interfaces)].into(),
            router_acl: Some(acl),
            ..Config::default()
        };
        session
            .controller
            .apply(config, false)
            .map(|diff| diff.to_string())
    };
    let (tcp, udp) = (list("allow proto tcp"), list("allow proto udp"));
    assert_eq!(
        declare(&mut session, &["eth1"], Some(tcp.clone())).unwrap(),
        "+ router interface eth1\n+ router access list:\n    + allow proto tcp\n    \
         ~ no list -> default deny\n"
    );
    assert_eq!(session.host.plane().judged, [0]);
    assert_eq!(session.host.plane().acl.as_ref(), Some(&*tcp));
    assert_eq!(
        declare(&mut session, &["eth1"], Some(tcp.clone())).unwrap(),
        ""
    );
    // What is not spoken of stays.
    session.controller.apply(Config::default(), false).unwrap();
    assert_eq!(
        session.controller.config().router_acl,
        Some(Some(tcp.clone()))
    );
    // A later step refuses: the list is what it was.
    session.host.plane().refused = vec!["eth9"];
    declare(&mut session, &["eth1", "eth9"], Some(udp.clone())).unwrap_err();
    assert_eq!(session.host.plane().acl.as_ref(), Some(&*tcp));
    assert_eq!(session.controller.config().router_acl, Some(Some(tcp)));
    // The journal has both, and undoes them.
    let journal = RecordedJournal::default();
    session.controller = session.controller.with_journal(Box::new(journal.clone()));
    declare(&mut session, &["eth1"], None).unwrap();
    assert_eq!(session.host.plane().acl, None);
    let recorded = std::mem::take(&mut journal.0.lock().unwrap().0);
    assert!(matches!(
        &recorded[0].objects[..],
        [ObjectChange::RouterAcl(BeforeAfter {
            before: Some(_),
            after: None
        })]
    ));
    let many = AccessList {
        rules: vec![udp.rules[0].clone(); 16_385],
        default_allows: false,
    };
    assert_eq!(
        declare(&mut session, &["eth1"], Some(Arc::new(many)))
            .unwrap_err()
            .kind(),
        ErrorKind::Quota
    );
}

#[test]
fn an_interface_by_itself() {
    let mut session = Session::new();
    let status = session
        .controller
        .add_interface(Feature::Router, interface("eth1", None))
        .unwrap();
    assert_eq!((status.mode, status.asked), (Some(Mode::Native), None));
    // It goes, and comes back: told while it is declared.
    let gone = InterfaceStatus {
        mode: None,
        why: "it has gone".into(),
        ..status
    };
    session
        .controller
        .interface_state(Feature::Router, gone.clone());
    session
        .controller
        .interface_state(Feature::Balancer, gone.clone());
    let deleted = session.controller.delete_interface(Feature::Router, "eth1");
    assert_eq!(deleted, Ok(true));
    let deleted = session.controller.delete_interface(Feature::Router, "eth1");
    assert_eq!(deleted, Ok(false));
    session.controller.interface_state(Feature::Router, gone);
    assert_eq!(
        session.events(),
        [
            "router eth1 None",
            "router eth1: None it has gone",
            "router eth1 deleted"
        ]
    );
}

/// It is a change of nothing that is declared: no journal hears of it, and none refuses it.
#[test]
fn an_interface_that_is_attached_anew_is_declared_as_before() {
    let mut session = Session::new();
    let control = &mut session.controller;
    for (name, mode) in [("eth1", None), ("eth2", Some(Mode::Generic))] {
        control
            .add_interface(Feature::Balancer, interface(name, mode))
            .unwrap();
    }
    control
        .add_interface(Feature::Router, interface("eth3", None))
        .unwrap();
    session.events();
    let control = &mut session.controller;
    let before = control.config();
    let _ = control.take_changed();
    let again = control.reattach_balancer("eth1").unwrap();
    assert_eq!((again.mode, again.asked), (Some(Mode::Native), None));
    let again = control.reattach_balancer("eth2").unwrap();
    assert_eq!(again.asked, Some(Mode::Generic));
    session.host.plane().refused.push("eth1");
    let control = &mut session.controller;
    let refused = control.reattach_balancer("eth1").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    for unknown in ["eth0", "eth3"] {
        let refused = control.reattach_balancer(unknown).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        let why = format!("nothing is balanced on interface '{unknown}'");
        assert_eq!(refused.to_string(), why);
    }
    assert!(control.config() == before, "it is declared as before");
    assert_eq!(control.take_changed(), None);
}
