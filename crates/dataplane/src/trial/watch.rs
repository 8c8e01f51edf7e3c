//! The observer of a trial: after each step of the path it notes what that step has found out, and
//! before the steps that ask tables it copies into the trial's own what the real ones have of this
//! frame. It decides nothing.

use wire::parse::Packet;

use super::{Asked, By, End, Hop, Outcome, Report, Stage, TARGETS_MAX, Target, To};
use crate::drop_reason::DropReason;
use crate::dump;
use crate::flow::Entry;
use crate::ids::PortSlot;
use crate::judge::{self, GroupAnswer};
use crate::opening::Opening;
use crate::overlay::Towards;
use crate::round::{Case, Fate, Job, Round, Tables, Track, Verdict, owns_source, question};
use crate::ruleset::Direction;
use crate::searches::Searches;
use crate::stages::terms::share;
use crate::stages::{deliver, related};

pub(super) struct Watcher<'a> {
    report: &'a mut Report,
    /// The worker's own.
    real: &'a Tables,
    /// What the jobs were when the step began.
    before: Vec<Verdict>,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(report: &'a mut Report, real: &'a Tables) -> Watcher<'a> {
        Watcher {
            report,
            real,
            before: Vec::new(),
        }
    }

    /// Notes what a step has done.
    pub(super) fn after(&mut self, stage: Stage, round: &mut Round) {
        self.note_end(stage, round);
        match stage {
            Stage::Parse => self.parsed(round),
            Stage::Spoof => self.lend_fragments(round),
            Stage::Fragments => self.note_packet(round),
            Stage::Always => self.report.always = round.items.iter().any(|item| item.always),
            Stage::Neighbours => self.report.near = round.items.iter().any(|item| item.near),
            Stage::Destination => self.targets(round),
            Stage::Known => self.known(round),
            Stage::Egress => self.asked(round, Direction::Egress),
            Stage::Ingress => {
                self.asked(round, Direction::Ingress);
                self.room_for_flows(round);
            }
            Stage::Encapsulate => {
                self.encapsulated(round);
                self.room_to_wait(round);
            }
            Stage::Outer | Stage::Remember | Stage::Deliver => {}
        }
        if stage >= Stage::Destination {
            self.note_verdicts(stage, round);
        }
        self.before.clear();
        self.before.extend(round.jobs.iter().map(|job| job.verdict));
    }

    /// The frame as a whole may end in any step.
    fn note_end(&mut self, stage: Stage, round: &Round) {
        let answer = &round.replies.batch;
        if self.report.answer.is_none() && !answer.is_empty() {
            self.report.answer = Some(answer.to_bytes(0));
        }
        let Some(item) = round.items.first().filter(|_| self.report.end.is_none()) else {
            return;
        };
        let end = match item.fate {
            Fate::Going => return,
            Fate::Dropped(reason) => End::Dropped(reason),
            Fate::Held => End::Held,
            Fate::Delivered => End::Answered,
        };
        self.report.end = Some((stage, end));
    }

    fn note_packet(&mut self, round: &Round) {
        if let Some(item) = round.items.first() {
            self.report.packet = item.packet;
            self.report.nd = item.nd;
        }
    }

    /// Where both its MACs were heard is asked from here on.
    fn parsed(&mut self, round: &mut Round) {
        self.note_packet(round);
        if let Some(Packet { src, dst, .. }) = self.report.packet {
            let learned = &mut round.tables.learned;
            for mac in [src, dst] {
                learned.copy_in(&self.real.learned, round.nic.vni, mac);
            }
        }
    }

    fn lend_fragments(&mut self, round: &mut Round) {
        let ip = round.items.first().and_then(|item| item.ip());
        if ip.is_some_and(|ip| ip.fragment.is_some()) {
            round.tables.fragments = self.real.fragments.clone();
        }
    }

    /// Who is to get it; and what is known of its flows, which the next step asks for.
    fn targets(&mut self, round: &mut Round) {
        if let Some(Packet { src, .. }) = self.report.packet {
            let (vni, now_secs) = (round.nic.vni, round.now.secs());
            let was = self.real.learned.find(vni, src, now_secs);
            let is = round.tables.learned.find(vni, src, now_secs);
            self.report.learns = is.filter(|_| is != was).map(|location| (src, location));
        }
        for job in round.jobs.iter() {
            let by = match job.verdict {
                Verdict::Pass => By::NoRules,
                _ => By::Nothing,
            };
            if self.report.targets.len() >= TARGETS_MAX {
                self.report.more_targets += 1;
                continue;
            }
            self.report.targets.push(Target {
                to: to(job, case_of(round, job)),
                by,
                flow: None,
                asked: Vec::new(),
                hop: None,
                verdict: Outcome::Pass,
            });
        }
        for index in 0..round.jobs.len() {
            self.lend_flows(round, index);
        }
    }

    fn lend_flows(&mut self, round: &mut Round, index: usize) {
        let (real, now) = (&self.real.flows, round.now);
        let job = round.jobs[index];
        let Some(case) = round.cases.get(job.case as usize) else {
            return;
        };
        if let Track::Flow(key, ..) = &case.track {
            let Some(id) = real.find(key, real.hash(key)) else {
                return;
            };
            let entry = real.entry(id);
            if round.tables.flows.copy_in(entry).is_some()
                && let Some(target) = self.report.targets.get_mut(index)
            {
                target.flow = Some((
                    dump::info(entry, &entry.key(), round.view.epoch_mark(), now),
                    false,
                ));
            }
            return;
        }
        // An error is about a flow between its receiver and anybody.
        let item = &round.items[case.item];
        let Some(receiver) = round.view.port(job.target) else {
            return;
        };
        let head = round.batch.frames()[item.frame].head();
        let network = round.view.network(round.nic.network);
        let ports = network.map_or(&[][..], |network| &network.ports);
        let others = ports.iter().take(related::WIDE_SEARCH_MAX);
        let uids = others.filter_map(|slot| Some(round.view.port(*slot)?.uid));
        for uid in uids.chain([round.nic.uid]) {
            let Some(key) = related::key_of(item, head, receiver.uid, uid) else {
                return;
            };
            if let Some(id) = real.find(&key, real.hash(&key)) {
                round.tables.flows.copy_in(real.entry(id));
            }
        }
    }

    /// What needed no rules.
    fn known(&mut self, round: &Round) {
        for (index, job) in round.jobs.iter().enumerate() {
            let (Some(target), Some(Verdict::Open)) =
                (self.report.targets.get_mut(index), self.before.get(index))
            else {
                continue;
            };
            if job.verdict == Verdict::Open {
                target.by = By::Rules;
                continue;
            }
            let Some(case) = round.cases.get(job.case as usize) else {
                continue;
            };
            let v6 = round.items[case.item].ip().is_some_and(|ip| ip.v6);
            let openings = round.view.stateless(round.nic.slot, job.target, v6);
            let flow = match &case.track {
                Track::Flow(key, hash, _) => round.tables.flows.find(key, *hash),
                Track::No => None,
            };
            target.by = match (flow, openings, &case.track) {
                (Some(id), ..) => {
                    if let Some((_, by)) = &mut target.flow {
                        *by = true;
                    }
                    let entry = round.tables.flows.entry(id);
                    By::Flow(entry.sides[0].rules().map(Entry::rule))
                }
                (None, Some(openings), _) => {
                    By::Open(openings.map(|opening| Entry::rule(Opening::rule_slot(opening))))
                }
                (None, None, Track::No) => By::Related,
                (None, None, Track::Flow(..)) => By::Rules,
            };
        }
    }

    /// Which groups were asked, and what they say: by the very function that the step has asked.
    fn asked(&mut self, round: &Round, direction: Direction) {
        for (index, job) in round.jobs.iter().enumerate() {
            let (Some(target), Some(Verdict::Open)) =
                (self.report.targets.get_mut(index), self.before.get(index))
            else {
                continue;
            };
            let Some(packet) =
                case_of(round, job).and_then(|case| round.items[case.item].packet.as_ref())
            else {
                continue;
            };
            let nic = match direction {
                Direction::Egress => Some(round.nic),
                Direction::Ingress => round.view.port(job.target),
            };
            let (Some(ip), Some(nic)) = (packet.ip(), nic) else {
                continue;
            };
            let before = target.asked.len();
            let asked = &mut target.asked;
            let question = question(ip);
            let one = |group, answer| Asked {
                nic: nic.slot,
                question: question.to_rules(direction),
                group,
                answer,
            };
            let look = |group, answer| asked.push(one(Some(group), answer));
            let unbound = &mut Searches::default();
            let granted = match direction {
                Direction::Egress => {
                    let owned = owns_source(round.nic, packet, ip);
                    judge::egress_seen(round.view, nic, &question, owned, look, unbound)
                }
                Direction::Ingress => {
                    judge::ingress_seen(round.view, nic, &question, look, unbound)
                }
            };
            if asked.len() == before && granted.is_none() {
                asked.push(one(None, GroupAnswer::Silent));
            }
        }
    }

    /// The trial's own table has room for any flow; whether the real one has is asked here.
    fn room_for_flows(&mut self, round: &mut Round) {
        let now_ms = round.now.millis();
        for index in 0..round.jobs.len() {
            let job = round.jobs[index];
            let track = case_of(round, &job).map(|case| case.track);
            let Some(Track::Flow(key, _, side)) = track.filter(|_| job.verdict == Verdict::Open)
            else {
                continue;
            };
            if key.is_answer(side) {
                continue;
            }
            let share = share(round.nic, round.view.port(job.target));
            let room = self
                .real
                .flows
                .would_take(round.nic.slot, job.target, share, now_ms);
            if let Err(reason) = room {
                round.jobs[index].verdict = Verdict::DropFrom(reason);
                self.set(index, dropped(Stage::Remember, reason, false));
            }
        }
    }

    /// What waits for a next hop needs room, too: the same question as the real step asks.
    fn room_to_wait(&mut self, round: &Round) {
        let Some(item) = round.items.first().filter(|_| !round.waits.is_empty()) else {
            return;
        };
        let mut hosts: Vec<_> = round.waits.iter().map(|wait| wait.host).collect();
        hosts.dedup();
        let (len, network) = (round.batch.frames()[item.frame].len(), round.nic.network);
        let waiting = &self.real.waiting;
        if waiting.has_room(round.nic.slot, network, len, hosts.len()) {
            return;
        }
        for (index, job) in round.jobs.iter().enumerate() {
            if job.verdict == Verdict::Wait {
                let reason = DropReason::NextHopQueueFull;
                self.set(index, dropped(Stage::Encapsulate, reason, false));
            }
        }
    }

    /// A frame for all hosts has become one for each of them, the first in its old place.
    fn encapsulated(&mut self, round: &Round) {
        let known = self.before.len();
        for (index, job) in round.jobs.iter().enumerate() {
            if index >= known {
                let first = round.jobs[..known]
                    .iter()
                    .position(|first| first.case == job.case)
                    .and_then(|first| self.report.targets.get(first).cloned());
                let Some(first) = first.filter(|_| self.report.targets.len() < TARGETS_MAX) else {
                    self.report.more_targets += 1;
                    continue;
                };
                self.report.targets.push(first);
            }
            let hop = job.target.as_hop().and_then(|hop| round.underlay.hop(hop));
            let at = match index < known {
                true => index,
                false => self.report.targets.len() - 1,
            };
            if let (Some(hop), Some(target)) = (hop, self.report.targets.get_mut(at)) {
                let outer = deliver::outer_of(round, hop, *job);
                let frame = usize::from(job.frame);
                let inner = round.batch.to_bytes(frame);
                let mut packet = vec![0; outer.len()];
                outer.write(&mut packet, inner.len(), round.batch.sum(frame));
                packet.extend(inner);
                let host = outer.destination();
                target.to = To::Host(host);
                target.hop = Some(Hop {
                    uplink: hop.uplink,
                    host,
                    packet,
                });
            }
        }
    }

    fn note_verdicts(&mut self, stage: Stage, round: &Round) {
        for (index, job) in round.jobs.iter().enumerate() {
            let was = self.before.get(index);
            if was == Some(&job.verdict) {
                continue;
            }
            match job.verdict {
                Verdict::DropFrom(reason) => self.set(index, dropped(stage, reason, false)),
                Verdict::DropTo(reason) => self.set(index, dropped(stage, reason, true)),
                Verdict::Wait => self.set(index, Outcome::Waits),
                // The only frame of a round is asked about at once.
                Verdict::Open | Verdict::Late | Verdict::Pass => {}
            }
        }
    }

    fn copies(&mut self, round: &Round, sniffers: &[PortSlot]) {
        let those = sniffers.iter().filter(|slot| {
            let config = round.view.port(**slot);
            config.is_some_and(|config| config.is_sniffer && !config.link_down)
        });
        self.report.copies.extend(those);
    }

    /// The first verdict that is not to pass stays.
    fn set(&mut self, index: usize, verdict: Outcome) {
        if let Some(target) = self.report.targets.get_mut(index)
            && target.verdict == Outcome::Pass
        {
            target.verdict = verdict;
        }
    }

    /// Whether who is to get it could be reached.
    pub(super) fn deliver(
        &mut self,
        round: &Round,
        outlook: impl Fn(PortSlot, u32) -> Result<(), DropReason>,
    ) {
        if !round.nic.is_sniffer {
            self.copies(round, &round.nic.sniffers);
        }
        for (index, job) in round.jobs.iter().enumerate() {
            if job.verdict != Verdict::Pass {
                continue;
            }
            if let Some(config) = round.view.port(job.target) {
                self.copies(round, &config.sniffers);
            }
            let hop = job.target.as_hop().and_then(|hop| round.underlay.hop(hop));
            let target = hop.map_or(job.target, |hop| hop.uplink);
            if let Err(reason) = outlook(target, job.steer) {
                self.set(index, dropped(Stage::Deliver, reason, true));
            }
        }
    }
}

fn case_of<'r>(round: &'r Round, job: &Job) -> Option<&'r Case> {
    round.cases.get(job.case as usize)
}

fn to(job: &Job, case: Option<&Case>) -> To {
    match case.map(|case| case.towards) {
        Some(Towards::Host(host)) => To::Host(host),
        Some(Towards::All) => To::AllHosts,
        Some(Towards::Here) | None => To::Nic(job.target),
    }
}

fn dropped(stage: Stage, reason: DropReason, at_target: bool) -> Outcome {
    Outcome::Dropped {
        stage,
        reason,
        at_target,
    }
}
