//! The entries of the router's maps, as `bpf/router.h` has them.

use bytemuck::{Pod, Zeroable};

/// An entry of a trie that leads to a node below.
pub const CHILD: u32 = 0x8000_0000;
/// Lines of 64 bytes in an element of a trie's map; no block lies in two.
pub const ELEMENT_LINES: usize = 1 << 14;
/// Members that a path has room for.
pub const PATH_MEMBERS: usize = 16;
/// Interfaces that a router has room for.
pub const INTERFACES: usize = 1024;
/// Prefixes of IPv6's trie end here; longer ones are single hosts, or asked of the kernel.
pub const TRIE6_BITS: u8 = 64;

/// What a path does: `enum path_kind`.
pub mod kind {
    /// Packets are passed to the kernel.
    pub const PASS: u8 = 0;
    /// Packets are forwarded to one of the path's members.
    pub const FORWARD: u8 = 1;
    /// Packets are dropped: a blackhole.
    pub const DROP: u8 = 2;
    /// The kernel's lookup decides.
    pub const ASK: u8 = 3;
}

/// `struct path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Path {
    /// One of [`kind`].
    pub kind: u8,
    /// A [`Counter`], for [`kind::PASS`].
    pub reason: u8,
    /// Members in use.
    pub count: u8,
    /// Single addresses of this /64 have paths of their own.
    pub hosts: u8,
    /// A route to somewhere else.
    pub unicast: u8,
    /// Filling.
    pub pad: [u8; 3],
    /// The only interface it leaves by; 0: several or none.
    pub ifindex: u32,
    /// Filling.
    pub pad2: u32,
    /// Shares of the flows.
    pub member: [Member; PATH_MEMBERS],
}

/// `struct path_member`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Member {
    /// Number of the hop; 0: the kernel's.
    pub hop: u32,
    /// Hashes up to this one.
    pub upper: u32,
}

/// `struct hop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Hop {
    /// The neighbour's address.
    pub destination: [u8; 6],
    /// The MAC address of our interface.
    pub source: [u8; 6],
    /// Slot of the device in the map `ports`.
    pub port: u32,
    /// The interface as routes name it.
    pub ifindex: u32,
    /// The largest packet in bytes; 0: XDP cannot send there.
    pub mtu: u32,
    /// EtherType of the tag, network order; 0 for none.
    pub protocol: u16,
    /// The tag, network order.
    pub vlan: u16,
    /// The slot of the counters of the interface it leaves by.
    pub slot: u32,
    /// Set by the program.
    pub used: u32,
    /// EtherType of a second tag behind that one, network order; 0 for none.
    pub inner_protocol: u16,
    /// The second tag, network order.
    pub inner_vlan: u16,
    /// At tc the largest packet, or each segment of one, in bytes.
    pub tc_mtu: u32,
    /// The device that sends, for tc.
    pub device: u32,
    /// [`HOP_PEER`].
    pub flags: u32,
    /// Filling.
    pub pad: [u32; 3],
}

/// At tc the device's other end takes the packet at once.
pub const HOP_PEER: u32 = 1;

/// `struct interface_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct InterfaceKey {
    /// The device.
    pub ifindex: u32,
    /// VLAN id in host order; 0 for none.
    pub vlan: u16,
    /// EtherType of the tag in network order; 0 for none.
    pub protocol: u16,
    /// VLAN id of a second tag behind that one, in host order; 0 for none.
    pub inner_vlan: u16,
    /// EtherType of the second tag in network order; 0 for none.
    pub inner_protocol: u16,
}

impl InterfaceKey {
    /// Where the program looks for it first: `near_place()`.
    pub fn near_place(&self) -> usize {
        let place =
            u64::from(self.ifindex) + u64::from(self.vlan) * 67 + u64::from(self.inner_vlan) * 71;
        place as u32 as usize % NEAR_PLACES
    }
}

/// Places of the map `near`.
pub const NEAR_PLACES: usize = 1024;

