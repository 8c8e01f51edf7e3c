//! Tracked flows.
pub mod info;
pub use info::{Endpoint, FlowInfo, FlowState};
