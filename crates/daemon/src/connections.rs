//! Connections as bytes, a NIC's for its migration and all for a restart: identities of this daemon
//! become ids of NICs on the way out, and identities of the other daemon on the way in. Those that
//! a daemon which was killed has left in memory come in the same way. With a NIC that migrates
//! goes what it has counted.

mod counters;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;

use api::{decoded, v1};
use control::model::NicId;
use control::{Controller, Error};
use dataplane::counters::PortCounters;
use dataplane::flow::{FlowInfo, FlowState, Party, TcpWindows};
use dataplane::{Left, LeftEnd, Now, PortUid, Successor, Successors};
use prost::Message;

use crate::access::{Permitted, Refusal};
use crate::v1::weigh::DECODED_MAX;

const VERSION: u32 = 1;

/// Connections that are taken up at once of those in memory.
const AT_ONCE: usize = 1 << 14;

/// The connections of a NIC, and what it has counted.
pub fn export(control: &Permitted, id: &NicId) -> Result<Vec<u8>, Refusal> {
    let nic = control.nic(id)?;
    let names = control.nics_by_uid();
    let mut connections = Vec::new();
    control.each_flow(Some(id), |flow| {
        connections.push(outgoing(&flow, &names));
        ControlFlow::Continue(())
    })?;
    let exported = v1::ExportedConnections {
        version: VERSION,
        nic: id.to_string(),
        vni: nic.nic.vni.id(),
        connections,
        counters: Some(counters::outgoing(&control.nic_stats(id)?)),
    };
    Ok(exported.encode_to_vec())
}

/// What [`export`] gave elsewhere, read for a NIC.
pub struct Exported {
    /// Bytes that it was.
    len: usize,
    nic: String,
    vni: u32,
    flows: Vec<Named>,
    /// A daemon that is older says nothing of them.
    counted: Option<PortCounters>,
}

/// What is to be read takes, in bytes: the request was weighed with it as bytes.
pub fn weigh(id: &NicId, state: &[u8]) -> Result<usize, Error> {
    decoded::memory(decoded::Message::of_connections(), state, DECODED_MAX)
        .map_err(|e| no_state(id, state.len(), not_exported(&e)))
}

/// Reads what [`export`] gave elsewhere: as much as that may be, nobody waits for it.
pub fn decode(id: &NicId, state: &[u8]) -> Result<Exported, Error> {
    let refuse = |why: String| no_state(id, state.len(), why);
    let exported = v1::ExportedConnections::decode(state).map_err(|e| refuse(not_exported(&e)))?;
    if exported.version != VERSION {
        let why = format!("has version {}, known is {VERSION}", exported.version);
        return Err(refuse(why));
    }
    let counted = exported.counters.map(|counted| {
        counters::incoming(counted).ok_or_else(|| refuse("has counts that cannot be".into()))
    });
    let named = |connection| {
        let flow: Named =
            incoming(connection).map_err(|why| refuse(format!("has a connection {why}")))?;
        if ![&flow.initiator_nic, &flow.responder_nic].contains(&&exported.nic) {
            let (one, other) = (&flow.initiator_nic, &flow.responder_nic);
            let (one, other) = (one.escape_debug(), other.escape_debug());
            let why = format!("has a connection of NICs '{one}' and '{other}'");
            return Err(refuse(why));
        }
        Ok(flow)
    };
    let flows = exported.connections.into_iter().map(named);
    Ok(Exported {
        len: state.len(),
        flows: flows.collect::<Result<_, _>>()?,
        counted: counted.transpose()?,
        nic: exported.nic,
        vni: exported.vni,
    })
}

fn not_exported(why: &dyn std::fmt::Display) -> String {
    format!("was not exported by a butterflyd: {why}")
}

fn no_state(id: &NicId, len: usize, why: String) -> Error {
    Error::Value {
        owner: format!("NIC '{id}'"),
        field: "state".into(),
        value: format!("{len} bytes"),
        why,
    }
}

