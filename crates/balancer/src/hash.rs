//! The hashes of `bpf/balancer/hash.h`: which slot and which bucket a flow has.

use std::net::IpAddr;

use crate::layout::MAGLEV_SIZE;
use model::Protocol;

/// Who speaks with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The client's address, of the VIP's family.
    pub client: IpAddr,
    /// The client's port.
    pub client_port: u16,
    /// The service's address.
    pub vip: IpAddr,
    /// The service's port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// One round.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 32)
}

/// Two words as the program loads them.
fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// An address as the program has it: words in memory order, IPv4 in the first one.
pub(crate) fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(ip) => [u32::from_ne_bytes(ip.octets()), 0, 0, 0],
        IpAddr::V6(ip) => {
            let bytes = ip.octets();
            std::array::from_fn(|i| {
                u32::from_ne_bytes([
                    bytes[4 * i],
                    bytes[4 * i + 1],
                    bytes[4 * i + 2],
                    bytes[4 * i + 3],
                ])
            })
        }
    }
}

/// Of a VIP's place.
pub(crate) fn of_address(seed: u64, address: IpAddr) -> u64 {
    let word = words(address);
    match address {
        IpAddr::V4(_) => mix(seed ^ pair(word[0], 4)),
        IpAddr::V6(_) => {
            let hash = mix(seed ^ pair(word[0], 6));
            let hash = mix(hash ^ pair(word[1], word[2]));
            mix(hash ^ u64::from(word[3]))
        }
    }
}

/// The hash by which a service's place in the table is chosen.
pub(crate) fn of_port(seed: u64, vip: u16, protocol: u8, port: u16) -> u64 {
    let low = u64::from(port.to_be()) << 8 | u64::from(protocol);
    mix(seed ^ (u64::from(vip) << 32 | low))
}

/// The hash of a client of a VIP, whatever its ports.
pub(crate) fn of_client(seed: u64, client: IpAddr, vip: IpAddr) -> u64 {
    mix(of_parties(seed, client, vip))
}

/// The part of a flow's hash that its addresses make.
fn of_parties(seed: u64, client: IpAddr, vip: IpAddr) -> u64 {
    let (from, to) = (words(client), words(vip));
    let mut hash = mix(seed ^ pair(from[0], to[0]));
    if client.is_ipv6() {
        hash = mix(hash ^ pair(from[1], from[2]));
        hash = mix(hash ^ pair(from[3], to[1]));
        hash = mix(hash ^ pair(to[2], to[3]));
    }
    hash
}

/// The hash of a flow's five-tuple.
pub(crate) fn of_flow(seed: u64, tuple: &Tuple) -> u64 {
    let client = of_parties(seed, tuple.client, tuple.vip);
    let ports = u64::from(tuple.client_port.to_be()) << 32 | u64::from(tuple.port.to_be()) << 16;
    mix(mix(client ^ (ports | u64::from(tuple.protocol.number()))))
}

/// Evenly from 0 to `size` - 1.
pub(crate) fn reduce(hash: u64, size: u32) -> u32 {
    (((hash >> 32) * u64::from(size)) >> 32) as u32
}

/// Of a client of a sticky service, as the flow table has it.
pub(crate) fn of_sticky(seed: u64, client: IpAddr, vip: IpAddr, service: u16) -> u64 {
    let hash = of_client(seed, client, vip) ^ 0x9e37_79b9_7f4a_7c15;
    mix(hash.wrapping_add(u64::from(service)))
}

/// The place of a hash in the flow table: bucket, fingerprint.
pub(crate) fn place(hash: u64, buckets: u32) -> (u32, u32) {
    (reduce(hash, buckets), hash as u32)
}

/// The slot of a hash in a Maglev table. A fingerprint is enough to tell it.
pub(crate) fn slot(hash: u32) -> usize {
    hash as usize % MAGLEV_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stranger can do who knows the seed, and who does not.
    #[test]
    fn flows_that_meet_by_one_seed_are_spread_by_another() {
        const BUCKETS: u32 = 128;
        let flows = (0..1u32 << 16).map(|n| Tuple {
            client: [198, 51, 100, (n >> 12) as u8].into(),
            client_port: 32_768 + (n & 0x0fff) as u16,
            vip: [192, 0, 2, 1].into(),
            port: 80,
            protocol: Protocol::Tcp,
        });
        let bucket = |seed, flow: &Tuple| place(of_flow(seed, flow), BUCKETS).0;
        let met: Vec<Tuple> = flows.filter(|flow| bucket(1, flow) == 0).collect();
        assert!(met.len() > 256, "{}", met.len());
        let mut spread = [0; BUCKETS as usize];
        for flow in &met {
            spread[bucket(0x0123_4567_89ab_cdef, flow) as usize] += 1;
        }
        let most = *spread.iter().max().unwrap();
        assert!(most < met.len() / 16, "{most} of {} meet again", met.len());
    }
}
