//! What the stages of the path work on: one batch of one sender, under one view.

use std::net::IpAddr;
use std::sync::Arc;

use io::frame::{BATCH, Batch, Frame};
use io::trace::capture::Effort;
use wire::nd::Nd;
use wire::parse::{IpPacket, L4, Net, Packet, Quoted, TcpFlags};

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::floods::{Floods, Origin};
use crate::flow::{Entry, FlowId, Flows, Key, Side};
use crate::fragments::{DatagramKey, Fragments, Lent};
use crate::ids::{NetworkIdx, PortSlot};
use crate::judge::{self, Grant, Question};
use crate::late::Late;
use crate::learned::LearnedMacs;
use crate::left_flows::LeftFlows;
use crate::overlay::{Towards, TunnelSource};
use crate::queue::QueueId;
use crate::replies::Replies;
use crate::searches::Searches;
use crate::shaper::Shaper;
use crate::snapshot::PortConfig;
use crate::time::Now;
use crate::underlay::Underlay;
use crate::view::View;
use crate::waiting::Waiting;
use crate::wanted::Wanted;
use crate::wide_searches::WideSearches;

/// State that outlives a batch.
pub(crate) struct Tables {
    pub flows: Flows,
    /// Flows of a process before that are not all taken up yet.
    pub left: Option<Arc<LeftFlows>>,
    pub fragments: Fragments,
    pub learned: LearnedMacs,
    pub waiting: Waiting,
    pub shaper: Shaper,
    pub floods: Floods,
    /// Which ICMP errors may still look for their flow in the whole network.
    pub wide_searches: WideSearches,
    pub late: Late,
    /// What was looked for in rules, and what still may be.
    pub searches: Searches,
    /// How many frames of the batch were delivered by this worker with nothing to be said of any.
    pub delivered: usize,
    /// What was done for who watches NICs, that nobody is charged for yet.
    pub watched: Effort,
}

/// A frame that the whole path is for: all but those that took the [fast
/// path](crate::stages::fast_path).
pub(crate) struct Item {
    /// Its index in the batch.
    pub frame: usize,
    /// What it is; `None` when it could not be parsed.
    pub packet: Option<Packet>,
    /// The neighbour discovery message in it.
    pub nd: Option<Nd>,
    /// Passes whatever the rules say.
    pub always: bool,
    /// Stays on this host.
    pub near: bool,
    pub fate: Fate,
    /// Set on a datagram's first fragment.
    pub first_of: Option<DatagramKey>,
    /// On a later one of an ICMP error: what that is about, as its first fragment has said. Large,
    /// and seldom there.
    pub quoted: Option<Box<Quoted>>,
    /// Its sender's trace has it already.
    pub traced: bool,
}

/// What became of a frame as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Still on its way; in the end: lost for every target, each of which has counted why.
    Going,
    /// Delivered to one target at least.
    Delivered,
    /// Held back until its first fragment comes, or the next hop is known that it is for.
    Held,
    Dropped(DropReason),
}

/// One frame for one target.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// The frame's index in the batch.
    pub frame: u8,
    pub verdict: Verdict,
    pub target: PortSlot,
    /// Which of the target's queue pairs it had best go to, taken modulo those that are on.
    pub steer: u32,
    /// What is asked about it, in [`Round::cases`]; [`NO_CASE`] for a frame that took the fast
    /// path.
    pub case: u32,
}

/// A job's frame took the fast path.
pub(crate) const NO_CASE: u32 = u32::MAX;

/// A job that has to be judged.
pub(crate) struct Case {
    /// Its frame in [`Round::items`].
    pub item: usize,
    pub towards: Towards,
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
    Flow(Key, u64, Side),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Open,
    /// The rules cannot be asked in this turn.
    Late,
    Pass,
    /// Refused on the sender's side: counted once for the frame.
    DropFrom(DropReason),
    /// Refused on the receiver's side.
    DropTo(DropReason),
    /// Passed, and the next hop is not known yet: one of [`Round::waits`]. Or its target's limits
    /// are used up, and it was copied to wait there: [`Shaper`].
    Wait,
}

/// One frame for one host without a next hop.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    /// The frame in [`Round::items`].
    pub item: usize,
    pub host: IpAddr,
    pub flooded: bool,
}

