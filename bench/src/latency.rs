//! Round trips: guest 0 sends, guest 1 answers, guest 0 has the answer.
//!
//! Times are taken from before the available index is raised to after the used index was seen, by
//! one thread that plays both guests: the wait of a real guest for its interrupt is not in them.

use std::time::{Duration, Instant};

use wire::offload::Offload;

use crate::guest::Guest;
use crate::load;
use crate::peers::PeerError;
use crate::{interrupt, rate};

/// A frame that has not come after so long is lost.
const LOST: Duration = Duration::from_secs(1);

/// When the driver was kept from its core for so many frames, it does not make up for them.
const LATE: f64 = 256.0;

/// Bytes of every frame, without FCS.
const FRAME: usize = 60;

/// Seconds of the round trips within `duration`, one frame in flight.
pub fn alone(guests: &mut [Guest; 2], duration: Duration) -> Result<Vec<f64>, PeerError> {
    let mut times = Vec::new();
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let start = Instant::now();
        for from in 0..2 {
            guests[from].send(1, |_| ());
            arrival(&mut guests[1 - from], start)?;
        }
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// Seconds of the round trips while guest 0 sends `rate` frames a second to guest 1: each is timed
/// that is sent when the answer to the one before has come. Frames arrive in order, so their number
/// tells which have.
pub fn loaded(
    guests: &mut [Guest; 2],
    rate: f64,
    duration: Duration,
) -> Result<Vec<f64>, PeerError> {
    let mut times = Vec::new();
    let mut start = Instant::now();
    let end = start + duration;
    let (mut sent, mut arrived) = (0u64, 0u64);
    // The number of the frame that is timed, and when it left; whether guest 1 has answered.
    let mut timed: Option<(u64, Instant)> = None;
    let mut answered = false;
    loop {
        let now = Instant::now();
        let due = (now - start).as_secs_f64() * rate;
        let late = due - sent as f64;
        if late > LATE {
            start += Duration::from_secs_f64((late - LATE) / rate);
        }
        let count = guests[0].send(late.clamp(0.0, LATE) as u16, |_| ());
        sent += u64::from(count);
        if count > 0 && timed.is_none() {
            timed = Some((sent, now));
            answered = false;
        }
        arrived += u64::from(guests[1].receive());
        let Some((number, left)) = timed else {
            if now > end + LOST {
                return Err(PeerError("the switch takes no frames".to_owned()));
            }
            continue;
        };
        if !answered && arrived >= number {
            guests[1].send(1, |_| ());
            answered = true;
        }
        if answered && guests[0].receive() > 0 {
            times.push(left.elapsed().as_secs_f64());
            timed = None;
            interrupt::check()?;
            if now > end {
                break;
            }
        }
        if now - left > LOST {
            return Err(PeerError(format!(
                "frame {number} or its answer did not arrive"
            )));
        }
    }
    rate::drain(guests)?;
    Ok(times)
}

/// Seconds from guest 0 to guest 1 of `count` frames, each after a quiet time: a switch that sleeps
/// is woken.
pub fn after_quiet(
    guests: &mut [Guest; 2],
    count: usize,
    quiet: Duration,
) -> Result<Vec<f64>, PeerError> {
    let mut times = Vec::new();
    for _ in 0..count {
        interrupt::rest(quiet)?;
        let start = Instant::now();
        guests[0].send(1, |_| ());
        arrival(&mut guests[1], start)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// What comes before the others: both guests' buffers hold their side of one conversation, which
/// the switch knows.
pub fn begin(guests: &mut [Guest; 2]) -> Result<(), PeerError> {
    for from in [1, 0, 1, 0] {
        rate::say(guests, from, &load::datagram(from, FRAME)?)?;
    }
    for (from, guest) in guests.iter_mut().enumerate() {
        guest.prepare(&load::datagram(from, FRAME)?, &Offload::default());
    }
    Ok(())
}

/// Waits for one frame.
fn arrival(guest: &mut Guest, since: Instant) -> Result<(), PeerError> {
    let mut polls = 0u32;
    while guest.receive() == 0 {
        polls += 1;
        if polls.is_multiple_of(1024) {
            interrupt::check()?;
            if since.elapsed() > LOST {
                return Err(PeerError("a frame did not arrive".to_owned()));
            }
        }
    }
    Ok(())
}
