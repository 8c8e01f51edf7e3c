//! New connections a second: whole ones, from the first SYN to the last ACK.
//!
//! Guest 0 is the client, guest 1 the server: SYN, SYN-ACK, ACK, FIN-ACK, FIN-ACK, ACK: six frames
//! of 60 bytes a connection, no data, every connection a pair of ports that the switch has not
//! seen. Each side answers what has arrived and nothing else. Connections are begun [`BLOCK`] at a
//! time, [`OPEN`] blocks at once, so that the switch always has frames to take. All switches
//! measured keep frames of one direction in order, so that the count of frames tells which have
//! arrived; a frame that is lost ends the measurement with an error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wire::offload::Offload;
use wire::parse::TcpFlags;

use crate::guest::{Guest, pause};
use crate::load::{self, PORTS};
use crate::peers::PeerError;
use crate::{interrupt, rate};

/// Connections that advance together.
const BLOCK: u16 = 64;

/// Blocks that are open at once.
const OPEN: usize = 8;

/// Connections in one window at the most: below every switch's limit, over all windows.
const MOST: u32 = 250_000;

/// Offset of the TCP checksum in an Ethernet/IPv4 frame without IP options.
const CHECKSUM: usize = 50;

/// The steps of a connection: who speaks, flags, sequence and acknowledgement number.
const STEPS: [(usize, TcpFlags, u32, u32); 6] = {
    let fin = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);
    let syn_ack = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
    [
        (0, TcpFlags::SYN, 1000, 0),
        (1, syn_ack, 5000, 1001),
        (0, TcpFlags::ACK, 1001, 5001),
        (0, fin, 1001, 5001),
        (1, fin, 5001, 1002),
        (0, TcpFlags::ACK, 1002, 5002),
    ]
};

/// What is said once a step has arrived. The client acknowledges, and ends the connection in the
/// same breath.
const NEXT: [&[usize]; STEPS.len()] = [&[1], &[2, 3], &[], &[4], &[5], &[]];

/// A frame of every step.
struct Frames([Vec<u8>; STEPS.len()]);

/// What a block of connections says.
#[derive(Clone, Copy)]
struct Words {
    step: usize,
    first: u32,
}

/// One direction: what is to be sent, and what is on its way.
#[derive(Default)]
struct Direction {
    waiting: VecDeque<Words>,
    sent: VecDeque<Words>,
    /// Frames of the first of `sent` that have arrived.
    arrived: u16,
}

/// Connections that are begun and ended while the guests' other traffic rests.
pub struct Course {
    frames: Frames,
    /// Connections begun so far: each is another.
    number: u32,
}

impl Course {
    /// Lets the switch know where guest 1 is.
    pub fn begin(guests: &mut [Guest; 2]) -> Result<Course, PeerError> {
        rate::say(guests, 1, &load::datagram(1, 60)?)?;
        let frames = Frames::new()?;
        for guest in guests.iter_mut() {
            guest.prepare(&frames.0[0], &Offload::default());
        }
        Ok(Course { frames, number: 0 })
    }

    /// Begins connections for a while, ends them all; gives connections a second.
    pub fn window(&mut self, guests: &mut [Guest; 2], window: Duration) -> Result<f64, PeerError> {
        let mut directions = [Direction::default(), Direction::default()];
        let (mut open, mut done, begun) = (0, 0u32, self.number);
        let start = Instant::now();
        let mut last = start;
        loop {
            let now = Instant::now();
            let begin = now - start < window && self.number - begun < MOST;
            while begin && open < OPEN {
                directions[0].waiting.push_back(Words {
                    step: 0,
                    first: self.number,
                });
                self.number += u32::from(BLOCK);
                open += 1;
            }
            if open == 0 {
                return Ok(f64::from(done) / start.elapsed().as_secs_f64());
            }
            let mut moved = false;
            for from in 0..2 {
                moved |= directions[from].send(&mut guests[from], &self.frames);
                let arrived = guests[1 - from].receive();
                moved |= arrived > 0;
                let mut arrived = u32::from(arrived);
                while let Some(words) = directions[from].next_arrived(&mut arrived) {
                    if words.step + 1 == STEPS.len() {
                        done += u32::from(BLOCK);
                        open -= 1;
                    }
                    for &step in NEXT[words.step] {
                        let waiting = &mut directions[STEPS[step].0].waiting;
                        waiting.push_back(Words { step, ..words });
                    }
                }
            }
            if moved {
                last = now;
            } else {
                interrupt::check()?;
                if now - last > Duration::from_secs(1) {
                    return Err(PeerError(format!(
                        "frames of {open} blocks of connections did not arrive"
                    )));
                }
                pause(4);
            }
        }
    }
}

