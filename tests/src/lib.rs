//! What the sessions share: a daemon of one's own, the command line that drives it, and the
//! machines around it: QEMU's, DPDK's, and a ring driver of our own.
//!
//! The programs tested are the ones beside the test binary (`target/debug`, `target/release`), as
//! `make test` builds them; nothing of the daemon is linked in here but the messages of its API.

pub mod api;
pub mod bird;
pub mod cables;
pub mod daemon;
pub mod hosts;
pub mod lab;
pub mod lan;
pub mod packet_peer;
pub mod peer;
pub mod testpmd;
pub mod trials;
pub mod tunnels;
pub mod web;

pub use daemon::{Daemon, program};
pub use lab::Lab;
