//! What the guests' driver could do at the most: the same driver against a switch that does
//! nothing.
//!
//! That switch is a thread on the switch's core. It moves the four indices, 32 frames at a time as
//! switches do, and touches neither ring entries nor frames. The rate is the driver's ceiling on
//! these two cores; a switch that comes near it was not measured, the driver was.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use crate::guest::Guest;
use crate::load::{Load, Turns};
use crate::peers::PeerError;
use crate::{rate, regime};

/// Frames a switch takes at a time.
const BATCH: u16 = 32;

/// Frames a second that the driver sends and receives; with more than one flow it rewrites each
/// frame.
pub fn measure(core: usize, load: Load, duration: Duration) -> Result<Vec<f64>, PeerError> {
    let mut guests = [Guest::new(1024, 2_036)?, Guest::new(1024, 2_036)?];
    guests[0].transmit.silence(&guests[0].view);
    guests[1].receive.silence(&guests[1].view);
    let (from, to) = (guests[0].view.clone(), guests[1].view.clone());
    let (sent, arrived) = (guests[0].transmit.places(), guests[1].receive.places());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            regime::pin(core);
            let sender = [from.word(sent[0]), from.word(sent[1])];
            let receiver = [to.word(arrived[0]), to.word(arrived[1])];
            forward(sender, receiver, &stop);
        });
        let mut turns = Turns::of(load);
        let window = duration / rate::WINDOWS;
        let mut flood = || rate::flood(&mut guests, &mut turns, 0, window, window);
        // The first window waits for the thread to be there.
        let rates = flood().and_then(|_| (0..rate::WINDOWS).map(|_| flood()).collect());
        stop.store(true, Ordering::Relaxed);
        rates
    })
}

/// Moves indices until told to stop; each pair is the driver's index and the device's.
fn forward(sender: [&AtomicU16; 2], receiver: [&AtomicU16; 2], stop: &AtomicBool) {
    let (mut taken, mut given) = (0u16, 0u16);
    while !stop.load(Ordering::Relaxed) {
        let offered = sender[0].load(Ordering::Acquire).wrapping_sub(taken);
        let room = receiver[0].load(Ordering::Acquire).wrapping_sub(given);
        let count = offered.min(room).min(BATCH);
        if count == 0 {
            std::hint::spin_loop();
            continue;
        }
        (taken, given) = (taken.wrapping_add(count), given.wrapping_add(count));
        receiver[1].store(given, Ordering::Release);
        sender[1].store(taken, Ordering::Release);
    }
}
