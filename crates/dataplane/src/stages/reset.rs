//! Beside step 11: TCP amid a connection that nobody knows. Where the rules of both sides would let
//! it pass, its sender gets a reset, as from a host that does not know the connection (RFC 9293,
//! section 3.5.2), and need not wait for its time-outs; unless a group says otherwise
//! ([`UnknownTcp`]). What rules refuse is not answered: nobody learns from here which ports are
//! open.
//!
//! The segment itself is dropped. It always has an acknowledgement: the only valid flags without
//! one are those of a SYN and a reset, which get no answer.

use wire::build;
use wire::checksum;
use wire::parse::{self, IpPacket, L4, TcpFlags, protocol};

use crate::flow::What;
use crate::overlay::TunnelSource;
use crate::round::Round;
use crate::snapshot::UnknownTcp;
use crate::stages::begin::First;

/// Answers a frame of the batch that is amid an unknown flow, where it is to be answered. It is for
/// one target alone.
#[cold]
pub(crate) fn answer(round: &mut Round, first: &First, frame: usize) {
    let What::Tcp(segment) = first.seen.what else {
        return;
    };
    let ends = TcpFlags::SYN | TcpFlags::RST;
    if first.unknown_tcp() != UnknownTcp::Reset
        || first.seen.later
        || segment.flags.intersects(ends)
        || !segment.flags.contains(TcpFlags::ACK)
    {
        return;
    }
    let sent = &round.batch.frames()[frame];
    let Ok(packet) = parse::parse(sent.head(), sent.len()) else {
        return;
    };
    let Some(ip) = packet.ip().filter(|ip| is_between_two(ip)) else {
        return;
    };
    let L4::Tcp {
        sport, dport, ack, ..
    } = ip.l4_info
    else {
        return;
    };
    let now_secs = round.now.secs();
    let (network, macs) = (first.from.network, [packet.src, packet.dst]);
    // The sender, or whom a machine of another host speaks to.
    let nic = match first.from.slot.remote_of() {
        None => first.from.slot,
        Some(_) => first.to.slot,
    };
    let resets = &mut round.replies.resets;
    let may_send = !packet.dst.is_multicast()
        && resets.are_settled(network, macs, now_secs)
        && resets.may_send(nic, now_secs);
    if !may_send || !is_sound(round, frame, ip) {
        return;
    }
    let reset = build::frame(packet.dst, packet.src)
        .ip(ip.dst(), ip.src())
        .dont_fragment()
        .tcp(dport, sport, TcpFlags::RST)
        .seq(ack)
        .window(0)
        .build();
    let from = round.host(frame).map(|host| TunnelSource { network, host });
    round.replies.push(frame, from, &reset);
}

/// A whole packet from one machine to one.
fn is_between_two(ip: &IpPacket) -> bool {
    let is_one = |address: std::net::IpAddr| !address.is_unspecified() && !address.is_multicast();
    ip.fragment.is_none() && is_one(ip.src()) && is_one(ip.dst())
}

/// Its checksum is right, or is left to be completed.
fn is_sound(round: &Round, frame: usize, ip: &IpPacket) -> bool {
    let offload = round.batch.frames()[frame].offload;
    if offload.checksum.is_some() || offload.data_valid {
        return true;
    }
    let bytes = round.batch.to_bytes(frame);
    let Some(segment) = bytes.get(usize::from(ip.l4)..ip.end as usize) else {
        return false;
    };
    let pseudo = checksum::pseudo(ip.src(), ip.dst(), protocol::TCP, segment.len() as u32);
    let sum = pseudo.map(|pseudo| checksum::add(pseudo, checksum::sum(segment)));
    sum.is_some_and(|sum| checksum::fold(sum) == 0xffff)
}
