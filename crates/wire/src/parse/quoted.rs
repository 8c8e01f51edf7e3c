//! The packet that an ICMP error quotes (RFC 792; RFC 4443, section 2.4 (c)): enough of it to find
//! its flow.

use std::net::IpAddr;

use super::head::Head;
use super::ip::{address, bits_v6, map_v4};
use super::l4::{is_query_v4, is_query_v6};
use super::{ParseError, extensions, protocol};

/// A packet as far as an ICMP error shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quoted {
    src: u128,
    dst: u128,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// The protocol after all extension headers.
    pub protocol: u8,
    /// What tells its flow from others between the two addresses.
    pub l4: QuotedL4,
}

/// What the first eight bytes of a quoted layer-4 header say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotedL4 {
    /// TCP, UDP, SCTP.
    Ports {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier of queries; else 0.
        id: u16,
    },
    /// Any other protocol.
    Other,
}

impl Quoted {
    /// The source address of the quoted packet: who the error is sent to.
    pub fn src(&self) -> IpAddr {
        address(self.v6, self.src)
    }

    /// The destination address of the quoted packet.
    pub fn dst(&self) -> IpAddr {
        address(self.v6, self.dst)
    }

    /// The source address as a number; see [`super::IpPacket::src_bits`].
    pub fn src_bits(&self) -> u128 {
        self.src
    }

    /// The destination address as a number; see [`super::IpPacket::src_bits`].
    pub fn dst_bits(&self) -> u128 {
        self.dst
    }
}

/// Reads the packet quoted in `message`, the bytes behind the 8-byte header of an ICMP error
/// ([`super::IpPacket::message`] gives them).
///
/// A quote is cut wherever its sender liked: its lengths are not held against it, but the IP
/// header, its extensions and eight bytes of layer 4 have to be there. A later fragment shows no
/// ports: [`ParseError::TruncatedL4`].
pub fn quoted(message: &[u8], v6: bool) -> Result<Quoted, ParseError> {
    // There is nothing behind what can be seen: whatever is missing is missing for good.
    let head = Head::new(message, message.len());
    let (src, dst, protocol, l4) = if v6 {
        quoted_v6(head)?
    } else {
        quoted_v4(head)?
    };
    let l4 = match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            let &[s0, s1, d0, d1, ..] = head.array::<8>(l4, ParseError::TruncatedL4)?;
            QuotedL4::Ports {
                sport: u16::from_be_bytes([s0, s1]),
                dport: u16::from_be_bytes([d0, d1]),
            }
        }
        protocol::ICMP | protocol::ICMPV6 if (protocol == protocol::ICMPV6) == v6 => {
            let &[kind, code, _, _, i0, i1, ..] = head.array::<8>(l4, ParseError::TruncatedL4)?;
            let query = if v6 {
                is_query_v6(kind)
            } else {
                is_query_v4(kind)
            };
            QuotedL4::Icmp {
                kind,
                code,
                id: if query {
                    u16::from_be_bytes([i0, i1])
                } else {
                    0
                },
            }
        }
        _ => QuotedL4::Other,
    };
    Ok(Quoted {
        src,
        dst,
        v6,
        protocol,
        l4,
    })
}

fn quoted_v4(head: Head) -> Result<(u128, u128, u8, usize), ParseError> {
    let ip: &[u8; 20] = head.array(0, ParseError::TruncatedIp)?;
    if ip[0] >> 4 != 4 {
        return Err(ParseError::IpVersion);
    }
    let header_len = usize::from(ip[0] & 15) * 4;
    if header_len < 20 {
        return Err(ParseError::Ipv4HeaderLength);
    }
    if u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff != 0 {
        return Err(ParseError::TruncatedL4);
    }
    let src = map_v4([ip[12], ip[13], ip[14], ip[15]]);
    let dst = map_v4([ip[16], ip[17], ip[18], ip[19]]);
    Ok((src, dst, ip[9], header_len))
}

