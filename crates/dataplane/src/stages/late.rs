//! Beside steps 8 to 11: frames of NICs of which the rules cannot be asked in this turn wait for
//! another one ([`Late`]), and are judged then as far as they were not. What comes from the wire
//! does not wait, and is dropped.
//!
//! [`Late`]: crate::late::Late

use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::late::{LateFrame, LateTarget};
use crate::round::{Fate, Job, Round, Verdict};
use crate::stages::destination;
use crate::stages::wait::lent_to;

/// Drops what was put off of a round whose frames cannot wait.
#[cold]
pub(crate) fn refuse(round: &mut Round) {
    for job in round.jobs.iter_mut() {
        if job.verdict == Verdict::Late {
            job.verdict = Verdict::DropTo(DropReason::RuleLookups);
        }
    }
}

/// Has those frames of a NIC wait that were put off. Jobs are in the order of their frames.
#[cold]
pub(crate) fn hold(round: &mut Round) {
    let mut jobs = std::mem::take(round.jobs);
    for same in jobs.chunk_by_mut(|one, other| one.frame == other.frame) {
        let is_late = |job: &&Job| job.verdict == Verdict::Late;
        if let Some(first) = same.iter().find(is_late).copied()
            && !hold_one(round, same, first)
        {
            let late = same.iter_mut().filter(|job| job.verdict == Verdict::Late);
            late.for_each(|job| job.verdict = Verdict::DropFrom(DropReason::RuleLookups));
        }
    }
    jobs.retain(|job| job.verdict != Verdict::Late);
    *round.jobs = jobs;
}

fn hold_one(round: &mut Round, same: &[Job], first: Job) -> bool {
    let view = round.view;
    let Some(item) = round.cases.get(first.case as usize).map(|case| case.item) else {
        return false;
    };
    let late = same.iter().filter(|job| job.verdict == Verdict::Late);
    let targets = late.filter_map(|job| {
        Some(LateTarget {
            slot: job.target,
            uid: view.port(job.target)?.uid,
            towards: round.cases.get(job.case as usize)?.towards,
        })
    });
    let targets = targets.collect();
    let of = &round.items[item];
    let frame = LateFrame {
        uid: round.nic.uid,
        epoch: view.epoch_mark(),
        bytes: round.batch.to_bytes(of.frame),
        offload: round.frame(item).offload,
        first_of: of.first_of,
        lent: lent_to(of),
        // Others have got it, and its trace says so.
        traced: of.traced || same.iter().any(|job| job.verdict == Verdict::Pass),
        flooded: same.len() > 1,
        targets,
    };
    let held = round.tables.late.hold(round.from, frame);
    if held && round.items[item].fate == Fate::Going {
        round.items[item].fate = Fate::Held;
    }
    held
}

/// In place of step 4: a fragment is what it was when it came.
pub(crate) fn lend(round: &mut Round, late: &LateFrame) {
    for item in round.items.iter_mut() {
        item.traced = late.traced;
        item.first_of = late.first_of;
        if let Some(lent) = &late.lent {
            item.borrow_of(lent);
        }
    }
}

/// In place of step 7, under the epoch that the frame came under: whom it is to be judged for
/// still.
pub(crate) fn jobs(round: &mut Round, late: &LateFrame) {
    if round.items.iter().any(|item| item.is_going()) {
        for target in &late.targets {
            // None but IP packets are put off.
            let _ = destination::add(round, 0, target.slot, target.towards);
        }
    }
}

/// Behind step 7, under another epoch: who may have got a frame for many does not get it again.
pub(crate) fn forget_judged(round: &mut Round, late: &LateFrame) {
    if !late.flooded {
        return;
    }
    let view = round.view;
    let is_late = |slot: PortSlot| {
        let uid = view.port(slot).map(|port| port.uid);
        let mut targets = late.targets.iter();
        targets.any(|target| target.slot == slot && Some(target.uid) == uid)
    };
    round.jobs.retain(|job| is_late(job.target));
}

/// Who has got a frame before has got it, whatever becomes of it for the others.
pub(crate) fn note_delivered(round: &mut Round, late: &LateFrame) {
    let going = round.items.iter_mut().filter(|item| item.is_going());
    going
        .filter(|_| late.traced)
        .for_each(|item| item.fate = Fate::Delivered);
}
