//! A flow begins: what the rules have granted becomes an entry of the table. For the whole path
//! (step 11) and for the fast path, which begins what it can judge itself.

use wire::dhcp;

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::flow::{Entry, FlowId, Side};
use crate::flow::{Flows, Key, NONE, NewFlow, Seen, first_state, timeout_secs};
use crate::judge::{self, Grant};
use crate::round::{Verdict, count_rules};
use crate::snapshot::{PortConfig, UnknownTcp};
use crate::stages::redecide::admit;
use crate::stages::terms::{between, share};
use crate::time::Now;
use crate::view::View;

/// The first packet of a flow, and who has granted it.
pub(crate) struct First<'a> {
    pub key: Key,
    pub hash: u64,
    pub seen: Seen,
    pub from: &'a PortConfig,
    pub to: &'a PortConfig,
    pub egress: Grant,
    pub ingress: Grant,
}

impl First<'_> {
    /// What both sides together say of TCP amid an unknown flow.
    pub(crate) fn unknown_tcp(&self) -> UnknownTcp {
        self.egress.unknown_tcp.max(self.ingress.unknown_tcp)
    }
}

/// Makes the entry and counts the packet in it. `Ok(None)`: another worker has made it at this
/// moment. `Err`: it begins no flow, is one more than a NIC's limits allow, or has come from
/// another host for a NIC that nothing is attached to. A trial takes nothing from the limits.
#[inline]
pub(crate) fn begin(
    view: &View,
    flows: &mut Flows,
    counters: &Counters,
    (now, is_trial): (Now, bool),
    first: &First,
) -> Result<Option<FlowId>, Verdict> {
    let First {
        key,
        hash,
        seen,
        from,
        to,
        egress,
        ingress,
    } = first;
    let midstream = first.unknown_tcp() == UnknownTcp::Adopt;
    let state = first_state(seen, midstream).or_else(|reason| {
        // Between two NICs that allow everything and count connections: such as they had before
        // they did are not cut.
        match view.both_open(from.slot, to.slot, key.is_v6()) {
            Some(_) => first_state(seen, true),
            None => Err(reason),
        }
    });
    let state = state.map_err(Verdict::DropFrom)?;
    // It would be lost at its target all the same, and what another host begins is charged to that:
    // NICs that are only declared take no room of the table. Flows of a NIC that is away for a
    // moment stay.
    if from.slot.remote_of().is_some() && !flows.is_attached(to.slot) {
        return Err(Verdict::DropTo(DropReason::TargetDown));
    }
    within_limits(from, to, now, is_trial)?;
    let new = NewFlow {
        key: *key,
        hash: *hash,
        initiator: seen.side,
        owner: from.slot,
        peer: to.slot,
        share: share(from, Some(to)),
        state,
        timeout_secs: timeout_secs(key.protocol(), state, || between(Some(from), Some(to))),
        epoch: view.epoch_mark(),
        now_ms: seen.now_ms,
        now_secs: now.secs(),
    };
    let Some(id) = flows.insert(&new).map_err(Verdict::DropFrom)? else {
        return Ok(None);
    };
    admit(flows.entry(id), Some(*egress), Some(*ingress), counters);
    flows.note_first(id, seen);
    let rules = [egress.rule, ingress.rule].map(|rule| rule.map_or(NONE, |rule| rule.0));
    count_rules(counters, rules, 1, seen.len as u64);
    flows.log_begun(id);
    open_answers(view, flows.entry(id), key, seen.side, to);
    Ok(Some(id))
}

/// One more connection is not more than either NIC may have in this second. It is counted for both
/// or for neither: who may begin no more takes nothing of what others may begin with the receiver.
#[inline]
fn within_limits(
    from: &PortConfig,
    to: &PortConfig,
    now: Now,
    is_trial: bool,
) -> Result<(), Verdict> {
    match (&from.meters, &to.meters) {
        (None, None) => Ok(()),
        _ => within_meters(from, to, now, is_trial),
    }
}

#[inline(never)]
fn within_meters(
    from: &PortConfig,
    to: &PortConfig,
    now: Now,
    is_trial: bool,
) -> Result<(), Verdict> {
    let ask = |is_trial| {
        // The receiver's first: what it does not take has not been begun.
        if let Some(meters) = to.meters.as_deref() {
            let admitted = meters.ingress.admit_connection(now, is_trial);
            admitted.map_err(Verdict::DropTo)?;
        }
        if let Some(meters) = from.meters.as_deref() {
            let admitted = meters.egress.admit_connection(now, is_trial);
            admitted.map_err(Verdict::DropFrom)?;
        }
        Ok(())
    };
    ask(true)?;
    match is_trial {
        true => Ok(()),
        false => ask(false),
    }
}

/// The answers may take the fast path at once: all that the whole path would ask about them the key
/// tells, and it can be asked now.
#[inline]
fn open_answers(view: &View, entry: &Entry, key: &Key, asked_by: Side, from: &PortConfig) {
    let answers = 1 - asked_by;
    // What comes from the wire is asked there whose address it is.
    let may = from.slot.remote_of().is_some() || may_send_from(from, key, answers);
    if may && !speaks_dhcp(key) {
        entry.sides[answers].fast_path.set(view.epoch_mark());
    }
}

/// A NIC may send, by its own MAC address, from the address that a side of a flow has.
#[inline]
pub(crate) fn may_send_from(nic: &PortConfig, key: &Key, side: Side) -> bool {
    if nic.bypass || !nic.anti_spoof {
        return true;
    }
    let mac = (!nic.learn_macs).then_some(nic.mac);
    judge::owns(nic, mac, key.address(side))
}

/// True for the ports of DHCP, of which every packet is asked about.
#[inline]
pub(crate) fn speaks_dhcp(key: &Key) -> bool {
    [0, 1].iter().any(|side| dhcp::is_port(key.port(*side)))
}
