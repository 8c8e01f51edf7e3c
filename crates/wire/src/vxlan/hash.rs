//! The flow of an inner frame as a number.
//!
//! RFC 7348, section 5 wants the UDP source port to be made of the inner headers, so that routers
//! spread flows over their paths and network cards over their queues. Both directions of a flow
//! give the same number, here and on every host: they take the same pair of queues and, where
//! routers hash alike, the same path, and a capture of one finds the other. It is not keyed, so
//! that a restart does not move flows to other paths; a guest that makes all its flows collide has
//! them on one path, which is its own loss.

use crate::parse::{IpPacket, L4, Net, Packet, Plain, mac_bits};

/// The least of the ports that [`source_port`] gives (the dynamic ones, RFC 6335).
const FIRST_PORT: u16 = 49_152;

/// Of a packet that was parsed: MAC addresses alone when it is not IP, addresses alone when it has
/// no ports or is a fragment (its other fragments have none).
pub fn flow_hash(packet: &Packet) -> u32 {
    match &packet.net {
        Net::Ip(ip) => ip_hash(ip),
        _ => mix(mac_bits(packet.src) ^ mac_bits(packet.dst)),
    }
}

fn ip_hash(ip: &IpPacket) -> u32 {
    let ports = match ip.l4_info {
        _ if ip.fragment.is_some() => 0,
        L4::Tcp { sport, dport, .. } | L4::Udp { sport, dport } | L4::Sctp { sport, dport, .. } => {
            sport ^ dport
        }
        _ => 0,
    };
    let addresses = ip.src_bits() ^ ip.dst_bits();
    mix(fold(addresses, ip.v6) ^ u64::from(ports) << 32)
}

/// The hash of a plain packet: the number that [`flow_hash`] gives for it.
#[inline(always)]
pub fn plain_hash<const V6: bool>(plain: &Plain) -> u32 {
    let [a, b, c, d] = plain.ip;
    let addresses = match V6 {
        false => (a >> 32) ^ (a & 0xffff_ffff),
        true => (a ^ c) ^ (b ^ d).rotate_left(17),
    };
    let ports = (plain.ports >> 16) ^ (plain.ports & 0xffff);
    mix(addresses ^ u64::from(ports) << 32)
}

/// The outer UDP source port of a flow: one of the 16,384 dynamic ones.
#[inline(always)]
pub fn source_port(hash: u32) -> u16 {
    FIRST_PORT | (hash >> 18) as u16
}

fn fold(addresses: u128, v6: bool) -> u64 {
    match v6 {
        false => (addresses as u64) & 0xffff_ffff,
        true => (addresses >> 64) as u64 ^ (addresses as u64).rotate_left(17),
    }
}

#[inline(always)]
fn mix(bits: u64) -> u32 {
    let once = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((once ^ once >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::IpAddr;

    use super::*;
    use crate::Mac;
    use crate::build::{self, Builder};
    use crate::parse::{self, TcpFlags};

    fn hash(frame: &Builder) -> u32 {
        let frame = frame.build();
        flow_hash(&parse::parse(&frame, frame.len()).unwrap())
    }

    #[test]
    fn both_directions_and_both_ways_to_it_give_the_same() {
        let (a, b) = (Mac([2; 6]), Mac([4; 6]));
        let families: [[IpAddr; 2]; 2] = [
            [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
            [
                [1u16, 2, 3, 4, 5, 6, 7, 8].into(),
                [1u16, 2, 3, 4, 9, 10, 11, 12].into(),
            ],
        ];
        for [src, dst] in families {
            let there = build::frame(a, b)
                .ip(src, dst)
                .tcp(40_000, 80, TcpFlags::ACK);
            let back = build::frame(b, a)
                .ip(dst, src)
                .tcp(80, 40_000, TcpFlags::ACK);
            assert_eq!(hash(&there), hash(&back));
            let bytes = there.build();
            let plain = match src {
                IpAddr::V4(_) => {
                    plain_hash::<false>(&parse::plain::<false>(&bytes, bytes.len()).unwrap())
                }
                IpAddr::V6(_) => {
                    plain_hash::<true>(&parse::plain::<true>(&bytes, bytes.len()).unwrap())
                }
            };
            assert_eq!(plain, hash(&there));
        }
        let arp = build::arp_request(a, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_ne!(flow_hash(&parse::parse(&arp, arp.len()).unwrap()), 0);
    }

    #[test]
    fn fragments_of_one_packet_go_together() {
        let whole = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
        let whole = whole.udp(1, 2).payload(&[0; 3000]).build();
        let hashes: HashSet<u32> = build::fragments(&whole, 1000, 7)
            .iter()
            .map(|piece| flow_hash(&parse::parse(piece, piece.len()).unwrap()))
            .collect();
        assert_eq!(hashes.len(), 1);
    }

    #[test]
    fn neighbouring_flows_spread_over_the_dynamic_ports() {
        let port = |n: u16| {
            let frame = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
            source_port(hash(&frame.udp(40_000 + n, 80)))
        };
        let ports: HashSet<u16> = (0..4096).map(port).collect();
        // About as many as by chance: 4096 draws of 16384 give 3624 on the average.
        assert!(ports.len() > 3500, "{}", ports.len());
        assert!(ports.iter().all(|port| *port >= FIRST_PORT));
    }
}
