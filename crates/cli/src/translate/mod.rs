//! API v1 messages to API v0 ones and back. The commands think in v1; a v0 connection, `dump` and
//! `request` speak v0. What v0 cannot say is an error that names it, or, in a dump, a warning.

pub mod group;
pub mod nic;
pub mod requests;

/// What the other API has no word for, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untranslatable(pub String);
