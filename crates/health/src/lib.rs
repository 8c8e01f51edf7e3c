//! Whether servers work: when to ask them, what their answers mean, and how to ask.
//!
//! Theory of operation. A [`Monitor`] holds one target a server. Its owner asks it which checks are
//! due, makes them, and tells it what came of them; it answers with changes of health. It has
//! neither clock nor sockets: time is handed in, as a [`Duration`](std::time::Duration) since
//! whenever the owner likes, so that tests run hours in no time.
//!
//! Making a check is [`probe::run`]: a sentence that says why it failed, or nothing. Its sockets
//! come from a [`probe::Path`], which knows how to reach one server through the service's address;
//! in tests that is loopback.
//!
//! Called by the daemon's balancer, one monitor and one task for all services.

mod check;
mod monitor;
pub mod probe;
mod programs;
mod state;

pub use check::{Check, CheckError, Command, Dns, Http, Kind, Policy};
pub use monitor::{Change, Job, Monitor};
pub use programs::Programs;
pub use state::{Health, State};
