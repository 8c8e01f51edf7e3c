//! Step 10: what passed goes to its targets, and to who watches them; what did not is counted by its reason.

use io::trace::Direction;

use crate::drop_reason::DropReason;
use crate::ports::Ports;
use crate::round::{Fate, Round, Verdict, drop_frame};
use crate::snapshot::{PortConfig, PortSlot};

pub(crate) fn run(round: &mut Round, ports: &mut Ports) {
    for index in 0..round.jobs.len() {
        let job = &round.jobs[index];
        let (frame, target) = (job.frame, job.target);
        match job.verdict {
            Verdict::Pass => match ports.transmit(target, round.batch, frame) {
                Ok(()) => delivered(round, ports, frame, target),
                Err(reason) => refused_by(round, frame, target, reason),
            },
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
    }
    finish(round);
}

/// Copies of what a NIC has sent, whatever becomes of it.
pub(crate) fn to_sniffers(round: &Round, ports: &mut Ports) {
    for sniffer in &round.nic.sniffers {
        for frame in 0..round.batch.len() {
            copy_to(round, ports, frame, *sniffer);
        }
    }
}

#[inline]
fn delivered(round: &mut Round, ports: &mut Ports, frame: usize, target: PortSlot) {
    let bytes = round.batch.frames()[frame].len() as u64;
    round.counters.delivered(target, bytes);
    round.items[frame].fate = Fate::Delivered;
    let Some(config) = round.view.port(target) else {
        return;
    };
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