fn quoted_v6(head: Head) -> Result<(u128, u128, u8, usize), ParseError> {
    let ip: &[u8; 40] = head.array(0, ParseError::TruncatedIp)?;
    if ip[0] >> 4 != 6 {
        return Err(ParseError::IpVersion);
    }
    let chain = extensions::walk(head, 40, ip[6])?;
    if chain.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return Err(ParseError::TruncatedL4);
    }
    Ok((bits_v6(ip, 8), bits_v6(ip, 24), chain.protocol, chain.l4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{self, Builder};
    use crate::{Mac, parse};

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn v4() -> Builder {
        build::frame(A, B).ip([10, 0, 0, 1], [10, 0, 0, 2])
    }

    fn v6() -> Builder {
        build::frame(A, B).ip(A.link_local(), B.link_local())
    }

    /// Reads the first `len` bytes of the packet as an error from B to A quotes them.
    fn quote(packet: Builder, len: usize) -> Result<Quoted, ParseError> {
        let packet = packet.build();
        let is_v6 = packet[12] == 0x86;
        let error = if is_v6 {
            v6().icmp(2, 0, 1280)
        } else {
            v4().icmp(3, 4, 1400)
        };
        let error = error
            .payload(&packet[14..][..len.min(packet.len() - 14)])
            .build();
        let parsed = parse::parse(&error, error.len()).unwrap();
        let ip = parsed.ip().unwrap();
        assert!(ip.is_icmp_error());
        quoted(ip.message(&error), ip.v6)
    }

    #[test]
    fn ports_of_both_families() {
        let (sport, dport) = (5000, 53);
        let ports = QuotedL4::Ports { sport, dport };
        for len in [28, 1000] {
            let said = quote(v4().udp(sport, dport).payload(&[0; 600]), len).unwrap();
            let expected = Quoted {
                src: 0xffff_0a00_0001,
                dst: 0xffff_0a00_0002,
                v6: false,
                protocol: 17,
                l4: ports,
            };
            assert_eq!(said, expected);
            assert_eq!(
                (said.src(), said.dst()),
                ([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            );
        }
        let extended = v6()
            .extension(60, &[1, 4])
            .sctp(sport, dport, 1, 0)
            .payload(&[0; 600]);
        let (src, dst) = (A.link_local().to_bits(), B.link_local().to_bits());
        assert_eq!(
            quote(extended, 56),
            Ok(Quoted {
                src,
                dst,
                v6: true,
                protocol: 132,
                l4: ports
            })
        );
    }

    #[test]
    fn icmp_and_others() {
        let l4 = |packet| quote(packet, 1000).map(|quoted| quoted.l4);
        assert_eq!(
            l4(v4().echo_request(7, 1)),
            Ok(QuotedL4::Icmp {
                kind: 8,
                code: 0,
                id: 7
            })
        );
        assert_eq!(
            l4(v6().echo_request(7, 1)),
            Ok(QuotedL4::Icmp {
                kind: 128,
                code: 0,
                id: 7
            })
        );
        assert_eq!(l4(v4().protocol(47)), Ok(QuotedL4::Other));
        assert_eq!(l4(v4().protocol(58).payload(&[0; 8])), Ok(QuotedL4::Other));
    }

    #[test]
    fn quotes_that_show_no_flow() {
        assert_eq!(quote(v4().udp(1, 2), 19), Err(ParseError::TruncatedIp));
        assert_eq!(quote(v6().udp(1, 2), 39), Err(ParseError::TruncatedIp));
        assert_eq!(quote(v4().udp(1, 2), 27), Err(ParseError::TruncatedL4));
        assert_eq!(quote(v6().udp(1, 2), 47), Err(ParseError::TruncatedL4));
        let later = &build::fragments(&v4().udp(1, 2).payload(&[0; 64]).build(), 32, 1)[1];
        assert_eq!(quoted(&later[14..], false), Err(ParseError::TruncatedL4));
        let later = &build::fragments(&v6().udp(1, 2).payload(&[0; 64]).build(), 32, 1)[1];
        assert_eq!(quoted(&later[14..], true), Err(ParseError::TruncatedL4));
        let v6_in_v4 = v6().udp(1, 2).build();
        assert_eq!(quoted(&v6_in_v4[14..], false), Err(ParseError::IpVersion));
        let mut short = v4().udp(1, 2).build();
        short[14] = 0x44;
        assert_eq!(
            quoted(&short[14..], false),
            Err(ParseError::Ipv4HeaderLength)
        );
    }
}
