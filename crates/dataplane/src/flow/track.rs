//! What a packet does to the flow that it belongs to: state, timeout, counts.

use wire::parse::protocol::SCTP;
use wire::parse::{IpPacket, L4, TcpFlags};

use super::entry::{Entry, FlowId, SEEN};
use super::info::FlowState;
use super::key::Side;
use super::owned::Flows;
use super::tcp::{self, Segment, Step};
use super::timeouts::timeout_secs;
use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::snapshot::Timeouts;

/// SCTP chunk types that matter here (RFC 9260, section 3.2).
mod chunk {
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const HEARTBEAT: u8 = 4;
    pub const ABORT: u8 = 6;
    pub const ERROR: u8 = 9;
    pub const COOKIE_ECHO: u8 = 10;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// What becomes of a packet of a known flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tracked {
    Pass,
    Drop(DropReason),
    /// The flow is over and the packet begins a new one: take the entry out and judge.
    Reopen,
}

/// A packet as tracking sees it.
pub(crate) struct Seen<'a> {
    pub ip: &'a IpPacket,
    /// The frame's head, for TCP options.
    pub head: &'a [u8],
    /// Bytes to count.
    pub len: usize,
    pub side: Side,
    pub now_ms: u32,
}

impl Seen<'_> {
    /// A fragment that is not the first has no header of layer 4: it refreshes its flow and changes
    /// nothing.
    fn is_later_fragment(&self) -> bool {
        self.ip
            .fragment
            .is_some_and(|fragment| fragment.offset != 0)
    }
}

/// Whether a packet can be the first of a flow, and in which state the flow then is. `midstream`: a
/// group that admits it lets TCP and SCTP begin anywhere.
pub(crate) fn first_state(ip: &IpPacket, midstream: bool) -> Result<FlowState, DropReason> {
    let later = ip.fragment.is_some_and(|fragment| fragment.offset != 0);
    match ip.l4_info {
        L4::Tcp { flags, .. } if !later => {
            if !tcp::flags_are_valid(flags) {
                Err(DropReason::TcpBadFlags)
            } else if tcp::opens(flags) {
                Ok(FlowState::SynSent)
            } else if !midstream || flags.intersects(TcpFlags::RST | TcpFlags::SYN) {
                Err(DropReason::TcpNotSyn)
            } else if flags.contains(TcpFlags::FIN) {
                Ok(FlowState::FinWait)
            } else {
                Ok(FlowState::Established)
            }
        }
        L4::Tcp { .. } => Err(DropReason::TcpNotSyn),
        // HEARTBEAT: an association that tries another of its paths (section 5.4).
        L4::Sctp { first_chunk, .. } if !later => match first_chunk {
            chunk::INIT | chunk::HEARTBEAT => Ok(FlowState::Opening),
            _ if midstream => Ok(FlowState::Established),
            _ => Err(DropReason::SctpNotInit),
        },
        L4::Sctp { .. } => Err(DropReason::SctpNotInit),
        _ => Ok(FlowState::OneWay),
    }
}

impl Flows {
    /// Follows a packet of flow `id`. `timeouts` is asked, with the slots of both NICs, only when
    /// the state changes.
    #[inline]
    pub(crate) fn track(
        &mut self,
        id: FlowId,
        seen: &Seen,
        timeouts: impl Fn((PortSlot, PortSlot)) -> Timeouts,
    ) -> Tracked {
        loop {
            let entry = self.entry(id);
            let state = entry.state();
            let next = if seen.is_later_fragment() {
                state
            } else {
                match seen.ip.l4_info {
                    L4::Tcp { flags, .. } if !tcp::flags_are_valid(flags) => {
                        return Tracked::Drop(DropReason::TcpBadFlags);
                    }
                    L4::Tcp { .. } => match follow_tcp(entry, state, seen) {
                        Step::To(next) => next,
                        Step::Stay => state,
                        Step::Bad => return Tracked::Drop(DropReason::TcpBadState),
                        Step::Reopen => return Tracked::Reopen,
                    },
                    L4::Sctp {
                        first_chunk,
                        verification_tag,
                        ..
                    } => {
                        match follow_sctp(entry, state, seen.side, first_chunk, verification_tag) {
                            Some(next) => next,
                            None => return Tracked::Reopen,
                        }
                    }
                    _ if state == FlowState::OneWay && seen.side != entry.initiator() => {
                        FlowState::Stream
                    }
                    _ => state,
                }
            };
            if next != state {
                let timeout = timeout_secs(entry.key().protocol(), next, &timeouts(entry.slots()));
                if !self.set_state(id, state, next, timeout) {
                    if self.entry(id).state.get() == 0 {
                        return Tracked::Reopen;
                    }
                    // A packet of the other side has changed it, by another worker: from there,
                    // then.
                    continue;
                }
            }
            let mine = &self.entry(id).sides[seen.side];
            mine.touch(seen.now_ms);
            mine.count(1, seen.len as u64);
            if let L4::Tcp { flags, .. } = seen.ip.l4_info
                && !seen.is_later_fragment()
            {
                mine.note_tcp_flags(flags);
            }
            if next != state && next.is_over() {
                self.tell_closed(id, next);
            }
            return Tracked::Pass;
        }
    }

