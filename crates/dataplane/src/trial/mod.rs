//! Would it pass? A frame goes the real path without being sent, and without changing anything.
//!
//! A worker runs a [`Trial`] between two batches, for [`Switch::trial`](crate::Switch::trial). The
//! stages that judge it are those of all frames: there is no second opinion. They work on a side of
//! the trial's own (counters, a flow table, learnt MACs, fragments), into which the few entries are
//! copied that the frame may meet, and the worker's [`Path`](crate::path::Path) is only read. After
//! each step of the path an observer looks at what it has found out (`watch.rs`), and that is the
//! [`Report`]. The path of all other frames has an observer that does nothing and costs nothing.
//!
//! What is not foreseen: whether a receiver's ring has room at that moment, and what another
//! frame does meanwhile.

pub mod live;
mod run;
mod watch;

use std::net::IpAddr;

use io::trace::capture::Effort;
use wire::Mac;
use wire::nd::Nd;
use wire::offload::Offload;
use wire::parse::Packet;

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::floods::Floods;
use crate::flow::{FlowInfo, FlowTable, Flows};
use crate::fragments::Fragments;
use crate::ids::{Epoch, GroupIdx, MAX_PORTS, NetworkIdx, PortSlot, RuleSlot};
use crate::judge::GroupAnswer;
use crate::late::Late;
use crate::learned::{LearnedMacs, Location};
use crate::replies::Replies;
use crate::round::Tables;
use crate::ruleset::Asked as Question;
use crate::searches::Searches;
use crate::shaper::Shaper;
use crate::waiting::Waiting;
use crate::wanted::Wanted;
use crate::wide_searches::WideSearches;

pub(crate) use run::run;

/// A report names so many targets; the others are counted.
pub const TARGETS_MAX: usize = 64;

/// The steps of the path, as in `path.rs`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The outer headers, of a frame from the wire.
    Outer,
    /// What is it?
    Parse,
    /// Whether it comes from whom it says.
    Spoof,
    /// Is it a fragment, and what did the first one say?
    Fragments,
    /// Passed or refused whatever the rules say.
    Always,
    /// Is it a question that is answered here?
    Neighbours,
    /// Where to.
    Destination,
    /// A known flow, or two NICs that allow everything.
    Known,
    /// May it leave its sender?
    Egress,
    /// May it enter its target?
    Ingress,
    /// A new flow.
    Remember,
    /// The next hop to another host.
    Encapsulate,
    /// Is there somebody at the target?
    Deliver,
}

impl Stage {
    /// The name in the APIs: snake_case.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Outer => "outer",
            Stage::Parse => "parse",
            Stage::Spoof => "anti_spoof",
            Stage::Fragments => "fragments",
            Stage::Always => "always",
            Stage::Neighbours => "neighbours",
            Stage::Destination => "destination",
            Stage::Known => "known_flow",
            Stage::Egress => "egress_rules",
            Stage::Ingress => "ingress_rules",
            Stage::Remember => "remember",
            Stage::Encapsulate => "encapsulate",
            Stage::Deliver => "deliver",
        }
    }
}

/// What would become of a frame.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The worker that was asked.
    pub worker: usize,
    /// The snapshot that was in force.
    pub epoch: Epoch,
    /// Whom it is from, of a frame from the wire.
    pub arrival: Option<(NetworkIdx, IpAddr)>,
    /// The frame that was judged: without its outer headers.
    pub frame: Vec<u8>,
    /// What it is.
    pub packet: Option<Packet>,
    /// The neighbour discovery message in it.
    pub nd: Option<Nd>,
    /// It passes whatever the rules say.
    pub always: bool,
    /// It is for this host alone.
    pub near: bool,
    /// Its source MAC would be learnt here.
    pub learns: Option<(Mac, Location)>,
    /// What the switch would answer to the sender itself, whether it passes or not.
    pub answer: Option<Vec<u8>>,
    /// Where and how the frame as a whole would end; `None`: at its targets.
    pub end: Option<(Stage, End)>,
    /// Who would get it, or be refused it: [`TARGETS_MAX`] at the most.
    pub targets: Vec<Target>,
    /// How many more there would be.
    pub more_targets: usize,
    /// The sniffers that would get a copy.
    pub copies: Vec<PortSlot>,
}

