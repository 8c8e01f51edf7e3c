//! What the engine can be asked beside its configuration: counters, and the next hops of the
//! servers.

use std::collections::BTreeMap;

use balancer::Reason;
use control::Target;

/// Counted since a server was added.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    pub packets: u64,
    /// Bytes from the IP header on, without tunnel headers.
    pub bytes: u64,
    /// Flows that began.
    pub flows: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.flows += other.flows;
    }
}

#[derive(Clone, Default, Debug)]
pub struct Stats {
    pub servers: BTreeMap<Target, Counters>,
    /// Packets that did not just go to a server, by why.
    pub reasons: Vec<(Reason, u64)>,
}

impl Stats {
    /// The counters of one server.
    pub fn server(&self, target: &Target) -> Counters {
        self.servers.get(target).copied().unwrap_or_default()
    }
}

/// Where a server's packets go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerHop {
    /// Out of this interface, to this MAC address: the server's or a router's.
    Known {
        interface: String,
        mac: String,
        /// Why none of them gets there.
        loss: Option<String>,
    },
    /// Why it is not known.
    Unknown(String),
}
