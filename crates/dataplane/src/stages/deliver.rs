//! Step 10: what passed goes to its targets, and to who watches them; what did not is counted by its reason.

use io::frame::BATCH;
use io::trace::Direction;

use crate::drop_reason::DropReason;
use crate::ports::{Ports, refusal};
use crate::round::{Fate, Round, Verdict, drop_frame};
use crate::snapshot::{PortConfig, PortSlot};

pub(crate) fn run(round: &mut Round, ports: &mut Ports) {
    let mut index = 0;
    while let Some(job) = round.jobs.get(index) {
        let (frame, target) = (job.frame, job.target);
        match job.verdict {
            Verdict::Pass => {
                index += together(round, ports, index, target);
                continue;
            }
            Verdict::DropTo(reason) => refused_by(round, frame, target, reason),
            Verdict::DropFrom(reason) => {
                drop_frame(round.counters, round.nic, &mut round.items[frame], reason);
            }
            // Not an IP packet and not decided: no step leaves such a job.
            Verdict::Open => drop_frame(
                round.counters,
                round.nic,
                &mut round.items[frame],
                DropReason::Ethertype,
            ),
        }
        index += 1;
    }
    finish(round);
}

/// The jobs from `first` on that pass to one target, in one call. Gives how many they are: one at least.
fn together(round: &mut Round, ports: &mut Ports, first: usize, target: PortSlot) -> usize {
    let mut frames = [0u8; BATCH];
    let mut count = 0;
    for (job, frame) in round.jobs[first..].iter().zip(&mut frames) {
        if job.verdict != Verdict::Pass || job.target != target {
            break;
        }
        // A batch has fewer than 256 frames.
        *frame = job.frame as u8;
        count += 1;
    }
    let frames = &frames[..count];
    let mut results = [Ok(()); BATCH];
    let results = &mut results[..count];
    ports.transmit_all(target, round.batch, frames, results);
    let (mut passed, mut bytes) = (0, 0);
    for (&frame, result) in frames.iter().zip(&*results) {
        let frame = usize::from(frame);
        match *result {
            Ok(()) => {
                passed += 1;
                bytes += round.batch.frames()[frame].len() as u64;
                round.items[frame].fate = Fate::Delivered;
            }
            Err(error) => refused_by(round, frame, target, refusal(error)),
        }
    }
    round.counters.delivered_all(target, passed, bytes);
    let watched = round.view.port(target);
    if let Some(config) = watched.filter(|config| !config.sniffers.is_empty() || config.trace.is_some()) {
        for (&frame, _) in frames.iter().zip(&*results).filter(|(_, result)| result.is_ok()) {
            show(round, ports, config, frame.into());
        }
    }
    count
}

/// Copies of what a NIC has sent, whatever becomes of it.
pub(crate) fn to_sniffers(round: &Round, ports: &mut Ports) {
    for sniffer in &round.nic.sniffers {
        for frame in 0..round.batch.len() {
            copy_to(round, ports, frame, *sniffer);
        }
    }
}

/// What was delivered to a NIC, for those who watch it.
fn show(round: &Round, ports: &mut Ports, config: &PortConfig, frame: usize) {
    for sniffer in &config.sniffers {
        copy_to(round, ports, frame, *sniffer);
    }
    record(round, config, Direction::Inbound, frame, None);
}

/// A copy for a sniffer; one that it has no room for is lost for it alone.
fn copy_to(round: &Round, ports: &mut Ports, frame: usize, sniffer: PortSlot) {
    if round.view.port(sniffer).is_none_or(|config| !config.is_sniffer) {
        return;
    }
    match ports.transmit(sniffer, round.batch, frame) {
        Ok(()) => round
            .counters
            .delivered(sniffer, round.batch.frames()[frame].len() as u64),
        Err(reason) => round.counters.dropped_to(sniffer, reason),
    }
}

fn refused_by(round: &Round, frame: usize, target: PortSlot, reason: DropReason) {
    round.counters.dropped_to(target, reason);
    if let Some(config) = round.view.port(target) {
        record(round, config, Direction::Inbound, frame, Some(reason.name()));
    }
}

/// What concerns a frame as a whole, after all its targets.
fn finish(round: &mut Round) {
    for index in 0..round.items.len() {
        let item = &round.items[index];
        if item.fate != Fate::Delivered
            && let Some(key) = &item.first_of
        {
            round.tables.fragments.condemn(key);
        }
    }
    if round.nic.trace.is_none() {
        return;
    }
    for (index, item) in round.items.iter().enumerate() {
        let refusal = || {
            let job = round.jobs.iter().find(|job| job.frame == index)?;
            match job.verdict {
                Verdict::DropTo(reason) | Verdict::DropFrom(reason) => Some(reason.name()),
                Verdict::Open | Verdict::Pass => None,
            }
        };
        let dropped = match item.fate {
            Fate::Held => continue,
            Fate::Delivered => None,
            Fate::Dropped(reason) => Some(reason.name()),
            Fate::Going => refusal(),
        };
        record(round, round.nic, Direction::Outbound, index, dropped);
    }
}

fn record(
    round: &Round,
    config: &PortConfig,
    direction: Direction,
    frame: usize,
    dropped: Option<&'static str>,
) {
    if let Some(trace) = &config.trace {
        trace.record(direction, round.batch, frame, dropped, round.now.unix_ns);
    }
}
