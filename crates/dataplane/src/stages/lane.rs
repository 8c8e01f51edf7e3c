//! The lane: plain packets of which everything is known already take it, past all steps but delivery.
//!
//! A plain packet (untagged, whole, no options, TCP or UDP) from the NIC's own MAC to one that a NIC was given belongs
//! to a flow that its addresses, ports and both NICs tell. If the whole path has let a packet of this side of the flow
//! pass under the snapshot in force ([`open`]), every check it made would say the same of this one: the key holds all
//! that they look at. What is left is to follow the flow: amid a TCP connection that is a few numbers. Between two
//! NICs that allow everything there is no flow; for those the lane remembers who they are.
//!
//! Everything else, faulty packets included, is left to the whole path: the lane never drops. Bits of what is left are
//! given back. It works in three passes over the batch, each of which fetches what the next one reads.

use std::net::IpAddr;

use io::frame::{BATCH, Bits, first_bits};
use wire::dhcp;
use wire::offload::Offload;
use wire::parse::{self, Plain, Transport, ethertype, mac_bits, mac_of};

use crate::flow::{Ends, Entry, FlowId, FlowState, Key, NONE, Side, follow_plain, is_amid};
use crate::round::{Job, NO_CASE, Round, Verdict, count_rules};
use crate::snapshot::{PortConfig, PortSlot};
use crate::view::{Opening, View};

/// Pairs of a sender and a MAC address that are remembered.
const ROUTES: usize = 256;

/// What the lane remembers from batch to batch.
pub(crate) struct Lane {
    routes: Box<[Route]>,
    candidates: Box<[Candidate]>,
}

/// Whom a NIC reaches at a MAC address, under the snapshot in force.
#[derive(Clone, Copy, Default)]
struct Route {
    mac: u64,
    /// The sender's slot; nobody's is the default.
    source: Option<PortSlot>,
    target: PortSlot,
    ends: Ends,
    /// Everything passes, by address family.
    free: [Option<Free>; 2],
}

/// The terms on which everything passes.
#[derive(Clone, Copy)]
struct Free {
    /// From this address alone, as [`Plain::ip`] has it.
    from: Option<[u64; 2]>,
    /// By these rules.
    rules: [u32; 2],
}

/// A packet that may take the lane.
#[derive(Clone, Copy)]
struct Candidate {
    key: Key,
    hash: u64,
    /// The flow that it is probably of, or [`NONE`].
    likely: FlowId,
    len: u32,
    frame: u8,
    route: u8,
    transport: Transport,
}

/// What became of a batch's frames so far.
struct Choice {
    /// Those that do not take the lane, as bits.
    left: Bits,
    /// Those of IPv6.
    v6: Bits,
    /// How many candidates there are.
    count: usize,
    tally: Tally,
}

/// Packets of one flow, one after the other, which are counted together.
struct Run {
    id: FlowId,
    side: Side,
    frames: u64,
    bytes: u64,
}

/// Packets that pass by the same two rules, of one flow or several, which are counted together.
#[derive(Default)]
struct Tally {
    rules: [u32; 2],
    frames: u64,
    bytes: u64,
}

impl Lane {
    pub(crate) fn new() -> Lane {
        let nobody = Candidate {
            key: Key {
                words: [0; Key::WORDS],
            },
            hash: 0,
            likely: NONE,
            len: 0,
            frame: 0,
            route: 0,
            transport: Transport::default(),
        };
        Lane {
            routes: vec![Route::default(); ROUTES].into(),
            candidates: vec![nobody; BATCH].into(),
        }
    }

    /// Another snapshot is in force.
    pub(crate) fn forget(&mut self) {
        self.routes.fill(Route::default());
    }

