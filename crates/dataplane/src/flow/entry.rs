//! One tracked flow as it lies in the table: three cache lines of plain numbers, no pointers.
//!
//! The first line says which flow it is and how it stands; it is read by every packet and written
//! when something changes, which packets amid a connection do not: it stays in the caches of all
//! workers and need not go back to the memory. The other two are what the packets of one side
//! write: a side's packets come from one queue of one NIC, so that each line has one writer and two
//! workers do not pull it to and fro.

use std::mem::offset_of;

use bytemuck::Zeroable;
use wire::parse::TcpFlags;

use super::cell::{U8, U16, U32, U64};
use super::info::{FlowState, TcpWindows};
use super::key::{Key, Side};
use super::timeouts::SHORTEST_SECS;
use crate::ids::{PortSlot, RuleSlot};

/// Index of a flow in the table.
pub(crate) type FlowId = u32;

/// No flow, no rule.
pub(crate) const NONE: u32 = u32::MAX;

/// `flags`: side 1 sent the first packet, else side 0.
pub(crate) const INITIATOR_IS_1: u8 = 1;
/// `flags`: the rule that let it out is of a group that drains.
pub(crate) const DRAIN_EGRESS: u8 = 2;
/// `flags`: the rule that let it in is of a group that drains.
pub(crate) const DRAIN_INGRESS: u8 = 4;

/// `flags`: its end was told to who logs.
pub(crate) const TOLD: u8 = 8;

/// `seen`: TCP: something was seen of this side.
pub(crate) const SEEN: u8 = 1;
/// `seen`: TCP: this side has acknowledged something.
pub(crate) const ACKED: u8 = 2;

/// How long a side has been idle at the most, as far as is told: 24 days. A flow with a longer
/// timeout does not expire.
const LONG_MS: u32 = u32::MAX / 2;
/// What is idle for less has not expired, whatever it is.
const SHORTEST_MS: u32 = SHORTEST_SECS * 1000;
/// How far the clocks of two workers may be apart.
pub(super) const AHEAD_MS: u32 = 60_000;

/// A flow.
#[derive(Zeroable, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    key: [U64; Key::WORDS],
    /// The snapshot under which it was decided, as far as 32 bits tell it.
    pub epoch: U32,
    pub timeout_secs: U32,
    /// A [`FlowState`] as a number; 0 is no flow (any more).
    pub state: U8,
    pub flags: U8,
    /// The worker that made it: in whose lists it is, and to whom it goes back.
    pub worker: U8,
    /// Which of that worker's lists it is in; its alone.
    pub listed: U8,
    /// One more than its place among those that the kernel is told of; 0: it has none. See
    /// [`kernel`](super::kernel).
    pub kernel: U32,
    pub sides: [Half; 2],
}

/// What the packets of one side write, and what is read with it.
#[derive(Zeroable, Debug)]
#[repr(C, align(64))]
pub(crate) struct Half {
    pub frames: U64,
    pub bytes: U64,
    /// TCP: one past the last byte sent. SCTP: the verification tag sent.
    pub end: U32,
    /// TCP: the last acknowledgement sent.
    pub ack: U32,
    /// TCP: the right edge of the window offered.
    pub edge: U32,
    /// Under which snapshot the whole path has let a plain packet of this side pass: those that
    /// follow take the fast path.
    pub fast_path: U32,
    /// The flow's egress and ingress rule, the same for both sides.
    pub rules: [U32; 2],
    /// Slot of this side's NIC.
    pub slot: U32,
    /// In the lists of the flow's worker: side 0 the one before, side 1 the next.
    pub link: U32,
    /// When the flow began; in the half of the side that began it.
    pub born_secs: U32,
    /// When the last packet of this side came, or when the flow began: milliseconds of the table's
    /// clock.
    pub last_ms: U32,
    /// One more than the queue pair that this side has sent from last, and that the other side has:
    /// where that one wants the packets of this. 0: it has sent nothing.
    pair: U16,
    pub hint: U16,
    /// TCP: [`SEEN`] and [`ACKED`].
    pub seen: U8,
    /// TCP: window scale.
    pub scale: U8,
    /// TCP: FIN, SYN, RST and ACK, those that packets of this side had which changed something.
    pub tcp_flags: U8,
    /// When the kernel was to be told of this side, roughly: see [`kernel`](super::kernel).
    pub asked: U8,
}

const _: () = assert!(size_of::<Entry>() == 3 * 64);

/// The one of a flow's two ends whose NIC it is charged to.
#[inline]
pub(crate) fn charged(owner: PortSlot, peer: PortSlot) -> PortSlot {
    match owner.remote_of() {
        Some(_) => peer,
        None => owner,
    }
}

