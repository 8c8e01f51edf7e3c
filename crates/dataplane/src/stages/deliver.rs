//! Step 13: what passed goes to its targets, and to who watches them; what did not is counted by
//! its reason.

use io::frame::{BATCH, Batch};
use io::port::TransmitError;
use io::trace::Direction;
use io::trace::capture::Effort;
use wire::parse;
use wire::vxlan::{self, Outer, ecn};

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::limits::{Meter, Meters};
use crate::overlay::TunnelSource;
use crate::ports::{Handed, Ports, refusal};
use crate::round::{Fate, Job, NO_CASE, Round, Verdict, drop_frame};
use crate::shaper::Taken;
use crate::snapshot::PortConfig;
use crate::stages::wait;
use crate::time::Now;
use crate::underlay::ReadyHop;
use crate::view::View;

pub(crate) fn run(round: &mut Round, ports: &mut Ports) {
    let mut index = 0;
    while let Some(job) = round.jobs.get(index) {
        let (frame, target) = (usize::from(job.frame), job.target);
        let item = round.cases.get(job.case as usize).map(|case| case.item);
        match job.verdict {
            Verdict::Pass if target.as_hop().is_some() => {
                index += to_wire(round, ports, index, target);
                continue;
            }
            Verdict::Pass => {
                index += together(round, ports, index, target);
                continue;
            }
            Verdict::DropTo(reason) => refused_by(round, frame, target, reason),
            Verdict::DropFrom(reason) => drop_sent(round, item, reason),
            // Not an IP packet and not decided: no step leaves such a job.
            Verdict::Open => drop_sent(round, item, DropReason::Ethertype),
            // Was put off, and could not wait.
            Verdict::Late => drop_sent(round, item, DropReason::RuleLookups),
            // For a next hop: looked after below. For its target's limits: it is copied.
            Verdict::Wait => {}
        }
        index += 1;
    }
    if !round.waits.is_empty() {
        wait::hold(round);
    }
    finish(round);
}

fn drop_sent(round: &mut Round, item: Option<usize>, reason: DropReason) {
    let (counters, from) = (round.counters, round.from.slot);
    match item {
        Some(item) => drop_frame(counters, from, &mut round.items[item], reason),
        // On the fast path a frame has one target alone.
        None => counters.dropped_from(from, reason),
    }
}

/// Sends frames to the round's NIC that have waited for its tokens.
pub(crate) fn queued(round: &mut Round, ports: &mut Ports, taken: &Taken) {
    let nic = round.nic;
    let down = nic.link_down.then_some(DropReason::LinkDown);
    let jobs = taken.steer.iter().zip(0..).map(|(steer, frame)| Job {
        frame,
        verdict: down.map_or(Verdict::Pass, Verdict::DropTo),
        target: nic.slot,
        steer: *steer,
        case: NO_CASE,
    });
    round.jobs.extend(jobs);
    for (frame, reason) in &taken.refused {
        round.jobs[*frame].verdict = Verdict::DropTo(*reason);
    }
    let mut index = 0;
    while let Some(job) = round.jobs.get(index).copied() {
        index += match job.verdict {
            Verdict::DropTo(reason) => {
                refused_by(round, job.frame.into(), nic.slot, reason);
                1
            }
            _ => send(round, ports, index, Some(nic), nic.slot, BATCH),
        };
    }
}

/// The jobs from `first` on that pass to one target, in one call. Gives how many they are: one at
/// least, or none where the target's limits do not let them pass now, which they say then.
fn together(round: &mut Round, ports: &mut Ports, first: usize, target: PortSlot) -> usize {
    let view = round.view;
    let nic = view.port(target);
    let mut most = BATCH;
    if let Some(nic) = nic
        && let Some(meters) = nic.meters.as_deref()
    {
        most = within(round, nic, &meters.ingress, first);
        if most == 0 {
            return 0;
        }
    }
    send(round, ports, first, nic, target, most)
}