/// How a frame ends before it has targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is dropped.
    Dropped(DropReason),
    /// It is held back until its first fragment comes.
    Held,
    /// The switch answers it itself.
    Answered,
    /// There is no such NIC in force.
    NoSender,
}

/// The frame for one target.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Which.
    pub to: To,
    /// What it was decided by.
    pub by: By,
    /// The flow of its addresses and ports that is known, and whether the packet goes by it: it
    /// may be over, or not allowed any more.
    pub flow: Option<(FlowInfo, bool)>,
    /// The groups that were asked, in their order.
    pub asked: Vec<Asked>,
    /// The next hop, when it is for another host.
    pub hop: Option<Hop>,
    /// What becomes of it.
    pub verdict: Outcome,
}

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum To {
    /// To a NIC of this host.
    Nic(PortSlot),
    /// To the machine of another host, by its host.
    Host(IpAddr),
    /// To all other hosts of the network.
    AllHosts,
}

/// What decided about a frame and a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Nothing yet: it was dropped before.
    Nothing,
    /// It passes whatever the rules say (ARP, neighbour discovery, DHCP clients), or both ends
    /// bypass filtering.
    NoRules,
    /// Both ends allow everything, by these rules where rules say it: no state is kept.
    Open([Option<RuleSlot>; 2]),
    /// The flow that it is of, which these rules let pass: egress, ingress.
    Flow([Option<RuleSlot>; 2]),
    /// The flow that an ICMP error is about.
    Related,
    /// The rules.
    Rules,
}

/// A group that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Whose group.
    pub nic: PortSlot,
    /// The question: whether it may leave that NIC, or enter it.
    pub question: Question,
    /// The group; `None`: none was asked, since the NIC needs no rule, or has no group.
    pub group: Option<GroupIdx>,
    /// What it says.
    pub answer: GroupAnswer,
}

/// A next hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Which uplink.
    pub uplink: PortSlot,
    /// The host that it is for, as the outer headers say.
    pub host: IpAddr,
    /// The packet as it would go over the wire, outer headers first.
    pub packet: Vec<u8>,
}

/// What becomes of a frame for a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is delivered, or sent.
    Pass,
    /// It waits until the next hop is known.
    Waits,
    /// It is dropped, in this step.
    Dropped {
        /// Where.
        stage: Stage,
        /// Why.
        reason: DropReason,
        /// It is counted at the receiver, else at the sender.
        at_target: bool,
    },
}

/// A frame to be tried, and the side that it is tried on.
pub(crate) struct Trial {
    pub worker: usize,
    pub from: PortSlot,
    pub frame: Vec<u8>,
    pub offload: Offload,
    pub counters: Counters,
    pub wanted: Wanted,
    pub tables: Tables,
    pub replies: Replies,
}

impl Trial {
    pub(crate) fn new(worker: usize, from: PortSlot, frame: Vec<u8>) -> Trial {
        // A broadcast makes a flow for each NIC of a network. Memory is committed as it is used.
        let flows = FlowTable::shared(2 * MAX_PORTS as u32, 0, 1);
        Trial {
            worker,
            from,
            frame,
            offload: Offload::default(),
            counters: Counters::new(),
            wanted: Wanted::default(),
            tables: Tables {
                flows: Flows::new(flows, 0),
                left: None,
                fragments: Fragments::new(1, 0),
                learned: LearnedMacs::new(64, 0),
                waiting: Waiting::default(),
                shaper: Shaper::default(),
                floods: Floods::default(),
                wide_searches: WideSearches::default(),
                late: Late::default(),
                searches: Searches::default(),
                delivered: 0,
                watched: Effort::default(),
            },
            replies: Replies::default(),
        }
    }
}
