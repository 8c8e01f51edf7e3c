//! What may be looked for in rules.
//!
//! A tenant may have rules that say nothing of a packet and are all looked at before that is known,
//! a hundred thousand for one NIC. What that costs is charged to who has sent the packet, but only
//! when it is known; this bounds it before.
//!
//! - What is asked of one frame for many targets is asked of each group once: the question is the
//!   same for all of them.
//! - A turn has a number of looks. When they are used up, only such questions are answered in it as
//!   cannot be dear, by how many rules there are; the frames of a NIC of which others are to be
//!   asked wait for the next turns ([`Late`](crate::late::Late)).
//! - Frames from the wire cannot wait: their uplink's others would wait behind them. Who pays for
//!   what they have looked for is the network that they are for. One that owes too much begins no
//!   connections from the wire until it has paid, by turns and by time, and what it does not begin
//!   is dropped. Flows that it has go on: of those that are to be decided again some are in each
//!   turn, all where that cannot be dear.
//!
//! A frame that has begun to be asked about is always finished: what one frame costs is bounded by
//! how many rules there are.

use hashbrown::HashMap;

use crate::ids::{GroupIdx, NetworkIdx, RuleSlot};
use crate::ruleset::{Asked, Direction};
use crate::snapshot::Group;
use crate::time::Now;
use crate::view::Groups;
use crate::work;

/// Looks of a turn: one to five milliseconds.
pub(crate) const TURN_LOOKS: u64 = 64 * 1024;

/// So many of each question are no more than is charged for each frame anyway.
const FREE: u64 = 32;

/// Where the turn's are used up: what the questions about one batch of a NIC may take together, and
/// each about a frame from the wire.
const BATCH_LOOKS: u64 = 2048;
const CHEAP: u64 = 1024;

/// A network owes no more than this before what comes for it from the wire begins nothing.
const MOST_OWED: u64 = TURN_LOOKS;

/// And never owes more: beside a few others it has paid that in a second.
const OWED_MAX: u64 = work::OWED_MAX / work::LOOK;

/// So much may be looked for in a turn for flows of a network that owes too much, before the last
/// of them.
const GO_ON: u64 = TURN_LOOKS / 8;

/// Where turns are longer than this, time counts: who owes has paid all in a second.
const TURN_NS: u64 = 1_000_000_000 * work::TURN / work::OWED_MAX;

/// Room for the answers of so many groups is kept.
const ANSWERS_KEPT: usize = 1024;

type Quick = foldhash::fast::RandomState;

#[derive(Default)]
pub(crate) struct Searches {
    /// In how many places was looked for the batch in hand: who charges that begins with zero.
    pub looked: u64,
    /// Of this turn, without those that are [`FREE`]: for NICs, and for frames from the wire, so
    /// that neither keeps the other from being asked.
    turn: [u64; 2],
    /// Turns, or as many as there was time for.
    turns: u64,
    /// When the last one began, monotonic nanoseconds.
    began_ns: u64,
    /// Whom is asked for: a network's other hosts, or nobody in particular, a NIC.
    asker: Option<NetworkIdx>,
    /// The turn's were not used up when the round began: its first question is answered.
    admitted: bool,
    /// The frame that this step asks about, as an item of its round.
    in_hand: Option<usize>,
    /// A question of this round was put off.
    pub denied: bool,
    /// Answers are remembered: some frame is for many.
    pub remembers: bool,
    /// Ingress and egress.
    answers: [Answers; 2],
    /// What networks owe for frames from the wire.
    owed: HashMap<NetworkIdx, Owed, Quick>,
}

/// What groups have said to a question.
#[derive(Default)]
struct Answers {
    asked: Option<Asked>,
    found: HashMap<GroupIdx, Option<RuleSlot>, Quick>,
}

#[derive(Clone, Copy)]
struct Owed {
    looks: u64,
    /// The turn in which it has paid last, and what was looked for in that.
    turn: u64,
    in_turn: u64,
}

