//! The flow log: what each worker tells of connections that begin and end, and of packets that were
//! refused, for somebody who writes it down.
//!
//! A worker puts [`FlowEvent`]s into a bounded ring of its own and never waits: what does not fit
//! is lost, and counted. Where nobody logs there is no ring, and a flow that begins or ends costs
//! one comparison; packets amid a flow cost nothing either way. What was refused is added up by
//! sender, receiver, addresses, protocol, port and reason, in a table with a bound, and told once a
//! second.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use foldhash::fast::RandomState;

use super::entry::{AHEAD_MS, Entry, TOLD};
use super::info::{FlowState, Party};
use crate::drop_reason::DropReason;
use crate::ids::RuleSlot;
use crate::time::Now;

/// Events of one worker that wait for the reader.
pub const RING: usize = 32_768;
/// Different refusals of one worker that are added up at a time; those of others are not told.
pub const DENIED_MAX: usize = 4096;
/// How often refusals are reported.
const DENIED_EVERY_NS: u64 = 1_000_000_000;
/// So many of them between two batches of frames.
const DENIED_PER_TURN: usize = 64;

/// Something that is told of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEvent {
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// IP protocol number.
    pub protocol: u8,
    /// Who began it.
    pub initiator: Party,
    /// With whom.
    pub responder: Party,
    /// The rules that let it leave its initiator and enter its responder, as in
    /// [`FlowInfo`](super::FlowInfo).
    pub rules: [Option<RuleSlot>; 2],
    /// What happened.
    pub news: FlowNews,
}

/// What happened to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowNews {
    /// Its first packet was allowed.
    Began,
    /// It is over.
    Ended {
        /// Why.
        why: FlowEnd,
        /// Its state at the end.
        state: FlowState,
        /// Milliseconds since the second in which it began: no fewer than since its last packet.
        age_ms: u64,
        /// Milliseconds since its last packet.
        idle_ms: u32,
        /// Frames of the initiator and of the responder.
        frames: [u64; 2],
        /// Their bytes.
        bytes: [u64; 2],
        /// TCP flags of each that were seen, as in the header: FIN, SYN, RST and ACK.
        tcp_flags: [u8; 2],
    },
    /// Packets were refused: the initiator is their sender, whose port is not told.
    Denied {
        /// Why.
        reason: DropReason,
        /// How many in the last second.
        frames: u64,
        /// Their bytes.
        bytes: u64,
        /// When the first of them came, nanoseconds since 1970.
        since_unix_ns: u64,
    },
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEnd {
    /// Nothing has come for as long as its state allows.
    Idle,
    /// Both ends have closed it, or one has reset it.
    Closed,
    /// No rule allows it any more.
    Refused,
    /// A NIC of it is gone.
    NicGone,
    /// It was given up for a new one of the same NIC.
    Evicted,
    /// Somebody had it forgotten.
    Killed,
}

impl FlowEnd {
    /// The name in logs: snake_case.
    pub fn name(self) -> &'static str {
        match self {
            FlowEnd::Idle => "idle",
            FlowEnd::Closed => "closed",
            FlowEnd::Refused => "refused",
            FlowEnd::NicGone => "nic_gone",
            FlowEnd::Evicted => "evicted",
            FlowEnd::Killed => "killed",
        }
    }
}

/// Where a worker puts its events.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    events: SyncSender<FlowEvent>,
    lost: Arc<AtomicU64>,
}