/// `struct near`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Near {
    /// The interface that has this place; without an ifindex the place is free.
    pub key: InterfaceKey,
    /// What holds there.
    pub interface: Interface,
    /// Filling.
    pub pad: u32,
}

/// `struct interface`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Interface {
    /// Its address: what is sent to others is not forwarded.
    pub mac: [u8; 6],
    /// INTERFACE_FORWARD4 and INTERFACE_FORWARD6.
    pub flags: u8,
    /// `enum rp_filter`.
    pub rp_filter: u8,
    /// The index that routes name it by.
    pub ifindex: u32,
    /// Its place in the map of counters.
    pub slot: u32,
}

/// Forwarding of IPv4 is on.
pub const INTERFACE_FORWARD4: u8 = 1;
/// Forwarding of IPv6 is on.
pub const INTERFACE_FORWARD6: u8 = 2;
/// The program runs in XDP there.
pub const INTERFACE_XDP: u8 = 4;
/// The program runs in XDP there, and checksums of packets may be begun only.
pub const INTERFACE_BEGUN: u8 = 8;
/// What it is on has a MAC address that is not its own.
pub const INTERFACE_OTHER_MAC: u8 = 16;

/// `struct egress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Egress {
    /// Slot of the device.
    pub port: u32,
    /// Slot of the counters.
    pub slot: u32,
    /// EtherType of the tag, network order.
    pub protocol: u16,
    /// The tag, network order.
    pub vlan: u16,
    /// EtherType of a second tag behind that one.
    pub inner_protocol: u16,
    /// The second tag.
    pub inner_vlan: u16,
    /// The device that sends.
    pub device: u32,
    /// XDP cannot send there: 0 or 1.
    pub only_tc: u32,
}

/// `struct router_config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Config {
    /// CONFIG_*: see [`config`].
    pub flags: u32,
    /// Seed of the flows' hash.
    pub seed: u32,
    /// The smallest MTU of any route of IPv4 and of IPv6.
    pub ask_mtu: [u32; 2],
    /// A new number when any of the maps has changed; 0 while they change.
    pub epoch: u32,
}

/// After so many seconds without [`Epochs::beat`](crate::epoch::Epochs::beat) packets are the
/// kernel's: ROUTER_PATIENCE.
pub const PATIENCE: u64 = 5;

/// How many numbers an epoch may have; 0 is none.
pub const CACHE_EPOCHS: u32 = 1 << 30;
/// Words of a CPU's flows in the map `flow_caches4`: a line, and twice as many flows of 16 bytes as
/// there are pairs.
pub const CACHE4_WORDS: usize = 16 + 2 * 4 * (1 << 14);
/// Words of a CPU's flows in the map `flow_caches6`, whose flows are of 32 bytes.
pub const CACHE6_WORDS: usize = 16 + 2 * 8 * (1 << 14);

/// Words of what access lists said of a CPU's flows: a line, and twice as many flows of 32 and of
/// 64 bytes as there are pairs.
pub const ACL_FLOWS_WORDS: usize = 16 + 2 * (8 + 16) * (1 << 14);

/// Flags of [`Config`].
pub mod config {
    /// The firewall sees IPv4's transit packets.
    pub const OFF4: u32 = 1;
    /// The firewall sees IPv6's transit packets.
    pub const OFF6: u32 = 2;
    /// The kernel looks up IPv4's routes.
    pub const ASK4: u32 = 4;
    /// The kernel looks up IPv6's routes.
    pub const ASK6: u32 = 8;
    /// Multipath by ports too.
    pub const PORTS4: u32 = 16;
    /// Multipath by ports too.
    pub const PORTS6: u32 = 32;
    /// IPv4's packets are judged by the access list before they leave.
    pub const ACL4: u32 = 64;
    /// IPv6's likewise.
    pub const ACL6: u32 = 128;
    /// And so are those that are left to the kernel.
    pub const ACL_ALL: u32 = 256;
    /// The access list is the second of the map `acls`.
    pub const ACL_BANK: u32 = 512;
}

