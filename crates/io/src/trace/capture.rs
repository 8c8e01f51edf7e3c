//! Captures: frames for somebody who reads them while they pass, chosen by a filter. A reader that
//! is slow loses frames, which are counted; a worker never waits for it.
//!
//! One [`Capture`] takes frames from several places, each by a [`Tap`] of its own. Its queue has
//! bounds for frames and bytes; the reader takes them from the [`Receiver`] that is made with it.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use wire::bpf::Filter;
use wire::offload::Offload;
use wire::pcapng::Direction;

use crate::frame::Batch;

/// Frames that wait for the reader at most, and their bytes.
pub const WAITING_FRAMES: usize = 4096;
/// See [`WAITING_FRAMES`].
pub const WAITING_BYTES: usize = 8 << 20;
/// Of a queue that captures share, one may fill so much of it: one part in so many.
const SHARE: usize = 4;

/// What it took a worker to offer frames to those who watch: for who is to pay for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Effort {
    /// Steps of filters.
    pub steps: usize,
    /// Copies, of a frame or of its beginning.
    pub copies: usize,
    /// Bytes of these.
    pub bytes: usize,
}

impl Effort {
    /// One copy of so many bytes.
    pub fn copy(bytes: usize) -> Effort {
        Effort {
            steps: 0,
            copies: 1,
            bytes,
        }
    }
}

impl AddAssign for Effort {
    fn add_assign(&mut self, other: Effort) {
        self.steps += other.steps;
        self.copies += other.copies;
        self.bytes += other.bytes;
    }
}

/// Whether a filter wants frame `index` of a batch. Of a long frame the beginning is looked at
/// first; all of it is copied when the filter asks for more.
pub fn wants(filter: &Filter, batch: &Batch, index: usize, effort: &mut Effort) -> bool {
    let frame = &batch.frames()[index];
    let len = frame.len();
    let wants = filter
        .wants_counted(frame.head(), len, &mut effort.steps)
        .or_else(|_| {
            *effort += Effort::copy(len);
            filter.wants_counted(&batch.to_bytes(index), len, &mut effort.steps)
        });
    wants == Ok(true)
}

/// Which frames are caught, and how much of each.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Frames that it says no to are not counted either.
    pub filter: Option<Filter>,
    /// The first bytes of each, so many at the most.
    pub snap_len: usize,
    /// One direction alone, as the NIC or uplink sees it.
    pub direction: Option<Direction>,
    /// Those that are dropped alone.
    pub dropped_only: bool,
    /// Of frames on their way to the NIC those alone that got there.
    pub received_only: bool,
}

/// A frame that was caught.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    /// The number of its [`Tap`].
    pub source: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// As the NIC or uplink sees it.
    pub direction: Direction,
    /// The reason's name when it was not delivered.
    pub dropped: Option<&'static str>,
    /// Bytes of the whole frame.
    pub frame_len: u32,
    /// What its sender left undone: frames are caught as they are in the switch.
    pub offload: Offload,
    /// Its first bytes.
    pub bytes: Box<[u8]>,
}

/// Where frames of captures wait for their reader.
#[derive(Clone, Debug)]
pub struct Queue {
    frames: SyncSender<Caught>,
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    /// A queue, and where its frames come out.
    pub fn new() -> (Queue, Receiver<Caught>) {
        let (frames, receiver) = sync_channel(WAITING_FRAMES);
        let bytes = Arc::default();
        (Queue { frames, bytes }, receiver)
    }

    /// A frame was taken out of the queue whose capture is gone. Of others the capture
    /// [is told](Capture::taken).
    pub fn taken(&self, caught: &Caught) {
        self.bytes.fetch_sub(caught.bytes.len(), Ordering::Relaxed);
    }
}

/// Frames, and their bytes.
#[derive(Debug, Default)]
struct Amount {
    frames: AtomicUsize,
    bytes: AtomicUsize,
}

/// Where taps put frames.
#[derive(Debug)]
pub struct Capture {
    wanted: Wanted,
    queue: Queue,
    /// What waits of it, and how much may: frames and bytes.
    waiting: Amount,
    share: (usize, usize),
    seen: AtomicU64,
    lost: AtomicU64,
    /// Nobody reads any more.
    ended: AtomicBool,
}

/// One place that a capture takes frames from.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The capture.
    pub capture: Arc<Capture>,
    /// Which of its places: the number that its frames have.
    pub source: u32,
}

impl Capture {
    /// A capture, and where its frames come out. Whoever takes one out [says so](Self::taken).
    pub fn new(wanted: Wanted) -> (Arc<Capture>, Receiver<Caught>) {
        let (queue, frames) = Queue::new();
        let share = (WAITING_FRAMES, WAITING_BYTES);
        (Capture::with_share(queue, share, wanted), frames)
    }

    /// A capture whose frames wait in a queue with those of others, and fill a quarter of it at
    /// most: who is much captured takes nobody's room.
    pub fn into_queue(queue: &Queue, wanted: Wanted) -> Arc<Capture> {
        let share = (WAITING_FRAMES / SHARE, WAITING_BYTES / SHARE);
        Capture::with_share(queue.clone(), share, wanted)
    }