impl Entry {
    /// Says which flow it is. Only for an entry that nobody else can find.
    #[inline]
    pub(super) fn name(&self, key: &Key) {
        for (mine, word) in self.key.iter().zip(key.words) {
            mine.set(word);
        }
    }

    #[inline(always)]
    pub(crate) fn is(&self, key: &Key) -> bool {
        let differ = |range: std::ops::Range<usize>| {
            let words = range.map(|word| self.key[word].get() ^ key.words[word]);
            words.fold(0, |differ, bits| differ | bits)
        };
        // The last word tells the families apart: between IPv4 flows what is not used is zero on
        // both sides.
        (differ(3..6) | self.key[0].get() ^ key.words[0]) == 0
            && (!key.is_v6() || differ(1..3) == 0)
    }

    #[inline]
    pub(crate) fn protocol(&self) -> u8 {
        Key::protocol_in(self.key[Key::WORDS - 1].get())
    }

    #[inline]
    pub(crate) fn key(&self) -> Key {
        Key {
            words: std::array::from_fn(|word| self.key[word].get()),
        }
    }

    /// Who sent the first packet.
    #[inline]
    pub(crate) fn initiator(&self) -> Side {
        usize::from(self.flags.get() & INITIATOR_IS_1)
    }

    /// The slots of the initiator's and the responder's NIC.
    #[inline]
    pub(crate) fn slots(&self) -> (PortSlot, PortSlot) {
        let slot = |side: Side| PortSlot(self.sides[side].slot.get());
        (slot(self.initiator()), slot(1 - self.initiator()))
    }

    /// The slot of the NIC that it is charged to: the one that began it, or the one that another
    /// host has begun it with.
    #[inline]
    pub(crate) fn charged(&self) -> PortSlot {
        let (owner, peer) = self.slots();
        charged(owner, peer)
    }

    #[inline]
    pub(crate) fn state(&self) -> FlowState {
        FlowState::from_code(self.state.get())
    }

    /// It was taken out of the table, maybe by a packet before in the same batch.
    #[inline(always)]
    pub(crate) fn is_out(&self) -> bool {
        self.state.get() == 0
    }

