//! What comes before all else for frames from the wire: the outer headers, who has sent them, in
//! which VLAN, however the uplink is joined, which network they are for, and what happened to them
//! on the way (ECN). What is left of a frame is the inner one; the whole batch goes on as that.

use std::net::IpAddr;

use io::frame::{BATCH, Batch, Bits};
use wire::Vni;
use wire::vxlan::{self, OuterError, Received, ecn};

use crate::drop_reason::DropReason;
use crate::ids::NetworkIdx;
use crate::overlay::Flood;
use crate::overlay::TunnelSource;
use crate::underlay::Underlay;
use crate::view::View;

/// Stands for a frame that is not looked at.
pub(crate) const NOWHERE: TunnelSource = TunnelSource {
    network: NetworkIdx(u32::MAX),
    host: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
};

/// Takes the outer headers off. Notes where each frame comes from, and gives those that go on, as
/// bits; for each of the others `dropped` is called with its index.
pub(crate) fn run(
    batch: &mut Batch,
    view: &View,
    underlay: &Underlay,
    sources: &mut [TunnelSource; BATCH],
    mut dropped: impl FnMut(usize, DropReason),
) -> Bits {
    let mut going = 0;
    let port = underlay.encapsulation().port;
    // Frames that follow each other are mostly of one pair of hosts, one VLAN and one network.
    let mut before: Option<((IpAddr, IpAddr, u16, Vni), NetworkIdx)> = None;
    for (index, source) in sources.iter_mut().enumerate().take(batch.len()) {
        let frame = &mut batch.frames_mut()[index];
        let received = match vxlan::parse(frame.head(), frame.len(), port) {
            Ok(received) => received,
            Err(error) => {
                dropped(index, reason(error));
                continue;
            }
        };
        let way = (received.src, received.dst, received.vlan, received.vni);
        let network = match before {
            Some((known, network)) if known == way => network,
            _ => match network_of(view, underlay, &received) {
                Ok(network) => network,
                Err(reason) => {
                    dropped(index, reason);
                    continue;
                }
            },
        };
        before = Some((way, network));
        let front = usize::from(received.inner);
        // In a packet that was on no wire something may be left to do, and no damage is to be
        // found.
        let was_on_wire = frame.offload.checksum.is_none() && frame.fault().is_none();
        let Some(undone) = vxlan::inner_undone(&frame.offload, received.inner) else {
            dropped(index, DropReason::BadOffload);
            continue;
        };
        frame.offload = undone;
        if !frame.strip(front, received.end as usize - front) {
            dropped(index, DropReason::OuterMalformed);
            continue;
        }
        if was_on_wire && received.sum.is_some() && !received.verify(|| batch.sum(index)) {
            dropped(index, DropReason::OuterChecksum);
            continue;
        }
        if !ecn::decapsulate_frame(batch.frames_mut()[index].head_mut(), received.tos) {
            dropped(index, DropReason::EcnNotCapable);
            continue;
        }
        *source = TunnelSource {
            network,
            host: received.src,
        };
        going |= 1 << index;
    }
    going
}

/// The network that a frame is for, if it is for us, and from who may send there.
fn network_of(
    view: &View,
    underlay: &Underlay,
    received: &Received,
) -> Result<NetworkIdx, DropReason> {
    if !underlay.takes(received.dst, received.vlan) {
        return Err(DropReason::NotOurs);
    }
    let network = view.by_vni(received.vni).ok_or(DropReason::UnknownVni)?;
    let overlay = view
        .network(network)
        .and_then(|network| network.overlay.as_ref())
        .ok_or(DropReason::UnknownVni)?;
    if received.dst.is_multicast() && overlay.flood != Flood::Group(received.dst) {
        return Err(DropReason::NotOurs);
    }
    // Our own frame, come back.
    if underlay.is_ours(received.src) {
        return Err(DropReason::UnknownHost);
    }
    view.takes_from(overlay, received.src)?;
    Ok(network)
}

#[cold]
fn reason(error: OuterError) -> DropReason {
    match error {
        OuterError::Malformed => DropReason::OuterMalformed,
        OuterError::Checksum => DropReason::OuterChecksum,
        OuterError::Fragment => DropReason::OuterFragment,
        OuterError::NotVxlan | OuterError::NoVni => DropReason::NotOurs,
    }
}
