//! What the daemon asks of the data plane beside its configuration: interfaces, counters, the next
//! hops of the servers.

use std::collections::BTreeMap;

pub use xdp::Mode;

use super::registry::{Compiled, Forwarding, Target};

/// The data plane.
pub trait Plane: Send + Sync {
    /// Makes the services these, all or nothing. The error is a sentence.
    fn apply(&self, services: &[Compiled]) -> Result<(), String>;
    /// The interfaces that it works on, by name.
    fn interfaces(&self) -> Vec<Interface>;
    /// Begins to work on an interface, or works on it in another mode. The error is a sentence.
    fn add_interface(&self, name: &str, mode: Option<Mode>) -> Result<Interface, String>;
    /// Gives an interface back; whether it was one.
    fn delete_interface(&self, name: &str) -> Result<bool, String>;
    /// Counters, at one moment.
    fn stats(&self) -> Result<Stats, String>;
    /// Where the servers' packets go.
    fn next_hops(&self) -> BTreeMap<Target, ServerHop>;
}

/// An interface that is balanced on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub name: String,
    /// None: it is not there at the moment.
    pub mode: Option<Mode>,
}

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
    /// Name, sentence, packets.
    pub drops: Vec<(&'static str, &'static str, u64)>,
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
    Known { interface: String, mac: String },
    /// Why it is not known.
    Unknown(String),
}

/// The registry's way to the data plane.
pub struct PlaneForwarding(pub std::sync::Arc<dyn Plane>);

impl Forwarding for PlaneForwarding {
    fn apply(&mut self, services: &[Compiled]) -> Result<(), String> {
        self.0.apply(services)
    }
}
