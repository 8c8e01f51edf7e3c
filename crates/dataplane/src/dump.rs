//! Flows out of and into the table, as plain data. A dump goes on bit by bit between the worker's batches, so
//! that a million flows do not stop the traffic while they are written down.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::Sender;

use wire::parse::protocol::TCP;

use crate::flow::{
    ACKED, Endpoint, Entry, FlowId, FlowInfo, FlowTable, KIND_V6, Key, NewFlow, SEEN, timeout_secs,
};
use crate::snapshot::{PortConfig, PortUid};
use crate::stages::known::between;
use crate::view::View;
use crate::worker::Now;

/// Entries looked at in one turn.
const STEP: u32 = 4096;

/// A dump under way.
pub(crate) struct Dump {
    pub of: Option<PortUid>,
    pub at: FlowId,
    pub found: Vec<FlowInfo>,
    pub answer: Sender<Vec<FlowInfo>>,
}

impl Dump {
    /// Goes on; true when all entries were looked at.
    pub(crate) fn step(&mut self, flows: &FlowTable, now: Now) -> bool {
        let end = flows.high().min(self.at + STEP);
        for id in self.at..end {
            let entry = flows.entry(id);
            let wanted = self.of.is_none_or(|uid| entry.uid.contains(&uid.0));
            if entry.state != 0 && wanted && !entry.expired(now.millis()) {
                self.found.push(info(flows, id, now));
            }
        }
        self.at = end;
        end == flows.high()
    }
}

fn info(flows: &FlowTable, id: FlowId, now: Now) -> FlowInfo {
    let entry = flows.entry(id);
    let (initiator, responder) = (entry.initiator(), 1 - entry.initiator());
    let endpoint = |side: usize| Endpoint {
        uid: PortUid(entry.uid[side]),
        address: address(entry.key().is_v6(), entry.ip[side]),
        port: entry.port[side],
    };
    FlowInfo {
        protocol: entry.protocol,
        initiator: endpoint(initiator),
        responder: endpoint(responder),
        state: entry.state(),
        age_secs: now.secs().wrapping_sub(flows.created_secs(id)),
        idle_secs: entry.idle_ms(now.millis()) / 1000,
        timeout_secs: entry.timeout_secs,
        frames_out: entry.frames[initiator],
        bytes_out: entry.bytes[initiator],
        frames_in: entry.frames[responder],
        bytes_in: entry.bytes[responder],
        egress_rule: Entry::rule(entry.egress_rule),
        ingress_rule: Entry::rule(entry.ingress_rule),
        tcp: (entry.protocol == TCP).then(|| entry.windows()),
    }
}

/// Adds flows that another worker, or this one before, has dumped. They are decided again with their next
/// packet. Gives how many were taken.
pub(crate) fn import(view: &View, flows: &mut FlowTable, infos: &[FlowInfo], now: Now) -> usize {
    let nics: HashMap<PortUid, &PortConfig> = view.ports().map(|config| (config.uid, config)).collect();
    infos
        .iter()
        .filter(|info| import_one(view, flows, &nics, info, now).is_some())
        .count()
}

fn import_one(
    view: &View,
    flows: &mut FlowTable,
    nics: &HashMap<PortUid, &PortConfig>,
    info: &FlowInfo,
    now: Now,
) -> Option<()> {
    let (from, to) = (nics.get(&info.initiator.uid)?, nics.get(&info.responder.uid)?);
    let v6 = info.initiator.address.is_ipv6();
    if from.uid == to.uid || from.network != to.network || info.responder.address.is_ipv6() != v6 {
        return None;
    }
    let kind = if v6 { KIND_V6 } else { 0 };
    let ends = (info.initiator, info.responder);
    let (key, initiator) = Key::between(info.protocol, kind, ends);
    let hash = flows.hash(&key);
    if flows.find(&key, hash).is_some() {
        return None;
    }
    let new = NewFlow {
        key,
        hash,
        initiator,
        owner: from.slot,
        peer: to.slot,
        share: from.flow_share,
        state: info.state,
        now_ms: now.millis().wrapping_sub(info.idle_secs.saturating_mul(1000)),
        now_secs: now.secs().wrapping_sub(info.age_secs),
    };
    let id = flows.insert(&new).ok()?;
    let timeout = timeout_secs(info.protocol, info.state, &between(Some(from), Some(to)));
    let entry = flows.entry_mut(id);
    // An epoch that is not the one in force: the next packet asks the rules.
    entry.epoch = view.epoch_mark().wrapping_sub(1);
    entry.timeout_secs = timeout;
    let responder = 1 - initiator;
    entry.frames[initiator] = info.frames_out;
    entry.bytes[initiator] = info.bytes_out;
    entry.frames[responder] = info.frames_in;
    entry.bytes[responder] = info.bytes_in;
    if let Some(tcp) = &info.tcp {
        for (index, side) in [initiator, responder].into_iter().enumerate() {
            entry.end[side] = tcp.end[index];
            entry.ack[side] = tcp.ack[index];
            entry.edge[side] = tcp.edge[index];
            entry.scale[side] = tcp.scale[index].min(14);
            entry.flags |= tcp.seen_flags(index) << side;
        }
    }
    Some(())
}

impl crate::flow::TcpWindows {
    /// What was seen of a side: a side of which nothing was has all zeros.
    fn seen_flags(&self, side: usize) -> u8 {
        let seen = if self.end[side] != 0 { SEEN } else { 0 };
        let acked = if self.edge[side] != 0 || self.ack[side] != 0 {
            ACKED
        } else {
            0
        };
        seen | acked
    }
}

fn address(v6: bool, bits: u128) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(bits as u32))
    }
}
