//! A flow that was decided under an older snapshot is decided again, by its first packet's direction.

use wire::parse::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::counters::Counters;
use crate::flow::{DRAIN_EGRESS, DRAIN_INGRESS, Entry, FlowId, FlowTable, NONE, timeout_secs};
use crate::judge::{self, Grant, Question};
use crate::stages::known::between;
use crate::view::View;

/// True when the flow lives on: both NICs are still there, and each side allows it still, or did so by a
/// rule of a group that drains.
pub(crate) fn redecide(view: &View, flows: &mut FlowTable, counters: &Counters, id: FlowId) -> bool {
    let (owner, peer) = flows.slots(id);
    let entry = flows.entry(id);
    let (initiator, responder) = (entry.initiator(), 1 - entry.initiator());
    let from = view.port_with_uid(owner, entry.uid[initiator]);
    let to = view.port_with_uid(peer, entry.uid[responder]);
    let (Some(from), Some(to)) = (from, to) else {
        return false;
    };
    if from.network != to.network {
        return false;
    }
    let question = question(entry);
    let owned = judge::owns(from, None, question.src);
    let egress = judge::egress(view, from, &question, owned);
    let ingress = judge::ingress(view, to, &question);
    let drains = |flag| entry.flags & flag != 0;
    if (egress.is_none() && !drains(DRAIN_EGRESS)) || (ingress.is_none() && !drains(DRAIN_INGRESS)) {
        return false;
    }
    let timeout = timeout_secs(entry.protocol, entry.state(), &between(Some(from), Some(to)));
    let entry = flows.entry_mut(id);
    entry.epoch = view.epoch_mark();
    entry.timeout_secs = timeout;
    admit(entry, egress, ingress, counters);
    true
}

/// Notes by which rules a flow passes. `None`: it lives on by the rule that admitted it and is gone, whose
/// slot may become another rule's: it is not counted there any more.
pub(crate) fn admit(entry: &mut Entry, egress: Option<Grant>, ingress: Option<Grant>, counters: &Counters) {
    for (grant, slot, flag) in [
        (egress, &mut entry.egress_rule, DRAIN_EGRESS),
        (ingress, &mut entry.ingress_rule, DRAIN_INGRESS),
    ] {
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
        entry.flags = if grant.drain {
            entry.flags | flag
        } else {
            entry.flags & !flag
        };
    }
}

/// What the rules are asked about a flow.
fn question(entry: &Entry) -> Question {
    let (initiator, responder) = (entry.initiator(), 1 - entry.initiator());
    let v6 = entry.key().is_v6();
    let address = |bits: u128| match v6 {
        true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
    };
    let has_selector = matches!(entry.protocol, TCP | UDP | SCTP)
        || (entry.protocol == ICMP && !v6)
        || (entry.protocol == ICMPV6 && v6);
    Question {
        src: address(entry.ip[initiator]),
        dst: address(entry.ip[responder]),
        protocol: entry.protocol,
        selector: has_selector.then_some(entry.port[responder]),
        midstream: false,
    }
}
