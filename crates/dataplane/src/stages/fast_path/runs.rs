//! Packets of one flow that follow each other in a batch, as senders make them: a run. Its flow is
//! looked up, asked and counted once, whatever the number of its packets.
//!
//! The fast path notes what it chooses packet by packet ([`Runs::add`]), and follows all of it then
//! ([`Runs::follow`]). Each step fetches what the next one reads: the bucket of the index when a
//! run begins; the flow, and the line of the side that sends, [`AHEAD`] runs later, so that the
//! memory is busy while the next packets are being read.

use std::ops::Range;

use io::frame::{BATCH, Bits, Frame, first_bits};
use wire::parse::Transport;

use super::{Tally, steer};
use crate::counters::Counters;
use crate::flow::{
    Entry, FlowId, FlowState, FlowTable, Half, Key, NONE, Side, follow_plain, is_amid,
};
use crate::round::{Job, Round};

/// How many runs later the bucket of a run is expected to be there.
const AHEAD: usize = 16;

/// The runs of a batch.
pub(super) struct Runs {
    list: Box<[Run; BATCH]>,
    count: usize,
    /// By frame, of those of TCP in runs.
    transports: Box<[Transport; BATCH]>,
}

/// What is the same for all runs of a batch.
struct Terms<'a> {
    flows: &'a FlowTable,
    frames: &'a [Frame],
    transports: &'a [Transport; BATCH],
    counters: &'a Counters,
    epoch: u32,
    now_ms: u32,
    /// The queue pair that the batch is from; none on the wire.
    pair: Option<u16>,
}

/// Packets of one flow, each right behind the one before.
#[derive(Clone, Copy)]
pub(super) struct Run {
    key: Key,
    hash: u64,
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
        }
    }

    /// Another batch begins.
    pub fn clear(&mut self) {
        self.count = 0;
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

    /// Adds a job for each packet that is amid its flow; gives the frames of the others, as bits.
    /// `job` says what is to be done with a run's first frame, by the queue pair that its target
    /// wants it in.
    #[inline(always)]
    pub fn follow(
        &mut self,
        round: &mut Round,
        tally: &mut Tally,
        job: impl Fn(&Run, u32) -> Job,
    ) -> Bits {
        let runs = &mut self.list[..self.count.min(BATCH)];
        let terms = Terms {
            flows: &round.tables.flows,
            frames: round.batch.frames(),
            transports: &self.transports,
            counters: round.counters,
            epoch: round.view.epoch_mark(),
            now_ms: round.now.millis(),
            pair: (!round.is_from_wire()).then_some(round.from.pair),
        };
        let mut left = 0;
        let fetched = runs.len().saturating_sub(AHEAD);
        for run in &mut runs[fetched..] {
            run.fetch(terms.flows);
        }
        for run in runs.iter() {
            left |= run.follow(&terms, round.jobs, tally, &job);
        }
        left
    }
}

impl Run {
    fn frames(&self) -> Range<u8> {
        self.first..self.end
    }

    fn bits(&self) -> Bits {
        first_bits(self.end.into()) & !first_bits(self.first.into())
    }

    /// Fetches the flow that it is probably of.
    #[inline(always)]
    fn fetch(&mut self, flows: &FlowTable) {
        let likely = flows.fetch_entry(self.hash, self.side.into());
        self.likely = likely.unwrap_or(NONE);
    }

    #[inline(always)]
    fn follow(
        &self,
        terms: &Terms,
        jobs: &mut Vec<Job>,
        tally: &mut Tally,
        job: impl Fn(&Run, u32) -> Job,
    ) -> Bits {
        let (flows, side) = (terms.flows, Side::from(self.side & 1));
        let Some(entry) = flows.find_likely(self.likely, &self.key, self.hash) else {
            return self.bits();
        };
        if !self.is_open(terms, entry, side) {
            return self.bits();
        }
        let mine = &entry.sides[side];
        let job = job(self, steer(mine, self.hash));
        let (mut left, mut frames, mut bytes) = (0, self.end - self.first, self.bytes);
        if self.tcp {
            for frame in self.frames() {
                if terms.is_followed(mine, frame.into()) {
                    jobs.push(Job { frame, ..job });
                } else {
                    left |= 1 << frame;
                    frames -= 1;
                    bytes -= terms.frames[usize::from(frame)].len() as u32;
                }
            }
        } else {
            for frame in self.frames() {
                jobs.push(Job { frame, ..job });
            }
        }
        if frames > 0 {
            mine.touch(terms.now_ms);
            mine.count(frames.into(), bytes.into());
            if let Some(pair) = terms.pair {
                entry.note_pair(side, pair);
            }
            tally.add(terms.counters, mine.rules(), frames.into(), bytes.into());
        }
        left
    }

    /// The whole path has let packets of this side pass under the snapshot in force, and the flow
    /// is where packets like them change nothing.
    #[inline(always)]
    fn is_open(&self, terms: &Terms, entry: &Entry, side: Side) -> bool {
        let state = entry.state.get();
        let decided =
            entry.epoch.get() == terms.epoch && entry.sides[side].fast_path.get() == terms.epoch;
        let settled = match self.tcp {
            true => state == FlowState::Established as u8,
            false => {
                state == FlowState::Stream as u8
                    || (state == FlowState::OneWay as u8 && side == entry.initiator())
            }
        };
        decided && settled && entry.is_fresh(side, terms.now_ms)
    }
}

impl Terms<'_> {
    /// A TCP packet is amid its connection, and that is as far now. Changes nothing otherwise.
    #[inline(always)]
    fn is_followed(&self, mine: &Half, frame: usize) -> bool {
        let head = self.frames[frame].head();
        let tcp = self.transports[frame % BATCH].tcp(head);
        tcp.is_some_and(|tcp| is_amid(tcp.flags) && follow_plain(mine, &tcp))
    }
}
