//! The headers in front of an inner frame, ready to be written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{FLAG_VNI, VXLAN_LEN};
use crate::bytes::{copy_header, put16};
use crate::checksum;
use crate::parse::{ETHERNET_LEN, ethertype, protocol};
use crate::{Mac, Vni};

/// The longest headers: Ethernet, one 802.1Q tag, IPv6, UDP, VXLAN.
pub const OUTER_MAX: usize = ETHERNET_LEN + 4 + 40 + 8 + VXLAN_LEN;

/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// Both ends of the tunnel, of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ends {
    /// Source and destination over IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// Source and destination over IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    /// From `src` to `dst`; `None` when they are not of one family.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Ends> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Ends::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Ends::V6(src, dst)),
            _ => None,
        }
    }

    /// The other way.
    pub fn back(self) -> Ends {
        match self {
            Ends::V4(src, dst) => Ends::V4(dst, src),
            Ends::V6(src, dst) => Ends::V6(dst, src),
        }
    }
}

/// Whether the outer UDP checksum is computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum UdpChecksum {
    /// Zero: none. What RFC 7348 asks for over IPv4, and what RFC 6935 and 6936 allow tunnels over
    /// IPv6: the inner frame has checksums of its own.
    #[default]
    Zero,
    /// Over all of the datagram: costs a sum of the whole inner frame.
    Full,
}

/// Everything in front of an inner frame: a template of the bytes.
///
/// Lengths and checksums are zero in it; [`write`](Outer::write) fills them in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    bytes: [u8; OUTER_MAX],
    len: u8,
    l3: u8,
    v6: bool,
    checksum: UdpChecksum,
    /// Sum of the IPv4 header without the TOS and the length.
    ip_sum: u32,
    /// Sum of the pseudo-header without the length.
    pseudo_sum: u32,
}

