//! The router, as the daemon runs it: crates/router forwards, this decides on which interfaces and
//! shows what it does.
//!
//! # Theory of operation
//!
//! A thread of its own, [`thread`], has the router and what it follows: a million routes that
//! change at once keep nobody else waiting. [`control`] is its face: commands are sent to it, and
//! answered between two changes of the kernel's. Nothing is loaded until it gets its first
//! interface, nor after it has lost its last one. What its interfaces have counted outlives the
//! daemon by [`counting`]. Which interfaces it is to have the [controller](control::Controller)
//! knows, and calls it by `crate::features`. What happens to the kernel's tables comes by the
//! thousand: it is told as [`event`]s of its own. The API is [`service`], a thin decoder:
//! [`router::messages`] and [`render`] make messages, [`watch`] the stream of events.

mod acl;
mod control;
mod counting;
mod event;
pub mod render;
mod service;
mod thread;
mod watch;

pub use acl::AclFile;
pub use control::{Control, Summary};
pub use counting::HELD;
pub use service::{Service, status};
