//! Frames that the rules could not be asked about in the turn that they came in: each goes the rest
//! of its way by itself.

use io::frame::Batch;

use super::{Path, Sender, decide_late, has_to_wait};
use crate::late::LateFrame;
use crate::ports::Ports;
use crate::queue::QueueId;
use crate::stages::{deliver, encapsulate, put_off};
use crate::time::Now;
use crate::work::{self, Cost};

impl Path {
    /// Judges and delivers some of them: of each NIC what is its part of the turn, until the turn's
    /// looks are used up. `turn`: which it is, and how many senders there were in the one before.
    /// Gives whether any was judged, and how many more senders that makes.
    #[cold]
    pub(crate) fn judge_late(
        &mut self,
        ports: &mut Ports,
        now: Now,
        (turn, senders): (u64, usize),
    ) -> (bool, usize) {
        let (mut judged, mut more) = (false, 0);
        for _ in 0..self.tables.late.senders() {
            if self.tables.searches.is_used_up_by_nics() {
                break;
            }
            let Some(mut sender) = self.tables.late.take() else {
                break;
            };
            let from = sender.from;
            let mut waits = has_to_pay(ports, from, turn, senders);
            if let Some((debt, _)) = ports.owing(from) {
                more += usize::from(debt.is_another_sender());
            }
            while !waits
                && !self.tables.searches.is_used_up_by_nics()
                && !self.tables.floods.has(from)
                && let Some(frame) = self.tables.late.next_of(&mut sender)
            {
                self.judge_one_late(from, &frame, ports, now);
                judged = true;
                waits = has_to_pay(ports, from, turn, senders);
            }
            self.tables.late.put_back(sender);
        }
        (judged, more)
    }

    /// Judges and delivers one frame, and charges what that cost, also while its ring is away. Of a
    /// NIC that is gone it is nothing any more.
    fn judge_one_late(&mut self, from: QueueId, frame: &LateFrame, ports: &mut Ports, now: Now) {
        self.clear();
        self.forget_moved();
        self.copied = 0;
        (self.tables.searches.looked, self.tables.flows.looked) = (0, 0);
        self.tables.floods.begin_batch();
        let mut batch: Batch = std::mem::take(&mut self.spare);
        batch.clear();
        // Cannot be refused: it was a frame before.
        batch.push_bytes(&frame.bytes, frame.offload);
        if let Some((_, _, mut round)) = self.open(Sender::Nic(from), &batch, now)
            && round.nic.uid == frame.uid
        {
            decide_late(&mut round, frame);
            encapsulate::run(&mut round);
            if has_to_wait(&round) {
                put_off::run(&mut round, ports);
            }
            deliver::run(&mut round, ports);
            if !round.replies.batch.is_empty() {
                deliver::replies(&mut round, ports);
            }
            self.charge_copies(&batch, ports);
        }
        let packets = work::cost_of_packets(batch.take_cut());
        self.spare = batch;
        self.give_back_room();
        let looked = self.tables.searches.looked + self.tables.flows.looked;
        let searched = work::cost_of_search(1, looked);
        let copied = self.copied.max(packets) + std::mem::take(&mut self.tables.floods.cost);
        let watched = self.take_watched(ports);
        let cost = Cost::carried(searched + copied + watched);
        if let Some((debt, price)) = ports.owing(from) {
            debt.charge(cost);
            price.note_carried(cost.carried, 1, now);
        }
    }
}

/// Who has sent them waits for others, or has had its part of the turn.
fn has_to_pay(ports: &mut Ports, from: QueueId, turn: u64, senders: usize) -> bool {
    let owing = ports.owing(from);
    owing.is_some_and(|(debt, _)| debt.waits(turn, senders))
}
