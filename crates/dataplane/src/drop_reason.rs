//! Why a frame was dropped. Each reason is one counter per port, one line in `docs/drops.md` and at
//! least one test that provokes it.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)+];

            /// The name in counters, traces and the APIs: snake_case.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)+ }
            }

            /// One sentence for a user.
            pub const fn description(self) -> &'static str {
                match self { $(DropReason::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The frame or packet ends inside its Ethernet, IP or layer-4 header.
    Truncated = "truncated",
    /// A length or version in the headers contradicts the others (IHL, total length, data offset,
    /// options).
    Malformed = "malformed",
    /// The headers are longer than the part of a frame that is judged, or IPv6 has too many
    /// extension headers.
    HeadersTooLong = "headers_too_long",
    /// A first fragment is too small to hold its transport header, or a later one could rewrite it.
    FragmentTiny = "fragment_tiny",
    /// The offload fields that came with the frame do not fit it.
    BadOffload = "bad_offload",
    /// The frame was left in a ring that the guest's VMM has turned off.
    RingOff = "ring_off",
    /// The NIC is a sniffer: it receives copies and can send nothing.
    SnifferSends = "sniffer_sends",
    /// The NIC's link is down: nothing comes from it and nothing goes to it.
    LinkDown = "link_down",
    /// The source MAC address is not one of the NIC's.
    MacSpoofed = "mac_spoofed",
    /// The source IP address is not one of the NIC's, or an ICMP error to another host quotes a
    /// packet that was not for the NIC.
    IpSpoofed = "ip_spoofed",
    /// An ARP message names a sender that is not the NIC.
    ArpSpoofed = "arp_spoofed",
    /// A neighbour discovery message names a target or link-layer address that is not the NIC's.
    NdSpoofed = "nd_spoofed",
    /// The NIC answers as a DHCP or DHCPv6 server and is not allowed to.
    DhcpServer = "dhcp_server",
    /// The NIC sends router advertisements or redirects and is not allowed to.
    RouterAdvertisement = "router_advertisement",
    /// Neither ARP, IPv4 nor IPv6, and not between two NICs that bypass filtering.
    Ethertype = "ethertype",
    /// No NIC of the network has the destination MAC address.
    NoDestination = "no_destination",
    /// The destination is the NIC that sent the frame.
    Hairpin = "hairpin",
    /// The source IP address is not one of the NIC's, and none of its groups has an egress rule
    /// that could allow it.
    ForeignSource = "foreign_source",
    /// An egress rule is needed, since a group of the sender has one or is missing, and none allows
    /// the packet.
    NoEgressRule = "no_egress_rule",
    /// No ingress rule of the receiver's groups allows the packet.
    NoIngressRule = "no_ingress_rule",
    /// TCP flags that no TCP sends together (SYN with FIN or RST, none at all).
    TcpBadFlags = "tcp_bad_flags",
    /// A TCP packet that belongs to no tracked connection and does not open one.
    TcpNotSyn = "tcp_not_syn",
    /// A TCP packet that cannot occur in the state its connection is in.
    TcpBadState = "tcp_bad_state",
    /// An SCTP packet that belongs to no tracked association and does not open one.
    SctpNotInit = "sctp_not_init",
    /// The NIC has as many tracked flows as it may have, and none of them can be given up.
    FlowShareFull = "flow_share_full",
    /// The flow table is full, or nearly and the NIC has its part of it, and none of its flows can
    /// be given up.
    FlowTableFull = "flow_table_full",
    /// More new connections a second than the NIC may begin, or others with it.
    ConnectionLimit = "connection_limit",
    /// More broadcast, multicast and unknown-unicast packets a second than the NIC may send or be
    /// sent.
    FloodLimit = "flood_limit",
    /// More bits a second than the NIC may be sent, and its queue is full.
    BitLimit = "bit_limit",
    /// More packets a second than the NIC may be sent, and its queue is full.
    PacketLimit = "packet_limit",
    /// To judge it more would have to be looked for in rules than is the part of its network's
    /// frames from the wire, or too many frames of its NIC wait to be judged.
    RuleLookups = "rule_lookups",
    /// A later fragment whose first fragment did not arrive in time, or more of them than are held
    /// back.
    FragmentWithoutFirst = "fragment_without_first",
    /// Fragments of the datagram overlap: the rest of it is dropped (RFC 5722).
    FragmentOverlap = "fragment_overlap",
    /// The datagram's first fragment was dropped, and so are the others.
    FragmentOfDropped = "fragment_of_dropped",
    /// Too many datagrams of the NIC, or pieces of one, are in reassembly.
    FragmentTableFull = "fragment_table_full",
    /// The outer headers of a frame from the wire end early or contradict each other.
    OuterMalformed = "outer_malformed",
    /// The outer IPv4 or UDP checksum of a frame from the wire is wrong.
    OuterChecksum = "outer_checksum",
    /// A fragment of an outer packet: tunnel endpoints must not fragment (RFC 7348).
    OuterFragment = "outer_fragment",
    /// The frame from the wire is not VXLAN to an address or multicast group of this host, or in
    /// another VLAN than that address.
    NotOurs = "not_ours",
    /// The frame from the wire is from a host that is not declared.
    UnknownHost = "unknown_endpoint",
    /// The frame from the wire is from a host that takes no part in its network.
    HostNotInVni = "endpoint_not_in_vni",
    /// The frame from the wire is for a network that has no NIC here.
    UnknownVni = "unknown_vni",
    /// The frame from the wire claims a MAC or IP address of a NIC of this host, or a MAC that is
    /// bound to another host.
    RemoteSpoofed = "remote_spoofed",
    /// The frame from the wire has or claims an IP address that is bound to another host
    /// (source, ARP sender, ND target).
    RemoteIpSpoofed = "remote_ip_spoofed",
    /// The frame from the wire is from a MAC that is bound to no host, in a network that does
    /// not learn.
    RemoteUnbound = "remote_unbound",
    /// The frame from the wire answers as a DHCP or DHCPv6 server, and its host is not trusted with
    /// that.
    RemoteDhcpServer = "remote_dhcp_server",
    /// The frame from the wire is a router advertisement or redirect, and its host is not trusted
    /// with that.
    RemoteRouter = "remote_router",
    /// The outer packet was marked for congestion and the inner one's transport would not
    /// understand (RFC 6040).
    EcnNotCapable = "ecn_not_capable",
    /// There is no route to the host that the frame is for.
    NoNextHop = "no_next_hop",
    /// The frame has waited for the next hop to its host, which has not answered.
    NextHopTimeout = "next_hop_timeout",
    /// The next hop to the host is being looked for, and too many frames wait for it or for
    /// others.
    NextHopQueueFull = "next_hop_queue_full",
    /// The frame is too large for the way to the host, or for the MTU of the NIC that it is for;
    /// its sender is told.
    MtuExceeded = "mtu_exceeded",
    /// The worker that has the receiver's queue is behind with what others hand over to it.
    HandoffFull = "handoff_full",
    /// Nothing is attached to the receiver's port, or its guest has not set it up.
    TargetDown = "target_down",
    /// The receiver has given no buffers to write into.
    RingFull = "ring_full",
    /// The receiver's buffers are too small for the frame.
    BufferTooSmall = "buffer_too_small",
    /// The receiver broke the protocol; its port is stopped.
    TargetBroken = "target_broken",
}

/// How many reasons there are.
pub const REASONS: usize = DropReason::ALL.len();

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reason is a line of the table with its name and its description, in this order.
    #[test]
    fn the_docs_list_what_there_is() {
        let docs = include_str!("../../../docs/drops.md");
        let mut sections = docs.split("\n## ");
        let switch = sections.find(|section| section.starts_with("The switch"));
        let rows: Vec<&str> = switch
            .unwrap_or_default()
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(rows.len(), REASONS);
        for (row, reason) in rows.iter().zip(DropReason::ALL) {
            let expected = format!("| `{}` | {} | ", reason.name(), reason.description());
            assert!(
                row.starts_with(&expected),
                "docs/drops.md: {row}\nexpected: {expected}"
            );
        }
    }

    #[test]
    fn names_are_distinct_snake_case_and_in_the_order_of_the_counters() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert!(
                reason
                    .name()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'_')
            );
            assert!(reason.description().ends_with('.'), "{reason:?}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REASONS);
    }
}
