//! A worker's ports as they stand, for people who look while it runs.
//!
//! A report is made between two batches, by the worker itself: nothing on the path is locked,
//! counted twice or stopped for it. Asked for one NIC it has the rings too, which costs a look at
//! two lines of that guest's memory; asked for all it says only who is here, so that a worker with
//! thousands of ports answers in microseconds.

use io::port::PortInfo;

use crate::ids::PortSlot;
use crate::ports::{Attached, Ports};
use crate::queue::QueueId;

/// One port of a worker at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortReport {
    /// The NIC or uplink that the queue is of.
    pub slot: PortSlot,
    /// Which of the NIC's queue pairs.
    pub pair: u16,
    /// The worker looks at it every turn; else it waits for the peer to wake it.
    pub polled: bool,
    /// Since the peer's last frame, or since the port came: nanoseconds.
    pub quiet_ns: u64,
    /// Indices and counters; only when one NIC was asked for.
    pub info: Option<PortInfo>,
}

/// The ports of one NIC with their rings, or all without.
pub(crate) fn ports(ports: &Ports, of: Option<PortSlot>, now_ns: u64) -> Vec<PortReport> {
    let report = |(queue, attached): (QueueId, &Attached)| PortReport {
        slot: queue.slot,
        pair: queue.pair,
        polled: !attached.parked,
        quiet_ns: now_ns.saturating_sub(attached.heard_ns),
        info: of.map(|_| attached.port.info()),
    };
    let wanted = |(queue, _): &(QueueId, &Attached)| of.is_none_or(|slot| queue.slot == slot);
    ports.all().filter(wanted).map(report).collect()
}
