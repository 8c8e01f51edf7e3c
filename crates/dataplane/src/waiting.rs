//! Frames for other hosts whose next hop is not known yet: they wait for it, briefly, as the
//! kernel's own do behind a neighbour that is being resolved, so that the first frames between two
//! hosts are not lost.
//!
//! A frame waits judged, as a private copy: guest memory is not pinned for it. When the underlay
//! knows the next hop the frame is sent by it at once. Each worker has a table of its own. It is
//! bounded in frames, bytes and hosts waited for, a quarter for one NIC at most and half for one
//! network; what comes when it is full is dropped, since the first frames are those that open
//! connections.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use wire::offload::Offload;

use crate::fragments::Lent;
use crate::ids::{NetworkIdx, PortSlot, PortUid};
use crate::queue::QueueId;
use crate::underlay::Underlay;

/// How long a frame waits: as long as the kernel asks for a neighbour (three times, a second each).
pub(crate) const WAIT_MS: u32 = 3_000;

/// What waits with a worker at most, for one network, and for one NIC.
const MOST: Room = Room {
    frames: 512,
    bytes: 2 << 20,
    hosts: 4096,
};
const MOST_PER_NETWORK: Room = Room {
    frames: MOST.frames / 2,
    bytes: MOST.bytes / 2,
    hosts: MOST.hosts / 2,
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

/// A frame of a NIC that has passed all rules, or one of ours in its name.
pub(crate) struct Judged {
    pub from: QueueId,
    pub uid: PortUid,
    pub network: NetworkIdx,
    /// Under this epoch, as [`View::epoch_mark`](crate::view::View::epoch_mark) has it.
    pub epoch: u32,
    pub bytes: Vec<u8>,
    pub offload: Offload,
    /// It is for all of its network, and those that are here have got it.
    pub flooded: bool,
    /// A later fragment: what its datagram's first one said of layer 4.
    pub lent: Option<Lent>,
    /// It is ours, and no rules are asked.
    pub ours: bool,
}

/// A frame that waits.
struct Frame {
    judged: Arc<Judged>,
    /// The NIC's trace has it already.
    traced: bool,
    towards: Vec<Sought>,
    since_ms: u32,
}

/// A host that a frame waits for.
#[derive(Clone, Copy)]
pub(crate) struct Sought {
    pub host: IpAddr,
    /// Somebody was asked for it.
    pub told: bool,
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
    untold: bool,
}

impl Waiting {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// There is room for a frame of this NIC in this network of so many bytes, for so many hosts.
    pub(crate) fn has_room(
        &self,
        nic: PortSlot,
        network: NetworkIdx,
        bytes: usize,
        hosts: usize,
    ) -> bool {
        let more = Room {
            frames: 1,
            bytes,
            hosts,
        };
        let share = |is_own: &dyn Fn(&Judged) -> bool| {
            let own = self.frames.iter().filter(|frame| is_own(&frame.judged));
            own.fold(more, |sum, frame| sum.plus(frame.room()))
        };
        self.taken.plus(more).fits(MOST)
            && share(&|judged| judged.from.slot == nic).fits(MOST_PER_NIC)
            && share(&|judged| judged.network == network).fits(MOST_PER_NETWORK)
    }

    /// Holds a frame until these hosts can be sent to. There [is room](Self::has_room).
    pub(crate) fn hold(&mut self, judged: Judged, traced: bool, towards: Vec<Sought>, now_ms: u32) {
        self.untold |= towards.iter().any(|sought| !sought.told);
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

    /// The frame that was held last is ours, if one was since so many had [waited](Self::waited).
    pub(crate) fn is_ours_since(&mut self, waited: u64) {
        if self.waited != waited
            && let Some(frame) = self.frames.back_mut()
            // Nobody has it besides: it was not released yet.
            && let Some(judged) = Arc::get_mut(&mut frame.judged)
        {
            judged.ours = true;
        }
    }

    /// Somebody is waited for whom nobody was asked for.
    #[inline]
    pub(crate) fn has_untold(&self) -> bool {
        self.untold
    }

    /// Asks for those whom nobody was asked for yet, until `ask` says that it takes no more. The
    /// next call goes on from there; a host may be named several times.
    pub(crate) fn ask(&mut self, mut ask: impl FnMut(IpAddr) -> bool) {
        let all = self.frames.iter_mut().flat_map(|frame| &mut frame.towards);
        self.untold = false;
        for sought in all.filter(|sought| !sought.told) {
            sought.told = ask(sought.host);
            if !sought.told {
                self.untold = true;
                return;
            }
        }
    }

    /// What the underlay has an answer for, in the order in which it came. A frame that waits for
    /// others as well stays for those.
    pub(crate) fn answered(&mut self, underlay: &Underlay) -> Vec<Released> {
        let mut released = Vec::new();
        for frame in &mut self.frames {
            let is_known = |sought: &mut Sought| underlay.knows(sought.host);
            let known = frame.towards.extract_if(.., is_known);
            let towards: Vec<IpAddr> = known.map(|sought| sought.host).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wanted::{WANTED_MAX, Wanted};

    #[test]
    fn all_who_are_waited_for_are_asked_for_in_the_end() {
        let (mut waiting, wanted) = (Waiting::default(), Wanted::default());
        let host = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        for nic in 0..4 {
            let judged = Judged {
                from: PortSlot(nic).into(),
                uid: PortUid(nic),
                network: NetworkIdx(nic),
                epoch: 1,
                bytes: vec![0; 60],
                offload: Offload::default(),
                flooded: true,
                lent: None,
                ours: false,
            };
            let hosts = (0..1000).map(|n| Sought {
                host: host(nic * 1000 + n),
                told: false,
            });
            waiting.hold(judged, false, hosts.collect(), 0);
        }
        let mut told = Vec::new();
        for _ in 0..4 {
            assert!(waiting.has_untold());
            waiting.ask(|host| wanted.note(host));
            let some = wanted.take();
            assert!(some.len() <= WANTED_MAX);
            told.extend(some);
        }
        assert!(!waiting.has_untold());
        assert!(told.into_iter().eq((0..4000).map(host)), "each once");
    }
}
