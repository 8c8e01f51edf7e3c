//! The physical network under the overlay: by which next hops each host is reached, and in
//! which headers.
//!
//! An [`Underlay`] is immutable and published apart from the snapshot
//! ([`Switch::set_underlay`](crate::Switch::set_underlay)): what changes in it changes no verdict,
//! so no flow has to be decided again when a neighbour answers. It is keyed by addresses, not by
//! the snapshot's indices: the two need not be of the same moment.
//!
//! For each next hop the headers are made here, once, so that a frame costs a copy of them and a
//! few fields. Several next hops (ECMP) share the flows by their weights: a flow's hash picks one,
//! and stays with it as long as the path is the same (hash-threshold, RFC 2992).

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use thiserror::Error;
use wire::Mac;
use wire::parse::ETHERNET_LEN;
use wire::vxlan::{Ends, Outer, PORT, UdpChecksum};

use crate::ids::PortSlot;

/// The least MTU of an inner network: what IPv4 demands of every link (RFC 791).
pub const INNER_MTU_MIN: usize = 68;

/// The most next hops of one path.
pub const HOPS_MAX: usize = 64;

/// Indices of interfaces are below this, and the numbers of hops from here on.
const HOP_IDS: u32 = 1 << 31;
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// What the headers of all outer packets have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encapsulation {
    /// UDP destination port, of what is sent and what is taken.
    pub port: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The DSCP: 0..=63, or the inner packet's when `None`. ECN is always the inner packet's (RFC
    /// 6040).
    pub dscp: Option<u8>,
    /// UDP checksum over IPv4.
    pub checksum_v4: UdpChecksum,
    /// UDP checksum over IPv6.
    pub checksum_v6: UdpChecksum,
}

impl Default for Encapsulation {
    /// Port 4789, TTL 64, DSCP of the inner packet, no UDP checksums.
    fn default() -> Self {
        Encapsulation {
            port: PORT,
            ttl: 64,
            dscp: None,
            checksum_v4: UdpChecksum::Zero,
            checksum_v6: UdpChecksum::Zero,
        }
    }
}

/// One way to a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The uplink: [`PortSlot::uplink`].
    pub uplink: PortSlot,
    /// The uplink's MAC address.
    pub src_mac: Mac,
    /// The next hop's, or the multicast group's.
    pub dst_mac: Mac,
    /// The 802.1Q TCI that goes on the frame, when the interface is a VLAN of the uplink.
    pub vlan: Option<u16>,
    /// Our address as the source: of the host's family.
    pub source: IpAddr,
    /// The largest outer IP packet, bytes: the route's MTU, or else the interface's.
    pub mtu: u16,
    /// How many flows it has beside the others: 1 or more.
    pub weight: u16,
    /// The index of the uplink's interface, by which the kernel may send flows itself
    /// ([`flow::kernel`](crate::flow::kernel)), untagged; 0: it may not.
    pub device: u32,
}

/// A path cannot be taken as it was given.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("path to host {host}: {what}")]
pub struct UnderlayError {
    /// Where it leads.
    pub host: IpAddr,
    /// A sentence that names the value.
    pub what: String,
}

/// Index of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PathIdx(u32);

/// A next hop, ready to be sent to.
#[derive(Clone, Debug)]
pub(crate) struct ReadyHop {
    pub uplink: PortSlot,
    /// Without VNI, source port and TOS.
    pub outer: Outer,
    /// What comes back by it is in, likewise.
    pub back: Outer,
    /// The longest inner frame, bytes.
    pub max_frame: u32,
    /// The interface by which the kernel may send; 0: none.
    pub device: u32,
    /// A number that no other hop has, of whatever underlay, and no interface.
    pub id: u32,
    /// Flows with a hash up to this one are its.
    upper: u32,
}

/// The hops of one path lie behind each other.
#[derive(Clone, Copy, Debug)]
struct Path {
    first: u32,
    count: u32,
    /// The longest inner frame for every hop.
    max_frame: u32,
}

