//! What the kernel tells, in our words. Plain data: no socket, no clock. Made by `decode`, kept by
//! `tables`.

use crate::uapi;
use imbl::OrdMap;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use wire::Mac;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// AF_INET or AF_INET6.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            2 => Some(Self::V4),
            10 => Some(Self::V6),
            _ => None,
        }
    }
}

/// The kernel's tables at one moment. Cloning costs a few pointers.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By interface index.
    pub links: OrdMap<u32, Arc<Link>>,
    /// By interface index and address.
    pub addresses: OrdMap<(u32, IpAddr), Arc<Address>>,
    /// All tables, both families. `diff` of two snapshots costs as much as they differ.
    pub routes: OrdMap<RouteKey, Arc<RouteSet>>,
    /// Next-hop objects by id.
    pub nexthops: OrdMap<u32, Arc<NextHop>>,
    /// Policy rules in the order the kernel tries them, IPv4's before IPv6's.
    pub rules: Arc<Vec<Rule>>,
    /// By interface index and address; those of a proxy are left out.
    pub neighbours: OrdMap<(u32, IpAddr), Neighbour>,
    /// By family and interface index; see [`ForwardingSettings::ALL`].
    pub settings: OrdMap<(Family, i32), ForwardingSettings>,
    /// How often each kind has changed; what a [`Watch`](crate::Watch) compares.
    pub(crate) versions: crate::mirror::Versions,
}

/// Devices upon each other at the most: MAX_NEST_DEV of include/linux/netdevice.h.
const MOST_NESTED: usize = 8;

impl Snapshot {
    /// The interface of that name.
    pub fn link_named(&self, name: &str) -> Option<&Arc<Link>> {
        self.links.values().find(|link| link.name == name)
    }

    /// The device that an interface's frames come and go by: itself, or what the VLANs it is in lie
    /// on.
    pub fn device_of(&self, link: &Link) -> u32 {
        let mut device = link;
        // The kernel makes no rings; a parent in another namespace could look like one.
        for _ in 0..MOST_NESTED {
            match device.vlan.and_then(|vlan| self.links.get(&vlan.parent)) {
                Some(parent) => device = parent,
                None => break,
            }
        }
        device.vlan.map_or(device.index, |vlan| vlan.parent)
    }

    /// An interface of several, of which each packet takes one.
    pub fn is_bond(&self, ifindex: u32) -> bool {
        self.links.get(&ifindex).is_some_and(|link| link.is("bond"))
    }

    /// The ports of a bond; others have none.
    pub fn ports_of(&self, ifindex: u32) -> impl Iterator<Item = &Arc<Link>> {
        let is_bond = self.is_bond(ifindex);
        let all = self.links.values().take_while(move |_| is_bond);
        all.filter(move |link| link.master == Some(ifindex))
    }

    /// What an interface's packets come by: a bond's ports, or itself.
    pub fn nics_of(&self, ifindex: u32) -> impl Iterator<Item = &Arc<Link>> {
        let own = self.links.get(&ifindex).filter(|link| !link.is("bond"));
        own.into_iter().chain(self.ports_of(ifindex))
    }

    /// The NICs below an interface whose frames have VLAN tags that the kernel knows of: itself or
    /// a bond's ports, if there are VLANs on it or on what it is a port of.
    pub fn nics_with_vlans(&self, ifindex: u32) -> BTreeSet<u32> {
        let master = self.links.get(&ifindex).and_then(|link| link.master);
        let is_below = |parent: u32| parent == ifindex || Some(parent) == master;
        let mut vlans = self.links.values().filter_map(|link| link.vlan);
        if !vlans.any(|vlan| is_below(vlan.parent)) {
            return BTreeSet::new();
        }
        match self.is_bond(ifindex) {
            true => self.ports_of(ifindex).map(|port| port.index).collect(),
            false => BTreeSet::from([ifindex]),
        }
    }

    /// A neighbour, if the kernel has heard of it.
    pub fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Option<&Neighbour> {
        self.neighbours.get(&(ifindex, ip))
    }

    /// The addresses of an interface.
    pub fn addresses_of(&self, ifindex: u32) -> impl Iterator<Item = &Arc<Address>> {
        let low = (ifindex, IpAddr::from([0, 0, 0, 0]));
        let high = (ifindex, IpAddr::from([0xff; 16]));
        self.addresses.range(low..=high).map(|(_, address)| address)
    }

