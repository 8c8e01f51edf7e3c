//! The one check of all lengths in front of an inner frame from the wire.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{FLAG_VNI, VXLAN_LEN};
use crate::Vni;
use crate::checksum;
use crate::parse::{ETHERNET_LEN, ethertype, protocol};

/// The ID in a tag beside the priority (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

/// What a frame from the wire carries, and between whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The endpoint that sent it.
    pub src: IpAddr,
    /// The endpoint, or group of endpoints, that it is for.
    pub dst: IpAddr,
    /// The ID of the VLAN tag in front; 0: there is none, or it tells a priority alone.
    pub vlan: u16,
    /// The inner frame's network.
    pub vni: Vni,
    /// TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// The UDP source port.
    pub sport: u16,
    /// Where the inner frame begins, in the whole frame.
    pub inner: u16,
    /// Where it ends; what is behind is Ethernet padding.
    pub end: u32,
    /// The sum of pseudo-header, UDP and VXLAN header when the sender has made a UDP checksum: with
    /// that of the inner frame added it folds to 0xffff.
    pub sum: Option<u32>,
}

impl Received {
    /// True when the sender made no UDP checksum, or it is right for an inner frame of this sum.
    pub fn verify(&self, inner_sum: impl FnOnce() -> u32) -> bool {
        self.sum
            .is_none_or(|sum| checksum::fold(checksum::add(sum, inner_sum())) == 0xffff)
    }
}

/// Why a frame from the wire has no inner frame for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OuterError {
    /// It ends inside its headers, or a length in them contradicts the others.
    Malformed,
    /// The IPv4 header's checksum is wrong.
    Checksum,
    /// A fragment: endpoints do not fragment (RFC 7348, section 4.3), and reassembly is not done
    /// here.
    Fragment,
    /// Not IP, not UDP, or to another port.
    NotVxlan,
    /// VXLAN without a valid VNI (the I flag is not set), or another protocol's flags in its place.
    NoVni,
}

impl fmt::Display for OuterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OuterError::Malformed => "the outer headers are cut short or contradict each other",
            OuterError::Checksum => "the outer IPv4 header's checksum is wrong",
            OuterError::Fragment => "a fragment of an outer packet",
            OuterError::NotVxlan => "not UDP to the VXLAN port",
            OuterError::NoVni => "VXLAN without a VNI",
        })
    }
}

impl std::error::Error for OuterError {}

/// Looks through the headers in front of an inner frame: Ethernet, at most one 802.1Q tag, IPv4
/// (options are skipped) or IPv6 (without extension headers: endpoints send none), UDP to `port`,
/// VXLAN. `head` holds the first bytes of a frame of `frame_len` bytes. Reserved fields are not
/// looked at (RFC 7348, section 5). Addresses and VLAN are not judged, and the UDP checksum is left
/// to [`Received::verify`].
#[inline]
pub fn parse(head: &[u8], frame_len: usize, port: u16) -> Result<Received, OuterError> {
    let head = head.get(..frame_len).unwrap_or(head);
    let mut l3 = ETHERNET_LEN;
    let mut kind = word(head, l3 - 2)?;
    let mut vlan = 0;
    if kind == ethertype::VLAN {
        vlan = word(head, l3)? & VLAN_ID;
        kind = word(head, l3 + 2)?;
        l3 += 4;
    }
    let ip = match kind {
        ethertype::IPV4 => parse_v4(head, l3)?,
        ethertype::IPV6 => parse_v6(head, l3)?,
        _ => return Err(OuterError::NotVxlan),
    };
    if ip.end > frame_len {
        return Err(OuterError::Malformed);
    }
    let udp: &[u8; 8 + VXLAN_LEN] = array(head, ip.l4)?;
    if u16::from_be_bytes([udp[2], udp[3]]) != port {
        return Err(OuterError::NotVxlan);
    }
    let udp_len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let inner = ip.l4 + udp.len();
    if udp_len < udp.len() || ip.l4 + udp_len > ip.end {
        return Err(OuterError::Malformed);
    }
    if udp[8] & FLAG_VNI == 0 {
        return Err(OuterError::NoVni);
    }
    let vni = Vni::new(u32::from_be_bytes([0, udp[12], udp[13], udp[14]]))
        .map_err(|_| OuterError::NoVni)?;
    let has_checksum = udp[6] | udp[7] != 0;
    Ok(Received {
        src: ip.src,
        dst: ip.dst,
        vlan,
        vni,
        tos: ip.tos,
        sport: u16::from_be_bytes([udp[0], udp[1]]),
        inner: inner as u16,
        end: (ip.l4 + udp_len) as u32,
        sum: has_checksum.then(|| {
            let pseudo = match (ip.src, ip.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    checksum::pseudo_v4(src, dst, protocol::UDP, udp_len as u32)
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    checksum::pseudo_v6(src, dst, protocol::UDP, udp_len as u32)
                }
                // Both were read from one header.
                _ => 0,
            };
            checksum::add(pseudo, checksum::sum(udp))
        }),
    })
}

/// What the outer IP header says.
struct Ip {
    src: IpAddr,
    dst: IpAddr,
    tos: u8,
    l4: usize,
    end: usize,
}

#[inline]
fn parse_v4(head: &[u8], l3: usize) -> Result<Ip, OuterError> {
    let ip: &[u8; 20] = array(head, l3)?;
    let header_len = usize::from(ip[0] & 15) * 4;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    if ip[0] >> 4 != 4 || header_len < 20 || total_len < header_len {
        return Err(OuterError::Malformed);
    }
    let header = head.get(l3..l3 + header_len).ok_or(OuterError::Malformed)?;
    if checksum::checksum(header) != 0 {
        return Err(OuterError::Checksum);
    }
    if u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
        return Err(OuterError::Fragment);
    }
    if ip[9] != protocol::UDP {
        return Err(OuterError::NotVxlan);
    }
    Ok(Ip {
        src: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(),
        dst: Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]).into(),
        tos: ip[1],
        l4: l3 + header_len,
        end: l3 + total_len,
    })
}

#[inline]
fn parse_v6(head: &[u8], l3: usize) -> Result<Ip, OuterError> {
    let ip: &[u8; 40] = array(head, l3)?;
    if ip[0] >> 4 != 6 {
        return Err(OuterError::Malformed);
    }
    match ip[6] {
        protocol::UDP => {}
        44 => return Err(OuterError::Fragment),
        _ => return Err(OuterError::NotVxlan),
    }
    let address = |at: usize| {
        let octets = ip[at..].first_chunk::<16>();
        Ipv6Addr::from(octets.copied().unwrap_or_default()).into()
    };
    Ok(Ip {
        src: address(8),
        dst: address(24),
        tos: ip[0] << 4 | ip[1] >> 4,
        l4: l3 + 40,
        end: l3 + 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
    })
}

#[inline]
fn array<const N: usize>(head: &[u8], at: usize) -> Result<&[u8; N], OuterError> {
    head.get(at..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(OuterError::Malformed)
}

#[inline]
fn word(head: &[u8], at: usize) -> Result<u16, OuterError> {
    array(head, at).map(|bytes| u16::from_be_bytes(*bytes))
}
