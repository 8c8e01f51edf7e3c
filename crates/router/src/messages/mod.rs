//! What the router and the kernel know, as messages of API v1: for the daemon, and for `butterfly
//! forward`, which answers the same questions on a socket of its own. With the feature `api` alone.

mod interfaces;
mod kernel_counters;
mod neighbours;
mod refusal;
mod render;
mod request;

pub use interfaces::interfaces;
pub use neighbours::{Asked as AskedNeighbours, neighbour};
pub use refusal::Refusal;
pub use render::{interface_name, mode, page, route, route_to, status};
pub use request::Asked;

/// Neighbours of one piece of an answer.
pub const PIECE: usize = 4096;
