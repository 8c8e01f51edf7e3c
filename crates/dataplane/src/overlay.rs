//! What a virtual network is beyond this host: who is where, as control has compiled it.
//!
//! A network that is on this host alone has none. Only networks with a NIC on this host are in a
//! snapshot, so that what a worker has to look at does not grow with the networks of the fleet; the
//! maps share their structure with the model's, so that a binding more costs what it touches.
//!
//! To the rules, flows and counters of this host the rest of a network is one partner, the
//! *remote*, with a [`PortUid`] of its own: a flow is between a NIC here and the remote. It
//! survives that the machine over there moves to another host, and no frame from the wire can be of
//! a flow between two NICs here. The remote bypasses filtering: egress was judged on the sender's
//! host, ingress will be on the receiver's.

use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::shared_ptr::DefaultSharedPtr;
use wire::Mac;

use crate::ids::{NetworkIdx, PortUid};

/// Index of a host in [`Snapshot::hosts`](crate::Snapshot::hosts).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostIdx(pub u32);

/// A persistent map. The keys come from the configuration, so a fast unkeyed hash will do.
pub type SharedMap<K, V> = imbl::GenericHashMap<K, V, RandomState, DefaultSharedPtr>;

/// The part of a network that is on other hosts.
#[derive(Clone)]
pub struct Overlay {
    /// Identity of the remote in flows: of the same never-ending sequence as the NICs', and another
    /// one when the network is made anew.
    pub uid: PortUid,
    /// The machines on other hosts by MAC address, and at which host they are. A binding always
    /// wins over what was learnt, and a NIC of this host over a binding.
    pub bindings: SharedMap<Mac, HostIdx>,
    /// Which machine has which address, as far as the bindings say: ARP and neighbour solicitations
    /// of NICs here are answered from it, and no other host may send from such an address.
    pub neighbours: SharedMap<IpAddr, Holder>,
    /// Where broadcasts, multicasts and frames for unknown MACs go, besides the NICs of this host.
    pub flood: Flood,
    /// Where a MAC without a binding is may be learnt from the frames that come from it. A frame
    /// for a MAC that is neither bound nor learnt is flooded; where nothing is learnt it is
    /// dropped, and so is one from such a MAC.
    pub learn: bool,
    /// The hosts that take part in the network, sorted: frames are taken from them.
    pub members: Arc<[HostIdx]>,
    /// Frames are taken from everybody else too.
    pub any_host: bool,
    /// On which hosts machines may answer as DHCP or DHCPv6 servers.
    pub dhcp_servers: Trust,
    /// On which hosts machines may send router advertisements and redirects.
    pub routers: Trust,
}

/// Who has an address, by the bindings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// One machine.
    One(Mac),
    /// Several, which pass it on or compete for it: nobody answers for them.
    Several(Arc<[Mac]>),
}

/// Hosts whose machines may do what others' may not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Those at these hosts.
    Only(Arc<[IpAddr]>),
    /// None.
    #[default]
    Nobody,
    /// All.
    Anybody,
}

/// How a frame reaches all of a network.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Flood {
    /// Not at all: who is not bound or learnt is not there.
    #[default]
    No,
    /// A copy to each of these hosts (head-end replication).
    Hosts(Arc<[HostIdx]>),
    /// One copy to this IP multicast group, which all hosts of the network have joined.
    Group(IpAddr),
}

/// Where on other hosts a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Towards {
    /// Nowhere: its target is here.
    Here,
    Host(IpAddr),
    /// To all hosts of the network.
    All,
}

/// Where a frame out of a tunnel has come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TunnelSource {
    pub network: NetworkIdx,
    pub host: IpAddr,
}

impl Overlay {
    /// Nobody is known, and nothing is learnt.
    pub fn new(uid: PortUid) -> Overlay {
        Overlay {
            uid,
            bindings: SharedMap::default(),
            neighbours: SharedMap::default(),
            flood: Flood::No,
            learn: false,
            members: Arc::default(),
            any_host: false,
            dhcp_servers: Trust::Nobody,
            routers: Trust::Nobody,
        }
    }

    /// The host takes part in the network.
    #[inline]
    pub(crate) fn has(&self, host: HostIdx) -> bool {
        self.members.binary_search(&host).is_ok()
    }
}

impl Holder {
    /// All that have it.
    pub(crate) fn macs(&self) -> &[Mac] {
        match self {
            Holder::One(mac) => std::slice::from_ref(mac),
            Holder::Several(macs) => macs,
        }
    }
}

impl From<Mac> for Holder {
    fn from(mac: Mac) -> Holder {
        Holder::One(mac)
    }
}

impl Trust {
    /// Machines at this host may.
    pub(crate) fn includes(&self, host: IpAddr) -> bool {
        match self {
            Trust::Only(hosts) => hosts.contains(&host),
            Trust::Nobody => false,
            Trust::Anybody => true,
        }
    }
}
