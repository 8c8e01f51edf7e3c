//! What the stages of the path work on: one batch of one sender, under one view.

use io::frame::Batch;
use wire::nd::Nd;
use wire::parse::{IpPacket, L4, Packet, TcpFlags};

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::flow::{FlowId, FlowTable, Key, Side};
use crate::fragments::{DatagramKey, Fragments};
use crate::judge::{self, Grant, Question};
use crate::learned::LearnedMacs;
use crate::snapshot::{PortConfig, PortSlot};
use crate::view::View;
use crate::worker::Now;

/// State that outlives a batch.
pub(crate) struct Tables {
    pub flows: FlowTable,
    pub fragments: Fragments,
    pub learned: LearnedMacs,
    /// How many ICMP errors may still look for their flow in the whole network before the next housekeeping.
    pub wide_searches: u32,
}

/// One frame of the batch.
pub(crate) struct Item {
    /// What it is; `None` when it could not be parsed.
    pub packet: Option<Packet>,
    /// The neighbour discovery message in it.
    pub nd: Option<Nd>,
    /// Passes whatever the rules say.
    pub always: bool,
    pub fate: Fate,
    /// Set on a datagram's first fragment.
    pub first_of: Option<DatagramKey>,
}

/// What became of a frame as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Still on its way; in the end: lost for every target, each of which has counted why.
    Going,
    /// Delivered to one target at least.
    Delivered,
    /// Held back until its first fragment comes.
    Held,
    Dropped(DropReason),
}

/// One frame for one target.
pub(crate) struct Job {
    pub frame: usize,
    pub target: PortSlot,
    pub verdict: Verdict,
    pub track: Track,
    pub egress: Grant,
    pub ingress: Grant,
}

/// Whether and where a job's packet is remembered.
#[derive(Clone, Copy)]
pub(crate) enum Track {
    /// By the rules alone.
    No,
    /// In a flow with this key, whose hash is beside it; the packet was sent by this side.
    Flow(Key, u32, Side),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Open,
    Pass,
    /// Refused on the sender's side: counted once for the frame.
    DropFrom(DropReason),
    /// Refused on the receiver's side.
    DropTo(DropReason),
}

/// A batch on its way.
pub(crate) struct Round<'a> {
    pub nic: &'a PortConfig,
    pub view: &'a View,
    pub counters: &'a Counters,
    pub tables: &'a mut Tables,
    pub batch: &'a Batch,
    pub items: &'a mut Vec<Item>,
    pub jobs: &'a mut Vec<Job>,
    pub now: Now,
}

impl Now {
    /// The flow table's clock.
    #[inline]
    pub(crate) fn millis(&self) -> u32 {
        (self.mono_ns / 1_000_000) as u32
    }

    #[inline]
    pub(crate) fn secs(&self) -> u32 {
        (self.mono_ns / 1_000_000_000) as u32
    }
}

impl Item {
    #[inline]
    pub(crate) fn ip(&self) -> Option<&IpPacket> {
        self.packet.as_ref()?.ip()
    }

    #[inline]
    pub(crate) fn is_going(&self) -> bool {
        self.fate == Fate::Going
    }
}

impl Round<'_> {
    /// Drops a frame before it has targets.
    #[inline]
    pub(crate) fn drop_item(&mut self, index: usize, reason: DropReason) {
        drop_frame(self.counters, self.nic, &mut self.items[index], reason);
    }

    /// Counts that a flow's two rules let a frame pass.
    #[inline]
    pub(crate) fn count_rules(&self, flow: FlowId, bytes: usize) {
        let entry = self.tables.flows.entry(flow);
        self.count_slot(entry.egress_rule, bytes);
        self.count_slot(entry.ingress_rule, bytes);
    }

    #[inline]
    fn count_slot(&self, slot: u32, bytes: usize) {
        if let Some(rule) = crate::flow::Entry::rule(slot) {
            self.counters.rule_passed(rule, bytes as u64);
        }
    }
}

/// Notes that a frame is dropped on its sender's side, and counts it, the first time.
#[inline]
pub(crate) fn drop_frame(counters: &Counters, nic: &PortConfig, item: &mut Item, reason: DropReason) {
    if item.fate == Fate::Going {
        item.fate = Fate::Dropped(reason);
        counters.dropped_from(nic.slot, reason);
    }
}

/// What the rules are asked about a packet.
pub(crate) fn question(ip: &IpPacket) -> Question {
    let selector = match ip.l4_info {
        L4::Icmp { kind, code, .. } => Some(u16::from_be_bytes([kind, code])),
        other => other.ports().map(|(_, dport)| dport),
    };
    let midstream = match ip.l4_info {
        L4::Tcp { flags, .. } => !flags.contains(TcpFlags::SYN),
        L4::Sctp { .. } => true,
        _ => false,
    };
    Question {
        src: ip.src(),
        dst: ip.dst(),
        protocol: ip.protocol,
        selector,
        midstream,
    }
}

/// True when the sender may use the packet's source address.
#[inline]
pub(crate) fn owns_source(nic: &PortConfig, packet: &Packet, ip: &IpPacket) -> bool {
    // What is behind a learning NIC has MACs of its own.
    let mac = (!nic.learn_macs).then_some(packet.src);
    judge::owns(nic, mac, ip.src())
}
