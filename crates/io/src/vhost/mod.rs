//! vhost-user: guests of QEMU, DPDK's virtio-user and others, by shared memory.

pub mod features;
pub mod message;
pub mod request;
