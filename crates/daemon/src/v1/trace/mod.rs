//! `GetTrace`: would it pass? Makes the frame (`frame.rs`), has a worker try it
//! ([`dataplane::trial`]), and says in the model's names what each step found out, and what would
//! let it pass (`remedies.rs`).

mod frame;
mod live;
mod packet;
mod remedies;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use api::v1;
use control::Explained;
use control::model::NicId;
use dataplane::ruleset::Direction;
use dataplane::trial::{Asked, By, End, Hop, Outcome, Report, Stage, Target, To};
use dataplane::{DropReason, GroupAnswer, Location, PortSlot, PortUid, RuleSlot};
use tonic::Status;

use super::{observe, render};
use crate::access::Permitted;
use crate::app::App;
use frame::Made;
pub use live::{begin, stream};

/// Answers a request.
pub fn get(
    app: &App,
    control: &mut Permitted,
    request: v1::GetTraceRequest,
) -> Result<v1::Trace, Status> {
    let mut made = frame::make(app, control, request)?;
    let frame = std::mem::take(&mut made.frame);
    let report = app.workers.switch().trial(made.from, frame);
    let report = report.map_err(|gone| Status::unavailable(gone.to_string()))?;
    Ok(TraceBuilder {
        app,
        control,
        made: &made,
        report: &report,
        names: &names_of(control, [&*report]),
        explained: RefCell::new(&mut Explained::default()),
    }
    .trace())
}

/// The NICs that connections in these reports are of, as far as they are the caller's.
fn names_of<'a>(
    control: &Permitted,
    reports: impl IntoIterator<Item = &'a Report>,
) -> BTreeMap<PortUid, NicId> {
    let targets = reports.into_iter().flat_map(|report| &report.targets);
    let flows = targets.filter_map(|target| target.flow.as_ref());
    let uids: BTreeSet<PortUid> = flows
        .flat_map(|(flow, _)| [flow.initiator.uid, flow.responder.uid])
        .collect();
    match uids.is_empty() {
        true => BTreeMap::new(),
        false => control.nics_with(&uids),
    }
}

/// A frame that a NIC has sent, in the model's names.
fn trace_of_report(
    app: &App,
    control: &Permitted,
    nic: &NicId,
    report: &Report,
    names: &BTreeMap<PortUid, NicId>,
    explained: &mut Explained,
) -> v1::Trace {
    let nic = control.nic(nic).ok();
    let made = Made {
        from: nic.as_ref().map_or(PortSlot(u32::MAX >> 1), |nic| nic.slot),
        vni: nic.as_ref().map(|nic| nic.nic.vni),
        nic,
        frame: Vec::new(),
    };
    TraceBuilder {
        app,
        control,
        made: &made,
        report,
        names,
        explained: RefCell::new(explained),
    }
    .trace()
}

/// Makes API v1's trace of a report, in the model's names.
struct TraceBuilder<'a, 'c> {
    app: &'a App,
    control: &'a Permitted<'c>,
    made: &'a Made,
    report: &'a Report,
    names: &'a BTreeMap<PortUid, NicId>,
    explained: RefCell<&'a mut Explained>,
}

impl TraceBuilder<'_, '_> {
    fn trace(&self) -> v1::Trace {
        let report = self.report;
        let targets: Vec<v1::TraceTarget> = report
            .targets
            .iter()
            .map(|target| self.target(target))
            .collect();
        let answered = matches!(report.end, Some((_, End::Answered)));
        let passes = answered || targets.iter().any(|target| target.passes || target.waits);
        let ended = match report.end {
            Some((_, End::Dropped(reason))) => Some(reason),
            _ => None,
        };
        let refused = report
            .targets
            .iter()
            .find_map(|target| match target.verdict {
                Outcome::Dropped { reason, .. } => Some(reason),
                Outcome::Pass | Outcome::Waits => None,
            });
        let why = ended.or(refused).filter(|_| !passes);
        let of_frame = ended.map_or_else(Vec::new, |reason| {
            remedies::of_frame(reason, self.made.nic.as_ref(), report)
        });
        let first = targets.first().filter(|_| of_frame.is_empty() && !passes);
        let remedies = first.map_or(of_frame, |target| target.remedies.clone());
        v1::Trace {
            epoch: report.epoch.0,
            worker: report.worker as u32,
            frame: report.frame.clone(),
            steps: self.steps(),
            more_targets: report.more_targets as u32,
            passes,
            reason: why.map_or("", DropReason::name).into(),
            description: why.map_or("", DropReason::description).into(),
            answer: report.answer.clone().unwrap_or_default(),
            remedies,
            targets,
        }
    }