    /// Notes the packet that began flow `id`.
    pub(crate) fn note_first(&mut self, id: FlowId, seen: &Seen) {
        let entry = self.entry(id);
        let mine = &entry.sides[seen.side];
        mine.count(1, seen.len as u64);
        match seen.ip.l4_info {
            _ if seen.is_later_fragment() => {}
            L4::Tcp { flags, .. } => {
                mine.note_tcp_flags(flags);
                if let Some(segment) = segment(seen) {
                    tcp::follow(entry, seen.side, &segment);
                }
            }
            L4::Sctp {
                first_chunk,
                verification_tag,
                ..
            } if first_chunk != chunk::INIT => {
                mine.note_seen(SEEN);
                mine.end.set(verification_tag);
            }
            _ => {}
        }
    }
}

#[inline]
fn follow_tcp(entry: &Entry, state: FlowState, seen: &Seen) -> Step {
    let Some(segment) = segment(seen) else {
        return Step::Stay;
    };
    let flags = segment.flags;
    let rst_fits = flags.contains(TcpFlags::RST) && tcp::reset_fits(entry, seen.side, &segment);
    let from_initiator = seen.side == entry.initiator();
    let step = tcp::step(state, from_initiator, flags, rst_fits);
    if matches!(step, Step::To(_)) && !flags.contains(TcpFlags::RST) {
        tcp::follow(entry, seen.side, &segment);
    }
    step
}

/// What tracking needs of a TCP packet.
#[inline]
fn segment(seen: &Seen) -> Option<Segment> {
    let L4::Tcp {
        flags,
        seq,
        ack,
        window,
        header_len,
        payload_len,
        ..
    } = seen.ip.l4_info
    else {
        return None;
    };
    let scale = if flags.contains(TcpFlags::SYN) {
        let l4 = usize::from(seen.ip.l4);
        let options = seen.head.get(l4 + 20..l4 + usize::from(header_len));
        options.and_then(tcp::window_scale)
    } else {
        None
    };
    Some(Segment {
        flags,
        seq,
        ack,
        window,
        payload_len,
        scale,
    })
}

/// SCTP roughly as nf_conntrack follows it: opening until the responder says more than the
/// handshake's beginning, closed by an abort or the end of a shutdown that carries a tag of the
/// association. `None`: it is over and this opens another.
fn follow_sctp(
    entry: &Entry,
    state: FlowState,
    side: Side,
    first_chunk: u8,
    tag: u32,
) -> Option<FlowState> {
    let from_responder = side != entry.initiator();
    match first_chunk {
        chunk::INIT if state == FlowState::Close => return None,
        chunk::INIT => return Some(state),
        chunk::ABORT | chunk::SHUTDOWN_COMPLETE => {
            // With the T bit the tag is the other side's.
            let fits =
                state == FlowState::Opening || entry.sides.iter().any(|side| side.end.get() == tag);
            return Some(if fits { FlowState::Close } else { state });
        }
        _ => {}
    }
    entry.sides[side].note_seen(SEEN);
    entry.sides[side].end.set(tag);
    let handshake = matches!(
        first_chunk,
        chunk::INIT_ACK | chunk::COOKIE_ECHO | chunk::ERROR
    );
    let up = state == FlowState::Opening && from_responder && !handshake;
    debug_assert_eq!(entry.key().protocol(), SCTP);
    Some(if up { FlowState::Established } else { state })
}
