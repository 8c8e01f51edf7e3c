//! ICMP errors about a packet of a tracked flow belong to that flow, whether the other end or a
//! router sends them (security-groups.md 7).

use std::net::IpAddr;

use wire::parse::{self, IpPacket, L4, Quoted};

use crate::flow::{FlowEnd, FlowId, Key};
use crate::ids::{PortSlot, PortUid};
use crate::judge;
use crate::overlay::TunnelSource;
use crate::round::{Item, Round, Verdict};
use crate::snapshot::PortConfig;
use crate::stages::redecide::{most_looks, redecide, waits};
use crate::stages::spoof;
use crate::view::View;

/// In a network of this many NICs at most an error from a third party is matched; in a larger one
/// it needs a rule. Bounds what one frame can cost.
pub(crate) const WIDE_SEARCH_MAX: usize = 1024;

/// Passes an error that quotes a packet which its receiver has sent in a tracked flow. It does not
/// keep the flow alive. Anything else is left to the rules.
pub(crate) fn judge(round: &mut Round, item: usize, target: PortSlot) -> Verdict {
    let mut is_late = false;
    match look(round, item, target, &mut is_late) {
        Verdict::Open if is_late => Verdict::Late,
        verdict => verdict,
    }
}

/// `is_late`: whether a flow is still allowed cannot be asked in this turn.
fn look(round: &mut Round, item: usize, target: PortSlot, is_late: &mut bool) -> Verdict {
    let Some(ip) = round.items[item].ip().copied() else {
        return Verdict::Open;
    };
    let Some(quoted) = quoted(&round.items[item], round.frame(item).head()) else {
        return Verdict::Open;
    };
    let Some(receiver) = round.view.port(target) else {
        return Verdict::Open;
    };
    // The error goes to whom the quoted packet came from.
    if quoted.src() != ip.dst() {
        return Verdict::Open;
    }
    let reporter = round
        .sources
        .map(|sources| sources[round.items[item].frame]);
    let stranger = reporter.filter(|from| !is_router(round.view, *from));
    if stranger.is_some_and(|from| spoof::check_remote_ip(round.view, from, quoted.dst()).is_err())
    {
        return Verdict::Open;
    }
    // What was left is looked at for the two ends alone: of a whole network it would cost too much.
    let mut find = |round: &mut Round, to: &PortConfig, left: bool| {
        let (key, side) = Key::of_quoted(&quoted, receiver.uid, to.uid)?;
        let hash = round.tables.flows.hash(&key);
        let id = match round.tables.flows.find(&key, hash) {
            None if left => round.take_up_left([receiver, to], &key, hash),
            found => found,
        }?;
        // The receiver has sent in it: what it never sent nobody can report.
        let has_sent = round.tables.flows.entry(id).sides[side].frames.get() > 0;
        (has_sent && is_alive(round, item, id, is_late)).then_some(id)
    };
    let sender = round.nic;
    if find(round, sender, true).is_some() {
        return Verdict::Pass;
    }
    // A router between the two that is not the one the packet was handed to.
    if !may_route(round.nic) {
        return Verdict::Open;
    }
    let Some(network) = round.view.network(round.nic.network) else {
        return Verdict::Open;
    };
    if network.ports.len() > WIDE_SEARCH_MAX || !round.tables.wide_searches.take(sender.slot) {
        return Verdict::Open;
    }
    // The question is the same about all of these flows.
    round.tables.searches.remembers = true;
    for slot in &network.ports {
        // What a NIC of this host got at an address of its own went no further, so that a stranger
        // has nothing to say of it. Where such an address is had by turns (VRRP), the flow says who
        // had it. What it got for a network that it forwards to may have gone to other hosts.
        if let Some(other) = round.view.port(*slot)
            && other.uid != receiver.uid
            && !(stranger.is_some() && is_at(other, quoted.dst()))
            && find(round, other, false).is_some()
        {
            return Verdict::Pass;
        }
    }
    Verdict::Open
}

/// What an ICMP error quotes, or the one that it is a later fragment of.
fn quoted(item: &Item, head: &[u8]) -> Option<Quoted> {
    let ip = item.ip()?;
    match ip.is_later_fragment() {
        true => item.quoted.as_deref().copied(),
        false => quoted_in(ip, head),
    }
}

/// What an ICMP error, or the first fragment of one, quotes.
#[inline]
pub(crate) fn quoted_in(ip: &IpPacket, head: &[u8]) -> Option<Quoted> {
    if !is_error(ip) {
        return None;
    }
    parse::quoted(ip.message(head), ip.v6).ok()
}

/// The key of the flow that an ICMP error to `receiver` would be about, were its quoted packet for
/// the NIC `to`.
pub(crate) fn key_of(item: &Item, head: &[u8], receiver: PortUid, to: PortUid) -> Option<Key> {
    let (key, _) = Key::of_quoted(&quoted(item, head)?, receiver, to)?;
    Some(key)
}

/// Machines of another host are trusted as routers, which report about any packet. Others do about
/// those to an address that may be theirs, or is reached through them.
fn is_router(view: &View, from: TunnelSource) -> bool {
    let overlay = view
        .network(from.network)
        .and_then(|it| it.overlay.as_ref());
    overlay.is_some_and(|overlay| overlay.routers.includes(from.host))
}

/// An error of a NIC that forwards nothing about a packet that was not for it does not leave for
/// another host: that one has to rely on it that who reports may.
#[inline]
pub(crate) fn is_feigned(round: &Round, item: usize, target: PortSlot) -> bool {
    if target.remote_of().is_none() || may_route(round.nic) {
        return false;
    }
    let Some(quoted) = quoted(&round.items[item], round.frame(item).head()) else {
        return false;
    };
    let to = quoted.dst();
    !to.is_multicast() && !judge::owns(round.nic, None, to)
}

/// The NIC has this address itself, or as an allowed pair that is no more than this address.
fn is_at(nic: &PortConfig, address: IpAddr) -> bool {
    nic.addresses.contains(&address)
        || address == IpAddr::V6(nic.mac.link_local())
        || nic.pairs.iter().any(|pair| pair.net == address.into())
}

/// A NIC that is held to its own addresses forwards nothing, so it has nothing to report about the
/// flows of others; a guess at their ports would be a way to slow or end them.
fn may_route(nic: &PortConfig) -> bool {
    !nic.anti_spoof || nic.bypass || nic.learn_macs || !nic.pairs.is_empty()
}

/// Destination unreachable, time exceeded, parameter problem; in IPv6 packet too big as well.
fn is_error(ip: &IpPacket) -> bool {
    match ip.l4_info {
        L4::Icmp { kind, .. } if ip.v6 => matches!(kind, 1..=4),
        L4::Icmp { kind, .. } => matches!(kind, 3 | 11 | 12),
        _ => false,
    }
}

/// The flow is not over, and still allowed.
fn is_alive(round: &mut Round, item: usize, id: FlowId, is_late: &mut bool) -> bool {
    let (flows, searches) = (&mut round.tables.flows, &mut round.tables.searches);
    let entry = flows.entry(id);
    if flows.is_expired(entry, round.now.millis()) {
        return false;
    }
    if entry.epoch.get() == round.view.epoch_mark() {
        return true;
    }
    if !searches.may_ask_again(item, || most_looks(round.view, entry)) {
        *is_late = true;
        return false;
    }
    if redecide(round.view, flows, round.counters, id, searches) {
        return true;
    }
    if waits(round.view, round.tables.flows.entry(id), 0).is_none() {
        round.tables.flows.remove(id, FlowEnd::Refused);
    }
    false
}
