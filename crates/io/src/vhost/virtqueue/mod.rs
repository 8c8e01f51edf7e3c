//! The device's side of virtqueues, split and packed: descriptors in, frames out, and back.
//!
//! A worker owns a [`port`] (a queue pair); [`queue`] hides which layout a ring has. Nothing here
//! speaks to a VMM: that is [`protocol`](super::protocol)'s.

pub(in crate::vhost) mod chain;
pub(in crate::vhost) mod chains;
pub(in crate::vhost) mod fault;
pub(in crate::vhost) mod index;
pub(in crate::vhost) mod notifier;
pub(in crate::vhost) mod packed;
pub mod port;
pub mod queue;
pub(in crate::vhost) mod receive;
pub(in crate::vhost) mod resume;
pub(in crate::vhost) mod ring;
pub(in crate::vhost) mod split;
pub(in crate::vhost) mod transmit;
