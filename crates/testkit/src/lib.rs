//! What the tests are made with: QEMU guests, network namespaces, guarded programs, and the guest's
//! side of a virtqueue for what no real guest does.
//!
//! Theory of operation. A test talks to real parts: the daemon, the command line, and guests that
//! are real kernels. Everything started here has a guard that ends it when it is dropped, by
//! process id, and a second line of defence in the kernel ([`process`]). Nothing is waited for by
//! sleeping a guessed time: [`wait_for`] looks for an event until a deadline and then fails with
//! what it was waiting for; whoever calls it adds the dump that explains.

pub mod beside;
pub mod cable;
pub mod cpus;
pub mod elsewhere;
pub mod frr;
pub mod image;
pub mod netns;
pub mod other_program;
pub mod over;
pub mod process;
pub mod qemu;
pub mod results;
pub mod ring_driver;
pub mod routed_hosts;
pub mod traffic;
pub mod vhost_frontend;

use std::time::{Duration, Instant};

/// A failure is a sentence (and its dump) for the person who reads the test's output.
pub type Result<T> = std::result::Result<T, String>;

/// How long what comes at once on a quiet machine may take on a busy one: only who waits in vain
/// waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often [`wait_for`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often [`wait_closely`] does.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

/// Calls `look` until it gives something, at most for `timeout`. An error of `look` ends the wait
/// at once.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait_looking(what, timeout, LOOK_EVERY, look)
}

/// As [`wait_for`], for what is so in a moment and costs little to look at.
pub fn wait_closely<T>(
    what: &str,
    timeout: Duration,
    look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait_looking(what, timeout, LOOK_CLOSELY, look)
}

fn wait_looking<T>(
    what: &str,
    timeout: Duration,
    every: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(format!("waited {timeout:?} in vain for {what}"));
        }
        std::thread::sleep(every);
    }
}
