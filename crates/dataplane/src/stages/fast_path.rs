//! The fast path: plain packets of which everything is known already take it, past all steps but
//! delivery.
//!
//! A plain packet (untagged, whole, no IP options, TCP, UDP or an ICMP echo) from the NIC's own MAC
//! to one that a NIC was given belongs to a flow that its addresses, ports and both NICs tell. If a
//! packet of this side of the flow has passed under the snapshot in force, or its first packet has
//! and this side answers ([`open`], [`begin`](crate::stages::begin)), every check of the whole path
//! would say the same of this one: the key holds all that they look at. What is left is to follow
//! the flow: amid a TCP connection that is a few numbers. Between two NICs that allow everything
//! there is no flow; for those the fast path remembers who they are.
//!
//! What may take the fast path is chosen first, its flows are followed then (`runs.rs`), and those
//! begun that are not known (`first.rs`). Everything else, faulty packets included, is left to the
//! whole path: bits of that are given back. Nothing is refused here but what the rules refuse, or
//! what can begin no flow.
//!
//! Gained by it (2026-11-21, cycles a frame of 64 bytes under 100 rules): 235 to 96, over 65,536
//! flows 300 to 171.

mod arriving;
mod first;
mod kernel;
mod runs;

use std::net::IpAddr;

use io::frame::{BATCH, Bits, Frame, first_bits};
use wire::dhcp;
use wire::offload::{Gso, Offload};
use wire::parse::{self, Plain, ethertype, mac_bits, mac_of};
use wire::vxlan::plain_hash;

use crate::counters::Counters;
use crate::flow::{Ends, FlowId, Half, Key, Side};
use crate::ids::PortSlot;
use crate::opening::Opening;
use crate::round::{Job, NO_CASE, Round, Verdict, count_rules};
use crate::snapshot::PortConfig;
use crate::stages::destination;
use crate::underlay::{PathIdx, Underlay};
use crate::view::View;
use crate::work::Costly;
use first::Begun;
use runs::{Chosen, Run, Runs};

/// Pairs of a sender and a MAC address that are remembered, and as many of machines on other hosts.
const ROUTES: usize = 256;

/// What the fast path remembers from batch to batch.
pub(crate) struct FastPath {
    routes: Box<[Route; ROUTES]>,
    runs: Runs,
    arriving: arriving::Routes,
    /// Of the last batch of a NIC.
    begun: Begun,
}

/// The target that a NIC reaches at a MAC address, under the snapshot in force.
#[derive(Clone, Copy, Default)]
#[repr(align(128))] // a power of two: found by a shift
struct Route {
    mac: u64,
    /// The sender's slot; the default is of no sender.
    source: Option<PortSlot>,
    target: PortSlot,
    ends: Ends,
    /// The longest frame that gets there.
    max_frame: u32,
    /// Everything passes, by address family.
    free: [Option<Free>; 2],
    /// It is on another host.
    far: Option<Far>,
}

/// Where on other hosts.
#[derive(Clone, Copy)]
struct Far {
    path: PathIdx,
    /// It was learnt, and is not to be relied on for longer.
    until_secs: Option<u32>,
}

/// How long what was learnt is relied on, seconds: less than [aging](crate::learned::AGING_SECS) by
/// far.
pub(crate) const RELY_SECS: u32 = 10;

/// The terms on which everything passes.
#[derive(Clone, Copy)]
struct Free {
    /// From this address alone, as [`Plain::ip`] has it.
    from: Option<[u64; 2]>,
    /// By these rules.
    rules: [u32; 2],
}

/// What became of a batch's frames so far.
struct Choice {
    /// Those that do not take the fast path, as bits.
    left: Bits,
    /// Those of IPv6.
    v6: Bits,
    tally: Tally,
}

/// The target of a job, and the queue pair there: see [`Job`]. A job that is copied as a whole goes
/// by way of the stack, in pieces, which takes a dozen cycles.
type To = (PortSlot, u32);

/// Packets that pass by the same two rules, of one flow or several, which are counted together.
#[derive(Default)]
struct Tally {
    rules: [u32; 2],
    frames: u64,
    bytes: u64,
}

impl FastPath {
    pub(crate) fn new() -> FastPath {
        FastPath {
            routes: Box::new([Route::default(); ROUTES]),
            runs: Runs::new(),
            arriving: arriving::Routes::new(),
            begun: Begun::default(),
        }
    }

