//! A frame on its way through the switch, and a batch of them.

/// Frames handled together; a step is done for the whole batch before the next step begins.
pub const BATCH: usize = 32;

/// The most header bytes of a frame that are copied to private memory and can be judged. A frame whose
/// headers do not fit is dropped (`headers_too_long`).
pub const HEAD_MAX: usize = 256;

/// The largest frame, Ethernet header included: a 64 KiB TSO frame with its headers.
pub const FRAME_MAX: usize = 65536 + 64;
