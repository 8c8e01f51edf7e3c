//! What frames cost a worker, in bytes that could have been copied meanwhile. Senders are charged
//! by it and not by their frames, so that each gets the same part of a worker's time.
//!
//! A sender that costs more than a turn's part waits while others have theirs (its *debt*), and a
//! queue whose frames were dear in the last second is received from a few at a time, one at the
//! least: nobody waits long for its turn to end. That is how a flood to many is cut into turns. A
//! NIC is one sender, however many queues it has, which take turns; a queue of an uplink is one.
//!
//! While two NICs send a few frames now and then, as who asks and who answers does (*hurry*), turns
//! are shorter still: no sender's costs more than its part, the judging of what nobody knows
//! included. One of the two may be another worker's. One alone may be who acknowledges a stream,
//! which is to have whole batches.

use io::trace::capture::Effort;

use crate::ids::{PortSlot, PortUid};
use crate::time::Now;

/// To receive, judge and hand out one frame.
const FRAME: u64 = 1024;

/// To walk one more buffer of a chain, and to copy from it: 21 cycles, where each is on a cache
/// line of its own. A third of this left a stream a quarter of its rate beside chains of 1,024,
/// where its share is a half.
const PIECE: u64 = 192;

/// What a frame takes beside one of a settled flow: on the whole path, where it begins a flow on
/// the fast path, where the rules are asked there and no flow begins, and where the state machine
/// follows it (a SYN that is sent again, in one of 65,536 half-open flows: 300 cycles, where a
/// frame of a stream took 120).
const WHOLE_PATH: u64 = 8 * FRAME;
const ENTER: u64 = 12 * FRAME;
const ASK: u64 = 4 * FRAME;
const TRACK: u64 = 2 * FRAME;

/// To look in one more place for a rule that allows a packet, which may be in no cache; and in how
/// many places for each frame that is a part of what is charged for it above.
pub(crate) const LOOK: u64 = 512;
const LOOKS: u64 = 32;

/// One of the copies for many targets, which go to as many rings and to memory that is in no cache,
/// beside its bytes. Charged as a frame, broadcasts of 1,500 bytes to 24 NICs left a stream 0.45 to
/// 0.78 of its share.
const COPY: u64 = 8 * FRAME;

/// A step of a capture's filter, some seven cycles; and a copy for who watches, beside its bytes:
/// it takes memory, and a place in the queue of another thread.
const STEP: u64 = 64;
const COPY_TO_WATCHER: u64 = 2 * FRAME;

/// A sender's part of a turn: what a full batch of the smallest frames costs.
pub(crate) const TURN: u64 = 64 * (FRAME + 64);

/// A sender that has had so much of a turn has no other queue's batch in it: a full one of the
/// smallest frames costs a little less than a turn.
const ENOUGH: u64 = TURN / 8 * 7;

/// No sender owes more: beside a few others it has waited for that in a second. A batch that
/// becomes more copies than this pays for is received once: then its sender's frames come one by
/// one.
pub(crate) const OWED_MAX: u64 = 8192 * TURN;

/// No turn of a sender is to cost more, by what its frames have cost before; and in a hurry none of
/// what another worker hands over, unless all senders here together have more of a turn.
pub(crate) const LONGEST: u64 = 3 * TURN;

/// Frames that cost no more than this are received by whole batches.
const CHEAP: u64 = LONGEST / 64;

/// How long dear frames are remembered.
const REMEMBER_NS: u64 = 1_000_000_000;

/// How long behind a few frames others' turns are shorter.
const HURRY_NS: u64 = 1_000_000;

/// What a batch has cost.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// To receive and to copy, and to look for rules in many places: without end, so that it is a
    /// reason to receive fewer frames at a time.
    pub carried: u64,
    /// To find out what is not known of its frames, and to follow states. It is charged, but a
    /// reason to receive fewer frames at a time in a hurry alone: a batch of first packets takes no
    /// longer than a few turns.
    pub judged: u64,
}