    /// Another snapshot is in force.
    pub(crate) fn forget(&mut self) {
        self.routes.fill(Route::default());
        self.arriving.forget();
    }

    /// A machine that was learnt has moved: what was learnt is void, and what was declared is not.
    pub(crate) fn forget_learnt(&mut self) {
        let is_learnt = |route: &Route| route.far.is_some_and(|far| far.until_secs.is_some());
        for route in self.routes.iter_mut().filter(|route| is_learnt(route)) {
            *route = Route::default();
        }
        self.arriving.forget_learnt();
    }

    /// Which frames of the last batch of a NIC took more than others, where these are left.
    pub(crate) fn costly(&self, left: Bits) -> Costly {
        Costly {
            whole: left.count_ones(),
            entered: self.begun.entered,
            asked: self.begun.asked,
            tracked: self.runs.tracked(),
        }
    }

    /// Adds a job for each packet that needs no more, in the order of the frames. Gives the frames
    /// that are left, as bits.
    pub(crate) fn run(&mut self, round: &mut Round) -> Bits {
        let all = first_bits(round.batch.len());
        let nic = round.nic;
        self.begun = Begun::default();
        self.runs.clear();
        if nic.is_sniffer || nic.link_down || nic.trace.is_some() || !nic.sniffers.is_empty() {
            return all;
        }
        let mut choice = Choice {
            left: all,
            v6: 0,
            tally: Tally::default(),
        };
        self.choose::<false>(round, &mut choice);
        if choice.v6 != 0 {
            self.choose::<true>(round, &mut choice);
        }
        let Choice {
            mut left,
            v6,
            mut tally,
        } = choice;
        let mut in_order = v6 == 0 && round.jobs.is_empty();
        let (routes, underlay) = (&self.routes, round.underlay);
        let to = |run: &Run, steer: u32| {
            let route = &routes[usize::from(run.route)];
            match &route.far {
                None => (route.target, steer),
                Some(far) => far.to(underlay, run.outer_hash),
            }
        };
        let unchosen = left;
        left |= self.runs.follow(round, unchosen, &mut tally, to);
        if self.runs.may_begin() {
            let view = round.view;
            let ends = |run: &Run| {
                let target = routes[usize::from(run.route)].target;
                Some((nic, view.port(target)?))
            };
            self.begun = self.runs.begin(round, &mut tally, ends, to);
            left &= !self.begun.decided;
            in_order = false;
        }
        tally.settle(round.counters);
        if !in_order {
            round.jobs.sort_unstable_by_key(|job| job.frame);
        }
        left
    }

    /// Passes the packets of one family that are free to pass, and notes those that have to have a
    /// flow. Compiled for each family, so that IPv4 has no room for addresses of IPv6: 84 cycles a
    /// frame where it was 94 (docs/journal/2026-11-23-cycles.md).
    #[inline(always)]
    fn choose<const V6: bool>(&mut self, round: &mut Round, choice: &mut Choice) {
        let own_mac = mac_bits(round.nic.mac);
        let Choice {
            mut left, mut v6, ..
        } = *choice;
        // The route of the packet before.
        let (mut mac, mut route) = (u64::MAX, 0);
        for (index, frame) in round.batch.frames().iter().enumerate() {
            let (head, len) = (frame.head(), frame.len());
            let ethertype = parse::ethertype_of(head);
            if ethertype != if V6 { ethertype::IPV6 } else { ethertype::IPV4 } {
                v6 |= Bits::from(ethertype == ethertype::IPV6) << index;
                continue;
            }
            round.batch.fetch_body(index);
            let Some(plain) = parse::plain::<V6>(head, len) else {
                left &= !(self.choose_echo::<V6>(round, index, choice) << index);
                // An echo's route may have taken the place of that one.
                mac = u64::MAX;
                continue;
            };
            if plain.src != own_mac || frame.fault().is_some() || !plain.suits(len, &frame.offload)
            {
                continue;
            }
            if plain.dst != mac {
                let Some(found) = self.route(round, plain.dst) else {
                    continue;
                };
                (mac, route) = (plain.dst, found);
            }
            let to = &self.routes[route % ROUTES];
            if len > to.max_frame as usize && !fits(frame, &plain, to.max_frame) {
                continue;
            }
            let outer_hash = || to.far.as_ref().map_or(0, |_| plain_hash::<V6>(&plain));
            if let Some(free) = &to.free[usize::from(V6)] {
                if free.lets_pass::<V6>(&plain) {
                    choice.tally.add(round.counters, free.rules, 1, len as u64);
                    let steer = plain.ports ^ plain.ports >> 16;
                    let to = match &to.far {
                        None => (to.target, steer),
                        Some(far) => far.to(round.underlay, outer_hash()),
                    };
                    round.jobs.push(pass(index as u8, to));
                    left &= !(1 << index);
                }
                continue;
            }
            let chosen = Chosen {
                frame: index,
                len,
                route,
                key: Key::of_plain::<V6>(&plain, &to.ends),
                side: to.ends.sender,
                transport: plain.transport,
            };
            self.runs.add(&round.tables.flows, chosen, outer_hash);
            left &= !(1 << index);
        }
        (choice.left, choice.v6) = (left, v6);
    }

