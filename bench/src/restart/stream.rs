//! Frames with numbers from one guest to another: when they come, which never do, which come twice.

use std::ops::AddAssign;
use std::time::Duration;

use wire::build;

use crate::peers::{PeerError, guest_ip, guest_mac};

/// Where the number is in a frame: behind Ethernet, IPv4 and UDP.
pub const NUMBER: usize = 42;

/// Bytes of a frame, without FCS.
const FRAME: usize = 60;

/// What is behind it.
const FILL: [u8; FRAME - NUMBER - 4] = [0x5a; FRAME - NUMBER - 4];

/// The number of a frame of a stream; `None` of other frames.
pub fn number(frame: &[u8]) -> Option<u32> {
    let (number, fill) = frame.get(NUMBER..)?.split_first_chunk()?;
    (*fill == FILL).then_some(u32::from_be_bytes(*number))
}

/// One direction between two guests.
pub struct Stream {
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    frame: Vec<u8>,
    /// The number of the next frame.
    next: u32,
    /// Since [`begin`](Stream::begin): the number of the first frame, how often each has come, and
    /// when one came.
    first: u32,
    came: Vec<u8>,
    arrivals: Vec<Duration>,
}

/// What became of the frames around an event.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fate {
    /// Frames that were sent.
    pub sent: u64,
    /// Of those, how many never came.
    pub lost: u64,
    /// And how many came more than once.
    pub twice: u64,
}

impl AddAssign for Fate {
    fn add_assign(&mut self, other: Fate) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.twice += other.twice;
    }
}

impl Stream {
    /// From a guest to another, to a port that the rules let in.
    pub fn new(from: usize, to: usize) -> Result<Stream, PeerError> {
        let mut frame = build::frame(guest_mac(from)?, guest_mac(to)?)
            .ip(guest_ip(from), guest_ip(to))
            .udp(9_999, crate::TRAFFIC_PORT)
            .payload(&[&[0; 4][..], &FILL[..]].concat())
            .build();
        // No checksum (RFC 768), so that the number can be written alone.
        frame[40..42].fill(0);
        Ok(Stream {
            from,
            to,
            frame,
            next: 0,
            first: 0,
            came: Vec::new(),
            arrivals: Vec::new(),
        })
    }

    /// The next frame, which counts once it is [`sent`](Stream::sent).
    pub fn frame(&mut self) -> &[u8] {
        self.frame[NUMBER..NUMBER + 4].copy_from_slice(&self.next.to_be_bytes());
        &self.frame
    }

    /// The frame was taken.
    pub fn sent(&mut self) {
        self.next += 1;
        self.came.push(0);
    }

    /// A frame with this number came, so long after [`begin`](Stream::begin).
    pub fn came(&mut self, number: u32, at: Duration) {
        let index = number.checked_sub(self.first);
        // What was sent before counts for nothing.
        if let Some(times) = index.and_then(|index| self.came.get_mut(index as usize)) {
            *times = times.saturating_add(1);
            self.arrivals.push(at);
        }
    }

    /// Counts anew.
    pub fn begin(&mut self) {
        self.first = self.next;
        self.came.clear();
        self.arrivals.clear();
    }

    /// Are there `count` frames that came after `at`?
    pub fn goes_on(&self, at: Duration, count: usize) -> bool {
        let back = self.arrivals.iter().rev();
        back.take(count).filter(|came| **came > at).count() == count
    }

    /// Has every frame come?
    pub fn is_whole(&self) -> bool {
        self.came.iter().all(|times| *times > 0)
    }

    /// See [`blackout`].
    pub fn blackout(&self) -> Option<Duration> {
        blackout(&self.arrivals)
    }

    /// What became of the frames.
    pub fn fate(&self) -> Fate {
        let count =
            |is: fn(u8) -> bool| self.came.iter().filter(|times| is(**times)).count() as u64;
        Fate {
            sent: self.came.len() as u64,
            lost: count(|times| times == 0),
            twice: count(|times| times > 1),
        }
    }
}

/// The longest time between two arrivals, without the usual one, which is their median. `None` of
/// fewer than three: nothing is usual then.
pub fn blackout(arrivals: &[Duration]) -> Option<Duration> {
    let mut between: Vec<Duration> = arrivals
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect();
    between.sort();
    if between.len() < 2 {
        return None;
    }
    between
        .last()
        .map(|longest| *longest - between[between.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_blackout_is_what_is_longer_than_usual() {
        assert_eq!(blackout(&[]), None);
        assert_eq!(blackout(&[at(0), at(100)]), None);
        let steady: Vec<Duration> = (0..100).map(|n| at(n * 100)).collect();
        assert_eq!(blackout(&steady), Some(Duration::ZERO));
        // Nothing for 30 ms, in which frames wait and come together at its end.
        let before = (0..100).map(|n| at(n * 100));
        let together = (0..60).map(|_| at(9_900 + 30_000));
        let after = (1..100).map(|n| at(39_900 + n * 100));
        let seen: Vec<Duration> = before.chain(together).chain(after).collect();
        assert_eq!(blackout(&seen), Some(at(29_900)));
    }

    #[test]
    fn each_frame_has_its_fate() {
        let mut stream = Stream::new(0, 1).unwrap();
        assert_eq!(stream.frame().len(), FRAME);
        stream.sent();
        stream.begin();
        for _ in 0..5 {
            stream.frame();
            stream.sent();
        }
        // Number 0 was sent before; 9 was never sent.
        for (number, us) in [(0, 5), (1, 10), (2, 20), (2, 21), (4, 40), (9, 50)] {
            stream.came(number, at(us));
        }
        let fate = Fate {
            sent: 5,
            lost: 2,
            twice: 1,
        };
        assert_eq!(stream.fate(), fate);
        assert!(!stream.is_whole());
        assert!(stream.goes_on(at(15), 3) && !stream.goes_on(at(20), 3));
        stream.came(3, at(60));
        stream.came(5, at(61));
        assert!(stream.is_whole());
    }

    #[test]
    fn a_frame_of_a_stream_says_its_number() {
        let mut stream = Stream::new(2, 3).unwrap();
        for _ in 0..0x0102 {
            stream.sent();
        }
        let mut frame = stream.frame().to_vec();
        assert_eq!(number(&frame), Some(0x0102));
        assert_eq!(number(&frame[..FRAME - 1]), None);
        frame[FRAME - 1] = 0;
        assert_eq!(number(&frame), None);
    }
}