impl Cost {
    /// Of what was carried alone.
    pub(crate) fn carried(carried: u64) -> Cost {
        Cost { carried, judged: 0 }
    }
}

/// Frames that took more than one of a settled flow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Costly {
    /// Those that took the whole path.
    pub whole: u32,
    /// Those that began a flow on the fast path.
    pub entered: u32,
    /// Those of which the rules were asked there, that began none.
    pub asked: u32,
    /// Those that the state machine of their flow followed there.
    pub tracked: u32,
}

impl Costly {
    pub(crate) fn cost(self) -> u64 {
        let frames = [self.whole, self.entered, self.asked, self.tracked].map(u64::from);
        let [whole, entered, asked, tracked] = frames;
        whole * WHOLE_PATH + entered * ENTER + asked * ASK + tracked * TRACK
    }
}

/// What bytes cost that are copied, beside small frames: see [`Pace`](crate::pace::Pace).
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    /// Of one, in parts of [`Rates::BYTE`].
    pub byte: u64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { byte: Rates::BYTE }
    }
}

impl Rates {
    /// A byte costs one.
    pub(crate) const BYTE: u64 = 256;

    fn of_bytes(self, bytes: usize) -> u64 {
        bytes as u64 * self.byte / Rates::BYTE
    }

    /// Frames that were received.
    #[inline]
    pub(crate) fn cost(self, frames: usize, bytes: usize, pieces: usize) -> u64 {
        frames as u64 * FRAME + self.of_bytes(bytes) + pieces as u64 * PIECE
    }

    /// What was done for those who watch: captures, live traces, mirrors and traces.
    pub(crate) fn cost_of_watching(self, effort: Effort) -> u64 {
        effort.steps as u64 * STEP
            + effort.copies as u64 * COPY_TO_WATCHER
            + self.of_bytes(effort.bytes)
    }

    /// Copies of frames that were for several targets.
    pub(crate) fn cost_of_copies(self, copies: usize, bytes: usize) -> u64 {
        copies as u64 * COPY + self.of_bytes(bytes)
    }
}

/// Packets that frames were cut into where their receivers take no larger ones: each as a frame.
/// Not beside what the frames cost, but instead where it is more, so that packets of a wire's
/// length cost what their bytes do.
pub(crate) fn cost_of_packets(packets: usize) -> u64 {
    packets as u64 * FRAME
}

/// To look for rules in so many places for some frames, beyond what is charged for each.
pub(crate) fn cost_of_search(frames: usize, looked: u64) -> u64 {
    looked.saturating_sub(frames as u64 * LOOKS) * LOOK
}

/// To put right for another worker which flows of a NIC are the oldest, so many of which were
/// looked at.
pub(crate) fn cost_of_putting_right(looked: u64) -> u64 {
    FRAME + looked * LOOK
}

/// As many frames of one sender, with none behind them, are a few.
pub(crate) const FEW: usize = 4;

/// Who sends a few frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FewSender {
    /// A NIC or an uplink of which this worker has a queue.
    Port(PortSlot),
    /// Another worker, by the ring in which nothing was but its senders' few frames.
    Ring(usize),
}

/// The two that were last to send a few frames.
#[derive(Default)]
pub(crate) struct FewSenders {
    last: Option<FewSender>,
    last_ns: u64,
    /// When another one than the last did.
    other_ns: u64,
}

impl FewSenders {
    /// A few frames have come from this one, which has no others.
    #[inline]
    pub(crate) fn note(&mut self, sender: FewSender, now: Now) {
        if self.last != Some(sender) {
            self.other_ns = self.last_ns;
            self.last = Some(sender);
        }
        self.last_ns = now.mono_ns;
    }

    /// Both did so a moment ago: they may wait for each other's frames.
    #[inline]
    pub(crate) fn hurry(&self, now: Now) -> bool {
        now.mono_ns.saturating_sub(self.other_ns) < HURRY_NS
    }
}

