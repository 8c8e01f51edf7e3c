//! Frames in and out of the switch.
//!
//! # Theory of operation
//!
//! A [`Port`](port::Port) is one attachment: a vhost-user queue pair, a TAP device, a bench
//! generator or one end of an in-memory pair. A worker owns its ports and moves frames in three
//! steps, a batch at a time:
//!
//! 1. `port.receive(&mut batch)` takes up to [`frame::BATCH`] frames. The first bytes of each (its
//!    *head*) are copied into private memory, once; the rest (its *body*) stays where the sender
//!    put it.
//! 2. The data plane judges, and may rewrite, the heads. Guest memory is never read for a decision.
//! 3. `target.transmit(&batch, i)` writes head and body into the receiver: this is the one copy.
//!    Whatever the sender left undone (checksum, segmentation) and the receiver does not take is
//!    completed here. `target.flush()` publishes what was written, `port.complete(&mut batch)`
//!    gives the buffers back.
//!
//! With `sys` and `dpdk`, all `unsafe` of the project is in this crate. What is safe about its
//! face: a [`frame::Frame`]'s body can be read only through a batch that keeps the sender's memory
//! mapped; a guest can change body bytes while they are copied, and the worst that comes of it is
//! that the receiver gets those bytes.

pub mod bench;
mod copy;
mod copy_sum;
mod deliver;
pub mod dpdk;
mod error;
mod fault_guard;
pub mod fetch;
pub mod frame;
pub mod guest_memory;
pub mod guest_view;
pub mod memory_port;
mod outer;
pub mod packet_socket;
pub mod port;
mod port_info;
pub mod post_copy;
mod segment;
mod shared_file;
pub mod tap;
pub mod trace;
pub mod uplink;
pub mod vhost;
pub mod xsk;