impl Sink {
    fn put(&self, event: FlowEvent) {
        if self.events.try_send(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The reader's end of all workers' rings.
#[derive(Debug)]
pub struct FlowEvents {
    rings: Vec<Receiver<FlowEvent>>,
    lost: Arc<AtomicU64>,
}

impl FlowEvents {
    /// A ring for each of so many workers. Events that do not fit, and refusals that are not added
    /// up, are counted in `lost`.
    pub(crate) fn new(workers: usize, lost: Arc<AtomicU64>) -> (FlowEvents, Vec<Sink>) {
        let (sinks, rings) = (0..workers)
            .map(|_| {
                let (events, ring) = sync_channel(RING);
                let lost = lost.clone();
                (Sink { events, lost }, ring)
            })
            .unzip();
        (FlowEvents { rings, lost }, sinks)
    }

    /// Takes what is there, at most a ring of each worker, by time.
    pub fn take(&self, into: &mut Vec<FlowEvent>) {
        let first = into.len();
        for ring in &self.rings {
            into.extend(ring.try_iter().take(RING));
        }
        into[first..].sort_by_key(|event| event.unix_ns);
    }

    /// Events that were lost since the count began.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A worker's part.
#[derive(Debug)]
pub(crate) struct Log {
    sink: Sink,
    now: Now,
    denied: Denied,
}

impl Log {
    pub(crate) fn new(sink: Sink) -> Log {
        Log {
            sink,
            now: Now::default(),
            denied: Denied::default(),
        }
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self, now: Now) {
        self.now = now;
    }

    /// A flow has begun.
    pub(super) fn began(&self, entry: &Entry) {
        self.sink.put(self.event(entry, FlowNews::Began));
    }

    /// A flow is over, in this state; told once.
    pub(super) fn ended(&self, entry: &Entry, state: FlowState, why: FlowEnd) {
        let flags = entry.flags.get();
        if flags & TOLD != 0 {
            return;
        }
        entry.flags.set(flags | TOLD);
        let sides = [
            &entry.sides[entry.initiator()],
            &entry.sides[1 - entry.initiator()],
        ];
        let idle_ms = entry.idle_ms(self.now.millis());
        let news = FlowNews::Ended {
            why,
            state,
            age_ms: age_ms(self.now, sides[0].born_secs.get()).max(idle_ms.into()),
            idle_ms,
            frames: sides.map(|side| side.frames.get()),
            bytes: sides.map(|side| side.bytes.get()),
            tcp_flags: sides.map(|side| side.tcp_flags.get()),
        };
        self.sink.put(self.event(entry, news));
    }

    fn event(&self, entry: &Entry, news: FlowNews) -> FlowEvent {
        let (key, initiator) = (entry.key(), entry.initiator());
        let end = |side: usize| Party {
            uid: key.uid(side),
            address: key.address(side),
            port: key.port(side),
        };
        FlowEvent {
            unix_ns: self.now.unix_ns,
            protocol: key.protocol(),
            initiator: end(initiator),
            responder: end(1 - initiator),
            rules: entry.sides[0].rules().map(Entry::rule),
            news,
        }
    }

    /// A packet of so many bytes was refused.
    pub(crate) fn denied(&mut self, what: Refused, bytes: usize, now: Now) {
        if !self.denied.add(what, bytes as u64, now) {
            self.sink.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells of refusals, a few at a time.
    pub(crate) fn keep_house(&mut self, now: Now) {
        for _ in 0..DENIED_PER_TURN {
            let Some((what, sum)) = self.denied.next(now) else {
                return;
            };
            self.sink.put(FlowEvent {
                unix_ns: now.unix_ns,
                protocol: what.protocol,
                initiator: what.from,
                responder: what.to,
                rules: [None; 2],
                news: FlowNews::Denied {
                    reason: what.reason,
                    frames: sum.frames,
                    bytes: sum.bytes,
                    since_unix_ns: sum.since_unix_ns,
                },
            });
        }
    }

    /// There is more to tell at once.
    pub(crate) fn has_work(&self) -> bool {
        !self.denied.telling.is_empty()
    }

    /// In how many milliseconds there is something to tell.
    pub(crate) fn next_ms(&self, now: Now) -> Option<u32> {
        let due = self.denied.due_ns.saturating_sub(now.mono_ns);
        (!self.denied.sums.is_empty()).then(|| (due / 1_000_000 + 1) as u32)
    }
}

/// Since the beginning of the second in which a flow began.
fn age_ms(now: Now, born_secs: u32) -> u64 {
    match now.secs().wrapping_sub(born_secs) {
        // By the clock of a worker whose turn began a moment later.
        secs if secs > u32::MAX - AHEAD_MS / 1000 => 0,
        secs => u64::from(secs) * 1000 + now.mono_ns / 1_000_000 % 1000,
    }
}

/// Refused packets that are added up: all but the sender's port, which is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Refused {
    pub from: Party,
    pub to: Party,
    pub protocol: u8,
    pub reason: DropReason,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    frames: u64,
    bytes: u64,
    since_unix_ns: u64,
}

/// Refusals of the last second, and those of the one before that are being told.
#[derive(Default, Debug)]
struct Denied {
    sums: HashMap<Refused, Sum, RandomState>,
    telling: Vec<(Refused, Sum)>,
    due_ns: u64,
}

impl Denied {
    /// False when there is no place for another kind.
    fn add(&mut self, what: Refused, bytes: u64, now: Now) -> bool {
        if let Some(sum) = self.sums.get_mut(&what) {
            sum.frames += 1;
            sum.bytes += bytes;
            return true;
        }
        if self.sums.len() >= DENIED_MAX {
            return false;
        }
        if self.sums.is_empty() {
            self.due_ns = now.mono_ns + DENIED_EVERY_NS;
        }
        let sum = Sum {
            frames: 1,
            bytes,
            since_unix_ns: now.unix_ns,
        };
        self.sums.insert(what, sum);
        true
    }

    /// The next one to tell, when it is time.
    fn next(&mut self, now: Now) -> Option<(Refused, Sum)> {
        if self.telling.is_empty() && !self.sums.is_empty() && now.mono_ns >= self.due_ns {
            self.telling.extend(self.sums.drain());
        }
        self.telling.pop()
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;
    use crate::ids::PortUid;

    fn refused(number: u16) -> Refused {
        let end = |uid, port| Party {
            uid: PortUid(uid),
            address: [10, 0, 0, uid as u8].into(),
            port,
        };
        Refused {
            from: end(1, 0),
            to: end(2, number),
            protocol: 6,
            reason: DropReason::NoIngressRule,
        }
    }

    fn at(ms: u64) -> Now {
        Now {
            mono_ns: ms * 1_000_000,
            unix_ns: 7_000_000_000 + ms * 1_000_000,
        }
    }

    #[test]
    fn refusals_are_added_up_and_told_once_a_second() {
        let (events, sinks) = FlowEvents::new(1, Arc::default());
        let mut log = Log::new(sinks[0].clone());
        assert_eq!(log.next_ms(at(0)), None);
        for ms in 0..10 {
            log.denied(refused(22), 60, at(ms));
        }
        let mut told = Vec::new();
        log.keep_house(at(999));
        events.take(&mut told);
        assert_eq!((told.len(), log.next_ms(at(999))), (0, Some(2)));
        log.keep_house(at(1001));
        events.take(&mut told);
        assert_eq!(told.len(), 1);
        let expected = FlowNews::Denied {
            reason: DropReason::NoIngressRule,
            frames: 10,
            bytes: 600,
            since_unix_ns: 7_000_000_000,
        };
        assert_eq!((told[0].news, told[0].responder.port), (expected, 22));
        assert_eq!(log.next_ms(at(1001)), None);
    }

    #[test]
    fn a_flow_began_before_its_last_packet() {
        let (events, sinks) = FlowEvents::new(1, Arc::default());
        let mut log = Log::new(sinks[0].clone());
        // Packets at 9.1 and 9.4 s, or by the clock of a worker that is a second ahead.
        for (end_ms, expected) in [(9_900, (900, 500)), (8_999, (0, 0))] {
            let entry = Entry::zeroed();
            for side in &entry.sides {
                side.born_secs.set(9);
                side.touch(9_400);
            }
            log.begin_turn(at(end_ms));
            log.ended(&entry, FlowState::Stream, FlowEnd::Killed);
            let mut told = Vec::new();
            events.take(&mut told);
            let FlowNews::Ended {
                age_ms, idle_ms, ..
            } = told[0].news
            else {
                panic!("{told:?}");
            };
            assert_eq!((age_ms, idle_ms), expected);
        }
    }

    #[test]
    fn what_is_too_much_is_lost_and_counted() {
        let (events, sinks) = FlowEvents::new(1, Arc::default());
        let mut log = Log::new(sinks[0].clone());
        for number in 0..DENIED_MAX as u16 + 5 {
            log.denied(refused(number), 60, at(0));
        }
        assert_eq!(events.lost(), 5);
        log.keep_house(at(1000));
        assert!(log.has_work());
        while log.has_work() {
            log.keep_house(at(1001));
        }
        let mut told = Vec::new();
        events.take(&mut told);
        assert_eq!(told.len(), DENIED_MAX);
        for _ in 0..RING + 3 {
            log.sink.put(told[0]);
        }
        assert_eq!(events.lost(), 5 + 3);
    }
}
