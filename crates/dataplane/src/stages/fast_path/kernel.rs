//! What the fast path has just let pass between two devices of the kernel's, or between one and
//! another host, the kernel may forward from now on: see [`flow::kernel`](crate::flow::kernel).

use wire::parse::mac_of;
use wire::parse::protocol::{TCP, UDP};

use super::runs::Terms;
use super::{Far, FastPath, Run};
use crate::flow::kernel::{ENOUGH, Offer, Way};
use crate::flow::{Entry, is_followed};
use crate::round::Round;
use crate::snapshot::PortConfig;

const NS_PER_S: u64 = 1_000_000_000;

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
        let target = round.view.port(route.target).filter(|it| is_unwatched(it));
        let (Some(target), Some(id)) = (target, flows.find(&run.key, run.hash)) else {
            return;
        };
        let (way, mac) = match &route.far {
            None => (Way::Near(target.slot), target.mac),
            Some(far) => match far.way(round, run.outer_hash) {
                Some(way) => (way, mac_of(route.mac)),
                None => return,
            },
        };
        if let Way::Near(slot) = way
            && !kernel.serves(slot)
        {
            return;
        }
        let until_secs = route.far.and_then(|far| far.until_secs);
        let (entry, side) = (flows.entry(id), run.side());
        let state = entry.state.get();
        let terms = Terms::of(round, self.runs.transports(), 0);
        if goes_on_so(&terms, run, entry) {
            let offer = Offer {
                id,
                entry,
                state,
                side,
                from: (round.nic.slot, round.nic.mac),
                to: (way, mac),
                max_frame: route.max_frame,
                until_ns: until_secs.map_or(u64::MAX, |secs| u64::from(secs) * NS_PER_S),
            };
            kernel.offer(&offer, round.now);
        }
    }

    /// Does what [`offer`](Self::offer) does for a batch from the wire.
    #[inline]
    pub(crate) fn offer_arriving(&self, round: &Round) {
        let flows = &round.tables.flows;
        if let Some(kernel) = &flows.kernel
            && kernel.serves(round.from.slot)
            && round.view.uplink_taps().is_empty()
        {
            for run in self.runs.all() {
                self.offer_arriving_run(round, run);
            }
        }
    }

    fn offer_arriving_run(&self, round: &Round, run: &Run) -> Option<()> {
        let flows = &round.tables.flows;
        let kernel = flows.kernel.as_ref()?;
        let route = self.arriving.route(run.route)?;
        let target = round
            .view
            .port(route.target)
            .filter(|it| is_unwatched(it))?;
        let from = round
            .view
            .remote(route.from.network)
            .filter(|it| is_unwatched(it))?;
        let hop = round.underlay.hop_by(route.from.host, round.from.slot)?;
        if !kernel.serves(target.slot) || !kernel.is_at(round.from.slot, hop.device) {
            return None;
        }
        let id = flows.find(&run.key, run.hash)?;
        let entry = flows.entry(id);
        let state = entry.state.get();
        let terms = Terms::of(round, self.runs.transports(), 0);
        if goes_on_so(&terms, run, entry) {
            let way = Way::Back {
                hop,
                vni: from.vni,
                to: target.slot,
            };
            let until_secs = route.until_secs;
            let offer = Offer {
                id,
                entry,
                state,
                side: run.side(),
                from: (round.from.slot, mac_of(route.src)),
                to: (way, mac_of(route.dst)),
                max_frame: route.max_frame,
                until_ns: until_secs.map_or(u64::MAX, |secs| u64::from(secs) * NS_PER_S),
            };
            kernel.offer(&offer, round.now);
        }
        Some(())
    }
}

/// The packets that follow need no look at anything but their flow, of which there were enough.
fn goes_on_so(terms: &Terms, run: &Run, entry: &Entry) -> bool {
    let side = run.side();
    let mine = &entry.sides[side];
    let passes = match entry.protocol() {
        TCP => is_followed(mine),
        UDP => true,
        _ => false,
    };
    passes
        && mine.frames.get() >= ENOUGH
        && super::runs::is_open(terms, entry, side)
        && run.is_settled(entry)
}

impl Far {
    /// How the kernel gets there with a flow of this hash; `None`: it does not.
    fn way<'a>(&self, round: &Round<'a>, hash: u32) -> Option<Way<'a>> {
        let underlay = round.underlay;
        let hop = underlay.hop(underlay.choose(self.path, hash))?;
        let sends = hop.device != 0 && !hop.outer.needs_sum();
        (sends && round.view.uplink_taps().is_empty()).then_some(Way::Far {
            hop,
            vni: round.nic.vni,
            hash,
            dscp: underlay.encapsulation().dscp,
        })
    }
}

/// Nobody has to see, count or hold each of its frames.
fn is_unwatched(nic: &PortConfig) -> bool {
    let watched = nic.trace.is_some() || !nic.sniffers.is_empty() || nic.is_sniffer;
    !watched && !nic.link_down && nic.meters.is_none()
}
