//! The fast path of frames from the wire: of a flow that is known in all, from a machine that may
//! be where they come from, to a NIC of this host. They are of many networks and senders at once.

use super::*;
use crate::learned::Location;
use crate::overlay::TunnelSource;
use crate::stages::spoof;

/// Which machines on other hosts send to which NICs.
pub(super) struct Routes {
    routes: Box<[Option<Route>; ROUTES]>,
}

/// What may take the fast path under the snapshot in force: a machine behind a host, and the
/// target that it may send to.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub from: TunnelSource,
    pub src: u64,
    pub dst: u64,
    pub target: PortSlot,
    ends: Ends,
    /// The longest frame that the target takes.
    pub max_frame: u32,
    free: [Option<Free>; 2],
    /// By address family: the source address that was last seen to be one that may come from there.
    checked: [Option<[u64; 2]>; 2],
    /// It was learnt: to be heard of again, by the whole path.
    pub until_secs: Option<u32>,
}

impl Routes {
    /// The route of a run.
    pub(super) fn route(&self, index: u8) -> Option<&Route> {
        self.routes[usize::from(index) % ROUTES].as_ref()
    }

    pub(super) fn new() -> Routes {
        Routes {
            routes: Box::new([None; ROUTES]),
        }
    }

    pub(super) fn forget(&mut self) {
        self.routes.fill(None);
    }

    pub(super) fn forget_learnt(&mut self) {
        let is_learnt = |route: &Option<Route>| route.is_some_and(|it| it.until_secs.is_some());
        for route in self.routes.iter_mut().filter(|route| is_learnt(route)) {
            *route = None;
        }
    }

    /// The route of frames between two MAC addresses, as an index. `None`: the whole path is to see
    /// them.
    #[inline]
    fn find(
        &mut self,
        round: &Round,
        runs: &Runs,
        from: TunnelSource,
        src: u64,
        dst: u64,
    ) -> Option<usize> {
        let mixed = (dst ^ src.rotate_left(24) ^ u64::from(from.network.0) << 40)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> 56) as usize % ROUTES;
        let known = self.routes[index]
            .as_ref()
            .filter(|known| (known.from, known.src, known.dst) == (from, src, dst));
        let stale = known.is_some_and(|known| {
            known
                .until_secs
                .is_some_and(|until| round.now.secs() >= until)
        });
        if known.is_some() && !stale {
            return Some(index);
        }
        // A packet before this one in the batch goes by what is there.
        if runs.uses(index) {
            return None;
        }
        if stale {
            self.routes[index] = None;
            return None;
        }
        self.routes[index] = Some(Route::find(round, from, src, dst)?);
        Some(index)
    }
}

impl Route {
    #[cold]
    fn find(round: &Round, from: TunnelSource, src: u64, dst: u64) -> Option<Route> {
        let (view, network) = (round.view, round.view.network(from.network)?);
        let (src_mac, overlay) = (mac_of(src), network.overlay.as_ref()?);
        spoof::check_remote_mac(view, from, src_mac).ok()?;
        let learns = overlay.learn && !overlay.bindings.contains_key(&src_mac);
        let learned = &round.tables.learned;
        // The machine was heard of at that host last.
        let is_there = || {
            let heard = learned.find(network.vni, src_mac, round.now.secs());
            heard == Some(Location::Host(from.host))
        };
        if learns && !is_there() {
            return None;
        }
        let (slot, remote) = (
            network.only_holder(&mac_of(dst))?,
            view.remote(from.network)?,
        );
        let target = view
            .port(slot)
            .filter(|target| !target.is_sniffer && !target.link_down)?;
        Some(Route {
            from,
            src,
            dst,
            target: slot,
            ends: Ends::new(remote.uid, target.uid),
            max_frame: max_frame_of(target),
            free: [false, true].map(|v6| Free::between(view, remote, target, v6)),
            checked: [None; 2],
            until_secs: learns.then(|| round.now.secs() + RELY_SECS),
        })
    }
}

