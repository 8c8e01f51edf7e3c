//! System calls and mappings that no library gives a safe face, and that are no frames.
//!
//! # Theory of operation
//!
//! Each module wraps one thing of the kernel or the processor, and nothing here knows of frames,
//! guests or the switch:
//!
//! - [`bpf`]: an XDP program on an interface by a bpf_link; [`bpf_array`]: an array map, mapped.
//! - [`poll`]: epoll and eventfd, as a worker sleeps on them.
//! - [`child`]: a program that ends with the process; [`confine`]: one without rights;
//!   [`reading_only`]: what one that reads what strangers send may call. [`trim_memory`]: freed memory back to the system.
//!   [`memory_holder`]: the end of a process without waiting for its memory to be taken apart.
//! - [`held_name`]: a name that one process of a network namespace holds. [`handed`]: what one
//!   process hands over to the next. [`socket_file`]: the file of a unix socket, and whose it is.
//!   [`socket_owner`]: whose the other end of a connection over loopback is.
//! - [`ethtool`]: a NIC's offloads. [`huge`]: zeroed memory in huge pages. [`shared_memory`]:
//!   memory that outlives the process. [`private_text`]: what is in a file that holds a secret. [`packet_socket`]: which interface one is of. [`userfault`]: pages that are missing. [`cycles`]: the cycle
//!   counter. [`allowance`]: how often somebody may have something done.
//!
//! With `io`, which holds what touches guest memory and frames, this is all `unsafe` of the
//! project.

mod allocator;
pub mod allowance;
pub mod bpf;
pub mod bpf_array;
pub mod child;
pub mod confine;
pub mod cycles;
pub mod ethtool;
pub mod fd_message;
pub mod handed;
pub mod held_name;
pub mod huge;
pub mod memory_holder;
pub mod packet_socket;
pub mod poll;
pub mod private_text;
pub mod reading_only;
pub mod shared_memory;
pub mod socket_file;
pub mod socket_owner;
pub mod userfault;

pub use allocator::trim_memory;
