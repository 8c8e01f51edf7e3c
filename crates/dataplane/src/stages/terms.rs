//! On which terms two NICs have a flow: its idle timeouts, and whom it is charged to.

use crate::flow::shorter;
use crate::snapshot::{PortConfig, Timeouts};

/// How many flows the NIC may have that a flow is charged to, which one of these has begun with the
/// other.
#[inline]
pub(crate) fn share(from: &PortConfig, to: Option<&PortConfig>) -> u32 {
    match (from.slot.remote_of(), to) {
        (Some(_), Some(to)) => to.flow_share,
        _ => from.flow_share,
    }
}

/// The idle timeouts of a flow between two NICs.
#[inline]
pub(crate) fn between(a: Option<&PortConfig>, b: Option<&PortConfig>) -> Timeouts {
    match (a, b) {
        (Some(a), Some(b)) => shorter(&a.timeouts, &b.timeouts),
        (Some(one), None) | (None, Some(one)) => one.timeouts,
        (None, None) => Timeouts::default(),
    }
}
