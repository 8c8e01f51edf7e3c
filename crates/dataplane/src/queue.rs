//! Queues of NICs, and the table of which worker has which.
//!
//! A NIC has one queue pair or several, and each is one [`Port`](io::port::Port) owned by one
//! worker. The table is read by every worker for every run of frames and written when a queue
//! comes, goes or moves. Nothing else is published by it, so relaxed loads and stores will do: a
//! reader that is a moment behind hands its frames to the worker that had the queue, which sends
//! them after it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use io::port::Accepts;

use crate::counters::MAX_SLOTS;
use crate::ids::PortSlot;

/// The most queue pairs a NIC can have.
pub const MAX_PAIRS: usize = 64;

/// The most workers a switch can have.
pub const MAX_WORKERS: usize = 32;

/// One queue pair of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId {
    /// The NIC's slot.
    pub slot: PortSlot,
    /// Which pair, below [`MAX_PAIRS`]; 0 is the only one of a NIC without several.
    pub pair: u16,
}

impl From<PortSlot> for QueueId {
    /// The NIC's first pair.
    fn from(slot: PortSlot) -> QueueId {
        QueueId { slot, pair: 0 }
    }
}

impl QueueId {
    /// Within the table's bounds.
    pub(crate) fn is_possible(self) -> bool {
        (self.slot.0 as usize) < MAX_SLOTS && usize::from(self.pair) < MAX_PAIRS
    }

    /// Who pays for the frames that come by it: a NIC for those of all its pairs, and a queue of an
    /// uplink, by which many send, for its own.
    #[inline]
    pub(crate) fn payer(self) -> QueueId {
        match self.slot.is_uplink() {
            true => self,
            false => self.slot.into(),
        }
    }

    /// The number that the poller reports it by.
    pub(crate) fn token(self) -> u64 {
        u64::from(self.slot.0) << 16 | u64::from(self.pair)
    }

    pub(crate) fn from_token(token: u64) -> QueueId {
        QueueId {
            slot: PortSlot((token >> 16) as u32),
            pair: token as u16,
        }
    }
}

/// Where the queues are. As large as the maxima and zeroed lazily by the kernel.
pub(crate) struct Routes {
    /// By slot: the pairs that can be delivered to.
    on: Box<[AtomicU64]>,
    /// By slot and pair: the worker.
    owners: Box<[AtomicU8]>,
    /// By slot: what a NIC has negotiated, as [`encode`] has it. All its pairs have the same.
    accepts: Box<[AtomicU8]>,
}

impl Routes {
    pub(crate) fn new() -> Self {
        Routes {
            on: bytemuck::allocation::zeroed_slice_box(MAX_SLOTS),
            owners: bytemuck::allocation::zeroed_slice_box(MAX_SLOTS * MAX_PAIRS),
            accepts: bytemuck::allocation::zeroed_slice_box(MAX_SLOTS),
        }
    }

    /// The pairs of a NIC that can be delivered to, a bit each.
    #[inline]
    pub(crate) fn on(&self, slot: PortSlot) -> u64 {
        self.on
            .get(slot.0 as usize)
            .map_or(0, |pairs| pairs.load(Ordering::Relaxed))
    }

    /// The worker that has a queue, when the queue is on.
    #[inline]
    pub(crate) fn owner(&self, queue: QueueId) -> usize {
        let index = queue.slot.0 as usize * MAX_PAIRS + usize::from(queue.pair);
        self.owners
            .get(index)
            .map_or(0, |owner| owner.load(Ordering::Relaxed).into())
    }

    /// By the worker that the queue comes to.
    pub(crate) fn set_owner(&self, queue: QueueId, worker: usize) {
        let index = queue.slot.0 as usize * MAX_PAIRS + usize::from(queue.pair);
        if let Some(owner) = self.owners.get(index) {
            // Below `MAX_WORKERS`.
            owner.store(worker as u8, Ordering::Relaxed);
        }
    }

    /// What a NIC takes undone that has a queue somewhere. One that has negotiated anew a moment
    /// ago may take less: its port completes what it is given then.
    pub(crate) fn accepts(&self, slot: PortSlot) -> Accepts {
        let bits = self.accepts.get(slot.0 as usize);
        bits.map_or(Accepts::default(), |bits| {
            decode(bits.load(Ordering::Relaxed))
        })
    }

