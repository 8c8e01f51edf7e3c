//! Step 9: what was allowed is remembered, for both directions.

use crate::flow::{Key, NewFlow, Seen, Side, first_state, timeout_secs};
use crate::judge::Grant;
use crate::round::{Round, Track, Verdict};
use crate::stages::known::{between, same_again};
use crate::stages::redecide::admit;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.jobs.len() {
        let job = &round.jobs[index];
        if job.verdict != Verdict::Open {
            continue;
        }
        let verdict = match job.track {
            Track::Flow(key, hash, side) => {
                // A packet before it in the batch may have begun the flow.
                match same_again(round, job.frame, &key, hash, side) {
                    Verdict::Open if key.is_answer(side) => pass_once(round, index),
                    Verdict::Open => begin(round, index, key, hash, side),
                    decided => decided,
                }
            }
            Track::No => pass_once(round, index),
        };
        round.jobs[index].verdict = verdict;
    }
}

/// Allowed by the rules, and nothing to remember.
fn pass_once(round: &Round, job: usize) -> Verdict {
    let job = &round.jobs[job];
    let bytes = round.batch.frames()[job.frame].len() as u64;
    for rule in [job.egress.rule, job.ingress.rule].into_iter().flatten() {
        round.counters.rule_passed(rule, bytes);
    }
    Verdict::Pass
}

/// The first packet of a flow.
fn begin(round: &mut Round, job: usize, key: Key, hash: u32, side: Side) -> Verdict {
    let job = &round.jobs[job];
    let (egress, ingress): (Grant, Grant) = (job.egress, job.ingress);
    let Some(ip) = round.items[job.frame].ip() else {
        return Verdict::Open;
    };
    let state = match first_state(ip, egress.midstream || ingress.midstream) {
        Ok(state) => state,
        Err(reason) => return Verdict::DropFrom(reason),
    };
    let frame = &round.batch.frames()[job.frame];
    let new = NewFlow {
        key,
        hash,
        initiator: side,
        owner: round.nic.slot,
        peer: job.target,
        share: round.nic.flow_share,
        state,
        now_ms: round.now.millis(),
        now_secs: round.now.secs(),
    };
    let flows = &mut round.tables.flows;
    let id = match flows.insert(&new) {
        Ok(id) => id,
        Err(reason) => return Verdict::DropFrom(reason),
    };
    let timeouts = between(Some(round.nic), round.view.port(job.target));
    let entry = flows.entry_mut(id);
    entry.epoch = round.view.epoch_mark();
    entry.timeout_secs = timeout_secs(key.protocol, state, &timeouts);
    admit(entry, Some(egress), Some(ingress), round.counters);
    let seen = Seen {
        ip,
        head: frame.head(),
        len: frame.len(),
        side,
        now_ms: new.now_ms,
    };
    flows.note_first(id, &seen);
    round.count_rules(id, frame.len());
    Verdict::Pass
}
