//! Why a frame is malformed. Each variant is a reason to drop, named in the data plane's counters.

use std::fmt;

/// What is wrong with a frame's headers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ParseError {
    /// The frame is shorter than an Ethernet header.
    TruncatedEthernet,
    /// The ARP packet is cut short, or not one for IPv4 over Ethernet.
    Arp,
    /// The frame ends inside the fixed IP header.
    TruncatedIp,
    /// The IP version does not agree with the EtherType.
    IpVersion,
    /// The IPv4 header length is below 20 bytes or beyond the packet.
    Ipv4HeaderLength,
    /// The IP total (or payload) length is beyond the frame or too small for the header.
    IpLength,
    /// An IPv4 option does not fit into the header.
    Ipv4Options,
    /// An IPv6 extension header runs beyond the packet, holds an option that does not fit, or is
    /// where none may be.
    Ipv6Extension,
    /// The chain of IPv6 extension headers is longer than the bound.
    Ipv6TooManyExtensions,
    /// The packet is an IPv6 jumbogram (RFC 2675).
    Ipv6Jumbogram,
    /// The headers are longer than the part of a frame that is judged.
    HeadersTooLong,
    /// A fragment is empty, or not the last one and not a multiple of 8 bytes.
    FragmentLength,
    /// A fragment ends beyond the largest packet (65,535 bytes).
    FragmentBeyondEnd,
    /// A first fragment does not hold all headers, or a later one overlaps where they have to be
    /// (RFC 1858, 3128, 7112).
    TinyFragment,
    /// The packet ends inside its layer-4 header.
    TruncatedL4,
    /// The TCP data offset is below 20 bytes or beyond the packet.
    TcpHeaderLength,
    /// A TCP option does not fit into the header.
    TcpOptions,
    /// The UDP length is below 8 bytes or beyond the packet.
    UdpLength,
    /// A neighbour discovery message is not valid by RFC 4861 (hop limit, code, length, options),
    /// or is a fragment (RFC 6980).
    NeighbourDiscovery,
    /// The checksum to complete or the segments to cut do not suit the frame's headers.
    Offload,
}

impl ParseError {
    /// Every variant, in order of declaration.
    pub const ALL: [ParseError; 20] = [
        ParseError::TruncatedEthernet,
        ParseError::Arp,
        ParseError::TruncatedIp,
        ParseError::IpVersion,
        ParseError::Ipv4HeaderLength,
        ParseError::IpLength,
        ParseError::Ipv4Options,
        ParseError::Ipv6Extension,
        ParseError::Ipv6TooManyExtensions,
        ParseError::Ipv6Jumbogram,
        ParseError::HeadersTooLong,
        ParseError::FragmentLength,
        ParseError::FragmentBeyondEnd,
        ParseError::TinyFragment,
        ParseError::TruncatedL4,
        ParseError::TcpHeaderLength,
        ParseError::TcpOptions,
        ParseError::UdpLength,
        ParseError::NeighbourDiscovery,
        ParseError::Offload,
    ];

    fn sentence(self) -> &'static str {
        match self {
            ParseError::TruncatedEthernet => "the frame is shorter than an Ethernet header",
            ParseError::Arp => "the ARP packet is cut short or not one for IPv4 over Ethernet",
            ParseError::TruncatedIp => "the frame ends inside the fixed IP header",
            ParseError::IpVersion => "the IP version does not agree with the EtherType",
            ParseError::Ipv4HeaderLength => {
                "the IPv4 header length is below 20 bytes or beyond the packet"
            }
            ParseError::IpLength => "the IP length is beyond the frame or too small for the header",
            ParseError::Ipv4Options => "an IPv4 option does not fit into the header",
            ParseError::Ipv6Extension => {
                "an IPv6 extension header is cut short, ill-formed or misplaced"
            }
            ParseError::Ipv6TooManyExtensions => {
                "the chain of IPv6 extension headers is longer than the bound"
            }
            ParseError::Ipv6Jumbogram => "the packet is an IPv6 jumbogram",
            ParseError::HeadersTooLong => {
                "the headers are longer than the part of a frame that is judged"
            }
            ParseError::FragmentLength => {
                "a fragment is empty, or not the last and not a multiple of 8 bytes"
            }
            ParseError::FragmentBeyondEnd => "a fragment ends beyond the largest packet",
            ParseError::TinyFragment => {
                "a first fragment does not hold all headers, or a later one overlaps them"
            }
            ParseError::TruncatedL4 => "the packet ends inside its layer-4 header",
            ParseError::TcpHeaderLength => {
                "the TCP data offset is below 20 bytes or beyond the packet"
            }
            ParseError::TcpOptions => "a TCP option does not fit into the header",
            ParseError::UdpLength => "the UDP length is below 8 bytes or beyond the packet",
            ParseError::NeighbourDiscovery => "a neighbour discovery message is not valid",
            ParseError::Offload => "the checksum or segments left to do do not suit the headers",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl std::error::Error for ParseError {}
