//! The first packets of flows that nobody knows yet: judged by the same rules as on the whole path,
//! entered by the same code ([`begin`](crate::stages::begin)), without what the whole path does
//! around it for packets of all kinds. What the rules say, a refusal too, is the job's verdict.
//!
//! A plain packet that has a route comes from its NIC's own MAC, or from a machine that may be
//! where it comes from, and goes to one target. What is left to ask is whether its NIC may send
//! from its address, what the rules say, and whether it can begin a flow. DHCP, and all that is
//! behind a frame which is left to the whole path, go on there.
//!
//! A SYN takes 600 cycles so, 990 on the whole path; all six frames of a connection 1,590 and 3,450
//! (2026-11-24: docs/journal has how).

use io::frame::{Bits, first_bits};
use wire::parse::TcpFlags;

use super::runs::{Run, Runs, Terms};
use super::{Tally, To, pass};
use crate::drop_reason::DropReason;
use crate::flow::{FlowEnd, FlowId, Seen, Tracked, What};
use crate::judge;
use crate::round::{Job, Round, Verdict};
use crate::ruleset::Direction;
use crate::searches::Searches;
use crate::snapshot::PortConfig;
use crate::stages::begin::{self, First, may_send_from, speaks_dhcp};
use crate::stages::log;
use crate::stages::redecide::question;
use crate::stages::reset;
use crate::stages::rules::may_leave;
use crate::view::View;

/// What became of the packets of flows that nobody knew.
#[derive(Clone, Copy, Default)]
pub(super) struct Begun {
    /// Those that were decided here.
    pub decided: Bits,
    /// How many flows that made.
    pub entered: u32,
    /// How many of them the rules were asked about that began none.
    pub asked: u32,
}

impl Runs {
    /// Adds a job for each packet of the flows that [`follow`](Runs::follow) did not find, up to
    /// the first that cannot be decided here, since flows begin in the order of their packets.
    /// `ends` are a run's NICs, `target` is as `to` there.
    #[inline(never)]
    pub fn begin<'a>(
        &self,
        round: &mut Round<'a>,
        tally: &mut Tally,
        ends: impl Fn(&Run) -> Option<(&'a PortConfig, &'a PortConfig)>,
        target: impl Fn(&Run, u32) -> To,
    ) -> Begun {
        let (mut all, mut begun) = (Begun::default(), 0u64);
        // A process before may have known them: the whole path looks.
        if round.tables.left.is_some() {
            return all;
        }
        let terms = Terms::of(round, self.transports(), 0);
        let asker = round.asker();
        round.tables.searches.begin_round(asker);
        for run in self.unknown() {
            let Some((from, to)) = ends(run).filter(|ends| can_begin(run, ends.0)) else {
                break;
            };
            round.tables.searches.go_on_for(from.slot.remote_of());
            // Two runs may be of one flow: the second finds what the first has begun.
            let bit = 1 << (run.hash % 64);
            let known = match begun & bit {
                0 => None,
                _ => round.tables.flows.find(&run.key, run.hash),
            };
            begun |= bit;
            let mut beginning = Beginning {
                run,
                from,
                to,
                known,
                entered: 0,
                asked: 0,
            };
            let target = target(run, run.hash as u32);
            let mut left = 0;
            for frame in run.frames() {
                let seen = run.seen(&terms, frame);
                let Some(verdict) = beginning.decide(round, &terms, tally, &seen, frame) else {
                    left = run.bits() & !first_bits(frame.into());
                    break;
                };
                if let (Verdict::DropFrom(reason) | Verdict::DropTo(reason), Some(log)) =
                    (verdict, &mut round.tables.flows.log)
                {
                    log::denied_flow(log, &run.key, &seen, reason, round.now);
                }
                round.jobs.push(Job {
                    verdict,
                    ..pass(frame, target)
                });
            }
            all.decided |= run.bits() & !left;
            all.entered += beginning.entered;
            all.asked += beginning.asked - beginning.entered;
            if left != 0 {
                break;
            }
        }
        all
    }
}

