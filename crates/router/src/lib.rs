//! The router: transit packets between interfaces that the kernel keeps, forwarded in XDP or at tc
//! by what the kernel knows.
//!
//! # Theory of operation
//!
//! **The kernel is right.** Addresses, routes, rules, neighbours, VLANs and settings are the
//! kernel's; nothing is configured here but which interfaces take part. `bpf/router.bpf.c` forwards
//! a packet only if the kernel would have forwarded exactly that frame, and leaves every other
//! packet to the kernel untouched: what wants an answer (TTL used up, too big, unreachable,
//! redirect), what is for this host or for many, what is odd, what waits for a neighbour. So ICMP
//! is the kernel's own, and when this process ends, in whatever way, its bpf_link goes with it and
//! the kernel forwards on.
//!
//! **Two places.** The program runs in XDP where packets are frames, and at tc ingress where they
//! are the kernel's own buffers (`bpf/lib/context.h`): one source, one set of maps. As soon as one
//! device has it at tc, all others have it there behind XDP, for what leaves by devices that take
//! no frames: such a hop has no MTU for XDP, which passes its packets uncounted. At tc what XDP
//! could have sent is passed on: XDP has had a reason to leave it, and has counted it. The access
//! list judges it once more, uncounted, since the way may have changed in between.
//!
//! **One lookup.** [`netlink::Mirror`] tells of changes; [`Router::update`] brings the program's
//! tables in step:
//!
//! - [`plan`] turns the policy rules into a list of tables. Rules that ask for more than that a
//!   packet is there (source, mark, ports, …) cannot be put into a table of destinations: the
//!   program then calls `bpf_fib_lookup`, the kernel's own.
//! - [`fib`] merges those tables, one family each, into prefixes with a [`spec::Spec`]: what to do.
//!   Neighbours on connected networks are prefixes of one address.
//! - [`trie`] holds what each prefix leads to: IPv4 in twice 16 bits, IPv6 in four times 16 down to
//!   /64 (addresses of their own are in a hash behind the /64 they are in). Under the root are
//!   sorted runs of addresses, 64 bytes where they are few. Tried and left: IPv4 in 24 and 8 bits
//!   is one read, but of 64 MiB, each in a page of its own, which costs more than a search in a
//!   small table; a root of 18 bits is read from far caches too; IPv6 in nibbles misses four to six
//!   times, as does binary search over prefix lengths.
//! - [`paths`] holds what an entry leads to. Equal specs are one path, so a million routes over a
//!   hundred neighbours are a hundred paths, and a neighbour that changes is one hop that changes,
//!   not ten thousand entries.
//!
//! - The flow cache (`bpf/router/flow_cache.h`) takes packets of flows that were forwarded before,
//!   without a lookup. What it remembers holds for one epoch (`epoch.rs`): the time between two
//!   changes of any map.
//!
//! The arrays are memory-mapped (`sys::bpf_array`): a route is a few stores, not a system call.
//! After every store a lookup gives the old answer or the new one, and never one that was not true
//! at any time.
//!
//! **What only use tells.** The kernel does not see what the program forwards, so its neighbours
//! would go stale for good. [`Router::housekeep`] looks which ones were used, once a second, and
//! has the kernel confirm those that are stale.
//!
//! **The access list** ([`acl`]) is what may pass of what would be forwarded: from a file, or the
//! kernel's own where nftables says no more than that.
//!
//! **The firewall.** When another hook of netfilter sees forwarded packets of a family, all of that
//! family are left to the kernel, and [`Report`] says which hook it is.

pub mod acl;
mod acl_in_use;
mod attach;
mod behind;
pub mod blocks;
pub mod difference;
mod entries;
mod epoch;
mod error;
pub mod fib;
pub mod firewall;
mod handover;
pub mod interfaces;
pub mod layout;
#[cfg(feature = "api")]
pub mod messages;
pub mod node;
pub mod paths;
pub mod plan;
mod report;
mod router;
pub mod runs;
mod service;
pub mod spec;
pub mod text;
pub mod trie;
pub mod view;

pub use acl_in_use::AclReport;
pub use error::Error;
pub use report::{InterfaceReport, Report, TableReport};
pub use router::{Options, Router};
pub use service::{Change, Service};
