//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.
//!
//! Two halves: [`protocol`] speaks to the VMM and hands ready queue pairs to the workers,
//! [`virtqueue`] moves frames through their rings. [`features`] lists what both negotiate.

mod dirty_log;
pub mod features;
mod limits;
mod nic_options;
mod protocol;
mod virtqueue;

pub use dirty_log::{DirtyLog, LogSetup, LogTooSmall};
pub use limits::MAX_PAIRS;
pub use nic_options::NicOptions;
pub use protocol::listener::SocketFile;
pub use protocol::ring_state::RingInfo;
pub use protocol::saved::{LeftError, LeftSession, SessionKeeper};
pub use protocol::server::{NicInfo, Server, Stays, Yielded};
pub use protocol::server_error::ServerError;
pub use protocol::session::SessionInfo;
pub use protocol::sink::{PortKey, PortSink, PortState};
pub use protocol::{breach, channel, message, request, server, session, sink};
pub use virtqueue::{port, queue};
