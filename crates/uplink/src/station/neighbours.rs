//! Which address has which MAC on a wire where we are a station of our own: ARP (RFC 826) and
//! neighbour discovery (RFC 4861), as far as a host needs them that only ever speaks with given
//! addresses. Pure: no socket, no clock.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use wire::parse::{L4, Net, Packet};
use wire::{Mac, build, nd};

/// Neighbours that are looked for at most; more are not found.
const MOST: usize = 1 << 15;
/// How often the same neighbour is asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A neighbour that was not heard of for the first of these is asked for again, and after the
/// second is taken to be gone.
const FRESH: Duration = Duration::from_secs(20);
const FORGET: Duration = Duration::from_secs(60);

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    mac: Mac,
    /// Our own.
    pub addresses: Vec<IpAddr>,
    /// The neighbours that were looked for.
    known: BTreeMap<IpAddr, Known>,
}

#[derive(Debug)]
struct Known {
    /// When it was last looked for.
    wanted: Instant,
    asked: Option<Instant>,
    /// Where it is, and when it said so last.
    heard: Option<(Mac, Instant)>,
}

impl Known {
    /// Where it is, unless that was too long ago.
    fn mac(&self, now: Instant) -> Option<Mac> {
        let heard = self.heard.as_ref();
        let heard = heard.filter(|(_, heard)| now.duration_since(*heard) < FORGET);
        heard.map(|(mac, _)| *mac)
    }
}

/// Whole UDP packets to the tunnels' port.
pub(super) fn is_tunnel(packet: &Packet, port: u16) -> bool {
    packet.ip().is_some_and(|ip| {
        ip.fragment.is_none() && matches!(ip.l4_info, L4::Udp { dport, .. } if dport == port)
    })
}

impl Neighbours {
    pub fn new(mac: Mac, addresses: &[IpAddr]) -> Neighbours {
        Neighbours {
            mac,
            addresses: addresses.to_vec(),
            known: BTreeMap::new(),
        }
    }

    /// Forgets all neighbours.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// All that are known, for another process to go on with.
    pub fn all(&self, now: Instant) -> Vec<(IpAddr, Mac)> {
        let known = self.known.iter();
        let known = known.filter_map(|(ip, known)| Some((*ip, known.mac(now)?)));
        known.collect()
    }

    /// Takes up what another process knew: as of neighbours that were not heard of for a while, so
    /// that each is asked for again when it is looked for next.
    pub fn take_up(&mut self, neighbours: impl Iterator<Item = (IpAddr, Mac)>, now: Instant) {
        let heard = now.checked_sub(FRESH).unwrap_or(now);
        let neighbours = neighbours.take(MOST.saturating_sub(self.known.len()));
        for (ip, mac) in neighbours.filter(|(_, mac)| !mac.is_multicast()) {
            let known = Known {
                wanted: now,
                asked: None,
                heard: Some((mac, heard)),
            };
            self.known.entry(ip).or_insert(known);
        }
    }

    /// The neighbour's MAC, if it is known; nobody is asked.
    pub fn known(&self, neighbour: IpAddr, now: Instant) -> Option<Mac> {
        self.known.get(&neighbour)?.mac(now)
    }

    /// What switches and neighbours are told when we come: who has our addresses.
    pub fn announcements(&self) -> Vec<Vec<u8>> {
        let of = |ip: &IpAddr| match *ip {
            IpAddr::V4(ip) => build::arp_request(self.mac, ip, ip),
            IpAddr::V6(ip) => {
                build::neighbour_advertisement(self.mac, ip, nd::ALL_NODES_MAC, nd::ALL_NODES)
            }
        };
        self.addresses.iter().map(of).collect()
    }

