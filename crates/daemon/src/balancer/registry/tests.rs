//! Sessions with the registry: a data plane that writes down what it is told, a clock of its own,
//! servers that work or not.

use std::sync::{Arc, Mutex};

use api::v1;
use tokio::sync::broadcast::Receiver;

use super::super::convert;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The last configuration, in words; refuses when it is told to.
#[derive(Clone, Default)]
struct Plane {
    told: Arc<Mutex<String>>,
    /// All configurations.
    history: Arc<Mutex<Vec<String>>>,
    refuse: Arc<Mutex<bool>>,
}

impl Forwarding for Plane {
    fn apply(&mut self, services: &[Compiled]) -> Result<(), String> {
        if *self.refuse.lock().unwrap() {
            return Err("the kernel has no memory".into());
        }
        let words = |service: &Compiled| {
            let servers = service
                .servers
                .iter()
                .map(|(address, weight, state)| format!(" {address}*{weight} {state}"));
            format!("{}{}", service.key, servers.collect::<String>())
        };
        let told = services.iter().map(words).collect::<Vec<_>>().join("; ");
        self.history.lock().unwrap().push(told.clone());
        *self.told.lock().unwrap() = told;
        Ok(())
    }
}

struct Session {
    registry: Registry,
    plane: Plane,
    events: Receiver<Event>,
    now: Duration,
}

impl Session {
    fn new() -> Session {
        let plane = Plane::default();
        let registry = Registry::new(Box::new(plane.clone()), Programs::default());
        let events = registry.subscribe();
        Session {
            registry,
            plane,
            events,
            now: Duration::ZERO,
        }
    }

    fn put(&mut self, service: v1::Service) -> Result<(), Error> {
        self.registry
            .put_service(self.now, convert::service(service)?, false)
    }

    /// Runs the clock for a while; the servers whose addresses end in these digits work.
    fn run(&mut self, time: Duration, well: &str) {
        let end = self.now + time;
        while let Some(at) = self.registry.next_check().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            for probe in self.registry.checks(self.now) {
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
                self.registry.checked(self.now, probe.job, outcome).unwrap();
            }
        }
        self.now = end;
    }

    fn told(&self) -> String {
        self.plane.told.lock().unwrap().clone()
    }

    /// The events since the last call, in words.
    fn events(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            events.push(match event.kind {
                EventKind::Changed(key) => format!("{key} changed"),
                EventKind::Deleted(key) => format!("{key} deleted"),
                EventKind::Health {
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
            });
        }
        events
    }
}

fn key(port: u32) -> v1::ServiceKey {
    v1::ServiceKey {
        vip: "192.0.2.1".into(),
        port,
        ..Default::default()
    }
}

fn service(port: u32, servers: &[u8]) -> v1::Service {
    let server = |last: &u8| v1::Server {
        address: format!("10.0.0.{last}"),
        ..Default::default()
    };
    v1::Service {
        key: Some(key(port)),
        servers: servers.iter().map(server).collect(),
        ..Default::default()
    }
}

fn checked(port: u32, servers: &[u8]) -> v1::Service {
    let check = v1::HealthCheck {
        kind: Some(v1::health_check::Kind::Tcp(v1::TcpCheck {})),
        ..Default::default()
    };
    v1::Service {
        check: Some(check),
        ..service(port, servers)
    }
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
    assert!(session.registry.next_check().is_none());
}

#[test]
fn a_service_comes_and_goes_with_its_servers() {
    let mut session = Session::new();
    session
        .put(v1::Service {
            min_healthy: Some(2),
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
    let jobs = session.registry.checks(session.now);
    let down = "192.0.2.1:80/tcp 10.0.0.1*1 down 10.0.0.2*1 down 10.0.0.3*1 down";
    let mut answer = |nth: usize, outcome: Result<(), String>| {
        let job = jobs[nth].job.clone();
        session.registry.checked(session.now, job, outcome).unwrap();
    };
    answer(0, Ok(()));
    answer(2, Ok(()));
    assert_eq!(
        session.plane.told.lock().unwrap().as_str(),
        down,
        "one has not answered yet"
    );
    answer(1, Err("timed out".into()));
    // Whole first: a connection from before knows its server by it, whether or not another one
    // works.
    let history = session.plane.history.lock().unwrap().clone();
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
fn an_address_is_announced_while_one_of_its_services_is() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.put(service(443, &[1])).unwrap();
    session.events();
    let first = convert::key(&key(80)).unwrap();
    assert_eq!(
        session.registry.delete_service(session.now, &first),
        Ok(true)
    );
    assert_eq!(session.events(), ["192.0.2.1:80/tcp deleted"]);
    assert_eq!(
        session.registry.delete_service(session.now, &first),
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
    let key = convert::key(&key(80)).unwrap();
    let mut set = |last: u8, state| {
        let address = IpAddr::from([10, 0, 0, last]);
        let server = Server {
            weight: 1,
            state,
            check_port: None,
        };
        session
            .registry
            .put_server(session.now, &key, (address, server), false)
            .unwrap();
    };
    set(1, ServerState::Draining);
    set(2, ServerState::Down);
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
    assert!(session.registry.state(&key, [10, 0, 0, 2].into()).is_none());
}

#[test]
fn a_refused_change_changed_nothing() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.events();
    *session.plane.refuse.lock().unwrap() = true;
    let refused = session.put(checked(80, &[1, 2]));
    assert_eq!(
        refused,
        Err(Error::Unavailable("the kernel has no memory".into()))
    );
    assert_eq!(session.events(), [""; 0]);
    assert!(session.registry.next_check().is_none());
    let key = convert::key(&key(80)).unwrap();
    assert_eq!(session.registry.service(&key).unwrap().servers.len(), 1);
}

#[test]
fn a_whole_configuration_at_once() {
    let mut session = Session::new();
    session.put(service(80, &[1])).unwrap();
    session.put(service(81, &[1])).unwrap();
    let wanted = v1::BalancerConfig {
        services: vec![
            v1::Service {
                sticky: true,
                min_healthy: Some(0),
                ..service(80, &[2])
            },
            service(82, &[3]),
        ],
    };
    let wanted = convert::config(wanted).unwrap();
    let words = |changes: Vec<Change>| -> Vec<String> {
        let line = |change: Change| match change.kind {
            ChangeKind::Created => format!("+ {}", change.key),
            ChangeKind::Deleted => format!("- {}", change.key),
            ChangeKind::Updated(details) => format!("~ {} {}", change.key, details.join(", ")),
        };
        changes.into_iter().map(line).collect()
    };
    let expected = [
        "~ 192.0.2.1:80/tcp sticky: false -> true, min_healthy: 1 -> 0, server 10.0.0.2: none -> up weight 1, \
         server 10.0.0.1: up weight 1 -> none",
        "- 192.0.2.1:81/tcp",
        "+ 192.0.2.1:82/tcp",
    ];
    let before = session.told();
    let dry = session
        .registry
        .apply(session.now, wanted.clone(), true)
        .unwrap();
    assert_eq!(words(dry), expected);
    assert_eq!(session.told(), before);
    let done = session
        .registry
        .apply(session.now, wanted.clone(), false)
        .unwrap();
    assert_eq!(words(done), expected);
    assert_eq!(
        session.told(),
        "192.0.2.1:80/tcp 10.0.0.2*1 up; 192.0.2.1:82/tcp 10.0.0.3*1 up"
    );
    assert_eq!(
        session.registry.apply(session.now, wanted, false),
        Ok(vec![])
    );
}
