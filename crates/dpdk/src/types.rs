//! What both builds share.

/// Why something of DPDK's cannot be had. Each message names the thing and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// See [`AVAILABLE`](crate::AVAILABLE).
    #[error("this build has no DPDK: docs/install.md says how to make one that has")]
    Absent,
    /// It starts once in a process.
    #[error("DPDK has been started in this process already")]
    Again,
    /// What it was given it does not take.
    #[error("DPDK does not start with '{args}': {why}")]
    Start {
        /// The words.
        args: String,
        /// What it said last.
        why: String,
    },
    /// There is no such port.
    #[error("DPDK has no port {number}: {has}")]
    NoPort {
        /// The port.
        number: u16,
        /// Those that there are, in words.
        has: String,
    },
    /// A device refuses a step.
    #[error("DPDK's port {number} ({name}): {step}: {why}")]
    Device {
        /// The port.
        number: u16,
        /// Its name.
        name: String,
        /// What was being done.
        step: String,
        /// What DPDK said.
        why: String,
    },
}

/// How a device's queues are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// So many in each direction, if the device has as many; else fewer, at least one. More where
    /// it gets frames on all that it was made with.
    pub queues: u16,
    /// Frames that wait in each of them, as far as the device has room.
    pub frames: u16,
    /// Bytes of an IP packet.
    pub mtu: u16,
}

/// A checksum of TCP or UDP that is left to the device. Its field has the sum of the pseudo header
/// (virtio 1.2, section 5.1.6.2, has the same).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftSum {
    /// Bytes in front of the IP header: [`LeftSum::FRONT_MAX`] at the most.
    pub front: u16,
    /// Bytes of the IP header.
    pub ip: u16,
    /// Bytes of the TCP or UDP header.
    pub l4: u16,
    /// IPv4, or else IPv6.
    pub is_ipv4: bool,
    /// TCP, or else UDP.
    pub is_tcp: bool,
}

impl LeftSum {
    /// DPDK has 7 bits for it.
    pub const FRONT_MAX: u16 = 127;
}

/// What a device has counted since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were received.
    pub received: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Lost, because nobody emptied a queue.
    pub missed: u64,
    /// Frames that the device refused.
    pub errors: u64,
    /// Lost for want of a buffer.
    pub no_buffer: u64,
    /// Frames that could not be sent.
    pub unsent: u64,
}

/// Why a frame was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// No buffer is left.
    #[error("no buffer is left")]
    Full,
    /// A buffer is shorter.
    #[error("a buffer is shorter than the frame")]
    TooLong,
}
