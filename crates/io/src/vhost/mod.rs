//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.
//!
//! Two halves: [`protocol`] speaks to the VMM and hands ready queue pairs to the workers,
//! [`virtqueue`] moves frames through their rings. [`features`] lists what both negotiate.

pub mod features;
mod protocol;
mod virtqueue;

pub use protocol::ring_state::RingInfo;
pub use protocol::server::{NicInfo, Server, ServerError};
pub use protocol::session::{MAX_PAIRS, SessionInfo};
pub use protocol::sink::{NicOptions, PortKey, PortSink, PortState};
pub use protocol::{breach, channel, message, request, server, session, sink};
pub use virtqueue::{port, queue};
