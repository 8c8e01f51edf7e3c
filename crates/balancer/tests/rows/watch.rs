//! Slots whose server has changed are watched: who began before the change stays, who began after
//! it goes by the new table, and when nobody is left who needs it, all is calm again.

use std::time::Duration;

use butterfly_balancer::{Options, Protocol, Reason, Server, State};
use wire::parse::TcpFlags;

use super::stage::*;

trials! {
    in_calm_nothing_is_remembered,
    before_and_after_a_change,
    changes_upon_changes,
    everybody_down_for_a_moment,
    after_a_while_all_is_calm_again,
    more_new_flows_than_there_is_room_for,
}

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;

fn https() -> butterfly_balancer::ServiceKey {
    key(false, Protocol::Tcp, PORT)
}

fn sent(balancer: &Balancer, flags: TcpFlags) -> Vec<u8> {
    let all = (1000..1400).map(|port| goes_to(balancer, &tcp(false, 1, port, flags)));
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
