//! Step 11: what was allowed is remembered, for both directions.

use crate::drop_reason::DropReason;
use crate::flow::{Key, Seen, Side};
use crate::overlay::Towards;
use crate::round::{Job, Round, Track, Verdict};
use crate::stages::begin::{self, First};
use crate::stages::fast_path;
use crate::stages::known::same_again;
use crate::stages::reset;

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

/// The first packet of a flow.
fn begin(
    round: &mut Round,
    job: usize,
    case: usize,
    (key, hash, side): (Key, u64, Side),
) -> Verdict {
    let case_of = &round.cases[case];
    let item = &round.items[case_of.item];
    let to = round.view.port(round.jobs[job].target);
    let (Some(ip), Some(to)) = (item.ip(), to) else {
        return Verdict::Open;
    };
    let frame = &round.batch.frames()[item.frame];
    let now_ms = round.now.millis();
    let first = First {
        key,
        hash,
        seen: Seen::of(ip, frame.head(), frame.len(), side, now_ms),
        from: round.nic,
        to,
        egress: case_of.egress,
        ingress: case_of.ingress,
    };
    let (flows, counters) = (&mut round.tables.flows, round.counters);
    let when = (round.now, round.is_trial);
    match begin::begin(round.view, flows, counters, when, &first) {
        Ok(Some(id)) => {
            fast_path::open(round, id, side, case);
            Verdict::Pass
        }
        Ok(None) => match same_again(round, job, case, &key, hash, side) {
            // And gone again already: it was allowed.
            Verdict::Open => Verdict::Pass,
            decided => decided,
        },
        Err(refused) => {
            if refused == Verdict::DropFrom(DropReason::TcpNotSyn) && is_alone(round, job) {
                reset::answer(round, &first, round.items[round.cases[case].item].frame);
            }
            refused
        }
    }
}

/// The job's frame is for one machine. Jobs of one frame are beside each other here.
fn is_alone(round: &Round, job: usize) -> bool {
    let Job { frame, case, .. } = round.jobs[job];
    if round.cases[case as usize].towards == Towards::All {
        return false;
    }
    let others = [job.checked_sub(1), Some(job + 1)];
    let mut others = others.into_iter().flatten();
    others.all(|other| {
        round
            .jobs
            .get(other)
            .is_none_or(|other| other.frame != frame)
    })
}