impl Route {
    /// Its machine's host may send from the packet's source address. Mostly that is the same as
    /// before.
    #[inline]
    fn may_send_from<const V6: bool>(&mut self, view: &View, plain: &Plain) -> bool {
        let [a, b, ..] = plain.ip;
        let source = if V6 { [a, b] } else { [a >> 32, 0] };
        let checked = &mut self.checked[usize::from(V6)];
        if *checked == Some(source) {
            return true;
        }
        let address = match V6 {
            false => IpAddr::V4((source[0] as u32).into()),
            true => IpAddr::V6((u128::from(a) << 64 | u128::from(b)).into()),
        };
        let may = spoof::check_remote_ip(view, self.from, address).is_ok();
        if may {
            *checked = Some(source);
        }
        may
    }
}

impl FastPath {
    /// Does what [`run`](FastPath::run) does, for those frames of a batch from the wire whose bits
    /// are set in `going`.
    pub(crate) fn run_arriving(&mut self, round: &mut Round, going: Bits) -> Bits {
        let Some(sources) = round.sources else {
            return going;
        };
        let mut choice = Choice {
            left: going,
            v6: 0,
            tally: Tally::default(),
        };
        self.runs.clear();
        let mut rest = going;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let from = sources[index % BATCH];
            match parse::ethertype_of(round.batch.frames()[index].head()) {
                ethertype::IPV4 => self.choose_arriving::<false>(round, index, from, &mut choice),
                ethertype::IPV6 => self.choose_arriving::<true>(round, index, from, &mut choice),
                _ => {}
            }
        }
        let Choice {
            mut left,
            mut tally,
            ..
        } = choice;
        let mut in_order = round.jobs.is_empty();
        let routes = &self.arriving.routes;
        let to = |run: &Run, steer: u32| {
            let route = routes[usize::from(run.route)].as_ref();
            let target = route.map_or(PortSlot::default(), |route| route.target);
            (target, steer)
        };
        let unchosen = left;
        left |= self.runs.follow(round, unchosen, &mut tally, to);
        if self.runs.may_begin() {
            let view = round.view;
            let ends = |run: &Run| {
                let route = routes[usize::from(run.route)].as_ref()?;
                Some((view.remote(route.from.network)?, view.port(route.target)?))
            };
            left &= !self.runs.begin(round, &mut tally, ends, to).decided;
            in_order = false;
        }
        tally.settle(round.counters);
        if !in_order {
            round.jobs.sort_unstable_by_key(|job| job.frame);
        }
        left
    }

    /// Passes a packet that is free to pass, or notes one that has to have a flow.
    #[inline(always)]
    fn choose_arriving<const V6: bool>(
        &mut self,
        round: &mut Round,
        index: usize,
        from: TunnelSource,
        choice: &mut Choice,
    ) {
        let frame = &round.batch.frames()[index];
        let len = frame.len();
        let Some(plain) = parse::plain::<V6>(frame.head(), len) else {
            return;
        };
        if frame.fault().is_some() || !plain.suits(len, &frame.offload) {
            return;
        }
        let Some(route) = self
            .arriving
            .find(round, &self.runs, from, plain.src, plain.dst)
        else {
            return;
        };
        let Some(to) = &mut self.arriving.routes[route % ROUTES] else {
            return;
        };
        if len > to.max_frame as usize && !fits(frame, &plain, to.max_frame) {
            return;
        }
        // The flow's key would not tell whose address it is: another host may send the same.
        if !to.may_send_from::<V6>(round.view, &plain) {
            return;
        }
        if let Some(free) = &to.free[usize::from(V6)] {
            if free.lets_pass::<V6>(&plain) {
                choice.tally.add(round.counters, free.rules, 1, len as u64);
                let steer = plain.ports ^ plain.ports >> 16;
                round.jobs.push(pass(index as u8, (to.target, steer)));
                choice.left &= !(1 << index);
            }
            return;
        }
        let chosen = Chosen {
            frame: index,
            len,
            route,
            key: Key::of_plain::<V6>(&plain, &to.ends),
            side: to.ends.sender,
            transport: plain.transport,
        };
        self.runs.add(&round.tables.flows, chosen, || 0);
        choice.left &= !(1 << index);
    }
}
