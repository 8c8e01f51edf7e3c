//! Captures of uplinks: packets as they are on the wire, outer headers first. NICs' captures are in
//! their configuration ([`View::tapped`](crate::view::View::tapped)); uplinks have none.

use std::sync::Arc;

use io::frame::{BATCH, Batch};
use io::trace::Direction;
use io::trace::capture::Tap;
use wire::vxlan::Outer;

use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::time::Now;

/// Which uplinks are captured, by whom. A copy costs nothing.
#[derive(Clone, Default)]
pub(crate) struct UplinkTaps(Arc<[(PortSlot, Arc<[Tap]>)]>);

impl UplinkTaps {
    /// None is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These take the packets of these uplinks.
    pub(crate) fn new(taps: impl Iterator<Item = (PortSlot, Arc<[Tap]>)>) -> UplinkTaps {
        UplinkTaps(taps.collect())
    }

    fn of(&self, uplink: PortSlot) -> &[Tap] {
        let mut all = self.0.iter();
        all.find(|(slot, _)| *slot == uplink)
            .map_or(&[], |(_, taps)| taps)
    }

    /// Copies of what has come, before its outer headers are taken off; none when nobody wants
    /// them.
    #[inline]
    pub(crate) fn arrived(&self, uplink: PortSlot, batch: &Batch) -> Vec<Vec<u8>> {
        match self.is_empty() || self.of(uplink).is_empty() {
            true => Vec::new(),
            false => (0..batch.len())
                .map(|index| batch.to_bytes(index))
                .collect(),
        }
    }

    /// What has come, and which of it was dropped for its outer headers.
    #[cold]
    pub(crate) fn received(
        &self,
        uplink: PortSlot,
        packets: &[Vec<u8>],
        reasons: &[Option<DropReason>; BATCH],
        now: Now,
    ) {
        for tap in self.of(uplink) {
            for (packet, reason) in packets.iter().zip(reasons) {
                let dropped = reason.map(DropReason::name);
                tap.offer_bytes(Direction::Inbound, packet, dropped, now.unix_ns);
            }
        }
    }

    /// A frame of a batch that was sent in outer headers, or could not be.
    #[cold]
    pub(crate) fn sent(
        &self,
        uplink: PortSlot,
        batch: &Batch,
        frame: usize,
        outer: &Outer,
        dropped: Option<DropReason>,
        now: Now,
    ) {
        let taps = self.of(uplink);
        if taps.is_empty() {
            return;
        }
        let inner = batch.to_bytes(frame);
        let mut packet = vec![0; outer.len()];
        outer.write(&mut packet, inner.len(), batch.sum(frame));
        packet.extend(inner);
        for tap in taps {
            let dropped = dropped.map(DropReason::name);
            tap.offer_bytes(Direction::Outbound, &packet, dropped, now.unix_ns);
        }
    }
}
