//! The configuration as the workers see it: one immutable [`Snapshot`], compiled by control.
//!
//! Control builds a snapshot out of the one before it (the vectors share their structure, so an
//! operation costs what it touches) and publishes it; a worker takes it up between two batches, so
//! no frame sees half of a change. Everything is addressed by small indices that control hands out:
//! a slot may be used again after its NIC or rule is gone, a [`PortUid`] never is, which is how a
//! flow of a deleted NIC is told from one of the NIC that took its slot.

use std::net::IpAddr;
use std::sync::Arc;

use io::trace::Trace;
use ipnet::IpNet;
use wire::{Mac, Vni};

use crate::address_set::AddressSet;
use crate::limits::Meters;
use crate::overlay::{HostIdx, Overlay};
use crate::ruleset::{GroupMembers, RuleSet};

pub use crate::ids::{Epoch, GroupIdx, NetworkIdx, PortSlot, PortUid, RuleSlot};

/// The whole configuration. `None` in a vector is an index that is not used (any more).
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Which snapshot this is.
    pub epoch: Epoch,
    /// NICs by [`PortSlot`].
    pub ports: imbl::Vector<Option<Arc<PortConfig>>>,
    /// Virtual networks by [`NetworkIdx`].
    pub networks: imbl::Vector<Option<Arc<Network>>>,
    /// Security groups by [`GroupIdx`]; `None` also where a name is referred to and no such group
    /// exists: it matches nobody, allows nothing, and its NICs send only what egress rules allow.
    pub groups: imbl::Vector<Option<Arc<Group>>>,
    /// The addresses of other hosts' hosts by [`HostIdx`](crate::overlay::HostIdx).
    pub hosts: imbl::Vector<Option<IpAddr>>,
    /// What of it differs from the snapshot before; `None`: all of it may.
    pub changed: Option<Arc<Changed>>,
}

/// What of a snapshot differs from another one; more may be named than does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// Which other one.
    pub since: Epoch,
    /// NICs that came, went or are others.
    pub ports: Vec<PortSlot>,
    /// Networks, by their NICs or by what of them is on other hosts.
    pub networks: Vec<NetworkIdx>,
    /// Groups, by their rules, members or existence.
    pub groups: Vec<GroupIdx>,
    /// Hosts.
    pub hosts: Vec<HostIdx>,
}

/// One NIC, compiled.
#[derive(Clone)]
pub struct PortConfig {
    /// Its own index.
    pub slot: PortSlot,
    /// Its identity.
    pub uid: PortUid,
    /// What it is called, also by the process that comes after this one.
    pub name: Arc<str>,
    /// The virtual network it is in, for dumps.
    pub vni: Vni,
    /// The index of that network.
    pub network: NetworkIdx,
    /// Its MAC address: the only one it may send from, but for `pairs` and `learn_macs`.
    pub mac: Mac,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// Refuse source addresses, ARP senders and ND targets that are not its own.
    pub anti_spoof: bool,
    /// Further addresses that count as its own.
    pub pairs: Vec<AddressPair>,
    /// Its security groups.
    pub groups: Vec<GroupIdx>,
    /// Neither rules nor address checks apply to it.
    pub bypass: bool,
    /// Who gets a copy of every frame that this NIC sends or is delivered.
    pub sniffers: Vec<PortSlot>,
    /// It receives copies of another NIC's frames, nothing else, and can send nothing.
    pub is_sniffer: bool,
    /// It may answer as a DHCP or DHCPv6 server.
    pub allow_dhcp_server: bool,
    /// It may send router advertisements and redirects; those of IPv4 where rules allow them
    /// besides.
    pub allow_router_advertisements: bool,
    /// Machines behind it (a nested bridge) may send from MACs of their own, which are learnt.
    pub learn_macs: bool,
    /// Its link is down: nothing comes from it and nothing goes to it.
    pub link_down: bool,
    /// Of so many of its frames one is [sampled](crate::sampling), 0: none. `None`: as where
    /// nothing is said.
    pub sample_rate: Option<u32>,
    /// Idle timeouts of its flows.
    pub timeouts: Timeouts,
    /// How many flows that it started may be tracked at once.
    pub flow_share: u32,
    /// Largest IP packet it takes, in bytes, and for other frames what is behind the Ethernet
    /// header.
    pub mtu: u16,
    /// What it may send and be sent in a second: the same one for as long as the limits are the
    /// same, so that other changes of the NIC do not fill its buckets.
    pub meters: Option<Arc<Meters>>,
    /// Where its frames are recorded, when they are.
    pub trace: Option<Trace>,
}

