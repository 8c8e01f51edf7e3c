//! Which queue should go to which worker when some have much to do and others little.
//!
//! Looked at once a second, over what each queue has cost since. One queue is moved at a time, and
//! only when it is clearly worth it: the busiest worker has more to do than [`BUSY`], without the
//! queue it and the one that gets it are both better off by [`GAIN`] than it is now, and that was
//! so a second ago as well. A queue that was moved rests for [`REST`] seconds. So nothing goes to
//! and fro: after a move the way back has no gain, and one busy queue alone stays where it is.
//!
//! What is not looked at: who sends to whom. Two NICs that talk to each other are cheaper on one
//! worker.

use std::collections::BTreeMap;

use crate::queue::QueueId;

/// Thousandths of a worker's time above which it is worth a move.
const BUSY: u64 = 600;

/// By how much the busier of the two has to have less to do after a move, in the same unit.
const GAIN: u64 = 150;

/// Looks for which a queue stays where it was moved to.
const REST: u32 = 10;

/// A queue and the worker that it is to go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Which one.
    pub queue: QueueId,
    /// The worker that has it.
    pub from: usize,
    /// The worker that is to get it.
    pub to: usize,
}

/// A queue as the balancer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueUse {
    /// Which one.
    pub queue: QueueId,
    /// The worker that has it.
    pub worker: usize,
    /// Cycles that its frames, sent and received, have cost since it came.
    pub cycles: u64,
}

/// What a queue costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Which one.
    pub queue: QueueId,
    /// The worker that has it.
    pub worker: usize,
    /// Thousandths of the worker's time.
    pub permille: u64,
    /// It was moved a short while ago and is to stay.
    pub rests: bool,
}

/// The best move, if any is worth it.
pub fn plan(workers: usize, shares: &[Share]) -> Option<Move> {
    let busy = busy(workers, shares);
    let (from, most) = busy
        .iter()
        .copied()
        .enumerate()
        .max_by_key(|(_, busy)| *busy)?;
    let (to, least) = busy
        .iter()
        .copied()
        .enumerate()
        .min_by_key(|(_, busy)| *busy)?;
    if most < BUSY {
        return None;
    }
    let after = |share: &Share| (most - share.permille).max(least + share.permille);
    let candidates = shares
        .iter()
        .filter(|share| share.worker == from && !share.rests);
    // Of those that are as good, the one that is quieter.
    let best = candidates.min_by_key(|share| (after(share), share.permille))?;
    (after(best) + GAIN <= most).then_some(Move {
        queue: best.queue,
        from,
        to,
    })
}

/// How busy each worker is with its queues, in thousandths.
pub(crate) fn busy(workers: usize, shares: &[Share]) -> Vec<u64> {
    let mut busy = vec![0; workers];
    for share in shares {
        if let Some(busy) = busy.get_mut(share.worker) {
            *busy += share.permille;
        }
    }
    busy
}

/// What is remembered from look to look.
#[derive(Default)]
pub struct QueueBalancer {
    /// When the last look was, in cycles; `None`: there was none.
    looked_at: Option<u64>,
    /// What each queue had cost by then.
    costs: BTreeMap<QueueId, u64>,
    /// How long queues that were moved rest.
    resting: BTreeMap<QueueId, u32>,
    /// What the last look would have liked.
    wanted: Option<Move>,
}

impl QueueBalancer {
    /// What each queue has cost since the last look.
    pub(crate) fn look(&mut self, uses: &[QueueUse], cycles_now: u64) -> Vec<Share> {
        let passed = self.looked_at.map_or(0, |at| cycles_now.wrapping_sub(at));
        self.looked_at = Some(cycles_now);
        self.resting.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        let shares = uses.iter().map(|one| {
            let before = self.costs.get(&one.queue).copied();
            let cost = before.map_or(0, |before| one.cycles.saturating_sub(before));
            Share {
                queue: one.queue,
                worker: one.worker,
                permille: cost
                    .saturating_mul(1000)
                    .checked_div(passed)
                    .unwrap_or(0)
                    .min(1000),
                rests: self.resting.contains_key(&one.queue),
            }
        });
        let shares = shares.collect();
        self.costs = uses.iter().map(|one| (one.queue, one.cycles)).collect();
        shares
    }

