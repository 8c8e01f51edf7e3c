//! Step 8: packets that need no judgement: between two NICs that allow everything, of a flow that
//! is known, or about one (ICMP errors). Touches what the lookups read for the whole batch before
//! the first of them.

use wire::parse::{L4, TcpFlags};

use crate::drop_reason::DropReason;
use crate::flow::{FlowEnd, FlowId, Key, Seen, Side, Tracked};
use crate::ids::PortSlot;
use crate::opening::Opening;
use crate::round::{Round, Track, Verdict, count_rules, owns_source};
use crate::stages::terms::between;
use crate::stages::{fast_path, redecide, related};

pub(crate) fn run(round: &mut Round) {
    round.each_open(|round, job, case| {
        let (item, target) = (round.cases[case].item, round.jobs[job].target);
        if related::is_feigned(round, item, target) {
            return Verdict::DropFrom(DropReason::IpSpoofed);
        }
        if passes_without_state(round, item, target) {
            return Verdict::Pass;
        }
        if let Track::Flow(key, hash, _) = &mut round.cases[case].track {
            *hash = round.tables.flows.hash(key);
            round.jobs[job].steer = *hash as u32;
            round.tables.flows.fetch_index(*hash);
        }
        Verdict::Open
    });
    round.each_open(|round, _, case| {
        if let Track::Flow(_, hash, side) = &round.cases[case].track {
            round.tables.flows.fetch_entry(*hash, *side);
        }
        Verdict::Open
    });
    round.begin_step();
    round.each_open(|round, job, case| match round.cases[case].track {
        Track::Flow(key, hash, side) => same_again(round, job, case, &key, hash, side),
        Track::No => related::judge(round, round.cases[case].item, round.jobs[job].target),
    });
}

/// security-groups.md 12: both ends allow everything in both directions, so there is nothing to
/// remember.
fn passes_without_state(round: &Round, item: usize, target: PortSlot) -> bool {
    let Some(packet) = &round.items[item].packet else {
        return false;
    };
    let Some(ip) = packet.ip() else { return false };
    let Some(openings) = round.view.stateless(round.nic.slot, target, ip.v6) else {
        return false;
    };
    // Without an egress rule what leaves leaves from the NIC's own addresses.
    if openings[0] == Opening::Free && !round.nic.bypass && !owns_source(round.nic, packet, ip) {
        return false;
    }
    let rules = openings.map(Opening::rule_slot);
    count_rules(round.counters, rules, 1, round.frame(item).len() as u64);
    true
}

/// A packet of a flow that is known under this epoch gets what the flow got.
#[inline]
pub(crate) fn same_again(
    round: &mut Round,
    job: usize,
    case: usize,
    key: &Key,
    hash: u64,
    side: Side,
) -> Verdict {
    let found = match round.tables.flows.find(key, hash) {
        None if round.tables.left.is_some() => left(round, round.jobs[job].target, key, hash),
        found => found,
    };
    match found {
        Some(id) => follow(round, job, case, (id, hash, side)),
        None => Verdict::Open,
    }
}

/// A flow between the sender and this NIC that was left.
fn left(round: &mut Round, nic: PortSlot, key: &Key, hash: u64) -> Option<FlowId> {
    let ends = [round.nic, round.view.port(nic)?];
    round.take_up_left(ends, key, hash)
}

#[inline]
fn follow(
    round: &mut Round,
    job: usize,
    case: usize,
    (id, hash, side): (FlowId, u64, Side),
) -> Verdict {
    let item = &round.items[round.cases[case].item];
    let Some(ip) = item.ip() else {
        return Verdict::Open;
    };
    let now_ms = round.now.millis();
    let (flows, searches) = (&mut round.tables.flows, &mut round.tables.searches);
    let entry = flows.entry(id);
    if flows.is_expired(entry, now_ms) {
        flows.remove(id, FlowEnd::Idle);
        return Verdict::Open;
    }
    let is_old = entry.epoch.get() != round.view.epoch_mark();
    let most = || redecide::most_looks(round.view, entry);
    if is_old && !searches.may_ask_again(round.cases[case].item, most) {
        return Verdict::Late;
    }
    if is_old && !redecide::redecide(round.view, flows, round.counters, id, searches) {
        let begins = matches!(ip.l4_info, L4::Tcp { flags, .. } if flags.contains(TcpFlags::SYN));
        let waits = redecide::waits(round.view, flows.entry(id), side);
        if let Some(reason) = waits.filter(|_| !begins) {
            return Verdict::DropFrom(reason);
        }
        flows.remove(id, FlowEnd::Refused);
        return Verdict::Open;
    }
    let frame = &round.batch.frames()[item.frame];
    let seen = Seen::of(ip, frame.head(), frame.len(), side, now_ms);
    let view = round.view;
    let timeouts = |(owner, peer)| between(view.port(owner), view.port(peer));
    match flows.track(id, &seen, timeouts) {
        Tracked::Pass => {
            let entry = flows.entry(id);
            let rules = entry.sides[side].rules();
            count_rules(round.counters, rules, 1, frame.len() as u64);
            round.jobs[job].steer = fast_path::steer(&entry.sides[side], hash);
            fast_path::open(round, id, side, case);
            Verdict::Pass
        }
        Tracked::Drop(reason) => Verdict::DropFrom(reason),
        Tracked::Reopen => {
            flows.remove(id, FlowEnd::Closed);
            Verdict::Open
        }
    }
}
