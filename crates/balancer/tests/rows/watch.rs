//! Slots whose server has changed are watched: who began before the change stays, who began after
//! it goes by the new table, and when nobody is left who needs it, all is calm again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use butterfly_balancer::{Interface, Options, Protocol, Reason, Server, State};
use wire::parse::TcpFlags;

use super::stage::*;

trials! {
    in_calm_nothing_is_remembered,
    before_and_after_a_change,
    changes_upon_changes,
    everybody_down_for_a_moment,
    after_a_while_all_is_calm_again,
    a_kill_after_any_change_of_the_tables_keeps_flows,
    more_new_flows_than_there_is_room_for,
}

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;

fn https() -> butterfly_balancer::ServiceKey {
    key(false, Protocol::Tcp, PORT)
}

fn sent(balancer: &Balancer, flags: TcpFlags) -> Vec<u8> {
    sent_from(balancer, 1000, flags)
}

/// Of flows from this port on.
fn sent_from(balancer: &Balancer, first: u16, flags: TcpFlags) -> Vec<u8> {
    let all = (first..first + 400).map(|port| goes_to(balancer, &tcp(false, 1, port, flags)));
    all.map(|server| server.expect("servers are up")).collect()
}

/// Nothing of a flow is remembered while all is calm.
fn in_calm_nothing_is_remembered() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    let first = sent(&balancer, SYN);
    assert_eq!(sent(&balancer, ACK), first);
    assert!(balancer.flows(1000).expect("maps can be read").is_empty());
    assert!(balancer.is_settled());
    let live: u64 = balancer
        .live_flows()
        .expect("maps can be read")
        .values()
        .sum();
    assert_eq!(live, 400, "those that began less those that ended");
    sent(&balancer, TcpFlags::FIN | ACK);
    let live: u64 = balancer
        .live_flows()
        .expect("maps can be read")
        .values()
        .sum();
    assert_eq!(live, 0);
}

/// A handshake that a change comes in the middle of, a flow from before, one from after it: told
/// apart without a timer.
fn before_and_after_a_change() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    let before = sent(&balancer, SYN);
    apply(&mut balancer, [service(https(), 8)]);
    assert!(!balancer.is_settled());
    assert_eq!(
        sent(&balancer, ACK),
        before,
        "the handshakes are completed where they began"
    );
    // Other ports: flows that begin now.
    let after: Vec<_> = (2000..2400)
        .map(|port| goes_to(&balancer, &tcp(false, 1, port, SYN)))
        .collect();
    let went_on: Vec<_> = (2000..2400)
        .map(|port| goes_to(&balancer, &tcp(false, 1, port, ACK)))
        .collect();
    assert_eq!(after, went_on);
    assert!(
        (5..=8).all(|n| after.contains(&Some(n))),
        "the new servers get new flows"
    );
}

/// Flows that were silent all the while two changes happened, and flows from between the two.
fn changes_upon_changes() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    let first = sent(&balancer, SYN);
    apply(&mut balancer, [service(https(), 8)]);
    let between: Vec<_> = (2000..2400)
        .map(|port| goes_to(&balancer, &tcp(false, 1, port, SYN)))
        .collect();
    apply(&mut balancer, [service(https(), 12)]);
    apply(&mut balancer, [service(https(), 6)]);
    apply(&mut balancer, [service(https(), 12)]);
    assert_eq!(sent(&balancer, ACK), first);
    for (port, server) in (2000..2400).zip(between) {
        let now = goes_to(&balancer, &tcp(false, 1, port, ACK));
        assert!(
            now == server || server > Some(6),
            "port {port}: {server:?} is up and has lost it to {now:?}"
        );
    }
}

/// All servers go down and come back, as when the checks' own way was broken for a moment.
fn everybody_down_for_a_moment() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    let first = sent(&balancer, SYN);
    let down = |n| {
        Server::new(server(false, n))
            .expect("a host")
            .state(State::Down)
    };
    let all_down = (1..=4).fold(service(https(), 0), |service, n| service.with(down(n)));
    apply(&mut balancer, [all_down]);
    drops(&balancer, &tcp(false, 1, 1000, ACK), "nobody is up");
    apply(&mut balancer, [service(https(), 4)]);
    assert_eq!(sent(&balancer, ACK), first);
}

