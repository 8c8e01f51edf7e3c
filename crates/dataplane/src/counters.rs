//! What a worker counts: frames and bytes per port, drops per port and reason, hits per rule.
//!
//! One [`Counters`] belongs to one worker, the only writer; anybody reads. So a count is a relaxed
//! load and a relaxed store, no locked instruction, and no cache line is written by two workers.
//! Readers add the workers' numbers up. The arrays are as large as the stated maxima and zeroed
//! lazily by the kernel: a page costs memory once a port or rule in it has counted something.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::drop_reason::{DropReason, REASONS};
pub use crate::ids::{MAX_PORTS, MAX_RULES, MAX_UPLINKS};
use crate::ids::{PortSlot, RuleSlot};

/// Slots with counters and queues of their own.
pub(crate) const MAX_SLOTS: usize = MAX_PORTS + MAX_UPLINKS;

/// u64 cells of one port: 5 of traffic, then the drops of frames from it, then of frames to it.
const PORT_CELLS: usize = 5 + 2 * REASONS;
const RX_FRAMES: usize = 0;
const RX_BYTES: usize = 1;
const TX_FRAMES: usize = 2;
const TX_BYTES: usize = 3;
const KERNEL_FRAMES: usize = 4;
const DROPS_FROM: usize = 5;
const DROPS_TO: usize = 5 + REASONS;

/// u64 cells of one rule.
const RULE_CELLS: usize = 3;

/// The counters of one worker.
pub struct Counters {
    ports: Box<[AtomicU64]>,
    rules: Box<[AtomicU64]>,
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
    /// Of the frames received, those that the kernel has forwarded ([`flow::kernel`](crate::flow::kernel)).
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
    /// Adds what another worker counted for the same port.
    pub fn add(&mut self, other: &PortCounters) {
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.tx_frames += other.tx_frames;
        self.tx_bytes += other.tx_bytes;
        self.kernel_frames += other.kernel_frames;
        for (mine, theirs) in self.drops_from.iter_mut().zip(other.drops_from) {
            *mine += theirs;
        }
        for (mine, theirs) in self.drops_to.iter_mut().zip(other.drops_to) {
            *mine += theirs;
        }
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
    /// Adds what another worker counted for the same rule.
    pub fn add(&mut self, other: &RuleCounters) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.flows += other.flows;
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// All zero.
    pub fn new() -> Self {
        Counters {
            ports: bytemuck::allocation::zeroed_slice_box(MAX_SLOTS * PORT_CELLS),
            rules: bytemuck::allocation::zeroed_slice_box(MAX_RULES * RULE_CELLS),
        }
    }

    /// What a port has counted.
    pub fn port(&self, slot: PortSlot) -> PortCounters {
        let start = slot.0 as usize * PORT_CELLS;
        let Some(cells) = self.ports.get(start..start + PORT_CELLS) else {
            return PortCounters::default();
        };
        let read = |index: usize| cells[index].load(Ordering::Relaxed);
        PortCounters {
            rx_frames: read(RX_FRAMES),
            rx_bytes: read(RX_BYTES),
            tx_frames: read(TX_FRAMES),
            tx_bytes: read(TX_BYTES),
            kernel_frames: read(KERNEL_FRAMES),
            drops_from: std::array::from_fn(|reason| read(DROPS_FROM + reason)),
            drops_to: std::array::from_fn(|reason| read(DROPS_TO + reason)),
        }
    }

    /// Adds the drops of all NICs: frames from them, and to them.
    pub(crate) fn add_drops(&self, sums: &mut [[u64; REASONS]; 2]) {
        for cells in self.ports[..MAX_PORTS * PORT_CELLS].chunks_exact(PORT_CELLS) {
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
        RuleCounters {
            frames: read(0),
            bytes: read(1),
            flows: read(2),
        }
    }

    /// Starts a port's counters again from zero: a new NIC has taken the slot. Control calls it
    /// when it gives a slot away, before the snapshot with the new NIC is published, so the worker
    /// does not count there.
    pub fn reset_port(&self, slot: PortSlot) {
        let start = slot.0 as usize * PORT_CELLS;
        if let Some(cells) = self.ports.get(start..start + PORT_CELLS) {
            cells
                .iter()
                .for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
    }

    /// Starts a rule's counters again from zero, as [`Counters::reset_port`] does.
    pub fn reset_rule(&self, slot: RuleSlot) {
        let start = slot.0 as usize * RULE_CELLS;
        if let Some(cells) = self.rules.get(start..start + RULE_CELLS) {
            cells
                .iter()
                .for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
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
        counters.reset_port(last);
        assert_eq!(counters.port(last), PortCounters::default());
    }
}
