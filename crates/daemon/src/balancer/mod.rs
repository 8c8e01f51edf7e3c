//! The load balancer, as the daemon runs it: crates/balancer forwards, the controller decides what.
//!
//! # Theory of operation
//!
//! Services, their servers and what is known of those are the [controller](control::Controller)'s.
//! [`engine`] is the data plane that it is handed (`crate::features`): crates/balancer and its
//! interfaces; [`plane`] what can be asked of it beside. [`checks`] makes the checks that the
//! controller asks for, [`probe`] leads them through a service's address to one server. The API is
//! [`service`], a thin decoder: [`convert`] and [`render`] turn messages into the model and back,
//! [`watch`] is the stream of events. Addresses are announced by [`bgp`] or a program ([`hook`]),
//! which go along when another program takes the daemon's place ([`announcing`]).

pub mod announcing;
pub mod bgp;
mod checks;
pub mod convert;
mod engine;
pub mod handover;
pub mod hook;
mod log;
mod plane;
pub(crate) mod probe;
pub mod render;
mod service;
pub mod status;
mod watch;

pub use checks::check;
pub use engine::{Engine, left, loss};
pub use log::log;
pub use probe::Prober;
pub use service::Service;
