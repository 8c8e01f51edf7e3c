//! SIGINT and SIGTERM end a run as an error does: every switch is stopped, the huge pages are given
//! back.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::peers::PeerError;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the two signals are only noted, for [`check`].
pub fn install() -> Result<(), PeerError> {
    let asked = ASKED.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(asked))
            .map_err(|error| PeerError(format!("signal {signal}: {error}")))?;
    }
    Ok(())
}

/// Has the run been asked to end?
pub fn asked() -> bool {
    ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// An error once the run has been asked to end.
pub fn check() -> Result<(), PeerError> {
    if asked() {
        Err(PeerError("interrupted".to_owned()))
    } else {
        Ok(())
    }
}

/// How long [`rest`] is awake at its end.
const AWAKE: Duration = Duration::from_millis(1);

/// Lets a quiet time pass, at the end of which this thread's own core is awake: what is timed then
/// is how fast others are.
pub fn rest(quiet: Duration) -> Result<(), PeerError> {
    let end = Instant::now() + quiet;
    sleep(quiet.saturating_sub(AWAKE))?;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Sleeps, but not past a signal.
pub fn sleep(time: Duration) -> Result<(), PeerError> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