impl Searches {
    /// Another turn begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Now) {
        self.turn = [0; 2];
        let passed_ns = now.mono_ns.saturating_sub(self.began_ns);
        self.began_ns = now.mono_ns;
        self.turns += (passed_ns / TURN_NS).max(1);
    }

    /// Frames of a NIC, or with a network of its other hosts, are judged.
    #[inline]
    pub(crate) fn begin_round(&mut self, asker: Option<NetworkIdx>) {
        self.denied = false;
        self.remembers = false;
        self.begin_step(asker);
        self.admitted = !self.is_used_up();
    }

    /// Their next step begins.
    #[inline]
    pub(crate) fn begin_step(&mut self, asker: Option<NetworkIdx>) {
        self.asker = asker;
        self.in_hand = None;
    }

    /// Of the same step, what comes is asked for this one.
    #[inline]
    pub(crate) fn go_on_for(&mut self, asker: Option<NetworkIdx>) {
        self.asker = asker;
    }

    /// Nothing dear is asked any more in this turn, for the like of who asks.
    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        self.turn[usize::from(self.asker.is_some())] >= TURN_LOOKS
    }

    /// The rules may be asked about this item now, in `most` places at most. An item that may is
    /// asked about to the end.
    #[inline]
    pub(crate) fn may_ask(&mut self, item: usize, most: impl FnOnce() -> u64) -> bool {
        self.may(item, most, false)
    }

    /// The same where a flow is there already that is to be decided again.
    #[inline]
    pub(crate) fn may_ask_again(&mut self, item: usize, most: impl FnOnce() -> u64) -> bool {
        self.may(item, most, true)
    }

    #[inline]
    fn may(&mut self, item: usize, most: impl FnOnce() -> u64, again: bool) -> bool {
        if self.in_hand == Some(item) {
            return true;
        }
        let asker = self.asker;
        let owes = asker.is_some_and(|network| self.owes(network, again));
        let is_first = self.admitted && self.in_hand.is_none();
        if !owes && (is_first || !self.is_used_up()) {
            self.in_hand = Some(item);
            return true;
        }
        let room = match self.asker {
            None => BATCH_LOOKS.saturating_sub(self.looked),
            Some(_) => CHEAP,
        };
        let may = (!owes || again) && most() <= room;
        self.denied |= !may;
        may
    }

    /// A rule of a group that allows what is asked.
    #[inline]
    pub(crate) fn find(
        &mut self,
        (index, group): (GroupIdx, &Group),
        asked: &Asked,
        groups: &Groups,
    ) -> Option<RuleSlot> {
        if !self.remembers {
            return group.rules.find(asked, groups, &mut self.looked);
        }
        self.looked += 1;
        let answers = match asked.direction {
            Direction::Ingress => &mut self.answers[0],
            Direction::Egress => &mut self.answers[1],
        };
        answers.begin(asked);
        let looked = &mut self.looked;
        let ask = || group.rules.find(asked, groups, looked);
        *answers.found.entry(index).or_insert_with(ask)
    }

    /// A question was answered, before which so much was looked for.
    #[inline]
    pub(crate) fn note_question(&mut self, before: u64) {
        let dear = (self.looked - before).saturating_sub(FREE);
        if dear > 0 {
            self.note_dear(dear);
        }
    }

    #[cold]
    fn note_dear(&mut self, looks: u64) {
        self.turn[usize::from(self.asker.is_some())] += looks;
        if let Some(network) = self.asker {
            let turn = self.turns;
            let owed = self.owed.entry(network).or_insert(Owed {
                looks: 0,
                turn,
                in_turn: 0,
            });
            owed.pay(turn);
            owed.looks = (owed.looks + looks).min(OWED_MAX);
            owed.in_turn += looks;
        }
    }

    /// Owes too much to ask, or to ask `again` in this turn.
    #[inline]
    fn owes(&mut self, network: NetworkIdx, again: bool) -> bool {
        !self.owed.is_empty() && self.owes_still(network, again)
    }

    #[cold]
    fn owes_still(&mut self, network: NetworkIdx, again: bool) -> bool {
        let Some(owed) = self.owed.get_mut(&network) else {
            return false;
        };
        owed.pay(self.turns);
        let (looks, in_turn) = (owed.looks, owed.in_turn);
        if looks == 0 {
            self.owed.remove(&network);
        }
        looks > MOST_OWED && !(again && in_turn < GO_ON)
    }

    /// NICs' frames that wait are not to be gone on with in this turn.
    pub(crate) fn is_used_up_by_nics(&self) -> bool {
        self.turn[0] >= TURN_LOOKS
    }

    /// Other rules are in force. What was owed is owed.
    pub(crate) fn forget_answers(&mut self) {
        self.answers = Default::default();
    }

    /// Forgets who has paid.
    pub(crate) fn keep_house(&mut self) {
        let turn = self.turns;
        self.owed.retain(|_, owed| {
            owed.pay(turn);
            owed.looks > 0
        });
    }
}

impl Owed {
    /// Pays a sender's part of each turn since.
    fn pay(&mut self, turn: u64) {
        if self.turn == turn {
            return;
        }
        let each = work::TURN / work::LOOK;
        let paid = (turn - self.turn).saturating_mul(each);
        self.looks = self.looks.saturating_sub(paid);
        (self.turn, self.in_turn) = (turn, 0);
    }
}

