//! What the switch answers to a sender itself: neighbours that it knows, frames that are too large
//! for where they go, and TCP amid connections that nobody knows.
//!
//! Answers are made while a batch is judged and delivered behind it, in the order of the frames
//! that they answer. One frame has one answer at the most, so a batch has room for all. Errors and
//! resets are limited, answers to questions are not: they are no more than the questions.

use std::collections::HashMap;

use io::frame::Batch;
use wire::Mac;
use wire::offload::Offload;

use crate::ids::{MAX_PORTS, NetworkIdx, PortSlot};
use crate::overlay::TunnelSource;
use crate::time::Now;

/// ICMP errors that a NIC gets in a second, of one worker.
pub(crate) const ERRORS_A_SECOND: u16 = 100;

/// Resets that a worker sends in a second.
pub const RESETS_A_SECOND: u16 = 1000;
/// Those of them for connections of one NIC.
pub const RESETS_OF_A_NIC: u16 = 250;

/// How long no reset is sent in the name of a NIC that has come into a network or left it, or to
/// it: its connections may be on their way to where they are known.
pub const MOVE_SECS: u32 = 5;

/// Places that NICs have come to or left: beyond so many none is noted.
const MOVED_MAX: usize = 2 * MAX_PORTS;

/// The answers of one batch.
#[derive(Default)]
pub(crate) struct Replies {
    pub batch: Batch,
    /// What each frame of the batch answers.
    pub answered: Vec<Answered>,
    errors: Told,
    pub resets: Resets,
}

/// What an answer is to.
#[derive(Clone, Copy)]
pub(crate) struct Answered {
    /// Its place in the batch of answers, and the frame that it answers in that of the round.
    pub index: u8,
    pub frame: u8,
    /// Where that has come from; `None`: from the round's NIC.
    pub from: Option<TunnelSource>,
}

impl Replies {
    /// Forgets those of the batch before.
    pub(crate) fn clear(&mut self) {
        self.batch.clear();
        self.answered.clear();
    }

    /// Adds the answer to a frame.
    pub(crate) fn push(&mut self, frame: usize, from: Option<TunnelSource>, bytes: &[u8]) {
        // Cannot be refused: see above, and answers are short.
        if let Some(index) = self.batch.push_bytes(bytes, Offload::default()) {
            self.answered.push(Answered {
                index: index as u8,
                frame: frame as u8,
                from,
            });
        }
    }

    /// True when the NIC may be told of one more error in this second.
    pub(crate) fn may_send_error(&mut self, slot: PortSlot, now_secs: u32) -> bool {
        self.errors.count(slot, now_secs) <= ERRORS_A_SECOND
    }
}

/// How much NICs were told in this second.
#[derive(Default)]
struct Told {
    /// By slot: the second, and how often.
    by_slot: Vec<(u32, u16)>,
}

impl Told {
    /// Once more; gives how often that makes.
    fn count(&mut self, slot: PortSlot, now_secs: u32) -> u16 {
        let index = slot.0 as usize % MAX_PORTS;
        if index >= self.by_slot.len() {
            self.by_slot.resize(index + 1, (0, 0));
        }
        count_in(&mut self.by_slot[index], now_secs)
    }
}

fn count_in((secs, count): &mut (u32, u16), now_secs: u32) -> u16 {
    if *secs != now_secs {
        (*secs, *count) = (now_secs, 0);
    }
    *count = count.saturating_add(1);
    *count
}

/// Whether a reset may be sent.
#[derive(Default)]
pub(crate) struct Resets {
    told: Told,
    /// The second, and how many were sent in it.
    sent: (u32, u16),
    /// The MACs of NICs that have come into a network or left it, and when.
    moved: HashMap<(NetworkIdx, Mac), u32>,
}

impl Resets {
    /// NICs have come or gone.
    pub(crate) fn note_moved(&mut self, moved: &[(NetworkIdx, Mac)], now: Now) {
        let now_secs = now.secs();
        self.moved
            .retain(|_, at| now_secs.saturating_sub(*at) < MOVE_SECS);
        let room = MOVED_MAX.saturating_sub(self.moved.len());
        let places = moved.iter().take(room);
        self.moved.extend(places.map(|place| (*place, now_secs)));
    }

    /// True when neither of these machines has come or gone a moment ago.
    pub(crate) fn are_settled(&self, network: NetworkIdx, macs: [Mac; 2], now_secs: u32) -> bool {
        let moves = |mac| {
            let at = self.moved.get(&(network, mac));
            at.is_some_and(|at| now_secs.saturating_sub(*at) < MOVE_SECS)
        };
        !macs.into_iter().any(moves)
    }

    /// True when one more may be sent in this second for the connections of a NIC.
    pub(crate) fn may_send(&mut self, nic: PortSlot, now_secs: u32) -> bool {
        self.told.count(nic, now_secs) <= RESETS_OF_A_NIC
            && count_in(&mut self.sent, now_secs) <= RESETS_A_SECOND
    }
}