    /// The neighbour's MAC, if it is known, and the question to send if it is to be found out or
    /// confirmed.
    pub fn find(&mut self, neighbour: IpAddr, now: Instant) -> (Option<Mac>, Option<Vec<u8>>) {
        if self.known.len() >= MOST && !self.known.contains_key(&neighbour) {
            self.known
                .retain(|_, known| now.duration_since(known.wanted) < FORGET);
            if self.known.len() >= MOST {
                return (None, None);
            }
        }
        let known = self.known.entry(neighbour).or_insert(Known {
            wanted: now,
            asked: None,
            heard: None,
        });
        known.wanted = now;
        let mac = known.mac(now);
        if mac.is_none() {
            known.heard = None;
        }
        let is_fresh = known
            .heard
            .is_some_and(|(_, heard)| now.duration_since(heard) < FRESH);
        let lately = known
            .asked
            .is_some_and(|asked| now.duration_since(asked) < ASK_EVERY);
        if is_fresh || lately {
            return (mac, None);
        }
        known.asked = Some(now);
        (mac, self.question(neighbour))
    }

    /// Asked by our address of the same family; without one there is nobody to answer to.
    fn question(&self, neighbour: IpAddr) -> Option<Vec<u8>> {
        self.addresses
            .iter()
            .find_map(|ours| match (*ours, neighbour) {
                (IpAddr::V4(ours), IpAddr::V4(target)) => {
                    Some(build::arp_request(self.mac, ours, target))
                }
                (IpAddr::V6(ours), IpAddr::V6(target)) => {
                    Some(build::neighbour_solicitation(self.mac, ours, target))
                }
                _ => None,
            })
    }

    /// A frame to us or to everybody: the answer to it, if it asks for an address of ours; true
    /// when it says that somebody who was looked for is where he was not before.
    pub fn receive(
        &mut self,
        frame: &[u8],
        packet: &Packet,
        now: Instant,
    ) -> (Option<Vec<u8>>, bool) {
        match packet.net {
            Net::Arp(arp) => {
                let moved = self.note(arp.sender_ip.into(), arp.sender_mac, now);
                let asked = arp.op == 1
                    && arp.sender_ip != arp.target_ip
                    && self.is_ours(arp.target_ip.into());
                let answer = asked.then(|| {
                    build::arp_reply(self.mac, arp.target_ip, arp.sender_mac, arp.sender_ip)
                });
                (answer, moved)
            }
            Net::Ip(ip) => match nd::parse(frame, &ip) {
                Ok(Some(message)) => self.receive_nd(&message, ip.src(), packet.src, now),
                _ => (None, false),
            },
            Net::Other => (None, false),
        }
    }

    fn receive_nd(
        &mut self,
        message: &nd::Nd,
        src: IpAddr,
        from: Mac,
        now: Instant,
    ) -> (Option<Vec<u8>>, bool) {
        match message.kind {
            nd::NdKind::NeighbourAdvertisement { target, .. } => {
                let mac = message.target_link.unwrap_or(from);
                (None, self.note(target.into(), mac, now))
            }
            nd::NdKind::NeighbourSolicitation { target } => {
                let moved = message
                    .source_link
                    .is_some_and(|mac| self.note(src, mac, now));
                let IpAddr::V6(asker) = src else {
                    return (None, moved);
                };
                let answer = self
                    .is_ours(target.into())
                    .then(|| match asker.is_unspecified() {
                        // Somebody wants to have our address (RFC 4862): it is taken.
                        true => build::neighbour_advertisement(
                            self.mac,
                            target,
                            nd::ALL_NODES_MAC,
                            nd::ALL_NODES,
                        ),
                        false => build::neighbour_advertisement(self.mac, target, from, asker),
                    });
                (answer, moved)
            }
            _ => (None, false),
        }
    }

    fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    /// Notes a neighbour's MAC, if it was looked for. True when that was not known.
    fn note(&mut self, ip: IpAddr, mac: Mac, now: Instant) -> bool {
        let Some(known) = self.known.get_mut(&ip).filter(|_| !mac.is_multicast()) else {
            return false;
        };
        let before = known.heard.replace((mac, now));
        before.map(|(mac, _)| mac) != Some(mac)
    }
}

#[cfg(test)]
mod tests;
