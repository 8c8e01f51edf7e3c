//! Flows keep their servers: while the set of servers changes, on other CPUs, under floods; and are
//! counted exactly.

use std::collections::BTreeMap;
use std::time::Duration;

use butterfly_balancer::{
    FlowState, Options, Protocol, Reason, Server, Service, State, Weight, layout,
};
use testkit::cpus;
use wire::parse::TcpFlags;

use super::stage::*;

trials! {
    flows_are_spread_and_stay_without_any_change,
    flows_stay_when_servers_come_and_go_and_drain,
    a_flow_that_changes_cpu_while_servers_change_stays,
    the_flows_of_a_server_that_is_down_go_elsewhere_and_stay_there,
    floods_displace_themselves_and_no_established_flow,
    what_does_not_fit_the_table_is_said_and_stays_all_the_same,
    with_as_many_flows_as_asked_for_about_all_are_remembered,
    datagram_flows_stay_too,
    a_client_of_a_sticky_service_stays_with_its_server,
    counters_are_exact,
    flows_can_be_listed_and_explained,
    a_flow_that_goes_on_behind_its_end_is_established_again,
    a_silent_flow_is_not_moved_by_who_begins_it_anew,
    a_fleet_with_one_configuration_chooses_alike,
    a_service_without_servers_drops_and_says_so,
}

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;

fn https(v6: bool) -> butterfly_balancer::ServiceKey {
    key(v6, Protocol::Tcp, PORT)
}

/// Opens a flow for each port, as far as its first ACK; gives their servers.
fn open(balancer: &Balancer, v6: bool, ports: std::ops::Range<u16>) -> BTreeMap<u16, u8> {
    let mut servers = BTreeMap::new();
    for port in ports {
        let server = goes_to(balancer, &tcp(v6, 1, port, SYN)).expect("the SYN goes to a server");
        assert_eq!(
            goes_to(balancer, &tcp(v6, 1, port, ACK)),
            Some(server),
            "the handshake stays there"
        );
        servers.insert(port, server);
    }
    servers
}

/// How many of these flows a packet of which no longer goes to its server.
fn lost(balancer: &Balancer, v6: bool, flows: &BTreeMap<u16, u8>) -> usize {
    let stray = |(port, server): &(&u16, &u8)| {
        goes_to(balancer, &tcp(v6, 1, **port, ACK)) != Some(**server)
    };
    flows.iter().filter(stray).count()
}

fn flows_are_spread_and_stay_without_any_change() {
    let mut balancer = stage();
    for v6 in [false, true] {
        apply(&mut balancer, [service(https(v6), 4)]);
        let flows = open(&balancer, v6, 1000..1400);
        for n in 1..=4 {
            let share = flows.values().filter(|server| **server == n).count();
            assert!(
                (60..140).contains(&share),
                "server {n} has {share} of 400 flows"
            );
        }
        assert_eq!(lost(&balancer, v6, &flows), 0);
    }
}

fn flows_stay_when_servers_come_and_go_and_drain() {
    for (v6, remember_all) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut balancer = stage_with(&Options {
            max_flows: 8192,
            remember_all,
            ..small()
        });
        apply(&mut balancer, [service(https(v6), 4)]);
        let mut flows = open(&balancer, v6, 1000..1400);
        apply(&mut balancer, [service(https(v6), 9)]);
        assert_eq!(lost(&balancer, v6, &flows), 0, "five came");
        flows.extend(open(&balancer, v6, 2000..2200));
        let draining = Server::new(server(v6, 1))
            .expect("a host")
            .state(State::Draining);
        balancer
            .set_server(https(v6), draining)
            .expect("it is there");
        assert_eq!(lost(&balancer, v6, &flows), 0, "one drains");
        let newer = open(&balancer, v6, 3000..3200);
        assert!(
            newer.values().all(|server| *server != 1),
            "who drains gets nothing new"
        );
        balancer
            .remove_server(https(v6), server(v6, 2))
            .expect("it is there");
        flows.retain(|_, server| *server != 2);
        assert_eq!(
            lost(&balancer, v6, &flows),
            0,
            "one left: the others' flows stay"
        );
        // By Maglev alone, many would have moved.
        balancer
            .remove_server(https(v6), server(v6, 1))
            .expect("it is there");
        flows.retain(|_, server| *server != 1);
        assert_eq!(lost(&balancer, v6, &flows), 0);
    }
}

