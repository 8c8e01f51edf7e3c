//! Exchanges a second: whole TCP connections, from the first SYN to the last ACK, or datagrams and
//! their answers ([`crate::exchange`]).
//!
//! Guest 0 is the client, guest 1 the server; every exchange has a pair of ports that the switch
//! has not seen. Each side answers what has arrived and nothing else. Exchanges are begun [`BLOCK`]
//! at a time, [`OPEN`] blocks at once, so that the switch always has frames to take. All switches
//! measured keep frames of one direction in order, so that the count of frames tells which have
//! arrived; a frame that is lost ends the measurement with an error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wire::offload::Offload;

use crate::exchange::{Exchange, Kind};
use crate::guest::{Guest, pause};
use crate::load;
use crate::peers::PeerError;
use crate::{interrupt, rate};

/// Exchanges that advance together.
const BLOCK: u16 = 64;

/// Blocks that are open at once.
const OPEN: usize = 8;

/// Exchanges in one window at the most: below every switch's limit, over all windows.
const MOST: u32 = 250_000;

/// What a block of exchanges says.
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

/// Exchanges that are begun and ended while the guests' other traffic rests.
pub struct Course {
    exchange: Exchange,
    /// Exchanges begun so far: each is another.
    number: u32,
}

impl Course {
    /// Lets the switch know where guest 1 is.
    pub fn begin(guests: &mut [Guest; 2], kind: Kind) -> Result<Course, PeerError> {
        rate::say(guests, 1, &load::datagram(1, 60)?)?;
        let exchange = Exchange::new(kind)?;
        for guest in guests.iter_mut() {
            guest.prepare(&exchange.frame(0, 0), &Offload::default());
        }
        Ok(Course {
            exchange,
            number: 0,
        })
    }

    /// Begins exchanges for a while, ends them all; gives exchanges a second.
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
                moved |= directions[from].send(&mut guests[from], &self.exchange);
                let arrived = guests[1 - from].receive();
                moved |= arrived > 0;
                let mut arrived = u32::from(arrived);
                while let Some(words) = directions[from].next_arrived(&mut arrived) {
                    if words.step + 1 == self.exchange.len() {
                        done += u32::from(BLOCK);
                        open -= 1;
                    }
                    for &step in self.exchange.next(words.step) {
                        let waiting = &mut directions[self.exchange.speaker(step)].waiting;
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
                        "frames of {open} blocks of exchanges did not arrive"
                    )));
                }
                pause(4);
            }
        }
    }
}

impl Direction {
    /// Sends what waits and has room; true if something was sent.
    fn send(&mut self, guest: &mut Guest, exchange: &Exchange) -> bool {
        let mut sent = false;
        while let Some(words) = self.waiting.front().copied() {
            let mut number = words.first;
            let count = guest.offer(BLOCK, |write| {
                write(0, &exchange.frame(words.step, number));
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

#[cfg(test)]
mod tests {
    use super::*;

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
