//! An uplink: an interface that joins this host to others and that the kernel keeps.
//!
//! # Theory of operation
//!
//! One XDP program ([`program`], `bpf/uplink.bpf.c`) runs on every uplink and sends VXLAN for our addresses to an AF_XDP socket on
//! each receive queue; ssh, storage and the API's own connections go on as before. Each socket is an
//! [`io::uplink::UplinkPort`] in the hands of one worker.

mod interface;
pub mod layout;
mod program;

pub use interface::{JoinError, Joined, Mode, Wish, join, join_packet, join_xdp, leave};
pub use program::{Groups, Program, ProgramError};