/// Takes up what was read; gives back how many connections were taken. The other end of each
/// connection is the NIC here that is called so, or else has the address, or else is on another
/// host: who was a neighbour there is not one here, and the other way about.
pub fn import(control: &mut Permitted, id: &NicId, exported: Exported) -> Result<usize, Refusal> {
    let nic = control.nic(id)?;
    if exported.nic != id.as_str() || exported.vni != nic.nic.vni.id() {
        let of = exported.nic.escape_debug();
        let why = format!("is of NIC '{of}' in VNI {}", exported.vni);
        return Err(no_state(id, exported.len, why).into());
    }
    // Of its own network alone: a state that was made up says nothing of others.
    let mut here = Here {
        others: control.remotes().get(&nic.nic.vni).copied(),
        ..Here::default()
    };
    for other in control.nics().filter(|other| other.nic.vni == nic.nic.vni) {
        let addresses = other.nic.ips.iter().map(|ip| (*ip, other.uid));
        here.by_address.extend(addresses);
        here.by_id.insert(other.nic.id.to_string(), other.uid);
    }
    let mut flows = Vec::with_capacity(exported.flows.len());
    for flow in exported.flows {
        let initiator = here.find(&flow.initiator_nic, flow.flow.initiator.address);
        let responder = here.find(&flow.responder_nic, flow.flow.responder.address);
        if let (Some(initiator), Some(responder)) = (initiator, responder) {
            flows.push(flow.between(initiator, responder));
        }
    }
    let taken = control.import_flows(flows)?;
    if let Some(counted) = exported.counted {
        control.count_on(id, &counted)?;
    }
    Ok(taken)
}

/// Who is in a network, as this host sees it.
#[derive(Default)]
struct Here {
    by_id: BTreeMap<String, PortUid>,
    by_address: BTreeMap<IpAddr, PortUid>,
    /// All that is on other hosts.
    others: Option<PortUid>,
}

impl Here {
    fn find(&self, id: &str, address: IpAddr) -> Option<PortUid> {
        let local = self.by_id.get(id).or_else(|| self.by_address.get(&address));
        local.copied().or(self.others)
    }
}

/// All connections, and how many. What is behind other hosts has no name: it is the partner of
/// somebody here.
pub fn export_all(control: &Controller) -> Result<(Vec<u8>, usize), Error> {
    let names = control.nics_by_uid();
    let flows = control.export_flows(None)?;
    let exported = v1::ExportedConnections {
        version: VERSION,
        connections: flows.iter().map(|flow| outgoing(flow, &names)).collect(),
        ..Default::default()
    };
    Ok((exported.encode_to_vec(), flows.len()))
}

/// Takes up what [`export_all`] gave so many seconds ago, but for what would have ended since; how
/// many were taken.
pub fn import_all(control: &mut Controller, state: &[u8], secs: u64) -> Result<usize, Error> {
    let refuse = |why: String| Error::Invalid(format!("connections that were left {why}"));
    let exported = v1::ExportedConnections::decode(state)
        .map_err(|e| refuse(format!("are not a butterflyd's: {e}")))?;
    if exported.version != VERSION {
        let version = exported.version;
        return Err(refuse(format!(
            "have version {version}, known is {VERSION}"
        )));
    }
    let secs = u32::try_from(secs).unwrap_or(u32::MAX);
    let everybody = Everybody::of(control);
    let mut flows = Vec::with_capacity(exported.connections.len());
    for connection in exported.connections {
        let mut named = incoming(connection).map_err(|why| refuse(format!("have one {why}")))?;
        let flow = &mut named.flow;
        flow.idle_secs = flow.idle_secs.saturating_add(secs);
        flow.age_secs = flow.age_secs.saturating_add(secs);
        if flow.idle_secs >= flow.timeout_secs {
            continue;
        }
        let ends = [&*named.initiator_nic, &*named.responder_nic];
        if let Some((one, other)) = everybody.find(ends) {
            flows.push(named.between(one, other));
        }
    }
    control.import_flows(flows)
}

/// Takes up what a daemon has left in memory, by now; how many were taken, and how many entries
/// could not be true. While one part is taken up, the next is read.
pub fn import_left(control: &Controller, left: &Left, now: Now) -> Result<(usize, u64), Error> {
    let here = successors(control, left);
    let (parts, read) = sync_channel(1);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut part = Vec::with_capacity(AT_ONCE);
            let untrue = left.connections(now, |flow| {
                let Some(flow) = here.between(flow) else {
                    return;
                };
                part.push(flow);
                if part.len() == AT_ONCE {
                    let next = Vec::with_capacity(AT_ONCE);
                    // It is taken up, or an error is being told.
                    let _ = parts.send(std::mem::replace(&mut part, next));
                }
            });
            let _ = parts.send(part);
            untrue
        });
        let taken: Result<usize, Error> = read.iter().map(|part| control.import_flows(part)).sum();
        // Who could not take one part takes no other.
        drop(read);
        let untrue = match reading.join() {
            Ok(untrue) => untrue.map_err(|e| e.to_string()),
            Err(_) => Err("who reads them panicked".to_owned()),
        };
        let failed = |why| Error::Invalid(format!("connections that were left: {why}"));
        Ok((taken?, untrue.map_err(failed)?))
    })
}

