//! Step 7: where each frame goes: the NIC with its MAC address, the host where that is, all of
//! the network, or those that may have unknown machines behind them. Makes the jobs.

use std::net::IpAddr;

use wire::parse::{Net, Packet};
use wire::{Mac, dhcp};

use crate::drop_reason::DropReason;
use crate::flow::Key;
use crate::ids::PortSlot;
use crate::judge::{Grant, owns_mac};
use crate::learned::Location;
use crate::limits::Charge;
use crate::overlay::{Flood, Towards, Trust};
use crate::round::{Case, Job, NO_CASE, Round, Track, Verdict};
use crate::snapshot::{Network, PortConfig};

pub(crate) fn run(round: &mut Round) {
    let Some(network) = round.view.network(round.nic.network) else {
        for index in 0..round.items.len() {
            round.drop_item(index, DropReason::NoDestination);
        }
        return;
    };
    for index in 0..round.items.len() {
        let item = &round.items[index];
        let Some(packet) = item.packet.as_ref().filter(|_| item.is_going()) else {
            continue;
        };
        let (src, dst) = (packet.src, packet.dst);
        // A machine behind a learning NIC, or a MAC that NICs share and pass on (VRRP's), or one on
        // another host.
        if (src != round.nic.mac || network.holders(&src).is_some())
            && let Some(location) = learnable(round, network, round.items[index].frame, src)
        {
            let now_secs = round.now.secs();
            let learned = &mut round.tables.learned;
            let before = learned.len();
            learned.learn(round.nic.vni, src, location, now_secs);
            // Looked for before anybody here answers. Not where a MAC was only heard elsewhere
            // before: one that comes from many places would have us look for all of them.
            if let Location::Host(host) = location
                && learned.len() > before
                && !round.underlay.knows(host)
            {
                round.wanted.note_heard(host, now_secs);
            }
        }
        if let Err(reason) = send(round, network, index, dst) {
            round.drop_item(index, reason);
        }
    }
}

/// What is noted of the place that a frame from this MAC came from, if anything is.
fn learnable(round: &Round, network: &Network, frame: usize, mac: Mac) -> Option<Location> {
    let Some(host) = round.host(frame) else {
        return Some(Location::Nic(round.nic.slot, round.nic.uid));
    };
    let overlay = network.overlay.as_ref()?;
    (overlay.learn && !overlay.bindings.contains_key(&mac)).then_some(Location::Host(host))
}

#[inline]
fn send(round: &mut Round, network: &Network, index: usize, dst: Mac) -> Result<(), DropReason> {
    if dst.is_multicast() {
        let far = !round.items[index].near;
        return flood(round, &network.ports, index, far);
    }
    match find(round, network, dst) {
        Some(Target::Nic(slot)) if slot == round.nic.slot => Err(DropReason::Hairpin),
        Some(Target::Nic(slot)) => {
            add(round, index, slot, Towards::Here).ok_or(DropReason::NoDestination)?
        }
        // What has come from the wire does not go back to it.
        Some(Target::Host(_)) if round.is_from_wire() => Err(DropReason::NoDestination),
        Some(Target::Host(address)) => {
            let remote = PortSlot::remote(round.nic.network);
            add(round, index, remote, Towards::Host(address)).ok_or(DropReason::NoDestination)?
        }
        None if let Some(holders) = network.holders(&dst) => flood(round, holders, index, false),
        None => {
            let learns = network
                .overlay
                .as_ref()
                .is_some_and(|overlay| overlay.learn);
            flood(round, &network.learners, index, learns)
        }
    }
}

/// Who has a MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Nic(PortSlot),
    Host(IpAddr),
}

/// The NIC that was given a MAC address, the host that it is bound to, or where it was heard:
/// in this order.
pub(crate) fn find(round: &Round, network: &Network, mac: Mac) -> Option<Target> {
    if let Some(slot) = network.only_holder(&mac) {
        return Some(Target::Nic(slot));
    }
    let bound = network
        .overlay
        .as_ref()
        .and_then(|overlay| overlay.bindings.get(&mac));
    if let Some(host) = bound.and_then(|index| round.view.host(*index)) {
        return Some(Target::Host(host));
    }
    match learned(round, mac)? {
        Learnt::Nic(config) => Some(Target::Nic(config.slot)),
        Learnt::Host(host) => Some(Target::Host(host)),
    }
}

/// A frame of ours about the sender, the first of the batch, for all others of its network that can
/// be `reached`, whatever the rules say.
pub(crate) fn to_all(round: &mut Round, network: &Network, reached: impl Fn(PortSlot) -> bool) {
    for slot in network.ports.iter().filter(|slot| **slot != round.nic.slot) {
        let target = round.view.port(*slot);
        if target.is_some_and(|target| !target.is_sniffer && !target.link_down) && reached(*slot) {
            round.jobs.push(Job {
                frame: 0,
                verdict: Verdict::Pass,
                target: *slot,
                steer: 0,
                case: NO_CASE,
            });
        }
    }
}

/// Sends that frame to the network's other hosts too, where it floods to them.
pub(crate) fn to_other_hosts(round: &mut Round) {
    if !floods(round) || round.items.first().is_none_or(|item| item.packet.is_none()) {
        return;
    }
    round.jobs.push(Job {
        frame: 0,
        verdict: Verdict::Pass,
        target: PortSlot::remote(round.nic.network),
        steer: 0,
        case: round.cases.len() as u32,
    });
    round.cases.push(Case {
        item: 0,
        towards: Towards::All,
        track: Track::No,
        egress: Grant::default(),
        ingress: Grant::default(),
    });
}

