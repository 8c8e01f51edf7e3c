//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.

mod allowance;
pub mod breach;
mod chain;
pub mod channel;
mod client;
mod connection;
mod fault;
pub mod features;
mod index;
mod listener;
pub mod message;
mod notifier;
mod packed;
mod pair;
pub mod port;
pub mod queue;
mod receive;
pub mod request;
mod resume;
mod ring;
pub mod server;
pub mod session;
pub mod sink;
mod split;
mod transmit;

pub use ring::RingInfo;
pub use server::{NicInfo, Server, ServerError};
pub use session::{MAX_PAIRS, SessionInfo};
pub use sink::{NicOptions, PortKey, PortSink, PortState};
