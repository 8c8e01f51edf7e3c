//! Frames for other hosts whose next hop is not known yet: they wait for it, briefly, as the
//! kernel's own do behind a neighbour that is being resolved, so that the first frames between two
//! hosts are not lost.
//!
//! A frame waits judged, as a private copy: guest memory is not pinned for it. When the underlay
//! knows the next hop the frame is sent by it at once. Each worker has a table of its own. It is
//! bounded in frames, bytes and hosts waited for, a quarter for one NIC at most; what comes when it
//! is full is dropped, since the first frames are those that open connections.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use wire::offload::Offload;

use crate::queue::QueueId;
use crate::snapshot::{PortSlot, PortUid};
use crate::underlay::Underlay;

/// How long a frame waits: as long as the kernel asks for a neighbour (three times, a second each).
pub(crate) const WAIT_MS: u32 = 3_000;

/// What waits with a worker at most, and for one NIC.
const MOST: Room = Room {
    frames: 512,
    bytes: 2 << 20,
    hosts: 4096,
};
const MOST_PER_NIC: Room = Room {
    frames: MOST.frames / 4,
    bytes: MOST.bytes / 4,
    hosts: MOST.hosts / 4,
};

/// What frames take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Room {
    frames: usize,
    bytes: usize,
    /// Hosts, counted for each frame that waits for them.
    hosts: usize,
}

/// A frame of a NIC that has passed all rules.
pub(crate) struct Judged {
    pub from: QueueId,
    pub uid: PortUid,
    /// Under this epoch, as [`View::epoch_mark`](crate::view::View::epoch_mark) has it.
    pub epoch: u32,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    /// It is for all of its network, and those that are here have got it.
    pub flooded: bool,
}

/// A frame that waits.
struct Frame {
    judged: Arc<Judged>,
    /// The NIC's trace has it already.
    traced: bool,
    towards: Vec<IpAddr>,
    since_ms: u32,
}

/// A frame whose waiting is over.
pub(crate) struct Released {
    pub judged: Arc<Judged>,
    pub traced: bool,
    /// By now it can be sent to these, or known that they cannot be reached. None: it has waited
    /// for too long.
    pub towards: Vec<IpAddr>,
}

#[derive(Default)]
pub(crate) struct Waiting {
    /// Oldest first.
    frames: VecDeque<Frame>,
    taken: Room,
    /// Frames that have waited since the worker began.
    pub waited: u64,
    /// Somebody is waited for whom nobody was asked for: to be told again.
    pub untold: bool,
}

impl Waiting {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// There is room for a frame of this NIC of so many bytes, for so many hosts.
    pub(crate) fn has_room(&self, nic: PortSlot, bytes: usize, hosts: usize) -> bool {
        let more = Room {
            frames: 1,
            bytes,
            hosts,
        };
        let share = || {
            let own = self
                .frames
                .iter()
                .filter(|frame| frame.judged.from.slot == nic);
            own.fold(Room::default(), |sum, frame| sum.plus(frame.room()))
        };
        self.taken.plus(more).fits(MOST) && share().plus(more).fits(MOST_PER_NIC)
    }

    /// Holds a frame until these hosts can be sent to. There [is room](Self::has_room).
    pub(crate) fn hold(&mut self, judged: Judged, traced: bool, towards: Vec<IpAddr>, now_ms: u32) {
        let frame = Frame {
            judged: Arc::new(judged),
            traced,
            towards,
            since_ms: now_ms,
        };
        self.taken = self.taken.plus(frame.room());
        self.waited += 1;
        self.frames.push_back(frame);
    }

    /// Whom frames wait for; a host may be named several times.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.frames
            .iter()
            .flat_map(|frame| frame.towards.iter().copied())
    }

    /// What the underlay has an answer for, in the order in which it came. A frame that waits for
    /// others as well stays for those.
    pub(crate) fn answered(&mut self, underlay: &Underlay) -> Vec<Released> {
        let mut released = Vec::new();
        for frame in &mut self.frames {
            let is_known = |host: &mut IpAddr| underlay.knows(*host);
            let towards: Vec<IpAddr> = frame.towards.extract_if(.., is_known).collect();
            if !towards.is_empty() {
                released.push(Released {
                    judged: frame.judged.clone(),
                    traced: std::mem::replace(&mut frame.traced, true),
                    towards,
                });
            }
        }
        if !released.is_empty() {
            self.frames.retain(|frame| !frame.towards.is_empty());
            self.count();
        }
        released
    }

    /// What has waited for too long.
    pub(crate) fn overdue(&mut self, now_ms: u32) -> Vec<Released> {
        let is_late = |frame: &Frame| now_ms.wrapping_sub(frame.since_ms) >= WAIT_MS;
        let late = self
            .frames
            .iter()
            .take_while(|frame| is_late(frame))
            .count();
        let released = self.frames.drain(..late).map(|frame| Released {
            judged: frame.judged,
            traced: frame.traced,
            towards: Vec::new(),
        });
        let released = released.collect();
        if late > 0 {
            self.count();
        }
        released
    }

    /// In how many milliseconds the next one will have waited for too long.
    pub(crate) fn next_overdue_ms(&self, now_ms: u32) -> Option<u32> {
        let front = self.frames.front()?;
        Some(WAIT_MS.saturating_sub(now_ms.wrapping_sub(front.since_ms)))
    }

    fn count(&mut self) {
        let all = self.frames.iter();
        self.taken = all.fold(Room::default(), |sum, frame| sum.plus(frame.room()));
    }
}

impl Frame {
    fn room(&self) -> Room {
        Room {
            frames: 1,
            bytes: self.judged.bytes.len(),
            hosts: self.towards.len(),
        }
    }
}

impl Room {
    fn plus(self, other: Room) -> Room {
        Room {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            hosts: self.hosts + other.hosts,
        }
    }

    fn fits(self, most: Room) -> bool {
        self.frames <= most.frames && self.bytes <= most.bytes && self.hosts <= most.hosts
    }
}
