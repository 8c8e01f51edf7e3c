//! Frames a second: as many from guest 0 to guest 1 as the switch takes, counted where they arrive.

use std::time::{Duration, Instant};

use wire::offload::Offload;

use crate::guest::{Guest, pause};
use crate::interrupt;
use crate::load::{self, Load, Turns};
use crate::peers::PeerError;

/// Frames that the driver moves at a time: a few batches of a switch, and a quarter of the ring at
/// the most.
const CHUNK: u16 = 256;

/// Pauses between polls that find nothing, some microseconds: a poll takes a cache line from the
/// switch, and a chunk does not come sooner.
const GAP: u32 = 200;

/// How long a switch may take until it forwards: OVS NORMAL waits for its main thread to see the
/// links come up, which took more than 20 seconds on a machine that was busy otherwise.
const PATIENCE: Duration = Duration::from_secs(45);

/// Windows that one measurement is cut into, each a sample of its own.
pub const WINDOWS: u32 = 3;

/// Measures a load: frames a second in each of [`WINDOWS`] windows that last `duration` together.
pub fn measure(
    guests: &mut [Guest; 2],
    load: Load,
    duration: Duration,
) -> Result<Vec<f64>, PeerError> {
    let mut turns = begin(guests, load)?;
    let window = duration / WINDOWS;
    let rates = (0..WINDOWS).map(|_| flood(guests, &mut turns, 0, window, window));
    let rates: Vec<f64> = rates.collect::<Result<_, _>>()?;
    end(guests)?;
    Ok(rates)
}

/// What comes before the first window: every flow is seen twice (or four seconds pass, for a switch
/// that is slow).
pub fn begin(guests: &mut [Guest; 2], load: Load) -> Result<Turns, PeerError> {
    prepare(guests, load)?;
    let mut turns = Turns::of(load);
    let flows = u64::from(load.flows());
    let (settled, patience) = (Duration::from_millis(100), Duration::from_secs(4));
    flood(guests, &mut turns, 2 * flows, settled, patience)?;
    Ok(turns)
}

/// What comes behind the last one.
pub fn end(guests: &mut [Guest; 2]) -> Result<(), PeerError> {
    guests[1].check_order()?;
    drain(guests)
}

/// Sends for at least `least_time` and until `least` frames have arrived, for `most_time` at the
/// most; gives the frames a second that arrived.
pub fn flood(
    guests: &mut [Guest; 2],
    turns: &mut Turns,
    least: u64,
    least_time: Duration,
    most_time: Duration,
) -> Result<f64, PeerError> {
    flood_pairs(&mut [guests], turns, least, least_time, most_time)
}

/// Floods several pairs of guests, with one driver for all of them; gives the sum of their rates.
pub fn flood_pairs(
    pairs: &mut [&mut [Guest; 2]],
    turns: &mut Turns,
    least: u64,
    least_time: Duration,
    most_time: Duration,
) -> Result<f64, PeerError> {
    let start = Instant::now();
    let mut count = 0u64;
    loop {
        for _ in 0..16 {
            let mut moved = 0;
            for [from, to] in pairs.iter_mut().map(|pair| &mut **pair) {
                let chunk = CHUNK.min(from.transmit.size / 4);
                moved += from.offer(chunk, |write| turns.next(write));
                let arrived = to.collect(chunk);
                moved += arrived;
                count += u64::from(arrived);
            }
            if moved == 0 {
                pause(GAP);
            }
        }
        let elapsed = start.elapsed();
        if (elapsed >= least_time && count >= least) || elapsed >= most_time {
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
        interrupt::check()?;
    }
}

/// Says what comes first, and fills guest 0's buffers.
pub fn prepare(guests: &mut [Guest; 2], load: Load) -> Result<(), PeerError> {
    let script = load::script(load)?;
    for (from, frame) in &script.first {
        say(guests, *from, frame)?;
    }
    guests[0].prepare(&script.frame, &script.offload);
    Ok(())
}

/// Lets the guests hear each other: a switch may need seconds from the negotiation until it
/// forwards, and it learns where they are.
pub fn meet(guests: &mut [Guest; 2]) -> Result<(), PeerError> {
    let start = Instant::now();
    let mut heard = [false; 2];
    while heard != [true; 2] {
        if start.elapsed() > PATIENCE {
            return Err(PeerError("the guests do not hear each other".to_owned()));
        }
        // The client first: rules allow what it says, and then the answer.
        for from in 0..2 {
            guests[from].prepare(&load::datagram(from, 60)?, &Offload::default());
            guests[from].send(1, |_| ());
            let until = Instant::now() + Duration::from_millis(10);
            while Instant::now() < until {
                interrupt::check()?;
                heard[1 - from] |= guests[1 - from].receive() > 0;
            }
        }
    }
    drain(guests)
}

/// Sends one frame and waits until it has arrived, or has not.
pub fn say(guests: &mut [Guest; 2], from: usize, frame: &[u8]) -> Result<(), PeerError> {
    guests[from].prepare(frame, &Offload::default());
    guests[from].send(1, |_| ());
    drain(guests)
}

/// Waits until nothing has arrived for 30 ms.
pub fn drain(guests: &mut [Guest; 2]) -> Result<(), PeerError> {
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(30) {
        interrupt::check()?;
        if guests[0].receive() + guests[1].receive() > 0 {
            quiet_since = Instant::now();
        }
    }
    Ok(())
}
