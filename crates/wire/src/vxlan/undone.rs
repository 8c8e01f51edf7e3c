//! What the kernel has left undone in a packet that was on no wire: one that another kernel, or
//! this one, handed over a veth or a bridge as its own buffer. Its offloads would have been a NIC's
//! to do, and there is none.
//!
//! Where nobody tells (an XDP program sees the bytes alone) it is told by the bytes: a checksum
//! that is only begun is the sum of its pseudo-header, and a packet longer than the link takes is
//! several. Both could be chance in a packet that is whole: to complete a right checksum that
//! happens to be that sum gives the same checksum again.

use std::net::IpAddr;

use super::parse;
use crate::checksum;
use crate::offload::{Gso, Offload, PartialChecksum};
use crate::parse::{self as inner, ETHERNET_LEN, L4, Packet, ethertype, protocol};

/// Where the checksum is in a header of TCP and of UDP.
const TCP_FIELD: u16 = 16;
const UDP_FIELD: u16 = 6;
/// Bytes of a VLAN tag.
const TAG_LEN: usize = 4;

/// What is left to do in a VXLAN frame of `frame_len` bytes that begins with `head`, outer headers
/// and all, from a link of this MTU (bytes of IP packet). The outer UDP checksum, the inner
/// packet's, or to cut an inner TCP packet into segments that fit the link. A frame that is no
/// VXLAN, or broken, has nothing undone: it is for others to refuse. `None`: it is too long for the
/// link, and there is no telling how it is to be cut.
pub fn left_undone(head: &[u8], frame_len: usize, mtu: u32) -> Option<Offload> {
    let whole = Offload::default();
    let Some((l3, l4)) = outer_headers(head) else {
        return Some(whole);
    };
    let port = word(head, l4 + 2).unwrap_or_default();
    let Ok(outer) = parse(head, frame_len, port) else {
        return Some(whole);
    };
    let front = usize::from(outer.inner);
    let inner_len = outer.end as usize - front;
    let packet = head
        .get(front..)
        .and_then(|inner| inner::parse(inner, inner_len).ok());
    let begun = packet
        .as_ref()
        .and_then(|packet| begun(&head[front..], packet));
    let own = begun.map(|partial| PartialChecksum {
        start: partial.start + outer.inner,
        ..partial
    });
    let too_long = (outer.end as usize - l3).saturating_sub(mtu as usize);
    if too_long > 0 {
        let (packet, own) = (packet?, own?);
        let room = (mtu as usize + l3).checked_sub(front)?;
        return segments(&packet, room).map(|(gso, gso_size)| Offload {
            checksum: Some(own),
            gso,
            gso_size,
            ..whole
        });
    }
    let udp_len = outer.end - l4 as u32;
    let outer_begun = outer.sum.is_some()
        && word(head, l4 + 6) == Some(pseudo(outer.src, outer.dst, protocol::UDP, udp_len));
    let checksum = own.or(outer_begun.then_some(PartialChecksum {
        start: l4 as u16,
        offset: UDP_FIELD,
    }));
    Some(Offload { checksum, ..whole })
}

/// The offloads that the inner frame still asks for, of those of the whole frame; the inner frame
/// begins at `front`. What the outer headers asked for is no longer needed. `None`: the frame is to
/// be cut into several outer ones.
pub fn inner_undone(undone: &Offload, front: u16) -> Option<Offload> {
    let is_inner = |partial: &PartialChecksum| partial.start >= front;
    let checksum = undone
        .checksum
        .filter(is_inner)
        .map(|partial| PartialChecksum {
            start: partial.start - front,
            ..partial
        });
    if undone.gso != Gso::None && checksum.is_none() {
        return None;
    }
    Some(Offload {
        checksum,
        // Of the outer packet.
        data_valid: false,
        ..*undone
    })
}

/// Where the outer IP header and the UDP header are.
fn outer_headers(head: &[u8]) -> Option<(usize, usize)> {
    let tagged = word(head, ETHERNET_LEN - 2)? == ethertype::VLAN;
    let l3 = ETHERNET_LEN + if tagged { TAG_LEN } else { 0 };
    let first = *head.get(l3)?;
    Some((
        l3,
        l3 + if first >> 4 == 6 {
            40
        } else {
            usize::from(first & 15) * 4
        },
    ))
}

/// Where the checksum of the packet is, if it is only begun.
fn begun(frame: &[u8], packet: &Packet) -> Option<PartialChecksum> {
    let ip = packet.ip().filter(|ip| ip.fragment.is_none())?;
    let (offset, protocol) = match ip.l4_info {
        L4::Tcp { .. } => (TCP_FIELD, protocol::TCP),
        L4::Udp { .. } => (UDP_FIELD, protocol::UDP),
        _ => return None,
    };
    let sum = pseudo(ip.src(), ip.dst(), protocol, ip.l4_len() as u32);
    (word(frame, usize::from(ip.l4 + offset)) == Some(sum)).then_some(PartialChecksum {
        start: ip.l4,
        offset,
    })
}

/// How a TCP packet is cut into frames of `room` bytes.
fn segments(packet: &Packet, room: usize) -> Option<(Gso, u16)> {
    let ip = packet.ip()?;
    let L4::Tcp { header_len, .. } = ip.l4_info else {
        return None;
    };
    let size = room.checked_sub(usize::from(ip.l4) + usize::from(header_len))?;
    let gso = if ip.v6 { Gso::Tcp6 } else { Gso::Tcp4 };
    (size > 0).then_some((gso, size.min(u16::MAX.into()) as u16))
}

fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> u16 {
    // Both addresses were read from one header.
    checksum::fold(checksum::pseudo(src, dst, protocol, len).unwrap_or(0))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::build::{self, Builder};
    use crate::parse::TcpFlags;
    use crate::vxlan::{Ends, Outer, PORT, UdpChecksum};
    use crate::{Mac, Vni};

    fn packet(v6: bool) -> Builder {
        let frame = build::frame(Mac([2; 6]), Mac([4; 6]));
        match v6 {
            false => frame.ip([10, 0, 0, 1], [10, 0, 0, 2]),
            true => frame.ip([1u16, 2, 3, 4, 5, 6, 7, 8], [1u16, 2, 3, 4, 9, 10, 11, 12]),
        }
    }

    fn all_ends() -> [(Ends, Option<u16>); 3] {
        let v4 = Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let v6 = Ends::V6(Ipv6Addr::from(1u128 << 100), Ipv6Addr::from(2u128 << 100));
        [(v4, None), (v6, None), (v4, Some(5))]
    }

    fn wrapped(ends: Ends, vlan: Option<u16>, inner: &[u8], udp: UdpChecksum) -> (Vec<u8>, usize) {
        let mut outer = Outer::new((Mac([6; 6]), Mac([8; 6])), vlan, ends, 64, PORT, udp);
        outer.set_flow(Vni::new(7).unwrap(), 999, 0);
        let mut frame = vec![0xa5; outer.len()];
        outer.write(&mut frame, inner.len(), checksum::sum(inner));
        frame.extend_from_slice(inner);
        (frame, outer.len())
    }

    fn undone(frame: &[u8], mtu: u32) -> Option<Offload> {
        left_undone(&frame[..frame.len().min(256)], frame.len(), mtu)
    }

    #[test]
    fn an_inner_checksum_that_is_begun_is_seen_and_one_that_is_made_is_not() {
        for (ends, vlan) in all_ends() {
            for v6 in [false, true] {
                for tcp in [false, true] {
                    let segment = match tcp {
                        true => packet(v6).tcp(1, 2, TcpFlags::SYN),
                        false => packet(v6).udp(1, 2),
                    };
                    let segment = segment.payload(&[7; 301]);
                    let (whole, _) =
                        wrapped(ends, vlan, &segment.clone().build(), UdpChecksum::Full);
                    assert_eq!(undone(&whole, 1500), Some(Offload::default()));
                    let (inner, offload) = segment.partial_checksum().build_with_offload();
                    let (frame, front) = wrapped(ends, vlan, &inner, UdpChecksum::Full);
                    let found = undone(&frame, 1500).unwrap();
                    assert_eq!(inner_undone(&found, front as u16), Some(offload));
                }
            }
        }
    }

    #[test]
    fn an_outer_checksum_that_is_begun_is_done_with_when_the_outer_headers_go() {
        for (ends, vlan) in all_ends() {
            let inner = packet(false).echo_request(1, 2).payload(&[7; 30]).build();
            let (mut frame, front) = wrapped(ends, vlan, &inner, UdpChecksum::Full);
            let l4 = front - 16;
            let (src, dst) = match ends {
                Ends::V4(src, dst) => (IpAddr::from(src), IpAddr::from(dst)),
                Ends::V6(src, dst) => (src.into(), dst.into()),
            };
            let sum = pseudo(src, dst, protocol::UDP, (inner.len() + 16) as u32);
            frame[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
            let found = undone(&frame, 1500).unwrap();
            let expected = PartialChecksum {
                start: l4 as u16,
                offset: 6,
            };
            assert_eq!(found.checksum, Some(expected));
            assert_eq!(inner_undone(&found, front as u16), Some(Offload::default()));
            // Segments of the outer packet are several packets.
            let several = Offload {
                gso: Gso::Udp,
                gso_size: 100,
                ..found
            };
            assert_eq!(inner_undone(&several, front as u16), None);
        }
    }

    #[test]
    fn a_packet_that_is_too_long_is_cut_as_the_link_has_it() {
        for (ends, vlan) in all_ends() {
            for v6 in [false, true] {
                let large = packet(v6).tcp(1, 2, TcpFlags::ACK).payload(&[7; 20_000]);
                let (inner, offload) = large.gso(1000).build_with_offload();
                let (frame, front) = wrapped(ends, vlan, &inner, UdpChecksum::Zero);
                let found = inner_undone(&undone(&frame, 1500).unwrap(), front as u16).unwrap();
                let headers = if v6 { 74 } else { 54 };
                let link = if vlan.is_some() { 1518 } else { 1514 };
                let expected = Offload {
                    gso_size: (link - front - headers) as u16,
                    ..offload
                };
                assert_eq!(found, expected);
                assert_eq!(undone(&frame, 65_000).unwrap().gso, Gso::None);
                // Whoever has made its checksum meant it as it is; where datagrams begin nobody can
                // tell.
                let made = packet(v6)
                    .tcp(1, 2, TcpFlags::ACK)
                    .payload(&[7; 20_000])
                    .build();
                let datagrams = packet(v6)
                    .udp(1, 2)
                    .payload(&[7; 20_000])
                    .partial_checksum();
                for inner in [made, datagrams.build()] {
                    assert_eq!(
                        undone(&wrapped(ends, vlan, &inner, UdpChecksum::Zero).0, 1500),
                        None
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_vxlan_has_nothing_undone() {
        let other = packet(false)
            .udp(1, 2)
            .payload(&[0; 20])
            .partial_checksum()
            .build();
        for len in 0..=other.len() {
            assert_eq!(
                left_undone(&other[..len], len, 1500),
                Some(Offload::default())
            );
        }
        let (frame, front) = wrapped(all_ends()[0].0, None, &other, UdpChecksum::Full);
        for len in 0..front {
            assert_eq!(
                left_undone(&frame[..len], len, 1500),
                Some(Offload::default())
            );
        }
    }
}
