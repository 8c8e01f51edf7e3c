//! Beside step 12: what passed and is for hosts whose next hop is not known yet waits for it
//! ([`Waiting`]), and is sent later by the same steps: encapsulated, measured, delivered, counted
//! and traced as if it had come then.
//!
//! [`Waiting`]: crate::waiting::Waiting

use std::net::IpAddr;

use io::frame::Batch;

use crate::drop_reason::DropReason;
use crate::fragments::Lent;
use crate::ids::PortSlot;
use crate::judge::Grant;
use crate::overlay::Towards;
use crate::round::{Case, Fate, Item, Job, Round, Track, Verdict, Wait, drop_frame};
use crate::stages::encapsulate;
use crate::waiting::{Judged, Released, Sought};

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
    let mut hosts: Vec<IpAddr> = waits.iter().map(|wait| wait.host).collect();
    hosts.dedup();
    // Whom there is no room to wait for is asked for as well: the next frame may find it known. No
    // more are told when one cannot be.
    let mut told = true;
    let towards = hosts.into_iter().map(|host| {
        told = told && round.wanted.note(host);
        Sought { host, told }
    });
    let towards: Vec<Sought> = towards.collect();
    let waiting = &mut round.tables.waiting;
    if !waiting.has_room(round.nic.slot, round.nic.network, len, towards.len()) {
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
        network: round.nic.network,
        epoch: round.view.epoch_mark(),
        bytes: round.batch.to_bytes(index),
        offload,
        flooded: waits.iter().any(|wait| wait.flooded),
        lent: lent_to(&round.items[item]),
        ours: false,
    };
    waiting.hold(judged, traced, towards, round.now.millis());
}

/// What a later fragment has borrowed.
pub(crate) fn lent_to(item: &Item) -> Option<Lent> {
    let later = item.ip().filter(|ip| ip.is_later_fragment());
    later.map(|ip| Lent {
        protocol: ip.protocol,
        l4: ip.l4_info,
        quoted: item.quoted.as_deref().copied(),
    })
}

/// Fills a batch with frames that have waited. It has room for them.
pub(crate) fn fill(batch: &mut Batch, frames: &[Released]) {
    for frame in frames {
        // Cannot be refused: it was a frame before.
        batch.push_bytes(&frame.judged.bytes, frame.judged.offload);
    }
}

/// Makes a job for each frame, which is not to be judged anew and was parsed just now.
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
            (false, Some(host)) => Towards::Host(*host),
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

/// In place of step 4, for what is judged anew: a later fragment borrows what it borrowed when it
/// came. It was noted as a piece of its datagram then, and would be a second one at the same place.
pub(crate) fn lend(round: &mut Round, frames: &[Released]) {
    for item in round.items.iter_mut() {
        let released = frames.get(item.frame);
        if let Some(lent) = released.and_then(|released| released.judged.lent) {
            item.borrow_of(&lent);
        }
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
