//! What happens to a frame (being written).

pub mod address_set;
pub mod counters;
pub mod drop_reason;
pub mod flow;
pub mod handle;
pub mod load;
pub mod ruleset;
pub mod snapshot;
pub mod worker;

pub use address_set::AddressSet;
pub use counters::Counters;
pub use drop_reason::DropReason;
pub use handle::{WorkerGone, WorkerHandle};
pub use snapshot::*;
pub use worker::{Now, Turn, Worker, WorkerConfig};

/// Stands for io's until it is there.
#[derive(Clone)]
pub enum Trace {}
