//! A flow that was decided under an older snapshot is decided again, by its first packet's
//! direction.

use wire::parse::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::flow::{
    DRAIN_EGRESS, DRAIN_INGRESS, Entry, FlowId, FlowTable, Key, NONE, Side, timeout_secs,
};
use crate::judge::{self, Grant, Question};
use crate::ruleset::Direction;
use crate::searches::Searches;
use crate::snapshot::PortConfig;
use crate::stages::terms::between;
use crate::view::View;

/// True when the flow lives on: both NICs are still there, and each side allows it still, or did so
/// by a rule of a group that drains, also where that group is gone (security-groups.md 9).
pub(crate) fn redecide(
    view: &View,
    flows: &FlowTable,
    counters: &Counters,
    id: FlowId,
    searches: &mut Searches,
) -> bool {
    let entry = flows.entry(id);
    let key = entry.key();
    let (initiator, responder) = (entry.initiator(), 1 - entry.initiator());
    let (owner, peer) = entry.slots();
    let from = view.port_with_uid(owner, key.uid(initiator));
    let to = view.port_with_uid(peer, key.uid(responder));
    let (Some(from), Some(to)) = (from, to) else {
        return false;
    };
    if from.network != to.network {
        return false;
    }
    let question = question(&key, initiator);
    let owned = judge::owns(from, None, question.src);
    let egress = judge::egress(view, from, &question, owned, searches);
    let ingress = judge::ingress(view, to, &question, searches);
    let drains = |flag| entry.flags.get() & flag != 0;
    if (egress.is_none() && !drains(DRAIN_EGRESS)) || (ingress.is_none() && !drains(DRAIN_INGRESS))
    {
        return false;
    }
    let timeout = timeout_secs(key.protocol(), entry.state(), || {
        between(Some(from), Some(to))
    });
    entry.timeout_secs.set(timeout);
    admit(entry, egress, ingress, counters);
    entry.epoch.set(view.epoch_mark());
    true
}

/// In how many places [`redecide`] looks at the most.
pub(crate) fn most_looks(view: &View, entry: &Entry) -> u64 {
    let (owner, peer) = entry.slots();
    let of = |slot, direction| {
        let look = |nic: &PortConfig| judge::most_looks(view, nic, direction);
        view.port(slot).map_or(0, look)
    };
    of(owner, Direction::Egress) + of(peer, Direction::Ingress)
}

/// TCP that no rule allows now waits where a NIC names a group that is not there, so that it goes
/// on if the group, which may be on its way here, allows it: hosts are patient, and would end what
/// is unknown here. Nothing of it passes meanwhile. Gives why not, for who sends from this side;
/// `None`: it does not wait.
#[cold]
pub(crate) fn waits(view: &View, entry: &Entry, sender: Side) -> Option<DropReason> {
    let key = entry.key();
    if key.protocol() != TCP {
        return None;
    }
    let lacks_group = |slot, side: Side| {
        let nic = view.port_with_uid(slot, key.uid(side));
        nic.is_some_and(|nic| {
            let mut groups = nic.groups.iter();
            groups.any(|group| view.groups().get(*group).is_none())
        })
    };
    let (owner, peer) = entry.slots();
    let initiator = entry.initiator();
    let slot = |side| if side == initiator { owner } else { peer };
    if lacks_group(slot(sender), sender) {
        Some(DropReason::NoEgressRule)
    } else if lacks_group(slot(1 - sender), 1 - sender) {
        Some(DropReason::NoIngressRule)
    } else {
        None
    }
}

/// Notes by which rules a flow passes. `None`: it lives on by the rule that admitted it and is
/// gone, whose slot may become another rule's: it is not counted there any more.
#[inline]
pub(crate) fn admit(
    entry: &Entry,
    egress: Option<Grant>,
    ingress: Option<Grant>,
    counters: &Counters,
) {
    let mut rules = entry.sides[0].rules();
    let mut flags = entry.flags.get();
    let grants = [(egress, DRAIN_EGRESS), (ingress, DRAIN_INGRESS)];
    for ((grant, flag), slot) in grants.into_iter().zip(&mut rules) {
        let Some(grant) = grant else {
            *slot = NONE;
            continue;
        };
        let rule = grant.rule.map_or(NONE, |rule| rule.0);
        if rule != *slot
            && let Some(rule) = grant.rule
        {
            counters.rule_admitted(rule);
        }
        *slot = rule;
        flags = if grant.drain {
            flags | flag
        } else {
            flags & !flag
        };
    }
    entry.flags.set(flags);
    entry.set_rules(rules[0], rules[1]);
}

/// What the rules are asked about a flow.
#[inline]
pub(crate) fn question(key: &Key, initiator: Side) -> Question {
    let (v6, protocol) = (key.is_v6(), key.protocol());
    let has_selector = matches!(protocol, TCP | UDP | SCTP)
        || (protocol == ICMP && !v6)
        || (protocol == ICMPV6 && v6);
    Question {
        src: key.address(initiator),
        dst: key.address(1 - initiator),
        protocol,
        selector: has_selector.then_some(key.port(1 - initiator)),
        midstream: false,
    }
}