/// Who the ends of connections that were left are here, by what they were called: in the networks
/// in which they were.
pub fn successors(control: &Controller, left: &Left) -> Successors {
    let here = Everybody::of(control);
    let each = left.ends().filter_map(|(was, end)| {
        let (uid, vni, is_elsewhere) = match end {
            LeftEnd::Nic(name, vni) => {
                let (uid, now) = here.nics.get(&**name)?;
                (now == vni).then_some((*uid, *vni, false))?
            }
            LeftEnd::Elsewhere(vni) => (*here.remotes.get(vni)?, *vni, true),
        };
        let is = Successor {
            uid,
            vni,
            is_elsewhere,
        };
        Some((was, is))
    });
    each.collect()
}

/// Who is here, in whatever network.
struct Everybody {
    nics: BTreeMap<String, (PortUid, wire::Vni)>,
    remotes: BTreeMap<wire::Vni, PortUid>,
}

impl Everybody {
    fn of(control: &Controller) -> Everybody {
        let nics = control
            .nics()
            .map(|status| (status.nic.id.to_string(), (status.uid, status.nic.vni)));
        Everybody {
            nics: nics.collect(),
            remotes: control.remotes(),
        }
    }

    /// Two ends by the names of their NICs; none is the partner of somebody here on another host.
    fn find(&self, ends: [&str; 2]) -> Option<(PortUid, PortUid)> {
        match ends.map(|nic| self.nics.get(nic)) {
            [Some((one, _)), Some((other, _))] => Some((*one, *other)),
            [Some((one, vni)), None] if ends[1].is_empty() => {
                self.remotes.get(vni).map(|other| (*one, *other))
            }
            [None, Some((other, vni))] if ends[0].is_empty() => {
                self.remotes.get(vni).map(|one| (*one, *other))
            }
            _ => None,
        }
    }
}

fn outgoing(flow: &FlowInfo, names: &BTreeMap<PortUid, NicId>) -> v1::ExportedConnection {
    let end = |end: &Party| v1::ExportedEnd {
        nic: names
            .get(&end.uid)
            .map(NicId::to_string)
            .unwrap_or_default(),
        address: end.address.to_string(),
        port: end.port.into(),
    };
    v1::ExportedConnection {
        protocol: flow.protocol.into(),
        initiator: Some(end(&flow.initiator)),
        responder: Some(end(&flow.responder)),
        state: flow.state.name().into(),
        age_secs: flow.age_secs,
        idle_secs: flow.idle_secs,
        timeout_secs: flow.timeout_secs,
        frames_out: flow.frames_out,
        bytes_out: flow.bytes_out,
        frames_in: flow.frames_in,
        bytes_in: flow.bytes_in,
        tcp: flow.tcp.map(|tcp| v1::ExportedTcp {
            end: tcp.end.into(),
            ack: tcp.ack.into(),
            edge: tcp.edge.into(),
            scale: tcp.scale.map(u32::from).into(),
        }),
    }
}

/// A connection whose ends have names, not yet identities.
struct Named {
    initiator_nic: String,
    responder_nic: String,
    flow: FlowInfo,
}

impl Named {
    fn between(self, initiator: PortUid, responder: PortUid) -> FlowInfo {
        let mut flow = self.flow;
        (flow.initiator.uid, flow.responder.uid) = (initiator, responder);
        flow
    }
}

/// The error says what is wrong with it, as the end of a sentence.
fn incoming(connection: v1::ExportedConnection) -> Result<Named, String> {
    let named = read(connection).ok_or("that makes no sense")?;
    let FlowInfo {
        protocol, state, ..
    } = named.flow;
    if !state.is_of(protocol) {
        let state = state.name();
        return Err(format!(
            "of protocol {protocol} in state '{state}', which none of these is ever in"
        ));
    }
    Ok(named)
}