    /// The move to make now: one that the last look would have made too.
    pub(crate) fn decide(&mut self, workers: usize, shares: &[Share]) -> Option<Move> {
        let plan = plan(workers, shares);
        let (before, now) = (self.wanted.take(), plan?);
        if before != plan {
            self.wanted = plan;
            return None;
        }
        self.resting.insert(now.queue, REST);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::PortSlot;

    /// Queues by number, with their worker and what they cost.
    fn shares(queues: &[(usize, u64)]) -> Vec<Share> {
        let share = |(slot, &(worker, permille))| Share {
            queue: PortSlot(slot).into(),
            worker,
            permille,
            rests: false,
        };
        (0..).zip(queues).map(share).collect()
    }

    fn to(queue: u32, from: usize, to: usize) -> Option<Move> {
        Some(Move {
            queue: PortSlot(queue).into(),
            from,
            to,
        })
    }

    #[test]
    fn a_move_is_made_where_it_helps_and_nowhere_else() {
        for (what, queues, expected) in [
            ("nothing is there", vec![], None),
            (
                "one queue alone is where it is as good as anywhere",
                vec![(0, 1000), (1, 0)],
                None,
            ),
            (
                "two on one, the other idle",
                vec![(0, 500), (0, 500)],
                to(0, 0, 1),
            ),
            (
                "not so busy that it matters",
                vec![(0, 300), (0, 290)],
                None,
            ),
            ("even", vec![(0, 450), (0, 450), (1, 900)], None),
            (
                "the small one, as the large one only changes sides",
                vec![(0, 700), (0, 200)],
                to(1, 0, 1),
            ),
            ("too little to gain", vec![(0, 860), (0, 140)], None),
            (
                "the one that evens out best",
                vec![(0, 600), (0, 100), (0, 300), (1, 300)],
                to(2, 0, 1),
            ),
            (
                "what is idle is no help",
                vec![(1, 900), (1, 0), (1, 0)],
                None,
            ),
        ] {
            assert_eq!(plan(2, &shares(&queues)), expected, "{what}");
        }
        let three = shares(&[(0, 100), (1, 400), (1, 400), (2, 300)]);
        assert_eq!(plan(3, &three), to(1, 1, 0));
        assert_eq!(plan(1, &shares(&[(0, 900), (0, 100)])), None);
        assert_eq!(plan(0, &[]), None);
    }

    /// Whatever the loads, moves come to an end, and each makes the busiest of the two less busy.
    #[test]
    fn steady_loads_come_to_rest() {
        let mut numbers = 1u64;
        let mut number = |below: u64| {
            numbers = numbers
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (numbers >> 33) % below
        };
        for _ in 0..500 {
            let workers = 1 + number(5) as usize;
            let queues: Vec<_> = (0..number(20))
                .map(|_| (number(workers as u64) as usize, number(400)))
                .collect();
            let mut shares = shares(&queues);
            let mut moves = 0;
            while let Some(next) = plan(workers, &shares) {
                let before = busy(workers, &shares)[next.from];
                shares[next.queue.slot.0 as usize].worker = next.to;
                let after = busy(workers, &shares);
                assert!(after[next.from].max(after[next.to]) + GAIN <= before);
                moves += 1;
                assert!(moves < 100, "{queues:?}");
            }
        }
    }

    #[test]
    fn a_queue_is_moved_at_the_second_look_and_then_rests() {
        let mut balancer = QueueBalancer::default();
        let uses = |seconds: u64, worker| {
            let one = |slot, worker, percent: u64| QueueUse {
                queue: PortSlot(slot).into(),
                worker,
                cycles: seconds * percent * 10,
            };
            vec![one(0, 0, 50), one(1, worker, 45)]
        };
        let mut look = |seconds, worker| {
            let shares = balancer.look(&uses(seconds, worker), seconds * 1000);
            balancer.decide(2, &shares)
        };
        assert_eq!(look(10, 0), None, "nothing to compare with");
        assert_eq!(look(11, 0), None, "once is chance");
        let moved = look(12, 0);
        assert_eq!(moved, to(1, 0, 1));
        // Somebody moves it back: it rests, and the other one goes.
        assert_eq!((look(13, 0), look(14, 0)), (None, to(0, 0, 1)));
        assert_eq!((look(15, 0), look(16, 0), look(21, 0)), (None, None, None));
    }
}
