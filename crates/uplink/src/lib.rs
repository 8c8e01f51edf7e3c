//! An uplink: an interface that joins this host to others and that the kernel keeps.
//!
//! # Theory of operation
//!
//! One XDP program ([`program`], `bpf/uplink.bpf.c`) runs on every uplink and sends VXLAN for our
//! addresses to an AF_XDP socket on each receive queue; ssh, storage and the API's own connections
//! go on as before. Each socket is an [`io::uplink::UplinkPort`] owned by one worker. Where an
//! interface takes no program or no socket, a packet socket does the same more slowly. Where no
//! interface has our address, a TAP device is made that does, with a [`Station`] on it. A device
//! that DPDK drives and the kernel does not see has a TAP device beside it ([`DpdkUplink`]).
//!
//! [`Engine`] keeps what is in line with what is wanted: `plan` says from the kernel's tables which
//! interfaces are uplinks and where our addresses are, [`join`] and [`leave`] do it, and whatever
//! changes (an interface goes and returns, an address moves, the MTU grows, a socket breaks) is one
//! more comparison of the two. [`Fact`]s say what is in force and why.

mod dpdk_uplink;
mod engine;
mod facts;
mod interface;
pub mod layout;
mod plan;
mod program;
mod station;

pub use dpdk_uplink::DpdkUplink;
pub use engine::{Arrivals, Engine, Options, Ports, is_tap_name};
pub use facts::Fact;
pub use interface::{JoinError, JoinRequest, Joined, Mode, join, join_packet, join_xdp, leave};
pub use plan::{UplinkSettings, vlans_of};
pub use program::{Groups, Program, ProgramError};
pub use station::Station;