impl Direction {
    /// Sends what waits and has room; true if something was sent.
    fn send(&mut self, guest: &mut Guest, frames: &Frames) -> bool {
        let mut sent = false;
        while let Some(words) = self.waiting.front().copied() {
            let frame = &frames.0[words.step];
            let mut number = words.first;
            let count = guest.offer(BLOCK, |write| {
                write(0, &of_connection(frame, STEPS[words.step].0, number));
                number += 1;
            });
            if count == 0 {
                break;
            }
            self.waiting.pop_front();
            self.sent.push_back(words);
            sent = true;
        }
        sent
    }

    /// The next block that has arrived whole, of `arrived` frames that are not yet accounted for.
    fn next_arrived(&mut self, arrived: &mut u32) -> Option<Words> {
        let missing = u32::from(BLOCK - self.arrived);
        if *arrived < missing {
            self.arrived += *arrived as u16;
            *arrived = 0;
            return None;
        }
        *arrived -= missing;
        self.arrived = 0;
        self.sent.pop_front()
    }
}

impl Frames {
    /// With both ports 0, for [`of_connection`].
    fn new() -> Result<Frames, PeerError> {
        let mut frames: [Vec<u8>; STEPS.len()] = Default::default();
        for (frame, (from, flags, seq, ack)) in frames.iter_mut().zip(STEPS) {
            let segment = load::header(from)?.tcp(0, 0, flags).seq(seq).ack(ack);
            *frame = segment.window(65_535).build();
            frame.resize(60, 0);
        }
        Ok(Frames(frames))
    }
}

/// The frame with the ports of connection `number`, and the checksum that goes with them (RFC
/// 1624).
fn of_connection(frame: &[u8], from: usize, number: u32) -> [u8; 60] {
    let mut out = [0; 60];
    out.copy_from_slice(frame);
    let [client, server] = load::ports(number);
    let (here, there) = if from == 0 {
        (client, server)
    } else {
        (server, client)
    };
    out[PORTS..PORTS + 2].copy_from_slice(&here.to_be_bytes());
    out[PORTS + 2..PORTS + 4].copy_from_slice(&there.to_be_bytes());
    let before = u16::from_be_bytes([out[CHECKSUM], out[CHECKSUM + 1]]);
    let mut sum = u32::from(!before) + u32::from(here) + u32::from(there);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    out[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_a_connection_is_what_the_builder_makes() {
        let frames = Frames::new().unwrap();
        for number in [0, 1, 49_999, 50_000, 6_399_999] {
            let [client, server] = load::ports(number);
            for (frame, (from, flags, seq, ack)) in frames.0.iter().zip(STEPS) {
                let (here, there) = if from == 0 {
                    (client, server)
                } else {
                    (server, client)
                };
                let segment = load::header(from).unwrap().tcp(here, there, flags);
                let mut built = segment.seq(seq).ack(ack).window(65_535).build();
                built.resize(60, 0);
                assert_eq!(of_connection(frame, from, number)[..], built[..]);
            }
        }
    }

    #[test]
    fn blocks_arrive_whole_and_in_order() {
        let mut direction = Direction::default();
        for first in [0, 64] {
            direction.sent.push_back(Words { step: 0, first });
        }
        let mut arrived = 100;
        assert_eq!(direction.next_arrived(&mut arrived).unwrap().first, 0);
        assert!(direction.next_arrived(&mut arrived).is_none());
        let mut arrived = 28;
        assert_eq!(direction.next_arrived(&mut arrived).unwrap().first, 64);
    }
}