/// All paths.
#[derive(Clone, Debug, Default)]
pub struct Underlay {
    encapsulation: Encapsulation,
    addresses: HashSet<IpAddr>,
    /// Each of them with the VLANs that it is reached in; 0: none.
    endpoints: HashSet<(IpAddr, u16)>,
    /// The same without the addresses: what groups come in, of IPv4 and of IPv6.
    group_vlans: [HashSet<u16>; 2],
    by_host: HashMap<IpAddr, PathIdx, RandomState>,
    /// Hosts that no route leads to.
    unreachable: HashSet<IpAddr>,
    paths: Vec<Path>,
    hops: Vec<ReadyHop>,
}

impl Underlay {
    /// `endpoints` are our own addresses, each with the ID of a VLAN that outer packets to it come
    /// in, 0 for none: as the program at XDP has them (`bpf/uplink.bpf.c`). Multicast groups come
    /// in the VLANs of the addresses of their family. `paths` has the next hops of each host (or
    /// multicast group). For a host with an empty list nothing is to be waited for: it cannot be
    /// reached now. One that is not in the list may be any moment, and frames for it
    /// [wait](crate::waiting). Of two paths to one host the last one counts.
    pub fn new(
        encapsulation: Encapsulation,
        endpoints: impl IntoIterator<Item = (IpAddr, u16)>,
        paths: impl IntoIterator<Item = (IpAddr, Vec<Hop>)>,
    ) -> Result<Underlay, UnderlayError> {
        let mut underlay = Underlay {
            encapsulation,
            ..Underlay::default()
        };
        for (address, vlan) in endpoints {
            underlay.addresses.insert(address);
            underlay.endpoints.insert((address, vlan));
            underlay.group_vlans[usize::from(address.is_ipv6())].insert(vlan);
        }
        for (host, hops) in paths {
            let path = underlay
                .path(host, &hops)
                .map_err(|what| UnderlayError { host, what })?;
            match path {
                Some(path) => {
                    underlay.unreachable.remove(&host);
                    underlay.by_host.insert(host, path);
                }
                None => {
                    underlay.by_host.remove(&host);
                    underlay.unreachable.insert(host);
                }
            }
        }
        Ok(underlay)
    }

    fn path(&mut self, host: IpAddr, hops: &[Hop]) -> Result<Option<PathIdx>, String> {
        if hops.len() > HOPS_MAX {
            return Err(format!("{} next hops are more than {HOPS_MAX}", hops.len()));
        }
        let first = self.hops.len() as u32;
        let total: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
        let (mut passed, mut shortest) = (0, u32::MAX);
        for hop in hops {
            passed += u64::from(hop.weight);
            let ready = self.ready(host, hop, (passed, total))?;
            shortest = shortest.min(ready.max_frame);
            self.hops.push(ready);
        }
        if hops.is_empty() {
            return Ok(None);
        }
        self.paths.push(Path {
            first,
            count: hops.len() as u32,
            max_frame: shortest,
        });
        Ok(Some(PathIdx(self.paths.len() as u32 - 1)))
    }

    fn ready(
        &self,
        host: IpAddr,
        hop: &Hop,
        (passed, total): (u64, u64),
    ) -> Result<ReadyHop, String> {
        let ends = Ends::new(hop.source, host)
            .ok_or_else(|| format!("source {} is of the other family", hop.source))?;
        if !hop.uplink.is_uplink() {
            return Err(format!("slot {} is not an uplink's", hop.uplink.0));
        }
        if hop.weight == 0 {
            return Err("a next hop of weight 0".to_owned());
        }
        let wants = &self.encapsulation;
        let checksum = match ends {
            Ends::V4(..) => wants.checksum_v4,
            Ends::V6(..) => wants.checksum_v6,
        };
        let macs = (hop.src_mac, hop.dst_mac);
        let outer = Outer::new(macs, hop.vlan, ends, wants.ttl, wants.port, checksum);
        let (there, back) = ((hop.dst_mac, hop.src_mac), ends.back());
        let back = Outer::new(there, hop.vlan, back, wants.ttl, wants.port, checksum);
        let least = outer.ip_overhead() + ETHERNET_LEN + INNER_MTU_MIN;
        if usize::from(hop.mtu) < least {
            return Err(format!(
                "MTU {} is below {least}, the least that can carry inner packets",
                hop.mtu
            ));
        }
        Ok(ReadyHop {
            uplink: hop.uplink,
            outer,
            back,
            max_frame: u32::from(hop.mtu) - outer.ip_overhead() as u32,
            device: hop.device,
            id: HOP_IDS | NEXT_ID.fetch_add(1, Ordering::Relaxed),
            upper: ((passed << 32) / total - 1) as u32,
        })
    }

