//! A new program takes the place of the running one, and no connection is lost.
//!
//! # How it works
//!
//! The running daemon starts the new program beside itself, with its own arguments and one more,
//! and a socket as its standard input ([`words`]). The new one prepares all that it can while the
//! old one forwards: settings, listening sockets (handed over, so that no client ever finds
//! nobody), the objects of the store, groups compiled, workers, TAP devices and the interfaces of
//! containers. Its ports wait at the [gate](crate::start_gate) meanwhile, and its vhost-user server
//! serves nobody, but has VMMs' sessions ready, as they are then: their guests' memory is mapped,
//! and what is left to be done is to run their rings ([`EarlySessions`]). Neither of the two
//! announces or withdraws an address. Then, in this order:
//!
//! 1. the old one closes the store, and the new one opens it;
//! 2. the old one takes all ports from its workers, between two batches: from here on frames wait
//!    in rings and devices. It says which VMMs' sessions are as they were, gives those that are
//!    not, and says where each queue of an uplink stands, whose socket and memory the new one has;
//!    its table of flows is in memory of which the new one has a descriptor;
//! 3. the new one takes up sessions and flows as it would those of a daemon that was killed, and
//!    says so. It has touched no ring and read no frame by then;
//! 4. the old one says go, which is the commit: it leaves the keeper to the new one, and will not
//!    come back. The new one opens its gate;
//! 5. on interfaces the new one puts its programs, with tables of their own, in the place of the
//!    old one's. Until then those send frames to the same sockets, and to the same servers by the
//!    load balancer's one table of flows. Each takes the kernel some 10 ms, which nobody waits for.
//!
//! Until the commit the old one goes on as if nothing had been, whatever becomes of the new one: it
//! cannot be executed, ends, says no, or says nothing for too long. What it gave away it takes
//! back, and puts its programs back.
//!
//! Changes by clients wait from the moment at which the objects are read ([`Changes`]). After the
//! commit those that wait are refused, and asked anew of the new daemon.
//!
//! # Versions
//!
//! The old one names the number of the hand-over that it speaks, and the new one says no if it does
//! not; what is there besides is asked for ([`words::EARLY`]). A record of a session, or memory of
//! flows, that the new one cannot read has it say no as well, but for the layout of the memory of
//! flows: it may ask for the flows in the API's format instead, which every version reads, and
//! which takes longer.

mod changes;
mod new;
mod old;
mod sessions;
pub mod words;

pub use changes::Changes;
pub use new::Predecessor;
pub use old::{NEEDS, Parts, Upgrade, Upgraded, was_replaced};
pub use sessions::EarlySessions;