    /// Does the same with an echo request or reply, if it is for a NIC of this host; 1 if it is.
    #[inline(never)]
    fn choose_echo<const V6: bool>(
        &mut self,
        round: &mut Round,
        index: usize,
        choice: &mut Choice,
    ) -> Bits {
        let frame = &round.batch.frames()[index];
        let len = frame.len();
        let Some(echo) = parse::echo::<V6>(frame.head(), len) else {
            return 0;
        };
        let undone = frame.fault().is_some() || frame.offload != Offload::default();
        if echo.src != mac_bits(round.nic.mac) || undone {
            return 0;
        }
        let Some(route) = self.route(round, echo.dst) else {
            return 0;
        };
        let to = &self.routes[route % ROUTES];
        if to.far.is_some() || len > to.max_frame as usize {
            return 0;
        }
        if let Some(free) = &to.free[usize::from(V6)] {
            let passes = free.lets_pass::<V6>(&echo);
            if passes {
                choice.tally.add(round.counters, free.rules, 1, len as u64);
                round.jobs.push(pass(index as u8, (to.target, 0)));
            }
            return passes.into();
        }
        let Some(key) = Key::of_echo::<V6>(&echo, &to.ends) else {
            return 0;
        };
        let chosen = Chosen {
            frame: index,
            len,
            route,
            key,
            side: to.ends.sender,
            transport: echo.transport,
        };
        self.runs.add(&round.tables.flows, chosen, || 0);
        1
    }

    /// The route to a MAC address, as an index. `None` when that is not the address of another NIC,
    /// or when the route has no place: a packet before it in the batch goes by another one.
    #[inline]
    fn route(&mut self, round: &Round, mac: u64) -> Option<usize> {
        let nic = round.nic;
        let index = place(nic.slot, mac);
        let known = &self.routes[index];
        let stale = known.far.is_some_and(|far| far.is_stale(round.now.secs()));
        if known.mac != mac || known.source != Some(nic.slot) || stale {
            if self.runs.uses(index) {
                return None;
            }
            self.routes[index] = Route::find(round, mac)?;
        }
        Some(index)
    }
}

impl Route {
    #[cold]
    fn find(round: &Round, mac: u64) -> Option<Route> {
        let (view, nic) = (round.view, round.nic);
        let network = view.network(nic.network)?;
        // Who of those that share a MAC address has it is learnt from each of their frames: by the
        // whole path.
        if network.holders(&nic.mac).is_some() {
            return None;
        }
        let mut max_frame = None;
        let (slot, far) = match destination::find(round, network, mac_of(mac))? {
            // Learnt on this host: the whole path looks where that is.
            destination::Target::Nic(slot) if network.only_holder(&mac_of(mac)) != Some(slot) => {
                return None;
            }
            destination::Target::Nic(slot) => (slot, None),
            destination::Target::Host(host) => {
                let path = round.underlay.find(host)?;
                let overlay = network.overlay.as_ref()?;
                let given = overlay.bindings.contains_key(&mac_of(mac));
                max_frame = Some(round.underlay.max_frame(path));
                let far = Far {
                    path,
                    until_secs: (!given).then(|| round.now.secs() + RELY_SECS),
                };
                (PortSlot::remote(nic.network), Some(far))
            }
        };
        let target = view
            .port(slot)
            .filter(|target| !target.is_sniffer && !target.link_down && slot != nic.slot)?;
        Some(Route {
            mac,
            source: Some(nic.slot),
            target: slot,
            ends: Ends::new(nic.uid, target.uid),
            max_frame: max_frame.unwrap_or_else(|| max_frame_of(target)),
            free: [false, true].map(|v6| Free::between(view, nic, target, v6)),
            far,
        })
    }
}