    /// What the path found out of the frame as a whole.
    fn steps(&self) -> Vec<v1::TraceStep> {
        let report = self.report;
        let end = report.end.map(|(stage, _)| stage);
        let mut steps = Vec::new();
        let reached = |stage: Stage| end.is_none_or(|end| stage < end);
        let mut say = |stage: Stage, text: String| {
            if reached(stage) {
                steps.push(step(stage, text, false));
            }
        };
        if self.made.from.is_uplink()
            && let Some((_, host)) = report.arrival
        {
            let vni = self
                .made
                .vni
                .map_or_else(String::new, |vni| format!(" for VNI {vni}"));
            say(
                Stage::Outer,
                format!("VXLAN from {host}{vni}, outer headers taken off"),
            );
        }
        if let Some(packet) = &report.packet {
            say(
                Stage::Parse,
                packet::words(packet, report.nd.as_ref(), report.frame.len()),
            );
            let bypass = self
                .made
                .nic
                .as_ref()
                .is_some_and(|nic| nic.nic.bypass_filtering);
            say(
                Stage::Spoof,
                match (
                    bypass,
                    self.made.nic.as_ref().is_some_and(|nic| nic.nic.anti_spoof),
                ) {
                    (true, _) => "the NIC bypasses filtering: not looked at".into(),
                    (_, true) => "MAC and addresses are the sender's".into(),
                    (_, false) if report.arrival.is_some() => "may come from that host".into(),
                    (_, false) => "the MAC is the sender's; addresses are not looked at".into(),
                },
            );
            if packet.ip().is_some_and(|ip| ip.fragment.is_some()) {
                say(
                    Stage::Fragments,
                    "a fragment: judged like its datagram's first one".into(),
                );
            }
        }
        if report.always {
            say(Stage::Always, "passes whatever the rules say".into());
        }
        if report.near {
            say(
                Stage::Neighbours,
                "asks for an address of this host: stays on it".into(),
            );
        }
        if let Some((mac, location)) = report.learns {
            say(
                Stage::Destination,
                format!("{mac} would be learnt {}", self.location_words(location)),
            );
        }
        match report.end {
            Some((stage, End::Dropped(reason))) => steps.push(step(stage, dropped(reason), true)),
            Some((stage, End::Held)) => {
                let text = "held back, for a second at most, until its first fragment comes";
                steps.push(step(stage, text.into(), true));
            }
            Some((stage, End::Answered)) => {
                let text = "the switch answers it itself, from the bindings";
                steps.push(step(stage, text.into(), false));
            }
            Some((stage, End::NoSender)) => {
                steps.push(step(stage, "the NIC is not in force".into(), true));
            }
            None => steps.push(step(
                Stage::Destination,
                match report.targets.len() + report.more_targets {
                    1 => "one target".into(),
                    count => format!("{count} targets"),
                },
                false,
            )),
        }
        steps
    }

    fn location_words(&self, location: Location) -> String {
        match location {
            Location::Nic(slot, _) => format!("behind {}", self.nic_words(slot)),
            Location::Host(host) => format!("at host {host}"),
        }
    }

    fn nic_words(&self, slot: PortSlot) -> String {
        match self.control.nic_at(slot) {
            Some(id) => format!("NIC '{id}'"),
            None => "another NIC".into(),
        }
    }

    fn target(&self, target: &Target) -> v1::TraceTarget {
        let nic = match target.to {
            To::Nic(slot) => self.control.nic_at(slot),
            To::Host(_) | To::AllHosts => None,
        };
        let groups: Vec<v1::TraceGroup> =
            target.asked.iter().map(|asked| self.group(asked)).collect();
        let dropped_here = match target.verdict {
            Outcome::Dropped { stage, reason, .. } => Some((stage, reason)),
            Outcome::Pass | Outcome::Waits => None,
        };
        let remedies = dropped_here.map_or_else(Vec::new, |(_, reason)| {
            let sender = self.made.nic.as_ref();
            remedies::of_target(reason, sender, nic.as_ref(), self.control, self.report)
        });
        let flow = target.flow.as_ref();
        let hop = target.hop.as_ref().filter(|_| self.control.sees_all());
        v1::TraceTarget {
            nic: nic.as_ref().map(NicId::to_string).unwrap_or_default(),
            endpoint: match target.to {
                To::Host(host) => host.to_string(),
                To::Nic(_) | To::AllHosts => String::new(),
            },
            all_hosts: target.to == To::AllHosts,
            steps: self.target_steps(target, nic.as_ref()),
            flow: flow.map(|(flow, _)| observe::flow(flow, None, self.names)),
            uplink: hop.map(|hop| self.uplink(hop.uplink)).unwrap_or_default(),
            packet: hop.map(|hop| hop.packet.clone()).unwrap_or_default(),
            passes: target.verdict == Outcome::Pass,
            waits: target.verdict == Outcome::Waits,
            reason: dropped_here.map_or("", |(_, reason)| reason.name()).into(),
            dropped_in: dropped_here.map_or("", |(stage, _)| stage.name()).into(),
            description: dropped_here
                .map_or("", |(_, reason)| reason.description())
                .into(),
            groups,
            remedies,
        }
    }

    fn uplink(&self, slot: PortSlot) -> String {
        let facts = self.app.uplinks.running().map(|uplinks| uplinks.facts());
        let facts = facts.as_deref().unwrap_or_default();
        let fact = facts
            .iter()
            .find(|fact| PortSlot::uplink(fact.number) == slot);
        fact.map(|fact| fact.interface.clone()).unwrap_or_default()
    }

