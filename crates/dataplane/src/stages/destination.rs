//! Step 6: where each frame goes: the NIC with its MAC address, all of the network, or those that may have
//! unknown machines behind them. Makes the jobs.

use wire::parse::{Net, Packet};
use wire::{Mac, dhcp};

use crate::drop_reason::DropReason;
use crate::flow::Key;
use crate::judge::{Grant, owns_mac};
use crate::round::{Case, Job, NO_CASE, Round, Track, Verdict};
use crate::snapshot::{Network, PortConfig, PortSlot};

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
        // A machine behind a learning NIC, or a MAC that NICs share and pass on (VRRP's).
        if src != round.nic.mac {
            let nic = round.nic;
            let now_secs = round.now.secs();
            round
                .tables
                .learned
                .hear(nic.network, src, nic.slot, nic.uid, now_secs);
        }
        if let Err(reason) = send(round, network, index, dst) {
            round.drop_item(index, reason);
        }
    }
}

#[inline]
fn send(round: &mut Round, network: &Network, index: usize, dst: Mac) -> Result<(), DropReason> {
    if dst.is_multicast() {
        return flood(round, &network.ports, index);
    }
    let given = network.macs.get(&dst).copied();
    let target = given.or_else(|| Some(learned(round, dst)?.slot));
    match target {
        Some(slot) if slot == round.nic.slot => Err(DropReason::Hairpin),
        Some(slot) => add(round, index, slot).ok_or(DropReason::NoDestination)?,
        None => flood(round, &network.learners, index),
    }
}

/// A frame of ours about the sender, the first of the batch, for all others of its network that can be `reached`,
/// whatever the rules say.
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

/// The NIC that has sent from `mac` last and may still do so.
pub(crate) fn learned<'a>(round: &Round<'a>, mac: Mac) -> Option<&'a PortConfig> {
    let learned = &round.tables.learned;
    let (slot, uid) = learned.find(round.nic.network, mac, round.now.secs())?;
    let config = round.view.port_with_uid(slot, uid)?;
    let may = config.learn_macs || owns_mac(config, mac);
    (may && config.network == round.nic.network).then_some(config)
}

fn flood(round: &mut Round, targets: &[PortSlot], index: usize) -> Result<(), DropReason> {
    let before = round.jobs.len();
    let mut refused = None;
    for slot in targets.iter().filter(|slot| **slot != round.nic.slot) {
        if let Some(Err(reason)) = add(round, index, *slot) {
            refused = Some(reason);
        }
    }
    if round.jobs.len() > before {
        Ok(())
    } else {
        Err(refused.unwrap_or(DropReason::NoDestination))
    }
}

/// Adds a job. `None` when the slot is nobody's, or a sniffer's, which gets copies alone.
#[inline]
fn add(round: &mut Round, index: usize, slot: PortSlot) -> Option<Result<(), DropReason>> {
    let target = round.view.port(slot).filter(|target| !target.is_sniffer)?;
    let item = &round.items[index];
    let packet = item.packet.as_ref()?;
    let unfiltered = round.nic.bypass && target.bypass;
    let (verdict, track) = match &packet.net {
        _ if target.link_down => (Verdict::DropTo(DropReason::LinkDown), Track::No),
        _ if unfiltered || (item.always && concerns(packet, target)) => (Verdict::Pass, Track::No),
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
        track,
        egress: Grant::default(),
        ingress: Grant::default(),
    });
    Some(Ok(()))
}

/// False for what passes whatever the rules say, but not to this NIC: a DHCP client's request to somebody in
/// particular is for who may answer it. To others it would be a way around all rules.
fn concerns(packet: &Packet, target: &PortConfig) -> bool {
    let Some(ip) = packet.ip().filter(|ip| dhcp::is_client_request(ip)) else {
        return true;
    };
    let to_all = packet.dst.is_multicast() && dhcp::is_to_all_servers(ip);
    to_all || target.allow_dhcp_server || target.bypass
}