/// What one who sends has cost, by all of its queues here: see [`QueueId::payer`]. It stays when
/// they go and come again, as long as it is the same NIC.
///
/// [`QueueId::payer`]: crate::queue::QueueId::payer
#[derive(Clone, Copy, Default)]
pub(crate) struct Debt {
    /// Which NIC that is; an uplink's queue is none.
    nic: Option<PortUid>,
    /// What it has not waited for yet.
    owed: u64,
    /// The turn that what follows is of.
    turn: u64,
    spent: u64,
    waits: bool,
    counted: bool,
}

impl Debt {
    /// The queues are this NIC's. What one owes that had their slot before is not its to pay.
    #[inline]
    pub(crate) fn is_of(&mut self, nic: PortUid) {
        if self.nic != Some(nic) {
            *self = Debt {
                nic: Some(nic),
                ..Debt::default()
            };
        }
    }

    /// The sender has to wait in this turn, or has had its part of it. `senders`: how many there
    /// were in the turn before. Who was not one of them waits for those, too: it may send in every
    /// second turn, or take its rings away in between.
    #[inline]
    pub(crate) fn waits(&mut self, turn: u64, senders: usize) -> bool {
        if self.turn != turn {
            let was_one = self.counted && self.turn + 1 == turn;
            *self = Debt {
                nic: self.nic,
                owed: self.owed,
                turn,
                ..Debt::default()
            };
            self.waits = self.pay(senders <= usize::from(was_one));
        }
        self.waits || self.spent >= ENOUGH
    }

    /// Waits for a turn's part of what it owes, if that is as much. True when it has to, which who
    /// is alone has not.
    #[inline]
    fn pay(&mut self, is_alone: bool) -> bool {
        if self.owed < TURN {
            return false;
        }
        if is_alone {
            self.owed = 0;
            return false;
        }
        self.owed -= TURN;
        true
    }

    /// True once in a turn, for the first of its queues that has sent, or has to wait.
    #[inline]
    pub(crate) fn is_another_sender(&mut self) -> bool {
        !std::mem::replace(&mut self.counted, true)
    }

    /// Charges a batch: what all of this turn have cost beyond a turn's part is owed.
    #[inline]
    pub(crate) fn charge(&mut self, cost: Cost) {
        let before = self.spent.saturating_sub(TURN);
        self.spent += cost.carried + cost.judged;
        self.charge_more(self.spent.saturating_sub(TURN) - before);
    }

    /// Charges what was found out late.
    #[inline]
    pub(crate) fn charge_more(&mut self, cost: u64) {
        self.owed = (self.owed + cost).min(OWED_MAX);
    }
}

/// What the frames of a queue have cost, each. It stays when the queue goes and comes again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Price {
    /// What those of its dearest batch have cost, if that was dear, and when that was.
    dearest: u64,
    dearest_ns: u64,
    /// What its last batch has cost, judging included, and of how many frames it was. Zero, if
    /// those were a few.
    last: (u64, u64),
}

impl Price {
    /// How many frames may be received of `most`, one at the least.
    #[inline]
    pub(crate) fn room(&mut self, most: usize, hurry: bool, now: Now) -> usize {
        if now.mono_ns.saturating_sub(self.dearest_ns) >= REMEMBER_NS {
            self.dearest = 0;
        }
        let most = at_most(most, LONGEST, self.dearest);
        if !hurry {
            return most;
        }
        let (cost, frames) = self.last;
        at_most(most, frames * TURN, cost)
    }

    /// Notes what a batch has cost. `few`: it was no more than a few frames, and there were no
    /// others.
    #[inline]
    pub(crate) fn note(&mut self, cost: Cost, frames: usize, few: bool, now: Now) {
        self.last = match few {
            false => (cost.carried + cost.judged, frames as u64),
            true => (0, 0),
        };
        self.note_carried(cost.carried, frames, now);
    }

    /// Notes what the frames of a batch have carried, also of an earlier one.
    #[inline]
    pub(crate) fn note_carried(&mut self, carried: u64, frames: usize, now: Now) {
        let each = carried / frames.max(1) as u64;
        if each > CHEAP && each >= self.dearest {
            (self.dearest, self.dearest_ns) = (each, now.mono_ns);
        }
    }
}

