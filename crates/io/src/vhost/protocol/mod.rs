//! The vhost-user protocol: a VMM connects, negotiates, and describes its memory and rings.
//!
//! Bytes of a socket become messages (`message`, `request`), which a session (`session`) turns into
//! replies and ports; `server` serves all sockets on one thread. What runs in the rings is
//! [`virtqueue`](super::virtqueue)'s.

pub mod breach;
pub mod channel;
pub(in crate::vhost) mod client;
pub(in crate::vhost) mod connection;
pub(in crate::vhost) mod going_on;
pub(in crate::vhost) mod listener;
pub(in crate::vhost) mod log_lines;
pub mod message;
pub(in crate::vhost) mod pair;
pub mod request;
pub(in crate::vhost) mod request_number;
pub(in crate::vhost) mod ring_state;
pub(in crate::vhost) mod saved;
pub mod server;
pub(in crate::vhost) mod server_error;
pub mod session;
pub mod sink;
