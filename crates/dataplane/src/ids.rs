//! What things are called between control and the workers: small indices that are used again, and
//! identities that are not; and how many there can be.

/// Number of a snapshot; each one published is larger than the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// Index of a NIC in [`Snapshot::ports`](crate::Snapshot::ports) and of its counters, below
/// [`MAX_PORTS`]; behind those, of an [uplink](PortSlot::uplink).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortSlot(pub u32);

/// From here on slots are the [remotes](PortSlot::remote) of networks.
const REMOTES: u32 = 1 << 30;

/// From here on slots are [next hops](PortSlot::hop).
const HOPS: u32 = 1 << 31;

impl PortSlot {
    /// The slot of an uplink, which is below [`MAX_UPLINKS`]: its queues are attached and its
    /// counters read as a NIC's are. It is in no snapshot.
    ///
    /// # Panics
    /// When there is no such uplink.
    pub const fn uplink(number: u32) -> PortSlot {
        assert!(
            (number as usize) < MAX_UPLINKS,
            "an uplink beyond MAX_UPLINKS"
        );
        PortSlot(MAX_PORTS as u32 + number)
    }

    /// It is an uplink's.
    #[inline]
    pub const fn is_uplink(self) -> bool {
        (self.0 as usize) >= MAX_PORTS && (self.0 as usize) < MAX_PORTS + MAX_UPLINKS
    }

    /// What a network is on other hosts, as a partner of flows: see [`crate::overlay`].
    #[inline]
    pub(crate) fn remote(network: NetworkIdx) -> PortSlot {
        PortSlot(REMOTES | network.0 & (REMOTES - 1))
    }

    /// The network whose remote it is.
    #[inline]
    pub(crate) fn remote_of(self) -> Option<NetworkIdx> {
        (REMOTES..HOPS)
            .contains(&self.0)
            .then_some(NetworkIdx(self.0 & (REMOTES - 1)))
    }

    /// A next hop of the [underlay](crate::underlay), as where a frame goes.
    #[inline]
    pub(crate) fn hop(index: u32) -> PortSlot {
        PortSlot(HOPS | index)
    }

    /// The next hop that it is.
    #[inline]
    pub(crate) fn as_hop(self) -> Option<u32> {
        (self.0 >= HOPS).then_some(self.0 & !HOPS)
    }
}

/// Identity of a NIC: never used for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortUid(pub u32);

/// Index of a virtual network in [`Snapshot::networks`](crate::Snapshot::networks).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetworkIdx(pub u32);

/// Index of a security group in [`Snapshot::groups`](crate::Snapshot::groups), given to its name at
/// the first reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupIdx(pub u32);

/// Index of a rule's counters, below [`MAX_RULES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RuleSlot(pub u32);

/// Largest number of NICs: slots are below it. Frames of a NIC above are not switched.
pub const MAX_PORTS: usize = 16_384;

/// Largest number of uplinks: their slots are behind those of the NICs.
pub const MAX_UPLINKS: usize = 16;

/// Largest number of rules with counters of their own; a rule whose slot is not below it is not
/// counted.
pub const MAX_RULES: usize = 1 << 20;
