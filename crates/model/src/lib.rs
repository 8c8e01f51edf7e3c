//! Load-balanced services, interfaces and packets that are routed, as values: for `control`, which
//! holds what is declared, and for the crates that make it true (`balancer`, `router`, `xdp`), so
//! that they mean the same by the same type. Values that exist are valid.
//!
//! Plain data: no I/O, no clock, no unsafe. What is declared of NICs, groups, other hosts and
//! checks of servers' health nobody below `control` speaks of: it is in `control::model`.

pub mod acl;
mod error;
mod key;
mod mode;
mod service;

pub use error::Error;
pub use key::{Protocol, ServiceKey, is_of_one_host};
pub use mode::Mode;
pub use service::{Server, Service, Services, State, Tunnel, Weight};
