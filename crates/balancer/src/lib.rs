//! A layer-4 load balancer: packets to service addresses go to servers, which answer the clients directly.
//!
//! # Theory of operation
//!
//! The forwarding is one XDP program (`bpf/balancer.bpf.c`); this crate is everything else, and needs no daemon. A program
//! makes a [`Balancer`], tells it a set of [`Services`], how servers are reached ([`Hop`]s, by hand or as a [`Follower`] finds
//! them in the kernel's tables), and attaches it to interfaces.
//!
//! **Choosing.** Each service has a Maglev table ([`maglev`]): 16,384 slots, each with a server, computed from the servers'
//! addresses and weights alone, so that balancers with one configuration and one [`Options::seed`] choose alike. A new flow takes the
//! slot that its hash says. While a service's servers do not change, that alone gives every packet of a flow its server.
//!
//! **Remembering.** When servers change, some slots change their server, and a flow must not. What has to be known then is
//! which flows were there before: their next packet looks like that of a flow that began since. Keeping the old table for a
//! time and sorting flows out as they speak up was weighed: it needs no memory in calm times, but it cannot tell an old
//! datagram flow from a new one, and it loses the flow that is silent for longer than that time. So each flow leaves one 8-byte word
//! in a table that all CPUs share: a fingerprint, the server's number, its state, and when it was last seen. One cache line more
//! a packet is the price (what it costs: docs/balancer.md), and no per-flow entry of the kernel's maps is needed.
//!
//! **The guarantee.** A flow whose word is in the table stays with its server for as long as that server is up or draining,
//! however long it is silent, whatever CPU it moves to, and however often the set of servers changes. A word goes only when its
//! bucket of 16 is full and a new flow takes it, and then only that of a flow that has not gone on after its first packet, was
//! ended by its client, or was silent for [`Options::idle`]. So a flood of SYNs, or of packets of no flow, displaces
//! itself and no established flow. With [`Options::max_flows`] flows the table is half full and about 4 in 1,000 flows find their bucket
//! full; those go by Maglev alone, and would move only when their slot changes. What the guarantee does not cover: flows of another balancer of
//! the fleet (that go by Maglev here), and two flows with one fingerprint in one bucket (2^-32 times 16 for each flow).
//!
//! **Changing.** Configuration lives in arrays of two halves. A change is compiled as a whole ([`compile`]), what differs
//! is written to the half that is not in force, one word switches, and the call returns when no CPU is using the old half any more. No
//! packet sees half a change. Servers keep their numbers for as long as they are in the set, so the flow table is never swept.

mod balancer;
pub mod compile;
mod counters;
mod error;
mod flows;
mod follow;
mod halves;
mod hash;
mod hop;
pub mod layout;
pub mod maglev;
mod model;
mod numbers;

pub use balancer::{Balancer, Interface, Options};
pub use counters::{Counters, Reason, ServerCounters};
pub use error::Error;
pub use flows::{Flow, FlowState};
pub use follow::Follower;
pub use hash::Tuple;
pub use hop::Hop;
pub use model::{Protocol, Server, Service, ServiceKey, Services, State, Tunnel, Weight};
