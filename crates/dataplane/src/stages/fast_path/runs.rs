//! Packets of one flow that follow each other in a batch, as senders make them: a run. Its flow is
//! looked up, asked and counted once, whatever the number of its packets: 55 cycles a frame of one
//! flow where it was 75 (docs/journal/2026-11-23-cycles.md).
//!
//! The fast path notes what it chooses packet by packet ([`Runs::add`]), and follows all of it then
//! ([`Runs::follow`]). Each step fetches what the next one reads: the bucket of the index when a
//! run begins; the flow, and the line of the side that sends, [`AHEAD`] runs later, so that the
//! memory is busy while the next packets are being read.
//!
//! Packets amid a connection, or of datagrams that go both ways, change no state: a few numbers are
//! all there is to follow. Others of a flow that is known go through the state machine of the whole
//! path ([`Flows::track`]), here and at once; what that refuses is left. No packet overtakes one of
//! its own flow that is left ([`is_behind`]), and none changes a state behind one that is left.

use std::ops::Range;

use io::frame::{BATCH, Bits, Frame, first_bits};
use wire::parse::Transport;

use super::{Tally, To, pass, steer};
use crate::counters::Counters;
use crate::flow::{
    Entry, FlowEnd, FlowId, FlowState, FlowTable, Flows, Half, Key, NONE, Seen, Side, Tracked,
    follow_plain, is_amid,
};
use crate::ids::PortSlot;
use crate::round::{Job, Round};
use crate::snapshot::Timeouts;
use crate::stages::terms::between;
use crate::view::View;

/// How many runs later the bucket of a run is expected to be there.
const AHEAD: usize = 16;

/// The runs of a batch.
pub(super) struct Runs {
    list: Box<[Run; BATCH]>,
    count: usize,
    /// By frame, of those of TCP in runs.
    transports: Box<[Transport; BATCH]>,
    /// Runs of flows that are not known, by their place in the list: see [`first`](super::first).
    unknown: Bits,
    /// Other frames are left to the whole path.
    leaves_others: bool,
    /// How many frames the state machine of their flow has followed.
    tracked: u32,
}

/// What is the same for all runs of a batch.
pub(super) struct Terms<'a> {
    view: &'a View,
    frames: &'a [Frame],
    transports: &'a [Transport; BATCH],
    pub counters: &'a Counters,
    epoch: u32,
    pub now_ms: u32,
    /// The queue pair that the batch is from; none on the wire.
    pair: Option<u16>,
    /// The first frame that is left: behind it no packet changes a state, since that one may be of
    /// the same flow, and states change in the order of the packets. [`BATCH`] if there is none.
    barred: u8,
}

/// Where those go that are passed on.
struct Passed<'a> {
    jobs: &'a mut Vec<Job>,
    tally: &'a mut Tally,
    /// How many of them the state machine of their flow has followed.
    tracked: u32,
}

/// What became of a run.
enum Followed {
    /// Some of its frames, maybe none, are left to the whole path.
    Left(Bits),
    /// Its flow is not known, or over, from this frame on.
    Unknown(u8),
}

/// Packets of one flow, each right behind the one before.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub key: Key,
    pub hash: u64,
    /// What its flow is called on the wire, if it goes there.
    pub outer_hash: u32,
    /// The flow that it is probably of, or [`NONE`].
    likely: FlowId,
    /// Of all its frames.
    bytes: u32,
    /// Its first frame, and the one behind its last.
    pub first: u8,
    end: u8,
    pub route: u8,
    /// Which side of its flow has sent it.
    side: u8,
    tcp: bool,
}

/// A packet that may take the fast path.
pub(super) struct Chosen {
    pub frame: usize,
    pub len: usize,
    pub route: usize,
    pub key: Key,
    /// Which side of the key has sent it.
    pub side: Side,
    pub transport: Transport,
}

impl Runs {
    pub fn new() -> Runs {
        let none = Run {
            key: Key {
                words: [0; Key::WORDS],
            },
            hash: 0,
            outer_hash: 0,
            likely: NONE,
            bytes: 0,
            first: 0,
            end: 0,
            route: 0,
            side: 0,
            tcp: false,
        };
        Runs {
            list: Box::new([none; BATCH]),
            count: 0,
            transports: Box::new([Transport::default(); BATCH]),
            unknown: 0,
            leaves_others: false,
            tracked: 0,
        }
    }

    /// Another batch begins.
    pub fn clear(&mut self) {
        (self.count, self.tracked) = (0, 0);
    }

