//! What there is to see of a router: which interfaces, what they counted, how full the tables are,
//! what is left to the kernel and why. Plain data for whoever prints it.

use crate::layout::Counter;

/// All of it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order they were added.
    pub interfaces: Vec<InterfaceReport>,
    /// Sentences: why all packets of a family, or lookups, are the kernel's. Empty when nothing is
    /// in the way.
    pub notes: Vec<String>,
    /// The tables of IPv4 and of IPv6.
    pub tables: [TableReport; 2],
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// How the program runs for its device: native, generic or tc.
    pub mode: String,
    /// How the program runs, worded for sentences and with the kind of device that is the reason:
    /// `native XDP`, `at tc ingress (veth)`.
    pub place: String,
    /// For IPv4 and IPv6: a value for each of [`Counter::ALL`].
    pub counters: [Vec<u64>; 2],
}

impl InterfaceReport {
    /// One counter of both families.
    pub fn total(&self, counter: Counter) -> u64 {
        self.counters
            .iter()
            .map(|family| family[counter as usize])
            .sum()
    }
}

/// How much of a family's table is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    /// Prefixes and single addresses in it.
    pub prefixes: usize,
    /// Lines of 64 bytes of the trie in use.
    pub nodes: usize,
    /// Lines that there are.
    pub nodes_max: usize,
}