/// Where a MAC address was heard last, by who may still send from it.
pub(crate) enum Learnt<'a> {
    Nic(&'a PortConfig),
    Host(IpAddr),
}

/// Where `mac` was heard last.
pub(crate) fn learned<'a>(round: &Round<'a>, mac: Mac) -> Option<Learnt<'a>> {
    let (view, network) = (round.view, round.nic.network);
    let learned = &round.tables.learned;
    match learned.find(round.nic.vni, mac, round.now.secs())? {
        Location::Nic(slot, uid) => {
            let config = view.port_with_uid(slot, uid)?;
            let may = config.learn_macs || config.bypass || owns_mac(config, mac);
            (may && config.network == network).then_some(Learnt::Nic(config))
        }
        Location::Host(address) => {
            let overlay = view.network(network)?.overlay.as_ref()?;
            let may = overlay.learn && view.takes_from(overlay, address).is_ok();
            may.then_some(Learnt::Host(address))
        }
    }
}

/// To these NICs, and to the network's other hosts if `far` says so.
fn flood(
    round: &mut Round,
    targets: &[PortSlot],
    index: usize,
    far: bool,
) -> Result<(), DropReason> {
    if let Some(meters) = &round.nic.meters {
        let packets = packets_of(round, index);
        meters
            .egress
            .admit_flood(packets, round.now, round.is_trial)?;
    }
    let before = round.jobs.len();
    let mut refused = None;
    for slot in targets.iter().filter(|slot| **slot != round.nic.slot) {
        match add(round, index, *slot, Towards::Here) {
            Some(Ok(())) => limit_flood(round, index, *slot),
            Some(Err(reason)) => refused = Some(reason),
            None => {}
        }
    }
    // What has come from the wire does not go back to it.
    if far && !round.is_from_wire() && floods(round) {
        let remote = PortSlot::remote(round.nic.network);
        if let Some(Err(reason)) = add(round, index, remote, Towards::All) {
            refused = Some(reason);
        }
    }
    if round.jobs.len() > before {
        Ok(())
    } else {
        Err(refused.unwrap_or(DropReason::NoDestination))
    }
}

/// Refuses the last job if its target is sent more floods than it may be.
fn limit_flood(round: &mut Round, index: usize, target: PortSlot) {
    let meters = round
        .view
        .port(target)
        .and_then(|nic| nic.meters.as_deref());
    let Some(meters) = meters else { return };
    let packets = packets_of(round, index);
    if let Some(job) = round.jobs.last_mut()
        && matches!(job.verdict, Verdict::Open | Verdict::Pass)
        && let Err(reason) = meters
            .ingress
            .admit_flood(packets, round.now, round.is_trial)
    {
        job.verdict = Verdict::DropTo(reason);
    }
}

/// How many packets an item's frame is to be cut into.
fn packets_of(round: &Round, index: usize) -> u64 {
    let frame = &round.batch.frames()[round.items[index].frame];
    Charge::of(frame).packets
}

/// Frames for all of the network go to other hosts too.
fn floods(round: &Round) -> bool {
    let network = round.view.network(round.nic.network);
    network.is_some_and(|network| {
        network
            .overlay
            .as_ref()
            .is_some_and(|overlay| overlay.flood != Flood::No)
    })
}

/// Adds a job. `None` when the slot is nobody's, or a sniffer's, which gets copies alone.
#[inline]
pub(crate) fn add(
    round: &mut Round,
    index: usize,
    slot: PortSlot,
    towards: Towards,
) -> Option<Result<(), DropReason>> {
    let target = round.view.port(slot).filter(|target| !target.is_sniffer)?;
    let item = &round.items[index];
    let packet = item.packet.as_ref()?;
    let unfiltered = round.nic.bypass && target.bypass;
    let (verdict, track) = match &packet.net {
        _ if target.link_down => (Verdict::DropTo(DropReason::LinkDown), Track::No),
        _ if unfiltered || (item.always && concerns(round, packet, target, towards)) => {
            (Verdict::Pass, Track::No)
        }
        Net::Ip(ip) => match Key::of(ip, round.nic.uid, target.uid) {
            Some((key, side)) => (Verdict::Open, Track::Flow(key, 0, side)),
            None => (Verdict::Open, Track::No),
        },
        Net::Arp(_) => (Verdict::Pass, Track::No),
        Net::Other => return Some(Err(DropReason::Ethertype)),
    };
    round.jobs.push(Job {
        frame: item.frame as u8,
        verdict,
        target: target.slot,
        steer: 0,
        case: round.cases.len() as u32,
    });
    round.cases.push(Case {
        item: index,
        towards,
        track,
        egress: Grant::default(),
        ingress: Grant::default(),
    });
    Some(Ok(()))
}

/// False for what passes whatever the rules say, but not to this NIC or these hosts: a DHCP
/// client's unicast request is only for who may answer it. To others it would be a way around all
/// rules.
fn concerns(round: &Round, packet: &Packet, target: &PortConfig, towards: Towards) -> bool {
    let Some(ip) = packet.ip().filter(|ip| dhcp::is_client_request(ip)) else {
        return true;
    };
    if packet.dst.is_multicast() && dhcp::is_to_all_servers(ip) {
        return true;
    }
    let network = round.view.network(round.nic.network);
    let servers = network
        .and_then(|network| network.overlay.as_deref())
        .map(|overlay| &overlay.dhcp_servers);
    match towards {
        Towards::Here => target.allow_dhcp_server || target.bypass,
        Towards::Host(host) => servers.is_some_and(|servers| servers.includes(host)),
        Towards::All => servers == Some(&Trust::Anybody),
    }
}
