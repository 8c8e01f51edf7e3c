//! What a packet does to the flow that it belongs to: state, timeout, counts.

use wire::parse::protocol::SCTP;
use wire::parse::{IpPacket, L4, TcpFlags, Transport};

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

/// A packet as tracking sees it, whoever has read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub what: What,
    /// A fragment that is not the first, which is judged like that one, has no header of layer 4:
    /// it refreshes its flow and changes nothing.
    pub later: bool,
    /// Bytes to count.
    pub len: usize,
    pub side: Side,
    pub now_ms: u32,
}

/// What layer 4 says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Tcp(Segment),
    Sctp {
        first_chunk: u8,
        tag: u32,
    },
    /// UDP, ICMP and all that has no states but those of who has sent.
    Datagram,
}

impl Seen {
    /// A packet that was parsed, in a frame of `len` bytes that begins with `head`.
    #[inline]
    pub fn of(ip: &IpPacket, head: &[u8], len: usize, side: Side, now_ms: u32) -> Seen {
        let what = match ip.l4_info {
            L4::Tcp {
                flags,
                seq,
                ack,
                window,
                header_len,
                payload_len,
                ..
            } => {
                let l4 = usize::from(ip.l4);
                let options = head.get(l4 + 20..l4 + usize::from(header_len));
                What::Tcp(Segment {
                    flags,
                    seq,
                    ack,
                    window,
                    payload_len,
                    scale: tcp::scale_of(flags, options.unwrap_or_default()),
                })
            }
            L4::Sctp {
                first_chunk,
                verification_tag,
                ..
            } => What::Sctp {
                first_chunk,
                tag: verification_tag,
            },
            _ => What::Datagram,
        };
        Seen {
            what,
            later: ip.is_later_fragment(),
            len,
            side,
            now_ms,
        }
    }

    /// A [plain](wire::parse::plain) packet, likewise.
    #[inline]
    pub fn of_plain(
        transport: &Transport,
        head: &[u8],
        len: usize,
        side: Side,
        now_ms: u32,
    ) -> Seen {
        let what = match transport.tcp(head) {
            Some(tcp) => What::Tcp(Segment {
                flags: tcp.flags,
                seq: tcp.seq,
                ack: tcp.ack,
                window: tcp.window,
                payload_len: tcp.payload_len,
                scale: tcp::scale_of(tcp.flags, transport.tcp_options(head)),
            }),
            None => What::Datagram,
        };
        Seen {
            what,
            later: false,
            len,
            side,
            now_ms,
        }
    }
}

/// Whether a packet can be the first of a flow, and in which state the flow then is. `midstream`: a
/// group that admits it lets TCP and SCTP begin anywhere.
pub(crate) fn first_state(seen: &Seen, midstream: bool) -> Result<FlowState, DropReason> {
    match seen.what {
        What::Tcp(Segment { flags, .. }) if !seen.later => {
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
        What::Tcp(_) => Err(DropReason::TcpNotSyn),
        // HEARTBEAT: an association that tries another of its paths (section 5.4).
        What::Sctp { first_chunk, .. } if !seen.later => match first_chunk {
            chunk::INIT | chunk::HEARTBEAT => Ok(FlowState::Opening),
            _ if midstream => Ok(FlowState::Established),
            _ => Err(DropReason::SctpNotInit),
        },
        What::Sctp { .. } => Err(DropReason::SctpNotInit),
        What::Datagram => Ok(FlowState::OneWay),
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
        self.fold(self.entry(id));
        loop {
            let entry = self.entry(id);
            let state = entry.state();
            let next = if seen.later {
                state
            } else {
                match &seen.what {
                    What::Tcp(segment) if !tcp::flags_are_valid(segment.flags) => {
                        return Tracked::Drop(DropReason::TcpBadFlags);
                    }
                    What::Tcp(segment) => match follow_tcp(entry, state, seen.side, segment) {
                        Step::To(next) => next,
                        Step::Stay => state,
                        Step::Bad => return Tracked::Drop(DropReason::TcpBadState),
                        Step::Reopen => return Tracked::Reopen,
                    },
                    What::Sctp { first_chunk, tag } => {
                        match follow_sctp(entry, state, seen.side, *first_chunk, *tag) {
                            Some(next) => next,
                            None => return Tracked::Reopen,
                        }
                    }
                    What::Datagram
                        if state == FlowState::OneWay && seen.side != entry.initiator() =>
                    {
                        FlowState::Stream
                    }
                    What::Datagram => state,
                }
            };
            if next != state {
                let timeout = timeout_secs(entry.protocol(), next, || timeouts(entry.slots()));
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
            if let What::Tcp(segment) = &seen.what
                && !seen.later
            {
                mine.note_tcp_flags(segment.flags);
            }
            if next != state && next.is_over() {
                self.log_closed(id, next);
            }
            return Tracked::Pass;
        }
    }

    /// Notes the packet that began flow `id`.
    #[inline]
    pub(crate) fn note_first(&mut self, id: FlowId, seen: &Seen) {
        let entry = self.entry(id);
        let mine = &entry.sides[seen.side];
        mine.count(1, seen.len as u64);
        match &seen.what {
            _ if seen.later => {}
            What::Tcp(segment) => {
                mine.note_tcp_flags(segment.flags);
                tcp::follow(entry, seen.side, segment);
            }
            What::Sctp { first_chunk, tag } if *first_chunk != chunk::INIT => {
                mine.note_seen(SEEN);
                mine.end.set(*tag);
            }
            What::Sctp { .. } | What::Datagram => {}
        }
    }
}

#[inline]
fn follow_tcp(entry: &Entry, state: FlowState, side: Side, segment: &Segment) -> Step {
    let flags = segment.flags;
    let rst_fits = flags.contains(TcpFlags::RST) && tcp::reset_fits(entry, side, segment);
    let from_initiator = side == entry.initiator();
    let step = tcp::step(state, from_initiator, flags, rst_fits);
    if matches!(step, Step::To(_)) && !flags.contains(TcpFlags::RST) {
        tcp::follow(entry, side, segment);
    }
    step
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
    debug_assert_eq!(entry.protocol(), SCTP);
    Some(if up { FlowState::Established } else { state })
}