    /// By the worker that a queue of it comes to.
    pub(crate) fn set_accepts(&self, slot: PortSlot, accepts: Accepts) {
        if let Some(bits) = self.accepts.get(slot.0 as usize) {
            bits.store(encode(accepts), Ordering::Relaxed);
        }
    }

    /// Says whether a queue can be delivered to.
    pub(crate) fn set_on(&self, queue: QueueId, is_on: bool) {
        let bit = 1u64 << queue.pair;
        if let Some(pairs) = self.on.get(queue.slot.0 as usize) {
            // Another worker may be changing another pair's.
            match is_on {
                true => pairs.fetch_or(bit, Ordering::Relaxed),
                false => pairs.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }
}

fn encode(accepts: Accepts) -> u8 {
    let Accepts {
        checksum,
        tso4,
        tso6,
        ecn,
        uso,
    } = accepts;
    let bits = [checksum, tso4, tso6, ecn, uso].into_iter().zip(0..);
    bits.fold(0, |all, (bit, place)| all | u8::from(bit) << place)
}

fn decode(bits: u8) -> Accepts {
    let bit = |place: u8| bits >> place & 1 == 1;
    Accepts {
        checksum: bit(0),
        tso4: bit(1),
        tso6: bit(2),
        ecn: bit(3),
        uso: bit(4),
    }
}

/// Which of the pairs that are on gets a frame: the pair of that number, or else that number modulo
/// how many there are. `on` has one bit at least.
#[inline]
pub(crate) fn pick(on: u64, hint: u32) -> u16 {
    if hint < MAX_PAIRS as u32 && on >> hint & 1 == 1 {
        return hint as u16;
    }
    let mut left = on;
    for _ in 0..hint % on.count_ones().max(1) {
        left &= left - 1;
    }
    left.trailing_zeros() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_pair_if_it_is_on_and_else_by_its_number() {
        for (on, hint, pair) in [
            (0b1, 0, 0),
            (0b1, 7, 0),
            (0b1111, 3, 3),
            (0b1111, 6, 2),
            (0b1010, 3, 3),
            (0b1010, 2, 1),
            (0b1010, 5, 3),
            (1 << 63, u32::MAX, 63),
            (u64::MAX, 63, 63),
            (u64::MAX, 64, 0),
        ] {
            assert_eq!(pick(on, hint), pair, "{hint} of {on:b}");
        }
    }

    #[test]
    fn what_a_nic_takes_is_known_to_all() {
        let routes = Routes::new();
        assert_eq!(routes.accepts(PortSlot(7)), Accepts::default());
        for bits in 0..32 {
            routes.set_accepts(PortSlot(7), decode(bits));
            assert_eq!(encode(routes.accepts(PortSlot(7))), bits);
        }
        assert_eq!(decode(31), Accepts::ALL);
        assert_eq!(routes.accepts(PortSlot(u32::MAX)), Accepts::default());
    }

    #[test]
    fn a_route_is_where_it_was_set() {
        let routes = Routes::new();
        let queue = |slot, pair| QueueId {
            slot: PortSlot(slot),
            pair,
        };
        let last = queue(MAX_SLOTS as u32 - 1, MAX_PAIRS as u16 - 1);
        for queue in [last, queue(3, 0), queue(3, 5)] {
            routes.set_owner(queue, 31);
            routes.set_on(queue, true);
            assert_eq!(QueueId::from_token(queue.token()), queue);
        }
        assert_eq!(
            (routes.on(PortSlot(3)), routes.owner(last)),
            (0b10_0001, 31)
        );
        routes.set_on(queue(3, 0), false);
        assert_eq!(
            (routes.on(PortSlot(3)), routes.on(last.slot)),
            (0b10_0000, 1 << 63)
        );
        assert_eq!(routes.on(PortSlot(u32::MAX)), 0);
        assert!(last.is_possible());
        assert!(
            !queue(MAX_SLOTS as u32, 0).is_possible() && !queue(0, MAX_PAIRS as u16).is_possible()
        );
    }
}