/// `None` for values that no export has.
fn read(connection: v1::ExportedConnection) -> Option<Named> {
    let nobody = PortUid(u32::MAX);
    let end = |end: &v1::ExportedEnd| {
        Some(Party {
            uid: nobody,
            address: end.address.parse().ok()?,
            port: end.port.try_into().ok()?,
        })
    };
    let (initiator, responder) = (connection.initiator?, connection.responder?);
    let tcp = match connection.tcp {
        Some(tcp) => Some(TcpWindows {
            end: tcp.end.try_into().ok()?,
            ack: tcp.ack.try_into().ok()?,
            edge: tcp.edge.try_into().ok()?,
            scale: match tcp.scale.as_slice() {
                [one, other] => [(*one).try_into().ok()?, (*other).try_into().ok()?],
                _ => return None,
            },
        }),
        None => None,
    };
    let flow = FlowInfo {
        protocol: connection.protocol.try_into().ok()?,
        initiator: end(&initiator)?,
        responder: end(&responder)?,
        state: FlowState::ALL
            .into_iter()
            .find(|state| state.name() == connection.state)?,
        age_secs: connection.age_secs,
        idle_secs: connection.idle_secs,
        timeout_secs: connection.timeout_secs,
        frames_out: connection.frames_out,
        bytes_out: connection.bytes_out,
        frames_in: connection.frames_in,
        bytes_in: connection.bytes_in,
        // Rules are this daemon's own: they judge with the next packet.
        is_current: false,
        egress_rule: None,
        ingress_rule: None,
        tcp,
    };
    Some(Named {
        initiator_nic: initiator.nic,
        responder_nic: responder.nic,
        flow,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(protocol: u8, tcp: Option<TcpWindows>) -> FlowInfo {
        let end = |uid, address: &str, port| Party {
            uid: PortUid(uid),
            address: address.parse().unwrap(),
            port,
        };
        FlowInfo {
            protocol,
            initiator: end(1, "10.0.0.1", 40000),
            responder: end(2, "10.0.0.2", 80),
            state: FlowState::Established,
            age_secs: 1,
            idle_secs: 2,
            timeout_secs: 3,
            frames_out: 4,
            bytes_out: 5,
            frames_in: 6,
            bytes_in: 7,
            is_current: false,
            egress_rule: None,
            ingress_rule: None,
            tcp,
        }
    }

    #[test]
    fn a_flow_comes_back_as_it_went() {
        let windows = TcpWindows {
            end: [1, u32::MAX],
            ack: [2, 3],
            edge: [4, 5],
            scale: [7, 14],
        };
        let names = [(PortUid(1), "a"), (PortUid(2), "b")]
            .map(|(uid, id)| (uid, NicId::new(id).unwrap()))
            .into();
        let datagrams = FlowInfo {
            state: FlowState::Stream,
            ..flow(17, None)
        };
        for flow in [flow(6, Some(windows)), datagrams] {
            let named = incoming(outgoing(&flow, &names)).unwrap();
            assert_eq!(
                (named.initiator_nic.as_str(), named.responder_nic.as_str()),
                ("a", "b")
            );
            assert_eq!(named.between(PortUid(1), PortUid(2)), flow);
        }
    }

    #[test]
    fn every_state_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            FlowState::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(names.len(), FlowState::ALL.len());
    }

    #[test]
    fn nonsense_is_refused() {
        let good = outgoing(&flow(6, None), &BTreeMap::new());
        let bad: [fn(&mut v1::ExportedConnection); 6] = [
            |c| c.protocol = 256,
            |c| c.initiator = None,
            |c| c.responder.as_mut().unwrap().port = 65536,
            |c| c.responder.as_mut().unwrap().address = "x".into(),
            |c| c.state = "dreaming".into(),
            |c| {
                c.tcp = Some(v1::ExportedTcp {
                    end: vec![1],
                    ..Default::default()
                })
            },
        ];
        assert!(incoming(good.clone()).is_ok());
        for change in bad {
            let mut connection = good.clone();
            change(&mut connection);
            let why = incoming(connection).err().unwrap();
            assert_eq!(why, "that makes no sense");
        }
    }

    #[test]
    fn a_state_of_another_protocol_is_refused() {
        let incoming_of = |protocol, state| {
            let flow = FlowInfo {
                state,
                ..flow(protocol, None)
            };
            incoming(outgoing(&flow, &BTreeMap::new()))
        };
        for (protocol, state) in [
            (6, FlowState::SynSent),
            (17, FlowState::OneWay),
            (132, FlowState::Opening),
            (132, FlowState::Close),
            (47, FlowState::Stream),
        ] {
            let named = incoming_of(protocol, state);
            assert!(named.is_ok(), "{protocol} {state:?}");
        }
        for (protocol, state) in [
            (6, FlowState::OneWay),
            (6, FlowState::Stream),
            (6, FlowState::Opening),
            (17, FlowState::SynSent),
            (17, FlowState::Close),
            (132, FlowState::FinWait),
            (1, FlowState::Established),
        ] {
            let why = incoming_of(protocol, state).err().unwrap();
            let says = format!("of protocol {protocol} in state '{}'", state.name());
            assert!(why.starts_with(&says), "{why}");
        }
    }
}