    fn with_share(queue: Queue, share: (usize, usize), wanted: Wanted) -> Arc<Capture> {
        Arc::new(Capture {
            wanted,
            queue,
            waiting: Amount::default(),
            share,
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        })
    }

    /// A frame was taken out of the queue.
    pub fn taken(&self, caught: &Caught) {
        self.queue.taken(caught);
        self.waits_no_more(caught.bytes.len());
    }

    fn waits_no_more(&self, bytes: usize) {
        self.waiting.frames.fetch_sub(1, Ordering::Relaxed);
        self.waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A frame that was taken out did not get to where it was for.
    pub fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames that the filter wanted, and how many of them were lost.
    pub fn counts(&self) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.seen), count(&self.lost))
    }

    fn chooses(&self, direction: Direction, dropped: bool) -> bool {
        let wanted = &self.wanted;
        wanted.direction.is_none_or(|one| one == direction)
            && (dropped || !wanted.dropped_only)
            && !(dropped && wanted.received_only && direction == Direction::Inbound)
            && !self.ended.load(Ordering::Relaxed)
    }

    /// True when there is room for so many bytes; false when the frame is lost.
    fn reserve(&self, bytes: usize) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed);
        // A bound, not a balance: two workers may pass it together by a frame.
        let (share_frames, share_bytes) = self.share;
        let fits = self.queue.bytes.load(Ordering::Relaxed) + bytes <= WAITING_BYTES
            && self.waiting.bytes.load(Ordering::Relaxed) + bytes <= share_bytes
            && self.waiting.frames.load(Ordering::Relaxed) < share_frames;
        if fits {
            self.queue.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.waiting.frames.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn put(&self, caught: Caught) {
        let bytes = caught.bytes.len();
        if let Err(error) = self.queue.frames.try_send(caught) {
            self.queue.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.waits_no_more(bytes);
            self.lost.fetch_add(1, Ordering::Relaxed);
            if let TrySendError::Disconnected(_) = error {
                self.ended.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Tap {
    /// Offers frame `index` of a batch as it is now. Never waits. Gives what that took.
    pub fn offer(
        &self,
        direction: Direction,
        batch: &Batch,
        index: usize,
        dropped: Option<&'static str>,
        time_ns: u64,
    ) -> Effort {
        let mut effort = Effort::default();
        let capture = &*self.capture;
        if !capture.chooses(direction, dropped.is_some()) {
            return effort;
        }
        let frame = &batch.frames()[index];
        let (len, snap_len) = (frame.len(), capture.wanted.snap_len);
        if let Some(filter) = &capture.wanted.filter
            && !wants(filter, batch, index, &mut effort)
        {
            return effort;
        }
        if !capture.reserve(len.min(snap_len)) {
            return effort;
        }
        let bytes: Box<[u8]> = match frame.head().get(..snap_len.min(len)) {
            Some(first) => {
                effort += Effort::copy(first.len());
                first.into()
            }
            None => {
                effort += Effort::copy(len);
                let mut bytes = batch.to_bytes(index);
                bytes.truncate(snap_len);
                bytes.into()
            }
        };
        self.caught(direction, dropped, time_ns, (len, frame.offload), bytes);
        effort
    }

    /// Offers a frame that is in no batch.
    pub fn offer_bytes(
        &self,
        direction: Direction,
        frame: &[u8],
        dropped: Option<&'static str>,
        time_ns: u64,
    ) {
        let capture = &*self.capture;
        if !capture.chooses(direction, dropped.is_some()) {
            return;
        }
        let filter = capture.wanted.filter.as_ref();
        if filter.is_some_and(|filter| filter.wants(frame, frame.len()) != Ok(true)) {
            return;
        }
        let bytes = &frame[..frame.len().min(capture.wanted.snap_len)];
        if capture.reserve(bytes.len()) {
            let whole = (frame.len(), Offload::default());
            self.caught(direction, dropped, time_ns, whole, bytes.into());
        }
    }

    fn caught(
        &self,
        direction: Direction,
        dropped: Option<&'static str>,
        time_ns: u64,
        (len, offload): (usize, Offload),
        bytes: Box<[u8]>,
    ) {
        self.capture.put(Caught {
            source: self.source,
            time_ns,
            direction,
            dropped,
            frame_len: len as u32,
            offload,
            bytes,
        });
    }
}

#[cfg(test)]
mod tests {
    use wire::bpf::Instruction;

    use super::*;

    fn all() -> Wanted {
        Wanted {
            filter: None,
            snap_len: 65_535,
            direction: None,
            dropped_only: false,
            received_only: false,
        }
    }

    #[test]
    fn a_slow_reader_loses_frames_and_a_gone_one_ends_it() {
        let (capture, frames) = Capture::new(all());
        let tap = Tap {
            capture: capture.clone(),
            source: 3,
        };
        let offer = |len: usize| tap.offer_bytes(Direction::Inbound, &vec![7; len], None, 1);
        for _ in 0..WAITING_FRAMES + 10 {
            offer(60);
        }
        assert_eq!(capture.counts(), (WAITING_FRAMES as u64 + 10, 10));
        for caught in frames.try_iter() {
            capture.taken(&caught);
            assert_eq!((caught.source, caught.frame_len), (3, 60));
        }
        for _ in 0..200 {
            offer(65_000);
        }
        let fits = WAITING_BYTES / 65_000;
        assert_eq!(frames.try_iter().count(), fits);
        assert_eq!(capture.counts().1, 10 + 200 - fits as u64);
        drop(frames);
        let (capture, frames) = Capture::new(all());
        drop(frames);
        let tap = Tap { capture, source: 0 };
        for _ in 0..3 {
            tap.offer_bytes(Direction::Inbound, &[7; 60], None, 1);
        }
        // The first one found nobody; then it is over.
        assert_eq!(tap.capture.counts(), (1, 1));
    }

    #[test]
    fn one_capture_leaves_the_others_room() {
        let (queue, frames) = Queue::new();
        let taps = [0, 1].map(|source| Tap {
            capture: Capture::into_queue(&queue, all()),
            source,
        });
        let offer = |tap: &Tap, len: usize| {
            tap.offer_bytes(Direction::Inbound, &vec![7; len], None, 1);
        };
        let lost = |tap: &Tap| tap.capture.counts().1;
        for (len, share) in [
            (60, WAITING_FRAMES / SHARE),
            (65_000, WAITING_BYTES / SHARE / 65_000),
        ] {
            let before = lost(&taps[0]);
            for _ in 0..share + 5 {
                offer(&taps[0], len);
            }
            offer(&taps[1], len);
            assert_eq!([lost(&taps[0]) - before, lost(&taps[1])], [5, 0]);
            let caught: Vec<_> = frames.try_iter().collect();
            assert_eq!(caught.len(), share + 1);
            for caught in caught {
                taps[caught.source as usize].capture.taken(&caught);
            }
        }
    }

    /// Divides until the end, which is behind the head of a frame, and wants nothing.
    fn no_to_long_frames(divisions: usize) -> Filter {
        let one = |code, k| Instruction {
            code,
            jt: 0,
            jf: 0,
            k,
        };
        let mut program = vec![one(0x01, 3)];
        program.extend(vec![one(0x3c, 0); divisions]);
        program.extend([one(0x30, 299), one(0x06, 0)]);
        Filter::new(&program).unwrap()
    }

    #[test]
    fn what_a_frame_took_is_told_whether_it_is_caught_or_not() {
        let mut batch = Batch::new();
        let long = batch.push_bytes(&[7; 300], Offload::default()).unwrap();
        let short = batch.push_bytes(&[7; 60], Offload::default()).unwrap();
        let took = |wanted: Wanted, index| {
            let (capture, _frames) = Capture::new(wanted);
            let tap = Tap { capture, source: 0 };
            tap.offer(Direction::Outbound, &batch, index, None, 1)
        };
        let filtered = Wanted {
            filter: Some(no_to_long_frames(10)),
            ..all()
        };
        // Two runs, each as far as it comes, and a copy in between.
        let expected = Effort {
            steps: (1 + 40 + 1) + (1 + 40 + 2),
            ..Effort::copy(300)
        };
        assert_eq!(took(filtered.clone(), long), expected);
        let expected = Effort {
            steps: 1 + 40 + 1,
            ..Effort::default()
        };
        assert_eq!(took(filtered, short), expected);
        assert_eq!(took(all(), long), Effort::copy(300));
        let first = Wanted {
            snap_len: 20,
            ..all()
        };
        assert_eq!(took(first, long), Effort::copy(20));
        let other_direction = Wanted {
            direction: Some(Direction::Inbound),
            ..all()
        };
        assert_eq!(took(other_direction, long), Effort::default());
    }

    #[test]
    fn what_is_not_wanted_is_not_counted() {
        for (wanted, caught) in [
            (all(), 4),
            (
                Wanted {
                    direction: Some(Direction::Outbound),
                    ..all()
                },
                2,
            ),
            (
                Wanted {
                    dropped_only: true,
                    ..all()
                },
                2,
            ),
            (
                Wanted {
                    received_only: true,
                    ..all()
                },
                3,
            ),
        ] {
            let (capture, frames) = Capture::new(Wanted {
                snap_len: 20,
                ..wanted
            });
            let tap = Tap { capture, source: 0 };
            for direction in [Direction::Inbound, Direction::Outbound] {
                for dropped in [None, Some("mac_spoofed")] {
                    tap.offer_bytes(direction, &[7; 60], dropped, 1);
                }
            }
            assert_eq!(tap.capture.counts(), (caught, 0));
            assert!(frames.try_iter().all(|caught| caught.bytes.len() == 20));
        }
    }
}