    /// What outer headers have in common.
    pub fn encapsulation(&self) -> &Encapsulation {
        &self.encapsulation
    }

    /// There is a way to this host or group.
    pub fn reaches(&self, host: IpAddr) -> bool {
        self.by_host.contains_key(&host)
    }

    /// Whether there is a way to this host or group is known; while it is not, frames wait for
    /// it.
    pub(crate) fn knows(&self, host: IpAddr) -> bool {
        self.reaches(host) || self.unreachable.contains(&host)
    }

    /// The largest inner IP packet that every way to this host carries, bytes; `None` without
    /// one.
    pub fn inner_mtu(&self, host: IpAddr) -> Option<u16> {
        let path = self.find(host)?;
        Some((self.max_frame(path) - ETHERNET_LEN as u32).min(u16::MAX.into()) as u16)
    }

    /// An address of ours.
    #[inline]
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// What comes to this address of ours, or to a group, in this VLAN (0: none) is for us.
    /// Somebody in another VLAN of the same cable may know our address.
    #[inline]
    pub(crate) fn takes(&self, dst: IpAddr, vlan: u16) -> bool {
        match dst.is_multicast() {
            true => self.group_vlans[usize::from(dst.is_ipv6())].contains(&vlan),
            false => self.endpoints.contains(&(dst, vlan)),
        }
    }

    #[inline]
    pub(crate) fn find(&self, host: IpAddr) -> Option<PathIdx> {
        self.by_host.get(&host).copied()
    }

    /// The longest inner frame that every hop of a path takes.
    #[inline]
    pub(crate) fn max_frame(&self, path: PathIdx) -> u32 {
        self.paths[path.0 as usize].max_frame
    }

    /// The hop of a path that a flow takes, as an index for [`hop`](Self::hop).
    #[inline]
    pub(crate) fn choose(&self, path: PathIdx, hash: u32) -> u32 {
        let Path { first, count, .. } = self.paths[path.0 as usize];
        if count == 1 {
            return first;
        }
        let hops = &self.hops[first as usize..(first + count) as usize];
        // The last one's bound is the largest hash there is.
        let passed = hops.iter().take_while(|hop| hop.upper < hash).count() as u32;
        first + passed.min(count - 1)
    }

    /// The hop to a host by this uplink, if one leads there by it.
    pub(crate) fn hop_by(&self, host: IpAddr, uplink: PortSlot) -> Option<&ReadyHop> {
        let Path { first, count, .. } = self.paths[self.find(host)?.0 as usize];
        let hops = &self.hops[first as usize..(first + count) as usize];
        hops.iter().find(|hop| hop.uplink == uplink)
    }

    #[inline]
    pub(crate) fn hop(&self, index: u32) -> Option<&ReadyHop> {
        self.hops.get(index as usize)
    }

    /// The TOS of an outer packet around one with this TOS.
    #[inline]
    pub(crate) fn tos(&self, inner: u8) -> u8 {
        let ecn = wire::vxlan::ecn::encapsulate(inner);
        match self.encapsulation.dscp {
            Some(dscp) => dscp << 2 | ecn,
            None => inner & !wire::vxlan::ecn::MASK | ecn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(n: u8, weight: u16) -> Hop {
        Hop {
            uplink: PortSlot::uplink(0),
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4, 4, 4, 4, 4, n]),
            vlan: None,
            source: [192, 0, 2, 1].into(),
            mtu: 1500,
            weight,
            device: 0,
        }
    }