/// What is counted of an interface and a family: `enum router_counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Counter {
    /// Packets that came in here and were forwarded.
    Forwarded,
    /// Their bytes, without Ethernet headers.
    ForwardedBytes,
    /// Packets that left here.
    Sent,
    /// Packets that came in here and were forwarded without a lookup, since their flow was known.
    Known,
    /// Dropped by a blackhole route, as the kernel would.
    Blackhole,
    /// Left to the kernel: not to this interface's MAC address (broadcast, multicast, others').
    NotToUs,
    /// Left to the kernel: lengths or version do not agree.
    Malformed,
    /// Left to the kernel: IPv4's header checksum is wrong.
    Checksum,
    /// Left to the kernel: IPv4 options, IPv6 hop-by-hop header.
    Options,
    /// Left to the kernel: TTL or hop limit is used up.
    HopLimit,
    /// Left to the kernel: larger than the next link takes.
    TooBig,
    /// Left to the kernel: the source is none of a packet to forward, or reverse path filtering
    /// minds.
    Source,
    /// Left to the kernel: multicast, broadcast, loopback, link-local.
    Destination,
    /// Left to the kernel: to an address of this host.
    Local,
    /// Left to the kernel: no route.
    NoRoute,
    /// Left to the kernel: an unreachable or prohibit route.
    Refused,
    /// Left to the kernel: the neighbour's address is not known yet.
    Neighbour,
    /// Left to the kernel: would leave by the interface it came in by.
    SameInterface,
    /// Left to the kernel: leaves by an interface that is not the router's.
    Elsewhere,
    /// Left to the kernel: the host's firewall sees transit packets.
    Firewall,
    /// Left to the kernel: forwarding is off here, or IPv6 is.
    Off,
    /// Left to the kernel: the route or the packet needs what the fast path does not do.
    Beyond,
    /// Left to the kernel: asks for an address on the link.
    Asked,
    /// Left to the kernel: tells an address on the link.
    Told,
    /// Left to the kernel: a checksum that is only begun, where the program runs in XDP.
    Begun,
    /// Left to the kernel: nobody has followed its routes for [`PATIENCE`] seconds.
    Hung,
    /// Dropped by the access list.
    Denied,
    /// Dropped: the interface that it was to leave by has just gone, or memory is short.
    Unsent,
}

impl Counter {
    /// All, in the order of the program's.
    pub const ALL: [Counter; 28] = [
        Counter::Forwarded,
        Counter::ForwardedBytes,
        Counter::Sent,
        Counter::Known,
        Counter::Blackhole,
        Counter::NotToUs,
        Counter::Malformed,
        Counter::Checksum,
        Counter::Options,
        Counter::HopLimit,
        Counter::TooBig,
        Counter::Source,
        Counter::Destination,
        Counter::Local,
        Counter::NoRoute,
        Counter::Refused,
        Counter::Neighbour,
        Counter::SameInterface,
        Counter::Elsewhere,
        Counter::Firewall,
        Counter::Off,
        Counter::Beyond,
        Counter::Asked,
        Counter::Told,
        Counter::Begun,
        Counter::Hung,
        Counter::Denied,
        Counter::Unsent,
    ];

