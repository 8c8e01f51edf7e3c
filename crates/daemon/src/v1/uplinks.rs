//! What can be seen of the uplinks.

use api::v1;
use dataplane::PortSlot;
use dataplane::drop_reason::DropReason;
use uplink::Fact;
use wire::Mac;

use crate::app::App;
use crate::uplinks::Uplinks;

/// All of them; none where this host is not to be joined to others.
pub fn list(app: &App) -> v1::ListUplinksResponse {
    let Some(uplinks) = &app.uplinks else {
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
        lost_by_kernel: kernel.dropped + kernel.ring_full + kernel.no_buffer + kernel.invalid,
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
