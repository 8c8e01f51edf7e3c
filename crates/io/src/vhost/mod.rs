//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.

mod chain;
pub mod features;
pub mod message;
pub mod port;
mod receive;
pub mod request;
pub mod split;
mod transmit;
