//! What happens to a frame (being written).

pub mod address_set;
pub mod counters;
pub mod drop_reason;
mod dump;
pub mod flow;
mod fragments;
pub mod handle;
mod judge;
mod learned;
pub mod load;
mod path;
mod ports;
mod round;
pub mod ruleset;
pub mod simulation;
pub mod snapshot;
mod stages;
mod view;
pub mod worker;

pub use address_set::AddressSet;
pub use counters::Counters;
pub use drop_reason::DropReason;
pub use handle::{WorkerGone, WorkerHandle};
pub use io::trace::Trace;
pub use simulation::Simulation;
pub use snapshot::*;
pub use worker::{Now, Turn, Worker, WorkerConfig};