/// The jobs from `first` on that pass to one target, `most` at the most. Gives how many they are.
#[inline(always)]
fn send(
    round: &mut Round,
    ports: &mut Ports,
    first: usize,
    nic: Option<&PortConfig>,
    target: PortSlot,
    most: usize,
) -> usize {
    let mut frames = [0u8; BATCH];
    let mut steer = [0u32; BATCH];
    let (mut count, mut by_lane) = (0, true);
    let jobs = round.jobs[first..].iter().take(most);
    for ((job, frame), hint) in jobs.zip(&mut frames).zip(&mut steer) {
        if job.verdict != Verdict::Pass || job.target != target {
            break;
        }
        *frame = job.frame;
        *hint = job.steer;
        by_lane &= job.case == NO_CASE;
        count += 1;
    }
    let frames = &frames[..count];
    let mut results = [Ok(()); BATCH];
    let results = &mut results[..count];
    let handed = ports.transmit_all(target, round.batch, frames, &steer[..count], results);
    if !handed.is_none() {
        return partly(round, ports, first, frames, results, handed);
    }
    if by_lane && results.iter().all(Result::is_ok) {
        let lens = frames
            .iter()
            .map(|frame| round.batch.frames()[usize::from(*frame)].len());
        let bytes: usize = lens.sum();
        round.tables.delivered += count;
        round
            .counters
            .delivered_all(target, count as u64, bytes as u64);
    } else {
        one_by_one(round, first, frames, results);
    }
    if let Some(config) = nic.filter(|config| !config.sniffers.is_empty() || config.trace.is_some())
    {
        for (&frame, _) in frames
            .iter()
            .zip(&*results)
            .filter(|(_, result)| result.is_ok())
        {
            show(round, ports, config, frame.into());
        }
    }
    count
}

/// Puts those jobs of one target from `first` on first that its limits let pass now, in their
/// order. The others wait in the target's queue, or say that they are dropped. Gives how many pass.
#[cold]
fn within(round: &mut Round, nic: &PortConfig, meter: &Meter, first: usize) -> usize {
    let target = nic.slot;
    let goes = |job: &Job| job.verdict == Verdict::Pass && job.target == target;
    let jobs = &mut round.jobs[first..];
    let count = jobs.iter().take(BATCH).take_while(|job| goes(job)).count();
    let jobs = &mut jobs[..count];
    let shaper = &mut round.tables.shaper;
    for job in &mut *jobs {
        let index = usize::from(job.frame);
        // What waits already goes first.
        if !shaper.has(target) && meter.admit(&round.batch.frames()[index], round.now).is_ok() {
            continue;
        }
        let receiver = (target, nic.uid);
        let held = shaper.hold(receiver, meter, (round.batch, index), job.steer, round.now);
        job.verdict = match held {
            Ok(()) => Verdict::Wait,
            Err(reason) => Verdict::DropTo(reason),
        };
        if held.is_ok()
            && let Some(case) = round.cases.get(job.case as usize)
        {
            round.items[case.item].fate = Fate::Delivered;
        }
    }
    // A stable sort: false, which is what passes, comes first.
    jobs.sort_by_key(|job| job.verdict != Verdict::Pass);
    jobs.iter().take_while(|job| goes(job)).count()
}

/// Counts frames of [`together`] by what became of each, and notes it where it is asked for.
#[inline(never)]
fn one_by_one(
    round: &mut Round,
    first: usize,
    frames: &[u8],
    results: &[Result<(), TransmitError>],
) {
    let target = round.jobs[first].target;
    let (mut passed, mut bytes) = (0, 0);
    for (index, result) in results.iter().enumerate() {
        let frame = usize::from(frames[index]);
        match *result {
            Ok(()) => {
                passed += 1;
                bytes += round.batch.frames()[frame].len() as u64;
                if let Some(case) = round.cases.get(round.jobs[first + index].case as usize) {
                    round.items[case.item].fate = Fate::Delivered;
                }
            }
            Err(error) => refused_by(round, frame, target, refusal(error)),
        }
    }
    round.counters.delivered_all(target, passed, bytes);
}

