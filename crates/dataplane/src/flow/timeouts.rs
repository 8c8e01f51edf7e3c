//! How long a flow may be idle (security-groups.md 10). The fixed ones are Linux nf_conntrack's
//! defaults.

use wire::parse::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

use super::info::FlowState;
use crate::snapshot::Timeouts;

/// No flow has a shorter one.
pub(crate) const SHORTEST_SECS: u32 = 10;

/// Seconds that a flow of `protocol` may be idle in `state`; `settable` is asked only for what can
/// be set.
#[inline]
pub(crate) fn timeout_secs(
    protocol: u8,
    state: FlowState,
    settable: impl FnOnce() -> Timeouts,
) -> u32 {
    let secs = match (protocol, state) {
        (TCP, FlowState::Established) => settable().tcp_established_secs,
        (
            TCP,
            FlowState::SynSent | FlowState::SynSent2 | FlowState::FinWait | FlowState::TimeWait,
        ) => 120,
        (TCP, FlowState::SynRecv | FlowState::CloseWait) => 60,
        (TCP, FlowState::LastAck) => 30,
        (_, FlowState::Close) => SHORTEST_SECS,
        (UDP, FlowState::OneWay) => settable().udp_secs,
        (UDP, _) => settable().udp_stream_secs,
        (ICMP | ICMPV6, _) => 30,
        (SCTP, FlowState::Opening) => 30,
        _ => 600,
    };
    secs.max(SHORTEST_SECS)
}

/// What holds for a flow between two NICs: the shorter of what each of them wants.
#[inline]
pub(crate) fn shorter(a: &Timeouts, b: &Timeouts) -> Timeouts {
    Timeouts {
        tcp_established_secs: a.tcp_established_secs.min(b.tcp_established_secs),
        udp_secs: a.udp_secs.min(b.udp_secs),
        udp_stream_secs: a.udp_stream_secs.min(b.udp_stream_secs),
    }
}