    /// Its name, as it is printed and as docs/router.md lists it.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Forwarded => "forwarded",
            Counter::ForwardedBytes => "forwarded_bytes",
            Counter::Sent => "sent",
            Counter::Known => "known",
            Counter::Blackhole => "blackhole",
            Counter::NotToUs => "not_to_us",
            Counter::Malformed => "malformed",
            Counter::Checksum => "checksum",
            Counter::Options => "options",
            Counter::HopLimit => "hop_limit",
            Counter::TooBig => "too_big",
            Counter::Source => "source",
            Counter::Destination => "destination",
            Counter::Local => "local",
            Counter::NoRoute => "no_route",
            Counter::Refused => "refused",
            Counter::Neighbour => "neighbour",
            Counter::SameInterface => "same_interface",
            Counter::Elsewhere => "elsewhere",
            Counter::Firewall => "firewall",
            Counter::Off => "off",
            Counter::Beyond => "beyond",
            Counter::Asked => "asked",
            Counter::Told => "told",
            Counter::Begun => "begun",
            Counter::Hung => "hung",
            Counter::Denied => "denied",
            Counter::Unsent => "unsent",
        }
    }
}

/// What became of the packets of a [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Forwarded here; or their bytes.
    Forwarded,
    /// Dropped here.
    Dropped,
    /// Handed to the kernel, unchanged.
    Kernel,
}

impl Counter {
    /// What became of what it counts.
    pub fn fate(self) -> Fate {
        match self {
            Counter::Forwarded | Counter::ForwardedBytes | Counter::Sent | Counter::Known => {
                Fate::Forwarded
            }
            Counter::Blackhole | Counter::Denied | Counter::Unsent => Fate::Dropped,
            _ => Fate::Kernel,
        }
    }

    /// What it counts, in the words of docs/router.md.
    pub fn description(self) -> &'static str {
        match self {
            Counter::Forwarded => "packets that came in here and were forwarded",
            Counter::ForwardedBytes => "their bytes, without Ethernet headers",
            Counter::Sent => "packets that left here",
            Counter::Known => "packets of `forwarded` whose flow was known: no lookup",
            Counter::Blackhole => "dropped by a blackhole route, as the kernel would",
            Counter::NotToUs => "not to this interface's MAC address",
            Counter::Malformed => "version or lengths do not agree",
            Counter::Checksum => "IPv4's header checksum is wrong",
            Counter::Options => "IPv4 options, an IPv6 hop-by-hop header",
            Counter::HopLimit => "TTL or hop limit is used up",
            Counter::TooBig => "larger than the route or the next link takes",
            Counter::Source => {
                "a source that is not forwarded, or that reverse path filtering minds"
            }
            Counter::Destination => "multicast, broadcast, loopback, link-local",
            Counter::Local => "to an address of this host",
            Counter::NoRoute => "no route",
            Counter::Refused => "an unreachable or prohibit route",
            Counter::Neighbour => "the neighbour's address is not known yet",
            Counter::SameInterface => "would leave by the interface it came in by",
            Counter::Elsewhere => {
                "leaves by an interface that is not the router's, or that takes no redirected \
                 frames"
            }
            Counter::Firewall => {
                "a hook of netfilter (nftables, iptables, IPVS) sees forwarded packets"
            }
            Counter::Off => "forwarding is off here, or IPv6 is",
            Counter::Beyond => "the route or the packet needs what the fast path does not do",
            Counter::Asked => {
                "asks for an address on the link: ARP request, neighbour solicitation"
            }
            Counter::Told => "tells an address on the link: ARP reply, neighbour advertisement",
            Counter::Begun => {
                "a checksum that the sender has only begun, where the program runs in XDP"
            }
            Counter::Hung => "the router has hung for five seconds and follows no route",
            Counter::Denied => "dropped by a rule of the access list, or by its default",
            Counter::Unsent => {
                "dropped: the interface that it was to leave by has just gone, or memory is short"
            }
        }
    }
}

/// `struct counters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Counters {
    /// IPv4's, then IPv6's, in the order of [`Counter::ALL`].
    pub value: [u64; 2 * Counter::ALL.len()],
}

