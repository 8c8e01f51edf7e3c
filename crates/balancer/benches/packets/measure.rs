//! Nanoseconds a packet of each row, ours and the peer's, each net of the empty program in the same
//! round.

use butterfly_balancer::{Balancer, Reason};
use testkit::results::Results;
use xdp::{Program, Verdict, objects};

use crate::again::Again;
use crate::classic::Classic;
use crate::rows::{self, Row};
use crate::stage::{self, LOOPBACK};

const SERVERS: u8 = 10;
/// Runs of a row of few flows.
const RUNS: u32 = 1 << 18;

/// All rows.
pub fn all(results: &mut Results, rounds: usize) {
    println!(
        "nanoseconds a packet, net of an empty program that sends back; medians of {rounds} rounds"
    );
    let again = Again::new();
    let transmit =
        Program::load("transmit", objects::TRANSMIT, |_| Ok(())).expect("the program loads");
    for row in rows::all() {
        one(&again, &transmit, &row, results, rounds);
    }
}

fn one(again: &Again, transmit: &Program, row: &Row, results: &mut Results, rounds: usize) {
    again.set_frame(&row.frame, row.flows);
    let times = row.flows.max(RUNS);
    let run = |program: &Program, times: u32| {
        again.hand_to(program);
        let run = again.run(&row.frame, times);
        (run.took.as_nanos() as f64, run.verdict)
    };
    let (ours, peer) = (balancer(row), row.peer.then(|| classic(row)));
    if row.warm {
        for _ in 0..3 {
            run(ours.program(), times);
            if let Some(peer) = &peer {
                run(&peer.program, times);
            }
        }
    }
    let (mut empties, mut nets, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (empty, _) = run(transmit, RUNS);
        // New flows each meet tables that know none.
        let fresh = (!row.warm).then(|| balancer(row));
        let ours = fresh.as_ref().unwrap_or(&ours);
        let (took, verdict) = run(ours.program(), times);
        assert_eq!(verdict, row.verdict, "{}", row.name);
        went_well(row, ours);
        empties.push(empty);
        nets.push(took - empty);
        drop(fresh);
        if let Some(peer) = &peer {
            let fresh = (!row.warm).then(|| classic(row));
            let (took, verdict) = run(&fresh.as_ref().unwrap_or(peer).program, times);
            assert_eq!(verdict, row.verdict, "{} of the peer", row.name);
            others.push(took - empty);
        }
    }
    let net = results.add(&row.name, "balancer", "ns", nets);
    results.add(&row.name, "empty", "ns", empties);
    if peer.is_some() {
        let other = results.add(&row.name, "classic", "ns", others);
        // How many times as long the peer takes; a packet of less than a nanosecond is one of one.
        results.ratio(&row.name, other / net.max(1.0));
    }
    if let Some(goal) = row.goal {
        results.ratio(&format!("{}_of_goal", row.name), net / goal);
    }
}

fn balancer(row: &Row) -> Balancer {
    let macs = stage::macs(SERVERS);
    stage::balancer(
        LOOPBACK,
        LOOPBACK,
        &macs,
        row.tunnel,
        row.servers_v6,
        row.remember_all,
    )
}

fn classic(row: &Row) -> Classic {
    let tunnel = row.tunnel != butterfly_balancer::Tunnel::None;
    Classic::new(0, &stage::macs(SERVERS), tunnel)
}

/// Every packet was sent for the reason that the row is about.
fn went_well(row: &Row, balancer: &Balancer) {
    if row.verdict != Verdict::Transmit {
        return;
    }
    let reasons = balancer.counters().expect("maps can be read").reasons;
    let is_fine = |reason: &Reason| matches!(reason, Reason::Adopted | Reason::TableFull);
    let all_sent = reasons
        .iter()
        .all(|(reason, count)| is_fine(reason) || *count == 0);
    assert!(all_sent, "{}: {reasons:?}", row.name);
}
