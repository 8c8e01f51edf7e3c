//! Connections that are asked for: which are meant, and how they are shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use api::v1;
use control::Error;
use control::model::{GroupId, NicId, parse_cidr};
use dataplane::flow::{FlowInfo, FlowState};
use dataplane::{PortUid, RuleSlot};
use ipnet::IpNet;
use tokio::sync::mpsc::Receiver;
use tonic::Status;

use super::budget::Held;
use super::service::refused;
use super::{observe, render};
use crate::access::{Permitted, Refusal};
use crate::app::App;
use crate::events;
use crate::flow_log::Watching;

/// Values of one kind in a filter.
const VALUES_MAX: usize = 16;

/// Connections, each shown when it is its turn: as they are shown they take several times as much.
pub struct Listed {
    flows: std::vec::IntoIter<FlowInfo>,
    asked: Option<NicId>,
    names: BTreeMap<PortUid, NicId>,
    rules: Rules,
}

impl Iterator for Listed {
    type Item = Result<v1::Flow, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let flow = self.flows.next()?;
        let mut shown = observe::flow(&flow, self.asked.as_ref(), &self.names);
        let [egress, ingress] = [flow.egress_rule, flow.ingress_rule].map(|slot| {
            let named = self.rules.0.get(&slot?)?;
            named.clone()
        });
        (shown.egress_rule, shown.ingress_rule) = (egress, ingress);
        Some(Ok(shown))
    }
}

/// The connections that a request means, and room for them.
pub fn list(
    control: &Permitted,
    request: &v1::ListFlowsRequest,
    mut held: Held,
) -> Result<(Listed, Held), Status> {
    let asked = asked_nic(&request.nic)?;
    let most = match request.most {
        0 => usize::MAX,
        most => most as usize,
    };
    let filter = request.filter.as_ref();
    let flows = selected(control, asked.as_ref(), filter, most, &mut held)?;
    let names = control.nics_by_uid();
    let mut rules = Rules::default();
    for flow in &flows {
        let ends = [
            (&flow.initiator, flow.egress_rule),
            (&flow.responder, flow.ingress_rule),
        ];
        for (end, slot) in ends {
            if let (Some(nic), Some(slot)) = (names.get(&end.uid), slot) {
                rules.learn(control, nic, slot);
            }
        }
    }
    let flows = flows.into_iter();
    let listed = Listed {
        flows,
        asked,
        names,
        rules,
    };
    Ok((listed, held))
}

/// Forgets the connections that a request means; gives back how many.
pub fn delete(
    control: &mut Permitted,
    request: &v1::DeleteFlowsRequest,
    mut held: Held,
) -> Result<usize, Status> {
    let asked = asked_nic(&request.nic)?;
    let filter = request.filter.clone().unwrap_or_default();
    if asked.is_none() && filter == v1::FlowFilter::default() {
        let why = "says neither a NIC nor a filter: all connections are not forgotten at once";
        return Err(refused(Error::Invalid(format!("the request {why}"))));
    }
    let flows = selected(
        control,
        asked.as_ref(),
        Some(&filter),
        usize::MAX,
        &mut held,
    )?;
    Ok(control.remove_flows(&flows)?)
}

/// What a watcher is told, until the daemon stops.
pub fn records(app: Arc<App>, watching: Watching) -> Receiver<Result<v1::FlowRecords, Status>> {
    // What is further behind waits where it is shared.
    events::stream(app, |sender| async move {
        loop {
            let next = watching.next().await;
            sender.send(Ok(next)).await.ok()?;
        }
    })
}

fn asked_nic(nic: &str) -> Result<Option<NicId>, Refusal> {
    match nic {
        "" => Ok(None),
        id => Ok(Some(NicId::new(id)?)),
    }
}