/// The trap: a table for each CPU loses a flow that moved to another CPU when the set of servers
/// changes too.
fn a_flow_that_changes_cpu_while_servers_change_stays() {
    let allowed = cpus::allowed();
    if allowed.len() < 2 {
        eprintln!("skipped: one CPU only, and the flows have to move to another");
        return;
    }
    for mut balancer in stages() {
        apply(&mut balancer, [service(https(false), 4)]);
        cpus::stay_on(&allowed[..1]);
        let flows = open(&balancer, false, 1000..1400);
        cpus::stay_on(&allowed[1..2]);
        apply(&mut balancer, [service(https(false), 9)]);
        assert_eq!(lost(&balancer, false, &flows), 0);
        apply(&mut balancer, [service(https(false), 5)]);
        cpus::stay_on(&allowed[..1]);
        assert_eq!(lost(&balancer, false, &flows), 0);
    }
    // The thread is the next trial's too.
    cpus::stay_on(&allowed);
}

fn the_flows_of_a_server_that_is_down_go_elsewhere_and_stay_there() {
    for mut balancer in stages() {
        apply(&mut balancer, [service(https(false), 4)]);
        let flows = open(&balancer, false, 1000..1200);
        let down = Server::new(server(false, 3))
            .expect("a host")
            .state(State::Down);
        balancer
            .set_server(https(false), down)
            .expect("it is there");
        let mut moved = BTreeMap::new();
        for (port, was) in &flows {
            let now = goes_to(&balancer, &tcp(false, 1, *port, ACK)).expect("there are others");
            assert!(now != 3 && (*was == 3 || now == *was));
            moved.insert(*port, now);
        }
        balancer
            .set_server(https(false), down.state(State::Up))
            .expect("it is there");
        assert_eq!(lost(&balancer, false, &moved), 0, "they do not move back");
    }
}

fn floods_displace_themselves_and_no_established_flow() {
    for mut balancer in stages() {
        apply(
            &mut balancer,
            [
                service(https(false), 4),
                service(key(false, Protocol::Udp, PORT), 4),
            ],
        );
        let flows = open(&balancer, false, 1000..1400);
        // Each fills the table, which has 2,048 words, several times.
        for n in 2..12 {
            for port in 1..1000 {
                goes_to(&balancer, &tcp(false, n, port, SYN));
                goes_to(&balancer, &tcp(false, n + 100, port, ACK));
                goes_to(&balancer, &udp(false, n, port));
            }
        }
        apply(
            &mut balancer,
            [
                service(https(false), 9),
                service(key(false, Protocol::Udp, PORT), 4),
            ],
        );
        assert_eq!(lost(&balancer, false, &flows), 0);
    }
}

fn what_does_not_fit_the_table_is_said_and_stays_all_the_same() {
    let mut balancer = stage_that_remembers_all();
    apply(&mut balancer, [service(https(false), 4)]);
    let flows = open(&balancer, false, 1..4001);
    let counters = balancer.counters().expect("maps can be read");
    assert!(counters.reason(Reason::TableFull) > 0);
    assert_eq!(
        lost(&balancer, false, &flows),
        0,
        "nothing has changed, so Maglev knows"
    );
    apply(&mut balancer, [service(https(false), 5)]);
    assert_eq!(
        lost(&balancer, false, &flows),
        0,
        "what is not known began before the change"
    );
}

