//! Tracked flows: what is remembered of a connection so that its answers pass and its state is followed.

mod entry;
mod index;
pub mod info;
mod key;
mod table;
mod tcp;
mod timeouts;
mod track;

pub(crate) use entry::{ACKED, DRAIN_EGRESS, DRAIN_INGRESS, Entry, FlowId, NONE, SEEN};
pub use info::{Endpoint, FlowInfo, FlowState, TcpWindows};
pub(crate) use key::{KIND_V6, Key, Side};
pub(crate) use table::{FlowTable, NewFlow};
pub(crate) use timeouts::{shorter, timeout_secs};
pub(crate) use track::{Seen, Tracked, first_state};