/// The place of the route by which a NIC reaches a MAC address.
#[inline]
fn place(sender: PortSlot, mac: u64) -> usize {
    let mixed = (mac ^ u64::from(sender.0) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % ROUTES
}

/// The longest plain frame that a NIC of this host takes.
fn max_frame_of(target: &PortConfig) -> u32 {
    u32::from(target.mtu) + parse::ETHERNET_LEN as u32
}

/// A frame that is longer than `max` is not when it is cut into its segments.
fn fits(frame: &Frame, plain: &Plain, max: u32) -> bool {
    let segment = plain.transport.header_end(frame.head()) + usize::from(frame.offload.gso_size);
    frame.offload.gso != Gso::None && segment <= max as usize
}

impl Far {
    fn is_stale(&self, now_secs: u32) -> bool {
        self.until_secs.is_some_and(|until| now_secs >= until)
    }

    /// Where the frames of a flow with this hash go.
    #[inline]
    fn to(&self, underlay: &Underlay, hash: u32) -> To {
        (PortSlot::hop(underlay.choose(self.path, hash)), hash)
    }
}

impl Free {
    /// Between two NICs that allow everything (security-groups.md 12).
    fn between(view: &View, nic: &PortConfig, target: &PortConfig, v6: bool) -> Option<Free> {
        let openings = view.stateless(nic.slot, target.slot, v6)?;
        let only_own = !nic.bypass && (nic.anti_spoof || openings[0] == Opening::Free);
        let from = match only_own {
            true => Some(
                nic.addresses
                    .iter()
                    .find(|address| address.is_ipv6() == v6)?,
            ),
            false => None,
        };
        Some(Free {
            from: from.map(|address| match address {
                IpAddr::V4(v4) => [v4.to_bits().into(), 0],
                IpAddr::V6(v6) => [(v6.to_bits() >> 64) as u64, v6.to_bits() as u64],
            }),
            rules: openings.map(Opening::rule_slot),
        })
    }

    #[inline]
    fn lets_pass<const V6: bool>(&self, plain: &Plain) -> bool {
        let dhcp = |port: u32| dhcp::is_port(port as u16);
        let [first, second, ..] = plain.ip;
        let from = if V6 {
            [first, second]
        } else {
            [first >> 32, 0]
        };
        self.from.is_none_or(|own| own == from) && !dhcp(plain.ports) && !dhcp(plain.ports >> 16)
    }
}

impl Tally {
    #[inline]
    fn add(&mut self, counters: &Counters, rules: [u32; 2], frames: u64, bytes: u64) {
        if self.rules != rules {
            self.settle(counters);
            *self = Tally {
                rules,
                ..Tally::default()
            };
        }
        self.frames += frames;
        self.bytes += bytes;
    }

    #[inline]
    fn settle(&self, counters: &Counters) {
        if self.frames > 0 {
            count_rules(counters, self.rules, self.frames, self.bytes);
        }
    }
}

#[inline(always)]
fn pass(frame: u8, (target, steer): To) -> Job {
    Job {
        frame,
        verdict: Verdict::Pass,
        target,
        steer,
        case: NO_CASE,
    }
}

/// The queue pair that the target of a flow's packet has last sent from, or else one that the flow
/// chooses.
#[inline(always)]
pub(crate) fn steer(sender: &Half, hash: u64) -> u32 {
    match sender.hint.get() {
        0 => hash as u32,
        pair => u32::from(pair - 1),
    }
}

/// The whole path has let a packet of a flow pass: those like it may take the fast path until the
/// next snapshot.
pub(crate) fn open(round: &Round, id: FlowId, side: Side, case: usize) {
    let entry = round.tables.flows.entry(id);
    let packet = &round.items[round.cases[case].item].packet;
    if round.is_from_wire() {
        // Whether its MAC and source address may come from there the fast path asks for itself, but
        // not whether its host may speak as a DHCP server.
        let ip = packet.as_ref().and_then(|packet| packet.ip());
        if !ip.is_some_and(dhcp::is_to_client) {
            entry.sides[side].fast_path.set(round.view.epoch_mark());
        }
        return;
    }
    entry.note_pair(side, round.from.pair);
    // From another MAC of its own (a pair's, or one behind it) it would have to be asked again.
    if packet
        .as_ref()
        .is_some_and(|packet| packet.src == round.nic.mac)
    {
        entry.sides[side].fast_path.set(round.view.epoch_mark());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wire::{Mac, Vni, build};

    use super::*;
    use crate::Simulation;
    use crate::snapshot::{Epoch, Network, NetworkIdx, PortUid, SharedMacs, Snapshot};

    /// A sender and two others, whose MACs have one place, and which all allow everything.
    fn three_of_one_place() -> [PortConfig; 3] {
        let mac = |n: u16| {
            let [high, low] = n.to_be_bytes();
            Mac([2, 0, 0, 0, high, low])
        };
        let place_of = |mac| place(PortSlot(0), mac_bits(mac));
        let shares_it = |other: &Mac| place_of(*other) == place_of(mac(2));
        let third = (3..=u16::MAX).map(mac).find(shares_it).unwrap();
        let (vni, network) = (Vni::new(7).unwrap(), NetworkIdx(0));
        [(0, mac(1)), (1, mac(2)), (2, third)].map(|(slot, mac)| PortConfig {
            bypass: true,
            ..PortConfig::new(PortSlot(slot), PortUid(slot + 1), vni, network, mac)
        })
    }

    /// An echo between two datagrams to one NIC, to another one, takes its route's place.
    #[test]
    fn what_follows_an_echo_goes_where_it_is_for() {
        let nics = three_of_one_place();
        let network = Network {
            vni: nics[0].vni,
            macs: nics.iter().map(|nic| (nic.mac, nic.slot)).collect(),
            shared: SharedMacs::default(),
            ports: nics.iter().map(|nic| nic.slot).collect(),
            learners: Vec::new(),
            overlay: None,
        };
        let mut sim = Simulation::default();
        let peers = [0, 1, 2].map(|slot| sim.attach(PortSlot(slot)));
        sim.publish(Snapshot {
            epoch: Epoch(1),
            ports: nics.iter().cloned().map(Arc::new).map(Some).collect(),
            networks: [Some(Arc::new(network))].into_iter().collect(),
            ..Snapshot::default()
        });
        for (own, other) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let [own, other] = [own, other].map(|text| text.parse::<IpAddr>().unwrap());
            let to = |nic: &PortConfig| build::frame(nics[0].mac, nic.mac).ip(own, other);
            let datagram = to(&nics[1]).udp(1, 2).build();
            let echo = to(&nics[2]).echo_request(1, 1).build();
            for frame in [&datagram, &echo, &datagram] {
                assert!(peers[0].send(frame.clone(), Offload::default()));
            }
            sim.run();
            let received = |peer: usize| -> Vec<Vec<u8>> {
                let frames = std::iter::from_fn(|| peers[peer].receive());
                frames.map(|(frame, _)| frame).collect()
            };
            assert_eq!(received(1), [datagram.clone(), datagram]);
            assert_eq!(received(2), [echo]);
        }
    }

    /// Two NICs that send from one MAC in turn make nobody else's routes cold.
    #[test]
    fn a_machine_that_moves_leaves_routes_to_declared_ones() {
        let mut fast_path = FastPath::new();
        let to = |until_secs: Option<Option<u32>>| Route {
            source: Some(PortSlot(1)),
            far: until_secs.map(|until_secs| Far {
                path: PathIdx::default(),
                until_secs,
            }),
            ..Route::default()
        };
        for (index, far) in [None, Some(None), Some(Some(10))].into_iter().enumerate() {
            fast_path.routes[index] = to(far);
        }
        let known =
            |fast_path: &FastPath| [0, 1, 2].map(|at| fast_path.routes[at].source.is_some());
        fast_path.forget_learnt();
        assert_eq!(known(&fast_path), [true, true, false]);
        fast_path.forget();
        assert_eq!(known(&fast_path), [false; 3]);
    }
}
