//! From what the workers know of connections to what people call them.

use std::collections::HashMap;

use api::v1;
use api::v1::flow_record::Kind;
use control::Controller;
use control::model::NicId;
use dataplane::flow::{FlowEvent, FlowNews};
use dataplane::{PortUid, RuleSlot};
use wire::Vni;

use crate::app::ControlGuard;
use crate::v1::render;

/// NICs that are remembered, those that are gone among them.
const NICS_MAX: usize = 65_536;

/// NICs and networks by what connections call them. One that is gone keeps its name, since its
/// connections end behind it.
#[derive(Default)]
pub struct Names(HashMap<PortUid, Known>);

/// A NIC, or with no id what is on other hosts; with no network nobody knows it.
#[derive(Default)]
struct Known {
    nic: Option<NicId>,
    vni: Option<Vni>,
}

impl Names {
    /// The records of events, in their order. `control` is asked once, if at all.
    pub fn name<'a>(
        &mut self,
        events: &[FlowEvent],
        control: &dyn Fn() -> ControlGuard<'a>,
    ) -> Vec<v1::FlowRecord> {
        let uids = |event: &FlowEvent| [event.initiator.uid, event.responder.uid];
        let mut all = events.iter().flat_map(uids);
        let unknown = all.any(|uid| !self.0.contains_key(&uid));
        let mut rules: HashMap<RuleSlot, Option<v1::FlowRule>> = HashMap::new();
        if unknown || events.iter().any(|event| event.rules != [None; 2]) {
            let control = control();
            if unknown {
                self.learn(&control);
                for uid in events.iter().flat_map(uids) {
                    self.0.entry(uid).or_default();
                }
            }
            for event in events {
                for (slot, uid) in event.rules.into_iter().zip(uids(event)) {
                    let nic = self.0.get(&uid).and_then(|known| known.nic.as_ref());
                    if let (Some(slot), Some(nic)) = (slot, nic) {
                        let find = || rule(&control, nic, slot);
                        rules.entry(slot).or_insert_with(find);
                    }
                }
            }
        }
        let named = events.iter().map(|event| self.record(event, &rules));
        named.collect()
    }

    fn learn(&mut self, control: &Controller) {
        if self.0.len() > NICS_MAX {
            self.0.clear();
        }
        for status in control.nics() {
            let known = Known {
                nic: Some(status.nic.id.clone()),
                vni: Some(status.nic.vni),
            };
            self.0.insert(status.uid, known);
        }
        for (vni, uid) in control.remotes() {
            let known = Known {
                nic: None,
                vni: Some(vni),
            };
            self.0.insert(uid, known);
        }
    }

    fn record(
        &self,
        event: &FlowEvent,
        rules: &HashMap<RuleSlot, Option<v1::FlowRule>>,
    ) -> v1::FlowRecord {
        let (initiator, responder) = (&event.initiator, &event.responder);
        let of = |uid| self.0.get(&uid);
        let name = |uid| {
            let nic = of(uid).and_then(|known| known.nic.as_ref());
            nic.map(NicId::to_string).unwrap_or_default()
        };
        let vni = [initiator.uid, responder.uid].map(|uid| of(uid).and_then(|known| known.vni));
        let [egress_rule, ingress_rule] =
            event.rules.map(|slot| rules.get(&slot?).cloned().flatten());
        let mut record = v1::FlowRecord {
            time_unix_nanos: event.unix_ns,
            vni: vni.into_iter().flatten().next().map_or(0, Vni::id),
            nic: name(initiator.uid),
            peer_nic: name(responder.uid),
            protocol: event.protocol.into(),
            source: initiator.address.to_string(),
            destination: responder.address.to_string(),
            source_port: initiator.port.into(),
            destination_port: responder.port.into(),
            egress_rule,
            ingress_rule,
            start_unix_nanos: event.unix_ns,
            last_unix_nanos: event.unix_ns,
            ..Default::default()
        };
        match event.news {
            FlowNews::Began => record.set_kind(Kind::Begin),
            FlowNews::Ended {
                why,
                state,
                age_ms,
                idle_ms,
                frames,
                bytes,
                tcp_flags,
            } => {
                record.set_kind(Kind::End);
                record.reason = why.name().into();
                record.state = state.name().into();
                let before = |ms: u64| event.unix_ns.saturating_sub(ms.saturating_mul(1_000_000));
                record.start_unix_nanos = before(age_ms);
                record.last_unix_nanos = before(idle_ms.into());
                [record.original_frames, record.reply_frames] = frames;
                [record.original_bytes, record.reply_bytes] = bytes;
                [record.original_tcp_flags, record.reply_tcp_flags] = tcp_flags.map(u32::from);
            }
            FlowNews::Denied {
                reason,
                frames,
                bytes,
                since_unix_ns,
            } => {
                record.set_kind(Kind::Denied);
                record.reason = reason.name().into();
                record.start_unix_nanos = since_unix_ns;
                (record.original_frames, record.original_bytes) = (frames, bytes);
            }
        }
        record
    }
}

fn rule(control: &Controller, nic: &NicId, slot: RuleSlot) -> Option<v1::FlowRule> {
    let (group, rule) = control.rule_of(nic, slot)?;
    Some(v1::FlowRule {
        group: group.to_string(),
        rule: Some(render::rule(&rule)),
    })
}

#[cfg(test)]
mod tests {
    use dataplane::flow::{FlowEnd, FlowState, Party};

    use super::*;

    #[test]
    fn times_of_an_end_are_reckoned_to_the_millisecond() {
        let end = Party {
            uid: PortUid(1),
            address: [10, 0, 0, 1].into(),
            port: 1,
        };
        let event = FlowEvent {
            unix_ns: 100_900_000_007,
            protocol: 17,
            initiator: end,
            responder: end,
            rules: [None; 2],
            news: FlowNews::Ended {
                why: FlowEnd::Killed,
                state: FlowState::Stream,
                age_ms: 900,
                idle_ms: 500,
                frames: [1; 2],
                bytes: [60; 2],
                tcp_flags: [0; 2],
            },
        };
        let record = Names::default().record(&event, &HashMap::new());
        let times = [record.start_unix_nanos, record.last_unix_nanos];
        assert_eq!(times, [100_000_000_007, 100_400_000_007]);
    }
}
