//! TCP as a firewall in the middle sees it (RFC 9293; the states are nf_conntrack's).
//!
//! The middle does not know what arrived, so it follows what was sent: which flags go which way in
//! which state. Sequence numbers are followed lightly, each direction's highest end,
//! acknowledgement and window edge: enough to tell the reset of this connection from one that
//! floats about from an older one. A frame may stand for many segments (TSO): its whole payload
//! counts.

use wire::parse::{PlainTcp, TcpFlags};

use super::cell::U32;
use super::entry::{ACKED, Entry, Half, SEEN};
use super::info::FlowState;
use super::key::Side;

/// What the data plane needs of a TCP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub flags: TcpFlags,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub payload_len: u32,
    /// The window scale option, where there is one; only looked for in a SYN.
    pub scale: Option<u8>,
}

impl Segment {
    /// One past its last byte; SYN and FIN count as one each.
    fn end(&self) -> u32 {
        let extra = u32::from(self.flags.contains(TcpFlags::SYN))
            + u32::from(self.flags.contains(TcpFlags::FIN));
        self.seq.wrapping_add(self.payload_len).wrapping_add(extra)
    }
}

/// What a packet does to its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It passes and the connection is in this state.
    To(FlowState),
    /// It passes and changes nothing.
    Stay,
    /// It cannot be: drop.
    Bad,
    /// The connection is over and this is a new one.
    Reopen,
}

/// The scale of a side whose SYN was not seen: as far as any can go.
const UNKNOWN_SCALE: u8 = 14;

/// True for the combinations of flags that a TCP sends (those that carry no meaning here set
/// aside).
#[inline]
pub(crate) fn flags_are_valid(flags: TcpFlags) -> bool {
    const SET_ASIDE: u8 = TcpFlags::PSH.0 | TcpFlags::ECE.0 | TcpFlags::CWR.0;
    VALID >> (flags.0 & !SET_ASIDE) & 1 == 1
}

/// Those combinations, a bit each.
const VALID: u64 = {
    let (fin, syn, rst) = (TcpFlags::FIN.0, TcpFlags::SYN.0, TcpFlags::RST.0);
    let (ack, urg) = (TcpFlags::ACK.0, TcpFlags::URG.0);
    1 << syn
        | 1 << (syn | urg)
        | 1 << (syn | ack)
        | 1 << rst
        | 1 << (rst | ack)
        | 1 << (fin | ack)
        | 1 << (fin | ack | urg)
        | 1 << ack
        | 1 << (ack | urg)
};

/// True for the first packet of a connection.
#[inline]
pub(crate) fn opens(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::SYN)
        && !flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN)
}

/// The state after a packet with `flags`, in the initiator's direction or the other one. `rst_fits`
/// says whether a reset is the connection's own.
#[inline]
pub(crate) fn step(
    state: FlowState,
    from_initiator: bool,
    flags: TcpFlags,
    rst_fits: bool,
) -> Step {
    use FlowState::*;
    if flags.contains(TcpFlags::RST) {
        return if rst_fits {
            Step::To(Close)
        } else {
            Step::Stay
        };
    }
    let syn = flags.contains(TcpFlags::SYN);
    let ack = flags.contains(TcpFlags::ACK);
    let fin = flags.contains(TcpFlags::FIN);
    match (state, from_initiator) {
        // A SYN for a connection that is over: its four numbers are used again.
        (TimeWait | Close, _) if syn && !ack => Step::Reopen,
        // SYN: sent again, crossing the other's (simultaneous open), or one that the peer will
        // answer with a challenge.
        (SynSent, false) if syn && !ack => Step::To(SynSent2),
        (SynSent | SynSent2, _) if syn && !ack => Step::To(state),
        (_, true) if syn && !ack => Step::Stay,
        (_, false) if syn && !ack => Step::Bad,
        // SYN-ACK: the responder's answer, and the initiator's when both opened.
        (SynSent | SynSent2, false) if syn => Step::To(SynRecv),
        (SynSent2 | SynRecv, true) if syn => Step::To(SynRecv),
        (_, false) if syn => Step::Stay,
        (_, true) if syn => Step::Bad,
        // FIN: the first one, then the second.
        (SynSent | SynSent2, _) if fin => Step::Bad,
        (SynRecv | Established, _) if fin => Step::To(FinWait),
        (FinWait | CloseWait | LastAck, _) if fin => Step::To(LastAck),
        // ACK alone.
        (SynSent | SynSent2, true) => Step::Bad,
        (SynSent | SynSent2, false) => Step::Stay,
        (SynRecv, true) => Step::To(Established),
        (FinWait, _) => Step::To(CloseWait),
        (LastAck, _) => Step::To(TimeWait),
        _ => Step::To(state),
    }
}