/// As many frames as a turn takes, one at the least.
#[inline]
fn at_most(most: usize, turn: u64, each: u64) -> usize {
    match turn.checked_div(each) {
        Some(few) => most.min(few.max(1) as usize),
        None => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(frames: usize, bytes: usize, pieces: usize) -> Cost {
        Cost::carried(Rates::default().cost(frames, bytes, pieces))
    }

    fn judged(costly: Costly) -> Cost {
        Cost {
            carried: Rates::default().cost(64, 64 * 60, 0),
            judged: costly.cost(),
        }
    }

    fn at(millis: u64) -> Now {
        Now {
            mono_ns: millis * 1_000_000,
            unix_ns: 0,
        }
    }

    /// Senders of a turn, of which it is one.
    const ALONE: usize = 1;
    const TWO: usize = 2;

    /// A turn in which it sends, or has to wait.
    fn waits(debt: &mut Debt, turn: u64, senders: usize) -> bool {
        let waits = debt.waits(turn, senders);
        debt.is_another_sender();
        waits
    }

    /// How many turns from this one on it waits beside another one.
    fn waits_from(debt: &mut Debt, turn: u64) -> usize {
        (turn..).take_while(|turn| waits(debt, *turn, TWO)).count()
    }

    #[test]
    fn who_costs_no_more_than_its_turn_never_waits() {
        let (mut debt, mut price) = (Debt::default(), Price::default());
        let cost = carried(64, 64 * 60, 0);
        for turn in 1..1000 {
            assert!(!waits(&mut debt, turn, TWO));
            assert_eq!(price.room(64, false, at(turn)), 64);
            debt.charge(cost);
            price.note(cost, 64, false, at(turn));
        }
    }

    #[test]
    fn who_costs_more_waits_for_as_many_turns_unless_it_is_alone() {
        let (mut debt, mut price) = (Debt::default(), Price::default());
        // 64 frames of 1,500 bytes to 100 NICs.
        let flood = carried(6400, 6400 * 1500, 0);
        assert!(!waits(&mut debt, 1, TWO));
        debt.charge(flood);
        let turns = waits_from(&mut debt, 2) as u64;
        assert_eq!(turns, (flood.carried - TURN) / TURN);
        assert!(!waits(&mut debt, turns + 3, TWO));
        debt.charge(flood);
        assert!(!waits(&mut debt, turns + 4, ALONE));
        assert!(!waits(&mut debt, turns + 5, TWO));
        // One at a time, for a second.
        price.note(flood, 64, false, at(0));
        assert_eq!(price.room(64, false, at(999)), 1);
        assert_eq!(price.room(64, false, at(1000)), 64);
    }

    /// Frames whose cost is found out late come while it waits.
    #[test]
    fn nobody_owes_without_end() {
        let mut debt = Debt::default();
        for _ in 0..1000 {
            debt.charge_more(OWED_MAX / 10);
        }
        debt.charge(carried(1_000_000, 0, 0));
        let turns = waits_from(&mut debt, 1) as u64;
        assert_eq!(turns, OWED_MAX / TURN);
    }

    #[test]
    fn a_nic_pays_for_itself_and_for_nobody_who_had_its_slot() {
        let (before, nic) = (PortUid(1), PortUid(2));
        let mut debt = Debt::default();
        debt.is_of(before);
        debt.charge_more(10 * TURN);
        assert!(waits(&mut debt, 1, TWO));
        debt.is_of(nic);
        assert!(!waits(&mut debt, 2, TWO));
        debt.charge_more(10 * TURN);
        // It may take its rings away and give them back, which makes no other NIC of it.
        for turn in 3..13 {
            debt.is_of(nic);
            assert!(waits(&mut debt, turn, TWO), "{turn}");
        }
        debt.is_of(nic);
        assert!(!waits(&mut debt, 13, TWO));
    }

    /// Who sends in every second turn, or is away in between, is not alone beside who has sent
    /// meanwhile.
    #[test]
    fn who_was_away_is_not_alone() {
        let mut debt = Debt::default();
        let flood = carried(6400, 6400 * 1500, 0);
        assert!(!waits(&mut debt, 1, ALONE));
        debt.charge(flood);
        let turns = (3..)
            .step_by(2)
            .take_while(|turn| waits(&mut debt, *turn, ALONE));
        assert_eq!(turns.count() as u64, (flood.carried - TURN) / TURN);
        // Nobody has sent meanwhile.
        debt.charge(flood);
        assert!(!waits(&mut debt, 100_001, 0));
        assert_eq!(debt.owed, 0);
    }

    #[test]
    fn queues_of_one_nic_share_its_part_of_a_turn() {
        let mut debt = Debt::default();
        let full = carried(64, 64 * 60, 0);
        let half = carried(32, 32 * 64, 0);
        for senders in [TWO, ALONE] {
            for turn in 1..=10 {
                let turn = turn + 20 * senders as u64;
                let mut served = 0;
                // Two queues that have half of what a turn takes, and many that have it whole.
                for cost in [half, half].into_iter().chain([full; 62]) {
                    if !waits(&mut debt, turn, senders) {
                        debt.charge(cost);
                        served += 1;
                    }
                }
                assert_eq!(served, 2);
            }
        }
        // It is one sender.
        debt.waits(100, TWO);
        assert!(debt.is_another_sender() && !debt.is_another_sender());
    }

    #[test]
    fn large_frames_come_a_few_at_a_time_and_usual_ones_by_whole_batches() {
        for (len, room) in [(60, 64), (1514, 64), (9014, 20), (65_549, 3)] {
            let mut price = Price::default();
            price.note(carried(1, len, 0), 1, false, at(5));
            assert_eq!(price.room(64, false, at(6)), room, "{len}");
        }
        // In chains of 1,024 buffers.
        let mut price = Price::default();
        price.note(carried(64, 64 * 1024, 64 * 1024), 64, false, at(5));
        assert_eq!(price.room(64, false, at(6)), 1);
    }

    #[test]
    fn who_begins_flows_waits_for_them_and_has_whole_batches() {
        let (mut debt, mut price) = (Debt::default(), Price::default());
        let cost = judged(Costly {
            entered: 64,
            ..Costly::default()
        });
        assert!(!waits(&mut debt, 1, TWO));
        debt.charge(cost);
        price.note(cost, 64, false, at(0));
        let turns = waits_from(&mut debt, 2);
        assert_eq!((turns, price.room(64, false, at(1))), (11, 64));
    }

    #[test]
    fn in_a_hurry_nobody_s_turn_costs_more_than_its_part() {
        // Small frames of known flows, of 1,500 bytes, of 64 KiB; first packets.
        for (len, entered, room) in [(60, 0, 64), (1514, 0, 27), (65_549, 0, 1), (60, 64, 5)] {
            let costly = Costly {
                entered,
                ..Costly::default()
            };
            let cost = Cost {
                carried: Rates::default().cost(64, 64 * len, 0),
                judged: costly.cost(),
            };
            let mut price = Price::default();
            assert_eq!(price.room(64, true, at(1)), 64);
            price.note(cost, 64, false, at(1));
            assert_eq!(price.room(64, true, at(2)), room, "{len}, {entered}");
            // It has sent all that it had.
            price.note(cost, 64, true, at(2));
            assert_eq!(price.room(64, true, at(2)), price.room(64, false, at(2)));
        }
    }

    #[test]
    fn who_sends_the_same_syns_again_waits_for_their_states_to_be_followed() {
        let (mut debt, mut price) = (Debt::default(), Price::default());
        let cost = judged(Costly {
            tracked: 64,
            ..Costly::default()
        });
        assert!(!waits(&mut debt, 1, TWO));
        debt.charge(cost);
        price.note(cost, 64, false, at(0));
        let turns = waits_from(&mut debt, 2);
        assert_eq!((turns, price.room(64, false, at(1))), (1, 64));
    }
}
