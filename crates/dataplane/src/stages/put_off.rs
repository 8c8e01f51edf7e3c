//! Before step 13, while somebody waits for answers: copies for many targets that would be more
//! than their sender's part of two turns wait for the next turns ([`floods`]). A private copy of
//! the frame is what is made in this one.

use std::convert::Infallible;

use io::frame::Batch;

use crate::floods::{self, PendingCopy};
use crate::ports::Ports;
use crate::round::{Fate, Job, Round, Verdict};

#[cold]
pub(crate) fn run(round: &mut Round, ports: &Ports) {
    let (batch, from) = (round.batch, round.origin());
    let is_watched = |target| {
        let nic = round.view.port(target);
        nic.is_some_and(|nic| !nic.sniffers.is_empty())
    };
    // What goes to another worker goes by reference to the batch that is in hand now.
    let is_copy = |job: &Job| {
        let is_here = ports.has_queue_for(job.target, job.steer) && !is_watched(job.target);
        job.verdict == Verdict::Pass && is_here
    };
    let left = round.jobs.iter_mut().filter(|job| is_copy(job));
    let left: Vec<&mut Job> = left.collect();
    let cost = |job: &Job| floods::cost(batch, job.frame, job.target, ports);
    let cost: u64 = left.iter().map(|job| cost(job)).sum();
    // Fragments that have waited for their first one go behind it.
    let is_behind = round.tables.floods.has_of(from);
    if !is_behind && round.tables.floods.fit_at_once(cost) {
        return;
    }
    // Jobs are in the order of their frames.
    let mut frames: Vec<u8> = left.iter().map(|job| job.frame).collect();
    frames.dedup();
    let Some(mut own) = round.tables.floods.batch(frames.len(), is_behind) else {
        return;
    };
    frames.iter().for_each(|frame| add(&mut own, batch, *frame));
    let mut copies = Vec::with_capacity(left.len());
    let mut at = 0;
    for job in left {
        at += usize::from(frames[at] != job.frame);
        copies.push(PendingCopy {
            frame: at as u8,
            target: job.target,
            steer: job.steer,
        });
        job.verdict = Verdict::Wait;
        if let Some(case) = round.cases.get(job.case as usize) {
            round.items[case.item].fate = Fate::Delivered;
        }
    }
    let rates = ports.pace.rates();
    round.tables.floods.put_off(from, own, copies, rates);
}

/// Adds a frame of another batch as bytes of its own.
fn add(own: &mut Batch, batch: &Batch, frame: u8) {
    let index = usize::from(frame);
    let (len, offload) = (batch.frames()[index].len(), batch.frames()[index].offload);
    let added = own.push_with(|buffer| {
        batch.copy_to(index, &mut buffer[..len]);
        Ok::<_, Infallible>(Some((len, offload)))
    });
    // It is no longer than it was, and there is room.
    let Ok(_) = added;
}
