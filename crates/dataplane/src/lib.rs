//! What happens to a frame: the path, its stages and tables, and the worker that drives them.
//!
//! # Theory of operation
//!
//! Control compiles the configuration into one immutable [`Snapshot`] with an epoch; a [`Worker`]
//! owns its ports and all state but the flows, and takes a snapshot up between two batches. A
//! frame's way is in `path.rs`, thirteen steps that read from top to bottom, each of them done for
//! a whole batch before the next. There is no I/O and no clock in here: frames come through
//! [`io::port::Port`], the time with every turn.
//!
//! **A job is a frame for one target.** Unicast makes one, broadcast one for each NIC of the
//! network; rules, flows and drops are by job, so that every receiver is protected by its own
//! groups.
//!
//! **Flows.** The first packet of a flow is judged by the rules: may it leave its sender, may it
//! enter its receiver. What was allowed becomes an entry of the flow table, found by both
//! directions, and the packets that follow are let through by it while TCP's states are followed.
//! The entry notes the epoch under which it was decided; a packet under a newer one has the rules
//! asked again, for the first packet's direction. So a change costs nothing when it comes, and is
//! in force for every packet after it. A flow that no rule allows any more is cut, unless the group
//! whose rule admitted it drains. Nearly all packets are plain ones amid such flows; they take the
//! *fast path* (`stages/fast_path.rs`), which follows the flow and skips what the whole path would
//! only find again.
//!
//! **Who is who.** A flow's key names the two NICs and not only their addresses; a NIC's
//! [`PortUid`] is never used again. No guest can therefore ride on, reset or fill in
//! another guest's flow by borrowing its address.
//!
//! **Other hosts.** What a network is on other hosts is one partner of flows, its *remote*
//! ([`overlay`]), which bypasses filtering: egress is judged on the sender's host, ingress on the
//! receiver's. Frames from the wire lose their outer headers (`stages/outer.rs`) and go the same
//! way as all; frames for other hosts get a next hop of the [`underlay`] as their target
//! (`stages/encapsulate.rs`) and their outer headers when they are delivered.
//!
//! **Bounds.** Every table has a maximum and an answer when it is full:
//!
//! | table | bound | when full |
//! |---|---|---|
//! | flows | `max_flows`; `flow_share` for a NIC, less in the last eighth; the last sixteenth for NICs with fewer than 32 | the NIC's own oldest half-open or long idle flow goes, or the new one is refused: `flow_share_full`, `flow_table_full` |
//! | datagrams in reassembly | `max_fragments`; an eighth for a NIC, and a quarter of what is free; a quarter for another host; the last eighth for who has fewer than 4; 8 gaps in one | `fragment_table_full` |
//! | fragments held back | 64 and 1 MiB, 32 for a NIC, 1 s | the oldest of the NIC with most: `fragment_without_first` |
//! | messages from worker to worker | 1,024 a pair of workers; for a NIC that has some out, as many as are free besides | `handoff_full` |
//! | batches handed over | 32 of a worker; 8 for a NIC or an uplink's queue, and for a NIC a third of what is free; one of each in any case | the NIC is not received from until one is back |
//! | batches of copies handed over: of frames that were held back | 16 of a worker | `handoff_full` |
//! | learnt MACs | `max_learned_macs`; of a network a quarter for a NIC or host, and for one three times what is free; half for one host; the last eighth for networks with fewer than 16; 300 s | not learnt: flooded |
//! | look-ups in rules in a turn | 65,536, and the frame that uses them up; of a network from the wire, that much owed | frames of NICs wait for the next turns, others: `rule_lookups` |
//! | frames that wait for that | 4,096 or 16 MiB of a worker; 128 or 1 MiB for a NIC | `rule_lookups` |
//! | hosts that nobody knows a way to | 1,024 between two looks | told with a later frame |
//! | ICMP errors about too large frames | 100 a second for a NIC, of a worker | not told |
//! | frames handed over for an uplink | 1,024 of a batch, copies counted each | `handoff_full` |
//! | NICs, rules with counters | 16,384; 1,048,576 | control refuses |
//!
//! # Several workers
//!
//! A queue pair of a NIC belongs to one worker. A frame is judged by the worker whose queue it came
//! from. When its target's queue is another worker's it is handed over by reference: the batch
//! stays where it is, the other worker makes the one copy and counts it, and the sender's buffers
//! are given back in their order when the last reference is gone (`handoff.rs`). Nobody waits for
//! anybody: rings between workers are bounded, each with one end at either of two, and what finds
//! one full is dropped (`handoff_full`). [`Switch`] is the face of all workers: it spreads queues
//! over them, moves one when loads have shifted (`balance.rs`), publishes to all and adds up what
//! each has counted.
//!
//! Every worker finds every flow: the table is shared, without locks. Its entries are plain numbers
//! of fixed size addressed by index, so that the slab can lie in memory that the process leaves to
//! the next one (`flow/memory.rs`). What the packets of one side write is on a line of its own, and
//! a side's packets come from one queue of a NIC, that is by one worker. Who makes a flow keeps it
//! in its lists and takes its entry back, once the others have let go of it (`flow/table.rs`).
//! Counters are per worker, and so are fragments, which come by one queue. Learnt MACs are per
//! worker as well, and told to the others through the same rings.

#![forbid(unsafe_code)]

pub mod address_set;
mod atomic;
pub mod balance;
mod config;
mod count;
pub mod counters;
pub mod drop_reason;
mod dump;
mod floods;
pub mod flow;
mod fragments;
mod handle;
mod handoff;
mod hold;
mod ids;
mod judge;
mod late;
mod learned;
mod left;
mod left_flows;
mod left_state;
pub mod limits;
pub mod load;
mod opening;
pub mod overlay;
mod pace;
mod path;
mod ports;
pub mod queue;
mod replies;
pub mod report;
mod round;
pub mod ruleset;
pub mod sampling;
mod searches;
mod shaper;
pub mod simulation;
mod sleep_flag;
pub mod snapshot;
mod stages;
mod state_memory;
pub mod switch;
mod table;
mod time;
pub mod trial;
pub mod underlay;
mod uplink_taps;
mod view;
mod waiting;
mod wanted;
mod watch;
mod wide_searches;
mod work;
pub mod worker;

pub use address_set::AddressSet;
pub use config::WorkerConfig;
pub use counters::Counters;
pub use drop_reason::DropReason;
pub use dump::FlowCursor;
pub use handle::WorkerGone;
pub use io::trace::Trace;
pub use judge::GroupAnswer;
pub use learned::{HandedOverMac, LearnedMac, Location};
pub use left::{Left, LeftEnd, Successor, Successors};
pub use left_flows::LeftFlows;
pub use left_state::{LeftCounts, LeftLocation, LeftMac, LeftState};
pub use queue::QueueId;
pub use replies::{MOVE_SECS, RESETS_A_SECOND, RESETS_OF_A_NIC};
pub use simulation::Simulation;
pub use snapshot::*;
pub use state_memory::{Key, StateMemory};
pub use switch::{CAPTURES_MAX, CaptureError, Switch};
pub use time::Now;
pub use underlay::Underlay;
pub use worker::{Turn, Worker};