/// A batch on its way.
pub(crate) struct Round<'a> {
    /// Who has sent it: a NIC, or what a network is on other hosts.
    pub nic: &'a PortConfig,
    /// The queue that the batch came from: of that NIC, or of an uplink. Its slot counts what is
    /// dropped of the batch.
    pub from: QueueId,
    /// By frame, of a batch from the wire: where it has come from.
    pub sources: Option<&'a [TunnelSource; BATCH]>,
    pub view: &'a View,
    pub underlay: &'a Underlay,
    pub wanted: &'a Wanted,
    pub counters: &'a Counters,
    pub tables: &'a mut Tables,
    pub batch: &'a Batch,
    pub items: &'a mut Vec<Item>,
    pub jobs: &'a mut Vec<Job>,
    pub cases: &'a mut Vec<Case>,
    /// Frames that are for hosts whose next hop is not known yet.
    pub waits: &'a mut Vec<Wait>,
    /// What the switch answers to the sender itself.
    pub replies: &'a mut Replies,
    pub now: Now,
    /// Of a frame that is only tried: nothing is taken for it.
    pub is_trial: bool,
}

impl Item {
    #[inline]
    pub(crate) fn ip(&self) -> Option<&IpPacket> {
        self.packet.as_ref()?.ip()
    }

    /// It is a later fragment: what its datagram's first one has said of layer 4 is said of it.
    pub(crate) fn borrow_of(&mut self, first: &Lent) {
        self.quoted = first.quoted.map(Box::new);
        if let Some(Packet {
            net: Net::Ip(ip), ..
        }) = &mut self.packet
        {
            ip.protocol = first.protocol;
            ip.l4_info = first.l4;
        }
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
        drop_frame(
            self.counters,
            self.from.slot,
            &mut self.items[index],
            reason,
        );
    }

    /// The flow with this key between two NICs, which is not in the table: one that a process
    /// before has left is there now.
    pub(crate) fn take_up_left(
        &mut self,
        ends: [&PortConfig; 2],
        key: &Key,
        hash: u64,
    ) -> Option<FlowId> {
        let left = self.tables.left.as_ref()?;
        let flows = &mut self.tables.flows;
        left.take_up(self.view, flows, (key, hash), ends, self.now)
    }

    /// Who has sent the batch.
    #[inline]
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            queue: self.from,
            network: self.is_from_wire().then_some(self.nic.network),
        }
    }

    /// The batch is from the wire.
    #[inline]
    pub(crate) fn is_from_wire(&self) -> bool {
        self.sources.is_some()
    }

    /// The host that has sent a frame; `None`: a NIC has.
    #[inline]
    pub(crate) fn host(&self, frame: usize) -> Option<IpAddr> {
        Some(self.sources?.get(frame)?.host)
    }

    /// Whom the rules are asked for: see [`Searches`].
    #[inline]
    pub(crate) fn asker(&self) -> Option<NetworkIdx> {
        self.nic.slot.remote_of()
    }

    /// The next step begins that asks the rules.
    #[inline]
    pub(crate) fn begin_step(&mut self) {
        let asker = self.asker();
        self.tables.searches.begin_step(asker);
    }

    /// The frame of an item.
    #[inline]
    pub(crate) fn frame(&self, item: usize) -> &Frame {
        &self.batch.frames()[self.items[item].frame]
    }

    /// Judges anew each job that is open.
    #[inline]
    pub(crate) fn each_open(&mut self, mut judge: impl FnMut(&mut Self, usize, usize) -> Verdict) {
        for index in 0..self.jobs.len() {
            let job = self.jobs[index];
            if job.verdict == Verdict::Open {
                self.jobs[index].verdict = judge(self, index, job.case as usize);
            }
        }
    }
}

/// Counts that the two rules of a packet's flow, or of two open NICs, let it pass.
#[inline]
pub(crate) fn count_rules(counters: &Counters, rules: [u32; 2], frames: u64, bytes: u64) {
    for rule in rules.into_iter().filter_map(Entry::rule) {
        counters.rule_passed(rule, frames, bytes);
    }
}

/// Notes that a frame is dropped on its sender's side, and counts it, the first time.
#[inline]
pub(crate) fn drop_frame(counters: &Counters, from: PortSlot, item: &mut Item, reason: DropReason) {
    if item.fate == Fate::Going {
        item.fate = Fate::Dropped(reason);
        counters.dropped_from(from, reason);
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
