//! A layer-4 load balancer: packets to service addresses go to servers, which answer the clients
//! directly.
//!
//! # Theory of operation
//!
//! The forwarding is one XDP program (`bpf/balancer.bpf.c`); this crate is everything else, and
//! needs no daemon. A program makes a [`Balancer`], tells it a set of [`Services`], how servers are
//! reached ([`Hop`]s, by hand or as a [`Follower`] finds them in the kernel's tables), and attaches
//! it to interfaces. `examples/balance.rs` is all of that in 60 lines.
//!
//! **Choosing.** Each service has a Maglev table ([`maglev`]): 16,384 slots, each with a server,
//! computed from the servers' addresses and weights alone, so that balancers with one configuration
//! and one [`Options::seed`] choose alike. A new flow takes the slot that its hash says. While a
//! service's servers do not change, that alone gives every packet of a flow its server: nothing is
//! looked up, nothing written, and a million flows cost what one does.
//!
//! **Remembering.** When servers change, some slots change theirs, and flows must not. Such a slot
//! keeps the server from before the first change beside the one from now, and is *watched*: a flow
//! that begins (SYN, INIT) goes to the one from now and leaves a word in the flow table, 8 bytes
//! that all CPUs share: a fingerprint, the server's number, a state, when it was last seen. A
//! packet that goes on with a flow that has no word must be of one from before, however long that
//! was silent; it goes to the server from before and leaves a word too. So old and new are told
//! apart without a timer, and only flows of slots that have changed cost memory. Datagrams do not
//! say that they begin a flow, and the flows of a sticky service's client begin at different times:
//! those services are always watched, as all are with [`Options::remember_all`]. A change is
//! forgotten when it is [`Options::settle`] ago and all open words of the service name the server
//! that new flows would get too.
//!
//! Weighed and left: a word for every flow (one more cache line a packet: 200 ns with a million
//! flows on the machine of docs/balancer.md), the old table kept for a fixed time (loses the flow
//! that is silent for longer, cannot tell datagram flows apart), a table for each CPU (a third of
//! the connections died when flows had moved to another CPU and the servers changed).
//!
//! **The guarantee.** A flow stays with its server for as long as that server is up or draining,
//! whatever CPU it moves to and however often the set of servers changes, unless it is silent for
//! longer than [`Options::settle`] when a change is forgotten. A word is taken from a flow only
//! when its bucket of 16 is full, and then only from one that has not gone on after its first
//! packet, was ended by its client, or was silent for [`Options::idle`]: a flood displaces itself.
//! A new flow for which there is no room goes where its next packet would, so it stays together
//! too. [`Options::max_flows`] bounds the words; with so many the table is half full and about 4 in
//! 1,000 find their bucket full. Not covered: flows of another balancer of the fleet that servers
//! have changed for; a handshake in a watched slot whose word a flood displaces before its ACK
//! comes; datagram flows beyond `max_flows` when servers change; two flows with one fingerprint in
//! one bucket (16 times 2^-32 for each flow).
//!
//! **Reaching.** The next hop of each server is looked up in the kernel's tables ([`Follower`]). A
//! server whose way is not known, since its next hop has not answered yet or does not answer any
//! more, takes no part in the table while another one can be reached; its own flows wait for it. So
//! no operation has to wait for an answer from the wire.
//!
//! **Changing.** Configuration lives in arrays of two halves. A change is compiled as a whole
//! ([`compile`]), what differs is written to the half that is not in force, one word switches, and
//! the call returns when no CPU is using the old half any more. No packet sees half a change.
//! Servers keep their numbers for as long as they are in the set, so the flow table is never swept.
//!
//! **Handing over.** Another process's balancer goes on with the flow table, the counters, the
//! numbers and the Maglev tables of this one ([`Balancer::hand_over`], [`Balancer::leave`]): no
//! flow and no packet notices.

mod attach;
mod attached_interface;
mod balancer;
pub mod compile;
mod counters;
mod error;
mod flows;
mod follow;
mod halves;
mod handover;
mod hash;
mod hop;
pub mod layout;
pub mod maglev;
mod next_hop;
mod numbers;
mod observe;
mod options;
mod settle;

pub use attached_interface::AttachedInterface;
pub use balancer::{Balancer, Interface};
pub use counters::{Counters, Reason, ServerCounters};
pub use error::Error;
pub use flows::{Flow, FlowState};
pub use follow::Follower;
pub use hash::Tuple;
pub use hop::{Hop, NoWay};
pub use model::{Protocol, Server, Service, ServiceKey, Services, State, Tunnel, Weight};
pub use options::Options;