/// The jobs from `first` on that pass to one next hop, each in its outer headers. Gives how many
/// they are.
fn to_wire(round: &mut Round, ports: &mut Ports, first: usize, target: PortSlot) -> usize {
    let hop = target.as_hop().and_then(|index| round.underlay.hop(index));
    let (mut count, mut passed, mut bytes) = (0, 0, 0);
    for index in first..round.jobs.len() {
        let job = round.jobs[index];
        if job.verdict != Verdict::Pass || job.target != target {
            break;
        }
        count += 1;
        // The hop was chosen in this underlay.
        let Some(hop) = hop else { continue };
        let frame = &round.batch.frames()[usize::from(job.frame)];
        let outer = outer_of(round, hop, job);
        let sent = ports.transmit_outer(hop.uplink, round.batch, job.frame, &outer, job.steer);
        if !round.view.uplink_taps().is_empty() {
            let (frame, dropped) = (usize::from(job.frame), sent.err());
            let taps = round.view.uplink_taps();
            taps.sent(hop.uplink, round.batch, frame, &outer, dropped, round.now);
        }
        match sent {
            Ok(here) => {
                if here {
                    passed += 1;
                    bytes += (frame.len() + outer.len()) as u64;
                }
                if let Some(case) = round.cases.get(job.case as usize) {
                    round.items[case.item].fate = Fate::Delivered;
                }
            }
            Err(reason) => round.counters.dropped_to(hop.uplink, reason),
        }
    }
    if let Some(hop) = hop.filter(|_| passed > 0) {
        round.counters.delivered_all(hop.uplink, passed, bytes);
    }
    count
}

/// The headers that a job's frame goes to a next hop in.
#[inline]
pub(crate) fn outer_of(round: &Round, hop: &ReadyHop, job: Job) -> Outer {
    let frame = &round.batch.frames()[usize::from(job.frame)];
    let mut outer = hop.outer;
    let tos = round.underlay.tos(ecn::tos_of(frame.head()));
    outer.set_flow(round.nic.vni, vxlan::source_port(job.steer), tos);
    outer
}

/// What the switch answers to senders itself: the round's NIC, or machines of other hosts.
#[cold]
pub(crate) fn replies(round: &mut Round, ports: &mut Ports) {
    round.replies.answered.sort_by_key(|answer| answer.frame);
    let mut watched = Effort::default();
    for answer in &round.replies.answered {
        match answer.from {
            None => watched += reply_to_nic(round, ports, answer.index.into()),
            Some(source) => reply_to_host(round, ports, answer.index, source),
        }
    }
    round.tables.watched += watched;
}

/// Gives what it took to record it.
fn reply_to_nic(round: &Round, ports: &mut Ports, index: usize) -> Effort {
    let (nic, batch) = (round.nic, &round.replies.batch);
    match ports.transmit(nic.slot, batch, index) {
        // Counted by the worker that it was handed to.
        Ok(false) => {}
        Ok(true) => {
            let len = batch.frames()[index].len() as u64;
            round.counters.delivered(nic.slot, len);
            if let Some(trace) = &nic.trace {
                return trace.record(Direction::Inbound, batch, index, None, round.now.unix_ns);
            }
        }
        Err(reason) => round.counters.dropped_to(nic.slot, reason),
    }
    Effort::default()
}

/// Where no next hop is known at this moment, there is no answer.
fn reply_to_host(round: &Round, ports: &mut Ports, index: u8, to: TunnelSource) {
    let (underlay, batch) = (round.underlay, &round.replies.batch);
    let frame = &batch.frames()[usize::from(index)];
    let Ok(packet) = parse::parse(frame.head(), frame.len()) else {
        return;
    };
    let hash = vxlan::flow_hash(&packet);
    let hop = underlay
        .find(to.host)
        .map(|path| underlay.choose(path, hash));
    let hop = hop.and_then(|hop| underlay.hop(hop));
    let (Some(hop), Some(remote)) = (hop, round.view.remote(to.network)) else {
        return;
    };
    let mut outer = hop.outer;
    let tos = underlay.tos(ecn::tos_of(frame.head()));
    outer.set_flow(remote.vni, vxlan::source_port(hash), tos);
    let sent = ports.transmit_outer(hop.uplink, batch, index, &outer, hash);
    if !round.view.uplink_taps().is_empty() {
        let (taps, dropped) = (round.view.uplink_taps(), sent.err());
        taps.sent(hop.uplink, batch, index.into(), &outer, dropped, round.now);
    }
    match sent {
        // Counted by the worker that it was handed to.
        Ok(false) => {}
        Ok(true) => {
            let len = (frame.len() + outer.len()) as u64;
            round.counters.delivered(hop.uplink, len);
        }
        Err(reason) => round.counters.dropped_to(hop.uplink, reason),
    }
}

