//! Whether servers work: when to ask them, what their answers mean, and how to ask.
//!
//! Theory of operation. A [`Monitor`] holds one target a server. Its owner asks it which checks are
//! due, makes them, and tells it what came of them; it answers with changes of health. It has
//! neither clock nor sockets: time is handed in, as a [`Duration`](std::time::Duration) since
//! whenever the owner likes, so that tests run hours in no time.
//!
//! Making a check is [`probe::run`]: a sentence that says why it failed, or nothing. Its sockets
//! come from a [`probe::Path`], which knows how to reach one server through the service's address;
//! in tests that is loopback. All that does I/O is behind the feature `probe`: who only holds
//! checks and what is known of servers (`control`) takes this crate without it.
//!
//! One monitor, in the controller, for all services; the daemon's task makes the checks.

mod check;
mod monitor;
#[cfg(feature = "probe")]
pub mod probe;
#[cfg(feature = "probe")]
mod programs;
mod state;

pub use check::{Check, CheckError, Command, Dns, Http, Kind, Policy, Subject};
pub use monitor::{Change, Job, Monitor};
#[cfg(feature = "probe")]
pub use programs::{Programs, nobody_else_replaces, start as start_program};
pub use state::{Health, State};