    /// Where a route leads: its own next hops or those of its object, with the weights of a group.
    /// Empty where it leads nowhere, or its object is not known (any more).
    pub fn hops(&self, route: &Route) -> Vec<Hop> {
        let Some(id) = route.nexthop_id else {
            return route.hops.clone();
        };
        let Some(object) = self.nexthops.get(&id) else {
            return Vec::new();
        };
        if let Some(hop) = &object.hop {
            return vec![hop.clone()];
        }
        let member = |(id, weight): &(u32, u32)| {
            let hop = self.nexthops.get(id)?.hop.clone()?;
            Some(Hop {
                weight: *weight,
                ..hop
            })
        };
        object.group.iter().filter_map(member).collect()
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in this namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address, where it has one of six octets.
    pub mac: Option<Mac>,
    /// Bytes of a packet, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Up and with carrier (IFF_LOWER_UP). IFF_RUNNING follows it, up to a second later: the kernel
    /// works out operational states once a second.
    pub carrier: bool,
    /// IFF_LOOPBACK.
    pub loopback: bool,
    /// Nobody is asked for hardware addresses (IFF_NOARP): the kernel sends to the interface's own.
    pub no_arp: bool,
    /// Frames are Ethernet (ARPHRD_ETHER).
    pub ethernet: bool,
    /// `veth`, `vlan`, `bond`, `bridge`, …; none for hardware.
    pub kind: Option<String>,
    /// What a VLAN subinterface is.
    pub vlan: Option<Vlan>,
    /// The bridge, bond or VRF it belongs to, an interface index.
    pub master: Option<u32>,
    /// It is a bond's port, and the bond takes no packets from it for now: a backup, or outside the
    /// active aggregator.
    pub held_back: bool,
    /// Queues it receives from.
    pub rx_queues: u32,
    /// Queues it sends to.
    pub tx_queues: u32,
    /// The id of the XDP program attached to it.
    pub xdp_program: Option<u32>,
}

impl Link {
    /// Whether it is a link of this kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// A VLAN subinterface's tag and where it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The interface below, an index.
    pub parent: u32,
    /// 1 to 4094.
    pub id: u16,
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Its tags tell the packets' priorities (`egress-qos-map`).
    pub maps_priorities: bool,
}

/// An address of an interface of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface.
    pub ifindex: u32,
    /// The address itself.
    pub ip: IpAddr,
    /// Bits of the network (of `peer`, where there is one).
    pub prefix_len: u8,
    /// The other end of a point-to-point address.
    pub peer: Option<IpAddr>,
    /// IPv4's broadcast address, where it is set.
    pub broadcast: Option<IpAddr>,
    /// RT_SCOPE_*: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// IFA_F_*.
    pub flags: u32,
    /// IPv4's label; empty otherwise.
    pub label: String,
}

/// What tells one route from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// 254 main, 255 local, 253 default, or one's own.
    pub table: u32,
    /// The destination.
    pub dst: IpNet,
    /// IPv4's type of service; zero for any.
    pub tos: u8,
    /// The smallest is used.
    pub metric: u32,
}

/// All routes of one key. IPv4 uses the first; for IPv6 with more than one the kernel chooses by
/// its neighbours' states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteSet {
    /// Never empty.
    pub routes: Vec<Route>,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// What it does.
    pub kind: RouteKind,
    /// Who made it: RTPROT_* (2 kernel, 3 boot, 4 static, 9 RA, 16 DHCP, 186 BGP, …).
    pub protocol: u8,
    /// RT_SCOPE_*.
    pub scope: u8,
    /// IPv6's source-specific routes (`ip -6 route add … from …`).
    pub src: Option<IpNet>,
    /// The source address of what this host sends.
    pub preferred_source: Option<IpAddr>,
    /// The largest packet, where the route says so (RTAX_MTU).
    pub mtu: Option<u32>,
    /// Where to; more than one is multipath. Use [`Snapshot::hops`], which knows objects too.
    pub hops: Vec<Hop>,
    /// The next-hop object it uses (`ip route add … nhid …`).
    pub nexthop_id: Option<u32>,
    /// What else was said of it and is not told here (headers that its hops add, realms, metrics),
    /// as the kernel writes it: routes that differ in nothing else are two.
    pub rest: Vec<u8>,
}

/// What a route does: RTN_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// To a gateway or a neighbour.
    Unicast,
    /// To this host.
    Local,
    /// A broadcast address of a network of ours.
    Broadcast,
    /// One of several holders of an address, us included.
    Anycast,
    /// A multicast group.
    Multicast,
    /// Dropped without a word.
    Blackhole,
    /// Dropped, "host unreachable".
    Unreachable,
    /// Dropped, "administratively prohibited".
    Prohibit,
    /// Goes on with the next rule.
    Throw,
    /// Something newer than this crate.
    Other(u8),
}

impl RouteKind {
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Unicast,
            2 => Self::Local,
            3 => Self::Broadcast,
            4 => Self::Anycast,
            5 => Self::Multicast,
            6 => Self::Blackhole,
            7 => Self::Unreachable,
            8 => Self::Prohibit,
            9 => Self::Throw,
            other => Self::Other(other),
        }
    }
}

impl RouteKind {
    /// Its name in `ip route`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Anycast => "anycast",
            Self::Multicast => "multicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::Other(_) => "other",
        }
    }
}

