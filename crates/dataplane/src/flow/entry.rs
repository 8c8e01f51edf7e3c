//! One tracked flow as it lies in the table: two cache lines of plain numbers, no pointers.

use bytemuck::Zeroable;

use super::info::{FlowState, TcpWindows};
use super::key::{Key, Side};
use crate::snapshot::RuleSlot;

/// Index of a flow in the table.
pub(crate) type FlowId = u32;

/// No flow, no rule.
pub(crate) const NONE: u32 = u32::MAX;

/// `flags`: side 1 sent the first packet, else side 0.
pub(crate) const INITIATOR_IS_1: u8 = 1;
/// `flags`: the rule that let it out is of a group that drains.
pub(crate) const DRAIN_EGRESS: u8 = 2;
/// `flags`: the rule that let it in is of a group that drains.
pub(crate) const DRAIN_INGRESS: u8 = 4;
/// `flags`: TCP: something was seen of side 0; shifted by the side.
pub(crate) const SEEN: u8 = 0x10;
/// `flags`: TCP: side 0 has acknowledged something; shifted by the side.
pub(crate) const ACKED: u8 = 0x40;

/// A flow. What both directions write apart is in arrays by [`Side`], so that two workers could each write
/// their own half (see the crate's theory of operation).
#[derive(Clone, Copy, Zeroable, Debug)]
#[repr(C)]
pub(crate) struct Entry {
    pub ip: [u128; 2],
    pub uid: [u32; 2],
    pub port: [u16; 2],
    pub protocol: u8,
    pub kind: u8,
    /// A [`FlowState`] as a number; 0 is a free entry.
    pub state: u8,
    pub flags: u8,
    /// The snapshot under which it was decided, as far as 32 bits tell it.
    pub epoch: u32,
    /// When its last packet came, milliseconds of the table's clock.
    pub last_ms: u32,
    pub timeout_secs: u32,
    pub egress_rule: u32,
    pub ingress_rule: u32,
    /// TCP: one past the last byte sent. SCTP: the verification tag sent.
    pub end: [u32; 2],
    /// TCP: the last acknowledgement sent.
    pub ack: [u32; 2],
    /// TCP: the right edge of the window offered.
    pub edge: [u32; 2],
    /// TCP: window scale.
    pub scale: [u8; 2],
    pub spare: u16,
    pub frames: [u64; 2],
    pub bytes: [u64; 2],
}

const _: () = assert!(size_of::<Entry>() == 128);

impl Entry {
    #[inline]
    pub(crate) fn is(&self, key: &Key) -> bool {
        self.ip == key.ip
            && self.uid == key.uid
            && self.port == key.port
            && self.protocol == key.protocol
            && self.kind == key.kind
            && self.state != 0
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            ip: self.ip,
            uid: self.uid,
            port: self.port,
            protocol: self.protocol,
            kind: self.kind,
        }
    }

    /// Who sent the first packet.
    #[inline]
    pub(crate) fn initiator(&self) -> Side {
        usize::from(self.flags & INITIATOR_IS_1)
    }

    #[inline]
    pub(crate) fn state(&self) -> FlowState {
        FlowState::from_code(self.state)
    }

    /// Milliseconds since its last packet. The clock wraps after 49 days; no flow lives idle for that long.
    #[inline]
    pub(crate) fn idle_ms(&self, now_ms: u32) -> u32 {
        now_ms.wrapping_sub(self.last_ms)
    }

    #[inline]
    pub(crate) fn expired(&self, now_ms: u32) -> bool {
        self.idle_ms(now_ms) >= self.timeout_secs * 1000
    }

    pub(crate) fn rule(slot: u32) -> Option<RuleSlot> {
        (slot != NONE).then_some(RuleSlot(slot))
    }

    pub(crate) fn windows(&self) -> TcpWindows {
        let (i, r) = (self.initiator(), 1 - self.initiator());
        TcpWindows {
            end: [self.end[i], self.end[r]],
            ack: [self.ack[i], self.ack[r]],
            edge: [self.edge[i], self.edge[r]],
            scale: [self.scale[i], self.scale[r]],
        }
    }
}