    /// A run goes by this route, which is therefore not to become another before it has been
    /// followed.
    #[cold]
    pub fn uses(&self, route: usize) -> bool {
        let runs = &self.list[..self.count.min(BATCH)];
        runs.iter().any(|run| usize::from(run.route) == route)
    }

    /// Adds a packet, to the last run if it goes on there; frames come in their order. `outer_hash`
    /// says what its flow is called on the wire.
    #[inline(always)]
    pub fn add(&mut self, flows: &FlowTable, chosen: Chosen, outer_hash: impl FnOnce() -> u32) {
        let (frame, route) = (chosen.frame as u8, chosen.route as u8);
        if chosen.transport.tcp {
            self.transports[chosen.frame % BATCH] = chosen.transport;
        }
        if let Some(last) = self.list[..self.count.min(BATCH)].last_mut()
            && last.key.is(&chosen.key)
            && last.end == frame
            && last.route == route
        {
            last.end += 1;
            last.bytes += chosen.len as u32;
            return;
        }
        let hash = flows.hash(&chosen.key);
        flows.fetch_index(hash);
        self.list[self.count % BATCH] = Run {
            key: chosen.key,
            hash,
            outer_hash: outer_hash(),
            likely: NONE,
            bytes: chosen.len as u32,
            first: frame,
            end: frame + 1,
            route,
            side: chosen.side as u8,
            tcp: chosen.transport.tcp,
        };
        if let Some(earlier) = self.count.checked_sub(AHEAD) {
            self.list[earlier % BATCH].fetch(flows);
        }
        self.count += 1;
    }

    /// Adds a job for each packet of a flow that is known in all; gives the frames of the others,
    /// as bits. `unchosen`: frames that are in no run, and have not passed either. `to` says where
    /// a run's frames go, by the queue pair that their target wants them in.
    #[inline(always)]
    pub fn follow(
        &mut self,
        round: &mut Round,
        unchosen: Bits,
        tally: &mut Tally,
        to: impl Fn(&Run, u32) -> To,
    ) -> Bits {
        let runs = &mut self.list[..self.count.min(BATCH)];
        let flows: &FlowTable = &round.tables.flows;
        let fetched = runs.len().saturating_sub(AHEAD);
        for run in &mut runs[fetched..] {
            run.fetch(flows);
        }
        let terms = Terms::of(round, &self.transports, unchosen);
        let mut rest = None;
        // In registers.
        let mut sums = std::mem::take(tally);
        // Mostly that is all.
        for (index, run) in runs.iter().enumerate() {
            let at = run.pass(&terms, flows, round.jobs, &mut sums, &to);
            if at != run.end {
                rest = Some((index, at));
                break;
            }
        }
        *tally = sums;
        self.unknown = 0;
        self.leaves_others = unchosen != 0;
        match rest {
            None => 0,
            Some(from) => self.follow_rest(round, from, unchosen, tally, to),
        }
    }

    /// Follows the remaining runs, the first of them from one of its frames on, which changes its
    /// flow's state or is to be left.
    #[inline(never)]
    fn follow_rest(
        &mut self,
        round: &mut Round,
        (first, at): (usize, u8),
        unchosen: Bits,
        tally: &mut Tally,
        to: impl Fn(&Run, u32) -> To,
    ) -> Bits {
        let mut terms = Terms::of(round, &self.transports, unchosen);
        let begun = &mut self.list[first];
        begun.first = at;
        begun.bytes = bytes(terms.frames, begun.frames()) as u32;
        let (mut left, mut unknown, mut behind) = (0, 0, 0);
        let mut passed = Passed {
            jobs: round.jobs,
            tally,
            tracked: 0,
        };
        for index in first..self.count.min(BATCH) {
            let run = &self.list[index];
            if behind != 0 && is_behind(&self.list, behind, run) {
                left |= run.bits();
                continue;
            }
            match run.follow(&terms, &mut round.tables.flows, &mut passed, &to) {
                Followed::Left(0) => {}
                Followed::Left(frames) => {
                    left |= frames;
                    behind |= 1 << index;
                    terms.barred = terms.barred.min(frames.trailing_zeros() as u8);
                }
                Followed::Unknown(from) => {
                    let run = &mut self.list[index];
                    run.first = from;
                    left |= run.bits();
                    unknown |= 1 << index;
                }
            }
        }
        self.unknown = unknown;
        self.leaves_others |= behind != 0;
        self.tracked = passed.tracked;
        left
    }

    /// There are such, and nothing else is left to the whole path, where known flows are followed
    /// before others begin.
    #[inline(always)]
    pub fn may_begin(&self) -> bool {
        self.unknown != 0 && !self.leaves_others
    }