fn with_as_many_flows_as_asked_for_about_all_are_remembered() {
    let mut balancer = stage_that_remembers_all();
    apply(&mut balancer, [service(https(false), 4)]);
    open(&balancer, false, 1..1025);
    let full = balancer
        .counters()
        .expect("maps can be read")
        .reason(Reason::TableFull);
    assert!(
        full <= 20,
        "{full} packets of 2,048 whose flow was not remembered"
    );
}

fn datagram_flows_stay_too() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let mut balancer = stage();
        apply(&mut balancer, [service(key(true, protocol, PORT), 4)]);
        let packet = |port, chunk| match protocol {
            Protocol::Udp => udp(true, 1, port),
            _ => arrives(true, 1).sctp(port, PORT, 7, chunk).build(),
        };
        let before: Vec<_> = (1000..1200)
            .map(|port| goes_to(&balancer, &packet(port, 1)))
            .collect();
        apply(&mut balancer, [service(key(true, protocol, PORT), 9)]);
        let after: Vec<_> = (1000..1200)
            .map(|port| goes_to(&balancer, &packet(port, 0)))
            .collect();
        assert_eq!(before, after, "{protocol}");
        assert!(before.iter().all(Option::is_some));
    }
}

fn a_client_of_a_sticky_service_stays_with_its_server() {
    for mut balancer in stages() {
        apply(&mut balancer, [service(https(false), 4).sticky(true)]);
        let of = |balancer: &Balancer, client, port| {
            goes_to(balancer, &tcp(false, client, port, SYN)).expect("a server")
        };
        let servers: Vec<u8> = (0..200).map(|client| of(&balancer, client, 1000)).collect();
        (0..200).for_each(|client| {
            assert!(goes_to(&balancer, &tcp(false, client, 1000, ACK)).is_some())
        });
        for (client, server) in (0..200).zip(&servers) {
            assert!(
                (2000..2005).all(|port| of(&balancer, client, port) == *server),
                "client {client}"
            );
        }
        assert!((1..=4).all(|n| servers.contains(&n)));
        // New servers get new clients; who drains loses its clients' new flows, not the old ones.
        apply(&mut balancer, [service(https(false), 9).sticky(true)]);
        assert!(
            (0..200)
                .zip(&servers)
                .all(|(client, server)| of(&balancer, client, 3000) == *server)
        );
        let draining = Server::new(server(false, 1))
            .expect("a host")
            .state(State::Draining);
        balancer
            .set_server(https(false), draining)
            .expect("it is there");
        for (client, _) in (0..200).zip(&servers).filter(|(_, server)| **server == 1) {
            assert_eq!(
                goes_to(&balancer, &tcp(false, client, 1000, ACK)),
                Some(1),
                "an old flow"
            );
            let new = of(&balancer, client, 4000);
            assert_ne!(new, 1, "a new flow");
            assert_eq!(
                of(&balancer, client, 4001),
                new,
                "and the client stays there"
            );
        }
    }
}

fn counters_are_exact() {
    let mut balancer = stage_that_remembers_all();
    apply(
        &mut balancer,
        [
            service(https(false), 3),
            service(key(false, Protocol::Udp, PORT), 1),
        ],
    );
    let flows = open(&balancer, false, 1000..1100);
    for port in 1000..1100 {
        goes_to(&balancer, &tcp(false, 1, port, SYN));
        goes_to(&balancer, &tcp(false, 1, port, TcpFlags::FIN | ACK));
        goes_to(&balancer, &udp(false, 1, port));
        goes_to(&balancer, &udp(false, 1, port));
    }
    let counters = balancer.counters().expect("maps can be read");
    for n in 1..=3 {
        let its = flows.values().filter(|server| **server == n).count() as u64;
        let counted = counters.servers[&(https(false), server(false, n))];
        assert_eq!((counted.flows, counted.ended), (its, its));
        assert_eq!((counted.packets, counted.bytes), (its * 4, its * 4 * 40));
    }
    let udp = counters.service(&key(false, Protocol::Udp, PORT));
    assert_eq!((udp.flows, udp.packets, udp.bytes), (100, 200, 200 * 36));
    assert!(
        counters.reasons.values().all(|count| *count == 0),
        "{:?}",
        counters.reasons
    );
    // A packet from a port whose flow has ended begins a new flow.
    goes_to(&balancer, &tcp(false, 1, 1000, SYN));
    let counters = balancer.counters().expect("maps can be read");
    assert_eq!(counters.service(&https(false)).flows, 101);
}

