//! With DPDK.

mod device;
mod ffi;
mod process;
mod queue;

pub use device::{Device, ports};
pub use process::start;
pub use queue::Queue;