    /// All of them, of the last batch that was followed.
    pub fn all(&self) -> &[Run] {
        &self.list[..self.count.min(BATCH)]
    }

    /// The runs of flows that are not known.
    pub fn unknown(&self) -> impl Iterator<Item = &Run> {
        let runs = self.list[..self.count.min(BATCH)].iter().enumerate();
        runs.filter(|(index, _)| self.unknown >> index & 1 == 1)
            .map(|(_, run)| run)
    }

    /// How many frames of the last batch the state machine of their flow has followed.
    pub fn tracked(&self) -> u32 {
        self.tracked
    }

    pub fn transports(&self) -> &[Transport; BATCH] {
        &self.transports
    }
}

/// True when frames of the same flow are left, of one of the runs that `behind` names.
#[cold]
fn is_behind(list: &[Run; BATCH], behind: Bits, run: &Run) -> bool {
    let left = list.iter().enumerate();
    left.filter(|(index, _)| behind >> index & 1 == 1)
        .any(|(_, other)| other.key.is(&run.key))
}

impl Run {
    pub fn frames(&self) -> Range<u8> {
        self.first..self.end
    }

    #[inline(always)]
    pub fn side(&self) -> Side {
        Side::from(self.side & 1)
    }

    pub fn bits(&self) -> Bits {
        first_bits(self.end.into()) & !first_bits(self.first.into())
    }

    /// Fetches the flow that it is probably of.
    #[inline(always)]
    fn fetch(&mut self, flows: &FlowTable) {
        let likely = flows.fetch_entry(self.hash, self.side.into());
        self.likely = likely.unwrap_or(NONE);
    }

    /// Passes its frames as far as they change no state. Gives the first that does not pass so.
    #[inline(always)]
    fn pass(
        &self,
        terms: &Terms,
        flows: &FlowTable,
        jobs: &mut Vec<Job>,
        tally: &mut Tally,
        to: impl Fn(&Run, u32) -> To,
    ) -> u8 {
        match flows.find_likely(self.likely, &self.key, self.hash) {
            Some(entry) if is_open(terms, entry, self.side()) && self.is_settled(entry) => {
                self.pass_settled(entry, terms, jobs, tally, to)
            }
            _ => self.first,
        }
    }

    /// Passes frames of a flow that is open and settled.
    #[inline(always)]
    fn pass_settled(
        &self,
        entry: &Entry,
        terms: &Terms,
        jobs: &mut Vec<Job>,
        tally: &mut Tally,
        to: impl Fn(&Run, u32) -> To,
    ) -> u8 {
        let (side, mut end) = (self.side(), self.end);
        let mine = &entry.sides[side];
        let to = to(self, steer(mine, self.hash));
        let (mut frames, mut sum) = (end - self.first, u64::from(self.bytes));
        if self.tcp {
            for frame in self.frames() {
                if !terms.is_amid(mine, frame.into()) {
                    end = frame;
                    frames = end - self.first;
                    sum = bytes(terms.frames, self.first..end);
                    break;
                }
                jobs.push(pass(frame, to));
            }
        } else {
            for frame in self.frames() {
                jobs.push(pass(frame, to));
            }
        }
        if frames > 0 {
            mine.touch(terms.now_ms);
            mine.count(frames.into(), sum);
            terms.note_pair(entry, side);
            tally.add(terms.counters, mine.rules(), frames.into(), sum);
        }
        end
    }

    /// Passes its frames, each by the state machine from the first on that changes a state.
    #[inline(always)]
    fn follow(
        &self,
        terms: &Terms,
        flows: &mut Flows,
        passed: &mut Passed,
        to: impl Fn(&Run, u32) -> To,
    ) -> Followed {
        let Some(id) = flows.find_likely_id(self.likely, &self.key, self.hash) else {
            return Followed::Unknown(self.first);
        };
        let entry = flows.entry(id);
        if !is_open(terms, entry, self.side()) {
            return self.leave(id, terms, flows);
        }
        let mut at = self.first;
        if self.is_settled(entry) {
            at = self.pass_settled(entry, terms, passed.jobs, passed.tally, &to);
            if at == self.end {
                return Followed::Left(0);
            }
        } else if entry.is_out() {
            return Followed::Unknown(self.first);
        }
        self.advance(at, id, terms, flows, passed, to)
    }