impl Route {
    /// Who made it, as `ip route` calls it (linux/rtnetlink.h): `kernel`, `static`, `bgp`, …; a
    /// number where it has no name.
    pub fn protocol_name(&self) -> String {
        let name = match self.protocol {
            1 => "redirect",
            2 => "kernel",
            3 => "boot",
            4 => "static",
            8 => "gated",
            9 => "ra",
            10 => "mrt",
            11 => "zebra",
            12 => "bird",
            13 => "dnrouted",
            14 => "xorp",
            15 => "ntk",
            16 => "dhcp",
            17 => "mrouted",
            18 => "keepalived",
            42 => "babel",
            186 => "bgp",
            187 => "isis",
            188 => "ospf",
            189 => "rip",
            192 => "eigrp",
            other => return other.to_string(),
        };
        name.to_owned()
    }
}

/// One next hop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The neighbour to send to; none if the destination itself is the neighbour. IPv6 for an IPv4
    /// route too (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// The interface to send on; 0 where there is none.
    pub ifindex: u32,
    /// Share of a multipath route, from 1.
    pub weight: u32,
    /// The gateway is taken to be on that interface's network.
    pub onlink: bool,
    /// It adds headers of its own (MPLS, SRv6, IP in IP).
    pub encapsulates: bool,
}

/// A next-hop object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Its number.
    pub id: u32,
    /// Where to; none for groups and blackholes.
    pub hop: Option<Hop>,
    /// Ids and weights of a group's members.
    pub group: Vec<(u32, u32)>,
    /// A group that keeps flows where they are (`type resilient`).
    pub resilient: bool,
    /// Drops what is sent to it.
    pub blackhole: bool,
}

/// A policy rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which family it is for.
    pub family: Family,
    /// The lowest is tried first.
    pub priority: u32,
    /// What a match leads to.
    pub action: RuleAction,
    /// Only packets from here.
    pub src: Option<IpNet>,
    /// Only packets to here.
    pub dst: Option<IpNet>,
    /// Only this type of service; zero for any.
    pub tos: u8,
    /// Only packets that came in here, by name.
    pub iif: Option<String>,
    /// Only packets of sockets bound to this interface, by name.
    pub oif: Option<String>,
    /// Only this mark under this mask.
    pub mark: Option<(u32, u32)>,
    /// Matches what the selectors do not.
    pub invert: bool,
    /// Routes of this prefix length or shorter do not count.
    pub suppress_prefix_len: Option<u32>,
    /// It has selectors or actions that are not told here: whether it matches cannot be said.
    pub more: bool,
}

/// What a rule does: FR_ACT_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Look up this table.
    Table(u32),
    /// Look up the table of the interface's VRF.
    Vrf,
    /// Go on with the rule of this priority.
    Goto(u32),
    /// Nothing.
    Nop,
    /// Drop.
    Blackhole,
    /// Drop, "network unreachable".
    Unreachable,
    /// Drop, "administratively prohibited".
    Prohibit,
    /// Something newer than this crate.
    Other(u8),
}

/// A neighbour on an interface's network: an entry of ARP or neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface.
    pub ifindex: u32,
    /// The neighbour's address.
    pub ip: IpAddr,
    /// Its hardware address, once known.
    pub mac: Option<Mac>,
    /// NUD_*.
    pub state: u16,
    /// It says that it is a router (IPv6).
    pub router: bool,
}

impl Neighbour {
    /// Its address is valid: the kernel would send to it (NUD_VALID).
    pub fn is_valid(&self) -> bool {
        const VALID: u16 = uapi::NUD_PERMANENT
            | uapi::NUD_NOARP
            | uapi::NUD_REACHABLE
            | uapi::NUD_PROBE
            | uapi::NUD_STALE
            | uapi::NUD_DELAY;
        self.state & VALID != 0
    }

    /// Its address is valid and was confirmed lately, or needs no confirmation (NUD_CONNECTED).
    pub fn is_confirmed(&self) -> bool {
        self.state & (uapi::NUD_PERMANENT | uapi::NUD_NOARP | uapi::NUD_REACHABLE) != 0
    }

    /// Its address will not change and never expires.
    pub fn is_permanent(&self) -> bool {
        self.state & uapi::NUD_PERMANENT != 0
    }

    /// The state's name, as `ip neigh` prints it in small letters.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            uapi::NUD_INCOMPLETE => "incomplete",
            uapi::NUD_REACHABLE => "reachable",
            uapi::NUD_STALE => "stale",
            uapi::NUD_DELAY => "delay",
            uapi::NUD_PROBE => "probe",
            uapi::NUD_FAILED => "failed",
            uapi::NUD_NOARP => "noarp",
            uapi::NUD_PERMANENT => "permanent",
            _ => "none",
        }
    }
}

/// What `net.ipv4.conf.IF` and `net.ipv6.conf.IF` say of forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingSettings {
    /// Packets that come in here are forwarded.
    pub forwarding: bool,
    /// 0 off, 1 strict, 2 loose (RFC 3704). The kernel uses the larger of the interface's and
    /// [`ForwardingSettings::ALL`]'s. IPv4 only.
    pub rp_filter: u32,
    /// Routes over an interface without carrier are not used.
    pub ignore_routes_with_linkdown: bool,
}

impl ForwardingSettings {
    /// The index that stands for `conf.all`.
    pub const ALL: i32 = -1;
    /// The index that stands for `conf.default`.
    pub const DEFAULT: i32 = -2;
}
