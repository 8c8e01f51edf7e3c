//! Access lists: which transit packets may pass, by addresses, ports, protocol and interfaces.
//! Stateless: each packet is judged for itself. [`text`] is how people write them; the crate
//! `router` makes them true.

mod text;

use ipnet::IpNet;

/// Rules of a list, at the most.
pub const RULES_MAX: usize = 16_384;

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

/// What becomes of packets that no rule takes, as a file says it.
pub fn default_rule(allows: bool) -> &'static str {
    match allows {
        true => "default allow",
        false => "default deny",
    }
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
        if self.rules.len() > RULES_MAX {
            let why = format!(
                "{} rules are more than the {RULES_MAX} that there is room for",
                self.rules.len()
            );
            return Err(ListError::Whole(why));
        }
        Ok(())
    }
}
