//! A flow as people and programs see it: plain data for dumps, export and import.

use std::net::IpAddr;

use wire::parse::protocol::{SCTP, TCP};

use crate::ids::{PortUid, RuleSlot};

/// One end of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Party {
    /// The NIC it is attached to.
    pub uid: PortUid,
    /// Its address.
    pub address: IpAddr,
    /// Its port (TCP, UDP, SCTP). ICMP: the query's id at the initiator, `type << 8 | code` of the
    /// query at the responder. 0 for other protocols.
    pub port: u16,
}

/// Where in its life a flow is. The names of TCP's are those of Linux's nf_conntrack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FlowState {
    /// TCP: the first SYN was seen.
    SynSent = 1,
    /// TCP: a SYN was seen from both sides and no acknowledgement (simultaneous open).
    SynSent2,
    /// TCP: SYN and SYN-ACK were seen.
    SynRecv,
    /// TCP: the handshake is complete. SCTP: the association is up.
    Established,
    /// TCP: one side has sent a FIN.
    FinWait,
    /// TCP: and it was acknowledged.
    CloseWait,
    /// TCP: both sides have sent a FIN.
    LastAck,
    /// TCP: and the last one was acknowledged.
    TimeWait,
    /// TCP: reset. SCTP: aborted or shut down.
    Close,
    /// SCTP: the association is being set up.
    Opening,
    /// UDP, ICMP, others: only the initiator has sent.
    OneWay,
    /// UDP, ICMP, others: both have sent.
    Stream,
}

impl FlowState {
    /// Every state, in the order of their numbers, which begin with 1.
    pub const ALL: [FlowState; 12] = [
        FlowState::SynSent,
        FlowState::SynSent2,
        FlowState::SynRecv,
        FlowState::Established,
        FlowState::FinWait,
        FlowState::CloseWait,
        FlowState::LastAck,
        FlowState::TimeWait,
        FlowState::Close,
        FlowState::Opening,
        FlowState::OneWay,
        FlowState::Stream,
    ];

    /// The state with this number.
    #[inline]
    pub(crate) fn from_code(code: u8) -> FlowState {
        Self::ALL[(code.wrapping_sub(1) as usize).min(Self::ALL.len() - 1)]
    }

    /// Flows of this protocol can be in this state.
    pub fn is_of(self, protocol: u8) -> bool {
        let datagrams = matches!(self, FlowState::OneWay | FlowState::Stream);
        match protocol {
            TCP => !datagrams && self != FlowState::Opening,
            SCTP => matches!(
                self,
                FlowState::Opening | FlowState::Established | FlowState::Close
            ),
            _ => datagrams,
        }
    }

    /// Half-open or closing: the first to go when a NIC's share is full.
    #[inline]
    pub(crate) fn is_transient(self) -> bool {
        !matches!(self, FlowState::Established | FlowState::Stream)
    }

    /// TCP, SCTP: closed by both ends, or reset; the entry is kept for what is still on its way.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        matches!(self, FlowState::TimeWait | FlowState::Close)
    }

    /// The name in dumps: snake_case.
    pub fn name(self) -> &'static str {
        match self {
            FlowState::SynSent => "syn_sent",
            FlowState::SynSent2 => "syn_sent2",
            FlowState::SynRecv => "syn_recv",
            FlowState::Established => "established",
            FlowState::FinWait => "fin_wait",
            FlowState::CloseWait => "close_wait",
            FlowState::LastAck => "last_ack",
            FlowState::TimeWait => "time_wait",
            FlowState::Close => "close",
            FlowState::Opening => "opening",
            FlowState::OneWay => "one_way",
            FlowState::Stream => "stream",
        }
    }
}

/// One tracked flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// IP protocol number.
    pub protocol: u8,
    /// Who sent the first packet.
    pub initiator: Party,
    /// Whom it was sent to.
    pub responder: Party,
    /// Where in its life it is.
    pub state: FlowState,
    /// Seconds since its first packet.
    pub age_secs: u32,
    /// Seconds since its last packet.
    pub idle_secs: u32,
    /// Seconds it may be idle in this state.
    pub timeout_secs: u32,
    /// Frames the initiator sent.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames the responder sent.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// It was allowed under the snapshot in force; else its next packet asks the rules.
    pub is_current: bool,
    /// The initiator's egress rule that admitted it; `None`: its own addresses may send (no egress
    /// rule), or the NIC bypasses filtering.
    pub egress_rule: Option<RuleSlot>,
    /// The responder's ingress rule that admitted it; `None`: the NIC bypasses filtering.
    pub ingress_rule: Option<RuleSlot>,
    /// TCP: what import needs to go on judging resets.
    pub tcp: Option<TcpWindows>,
}

/// How far each direction of a TCP connection is; sequence numbers. Index 0 is the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpWindows {
    /// One past the last byte sent.
    pub end: [u32; 2],
    /// The last acknowledgement sent.
    pub ack: [u32; 2],
    /// The right edge of the window offered.
    pub edge: [u32; 2],
    /// Window scale shifts.
    pub scale: [u8; 2],
}
