//! Servers whose next hop does not answer: they get no new flows while there are others, and keep
//! the ones they have.

use std::collections::BTreeMap;

use butterfly_balancer::{Protocol, Reason, ServiceKey};
use wire::parse::TcpFlags;

use super::stage::*;

trials! {
    servers_that_have_yet_to_answer_are_no_change_when_they_do,
    a_server_that_is_lost_gets_no_new_flows_and_keeps_its_own,
    a_client_of_a_sticky_service_leaves_a_server_that_is_lost,
}

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;

fn https() -> ServiceKey {
    key(false, Protocol::Tcp, PORT)
}

/// The next hops to these servers are known, and to no others.
fn reach(balancer: &mut Balancer, servers: &[u8]) {
    let ways = servers.iter().map(|n| (server(false, *n), hop(false, *n)));
    balancer
        .set_hops(ways.collect::<BTreeMap<_, _>>())
        .expect("maps can be written");
}

fn sent(balancer: &Balancer, flags: TcpFlags) -> Vec<Option<u8>> {
    (1000..1400)
        .map(|port| goes_to(balancer, &tcp(false, 1, port, flags)))
        .collect()
}

fn no_way(balancer: &Balancer) -> u64 {
    balancer
        .counters()
        .expect("maps can be read")
        .reason(Reason::NoWay)
}

/// Nobody can have a flow of servers that nobody could reach: that they answer is no change.
fn servers_that_have_yet_to_answer_are_no_change_when_they_do() {
    let mut balancer = stage();
    reach(&mut balancer, &[]);
    apply(&mut balancer, [service(https(), 4)]);
    drops(
        &balancer,
        &tcp(false, 1, 1000, SYN),
        "nobody can be reached",
    );
    assert_eq!(no_way(&balancer), 1);
    reach(&mut balancer, &[1, 2, 3, 4]);
    assert!(balancer.is_settled(), "no flow is watched");
    assert!(sent(&balancer, SYN).iter().all(Option::is_some));
}

/// One that does not answer any more: new flows go elsewhere, its own wait for it, and are its own
/// when it answers again.
fn a_server_that_is_lost_gets_no_new_flows_and_keeps_its_own() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4)]);
    reach(&mut balancer, &[1, 2, 3, 4]);
    let flows = sent(&balancer, SYN);
    assert_eq!(sent(&balancer, ACK), flows);
    reach(&mut balancer, &[1, 2, 3]);
    let meanwhile: Vec<_> = (2000..2400)
        .map(|port| goes_to(&balancer, &tcp(false, 1, port, SYN)))
        .collect();
    assert!(
        meanwhile.iter().all(|server| matches!(server, Some(1..=3))),
        "{meanwhile:?}"
    );
    let its_own = flows.iter().filter(|server| **server == Some(4)).count() as u64;
    let waiting: Vec<_> = flows
        .iter()
        .map(|server| server.filter(|n| *n != 4))
        .collect();
    assert_eq!(sent(&balancer, ACK), waiting, "the others do not notice");
    assert_eq!(no_way(&balancer), its_own);
    reach(&mut balancer, &[1, 2, 3, 4]);
    assert_eq!(
        sent(&balancer, ACK),
        flows,
        "and neither does it, in the end"
    );
    let stayed = (2000..2400).map(|port| goes_to(&balancer, &tcp(false, 1, port, ACK)));
    assert_eq!(stayed.collect::<Vec<_>>(), meanwhile);
}

/// Its new flows go to another one, and stay there; where no other one can be reached either it is
/// not sent about.
fn a_client_of_a_sticky_service_leaves_a_server_that_is_lost() {
    let mut balancer = stage();
    apply(&mut balancer, [service(https(), 4).sticky(true)]);
    reach(&mut balancer, &[1, 2, 3, 4]);
    let all = |balancer: &Balancer, port, flags| -> Vec<_> {
        (0..100)
            .map(|client| goes_to(balancer, &tcp(false, client, port, flags)))
            .collect()
    };
    let before = all(&balancer, 1000, SYN);
    assert!(before.contains(&Some(4)));
    reach(&mut balancer, &[]);
    assert_eq!(all(&balancer, 1001, SYN), [None; 100]);
    reach(&mut balancer, &[1, 2, 3, 4]);
    assert_eq!(all(&balancer, 1002, SYN), before);
    reach(&mut balancer, &[1, 2, 3]);
    let meanwhile = all(&balancer, 1003, SYN);
    for (before, now) in before.iter().zip(&meanwhile) {
        match before {
            Some(4) => assert!(matches!(now, Some(1..=3)), "{now:?}"),
            _ => assert_eq!(now, before, "the others do not notice"),
        }
    }
    let waiting: Vec<_> = before
        .iter()
        .map(|server| server.filter(|n| *n != 4))
        .collect();
    assert_eq!(all(&balancer, 1000, ACK), waiting, "old flows wait");
    reach(&mut balancer, &[1, 2, 3, 4]);
    assert_eq!(all(&balancer, 1000, ACK), before);
    assert_eq!(all(&balancer, 1004, SYN), meanwhile, "and stay there");
}
