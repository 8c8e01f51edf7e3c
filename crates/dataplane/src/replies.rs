//! What the switch answers to a NIC itself: neighbours that it knows, and frames that are too large
//! for where they go.
//!
//! Answers are made while a batch is judged and delivered behind it. One frame has one answer at
//! the most, so a batch has room for all. Errors are limited for each NIC, answers to questions are
//! not: they are no more than the questions.

use io::frame::Batch;
use wire::offload::Offload;

use crate::ids::MAX_PORTS;
use crate::ids::PortSlot;

/// ICMP errors that a NIC gets in a second, of one worker.
pub(crate) const ERRORS_A_SECOND: u16 = 100;

/// The answers of one batch.
#[derive(Default)]
pub(crate) struct Replies {
    pub batch: Batch,
    /// By slot: the second, and how many errors it has had.
    told: Vec<(u32, u16)>,
}

impl Replies {
    /// Forgets those of the batch before.
    pub(crate) fn clear(&mut self) {
        self.batch.clear();
    }

    /// Adds an answer.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Cannot be refused: see above, and answers are short.
        self.batch.push_bytes(bytes, Offload::default());
    }

    /// True when the NIC may be told of one more error in this second.
    pub(crate) fn may_send_error(&mut self, slot: PortSlot, now_secs: u32) -> bool {
        let index = slot.0 as usize % MAX_PORTS;
        if index >= self.told.len() {
            self.told.resize(index + 1, (0, 0));
        }
        let (secs, count) = &mut self.told[index];
        if *secs != now_secs {
            (*secs, *count) = (now_secs, 0);
        }
        *count = count.saturating_add(1);
        *count <= ERRORS_A_SECOND
    }
}
