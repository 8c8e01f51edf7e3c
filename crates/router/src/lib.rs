//! The router: transit packets between interfaces that the kernel keeps, forwarded in XDP by what the kernel knows.
//!
//! # Theory of operation
//!
//! **The kernel is right.** Addresses, routes, rules, neighbours, VLANs and settings are the kernel's; nothing is
//! configured here but which interfaces take part. `bpf/router.bpf.c` forwards a packet only if the kernel would have
//! forwarded exactly that frame, and leaves every other packet to the kernel untouched: what wants an answer (TTL used up, too big,
//! unreachable, redirect), what is for this host or for many, what is odd, what waits for a neighbour. So ICMP is the
//! kernel's own, and when this process ends, in whatever way, its bpf_link goes with it and the kernel forwards on.
//!
//! **One lookup.** [`netlink::Mirror`] tells of changes; [`Router::update`] brings the program's tables in step:
//!
//! - [`plan`] turns the policy rules into a list of tables. Rules that ask for more than that a packet is there (source, mark,
//!   ports, …) cannot be put into a table of destinations: the program then calls `bpf_fib_lookup`, the kernel's own.
//! - [`fib`] merges those tables, one family each, into prefixes with a [`spec::Spec`]: what to do. Neighbours on connected
//!   networks are prefixes of one address.
//! - [`trie`] holds IPv4 in two levels of 24 and 8 bits (two reads whatever the number of routes), IPv6 in 16 bits and then nibbles
//!   down to /64 (one cache line each; addresses of their own in a hash behind the /64 they are in). Why not a hash of
//!   prefix lengths for IPv6: binary search over lengths costs four to six probes that miss the cache for a packet with random destinations, and a
//!   change of a short prefix touches all markers below; the trie's upper levels stay in the cache and a change is one store an entry.
//! - [`paths`] holds what an entry leads to. Equal specs are one path, so a million routes over a hundred neighbours are
//!   a hundred paths, and a neighbour that changes is one hop that changes, not ten thousand entries.
//!
//! The arrays are memory-mapped (`io::bpf_array`): a route is a few stores, not a system call. Every store leaves the table
//! right for somebody, old or new; nothing is read that was never true.
//!
//! **What only use tells.** The kernel does not see what the program forwards, so its neighbours would go stale for good.
//! [`Router::housekeep`] looks which ones were used, once a second, and has the kernel confirm those that are stale.
//!
//! **The firewall.** When a hook of nftables or iptables sees forwarded packets of a family, all of that family are left
//! to the kernel, and [`Report`] says which hook it is.

mod error;
pub mod fib;
pub mod firewall;
pub mod interfaces;
pub mod layout;
pub mod paths;
pub mod plan;
mod report;
mod router;
mod service;
pub mod spec;
pub mod text;
pub mod trie;

pub use error::Error;
pub use report::{InterfaceReport, Report, TableReport};
pub use router::{Options, Router};
pub use service::Service;
