//! What a worker counts: frames and bytes per port, drops per port and reason, hits per rule.
//!
//! One [`Counters`] belongs to one worker, the only writer; anybody reads. So a count is a relaxed
//! load and a relaxed store, no locked instruction, and no cache line is written by two workers.
//! Readers add the workers' numbers up. The arrays are as large as the stated maxima and zeroed
//! lazily by the kernel: a page costs memory once a port or rule in it has counted something. They
//! may be in [memory that outlives the process](crate::state_memory).

use std::sync::atomic::{AtomicU64, Ordering};

use sys::huge::Zeroed;

use crate::drop_reason::{DropReason, REASONS};
pub use crate::ids::{MAX_PORTS, MAX_RULES, MAX_UPLINKS};
use crate::ids::{PortSlot, RuleSlot};

/// Slots with counters and queues of their own.
pub(crate) const MAX_SLOTS: usize = MAX_PORTS + MAX_UPLINKS;

/// u64 cells of one port: 5 of traffic, then the drops of frames from it, then of frames to it.
pub(crate) const PORT_CELLS: usize = DROPS_FROM + 2 * REASONS;
const RX_FRAMES: usize = 0;
const RX_BYTES: usize = 1;
const TX_FRAMES: usize = 2;
const TX_BYTES: usize = 3;
const KERNEL_FRAMES: usize = 4;
pub(crate) const DROPS_FROM: usize = 5;
const DROPS_TO: usize = DROPS_FROM + REASONS;

/// u64 cells of one rule.
pub(crate) const RULE_CELLS: usize = 3;

/// Cells that all ports have together, and all rules.
pub(crate) const ALL_PORTS: usize = MAX_SLOTS * PORT_CELLS;
pub(crate) const ALL_RULES: usize = MAX_RULES * RULE_CELLS;

/// A counter beyond this was not written by a worker: none has come as far.
pub const COUNT_MAX: u64 = 1 << 62;

/// The counters of one worker.
pub struct Counters {
    ports: Zeroed<AtomicU64>,
    rules: Zeroed<AtomicU64>,
}

/// What a port has counted, at one moment. Directions are the switch's: `rx` is what the guest
/// sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortCounters {
    /// Frames received from the guest.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames delivered to the guest.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Of the frames received, those that the kernel has forwarded
    /// ([`flow::kernel`](crate::flow::kernel)).
    pub kernel_frames: u64,
    /// Frames from this guest that were dropped, by `DropReason as usize`.
    pub drops_from: [u64; REASONS],
    /// Frames for this guest that were dropped, by `DropReason as usize`.
    pub drops_to: [u64; REASONS],
}

impl Default for PortCounters {
    fn default() -> Self {
        PortCounters {
            rx_frames: 0,
            rx_bytes: 0,
            tx_frames: 0,
            tx_bytes: 0,
            kernel_frames: 0,
            drops_from: [0; REASONS],
            drops_to: [0; REASONS],
        }
    }
}

impl PortCounters {
    /// From what its cells hold.
    pub(crate) fn of(cell: impl Fn(usize) -> u64) -> Self {
        PortCounters {
            rx_frames: cell(RX_FRAMES),
            rx_bytes: cell(RX_BYTES),
            tx_frames: cell(TX_FRAMES),
            tx_bytes: cell(TX_BYTES),
            kernel_frames: cell(KERNEL_FRAMES),
            drops_from: std::array::from_fn(|reason| cell(DROPS_FROM + reason)),
            drops_to: std::array::from_fn(|reason| cell(DROPS_TO + reason)),
        }
    }

    /// What its cells hold.
    pub(crate) fn cells(&self) -> [u64; PORT_CELLS] {
        let mut cells = [0; PORT_CELLS];
        cells[RX_FRAMES] = self.rx_frames;
        cells[RX_BYTES] = self.rx_bytes;
        cells[TX_FRAMES] = self.tx_frames;
        cells[TX_BYTES] = self.tx_bytes;
        cells[KERNEL_FRAMES] = self.kernel_frames;
        cells[DROPS_FROM..][..REASONS].copy_from_slice(&self.drops_from);
        cells[DROPS_TO..][..REASONS].copy_from_slice(&self.drops_to);
        cells
    }

    fn with(&self, other: &PortCounters, by: impl Fn(u64, u64) -> u64) -> PortCounters {
        let (one, other) = (self.cells(), other.cells());
        PortCounters::of(|cell| by(one[cell], other[cell]))
    }

