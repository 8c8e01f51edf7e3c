//! What a port and its rings look like at one moment, for dumps.

/// A port's indices and counters at one moment, for dumps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// What is behind the port: `vhost-user`, `tap`, `memory`, `bench`, `af_xdp`, `packet`,
    /// `dpdk`.
    pub kind: &'static str,
    /// Frames can pass.
    pub up: bool,
    /// Frames taken from the peer.
    pub frames_received: u64,
    /// Frames given to the peer, segments counted each.
    pub frames_transmitted: u64,
    /// Times the peer woke us.
    pub kicks: u64,
    /// Times we interrupted the peer.
    pub calls: u64,
    /// The ring the guest transmits on.
    pub transmitq: Option<QueueInfo>,
    /// The ring the guest receives from.
    pub receiveq: Option<QueueInfo>,
    /// Why the port was stopped.
    pub broken: Option<String>,
}

/// One ring of a port at one moment, as it stands in the guest's memory. What the VMM has said of
/// it is [`crate::vhost::RingInfo`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// Entries.
    pub size: u16,
    /// It is a packed ring: indices are slots, each with a wrap counter.
    pub packed: bool,
    /// The available index as the guest last wrote it; of a packed ring, which has none, the same
    /// as `next_avail`.
    pub avail_index: u16,
    /// The next available entry that is taken.
    pub next_avail: u16,
    /// The used index as we last wrote it.
    pub used_index: u16,
    /// The wrap counter of `next_avail` in a packed ring.
    pub avail_wrap: bool,
    /// The wrap counter of `used_index` in a packed ring.
    pub used_wrap: bool,
    /// Chains taken and not given back yet.
    pub in_flight: u16,
    /// The guest does not want to be interrupted.
    pub interrupts_off: bool,
    /// Interrupts sent.
    pub calls: u64,
    /// Feature bits that the ring runs with.
    pub features: u64,
}