    /// Adds a job for each packet that needs no more, in the order of the frames. Gives the frames that are left, as bits.
    pub(crate) fn run(&mut self, round: &mut Round) -> Bits {
        let all = first_bits(round.batch.len());
        let nic = round.nic;
        if nic.is_sniffer || nic.link_down || nic.trace.is_some() || !nic.sniffers.is_empty() {
            return all;
        }
        let mut choice = Choice {
            left: all,
            v6: 0,
            count: 0,
            tally: Tally::default(),
        };
        self.choose::<false>(round, &mut choice);
        if choice.v6 != 0 {
            self.choose::<true>(round, &mut choice);
        }
        let Choice {
            mut left,
            v6,
            count,
            mut tally,
        } = choice;
        let in_order = v6 == 0 && round.jobs.is_empty();
        let (routes, chosen) = (&self.routes, &mut self.candidates[..count]);
        for candidate in chosen.iter_mut() {
            let side = routes[usize::from(candidate.route)].ends.sender;
            let likely = round.tables.flows.fetch_entry(candidate.hash, side);
            candidate.likely = likely.unwrap_or(NONE);
        }
        let mut run = Run::begin(NONE, 0);
        for candidate in chosen.iter() {
            let route = &routes[usize::from(candidate.route)];
            match follow(round, candidate, route.ends.sender) {
                Some((id, steer)) => {
                    if run.id != id {
                        run.settle(round, &mut tally);
                        run = Run::begin(id, route.ends.sender);
                    }
                    run.frames += 1;
                    run.bytes += u64::from(candidate.len);
                    round.jobs.push(pass(candidate.frame, route.target, steer));
                }
                None => left |= 1 << candidate.frame,
            }
        }
        run.settle(round, &mut tally);
        tally.settle(round);
        if !in_order {
            round.jobs.sort_unstable_by_key(|job| job.frame);
        }
        left
    }

    /// Passes the packets of one family that are free to pass, and notes those that have to have a flow.
    #[inline(always)]
    fn choose<const V6: bool>(&mut self, round: &mut Round, choice: &mut Choice) {
        let own_mac = mac_bits(round.nic.mac);
        let Choice {
            mut left,
            mut v6,
            mut count,
            ..
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
            let Some(plain) = parse::plain::<V6>(head, len) else {
                continue;
            };
            let sound = frame.fault().is_none()
                && (frame.offload == Offload::default() || plain.suits(&frame.offload));
            if plain.src != own_mac || !sound {
                continue;
            }
            if plain.dst != mac {
                let Some(found) = self.route(round.view, round.nic, plain.dst) else {
                    continue;
                };
                (mac, route) = (plain.dst, found);
            }
            let to = &self.routes[route % ROUTES];
            if let Some(free) = &to.free[usize::from(V6)] {
                if free.lets_pass::<V6>(&plain) {
                    choice.tally.add(round, free.rules, 1, len as u64);
                    round
                        .jobs
                        .push(pass(index as u8, to.target, plain.ports ^ plain.ports >> 16));
                    left &= !(1 << index);
                }
                continue;
            }
            let key = Key::of_plain::<V6>(&plain, &to.ends);
            let hash = round.tables.flows.hash(&key);
            round.tables.flows.fetch_index(hash);
            self.candidates[count % BATCH] = Candidate {
                key,
                hash,
                likely: NONE,
                len: len as u32,
                frame: index as u8,
                route: route as u8,
                transport: plain.transport,
            };
            count += 1;
            left &= !(1 << index);
        }
        (choice.left, choice.v6, choice.count) = (left, v6, count);
    }

    /// The route to a MAC address, as an index. `None` when that is not the address of another NIC.
    #[inline]
    fn route(&mut self, view: &View, nic: &PortConfig, mac: u64) -> Option<usize> {
        let mixed = (mac ^ u64::from(nic.slot.0) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> 56) as usize % ROUTES;
        let known = &self.routes[index];
        if known.mac != mac || known.source != Some(nic.slot) {
            self.routes[index] = Route::find(view, nic, mac)?;
        }
        Some(index)
    }
}

impl Route {
    #[cold]
    fn find(view: &View, nic: &PortConfig, mac: u64) -> Option<Route> {
        let slot = *view.network(nic.network)?.macs.get(&mac_of(mac))?;
        let target = view
            .port(slot)
            .filter(|target| !target.is_sniffer && !target.link_down && slot != nic.slot)?;
        Some(Route {
            mac,
            source: Some(nic.slot),
            target: slot,
            ends: Ends::new(nic.uid, target.uid),
            free: [false, true].map(|v6| Free::between(view, nic, target, v6)),
        })
    }
}