impl Outer {
    /// The headers towards one next hop: Ethernet from `macs.0` to `macs.1`, tagged with the TCI
    /// `vlan` if there is one, IP between `ends` with this TTL (hop limit), UDP to `port`. VNI,
    /// source port and TOS are 0 until [`set_flow`](Outer::set_flow). IPv4 has DF set and no
    /// identification (RFC 6864): a tunnel endpoint must not fragment (RFC 7348, section 4.3).
    pub fn new(
        macs: (Mac, Mac),
        vlan: Option<u16>,
        ends: Ends,
        ttl: u8,
        port: u16,
        checksum: UdpChecksum,
    ) -> Outer {
        let mut outer = Outer {
            bytes: [0; OUTER_MAX],
            len: 0,
            l3: 0,
            v6: matches!(ends, Ends::V6(..)),
            checksum,
            ip_sum: 0,
            pseudo_sum: 0,
        };
        outer.push(&macs.1.0);
        outer.push(&macs.0.0);
        if let Some(tci) = vlan {
            outer.push(&ethertype::VLAN.to_be_bytes());
            outer.push(&tci.to_be_bytes());
        }
        match ends {
            Ends::V4(src, dst) => {
                outer.push(&ethertype::IPV4.to_be_bytes());
                outer.l3 = outer.len;
                outer.push(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, ttl, protocol::UDP, 0, 0]);
                outer.push(&src.octets());
                outer.push(&dst.octets());
                outer.ip_sum = checksum::sum(&outer.bytes[usize::from(outer.l3)..outer.len()]);
                outer.pseudo_sum = checksum::pseudo_v4(src, dst, protocol::UDP, 0);
            }
            Ends::V6(src, dst) => {
                outer.push(&ethertype::IPV6.to_be_bytes());
                outer.l3 = outer.len;
                outer.push(&[0x60, 0, 0, 0, 0, 0, protocol::UDP, ttl]);
                outer.push(&src.octets());
                outer.push(&dst.octets());
                outer.pseudo_sum = checksum::pseudo_v6(src, dst, protocol::UDP, 0);
            }
        }
        outer.push(&[0, 0]);
        outer.push(&port.to_be_bytes());
        outer.push(&[0; 4]);
        outer.push(&[FLAG_VNI, 0, 0, 0, 0, 0, 0, 0]);
        outer
    }

    /// Sets what tells flows apart: the network, the UDP source port and the TOS (traffic class).
    #[inline]
    pub fn set_flow(&mut self, vni: Vni, sport: u16, tos: u8) {
        let (udp, l3) = (self.udp(), usize::from(self.l3));
        put16(&mut self.bytes, udp, sport);
        let [_, a, b, c] = vni.id().to_be_bytes();
        self.bytes[udp + 12] = a;
        self.bytes[udp + 13] = b;
        self.bytes[udp + 14] = c;
        if self.v6 {
            self.bytes[l3] = 0x60 | tos >> 4;
            self.bytes[l3 + 1] = tos << 4;
        } else {
            self.bytes[l3 + 1] = tos;
        }
    }

    /// The template: lengths and checksums are zero.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Where the outer packet is sent to.
    pub fn destination(&self) -> IpAddr {
        let l3 = usize::from(self.l3);
        match self.v6 {
            true => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&self.bytes[l3 + 24..l3 + 40]);
                Ipv6Addr::from(octets).into()
            }
            false => {
                let mut octets = [0; 4];
                octets.copy_from_slice(&self.bytes[l3 + 16..l3 + 20]);
                Ipv4Addr::from(octets).into()
            }
        }
    }

    /// Bytes of all headers together.
    #[inline]
    #[allow(
        clippy::len_without_is_empty,
        reason = "headers of no bytes do not exist"
    )]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Bytes by which an outer IP packet is longer than the inner frame: IP, UDP and VXLAN headers.
    #[inline]
    pub fn ip_overhead(&self) -> usize {
        self.len() - usize::from(self.l3)
    }

    /// [`write`](Outer::write) needs the sum of the inner frame.
    #[inline]
    pub fn needs_sum(&self) -> bool {
        self.checksum == UdpChecksum::Full
    }

    /// Writes the headers for an inner frame of `inner_len` bytes to the first [`len`](Outer::len)
    /// bytes of `out`, which are there. `inner_sum` is the inner frame's ones'-complement sum
    /// ([`checksum::sum`]), looked at only when [`needs_sum`](Outer::needs_sum) says so. A length
    /// that does not fit its field is cut: the caller has held the frame against the MTU.
    #[inline]
    pub fn write(&self, out: &mut [u8], inner_len: usize, inner_sum: u32) {
        let out = &mut out[..self.len()];
        copy_header(&self.bytes[..self.len()], out);
        // Nothing of `out` is read: see `segment`.
        let (front, udp) = out.split_at_mut(self.udp());
        let l3 = usize::from(self.l3);
        let ip = &mut front[l3..];
        let udp_len = (UDP_LEN + VXLAN_LEN + inner_len).min(0xffff) as u16;
        if self.v6 {
            put16(ip, 4, udp_len);
        } else {
            let total_len = udp_len.saturating_add(ip.len() as u16);
            put16(ip, 2, total_len);
            let tos = self.bytes[l3 + 1];
            put16(
                ip,
                10,
                !checksum::fold(self.ip_sum + u32::from(tos) + u32::from(total_len)),
            );
        }
        put16(udp, 4, udp_len);
        if self.needs_sum() {
            let headers = checksum::sum(&self.bytes[self.udp()..self.len()]);
            let sum = checksum::add(self.pseudo_sum + 2 * u32::from(udp_len), headers);
            put16(udp, 6, checksum::finish(checksum::add(sum, inner_sum)));
        }
    }

    /// Where the UDP header begins.
    #[inline]
    fn udp(&self) -> usize {
        self.len() - UDP_LEN - VXLAN_LEN
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = self.len();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl std::fmt::Debug for Outer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outer")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