/// The rest of [`together`] when a queue of the target is another worker's, who counts and shows
/// what it was handed.
#[inline(never)]
fn partly(
    round: &mut Round,
    ports: &mut Ports,
    first: usize,
    frames: &[u8],
    results: &[Result<(), TransmitError>],
    handed: Handed,
) -> usize {
    let target = round.jobs[first].target;
    for (bit, (&frame, result)) in frames.iter().zip(results).enumerate() {
        let frame = usize::from(frame);
        let over = handed.over >> bit & 1 == 1;
        let refused = match *result {
            _ if over => None,
            _ if handed.full >> bit & 1 == 1 => Some(DropReason::HandoffFull),
            Ok(()) => None,
            Err(error) => Some(refusal(error)),
        };
        if let Some(reason) = refused {
            refused_by(round, frame, target, reason);
            continue;
        }
        if let Some(case) = round.cases.get(round.jobs[first + bit].case as usize) {
            round.items[case.item].fate = Fate::Delivered;
        }
        if !over {
            let len = round.batch.frames()[frame].len() as u64;
            round.counters.delivered(target, len);
            if let Some(config) = round.view.port(target) {
                show(round, ports, config, frame);
            }
        }
    }
    frames.len()
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
fn show(round: &mut Round, ports: &mut Ports, config: &PortConfig, frame: usize) {
    for sniffer in &config.sniffers {
        copy_to(round, ports, frame, *sniffer);
    }
    let watched = record(round, config, Direction::Inbound, frame, None);
    round.tables.watched += watched;
}

fn copy_to(round: &Round, ports: &mut Ports, frame: usize, sniffer: PortSlot) {
    let at = (round.view, round.counters, round.now);
    copy_for_sniffer(at, ports, round.batch, frame, sniffer);
}

/// A copy for a sniffer, if it is one; what it has no room for, or may not be sent, is lost for it
/// alone.
pub(crate) fn copy_for_sniffer(
    (view, counters, now): (&View, &Counters, Now),
    ports: &mut Ports,
    batch: &Batch,
    frame: usize,
    sniffer: PortSlot,
) {
    let Some(config) = view.port(sniffer).filter(|config| config.is_sniffer) else {
        return;
    };
    if config.link_down {
        return counters.dropped_to(sniffer, DropReason::LinkDown);
    }
    let meters = config.meters.as_deref();
    let admit = |of: &Meters| of.ingress.admit(&batch.frames()[frame], now);
    if let Some(Err(reason)) = meters.map(admit) {
        return counters.dropped_to(sniffer, reason);
    }
    match ports.transmit(sniffer, batch, frame) {
        // Counted by the worker that it was handed to.
        Ok(false) => {}
        Ok(true) => counters.delivered(sniffer, batch.frames()[frame].len() as u64),
        Err(reason) => counters.dropped_to(sniffer, reason),
    }
}

fn refused_by(round: &mut Round, frame: usize, target: PortSlot, reason: DropReason) {
    round.counters.dropped_to(target, reason);
    if let Some(config) = round.view.port(target) {
        let dropped = Some(reason.name());
        let watched = record(round, config, Direction::Inbound, frame, dropped);
        round.tables.watched += watched;
    }
}

/// What concerns a frame as a whole, after all its targets.
fn finish(round: &mut Round) {
    for index in 0..round.items.len() {
        let item = &round.items[index];
        if !matches!(item.fate, Fate::Delivered | Fate::Held)
            && let Some(key) = &item.first_of
        {
            round.tables.fragments.condemn(key);
        }
    }
    if round.nic.trace.is_none() {
        return;
    }
    let mut watched = Effort::default();
    // A NIC that is traced does not take the fast path: every frame is an item.
    for item in round.items.iter().filter(|item| !item.traced) {
        let refusal = || {
            let job = round
                .jobs
                .iter()
                .find(|job| usize::from(job.frame) == item.frame)?;
            match job.verdict {
                Verdict::DropTo(reason) | Verdict::DropFrom(reason) => Some(reason.name()),
                Verdict::Open | Verdict::Late | Verdict::Pass | Verdict::Wait => None,
            }
        };
        let dropped = match item.fate {
            Fate::Held => continue,
            Fate::Delivered => None,
            Fate::Dropped(reason) => Some(reason.name()),
            Fate::Going => refusal(),
        };
        watched += record(round, round.nic, Direction::Outbound, item.frame, dropped);
    }
    round.tables.watched += watched;
}

/// Gives what that took.
fn record(
    round: &Round,
    config: &PortConfig,
    direction: Direction,
    frame: usize,
    dropped: Option<&'static str>,
) -> Effort {
    config.trace.as_ref().map_or(Effort::default(), |trace| {
        trace.record(direction, round.batch, frame, dropped, round.now.unix_ns)
    })
}
