//! What the fast path has just let pass between two devices of the kernel's, the kernel may forward
//! from now on: see [`flow::kernel`](crate::flow::kernel).

use wire::parse::protocol::{TCP, UDP};

use super::runs::Terms;
use super::{FastPath, Run};
use crate::flow::is_followed;
use crate::flow::kernel::{ENOUGH, Offer};
use crate::round::Round;
use crate::snapshot::PortConfig;

impl FastPath {
    /// Permits the directions of the last batch whose packets need no look at anything but their
    /// flow, or has them entered.
    #[inline]
    pub(crate) fn offer(&self, round: &Round) {
        let flows = &round.tables.flows;
        if let Some(kernel) = &flows.kernel
            && kernel.serves(round.nic.slot)
            && is_unwatched(round.nic)
        {
            for run in self.runs.all() {
                self.offer_run(round, run);
            }
        }
    }

    fn offer_run(&self, round: &Round, run: &Run) {
        let flows = &round.tables.flows;
        let Some(kernel) = &flows.kernel else { return };
        let Some(route) = self.routes.get(usize::from(run.route)) else {
            return;
        };
        let target = match route.far {
            None => round.view.port(route.target),
            Some(_) => None,
        };
        let target = target.filter(|target| is_unwatched(target) && kernel.serves(target.slot));
        let (Some(target), Some(id)) = (target, flows.find(&run.key, run.hash)) else {
            return;
        };
        let (entry, side) = (flows.entry(id), run.side());
        let mine = &entry.sides[side];
        let state = entry.state.get();
        let terms = Terms::of(round, self.runs.transports(), 0);
        let passes = match entry.protocol() {
            TCP => is_followed(mine),
            UDP => true,
            _ => false,
        };
        if passes
            && mine.frames.get() >= ENOUGH
            && super::runs::is_open(&terms, entry, side)
            && run.is_settled(entry)
        {
            let offer = Offer {
                id,
                entry,
                state,
                side,
                from: (round.nic.slot, round.nic.mac),
                to: (target.slot, target.mac),
                max_frame: route.max_frame,
            };
            kernel.offer(&offer, round.now);
        }
    }
}

/// Nobody has to see, count or hold each of its frames.
fn is_unwatched(nic: &PortConfig) -> bool {
    let watched = nic.trace.is_some() || !nic.sniffers.is_empty() || nic.is_sniffer;
    !watched && !nic.link_down && nic.meters.is_none()
}