fn flows_can_be_listed_and_explained() {
    let mut balancer = stage_that_remembers_all();
    apply(
        &mut balancer,
        [service(https(false), 4), service(https(true), 4)],
    );
    for v6 in [false, true] {
        let asked = tuple(v6, 1, 1234, Protocol::Tcp);
        let (foreseen, state) = balancer
            .explain(&asked)
            .expect("maps can be read")
            .expect("servers are up");
        assert_eq!(state, None, "nothing is known yet");
        let got = goes_to(&balancer, &tcp(v6, 1, 1234, SYN)).expect("a server");
        assert_eq!(foreseen, server(v6, got), "Rust and C hash alike");
        assert_eq!(
            balancer.explain(&asked).expect("maps can be read"),
            Some((server(v6, got), Some(FlowState::New)))
        );
        goes_to(&balancer, &tcp(v6, 1, 1234, ACK));
        let flows = balancer.flows(100).expect("maps can be read");
        let flow = flows
            .iter()
            .find(|flow| flow.tuple == asked)
            .expect("it is in the list");
        assert_eq!(
            (flow.service, flow.server, flow.state),
            (https(v6), server(v6, got), FlowState::Established)
        );
        let live = balancer.live_flows().expect("maps can be read");
        assert_eq!(live[&(https(v6), server(v6, got))], 1);
        goes_to(&balancer, &tcp(v6, 1, 1234, TcpFlags::RST));
        assert_eq!(
            balancer
                .flows(100)
                .expect("maps can be read")
                .last()
                .map(|flow| flow.state),
            Some(FlowState::Closed)
        );
        assert_eq!(
            balancer
                .live_flows()
                .expect("maps can be read")
                .get(&(https(v6), server(v6, got))),
            None
        );
    }
}

/// An end in somebody's name, as a RST that the server takes for none, leaves a flow to be
/// forgotten for two ticks of 8.6 s at the most, in which a client that has ended it says its last
/// words.
fn a_flow_that_goes_on_behind_its_end_is_established_again() {
    let mut balancer = stage_that_remembers_all();
    apply(&mut balancer, [service(https(false), 4)]);
    let (goes_on, is_over) = (1234, 1235);
    let servers = open(&balancer, false, goes_on..is_over + 1);
    let state = |port| {
        let flows = balancer.flows(100).expect("maps can be read");
        let asked = tuple(false, 1, port, Protocol::Tcp);
        let flow = flows.iter().find(|flow| flow.tuple == asked);
        flow.map(|flow| flow.state)
    };
    for port in [goes_on, is_over] {
        goes_to(&balancer, &tcp(false, 1, port, TcpFlags::RST));
        goes_to(&balancer, &tcp(false, 1, port, ACK));
        assert_eq!(state(port), Some(FlowState::Closed));
    }
    // Time is the kernel's.
    std::thread::sleep(Duration::from_nanos(2 << layout::TICK_SHIFT));
    let server = goes_to(&balancer, &tcp(false, 1, goes_on, ACK));
    assert_eq!(server, Some(servers[&goes_on]));
    assert_eq!(state(goes_on), Some(FlowState::Established));
    assert_eq!(state(is_over), Some(FlowState::Closed));
}

