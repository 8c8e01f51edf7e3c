//! What ends a thread of a test whatever becomes of the test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Says that it is over when this is dropped, by a panic too: who waits for a thread that looks at
/// it does not wait for good.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
