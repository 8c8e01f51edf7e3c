//! Tracked flows: what is remembered of a connection so that its answers pass and its state is
//! followed.

mod cell;
mod entry;
pub(crate) mod hash;
pub(crate) mod index;
pub mod info;
pub mod kernel;
mod key;
pub mod log;
pub(crate) mod memory;
mod owned;
mod spare;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod timeouts;
mod track;
mod turns;

pub(crate) use entry::{ACKED, DRAIN_EGRESS, DRAIN_INGRESS, Entry, FlowId, Half, NONE, SEEN};
pub use info::{FlowInfo, FlowState, Party, TcpWindows};
pub(crate) use key::{Ends, Key, Side};
pub use log::{FlowEnd, FlowEvent, FlowEvents, FlowNews};
pub(crate) use log::{Log, Refused};
pub use memory::FlowMemory;
pub(crate) use owned::{Flows, NewFlow};
pub(crate) use table::FlowTable;
pub(crate) use tcp::{follow_plain, is_amid, is_followed};
pub(crate) use timeouts::{SHORTEST_SECS, shorter, timeout_secs};
pub(crate) use track::{Seen, Tracked, What, first_state};
