//! The time, as it is handed in: no file of this crate asks a clock. `watch.rs` alone reads the
//! cycle counter, for what things cost.

/// The time, handed in: the data plane has no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Monotonic nanoseconds.
    pub mono_ns: u64,
    /// Nanoseconds since 1970, for traces.
    pub unix_ns: u64,
}

impl Now {
    /// The flow table's clock.
    #[inline]
    pub(crate) fn millis(&self) -> u32 {
        (self.mono_ns / 1_000_000) as u32
    }

    #[inline]
    pub(crate) fn secs(&self) -> u32 {
        (self.mono_ns / 1_000_000_000) as u32
    }
}