    fn host(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn underlay(paths: Vec<(IpAddr, Vec<Hop>)>) -> Result<Underlay, UnderlayError> {
        Underlay::new(Encapsulation::default(), [(host(1), 0)], paths)
    }

    #[test]
    fn flows_are_shared_by_weight_and_none_is_lost() {
        let underlay = underlay(vec![
            (host(2), vec![hop(1, 1)]),
            (host(3), vec![hop(1, 1), hop(2, 2), hop(3, 1)]),
            (host(4), vec![]),
        ])
        .unwrap();
        let path = underlay.find(host(3)).unwrap();
        let mut shares = [0u32; 4];
        for n in 0..4096u32 {
            shares[underlay.choose(path, n << 20) as usize] += 1;
        }
        assert_eq!(shares, [0, 1024, 2048, 1024]);
        assert_eq!(underlay.choose(path, u32::MAX), 3);
        assert_eq!(underlay.choose(underlay.find(host(2)).unwrap(), 5), 0);
        assert!(underlay.reaches(host(2)) && !underlay.reaches(host(4)));
        assert_eq!(underlay.inner_mtu(host(3)), Some(1450));
        assert!(underlay.is_ours(host(1)) && !underlay.is_ours(host(2)));
    }

    #[test]
    fn the_shortest_hop_is_the_paths_mtu_and_ipv6_costs_twenty_more() {
        let v6: IpAddr = "2001:db8::2".parse().unwrap();
        let underlay = underlay(vec![
            (
                host(2),
                vec![
                    hop(1, 1),
                    Hop {
                        mtu: 1400,
                        ..hop(2, 1)
                    },
                ],
            ),
            (
                v6,
                vec![Hop {
                    source: "2001:db8::1".parse().unwrap(),
                    vlan: Some(5),
                    ..hop(1, 1)
                }],
            ),
        ])
        .unwrap();
        assert_eq!(underlay.inner_mtu(host(2)), Some(1350));
        assert_eq!(underlay.inner_mtu(v6), Some(1430));
        assert_eq!(underlay.inner_mtu(host(9)), None);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_name() {
        let cases = [
            (
                Hop {
                    weight: 0,
                    ..hop(1, 1)
                },
                "weight 0",
            ),
            (
                Hop {
                    mtu: 117,
                    ..hop(1, 1)
                },
                "MTU 117 is below 118",
            ),
            (
                Hop {
                    uplink: PortSlot(3),
                    ..hop(1, 1)
                },
                "slot 3 is not an uplink's",
            ),
            (
                Hop {
                    source: "2001:db8::1".parse().unwrap(),
                    ..hop(1, 1)
                },
                "source 2001:db8::1 is of the other family",
            ),
        ];
        for (hop, words) in cases {
            let error = underlay(vec![(host(2), vec![hop])]).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.host, host(2));
        }
        let many = underlay(vec![(host(2), vec![hop(1, 1); HOPS_MAX + 1])]);
        assert!(
            many.unwrap_err()
                .what
                .contains("65 next hops are more than 64")
        );
    }

    #[test]
    fn what_is_for_us_comes_in_the_vlan_of_its_address() {
        let (v6, group): (IpAddr, IpAddr) = ("fd00::1".parse().unwrap(), [230, 0, 0, 1].into());
        let group_v6 = "ff05::1".parse().unwrap();
        let endpoints = [(host(1), 0), (host(1), 7), (host(2), 100), (v6, 200)];
        let underlay = Underlay::new(Encapsulation::default(), endpoints, []).unwrap();
        for (dst, vlans) in [
            (host(1), &[0, 7][..]),
            (host(2), &[100]),
            (host(3), &[]),
            (v6, &[200]),
            (group, &[0, 7, 100]),
            (group_v6, &[200]),
        ] {
            let taken: Vec<u16> = (0..4096)
                .filter(|vlan| underlay.takes(dst, *vlan))
                .collect();
            assert_eq!(taken, vlans, "{dst}");
        }
        assert!(underlay.is_ours(host(2)) && underlay.is_ours(v6) && !underlay.is_ours(group));
    }

    #[test]
    fn dscp_is_inherited_or_fixed_and_ecn_always_inherited() {
        let fixed = Encapsulation {
            dscp: Some(10),
            ..Encapsulation::default()
        };
        let fixed = Underlay::new(fixed, [], []).unwrap();
        for tos in [0, 0xb9, 0xff] {
            assert_eq!(Underlay::default().tos(tos), tos);
            assert_eq!(fixed.tos(tos), 10 << 2 | tos & 3);
        }
    }
}
