//! Step 11: what was allowed is remembered, for both directions.

use crate::flow::{Key, NONE, NewFlow, Seen, Side, first_state, timeout_secs};
use crate::ids::PortSlot;
use crate::judge::Grant;
use crate::round::{Round, Track, Verdict, count_rules};
use crate::stages::fast_path;
use crate::stages::known::same_again;
use crate::stages::redecide::admit;
use crate::stages::terms::{between, share};

pub(crate) fn run(round: &mut Round) {
    round.each_open(|round, job, case| match round.cases[case].track {
        Track::Flow(key, hash, side) => {
            // A packet before it in the batch may have begun the flow.
            match same_again(round, job, case, &key, hash, side) {
                Verdict::Open if key.is_answer(side) => pass_once(round, case),
                Verdict::Open => begin(round, job, case, (key, hash, side)),
                decided => decided,
            }
        }
        Track::No => pass_once(round, case),
    });
}

/// Allowed by the rules, and nothing to remember.
fn pass_once(round: &Round, case: usize) -> Verdict {
    let case = &round.cases[case];
    let bytes = round.frame(case.item).len() as u64;
    for rule in [case.egress.rule, case.ingress.rule].into_iter().flatten() {
        round.counters.rule_passed(rule, 1, bytes);
    }
    Verdict::Pass
}

/// One more connection is more than either NIC may have in this second.
fn over_limit(round: &Round, target: PortSlot) -> Option<Verdict> {
    // The receiver's first: what it does not take has not been begun.
    let receiver = round
        .view
        .port(target)
        .and_then(|nic| nic.meters.as_deref());
    if let Some(Err(reason)) =
        receiver.map(|of| of.ingress.admit_connection(round.now, round.is_trial))
    {
        return Some(Verdict::DropTo(reason));
    }
    let sender = round.nic.meters.as_deref();
    let refused = sender
        .map(|of| of.egress.admit_connection(round.now, round.is_trial))?
        .err()?;
    Some(Verdict::DropFrom(refused))
}

/// The first packet of a flow.
fn begin(
    round: &mut Round,
    job: usize,
    case: usize,
    (key, hash, side): (Key, u64, Side),
) -> Verdict {
    let target = round.jobs[job].target;
    let case_of = &round.cases[case];
    let (egress, ingress): (Grant, Grant) = (case_of.egress, case_of.ingress);
    let item = &round.items[case_of.item];
    let Some(ip) = item.ip() else {
        return Verdict::Open;
    };
    // Between two NICs that allow everything and count connections: such as they had before they
    // did are not cut.
    let open = || round.view.both_open(round.nic.slot, target, ip.v6);
    let midstream = egress.midstream || ingress.midstream || open().is_some();
    let state = match first_state(ip, midstream) {
        Ok(state) => state,
        Err(reason) => return Verdict::DropFrom(reason),
    };
    if let Some(refused) = over_limit(round, target) {
        return refused;
    }
    let frame = &round.batch.frames()[item.frame];
    let timeouts = between(Some(round.nic), round.view.port(target));
    let new = NewFlow {
        key,
        hash,
        initiator: side,
        owner: round.nic.slot,
        peer: target,
        share: share(round.nic, round.view.port(target)),
        state,
        timeout_secs: timeout_secs(key.protocol(), state, &timeouts),
        epoch: round.view.epoch_mark(),
        now_ms: round.now.millis(),
        now_secs: round.now.secs(),
    };
    let flows = &mut round.tables.flows;
    let id = match flows.insert(&new) {
        Ok(Some(id)) => id,
        Ok(None) => {
            return match same_again(round, job, case, &key, hash, side) {
                // And gone again already: it was allowed.
                Verdict::Open => Verdict::Pass,
                decided => decided,
            };
        }
        Err(reason) => return Verdict::DropFrom(reason),
    };
    let entry = flows.entry(id);
    admit(entry, Some(egress), Some(ingress), round.counters);
    let seen = Seen {
        ip,
        head: frame.head(),
        len: frame.len(),
        side,
        now_ms: new.now_ms,
    };
    flows.note_first(id, &seen);
    let rules = [egress.rule, ingress.rule].map(|rule| rule.map_or(NONE, |rule| rule.0));
    count_rules(round.counters, rules, 1, frame.len() as u64);
    flows.tell_begun(id);
    fast_path::open(round, id, side, case);
    Verdict::Pass
}