impl Answers {
    /// What follows is said to this question.
    #[inline]
    fn begin(&mut self, asked: &Asked) {
        if self.asked.as_ref() == Some(asked) {
            return;
        }
        self.asked = Some(*asked);
        // Clearing takes as long as there is room.
        match self.found.capacity() > ANSWERS_KEPT {
            true => self.found = HashMap::default(),
            false => self.found.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Now = Now {
        mono_ns: 0,
        unix_ns: 0,
    };

    /// A question about an item that looks in so many places, if it may be asked.
    fn ask(searches: &mut Searches, item: usize, looks: u64) -> bool {
        let may = searches.may_ask(item, || looks);
        if may {
            let before = searches.looked;
            searches.looked += looks;
            searches.note_question(before);
        }
        may
    }

    #[test]
    fn a_turn_ends_with_the_frame_that_uses_it_up() {
        let mut searches = Searches::default();
        for _ in 0..3 {
            searches.begin_turn(START);
            searches.looked = 0;
            searches.begin_round(None);
            assert!(ask(&mut searches, 0, TURN_LOOKS / 2));
            assert!(ask(&mut searches, 1, TURN_LOOKS));
            assert!(ask(&mut searches, 1, TURN_LOOKS), "it has begun");
            assert!(!searches.denied);
            assert!(!ask(&mut searches, 2, TURN_LOOKS) && searches.denied);
            // The next step goes on with the first of those that have begun.
            searches.begin_step(None);
            assert!(ask(&mut searches, 0, TURN_LOOKS));
            assert!(!ask(&mut searches, 1, TURN_LOOKS));
            // Another sender is asked what cannot be dear.
            searches.looked = 0;
            searches.begin_round(None);
            assert!(!ask(&mut searches, 0, TURN_LOOKS));
            for item in 1..=64 {
                assert!(ask(&mut searches, item, BATCH_LOOKS / 64));
            }
            assert!(!ask(&mut searches, 65, BATCH_LOOKS / 64));
        }
    }

    #[test]
    fn what_is_cheap_uses_nothing_up() {
        let mut searches = Searches::default();
        searches.begin_turn(START);
        searches.begin_round(None);
        for item in 0..10_000 {
            assert!(ask(&mut searches, item, FREE));
        }
        assert!(!searches.is_used_up());
    }

    #[test]
    fn a_network_that_owes_waits_and_no_other() {
        let mut searches = Searches::default();
        let (dear, cheap) = (NetworkIdx(1), NetworkIdx(2));
        searches.begin_turn(START);
        searches.begin_round(Some(dear));
        assert!(ask(&mut searches, 0, 3 * MOST_OWED));
        assert!(!ask(&mut searches, 1, 1));
        searches.begin_round(Some(cheap));
        assert!(ask(&mut searches, 0, CHEAP) && !ask(&mut searches, 1, CHEAP + 1));
        let each = work::TURN / work::LOOK;
        let mut waited = 0u64;
        loop {
            searches.begin_turn(START);
            searches.begin_round(Some(cheap));
            // Less than it pays.
            assert!(ask(&mut searches, 0, each));
            searches.begin_round(Some(dear));
            if ask(&mut searches, 0, 1) {
                break;
            }
            waited += 1;
        }
        assert_eq!(waited, (2 * MOST_OWED - FREE) / each);
        for _ in 0..MOST_OWED {
            searches.begin_turn(START);
        }
        searches.keep_house();
        assert!(searches.owed.is_empty());
    }

    /// However much was looked for, another second later nothing is owed.
    #[test]
    fn no_network_owes_without_end_and_time_counts_where_turns_are_long() {
        let network = NetworkIdx(1);
        let owes = || {
            let mut searches = Searches::default();
            searches.begin_turn(START);
            searches.begin_round(Some(network));
            assert!(ask(&mut searches, 0, 1000 * OWED_MAX));
            assert!(!ask(&mut searches, 1, 1));
            searches
        };
        let mut searches = owes();
        let each = work::TURN / work::LOOK;
        for _ in 0..(OWED_MAX - MOST_OWED).div_ceil(each) {
            searches.begin_turn(START);
        }
        searches.begin_round(Some(network));
        assert!(ask(&mut searches, 0, 1));
        let mut searches = owes();
        searches.begin_turn(Now {
            mono_ns: 1_000_000_000,
            ..START
        });
        searches.begin_round(Some(network));
        assert!(ask(&mut searches, 0, 1));
    }

    #[test]
    fn flows_of_a_network_that_owes_go_on_some_in_a_turn() {
        let mut searches = Searches::default();
        searches.begin_turn(START);
        searches.begin_round(Some(NetworkIdx(1)));
        assert!(ask(&mut searches, 0, 10 * TURN_LOOKS));
        for _ in 0..3 {
            searches.begin_turn(START);
            searches.begin_round(Some(NetworkIdx(1)));
            assert!(!ask(&mut searches, 0, 1));
            for item in [1, 2] {
                assert!(searches.may_ask_again(item, || GO_ON));
                let before = searches.looked;
                searches.looked += GO_ON - 1;
                searches.note_question(before);
            }
            assert!(!searches.may_ask_again(3, || CHEAP + 1));
            assert!(searches.may_ask_again(4, || CHEAP));
            // What begins waits as before.
            assert!(!ask(&mut searches, 5, 1));
        }
    }
}