/// True when a reset from `side` is one that its receiver would take (RFC 9293, section 3.10.7): it
/// answers the SYN, is the next byte of its own side, or lies in the window that the receiver has
/// offered.
pub(crate) fn reset_fits(entry: &Entry, side: Side, segment: &Segment) -> bool {
    let (mine, other) = (&entry.sides[side], &entry.sides[1 - side]);
    let answers_syn = !mine.has_seen(SEEN)
        && segment.flags.contains(TcpFlags::ACK)
        && segment.ack == other.end.get();
    let is_next = mine.has_seen(SEEN) && segment.seq == mine.end.get();
    let in_window = other.has_seen(ACKED)
        && !before(segment.seq, other.ack.get())
        && !before(other.edge.get(), segment.seq);
    answers_syn || is_next || in_window
}

/// Notes how far `side` has come with this packet.
#[inline]
pub(crate) fn follow(entry: &Entry, side: Side, segment: &Segment) {
    let mine = &entry.sides[side];
    let syn = segment.flags.contains(TcpFlags::SYN);
    if !mine.has_seen(SEEN) || syn {
        mine.note_seen(SEEN);
        mine.end.set(segment.end());
        mine.scale.set(match (syn, segment.scale) {
            (false, _) => UNKNOWN_SCALE,
            (true, Some(scale)) => scale.min(14),
            (true, None) => 0,
        });
        // Both sides scale or neither does (RFC 7323, section 2.2).
        if syn && segment.scale.is_none() && segment.flags.contains(TcpFlags::ACK) {
            entry.sides.iter().for_each(|side| side.scale.set(0));
        }
    } else {
        raise(&mine.end, segment.end());
    }
    if !segment.flags.contains(TcpFlags::ACK) {
        return;
    }
    let scale = if syn { 0 } else { mine.scale.get() };
    let edge = segment.ack.wrapping_add(u32::from(segment.window) << scale);
    if mine.has_seen(ACKED) {
        raise(&mine.ack, segment.ack);
        raise(&mine.edge, edge);
    } else {
        mine.note_seen(ACKED);
        mine.ack.set(segment.ack);
        mine.edge.set(edge);
    }
}

/// Follows a segment of data or an acknowledgement amid an established connection. False when this
/// side is not known well enough for that.
#[inline(always)]
pub(crate) fn follow_plain(mine: &Half, segment: &PlainTcp) -> bool {
    const AMID: u8 = SEEN | ACKED;
    if mine.seen.get() & AMID != AMID {
        return false;
    }
    let edge = segment
        .ack
        .wrapping_add(u32::from(segment.window) << mine.scale.get());
    raise(&mine.end, segment.seq.wrapping_add(segment.payload_len));
    raise(&mine.ack, segment.ack);
    raise(&mine.edge, edge);
    true
}

/// Notes how far a side that is amid its connection has come with packets that somebody else has
/// looked at.
pub(super) fn follow_seen(mine: &Half, end: u32, ack: u32, edge: u32) {
    if is_followed(mine) {
        raise(&mine.end, end);
        raise(&mine.ack, ack);
        raise(&mine.edge, edge);
    }
}

/// This side has shown what is to be known of it for packets amid the connection.
#[inline]
pub(crate) fn is_followed(mine: &Half) -> bool {
    mine.has_seen(SEEN) && mine.has_seen(ACKED)
}

/// An acknowledgement, with data or without, and nothing else.
#[inline(always)]
pub(crate) fn is_amid(flags: TcpFlags) -> bool {
    let special = TcpFlags::FIN | TcpFlags::SYN | TcpFlags::RST | TcpFlags::URG;
    flags.contains(TcpFlags::ACK) && !flags.intersects(special)
}

#[inline(always)]
fn raise(number: &U32, to: u32) {
    if before(number.get(), to) {
        number.set(to);
    }
}

