//! Multicast groups that the kernel is to hear for us: it tells the network's switches and routers
//! (IGMP, MLD), and its NIC's filter lets them in. The frames themselves come by the uplink.
//!
//! Each group has a socket of its own, which nobody reads: of one socket the kernel takes 20 groups
//! (`net.ipv4.igmp_max_memberships`), and of sockets as many as there are descriptors. A group that
//! cannot be joined is tried again with the next change; until then frames for all of its networks
//! do not come where switches look at IGMP.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::paths::Home;

/// Memberships, each for as long as its socket is open.
#[derive(Default)]
pub struct Groups {
    joined: BTreeMap<(IpAddr, u32), Socket>,
    /// Those that were refused, so that it is said once.
    refused: BTreeSet<(IpAddr, u32)>,
}

impl Groups {
    /// Makes the groups joined exactly these, each on the interfaces that have our addresses of its
    /// family.
    pub fn join(&mut self, groups: &BTreeSet<IpAddr>, homes: &[Home]) {
        let mut wanted = BTreeSet::new();
        for group in groups {
            let of_family = homes
                .iter()
                .filter(|home| home.address.is_ipv4() == group.is_ipv4());
            wanted.extend(of_family.map(|home| (*group, home.ifindex)));
        }
        self.joined.retain(|key, _| wanted.contains(key));
        self.refused.retain(|key| wanted.contains(key));
        for key in wanted {
            if self.joined.contains_key(&key) {
                continue;
            }
            match member(key.0, key.1) {
                Ok(socket) => {
                    self.joined.insert(key, socket);
                    self.refused.remove(&key);
                }
                Err(error) => {
                    if self.refused.insert(key) {
                        let (group, ifindex) = key;
                        tracing::warn!(
                            "the multicast group {group} cannot be joined on interface {ifindex}: \
                             {error}; networks that flood to it may not hear other hosts"
                        );
                    }
                }
            }
        }
    }
}

fn member(group: IpAddr, ifindex: u32) -> io::Result<Socket> {
    let domain = match group {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    match group {
        IpAddr::V4(group) => {
            let interface = InterfaceIndexOrAddress::Index(ifindex);
            socket.join_multicast_v4_n(&Ipv4Addr::from(group.octets()), &interface)?;
        }
        IpAddr::V6(group) => socket.join_multicast_v6(&group, ifindex)?,
    }
    Ok(socket)
}