    fn target_steps(&self, target: &Target, to: Option<&NicId>) -> Vec<v1::TraceStep> {
        let mut steps = Vec::new();
        let mut say = |stage, text: String| steps.push(step(stage, text, false));
        if let Some((flow, taken)) = &target.flow {
            let state = flow.state.name();
            say(
                Stage::Known,
                match taken {
                    true => format!("of a known connection, which is {state}"),
                    false => {
                        format!("a connection is known ({state}), but over or not allowed any more")
                    }
                },
            );
        }
        match target.by {
            By::Open(rules) => say(
                Stage::Known,
                format!("both ends allow everything{}", self.rules_words(rules, to)),
            ),
            By::Flow(rules) => say(
                Stage::Known,
                format!(
                    "passes as its connection does{}",
                    self.rules_words(rules, to)
                ),
            ),
            By::Related => say(Stage::Known, "is about a known connection".into()),
            By::NoRules => say(Stage::Destination, "no rules are asked".into()),
            By::Nothing | By::Rules => {}
        }
        for (direction, stage) in [
            (Direction::Egress, Stage::Egress),
            (Direction::Ingress, Stage::Ingress),
        ] {
            let refused = matches!(target.verdict,
                Outcome::Dropped { stage: at, .. } if at == stage);
            let mut asked = target.asked.iter();
            let was = asked.any(|asked| asked.question.direction == direction);
            let passed = match target.verdict {
                Outcome::Dropped { stage: at, .. } => at > stage,
                Outcome::Pass | Outcome::Waits => true,
            };
            if target.by == By::Rules && !was && passed && !refused {
                say(stage, "no rule is needed".into());
            }
        }
        match target.verdict {
            Outcome::Dropped { stage, reason, .. } => {
                steps.push(step(stage, dropped(reason), true));
                if reason == DropReason::TcpNotSyn && self.report.answer.is_some() {
                    steps.push(step(stage, "its sender gets a reset".into(), false));
                }
            }
            Outcome::Waits => {
                let text = "waits until the next hop's address is known".into();
                steps.push(step(Stage::Encapsulate, text, false));
            }
            Outcome::Pass => {
                if let Some(hop) = &target.hop {
                    steps.push(step(Stage::Encapsulate, self.hop_words(hop), false));
                }
                steps.push(step(Stage::Deliver, "passes".into(), false));
            }
        }
        steps
    }

    /// How it goes to another host. Uplinks and the underlay are the whole host's.
    fn hop_words(&self, hop: &Hop) -> String {
        match self.control.sees_all() {
            true => format!(
                "VXLAN to {} over {}, {} bytes",
                hop.host,
                self.uplink(hop.uplink),
                hop.packet.len()
            ),
            false => format!("VXLAN to {}", hop.host),
        }
    }

    /// By which rules, as far as they are the caller's to know.
    fn rules_words(&self, rules: [Option<RuleSlot>; 2], to: Option<&NicId>) -> String {
        let sender = self.made.nic.as_ref().map(|nic| &nic.nic.id);
        // A flow that the other end began has its rules the other way round.
        let nics = [sender, to].into_iter().flatten();
        let found = rules.into_iter().flatten().filter_map(|slot| {
            let mut of = nics
                .clone()
                .filter_map(|nic| self.control.rule_of(nic, slot));
            let (group, rule) = of.next()?;
            Some(format!("{} of group '{group}'", packet::rule_words(&rule)))
        });
        let found: Vec<String> = found.collect();
        match found.is_empty() {
            true => String::new(),
            false => format!(", by {}", found.join(" and ")),
        }
    }

    fn group(&self, asked: &Asked) -> v1::TraceGroup {
        let question = &asked.question;
        let verdict = self
            .control
            .explain(asked, &mut self.explained.borrow_mut());
        let nic = self.control.nic_at(asked.nic);
        let direction = match question.direction {
            Direction::Egress => v1::Direction::Egress,
            Direction::Ingress => v1::Direction::Ingress,
        };
        let mut told = v1::TraceGroup {
            nic: nic.map(|id| id.to_string()).unwrap_or_default(),
            direction: direction.into(),
            missing: asked.answer == GroupAnswer::Missing,
            ..Default::default()
        };
        if let Some(verdict) = verdict {
            told.group = verdict.group.to_string();
            told.rule = verdict.rule.as_ref().map(render::rule);
            told.rules = verdict.rules as u32;
            told.not_compared = verdict.not_compared as u32;
            told.misses = verdict
                .misses
                .iter()
                .map(|miss| v1::TraceMiss {
                    rule: Some(render::rule(&miss.rule)),
                    differs: miss.differs.iter().map(|what| (*what).into()).collect(),
                })
                .collect();
        }
        told
    }
}

fn step(stage: Stage, text: String, refused: bool) -> v1::TraceStep {
    v1::TraceStep {
        step: stage.name().into(),
        text,
        refused,
    }
}

fn dropped(reason: DropReason) -> String {
    format!("dropped: {}: {}", reason.name(), reason.description())
}
