//! The load balancer, as the daemon runs it: crates/balancer forwards, this decides what.
//!
//! # Theory of operation
//!
//! [`registry`] is the state without I/O or clock: services, their servers, what is known of the
//! servers' health, and what follows from both. [`control`] puts it behind a lock and a clock, and
//! makes the checks that it asks for. [`plane`] is the face of the data plane, and [`engine`] the
//! one there is: crates/balancer and its interfaces. [`probe`] leads checks through a service's
//! address to one server. The API is [`service`], a thin decoder: [`convert`] and [`render`] turn
//! messages into the model and back, [`watch`] is the stream of events. [`declared`] is the
//! balancer's part of the one document that describes a host.

mod control;
mod convert;
pub mod declared;
mod diff;
mod engine;
mod error;
mod event;
pub mod hook;
mod model;
mod plane;
mod probe;
mod registry;
mod render;
mod service;
mod status;
mod watch;

pub use control::Control;
pub use engine::Engine;
pub use probe::Prober;
pub use service::Service;