/// Whether the whole path would ask no more about a run than is asked here.
fn can_begin(run: &Run, from: &PortConfig) -> bool {
    // Whose address it is was asked of what comes from the wire.
    let may_send = || from.slot.remote_of().is_some() || may_send_from(from, &run.key, run.side());
    !speaks_dhcp(&run.key) && !run.key.is_answer(run.side()) && may_send()
}

/// A run of a flow that nobody knew when its batch came.
struct Beginning<'a, 'b> {
    run: &'b Run,
    from: &'a PortConfig,
    to: &'a PortConfig,
    /// It has begun.
    known: Option<FlowId>,
    /// How many flows have begun with its packets, and of how many the rules were asked.
    entered: u32,
    asked: u32,
}

impl Beginning<'_, '_> {
    /// What becomes of its next packet, which is this frame; `None`: the whole path is to say.
    fn decide(
        &mut self,
        round: &mut Round,
        terms: &Terms,
        tally: &mut Tally,
        seen: &Seen,
        frame: u8,
    ) -> Option<Verdict> {
        let flows = &mut round.tables.flows;
        if let Some(id) = self.known {
            if flows.entry(id).epoch.get() != round.view.epoch_mark() {
                return None;
            }
            match flows.track(id, seen, terms.timeouts()) {
                Tracked::Pass => {
                    let entry = flows.entry(id);
                    terms.note_pair(entry, seen.side);
                    let rules = entry.sides[seen.side].rules();
                    tally.add(round.counters, rules, 1, seen.len as u64);
                    return Some(Verdict::Pass);
                }
                Tracked::Drop(reason) => return Some(Verdict::DropFrom(reason)),
                Tracked::Reopen => {
                    flows.remove(id, FlowEnd::Closed);
                    self.known = None;
                }
            }
        }
        let (view, searches) = (round.view, &mut round.tables.searches);
        let most = || {
            let egress = judge::most_looks(view, self.from, Direction::Egress);
            egress + judge::most_looks(view, self.to, Direction::Ingress)
        };
        if !searches.may_ask(frame.into(), most) {
            return None;
        }
        self.asked += 1;
        let first = match self.judge(view, seen, searches) {
            Ok(first) => first,
            Err(refused) => return Some(refused),
        };
        let (flows, counters) = (&mut round.tables.flows, round.counters);
        let when = (round.now, round.is_trial);
        match begin::begin(round.view, flows, counters, when, &first) {
            Ok(Some(id)) => {
                let entry = flows.entry(id);
                terms.note_pair(entry, seen.side);
                entry.sides[seen.side]
                    .fast_path
                    .set(round.view.epoch_mark());
                self.known = Some(id);
                self.entered += 1;
                Some(Verdict::Pass)
            }
            Ok(None) => None,
            Err(refused) => {
                if refused == Verdict::DropFrom(DropReason::TcpNotSyn) {
                    reset::answer(round, &first, frame.into());
                }
                Some(refused)
            }
        }
    }

    /// What the rules of both ends say.
    fn judge(
        &self,
        view: &View,
        seen: &Seen,
        searches: &mut Searches,
    ) -> Result<First<'_>, Verdict> {
        let mut question = question(&self.run.key, seen.side);
        question.midstream = match seen.what {
            What::Tcp(segment) => !segment.flags.contains(TcpFlags::SYN),
            _ => false,
        };
        let mac = (!self.from.learn_macs).then_some(self.from.mac);
        let owned = judge::owns(self.from, mac, question.src);
        let egress = may_leave(view, self.from, &question, owned, searches);
        let egress = egress.map_err(Verdict::DropFrom)?;
        let ingress = judge::ingress(view, self.to, &question, searches);
        Ok(First {
            key: self.run.key,
            hash: self.run.hash,
            seen: *seen,
            from: self.from,
            to: self.to,
            egress,
            ingress: ingress.ok_or(Verdict::DropTo(DropReason::NoIngressRule))?,
        })
    }
}
