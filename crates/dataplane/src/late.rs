//! Frames of NICs that are judged in the next turns, since to ask the rules about them would take
//! longer than a turn may ([`Searches`]).
//!
//! A frame waits as a private copy: guest memory is not pinned for it, and what is judged is what
//! is sent. Nothing is received of its NIC meanwhile, so that frames keep their order, but for a
//! queue of another worker's. With it is written for whom it was not judged yet; others may have
//! got it. It is judged by the rules that are in force then.
//!
//! Each worker has its own. They are bounded in frames and bytes, for a NIC as well; what there is
//! no room for is dropped.
//!
//! [`Searches`]: crate::searches::Searches

use std::collections::VecDeque;

use wire::offload::Offload;

use crate::fragments::{DatagramKey, Lent};
use crate::ids::{PortSlot, PortUid};
use crate::overlay::Towards;
use crate::queue::QueueId;

/// What waits with a worker at the most, and of one NIC: of a batch, and the fragments that one of
/// its frames was waited for by.
const MOST: Room = Room {
    frames: 4096,
    bytes: 16 << 20,
};
const MOST_PER_NIC: Room = Room {
    frames: 128,
    bytes: MOST.bytes / 16,
};

/// A frame that waits.
pub(crate) struct LateFrame {
    pub uid: PortUid,
    /// The epoch that it came under, as [`View::epoch_mark`](crate::view::View::epoch_mark) has it.
    pub epoch: u32,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    /// It is a datagram's first fragment.
    pub first_of: Option<DatagramKey>,
    /// A later fragment: what its datagram's first one said of layer 4.
    pub lent: Option<Lent>,
    /// The NIC's trace has it already.
    pub traced: bool,
    /// It is for many, and others may have got it.
    pub flooded: bool,
    pub targets: Vec<LateTarget>,
}

/// Whom it is for.
#[derive(Clone, Copy)]
pub(crate) struct LateTarget {
    pub slot: PortSlot,
    pub uid: PortUid,
    pub towards: Towards,
}

/// The frames of one NIC, in their order.
pub(crate) struct LateSender {
    /// The queue that they came from.
    pub from: QueueId,
    frames: VecDeque<LateFrame>,
    taken: Room,
}

#[derive(Clone, Copy, Default)]
struct Room {
    frames: usize,
    bytes: usize,
}

/// All that waits with a worker.
#[derive(Default)]
pub(crate) struct Late {
    /// The next one first.
    senders: VecDeque<LateSender>,
    taken: Room,
}

impl Late {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    /// Frames of who pays for this queue wait.
    #[inline]
    pub(crate) fn has(&self, from: QueueId) -> bool {
        !self.senders.is_empty() && self.of(from).is_some()
    }

    fn of(&self, from: QueueId) -> Option<usize> {
        let payer = from.payer();
        let mut senders = self.senders.iter();
        senders.position(|sender| sender.from.payer() == payer)
    }

    /// How many NICs have frames here.
    pub(crate) fn senders(&self) -> usize {
        self.senders.len()
    }

    /// Has a frame wait behind the others of its NIC. False: there is no room.
    pub(crate) fn hold(&mut self, from: QueueId, frame: LateFrame) -> bool {
        let room = frame.room();
        let own = self.of(from);
        let taken = own.map_or(Room::default(), |at| self.senders[at].taken);
        if !taken.plus(room).fits(MOST_PER_NIC) || !self.taken.plus(room).fits(MOST) {
            return false;
        }
        self.taken = self.taken.plus(room);
        match own {
            Some(at) => self.senders[at].add(frame),
            None => {
                let mut sender = LateSender {
                    from,
                    frames: VecDeque::new(),
                    taken: Room::default(),
                };
                sender.add(frame);
                self.senders.push_back(sender);
            }
        }
        true
    }

    /// The NIC that is next, to be [put back](Self::put_back).
    pub(crate) fn take(&mut self) -> Option<LateSender> {
        self.senders.pop_front()
    }

    /// The next frame of a NIC that was taken out.
    pub(crate) fn next_of(&mut self, sender: &mut LateSender) -> Option<LateFrame> {
        let frame = sender.frames.pop_front()?;
        let room = frame.room();
        sender.taken = sender.taken.minus(room);
        self.taken = self.taken.minus(room);
        Some(frame)
    }

    /// It is the last one now, if it has frames left.
    pub(crate) fn put_back(&mut self, sender: LateSender) {
        if !sender.frames.is_empty() {
            self.senders.push_back(sender);
        }
    }
}

impl LateSender {
    fn add(&mut self, frame: LateFrame) {
        self.taken = self.taken.plus(frame.room());
        self.frames.push_back(frame);
    }
}

impl LateFrame {
    fn room(&self) -> Room {
        Room {
            frames: 1,
            bytes: self.bytes.len() + self.targets.len() * size_of::<LateTarget>(),
        }
    }
}

impl Room {
    fn plus(self, other: Room) -> Room {
        Room {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
        }
    }

    fn minus(self, other: Room) -> Room {
        Room {
            frames: self.frames - other.frames,
            bytes: self.bytes - other.bytes,
        }
    }

    fn fits(self, most: Room) -> bool {
        self.frames <= most.frames && self.bytes <= most.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> LateFrame {
        LateFrame {
            uid: PortUid(1),
            epoch: 1,
            bytes: vec![0; bytes],
            offload: Offload::default(),
            first_of: None,
            lent: None,
            traced: false,
            flooded: false,
            targets: Vec::new(),
        }
    }

    #[test]
    fn what_waits_is_bounded_and_nobody_takes_all_of_it() {
        let mut late = Late::default();
        let large = 60 * 1024;
        let mut nics = 0;
        while late.hold(PortSlot(nics).into(), frame(large)) {
            let own = 1
                + (1..)
                    .take_while(|_| late.hold(PortSlot(nics).into(), frame(large)))
                    .count();
            assert!((1..=MOST_PER_NIC.bytes / large).contains(&own));
            nics += 1;
        }
        assert!((16..=17).contains(&nics), "{nics}");
        // Each in turn, and none is left.
        let mut order = vec![];
        while let Some(mut sender) = late.take() {
            order.push(sender.from.slot.0);
            assert!(late.next_of(&mut sender).is_some());
            late.put_back(sender);
        }
        assert!(order[..nics as usize].iter().copied().eq(0..nics));
        assert!(late.is_empty() && late.taken.frames == 0 && late.taken.bytes == 0);
        let count = (0..1000).take_while(|_| late.hold(PortSlot(0).into(), frame(60)));
        assert_eq!(count.count(), MOST_PER_NIC.frames);
    }
}
