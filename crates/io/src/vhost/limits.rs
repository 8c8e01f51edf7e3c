//! How much of what a guest and its VMM can have.

/// Queue pairs that a NIC can have: more than virtual machines that are in use have processors for
/// one NIC.
pub const MAX_PAIRS: u16 = 64;

/// Memory regions that a VMM may add one by one: what hot-plugging a guest's memory takes.
pub const SLOTS_MAX: usize = 64;

/// Descriptors in a chain at most, whatever the queue's size: what QEMU allows too. Linux uses up
/// to 19.
pub const CHAIN_MAX: u32 = 1024;

/// Descriptors that a frame of `len` bytes is written into at most, those of empty buffers among
/// them. Linux receives 64 KiB in less than 50.
pub const fn scatter_max(len: u64) -> u64 {
    64 + len / 64
}

/// The longest path of a unix socket: `sun_path` has 108 bytes and ends with a zero.
pub(in crate::vhost) const PATH_MAX: usize = 107;