    /// Adds what another worker counted for the same port.
    pub fn add(&mut self, other: &PortCounters) {
        *self = self.with(other, u64::wrapping_add);
    }

    /// The baseline from which [`since`](Self::since) gives so much more than from this one.
    pub fn less(&self, carried: &PortCounters) -> PortCounters {
        self.with(carried, u64::wrapping_sub)
    }

    /// What was counted since a baseline.
    pub fn since(&self, baseline: &PortCounters) -> PortCounters {
        self.with(baseline, since)
    }

    /// Of each count the larger one.
    pub fn most(&self, other: &PortCounters) -> PortCounters {
        self.with(other, u64::max)
    }

    /// Whether a port can have counted this: no count is so large that it could not go on from it
    /// for good, and no more frames were forwarded by the kernel than were received.
    pub fn can_be(&self) -> bool {
        let cells = self.cells();
        cells.iter().all(|count| *count <= COUNT_MAX / 2) && self.kernel_frames <= self.rx_frames
    }

    /// Frames from and to this port that were dropped for `reason`.
    pub fn drops(&self, reason: DropReason) -> (u64, u64) {
        (
            self.drops_from[reason as usize],
            self.drops_to[reason as usize],
        )
    }
}

/// What a rule has counted, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleCounters {
    /// Frames it let pass, those of flows it admitted included (both directions).
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Flows it admitted.
    pub flows: u64,
}

impl RuleCounters {
    /// From what its cells hold.
    pub(crate) fn of([frames, bytes, flows]: [u64; RULE_CELLS]) -> RuleCounters {
        RuleCounters {
            frames,
            bytes,
            flows,
        }
    }

    /// What its cells hold.
    pub(crate) fn cells(&self) -> [u64; RULE_CELLS] {
        [self.frames, self.bytes, self.flows]
    }

    fn with(&self, other: &RuleCounters, by: impl Fn(u64, u64) -> u64) -> RuleCounters {
        let (one, other) = (self.cells(), other.cells());
        RuleCounters::of(std::array::from_fn(|cell| by(one[cell], other[cell])))
    }

    /// Adds what another worker counted for the same rule.
    pub fn add(&mut self, other: &RuleCounters) {
        *self = self.with(other, u64::wrapping_add);
    }

    /// The baseline from which [`since`](Self::since) gives so much more than from this one.
    pub fn less(&self, carried: &RuleCounters) -> RuleCounters {
        self.with(carried, u64::wrapping_sub)
    }

    /// What was counted since a baseline.
    pub fn since(&self, baseline: &RuleCounters) -> RuleCounters {
        self.with(baseline, since)
    }
}