impl Free {
    /// Between two NICs that allow everything (contract, item 12).
    fn between(view: &View, nic: &PortConfig, target: &PortConfig, v6: bool) -> Option<Free> {
        let openings = view.stateless(nic.slot, target.slot, v6)?;
        let only_own = !nic.bypass && (nic.anti_spoof || openings[0] == Opening::Free);
        let from = match only_own {
            true => Some(nic.addresses.iter().find(|address| address.is_ipv6() == v6)?),
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
        let dhcp = |port: u32| {
            matches!(
                port as u16,
                dhcp::CLIENT_PORT | dhcp::SERVER_PORT | dhcp::CLIENT_PORT_V6 | dhcp::SERVER_PORT_V6
            )
        };
        let [first, second, ..] = plain.ip;
        let from = if V6 { [first, second] } else { [first >> 32, 0] };
        self.from.is_none_or(|own| own == from) && !dhcp(plain.ports) && !dhcp(plain.ports >> 16)
    }
}

impl Run {
    fn begin(id: FlowId, side: Side) -> Run {
        Run {
            id,
            side,
            frames: 0,
            bytes: 0,
        }
    }

    #[inline]
    fn settle(&self, round: &Round, tally: &mut Tally) {
        if self.frames == 0 {
            return;
        }
        let entry = round.tables.flows.entry(self.id);
        let mine = &entry.sides[self.side];
        mine.count(self.frames, self.bytes);
        entry.note_pair(self.side, round.pair);
        tally.add(round, mine.rules(), self.frames, self.bytes);
    }
}

impl Tally {
    #[inline]
    fn add(&mut self, round: &Round, rules: [u32; 2], frames: u64, bytes: u64) {
        if self.rules != rules {
            self.settle(round);
            *self = Tally {
                rules,
                ..Tally::default()
            };
        }
        self.frames += frames;
        self.bytes += bytes;
    }

    #[inline]
    fn settle(&self, round: &Round) {
        if self.frames > 0 {
            count_rules(round.counters, self.rules, self.frames, self.bytes);
        }
    }
}

/// The flow that lets a packet pass, and the queue pair that its target wants it in. Asks nothing that can fail after
/// something was changed.
#[inline(always)]
fn follow(round: &Round, candidate: &Candidate, side: Side) -> Option<(FlowId, u32)> {
    let flows = &round.tables.flows;
    let id = flows.find_likely(candidate.likely, &candidate.key, candidate.hash)?;
    let entry = flows.entry(id);
    let mine = &entry.sides[side];
    let (epoch, now_ms) = (round.view.epoch_mark(), round.now.millis());
    let decided = entry.epoch.get() == epoch && mine.lane.get() == epoch;
    if !decided || entry.expired(now_ms) {
        return None;
    }
    let state = entry.state.get();
    let head = round.batch.frames()[usize::from(candidate.frame)].head();
    let amid = match candidate.transport.tcp(head) {
        Some(tcp) => state == FlowState::Established as u8 && is_amid(tcp.flags) && follow_plain(mine, &tcp),
        None => {
            state == FlowState::Stream as u8
                || (state == FlowState::OneWay as u8 && side == entry.initiator())
        }
    };
    if !amid {
        return None;
    }
    entry.touch(now_ms);
    Some((id, steer(entry, side, candidate.hash)))
}

#[inline(always)]
fn pass(frame: u8, target: PortSlot, steer: u32) -> Job {
    Job {
        frame,
        verdict: Verdict::Pass,
        target,
        steer,
        case: NO_CASE,
    }
}

/// The queue pair that the target of a flow's packet has last sent from, or else one that the flow chooses.
#[inline(always)]
pub(crate) fn steer(entry: &Entry, side: Side, hash: u64) -> u32 {
    match entry.sides[side].wish.get() {
        0 => hash as u32,
        pair => u32::from(pair - 1),
    }
}

/// The whole path has let a packet of a flow pass: those like it may take the lane until the next snapshot.
pub(crate) fn open(round: &Round, id: FlowId, side: Side, case: usize) {
    let entry = round.tables.flows.entry(id);
    entry.note_pair(side, round.pair);
    let packet = &round.items[round.cases[case].item].packet;
    // From another MAC of its own (a pair's, or one behind it) it would have to be asked again.
    if packet.as_ref().is_some_and(|packet| packet.src == round.nic.mac) {
        entry.sides[side].lane.set(round.view.epoch_mark());
    }
}