/// Words of 32 bits in a line.
pub const LINE_WORDS: usize = 16;
/// Rules of an access list at the most.
pub const ACL_RULES: usize = model::acl::RULES_MAX;
/// 64-bit words of a row for so many rules.
pub const ACL_ROW_WORDS: usize = ACL_RULES / 64;
/// Groups of 64 words of a row: each has a word of its summary.
pub const ACL_GROUPS: usize = ACL_ROW_WORDS / 64;
/// Places for interfaces that an access list names.
pub const ACL_INTERFACES: usize = 256;
/// Where one may be, from [`acl_place`] on.
pub const ACL_PROBES: usize = 8;
/// In the slot of a rule: it denies.
pub const ACL_DENIES: u32 = 0x8000_0000;
/// Behind the ports: a packet has none, or it is not known which.
pub const ACL_NO_PORT: usize = 65_536;
/// Entries of a table of protocols, the last for those that are not known.
pub const ACL_PROTOCOLS: usize = 257;

/// Where the program looks for an interface first.
pub fn acl_place(ifindex: u32) -> usize {
    (ifindex.wrapping_mul(0x9e37_79b1) >> 24) as usize
}

/// `struct acl_header`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AclHeader {
    /// Bits by `enum acl_field`: [`acl_field`].
    pub fields: u32,
    /// Slot where no rule takes a packet.
    pub no_rule: u32,
    /// Lines of tries' roots for sources of IPv4 and IPv6.
    pub source: [u32; 2],
    /// And for destinations.
    pub destination: [u32; 2],
    /// Lines of tables of lines of rows.
    pub protocols: u32,
    /// By port, [`ACL_NO_PORT`] and what follows.
    pub source_ports: u32,
    /// And by destination port, likewise.
    pub destination_ports: u32,
    /// Line of the interfaces' table.
    pub interfaces: u32,
    /// Line of the row for all other interfaces that packets come in by.
    pub other_in: u32,
    /// And that they leave by.
    pub other_out: u32,
    /// Where it is not known by which one.
    pub unknown_out: u32,
    /// Line of [`AclRule`]s.
    pub rules: u32,
    /// Counters of each CPU.
    pub slots: u32,
    /// Filling.
    pub pad: u32,
}

/// `enum acl_field`: which bit of [`AclHeader::fields`] is what.
pub mod acl_field {
    /// Source address.
    pub const SOURCE: u32 = 0;
    /// Destination address.
    pub const DESTINATION: u32 = 1;
    /// Protocol.
    pub const PROTOCOL: u32 = 2;
    /// Source port.
    pub const SOURCE_PORT: u32 = 3;
    /// Destination port.
    pub const DESTINATION_PORT: u32 = 4;
    /// Interface it came in by.
    pub const IN: u32 = 5;
    /// Interface it leaves by.
    pub const OUT: u32 = 6;
}

const _: () = assert!(size_of::<AclHeader>() == 4 * LINE_WORDS);
const _: () = assert!(size_of::<Path>() == 16 + 8 * PATH_MEMBERS);
const _: () = assert!(size_of::<Hop>() == 64);
const _: () = assert!(size_of::<InterfaceKey>() == 12);
const _: () = assert!(size_of::<Interface>() == 16);
const _: () = assert!(size_of::<Near>() == 32);
const _: () = assert!(size_of::<Egress>() == 24);
const _: () = assert!(size_of::<Config>() == 20);
const _: () = assert!(Counter::Unsent as usize + 1 == Counter::ALL.len());

#[cfg(test)]
mod tests {
    use super::{Counter, Fate};

    #[test]
    fn the_page_lists_the_counters() {
        let page = include_str!("../../../docs/router.md");
        let (_, table) = page
            .split_once("| counter | what |\n|---|---|\n")
            .expect("the table");
        let listed = table.lines().take_while(|line| line.starts_with('|'));
        let line = |counter: Counter| {
            let fate = match counter.fate() {
                Fate::Kernel => "to the kernel: ",
                Fate::Forwarded | Fate::Dropped => "",
            };
            format!("| `{}` | {fate}{} |", counter.name(), counter.description())
        };
        assert!(
            listed.eq(Counter::ALL.map(line)),
            "docs/router.md has other counters than the program"
        );
    }
}
