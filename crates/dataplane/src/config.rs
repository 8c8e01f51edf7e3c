//! What a worker is made with.

use crate::ids::PortSlot;

/// Sizes of a worker's tables and its hooks.
pub struct WorkerConfig {
    /// Flows tracked at once.
    pub max_flows: u32,
    /// Datagrams in reassembly at once.
    pub max_fragments: u32,
    /// MAC addresses learnt at once.
    pub max_learned_macs: u32,
    /// Seed of the keyed hashes: guests choose what is hashed. Random but in tests.
    pub seed: u64,
    /// Called when a port broke its protocol and was stopped: which one, and a sentence. On the
    /// worker's thread: it must not wait.
    pub on_broken: Box<dyn Fn(PortSlot, String) + Send>,
}
