//! What the kernel knows about links, addresses, routes, rules and neighbours, followed as it
//! changes.
//!
//! # Theory of operation
//!
//! A [`Mirror`] keeps a [`Snapshot`]: an immutable, cheap to clone picture of one network
//! namespace, the one of the thread that called [`Mirror::start`]. Three sources feed it, all
//! rtnetlink (RFC 3549, rtnetlink(7)):
//!
//! 1. **Groups.** One socket hears every change. It is subscribed before anything is asked, so
//!    nothing that happens later can be missed.
//! 2. **Dumps.** A second socket asks for all that there is. What the groups say meanwhile is
//!    applied at once, and kept; when a dump is complete it replaces the tables it covers, and what
//!    was kept is applied again on top. Every change says what a thing now *is*, so applying one
//!    twice, or one that the dump has seen already, ends in the same state as the kernel's. A dump
//!    that the kernel calls inconsistent (`NLM_F_DUMP_INTR`) is asked for again.
//! 3. **Doubt.** Some changes the kernel makes without a word: routes go with their interface,
//!    their source address or their next-hop object, next-hop objects with their interface or its
//!    carrier, and from the groups they are in. Some say too little: two policy rules can look
//!    alike to us, and which of them has gone a dump tells. What can cause that, a deletion of
//!    something unknown, and a socket that overflowed (`ENOBUFS`) start a dump of what is in doubt.
//!    What goes without a word is asked for once more two seconds later, since the kernel tells of
//!    the cause before it is done. Readers that must not be wrong meanwhile look at the link and
//!    the address too, which are told at once.
//!
//! Changes are published in batches, what one look at the socket gave at a time: a [`Watch`] wakes
//! once for a flood, and is told which [`Kinds`] changed since it last looked, not what. The maps
//! share what they have in common (`imbl`), so [`Snapshot::routes`]'s `diff` against the one before
//! finds a handful of changes among a million routes without looking at the rest; equal routes are
//! stored once.
//!
//! [`Requests`] asks the kernel single questions: where would a packet go ([`Requests::resolve`]),
//! who is that neighbour ([`Requests::probe`]), how old are the entries of neighbours
//! ([`Requests::ages`]), what is at the other end of a veth ([`Requests::pair`]).
//!
//! [`change::Changes`] makes and sets up interfaces: pairs for containers, with their addresses and
//! routes.
//!
//! [`firewall::Firewall`] tells which hooks of netfilter see what is forwarded.
//!
//! `rtnetlink` and `netlink-packet-route` are not used: they know neither next-hop objects nor
//! per-interface settings (`RTM_NEWNETCONF`), drop a whole message for one attribute they cannot
//! read, and allocate for each attribute of a million routes. Sockets are `netlink-sys`'s.

pub mod ages;
pub mod change;
mod decode;
pub mod devices;
mod dump;
mod error;
mod far_end;
pub mod firewall;
mod hook_function;
mod message;
mod mirror;
pub mod model;
pub mod nft_rule;
mod offline;
mod request;
mod resync;
mod socket;
mod tables;
mod uapi;

pub use error::Error;
pub use far_end::Pair;
pub use mirror::{Kinds, Mirror, Watch};
pub use model::{
    Address, Family, ForwardingSettings, Hop, Link, Neighbour, NextHop, Route, RouteKey, RouteKind,
    RouteSet, Rule, RuleAction, Snapshot, Vlan,
};
pub use offline::Offline;
pub use request::{Query, Requests, Resolution};
