//! What the operator declares, the operations on it, and their compilation into the snapshots that
//! the data plane works by.
//!
//! # Theory of operation
//!
//! A [`Controller`] holds one state: all that is declared (NICs, groups, other hosts, services, the
//! interfaces that features work on), and what it compiles to, in persistent maps that are copied
//! in no time. Every operation, whatever its API, becomes a list of changes and goes the same way
//! ([`Controller::apply`] with a hundred changes, `add_rule` with one):
//!
//! 1. The changes are made to a copy of the state. Ids, quotas and conflicts are checked; an error
//!    drops the copy.
//! 2. New sockets, interfaces and trace files are opened ([`Attachments`]), services and interfaces
//!    given to their programs ([`Features`]); an error undoes what was done so far.
//! 3. What the changes touch is compiled again, everything else is shared with the snapshot before.
//!    The change is recorded ([`Journal`]), who may refuse it, and the new snapshot is published
//!    ([`DataPlane`]), which returns when all workers use it; an error undoes step 2.
//! 4. The copy becomes the state, attachments that nobody needs are closed, and the events are
//!    sent, in one stream for all.
//!
//! What checks find out of servers (`services.rs`) changes what the load balancer is told, and is
//! not declared: it goes into no journal.
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
mod features;
mod journal;
pub mod limits;
pub mod model;
mod services;
mod slots;
mod stage;
mod state;
mod stats;
#[cfg(test)]
mod tests;

pub use attach::{
    AttachError, Attachments, DataPlane, DataPlaneError, Declared, Ending, HostSettings,
    OpenRequest,
};
pub use compile::Work;
pub use controller::{
    Changed, Controller, Explained, GroupVerdict, Healed, HostStatus, Miss, NetworkStatus,
    NicStatus, Reach, Status, nic_key,
};
pub use diff::{
    AclChange, Amounts, BindingChange, Diff, FieldChange, GroupChange, GroupDiff, HostChange,
    InterfaceChange, NetworkChange, NicChange, NicDiff, ServiceChange,
};
pub use error::{Error, ErrorKind};
pub use event::{Event, EventKind, NicState, Part};
pub use features::{Features, InterfaceStatus};
pub use journal::{Author, BeforeAfter, Change, Journal, ObjectChange};
pub use services::{KnownHealth, Probe, Standing, Target};
pub use state::NetworkMode;
pub use stats::{GroupStats, NicStats, RuleStats};
