//! The uplinks: named, left, and what can be seen of them.

use api::v1;
use control::Controller;
use control::model::{Feature, Interface};
use dataplane::PortSlot;
use dataplane::drop_reason::DropReason;
use tonic::Status;
use uplink::Fact;
use wire::Mac;

use super::interface;
use super::service::refused;
use crate::app::App;
use crate::uplinks::Uplinks;

/// All of them; none where this host is not to be joined to others.
pub fn list(app: &App) -> v1::ListUplinksResponse {
    let Some(uplinks) = app.uplinks.running() else {
        return v1::ListUplinksResponse::default();
    };
    let counters = uplinks.counters();
    let facts = uplinks.facts();
    v1::ListUplinksResponse {
        uplinks: facts.iter().map(|fact| one(app, uplinks, fact)).collect(),
        taken: counters.taken,
        no_socket: counters.no_socket,
        elsewhere: counters.elsewhere,
        fragments: counters.fragments,
    }
}

/// Joins this host by one more interface, and says how.
pub fn add(app: &App, control: &mut Controller, name: &str) -> Result<v1::Uplink, Status> {
    let interface = Interface::new(name, None).map_err(refused)?;
    let added = control.add_interface(Feature::Uplink, interface);
    let why = added.map_err(refused)?.why;
    let found = app
        .uplinks
        .running()
        .and_then(|uplinks| Some((uplinks, uplinks.of_interface(name)?)));
    Ok(match found {
        Some((uplinks, fact)) => one(app, uplinks, &fact),
        None => v1::Uplink {
            interface: name.to_owned(),
            why,
            ..v1::Uplink::default()
        },
    })
}

/// Leaves an interface that was named.
pub fn delete(
    app: &App,
    control: &mut Controller,
    name: &str,
) -> Result<v1::DeleteUplinkResponse, Status> {
    let name = interface::name(name).map_err(refused)?;
    let deleted = control.delete_interface(Feature::Uplink, &name);
    let existed = deleted.map_err(refused)?;
    let uplinks = app.uplinks.running();
    match uplinks.and_then(|uplinks| uplinks.of_interface(&name)) {
        Some(fact) if !existed => {
            let addresses: Vec<String> = fact.addresses.iter().map(ToString::to_string).collect();
            Err(Status::failed_precondition(format!(
                "{name} is an uplink because it has the address {} of this host, which butterflyd \
                 was started with (-i)",
                addresses.join(", ")
            )))
        }
        _ => Ok(v1::DeleteUplinkResponse { existed }),
    }
}

fn one(app: &App, uplinks: &Uplinks, fact: &Fact) -> v1::Uplink {
    let counted = app
        .workers
        .switch()
        .port_counters(PortSlot::uplink(fact.number));
    let kernel = uplinks.statistics(fact.number);
    // From the wire is into this host, whichever way the data plane counts it.
    let mut drops = dropped(v1::Direction::Ingress, &counted.drops_from);
    drops.extend(dropped(v1::Direction::Egress, &counted.drops_to));
    v1::Uplink {
        interface: fact.interface.clone(),
        ifindex: fact.ifindex,
        joined: fact.joined,
        mode: fact.mode.clone(),
        why: fact.why.clone(),
        queues: fact.queues,
        mtu: fact.mtu,
        up: fact.up,
        mac: fact.mac.as_ref().map(Mac::to_string).unwrap_or_default(),
        addresses: fact.addresses.iter().map(ToString::to_string).collect(),
        received_frames: counted.rx_frames,
        received_bytes: counted.rx_bytes,
        sent_frames: counted.tx_frames,
        sent_bytes: counted.tx_bytes,
        drops,
        lost_by_kernel: crate::uplinks::lost(&kernel),
        received_kernel_frames: counted.kernel_frames,
    }
}

fn dropped(direction: v1::Direction, counted: &[u64]) -> Vec<v1::Drop> {
    let all = DropReason::ALL
        .iter()
        .zip(counted)
        .filter(|(_, frames)| **frames > 0);
    all.map(|(reason, frames)| v1::Drop {
        nic: String::new(),
        direction: direction.into(),
        reason: reason.name().into(),
        description: reason.description().into(),
        frames: *frames,
    })
    .collect()
}