    /// What is not to be followed here is left, but not what is over by time.
    #[cold]
    fn leave(&self, id: FlowId, terms: &Terms, flows: &mut Flows) -> Followed {
        let entry = flows.entry(id);
        if !entry.is_out() {
            if terms.barred < self.first || !flows.is_expired(entry, terms.now_ms) {
                return Followed::Left(self.bits());
            }
            flows.remove(id, FlowEnd::Idle);
        }
        Followed::Unknown(self.first)
    }

    /// The flow is where packets like these change nothing.
    #[inline(always)]
    pub(super) fn is_settled(&self, entry: &Entry) -> bool {
        let state = entry.state.get();
        match self.tcp {
            true => state == FlowState::Established as u8,
            false => {
                state == FlowState::Stream as u8
                    || (state == FlowState::OneWay as u8 && self.side() == entry.initiator())
            }
        }
    }

    /// Follows the frames from `from` on, each by the state machine.
    #[inline(never)]
    fn advance(
        &self,
        from: u8,
        id: FlowId,
        terms: &Terms,
        flows: &mut Flows,
        passed: &mut Passed,
        to: impl Fn(&Run, u32) -> To,
    ) -> Followed {
        let to = to(self, steer(&flows.entry(id).sides[self.side()], self.hash));
        for frame in from..self.end {
            let left = || Followed::Left(self.bits() & !first_bits(frame.into()));
            if frame > terms.barred {
                return left();
            }
            let seen = self.seen(terms, frame);
            match flows.track(id, &seen, terms.timeouts()) {
                Tracked::Pass => {}
                Tracked::Drop(_) => return left(),
                // A connection that is over, and its ports used again.
                Tracked::Reopen => {
                    flows.remove(id, FlowEnd::Closed);
                    return Followed::Unknown(frame);
                }
            }
            passed.tracked += 1;
            passed.jobs.push(pass(frame, to));
            let entry = flows.entry(id);
            terms.note_pair(entry, seen.side);
            let rules = entry.sides[seen.side].rules();
            passed.tally.add(terms.counters, rules, 1, seen.len as u64);
        }
        Followed::Left(0)
    }

    /// One of its frames as tracking sees it.
    #[inline]
    pub fn seen(&self, terms: &Terms, frame: u8) -> Seen {
        let frame = usize::from(frame);
        let transport = match self.tcp {
            true => terms.transports[frame % BATCH],
            false => Transport::default(),
        };
        let bytes = &terms.frames[frame];
        let (head, len) = (bytes.head(), bytes.len());
        Seen::of_plain(&transport, head, len, self.side(), terms.now_ms)
    }
}

/// The whole path has let packets of this side pass under the snapshot in force, and the flow is
/// not over.
#[inline(always)]
pub(super) fn is_open(terms: &Terms, entry: &Entry, side: Side) -> bool {
    let decided =
        entry.epoch.get() == terms.epoch && entry.sides[side].fast_path.get() == terms.epoch;
    decided && entry.is_fresh(side, terms.now_ms)
}

/// Of some frames of a batch. It takes no [`Terms`]: those are to stay in registers.
#[cold]
fn bytes(batch: &[Frame], frames: Range<u8>) -> u64 {
    let frames = &batch[frames.start.into()..frames.end.into()];
    frames.iter().map(|frame| frame.len() as u64).sum()
}

impl<'a> Terms<'a> {
    #[inline(always)]
    pub fn of(round: &Round<'a>, transports: &'a [Transport; BATCH], unchosen: Bits) -> Terms<'a> {
        Terms {
            view: round.view,
            frames: round.batch.frames(),
            transports,
            counters: round.counters,
            epoch: round.view.epoch_mark(),
            now_ms: round.now.millis(),
            pair: (!round.is_from_wire()).then_some(round.from.pair),
            barred: unchosen.trailing_zeros() as u8,
        }
    }

    /// A TCP packet is amid its connection, and that is as far now. Changes nothing otherwise.
    #[inline(always)]
    fn is_amid(&self, mine: &Half, frame: usize) -> bool {
        let head = self.frames[frame].head();
        let tcp = self.transports[frame % BATCH].tcp(head);
        tcp.is_some_and(|tcp| is_amid(tcp.flags) && follow_plain(mine, &tcp))
    }

    #[inline(always)]
    pub fn note_pair(&self, entry: &Entry, side: Side) {
        if let Some(pair) = self.pair {
            entry.note_pair(side, pair);
        }
    }

    /// The timeouts of flows between two NICs.
    #[inline]
    pub fn timeouts(&self) -> impl Fn((PortSlot, PortSlot)) -> Timeouts {
        let view = self.view;
        move |(owner, peer)| between(view.port(owner), view.port(peer))
    }
}
