//! Access lists: which transit packets may pass, by addresses, ports, protocol and interfaces.
//! Stateless: each packet is judged for itself.
//!
//! # Theory of operation
//!
//! A [`List`] is rules in order, of which the first that takes a packet decides, and what becomes
//! of packets that no rule takes. It is declared ([`model::acl`]) or from nftables
//! ([`chain`]). [`image`] compiles it to bit vectors that `bpf/router/acl.h` looks up at a cost
//! that does not go by the number of rules; why these is said there. [`loaded`] puts that into the
//! kernel beside the one in use, and a word of the router's configuration leads to the new one: no
//! packet is judged by half of a list. What equal rules have counted goes on.
//!
//! **Who judges.** A list that is declared is the only one who does, so it judges what is left to
//! the kernel as well, where that would forward it. Of such a packet it may be unknown by which
//! interface it will leave, or what is behind IPv6's extension headers: it is denied then if a rule
//! could deny it that comes before one that allows it for certain. With a list from nftables the
//! kernel has the same rules, and what is left to it is judged there.

pub mod chain;
pub mod image;
pub mod loaded;

pub use model::acl::{List, ListError, Rule, Side, WITH_PORTS, default_rule};