/// Sequence numbers are compared around the circle (RFC 9293, section 3.4).
#[inline(always)]
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The window scale option of a SYN, where it has one; of nothing else.
#[inline]
pub(crate) fn scale_of(flags: TcpFlags, options: &[u8]) -> Option<u8> {
    match flags.contains(TcpFlags::SYN) {
        true => window_scale(options),
        false => None,
    }
}

/// The window scale option of a TCP header that was parsed (RFC 7323); `options` is what follows 20
/// bytes.
fn window_scale(mut options: &[u8]) -> Option<u8> {
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, _) => return None,
            (1, _) => rest,
            (3, [3, scale, ..]) => return Some(*scale),
            (_, [len, ..]) => options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::FlowState::*;
    use super::*;

    const SYN: TcpFlags = TcpFlags::SYN;
    const ACK: TcpFlags = TcpFlags::ACK;
    const FIN: TcpFlags = TcpFlags(0x11);
    const SYN_ACK: TcpFlags = TcpFlags(0x12);
    const RST: TcpFlags = TcpFlags::RST;

    /// Plays packets, `true` from the initiator, and gives the states they lead to.
    fn play(packets: &[(bool, TcpFlags)]) -> Vec<FlowState> {
        let mut state = SynSent;
        let play = |&(from_initiator, flags): &(bool, TcpFlags)| {
            match step(state, from_initiator, flags, true) {
                Step::To(next) => state = next,
                Step::Stay => {}
                other => panic!("{flags:?} in {state:?}: {other:?}"),
            }
            state
        };
        packets.iter().map(play).collect()
    }

    #[test]
    fn a_connection_opens_talks_and_closes() {
        let states = play(&[
            (true, SYN),
            (false, SYN_ACK),
            (true, ACK),
            (false, ACK),
            (true, FIN),
            (false, ACK),
            (false, ACK),
            (false, FIN),
            (true, ACK),
            (true, ACK),
        ]);
        let expected = [
            SynSent,
            SynRecv,
            Established,
            Established,
            FinWait,
            CloseWait,
            CloseWait,
            LastAck,
            TimeWait,
            TimeWait,
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn both_may_open_at_once() {
        let states = play(&[(false, SYN), (true, SYN_ACK), (false, SYN_ACK), (true, ACK)]);
        assert_eq!(states, [SynSent2, SynRecv, SynRecv, Established]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_over_opens_again() {
        assert_eq!(step(SynSent, true, ACK, true), Step::Bad);
        assert_eq!(step(SynSent, true, FIN, true), Step::Bad);
        assert_eq!(step(Established, true, SYN_ACK, true), Step::Bad);
        assert_eq!(step(Established, false, SYN, true), Step::Bad);
        assert_eq!(step(Established, true, SYN, true), Step::Stay);
        for over in [TimeWait, Close] {
            assert_eq!(step(over, true, SYN, true), Step::Reopen);
            assert_eq!(step(over, false, SYN, true), Step::Reopen);
        }
        for state in [SynSent, SynRecv, Established, FinWait, TimeWait] {
            assert_eq!(step(state, false, RST, true), Step::To(Close));
            assert_eq!(step(state, false, RST, false), Step::Stay);
        }
    }

    #[test]
    fn only_combinations_that_tcp_sends_are_valid() {
        let valid: Vec<u8> = (0..=0x3f)
            .filter(|bits| bits & TcpFlags::PSH.0 == 0 && flags_are_valid(TcpFlags(*bits)))
            .collect();
        // SYN, RST, ACK, FIN+ACK, SYN+ACK, RST+ACK, and URG with SYN, ACK, FIN+ACK.
        assert_eq!(
            valid,
            [0x02, 0x04, 0x10, 0x11, 0x12, 0x14, 0x22, 0x30, 0x31]
        );
        assert!(flags_are_valid(SYN | TcpFlags::ECE | TcpFlags::CWR));
    }

    #[test]
    fn the_window_scale_is_found_among_options() {
        assert_eq!(
            window_scale(&[
                2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 7
            ]),
            Some(7)
        );
        assert_eq!(window_scale(&[2, 4, 5, 180]), None);
        assert_eq!(window_scale(&[0, 3, 3, 7]), None);
        assert_eq!(window_scale(&[3, 3]), None);
    }
}
