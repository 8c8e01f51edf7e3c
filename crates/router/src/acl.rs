//! Access lists: which transit packets may pass, by addresses, ports, protocol and interfaces.
//! Stateless: each packet is judged for itself.
//!
//! # Theory of operation
//!
//! A [`List`] is rules in order, of which the first that takes a packet decides, and what becomes
//! of packets that no rule takes. It comes from a file ([`text`]) or from nftables
//! ([`chain`]). [`image`] compiles it to bit vectors that `bpf/router/acl.h` looks up at a cost
//! that does not go by the number of rules; why these is said there. [`loaded`] puts that into the
//! kernel beside the one in use, and a word of the router's configuration leads to the new one: no
//! packet is judged by half of a list. What equal rules have counted goes on.
//!
//! **Who judges.** A list from a file is the only one who does, so it judges what is left to the
//! kernel as well, where that would forward it. Of such a packet it may be unknown by which
//! interface it will leave, or what is behind IPv6's extension headers: it is denied then if a rule
//! could deny it that comes before one that allows it for certain. With a list from nftables the
//! kernel has the same rules, and what is left to it is judged there.

pub mod chain;
pub mod image;
pub mod loaded;
pub mod text;

use ipnet::IpNet;

use crate::layout::ACL_RULES;

/// Rules and what holds where none takes a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// The first that takes a packet decides.
    pub rules: Vec<Rule>,
    /// What no rule takes may pass.
    pub default_allows: bool,
}

/// One rule. What is not given is anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Packets may pass; else they are dropped.
    pub allows: bool,
    /// IPv4 alone (4) or IPv6 alone (6).
    pub family: Option<u8>,
    /// Name of the interface that packets come in by.
    pub input: Option<String>,
    /// Name of the interface that they leave by.
    pub output: Option<String>,
    /// Of the packet behind IP's own headers (RFC 5237).
    pub protocol: Option<u8>,
    /// Where they come from.
    pub source: Side,
    /// Where they go to.
    pub destination: Side,
}

/// One end of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Side {
    /// Addresses.
    pub prefix: Option<IpNet>,
    /// First and last port. Only with a protocol that has ports; a later fragment has none.
    pub ports: Option<(u16, u16)>,
}

impl Rule {
    /// The only family whose packets it can take.
    pub fn only_family(&self) -> Option<u8> {
        let of = |prefix: IpNet| if prefix.addr().is_ipv4() { 4 } else { 6 };
        let prefix = self.source.prefix.or(self.destination.prefix);
        self.family.or(prefix.map(of))
    }
}

/// Protocols with ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// What is wrong with a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// A line of a file.
    #[error("line {line}: {why}")]
    Line {
        /// From 1.
        line: usize,
        /// What and why.
        why: String,
    },
    /// Not of one line.
    #[error("{0}")]
    Whole(String),
}

impl List {
    /// What the program has no room for.
    ///
    /// # Errors
    /// It has too many rules.
    pub fn check_size(&self) -> Result<(), ListError> {
        if self.rules.len() > ACL_RULES {
            let why = format!(
                "{} rules are more than the {ACL_RULES} that there is room for",
                self.rules.len()
            );
            return Err(ListError::Whole(why));
        }
        Ok(())
    }
}