    /// Milliseconds since the last packet of either side, [`LONG_MS`] at the most.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        let [one, other] = self.sides.each_ref().map(|side| side.idle_ms(now_ms));
        one.min(other)
    }

    #[inline]
    pub(crate) fn expired(&self, now_ms: u32) -> bool {
        self.idle_ms(now_ms) >= self.timeout_ms()
    }

    /// It has not expired. Looks at the line of `side` alone if that says so.
    #[inline(always)]
    pub(crate) fn is_fresh(&self, side: Side, now_ms: u32) -> bool {
        let idle = now_ms.wrapping_sub(self.sides[side].last_ms.get());
        idle < SHORTEST_MS || !self.expired(now_ms)
    }

    #[inline(always)]
    fn timeout_ms(&self) -> u32 {
        self.timeout_secs.get().saturating_mul(1000)
    }

    /// Notes which queue pair of its NIC a side sends from.
    #[inline]
    pub(crate) fn note_pair(&self, side: Side, pair: u16) {
        let mine = &self.sides[side].pair;
        if mine.get() != pair + 1 {
            mine.set(pair + 1);
            self.sides[1 - side].hint.set(pair + 1);
        }
    }

    /// Nothing was sent yet, of either side.
    #[inline]
    pub(super) fn begin_pairs(&self) {
        for side in &self.sides {
            side.pair.set(0);
            side.hint.set(0);
        }
    }

    /// An entry as another process has left it: as many bytes as one has.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Entry {
        let entry = Entry::zeroed();
        let word = |at: usize| part(bytes, at).map_or(0, u64::from_ne_bytes);
        let half = |at: usize| part(bytes, at).map_or(0, u32::from_ne_bytes);
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        for (number, cell) in entry.key.iter().enumerate() {
            cell.set(word(offset_of!(Entry, key) + 8 * number));
        }
        entry.epoch.set(half(offset_of!(Entry, epoch)));
        entry
            .timeout_secs
            .set(half(offset_of!(Entry, timeout_secs)));
        entry.state.set(byte(offset_of!(Entry, state)));
        entry.flags.set(byte(offset_of!(Entry, flags)));
        for (number, side) in entry.sides.iter().enumerate() {
            let at = offset_of!(Entry, sides) + size_of::<Half>() * number;
            side.frames.set(word(at + offset_of!(Half, frames)));
            side.bytes.set(word(at + offset_of!(Half, bytes)));
            side.end.set(half(at + offset_of!(Half, end)));
            side.ack.set(half(at + offset_of!(Half, ack)));
            side.edge.set(half(at + offset_of!(Half, edge)));
            side.born_secs.set(half(at + offset_of!(Half, born_secs)));
            side.last_ms.set(half(at + offset_of!(Half, last_ms)));
            side.seen.set(byte(at + offset_of!(Half, seen)));
            side.scale.set(byte(at + offset_of!(Half, scale)));
        }
        entry
    }

    /// Takes over how another table's entry of the same flow stands; not which list it is in.
    pub(super) fn copy_from(&self, of: &Entry) {
        self.epoch.set(of.epoch.get());
        self.timeout_secs.set(of.timeout_secs.get());
        self.flags.set(of.flags.get());
        for (mine, theirs) in self.sides.iter().zip(&of.sides) {
            mine.frames.set(theirs.frames.get());
            mine.bytes.set(theirs.bytes.get());
            for number in 0..2 {
                mine.rules[number].set(theirs.rules[number].get());
            }
            mine.end.set(theirs.end.get());
            mine.ack.set(theirs.ack.get());
            mine.edge.set(theirs.edge.get());
            mine.fast_path.set(theirs.fast_path.get());
            mine.born_secs.set(theirs.born_secs.get());
            mine.last_ms.set(theirs.last_ms.get());
            mine.pair.set(theirs.pair.get());
            mine.hint.set(theirs.hint.get());
            mine.seen.set(theirs.seen.get());
            mine.scale.set(theirs.scale.get());
            mine.tcp_flags.set(theirs.tcp_flags.get());
        }
    }

    /// Notes the rules by which it passes.
    #[inline]
    pub(crate) fn set_rules(&self, egress: u32, ingress: u32) {
        for side in &self.sides {
            side.rules[0].set(egress);
            side.rules[1].set(ingress);
        }
    }

    #[inline]
    pub(crate) fn rule(slot: u32) -> Option<RuleSlot> {
        (slot != NONE).then_some(RuleSlot(slot))
    }

    pub(crate) fn windows(&self) -> TcpWindows {
        let sides = [
            &self.sides[self.initiator()],
            &self.sides[1 - self.initiator()],
        ];
        TcpWindows {
            end: sides.map(|side| side.end.get()),
            ack: sides.map(|side| side.ack.get()),
            edge: sides.map(|side| side.edge.get()),
            scale: sides.map(|side| side.scale.get()),
        }
    }
}

/// As many bytes as a number has.
fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Half {
    #[inline(always)]
    fn idle_ms(&self, now_ms: u32) -> u32 {
        match now_ms.wrapping_sub(self.last_ms.get()) {
            // Another worker has seen a packet a moment later than this one's clock says.
            idle if idle > u32::MAX - AHEAD_MS => 0,
            idle => idle.min(LONG_MS),
        }
    }

    /// Keeps the time of a side that has been silent for long, in a flow that lives on, from coming
    /// round to now: the clock wraps after 49 days.
    pub(super) fn keep_idle(&self, now_ms: u32) {
        let last = self.last_ms.get();
        if self.idle_ms(now_ms) == LONG_MS {
            // Not if a packet comes at this moment.
            self.last_ms.change(last, now_ms.wrapping_sub(LONG_MS));
        }
    }

    /// Notes that a packet of this side came.
    #[inline(always)]
    pub(crate) fn touch(&self, now_ms: u32) {
        self.last_ms.set(now_ms);
    }

    /// Counts packets of this side.
    #[inline(always)]
    pub(crate) fn count(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }

    /// The slots of the flow's egress and ingress rule.
    #[inline(always)]
    pub(crate) fn rules(&self) -> [u32; 2] {
        [self.rules[0].get(), self.rules[1].get()]
    }

    /// Notes TCP flags of a packet that did not take the fast path.
    #[inline]
    pub(super) fn note_tcp_flags(&self, flags: TcpFlags) {
        let known = (TcpFlags::FIN | TcpFlags::SYN | TcpFlags::RST | TcpFlags::ACK).0;
        self.tcp_flags.set(self.tcp_flags.get() | (flags.0 & known));
    }

    #[inline]
    pub(crate) fn has_seen(&self, what: u8) -> bool {
        self.seen.get() & what != 0
    }

    #[inline]
    pub(crate) fn note_seen(&self, what: u8) {
        let seen = self.seen.get();
        if seen & what != what {
            self.seen.set(seen | what);
        }
    }
}