impl PortConfig {
    /// A NIC that is in no group and has been given nothing beyond its MAC address: rules apply to
    /// it, address checks do not, it may start no flow, and it takes packets of 1500 bytes.
    pub fn new(slot: PortSlot, uid: PortUid, vni: Vni, network: NetworkIdx, mac: Mac) -> Self {
        PortConfig {
            slot,
            uid,
            name: Arc::default(),
            vni,
            network,
            mac,
            addresses: Vec::new(),
            anti_spoof: false,
            pairs: Vec::new(),
            groups: Vec::new(),
            bypass: false,
            sniffers: Vec::new(),
            is_sniffer: false,
            allow_dhcp_server: false,
            allow_router_advertisements: false,
            learn_macs: false,
            link_down: false,
            sample_rate: None,
            timeouts: Timeouts::default(),
            flow_share: 0,
            mtu: 1500,
            meters: None,
            trace: None,
        }
    }
}

/// An address or network that a NIC may use besides its own, as Neutron's allowed address pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressPair {
    /// The addresses.
    pub net: IpNet,
    /// The MAC they are used with; the NIC's own when `None`.
    pub mac: Option<Mac>,
}

/// NICs by MAC address. The keys come from the configuration, so a fast unkeyed hash will do.
pub type MacMap = hashbrown::HashMap<Mac, PortSlot, foldhash::fast::RandomState>;

/// NICs by a MAC address that several have.
pub type SharedMacs = hashbrown::HashMap<Mac, Vec<PortSlot>, foldhash::fast::RandomState>;

impl Network {
    /// The NIC that alone was given a MAC address.
    #[inline]
    pub fn only_holder(&self, mac: &Mac) -> Option<PortSlot> {
        match self.holders(mac) {
            None => self.macs.get(mac).copied(),
            Some(_) => None,
        }
    }

    /// The NICs that have a MAC address together; `None` where at most one has it.
    #[inline]
    pub fn holders(&self, mac: &Mac) -> Option<&[PortSlot]> {
        if self.shared.is_empty() {
            return None;
        }
        self.shared.get(mac).map(Vec::as_slice)
    }

    /// What the network is on other hosts, as a partner of the NICs here; `network` is its own
    /// index. `None`: it is on this one alone.
    pub(crate) fn remote(&self, network: NetworkIdx) -> Option<PortConfig> {
        let uid = self.overlay.as_ref()?.uid;
        let slot = PortSlot::remote(network);
        Some(PortConfig {
            bypass: true,
            allow_dhcp_server: true,
            allow_router_advertisements: true,
            // The NIC's own are never longer than these.
            timeouts: Timeouts::LONGEST,
            // Its flows are charged to the NICs that they reach.
            flow_share: 0,
            mtu: 0,
            ..PortConfig::new(slot, uid, self.vni, network, Mac::default())
        })
    }
}

/// One virtual network.
#[derive(Clone)]
pub struct Network {
    /// Its identifier.
    pub vni: Vni,
    /// Its NICs by the MAC they were given; one of them where several have it.
    pub macs: MacMap,
    /// MACs that several NICs were given, and which: frames go to the one that was heard last,
    /// before that to all.
    pub shared: SharedMacs,
    /// All its NICs: where broadcast and multicast go.
    pub ports: Vec<PortSlot>,
    /// Those with `learn_macs`: where frames for unknown MACs go.
    pub learners: Vec<PortSlot>,
    /// What of it is on other hosts; `None`: it is on this one alone.
    pub overlay: Option<Arc<Overlay>>,
}

/// One security group, compiled.
#[derive(Clone, Default)]
pub struct Group {
    /// Its rules.
    pub rules: RuleSet,
    /// The addresses it stands for in other rules.
    pub members: AddressSet,
    /// Flows admitted by a rule of this group live on when the rule is taken away
    /// (security-groups.md 9).
    pub drain: bool,
    /// What becomes of TCP that this group lets pass and that is amid an unknown flow.
    pub unknown_tcp: UnknownTcp,
}

/// What becomes of a TCP segment amid a flow that nobody knows, where the rules let it pass
/// (security-groups.md 6). Of several groups that do, the last of this order says it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum UnknownTcp {
    /// It is dropped, and its sender gets a reset.
    #[default]
    Reset,
    /// It is dropped.
    Drop,
    /// It passes, and begins a flow. So does SCTP.
    Adopt,
}

/// Idle timeouts that are settable per NIC; the others are fixed (security-groups.md 10).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timeouts {
    /// TCP in state established, seconds: 60..=432000.
    pub tcp_established_secs: u32,
    /// UDP without an answer, seconds: 30..=60.
    pub udp_secs: u32,
    /// UDP that was answered, seconds: 60..=180.
    pub udp_stream_secs: u32,
}

impl Timeouts {
    /// No NIC has longer ones.
    pub const LONGEST: Timeouts = Timeouts {
        tcp_established_secs: 432_000,
        udp_secs: 60,
        udp_stream_secs: 180,
    };
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            tcp_established_secs: 432_000,
            udp_secs: 30,
            udp_stream_secs: 180,
        }
    }
}

impl GroupMembers for [Option<Arc<Group>>] {
    #[inline]
    fn members(&self, group: GroupIdx) -> Option<&AddressSet> {
        Some(&self.get(group.0 as usize)?.as_ref()?.members)
    }
}
