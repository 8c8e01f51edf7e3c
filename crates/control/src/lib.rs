//! What the operator declares, the operations on it, and their compilation into the snapshots that
//! the data plane works by.
//!
//! # Theory of operation
//!
//! A [`Controller`] holds one state: the declared NICs and groups, and what they compile to, all in
//! persistent maps that are copied in no time. Every operation, whatever its API, becomes a list of
//! changes and goes the same way ([`Controller::apply`] with a hundred changes, `add_rule` with
//! one):
//!
//! 1. The changes are made to a copy of the state. Ids, quotas and conflicts are checked; an error
//!    drops the copy.
//! 2. New sockets, interfaces and trace files are opened ([`Attachments`]); an error closes those
//!    again.
//! 3. What the changes touch is compiled again, everything else is shared with the snapshot before;
//!    the new snapshot is published ([`DataPlane`]), which returns when all workers use it; an
//!    error closes what step 2 opened.
//! 4. The copy becomes the state, attachments that nobody needs are closed, and the events are
//!    sent.
//!
//! So an error changes nothing and loses nothing, a reader sees no half of a change, and what is
//! unchanged (the same content put again) publishes nothing. No I/O and no clock here: both are
//! handed in. No async: the daemon keeps the controller behind a mutex.

mod attach;
mod compile;
mod controller;
mod diff;
mod dot;
mod error;
mod event;
pub mod limits;
pub mod model;
mod slots;
mod stage;
mod state;
mod stats;
#[cfg(test)]
mod tests;

pub use attach::{AttachError, Attachments, DataPlane, DataPlaneError, HostSettings, OpenRequest};
pub use compile::Work;
pub use controller::{Controller, EndpointStatus, NetworkStatus, NicStatus, Reach, Status};
pub use diff::{
    BindingChange, Diff, EndpointChange, FieldChange, GroupChange, GroupDiff, NetworkChange,
    NicChange, NicDiff,
};
pub use error::{Error, ErrorKind};
pub use event::{Event, EventKind, NicState};
pub use state::NetworkMode;
pub use stats::{GroupStats, NicStats, RuleStats};