/// Counters only grow, and a baseline may lie before zero, by what was counted before this process.
/// Should one not have grown, zero is less surprising than 2^64.
fn since(now: u64, baseline: u64) -> u64 {
    u64::try_from(now.wrapping_sub(baseline) as i64).unwrap_or(0)
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// All zero.
    pub fn new() -> Self {
        Counters::over(Zeroed::sparse(ALL_PORTS), Zeroed::sparse(ALL_RULES))
    }

    /// In memory of [`ALL_PORTS`] and [`ALL_RULES`] cells, which nobody else writes to.
    pub(crate) fn over(ports: Zeroed<AtomicU64>, rules: Zeroed<AtomicU64>) -> Self {
        Counters { ports, rules }
    }

    /// What a port has counted.
    pub fn port(&self, slot: PortSlot) -> PortCounters {
        let start = slot.0 as usize * PORT_CELLS;
        let Some(cells) = self.ports.get(start..start + PORT_CELLS) else {
            return PortCounters::default();
        };
        PortCounters::of(|index| cells[index].load(Ordering::Relaxed))
    }

    /// Adds the drops of the NICs in the first so many slots: frames from them, and to them.
    pub(crate) fn add_drops(&self, slots: usize, sums: &mut [[u64; REASONS]; 2]) {
        let slots = slots.min(MAX_PORTS);
        for cells in self.ports[..slots * PORT_CELLS].chunks_exact(PORT_CELLS) {
            let (from, to) = cells[DROPS_FROM..].split_at(REASONS);
            for (sum, cells) in sums.iter_mut().zip([from, to]) {
                for (sum, cell) in sum.iter_mut().zip(cells) {
                    *sum += cell.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// What a rule has counted.
    pub fn rule(&self, slot: RuleSlot) -> RuleCounters {
        let start = slot.0 as usize * RULE_CELLS;
        let Some(cells) = self.rules.get(start..start + RULE_CELLS) else {
            return RuleCounters::default();
        };
        let read = |index: usize| cells[index].load(Ordering::Relaxed);
        RuleCounters::of(std::array::from_fn(read))
    }

    #[inline]
    pub(crate) fn received(&self, slot: PortSlot, frames: u64, bytes: u64) {
        let start = slot.0 as usize * PORT_CELLS;
        bump(&self.ports, start + RX_FRAMES, frames);
        bump(&self.ports, start + RX_BYTES, bytes);
    }

    /// Frames of a port that count as received and that the kernel has forwarded.
    pub(crate) fn kernel_forwarded(&self, slot: PortSlot, frames: u64) {
        bump(
            &self.ports,
            slot.0 as usize * PORT_CELLS + KERNEL_FRAMES,
            frames,
        );
    }

    #[inline]
    pub(crate) fn delivered(&self, slot: PortSlot, bytes: u64) {
        self.delivered_all(slot, 1, bytes);
    }

    #[inline]
    pub(crate) fn delivered_all(&self, slot: PortSlot, frames: u64, bytes: u64) {
        let start = slot.0 as usize * PORT_CELLS;
        bump(&self.ports, start + TX_FRAMES, frames);
        bump(&self.ports, start + TX_BYTES, bytes);
    }

    #[inline]
    pub(crate) fn dropped_from(&self, slot: PortSlot, reason: DropReason) {
        bump(
            &self.ports,
            slot.0 as usize * PORT_CELLS + DROPS_FROM + reason as usize,
            1,
        );
    }

    #[inline]
    pub(crate) fn dropped_to(&self, slot: PortSlot, reason: DropReason) {
        bump(
            &self.ports,
            slot.0 as usize * PORT_CELLS + DROPS_TO + reason as usize,
            1,
        );
    }

    #[inline]
    pub(crate) fn rule_passed(&self, slot: RuleSlot, frames: u64, bytes: u64) {
        let start = slot.0 as usize * RULE_CELLS;
        bump(&self.rules, start, frames);
        bump(&self.rules, start + 1, bytes);
    }

    #[inline]
    pub(crate) fn rule_admitted(&self, slot: RuleSlot) {
        bump(&self.rules, slot.0 as usize * RULE_CELLS + 2, 1);
    }
}

/// Adds without a locked instruction: right because there is one writer.
#[inline]
fn bump(cells: &[AtomicU64], index: usize, by: u64) {
    if let Some(cell) = cells.get(index) {
        cell.store(
            cell.load(Ordering::Relaxed).wrapping_add(by),
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_goes_to_its_own_cell_and_slots_beyond_the_maximum_to_none() {
        let counters = Counters::new();
        let last = PortSlot(MAX_SLOTS as u32 - 1);
        counters.received(last, 2, 120);
        counters.delivered(last, 60);
        counters.dropped_from(last, DropReason::Truncated);
        counters.dropped_to(last, DropReason::TargetBroken);
        counters.dropped_to(PortSlot(MAX_SLOTS as u32), DropReason::Truncated);
        counters.rule_passed(RuleSlot(u32::MAX), 1, 1);

        let mut expected = PortCounters {
            rx_frames: 2,
            rx_bytes: 120,
            tx_frames: 1,
            tx_bytes: 60,
            ..PortCounters::default()
        };
        expected.drops_from[0] = 1;
        expected.drops_to[REASONS - 1] = 1;
        assert_eq!(counters.port(last), expected);
        assert_eq!(counters.port(PortSlot(0)), PortCounters::default());
        assert_eq!(counters.port(PortSlot(u32::MAX)), PortCounters::default());
    }

    #[test]
    fn what_was_counted_before_this_process_is_in_what_is_counted_since() {
        let counters = Counters::new();
        let slot = PortSlot(3);
        counters.received(slot, 5, 500);
        let (begun, carried) = (
            counters.port(slot),
            PortCounters {
                rx_frames: 1_000,
                rx_bytes: 1 << 40,
                ..PortCounters::default()
            },
        );
        let baseline = begun.less(&carried);
        assert_eq!(counters.port(slot).since(&baseline), carried);
        counters.received(slot, 1, 60);
        let now = counters.port(slot).since(&baseline);
        assert_eq!((now.rx_frames, now.rx_bytes), (1_001, (1 << 40) + 60));
        assert_eq!(begun.since(&counters.port(slot)).rx_frames, 0);
        let rule = RuleCounters::default().less(&RuleCounters::of([7, 8, 9]));
        assert_eq!(RuleCounters::of([1, 1, 1]).since(&rule).cells(), [8, 9, 10]);
    }
}
