//! Step 6: packets that need no judgement: between two NICs that allow everything, of a flow that is known, or
//! about one (ICMP errors). Touches what the lookups read for the whole batch before the first of them.

use crate::flow::{FlowId, Key, Seen, Side, Tracked, shorter};
use crate::round::{Job, Round, Track, Verdict, owns_source};
use crate::snapshot::{PortConfig, Timeouts};
use crate::stages::{redecide, related};
use crate::view::Opening;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.jobs.len() {
        let job = &round.jobs[index];
        if job.verdict != Verdict::Open {
            continue;
        }
        if passes_without_state(round, job) {
            round.jobs[index].verdict = Verdict::Pass;
        } else if let Track::Flow(key, hash, _) = &mut round.jobs[index].track {
            *hash = round.tables.flows.hash(key);
            round.tables.flows.fetch_index(*hash);
        }
    }
    for job in round.jobs.iter().filter(|job| job.verdict == Verdict::Open) {
        if let Track::Flow(_, hash, _) = &job.track {
            round.tables.flows.fetch_entry(*hash);
        }
    }
    for index in 0..round.jobs.len() {
        let job = &round.jobs[index];
        if job.verdict != Verdict::Open {
            continue;
        }
        let verdict = match job.track {
            Track::Flow(key, hash, side) => same_again(round, job.frame, &key, hash, side),
            Track::No => related::judge(round, index),
        };
        round.jobs[index].verdict = verdict;
    }
}

/// Contract, item 12: both ends allow everything in both directions, so there is nothing to remember.
fn passes_without_state(round: &Round, job: &Job) -> bool {
    let Some(packet) = &round.items[job.frame].packet else {
        return false;
    };
    let Some(ip) = packet.ip() else { return false };
    let family = usize::from(ip.v6);
    let (from, to) = (round.view.open(round.nic.slot), round.view.open(job.target));
    let openings = [
        from.egress[family],
        to.ingress[family],
        to.egress[family],
        from.ingress[family],
    ];
    if openings.contains(&Opening::No) {
        return false;
    }
    // Without an egress rule what leaves leaves from the NIC's own addresses.
    if openings[0] == Opening::Free && !round.nic.bypass && !owns_source(round.nic, packet, ip) {
        return false;
    }
    let bytes = round.batch.frames()[job.frame].len() as u64;
    for opening in &openings[..2] {
        if let Opening::Rule(rule) = opening {
            round.counters.rule_passed(*rule, bytes);
        }
    }
    true
}

/// A packet of a flow that is known under this epoch gets what the flow got.
#[inline]
pub(crate) fn same_again(round: &mut Round, frame: usize, key: &Key, hash: u32, side: Side) -> Verdict {
    match round.tables.flows.find(key, hash) {
        Some(id) => follow(round, frame, id, side),
        None => Verdict::Open,
    }
}

#[inline]
fn follow(round: &mut Round, frame: usize, id: FlowId, side: Side) -> Verdict {
    let now_ms = round.now.millis();
    let flows = &mut round.tables.flows;
    let entry = flows.entry(id);
    if entry.expired(now_ms) {
        flows.remove(id);
        return Verdict::Open;
    }
    if entry.epoch != round.view.epoch_mark() && !redecide::redecide(round.view, flows, round.counters, id) {
        flows.remove(id);
        return Verdict::Open;
    }
    let Some(ip) = round.items[frame].ip() else {
        return Verdict::Open;
    };
    let frame = &round.batch.frames()[frame];
    let seen = Seen {
        ip,
        head: frame.head(),
        len: frame.len(),
        side,
        now_ms,
    };
    let view = round.view;
    let timeouts = |(owner, peer)| between(view.port(owner), view.port(peer));
    match flows.track(id, &seen, timeouts) {
        Tracked::Pass => {
            round.count_rules(id, frame.len());
            Verdict::Pass
        }
        Tracked::Drop(reason) => Verdict::DropFrom(reason),
        Tracked::Reopen => {
            flows.remove(id);
            Verdict::Open
        }
    }
}

/// The idle timeouts of a flow between two NICs.
pub(crate) fn between(a: Option<&PortConfig>, b: Option<&PortConfig>) -> Timeouts {
    match (a, b) {
        (Some(a), Some(b)) => shorter(&a.timeouts, &b.timeouts),
        (Some(one), None) | (None, Some(one)) => one.timeouts,
        (None, None) => Timeouts::default(),
    }
}
