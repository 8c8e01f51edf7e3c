//! Packets of one flow that follow each other in a batch, as senders make them: a run. Its flow is looked up, asked and
//! counted once, whatever the number of its packets.
//!
//! The lane notes what it chooses packet by packet ([`Runs::add`]), and follows all of it then ([`Runs::follow`]). Each
//! step fetches what the next one reads: the bucket of the index when a run begins; the flow, and the line of the side that
//! sends, [`AHEAD`] runs later, so that the memory is busy while the next packets are being read.

use std::ops::Range;

use io::frame::{BATCH, Bits, first_bits};
use wire::parse::Transport;

use super::{ROUTES, Tally, steer};
use crate::flow::{Entry, FlowId, FlowState, FlowTable, Half, Key, NONE, Side, follow_plain, is_amid};
use crate::round::{Job, Round};

/// How many runs later the bucket of a run is expected to be there.
const AHEAD: usize = 16;

/// The runs of a batch.
pub(super) struct Runs {
    list: Box<[Run]>,
    count: usize,
    /// By frame, of those in runs.
    transports: Box<[Transport]>,
    /// The routes of all runs, a bit each.
    routes: [u64; ROUTES / 64],
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

/// A packet that may take the lane.
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
            list: vec![none; BATCH].into(),
            count: 0,
            transports: vec![Transport::default(); BATCH].into(),
            routes: [0; ROUTES / 64],
        }
    }

    /// Another batch begins.
    pub fn clear(&mut self) {
        self.count = 0;
        self.routes = [0; ROUTES / 64];
    }

    /// A run goes by this route, which is therefore not to become another before it has been followed.
    pub fn uses(&self, route: usize) -> bool {
        self.routes[route / 64 % self.routes.len()] >> (route % 64) & 1 == 1
    }

    /// Adds a packet, to the last run if it goes on there; frames come in their order. `outer_hash` says what its flow is
    /// called on the wire.
    #[inline(always)]
    pub fn add(&mut self, flows: &FlowTable, chosen: Chosen, outer_hash: impl FnOnce() -> u32) {
        let (frame, route) = (chosen.frame as u8, chosen.route as u8);
        self.transports[chosen.frame % BATCH] = chosen.transport;
        if let Some(last) = self.list[..self.count.min(BATCH)].last_mut()
            && last.end == frame
            && last.route == route
            && last.key.is(&chosen.key)
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
        self.routes[chosen.route / 64 % self.routes.len()] |= 1 << (chosen.route % 64);
    }

    /// Adds a job for each packet that is amid its flow; gives the frames of the others, as bits. `job` says what is to be
    /// done with a run's first frame, by the queue pair that its target wants it in.
    #[inline(always)]
    pub fn follow(
        &mut self,
        round: &mut Round,
        tally: &mut Tally,
        job: impl Fn(&Round, &Run, u32) -> Job,
    ) -> Bits {
        let runs = &mut self.list[..self.count.min(BATCH)];
        let mut left = 0;
        let fetched = runs.len().saturating_sub(AHEAD);
        for run in &mut runs[fetched..] {
            run.fetch(&round.tables.flows);
        }
        for run in runs.iter() {
            left |= run.follow(round, &self.transports, tally, &job);
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
        round: &mut Round,
        transports: &[Transport],
        tally: &mut Tally,
        job: impl Fn(&Round, &Run, u32) -> Job,
    ) -> Bits {
        let (flows, side) = (&round.tables.flows, Side::from(self.side));
        let Some(id) = flows.find_likely(self.likely, &self.key, self.hash) else {
            return self.bits();
        };
        let entry = flows.entry(id);
        if !self.is_open(round, entry, side) {
            return self.bits();
        }
        let (mine, job) = (
            &entry.sides[side],
            job(round, self, steer(entry, side, self.hash)),
        );
        let (mut left, mut frames, mut bytes) = (0, self.end - self.first, self.bytes);
        if self.tcp {
            for frame in self.frames() {
                if is_followed(round, transports, mine, frame.into()) {
                    round.jobs.push(Job { frame, ..job });
                } else {
                    left |= 1 << frame;
                    frames -= 1;
                    bytes -= round.batch.frames()[usize::from(frame)].len() as u32;
                }
            }
        } else {
            for frame in self.frames() {
                round.jobs.push(Job { frame, ..job });
            }
        }
        if frames > 0 {
            mine.touch(round.now.millis());
            mine.count(frames.into(), bytes.into());
            if !round.is_from_wire() {
                entry.note_pair(side, round.from.pair);
            }
            tally.add(round, mine.rules(), frames.into(), bytes.into());
        }
        left
    }

    /// The whole path has let packets of this side pass under the snapshot in force, and the flow is where packets like
    /// them change nothing.
    #[inline(always)]
    fn is_open(&self, round: &Round, entry: &Entry, side: Side) -> bool {
        let (epoch, state) = (round.view.epoch_mark(), entry.state.get());
        let decided = entry.epoch.get() == epoch && entry.sides[side].lane.get() == epoch;
        let settled = match self.tcp {
            true => state == FlowState::Established as u8,
            false => {
                state == FlowState::Stream as u8
                    || (state == FlowState::OneWay as u8 && side == entry.initiator())
            }
        };
        decided && settled && entry.is_fresh(side, round.now.millis())
    }
}

/// A TCP packet is amid its connection, and that is as far now. Changes nothing otherwise.
#[inline(always)]
fn is_followed(round: &Round, transports: &[Transport], mine: &Half, frame: usize) -> bool {
    let head = round.batch.frames()[frame].head();
    let tcp = transports[frame % BATCH].tcp(head);
    tcp.is_some_and(|tcp| is_amid(tcp.flags) && follow_plain(mine, &tcp))
}
