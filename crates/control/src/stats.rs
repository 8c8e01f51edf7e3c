//! Counters for people: since the NIC or the rule was created, directions from the guest's view.
//! The data plane counts by slot and never resets; a slot that was used before starts from a
//! baseline, which is subtracted here. What a process before has counted is in the baseline as
//! well.

use crate::model::{GroupId, NicId, Rule};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::drop_reason::DropReason;

/// What a NIC has counted since it was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicStats {
    /// The NIC.
    pub id: NicId,
    /// Bytes of frames delivered to the guest, Ethernet headers included. v0 `out`.
    pub bytes_in: u64,
    /// Bytes of frames that the guest sent, dropped ones included. v0 `in`.
    pub bytes_out: u64,
    /// Frames delivered to the guest.
    pub frames_in: u64,
    /// Frames that the guest sent.
    pub frames_out: u64,
    /// Of these, those that the kernel has forwarded itself.
    pub kernel_out: u64,
    /// Frames towards the guest that were dropped, by reason, without reasons that did not occur.
    pub drops_in: Vec<(DropReason, u64)>,
    /// Frames from the guest that were dropped, likewise.
    pub drops_out: Vec<(DropReason, u64)>,
    /// How often a queue of it was left alone for what it may send in a second, since that was set.
    pub waits_out: u64,
    /// For how long in all, nanoseconds: of each queue.
    pub wait_out_ns: u64,
    /// Frames for its mirror, and those of them that were lost, since the mirror was set.
    pub mirrored: Option<(u64, u64)>,
}

/// What a group's rules have counted since each was added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStats {
    /// The group.
    pub id: GroupId,
    /// In the order of the group's rules.
    pub rules: Vec<RuleStats>,
}

/// What a rule has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleStats {
    /// The rule.
    pub rule: Rule,
    /// Frames that it allowed, and those of the flows that it allowed.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Flows that it allowed to start.
    pub flows: u64,
}

pub(crate) fn nic_stats(
    id: NicId,
    now: &PortCounters,
    baseline: &PortCounters,
    (waits_out, wait_out_ns): (u64, u64),
    mirrored: Option<(u64, u64)>,
) -> NicStats {
    let since = now.since(baseline);
    let drops = |counts: &[u64]| {
        let all = DropReason::ALL.iter().copied().zip(counts.iter().copied());
        all.filter(|(_, count)| *count > 0).collect()
    };
    NicStats {
        id,
        bytes_in: since.tx_bytes,
        bytes_out: since.rx_bytes,
        frames_in: since.tx_frames,
        frames_out: since.rx_frames,
        kernel_out: since.kernel_frames,
        drops_in: drops(&since.drops_to),
        drops_out: drops(&since.drops_from),
        waits_out,
        wait_out_ns,
        mirrored,
    }
}

pub(crate) fn rule_stats(rule: Rule, now: &RuleCounters, baseline: &RuleCounters) -> RuleStats {
    let since = now.since(baseline);
    RuleStats {
        rule,
        frames: since.frames,
        bytes: since.bytes,
        flows: since.flows,
    }
}
