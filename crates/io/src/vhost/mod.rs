//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.

pub mod breach;
mod chain;
pub mod channel;
mod client;
mod connection;
pub mod features;
mod listener;
pub mod message;
mod pair;
pub mod port;
mod receive;
pub mod request;
mod ring;
pub mod server;
pub mod session;
pub mod sink;
pub mod split;
mod transmit;

pub use server::{NicInfo, Server, ServerError};
pub use session::{MAX_PAIRS, SessionInfo};
pub use sink::{NicOptions, PortKey, PortSink, PortState};