/// Changes are forgotten when they are old enough and no open flow is elsewhere than where new ones
/// would go.
fn after_a_while_all_is_calm_again() {
    let mut balancer = stage_with(&Options {
        settle: Duration::ZERO,
        ..small()
    });
    apply(&mut balancer, [service(https(), 4)]);
    let first = sent(&balancer, SYN);
    apply(&mut balancer, [service(https(), 8)]);
    sent(&balancer, ACK);
    assert_eq!(sent(&balancer, ACK), first, "by now all of them are known");
    balancer.settle().expect("maps can be written");
    assert!(
        !balancer.is_settled(),
        "some are not where new ones would go"
    );
    assert_eq!(sent(&balancer, TcpFlags::FIN | ACK), first);
    balancer.settle().expect("maps can be written");
    assert!(balancer.is_settled(), "they are over");
    // The words of closed flows are still there, and do not count when the servers change again.
    let second = sent(&balancer, SYN);
    assert_ne!(second, first);
    assert_eq!(sent(&balancer, ACK), second);
}

/// What is kept for who goes on after a kill is what was in force, whatever has changed it last:
/// other servers, changes that are forgotten, a next hop that is lost and found again.
fn a_kill_after_any_change_of_the_tables_keeps_flows() {
    let options = Options {
        settle: Duration::ZERO,
        max_flows: 4096,
        ..small()
    };
    let mut balancer = stage_with(&options);
    // The Go library leaves nothing.
    let Balancer::Rust(own) = &mut balancer else {
        return;
    };
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    own.keep_tables(move |tables| *keep.lock().expect("nobody panicked") = tables.to_vec());
    let next = |balancer: &Balancer| {
        let Balancer::Rust(own) = balancer else {
            unreachable!("it is the Rust library's")
        };
        let handed = own.hand_over().expect("there are descriptors");
        let mut next =
            butterfly_balancer::Balancer::handed(&options, handed).expect("the same options");
        next.set_interface(Interface::new(IN, OURS))
            .expect("the only one");
        next.apply_with(own.services().clone(), own.hops().clone())
            .expect("it waits");
        next.take_up(&kept.lock().expect("nobody panicked"))
            .expect("it is what was left");
        Balancer::Rust(Box::new(next))
    };
    apply(&mut balancer, [service(https(), 4)]);
    let before = sent(&balancer, SYN);
    apply(&mut balancer, [service(https(), 8)]);
    assert_eq!(sent(&next(&balancer), ACK), before, "after other servers");
    sent(&balancer, TcpFlags::FIN | ACK);
    balancer.settle().expect("maps can be written");
    assert!(balancer.is_settled());
    let calm = sent_from(&balancer, 2000, SYN);
    let went_on = sent_from(&next(&balancer), 2000, ACK);
    assert_eq!(went_on, calm, "after all is calm again");
    let all = balancer.hops().clone();
    let mut fewer = all.clone();
    fewer.retain(|address, _| (1..=4).any(|n| *address == server(false, n)));
    balancer.set_hops(fewer).expect("maps can be written");
    let meanwhile = sent_from(&balancer, 3000, SYN);
    assert!(meanwhile.iter().all(|server| *server <= 4));
    balancer.set_hops(all).expect("maps can be written");
    let next = next(&balancer);
    for (first, had) in [(2000, calm), (3000, meanwhile)] {
        let went_on = sent_from(&next, first, ACK);
        assert_eq!(went_on, had, "after next hops are found again");
    }
}

/// A flow for which there is no room goes where a flow that is not known would: its packets all go
/// one way.
fn more_new_flows_than_there_is_room_for() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    apply(&mut balancer, [service(https(), 8)]);
    for port in 1..5000 {
        let server = goes_to(&balancer, &tcp(false, 1, port, SYN));
        assert_eq!(
            goes_to(&balancer, &tcp(false, 1, port, ACK)),
            server,
            "port {port}"
        );
        assert_eq!(
            goes_to(&balancer, &tcp(false, 1, port, ACK)),
            server,
            "port {port}"
        );
    }
    let full = balancer
        .counters()
        .expect("maps can be read")
        .reason(Reason::TableFull);
    assert!(full > 0);
}