/// A SYN may be anybody's. One of a client that has forgotten its connection comes to the server
/// that knows it still; the reset that follows ends it, and the next one goes where Maglev says.
fn a_silent_flow_is_not_moved_by_who_begins_it_anew() {
    let options = Options {
        idle: Duration::from_secs(5),
        remember_all: true,
        ..small()
    };
    let mut balancer = stage_with(&options);
    apply(&mut balancer, [service(https(false), 4)]);
    let flows = open(&balancer, false, 1000..1200);
    apply(&mut balancer, [service(https(false), 9)]);
    // Time is the kernel's: no flow was seen in this tick, nor in the one before.
    std::thread::sleep(Duration::from_nanos(2 << layout::TICK_SHIFT));
    let begun = |balancer: &Balancer| -> BTreeMap<u16, u8> {
        let server = |port| goes_to(balancer, &tcp(false, 1, port, SYN)).expect("a server");
        flows.keys().map(|port| (*port, server(*port))).collect()
    };
    assert_eq!(begun(&balancer), flows);
    assert_eq!(lost(&balancer, false, &flows), 0);
    for port in flows.keys() {
        goes_to(&balancer, &tcp(false, 1, *port, TcpFlags::RST));
    }
    let mut new = stage();
    apply(&mut new, [service(https(false), 9)]);
    let by_maglev = begun(&new);
    assert_ne!(by_maglev, flows);
    assert_eq!(begun(&balancer), by_maglev);
}

fn a_fleet_with_one_configuration_chooses_alike() {
    let other = Options {
        max_flows: 4096,
        max_services: 8,
        ..Options::default()
    };
    let (mut one, mut two) = (stage(), stage_with(&other));
    // Not the same history: what comes and goes must not matter.
    apply(&mut one, [service(https(false), 9)]);
    apply(
        &mut two,
        [
            service(https(true), 3),
            service(key(false, Protocol::Udp, 1), 2),
        ],
    );
    for balancer in [&mut one, &mut two] {
        let weighted = Server::new(server(false, 2))
            .expect("a host")
            .weight(Weight::new(3).expect("not zero"));
        let services = [
            service(https(false), 5).with(weighted),
            service(https(true), 5).sticky(true),
        ];
        apply(balancer, services);
    }
    for port in 1..500 {
        for v6 in [false, true] {
            let syn = tcp(v6, port % 50, port, SYN);
            assert_eq!(goes_to(&one, &syn), goes_to(&two, &syn));
        }
    }
}

fn a_service_without_servers_drops_and_says_so() {
    let mut balancer = stage();
    apply(&mut balancer, [Service::new(https(false))]);
    drops(&balancer, &tcp(false, 1, 1, SYN), "nobody is there");
    assert_eq!(
        balancer
            .counters()
            .expect("maps can be read")
            .reason(Reason::NoServer),
        1
    );
    apply(&mut balancer, []);
    passes(&balancer, &tcp(false, 1, 1, SYN), "the service is gone");
}

/// A balancer of this library and one of the Go library, with one configuration and seed, and of
/// other histories: what they choose is the same.
#[allow(
    dead_code,
    reason = "the benchmark, which has these rows too, has no Go"
)]
pub fn both_libraries_choose_alike() {
    let mut rust = stage();
    apply(&mut rust, [service(https(false), 9)]);
    let mut go = None;
    super::player::in_go(|| go = Some(stage()));
    let mut go = go.expect("it was made");
    let weighted = Server::new(server(false, 2))
        .expect("a host")
        .weight(Weight::new(3).expect("not zero"));
    for balancer in [&mut rust, &mut go] {
        let services = [
            service(https(false), 7).with(weighted),
            service(https(true), 5).sticky(true),
        ];
        apply(balancer, services);
    }
    for port in 1..500 {
        for v6 in [false, true] {
            let syn = tcp(v6, port % 50, port, SYN);
            assert_eq!(goes_to(&rust, &syn), goes_to(&go, &syn));
        }
    }
}
