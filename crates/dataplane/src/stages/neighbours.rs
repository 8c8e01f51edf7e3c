//! Step 6: who asks where a machine on another host is gets the answer from here: the bindings say
//! it. So questions do not flood the wire. A question for an address of this host stays on it.
//!
//! Only what was asked of everybody is answered: who asks one machine in particular wants to hear
//! from it.

use wire::build;
use wire::nd::NdKind;
use wire::parse::{ArpPacket, Net, Packet};
use wire::{Mac, nd};

use crate::overlay::{Holder, Overlay};
use crate::round::{Fate, Round};

/// What becomes of a question.
enum Outcome {
    /// It goes on, to everybody.
    On,
    /// To everybody on this host.
    Near,
    Answered(Vec<u8>),
}

pub(crate) fn run(round: &mut Round) {
    let network = round.view.network(round.nic.network);
    let Some(overlay) = network.and_then(|network| network.overlay.as_deref()) else {
        return;
    };
    if round.is_from_wire() {
        return;
    }
    for index in 0..round.items.len() {
        let item = &round.items[index];
        let Some(packet) = item
            .packet
            .as_ref()
            .filter(|_| item.is_going() && item.always)
        else {
            continue;
        };
        if !packet.dst.is_multicast() {
            continue;
        }
        let outcome = match (&packet.net, item.nd.as_ref().map(|nd| nd.kind)) {
            (Net::Arp(arp), _) => ask(round, overlay, arp.target_ip.into(), || {
                arp_answer(overlay, packet, arp)
            }),
            (_, Some(NdKind::NeighbourSolicitation { target })) => {
                ask(round, overlay, target.into(), || {
                    nd_answer(overlay, packet, target)
                })
            }
            _ => Outcome::On,
        };
        match outcome {
            Outcome::On => {}
            Outcome::Near => round.items[index].near = true,
            Outcome::Answered(bytes) => {
                round.replies.push(round.items[index].frame, None, &bytes);
                round.items[index].fate = Fate::Delivered;
            }
        }
    }
}

fn ask(
    round: &Round,
    overlay: &Overlay,
    target: std::net::IpAddr,
    answer: impl FnOnce() -> Option<Vec<u8>>,
) -> Outcome {
    if round.view.is_owned(round.nic.network, target) {
        return match overlay.neighbours.contains_key(&target) {
            // The address is here and behind another host: whoever has it may answer.
            true => Outcome::On,
            false => Outcome::Near,
        };
    }
    answer().map_or(Outcome::On, Outcome::Answered)
}

/// Who is bound to an address, if that is another machine than the one that asks.
fn bound(overlay: &Overlay, address: std::net::IpAddr, asker: Mac) -> Option<Mac> {
    let Holder::One(mac) = *overlay.neighbours.get(&address)? else {
        return None;
    };
    (mac != asker && overlay.bindings.contains_key(&mac)).then_some(mac)
}

/// To a request, a probe (RFC 5227) included: the address is taken. An announcement asks nothing.
fn arp_answer(overlay: &Overlay, packet: &Packet, arp: &ArpPacket) -> Option<Vec<u8>> {
    if arp.op != 1 || arp.sender_ip == arp.target_ip {
        return None;
    }
    let mac = bound(overlay, arp.target_ip.into(), packet.src)?;
    Some(build::arp_reply(
        mac,
        arp.target_ip,
        arp.sender_mac,
        arp.sender_ip,
    ))
}

/// To a solicitation; that of who has no address yet is answered to all nodes (RFC 4861, section
/// 7.2.4).
fn nd_answer(overlay: &Overlay, packet: &Packet, target: std::net::Ipv6Addr) -> Option<Vec<u8>> {
    let mac = bound(overlay, target.into(), packet.src)?;
    let ip = packet.ip()?;
    let std::net::IpAddr::V6(asker) = ip.src() else {
        return None;
    };
    Some(match asker.is_unspecified() {
        true => build::neighbour_advertisement(mac, target, nd::ALL_NODES_MAC, nd::ALL_NODES),
        false => build::neighbour_advertisement(mac, target, packet.src, asker),
    })
}
