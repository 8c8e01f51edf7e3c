//! Beside step 12: what passed and is for hosts whose next hop is not known yet waits for it
//! ([`Waiting`]), and is sent later by the same steps: encapsulated, measured, delivered, counted
//! and traced as if it had come then.
//!
//! [`Waiting`]: crate::waiting::Waiting

use std::net::IpAddr;

use io::frame::Batch;

use crate::drop_reason::DropReason;
use crate::judge::Grant;
use crate::round::{Case, Fate, Job, Round, Towards, Track, Verdict, drop_frame};
use crate::snapshot::PortSlot;
use crate::stages::encapsulate;
use crate::waiting::{Judged, Released};

/// One frame for one host without a next hop.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    /// The frame in [`Round::items`].
    pub item: usize,
    pub host: IpAddr,
    pub flooded: bool,
}

/// Holds the frames of a batch that have to wait, after all others were delivered.
#[cold]
pub(crate) fn hold(round: &mut Round) {
    let mut waits = std::mem::take(round.waits);
    waits.sort_by_key(|wait| wait.item);
    for same in waits.chunk_by(|one, next| one.item == next.item) {
        hold_one(round, same);
    }
    waits.clear();
    *round.waits = waits;
}

fn hold_one(round: &mut Round, waits: &[Wait]) {
    let item = waits[0].item;
    let (len, offload) = (round.frame(item).len(), round.frame(item).offload);
    let index = round.items[item].frame;
    let waiting = &mut round.tables.waiting;
    if !waiting.has_room(round.nic.slot, len, waits.len()) {
        let reason = DropReason::NextHopQueueFull;
        return drop_frame(
            round.counters,
            round.from.slot,
            &mut round.items[item],
            reason,
        );
    }
    // Others have got it, and its trace says so.
    let traced = round.items[item].fate == Fate::Delivered;
    if round.items[item].fate == Fate::Going {
        round.items[item].fate = Fate::Held;
    }
    let judged = Judged {
        from: round.from,
        uid: round.nic.uid,
        epoch: round.view.epoch_mark(),
        bytes: round.batch.to_bytes(index),
        offload,
        flooded: waits.iter().any(|wait| wait.flooded),
    };
    let mut hosts: Vec<IpAddr> = waits.iter().map(|wait| wait.host).collect();
    hosts.dedup();
    for host in &hosts {
        waiting.untold |= !round.wanted.note(*host);
    }
    waiting.hold(judged, traced, hosts, round.now.millis());
}

/// Fills a batch with frames that have waited. It has room for them.
pub(crate) fn fill(batch: &mut Batch, frames: &[Released]) {
    for frame in frames {
        // Cannot be refused: it was a frame before.
        batch.push_bytes(&frame.judged.bytes, frame.judged.offload);
    }
}

/// Makes a job for each frame, which was judged under the epoch in force and parsed just now.
pub(crate) fn jobs(round: &mut Round, frames: &[Released]) {
    for item in 0..round.items.len() {
        let frame = round.items[item].frame;
        let Some(released) = frames
            .get(frame)
            .filter(|_| round.items[item].packet.is_some())
        else {
            continue;
        };
        let towards = match (released.judged.flooded, released.towards.first()) {
            (false, Some(host)) => Towards::Endpoint(*host),
            _ => Towards::All,
        };
        round.jobs.push(Job {
            frame: frame as u8,
            verdict: Verdict::Pass,
            target: PortSlot::remote(round.nic.network),
            steer: 0,
            case: round.cases.len() as u32,
        });
        round.cases.push(Case {
            item,
            towards,
            track: Track::No,
            egress: Grant::default(),
            ingress: Grant::default(),
        });
    }
}

/// What was judged anew, under another epoch, goes to no NIC here that has got it already.
pub(crate) fn forget_delivered(round: &mut Round, frames: &[Released]) {
    round.jobs.retain(|job| {
        let released = frames.get(usize::from(job.frame));
        job.target.remote_of().is_some()
            || released.is_some_and(|released| !released.judged.flooded)
    });
}

/// Gives frames the next hops to the hosts that they have waited for, and those that have waited
/// for too long their end.
pub(crate) fn send(round: &mut Round, frames: &[Released]) {
    for item in round.items.iter_mut() {
        item.traced = frames
            .get(item.frame)
            .is_some_and(|released| released.traced);
    }
    for index in 0..round.jobs.len() {
        let job = round.jobs[index];
        let Some(released) = frames.get(usize::from(job.frame)) else {
            continue;
        };
        if released.towards.is_empty() {
            round.jobs[index].verdict = Verdict::DropFrom(DropReason::NextHopTimeout);
        } else if job.verdict == Verdict::Pass && job.target.remote_of().is_some() {
            encapsulate::again(round, index, &released.towards);
        }
    }
}
