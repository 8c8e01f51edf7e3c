//! Devices that DPDK drives, for those who give a NIC away from the kernel or have one that AF_XDP
//! serves badly.
//!
//! # Theory of operation
//!
//! [`start`] starts DPDK once in a process ([its environment
//! layer](https://doc.dpdk.org/guides-22.11/prog_guide/env_abstraction_layer.html)), on a thread
//! that is for this alone: DPDK pins the one that starts it. Its log goes to whoever asks for it,
//! its threads take no signal. A [`Device`] is one of its ports; [`Device::open`] sets it up with
//! so many [`Queue`]s in each direction, each for one thread at a time. A queue receives a burst of
//! frames, which stay in the device's buffers until they are given back, and writes frames into
//! buffers that it hands over together.
//!
//! What a device sends is cut by who writes it, and summed, so that every driver does (the original
//! left offloads out for enic alone). The checksum of a TCP or UDP packet may be left to a device
//! that makes it wherever it is told to, behind outer headers as well ([`Device::sums`]).
//!
//! Pools of buffers stay until the process ends, also when their device is closed, so that no frame
//! in one can lose its memory.
//!
//! Unsafe, with `io` and `sys`: DPDK is C. A build without the feature `link` needs no DPDK; the
//! same names are there, [`AVAILABLE`] is false, and [`start`] says why.

#[cfg(not(feature = "link"))]
mod absent;
#[cfg(feature = "link")]
mod linked;
mod types;

#[cfg(not(feature = "link"))]
pub use absent::{Device, Queue, ports, start};
#[cfg(feature = "link")]
pub use linked::{Device, Queue, ports, start};
pub use types::{Counters, Error, LeftSum, QueueOptions, WriteError};

/// DPDK is in this build.
pub const AVAILABLE: bool = cfg!(feature = "link");

/// Frames of one call of [`Queue::receive`], and frames that wait for [`Queue::flush`], at the
/// most.
pub const BURST: usize = 64;