fn selected(
    control: &Permitted,
    nic: Option<&NicId>,
    filter: Option<&v1::FlowFilter>,
    most: usize,
    held: &mut Held,
) -> Result<Vec<FlowInfo>, Status> {
    let filter = filter
        .map(|filter| Filter::new(control, filter))
        .transpose()?;
    let mut flows: Vec<FlowInfo> = Vec::new();
    let mut room = Ok(());
    control.each_flow(nic, |flow| {
        if filter.as_ref().is_none_or(|filter| filter.fits(&flow)) {
            if flows.len() == flows.capacity() {
                // It is about to be twice as large.
                room = held.set(2 * size_of_val(flows.as_slice()));
                if room.is_err() {
                    return ControlFlow::Break(());
                }
            }
            flows.push(flow);
        }
        match flows.len() < most {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    room.map(|()| flows)
}

/// Which connections are meant: all that is given holds.
#[derive(Default)]
struct Filter {
    /// An end is one of these NICs.
    nics: Option<BTreeSet<PortUid>>,
    protocol: Option<u8>,
    nets: Vec<IpNet>,
    ports: Vec<u16>,
    states: Vec<FlowState>,
    current: Option<bool>,
}

impl Filter {
    fn new(control: &Permitted, filter: &v1::FlowFilter) -> Result<Filter, Refusal> {
        let lists = [
            ("addresses", filter.addresses.len()),
            ("ports", filter.ports.len()),
            ("states", filter.states.len()),
        ];
        if let Some((name, count)) = lists.into_iter().find(|(_, count)| *count > VALUES_MAX) {
            let why = format!("the filter has {count} {name}, and {VALUES_MAX} are the most");
            return Err(Error::Invalid(why).into());
        }
        let nics = match filter.group.as_str() {
            "" => None,
            group => {
                let id = GroupId::new(group)?;
                control.group(&id)?;
                let mine = control
                    .nics()
                    .filter(|status| status.nic.security_groups.contains(&id));
                Some(mine.map(|status| status.uid).collect())
            }
        };
        let number = |what: &str, value: u32, most: u32| match value <= most {
            true => Ok(value),
            false => Err(Error::Invalid(format!(
                "the filter's {what} {value} is not one: {most} is the largest"
            ))),
        };
        let protocol = filter.protocol.map(|value| number("protocol", value, 255));
        let ports = filter.ports.iter();
        let ports = ports.map(|value| Ok(number("port", *value, 65_535)? as u16));
        let nets = filter.addresses.iter();
        let nets = nets.map(|text| Ok(parse_cidr(&"the filter", text)?.trunc()));
        let states = filter.states.iter().map(|name| state(name));
        Ok(Filter {
            nics,
            protocol: protocol.transpose()?.map(|value| value as u8),
            nets: nets.collect::<Result<_, Error>>()?,
            ports: ports.collect::<Result<_, Error>>()?,
            states: states.collect::<Result<_, Error>>()?,
            current: filter.current,
        })
    }

    fn fits(&self, flow: &FlowInfo) -> bool {
        let ends = [&flow.initiator, &flow.responder];
        let nics = self.nics.as_ref();
        nics.is_none_or(|nics| ends.iter().any(|end| nics.contains(&end.uid)))
            && self.protocol.is_none_or(|number| number == flow.protocol)
            && (self.nets.iter()).all(|net| ends.iter().any(|end| net.contains(&end.address)))
            && (self.ports.iter()).all(|port| ends.iter().any(|end| end.port == *port))
            && (self.states.is_empty() || self.states.contains(&flow.state))
            && self.current.is_none_or(|is| is == flow.is_current)
    }
}

fn state(name: &str) -> Result<FlowState, Error> {
    let mut all = FlowState::ALL.into_iter();
    all.find(|state| state.name() == name).ok_or_else(|| {
        let names: Vec<&str> = FlowState::ALL.iter().map(|state| state.name()).collect();
        Error::Invalid(format!(
            "the filter's state '{}' is none of {}",
            name.escape_debug(),
            names.join(", ")
        ))
    })
}

/// Rules by where they count: looked for once, however many connections they have allowed.
#[derive(Default)]
struct Rules(HashMap<RuleSlot, Option<v1::FlowRule>>);

impl Rules {
    /// The rule of one of a NIC's groups.
    fn learn(&mut self, control: &Permitted, nic: &NicId, slot: RuleSlot) {
        self.0.entry(slot).or_insert_with(|| {
            let (group, rule) = control.rule_of(nic, slot)?;
            Some(v1::FlowRule {
                group: group.to_string(),
                rule: Some(render::rule(&rule)),
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::flow::Party;

    fn flow() -> FlowInfo {
        let end = |uid, address: &str, port| Party {
            uid: PortUid(uid),
            address: address.parse().unwrap(),
            port,
        };
        FlowInfo {
            protocol: 6,
            initiator: end(1, "10.0.0.1", 40000),
            responder: end(2, "10.0.1.2", 443),
            state: FlowState::Established,
            age_secs: 1,
            idle_secs: 2,
            timeout_secs: 3,
            frames_out: 4,
            bytes_out: 5,
            frames_in: 6,
            bytes_in: 7,
            is_current: true,
            egress_rule: None,
            ingress_rule: None,
            tcp: None,
        }
    }

    #[test]
    fn all_that_is_given_has_to_hold_at_either_end() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let nics = |uid: u32| Some(BTreeSet::from([PortUid(uid)]));
        let no = Filter::default;
        let fitting = [
            no(),
            Filter {
                nics: nics(2),
                ..no()
            },
            Filter {
                protocol: Some(6),
                ..no()
            },
            Filter {
                nets: vec![net("10.0.1.0/24")],
                ..no()
            },
            Filter {
                nets: vec![net("10.0.1.2/32"), net("10.0.0.1/32")],
                ..no()
            },
            Filter {
                ports: vec![443, 40000],
                ..no()
            },
            Filter {
                states: vec![FlowState::Close, FlowState::Established],
                ..no()
            },
            Filter {
                current: Some(true),
                ..no()
            },
        ];
        for (at, filter) in fitting.iter().enumerate() {
            assert!(filter.fits(&flow()), "{at}");
        }
        let other = [
            Filter {
                nics: nics(3),
                ..no()
            },
            Filter {
                protocol: Some(17),
                ..no()
            },
            Filter {
                nets: vec![net("10.0.1.0/24"), net("10.0.2.0/24")],
                ..no()
            },
            Filter {
                nets: vec![net("::/0")],
                ..no()
            },
            Filter {
                ports: vec![443, 80],
                ..no()
            },
            Filter {
                states: vec![FlowState::Close],
                ..no()
            },
            Filter {
                current: Some(false),
                ..no()
            },
            Filter {
                protocol: Some(6),
                ports: vec![80],
                ..no()
            },
        ];
        for (at, filter) in other.iter().enumerate() {
            assert!(!filter.fits(&flow()), "{at}");
        }
    }

    #[test]
    fn a_state_that_is_none_is_named_with_those_there_are() {
        assert_eq!(state("stream").unwrap(), FlowState::Stream);
        let error = state("open").unwrap_err().to_string();
        assert!(
            error.contains("state 'open' is none of syn_sent, "),
            "{error}"
        );
    }
}
