//! The router's own interfaces: which devices run the program, what is forwarded from them, and how
//! a neighbour behind one is reached.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink::{Family, ForwardingSettings, Link, Snapshot, Vlan};
use wire::Mac;

use crate::error::Error;
use crate::layout::{self, Counter, Egress, HOP_PEER, Hop, InterfaceKey};
use crate::paths::Reach;

/// The smallest MTU that IPv6 is on an interface with (RFC 8200, section 5).
const LEAST_MTU6: u32 = 1280;

/// Tags at the most: 802.1ad's two.
const TAGS: usize = 2;

/// An interface as routes name it: a device, a VLAN on one, or a VLAN within such a VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name when it was added.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// The device that runs the program: itself, or a VLAN's parent.
    pub device: u32,
    /// Slot of the device in the map of ports.
    pub port: u32,
    /// Slot of its counters.
    pub slot: u32,
    /// VLAN id and EtherType of its tags, as they lie in a frame: the outer one first.
    pub tags: Vec<(u16, u16)>,
    /// The device takes frames that are redirected to it.
    pub sends: bool,
    /// IPv6 is not disabled on it ([`Router::set_ipv6`](crate::Router::set_ipv6)).
    pub ipv6: bool,
    /// The MAC address of the device's other end, if packets can be handed to it at once
    /// ([`Router::set_peer`](crate::Router::set_peer)).
    pub peer: Option<Mac>,
}

/// How the program runs for the device of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// In XDP.
    pub xdp: bool,
    /// Its packets are the kernel's buffers.
    pub buffers: bool,
}

impl Interface {
    /// Looks at what the kernel says of an interface; `port` and `slot` are still to be given.
    pub fn new(name: &str, snapshot: &Snapshot) -> Result<Interface, Error> {
        let refuse = |why: &str| Error::Interface {
            name: name.to_owned(),
            why: why.to_owned(),
        };
        let link = snapshot
            .link_named(name)
            .ok_or_else(|| refuse("there is no such interface"))?;
        if link.loopback || !link.ethernet {
            return Err(refuse("it is no Ethernet interface"));
        }
        if let Some(why) = taken_by_master(link, snapshot) {
            return Err(refuse(&why));
        }
        let (mut device, mut tags) = (link, Vec::new());
        while let Some(vlan) = &device.vlan {
            if tags.len() == TAGS {
                return Err(refuse(
                    "it is a VLAN within two others: two tags are what is forwarded here",
                ));
            }
            tags.insert(0, (vlan.id, vlan.protocol));
            let parent = snapshot.links.get(&vlan.parent);
            device = parent.ok_or_else(|| refuse("its parent is not here"))?;
        }
        Ok(Interface {
            name: name.to_owned(),
            ifindex: link.index,
            device: device.index,
            port: 0,
            slot: 0,
            tags,
            // Until the driver has been asked.
            sends: false,
            // Until the setting has been read.
            ipv6: false,
            peer: None,
        })
    }

    /// How the program finds it: by its device, and where that is a bond by each of its ports too.
    /// The program runs for a port, in its driver or behind it, and is told of the port; what a
    /// port holds back is not the bond's.
    pub fn keys(&self, snapshot: &Snapshot) -> Vec<InterfaceKey> {
        let [(vlan, protocol), (inner_vlan, inner_protocol)] = self.both_tags();
        let key = |ifindex| InterfaceKey {
            ifindex,
            vlan,
            protocol: protocol.to_be(),
            inner_vlan,
            inner_protocol: inner_protocol.to_be(),
        };
        let ports = snapshot
            .ports_of(self.device)
            .filter(|port| !port.held_back);
        std::iter::once(self.device)
            .chain(ports.map(|port| port.index))
            .map(key)
            .collect()
    }

    /// How it is sent by.
    pub fn egress(&self) -> Egress {
        let [(vlan, protocol), (inner_vlan, inner_protocol)] = self.both_tags();
        Egress {
            port: self.port,
            slot: self.slot,
            protocol: protocol.to_be(),
            vlan: vlan.to_be(),
            inner_protocol: inner_protocol.to_be(),
            inner_vlan: inner_vlan.to_be(),
            device: self.device,
            only_tc: u32::from(!self.sends),
        }
    }

    /// Zeros for tags that it does not have.
    fn both_tags(&self) -> [(u16, u16); TAGS] {
        let mut both = [(0, 0); TAGS];
        both[..self.tags.len()].copy_from_slice(&self.tags);
        both
    }

    /// What holds for packets that come in by it. Without a MAC address none is sent to it.
    pub fn entry(&self, snapshot: &Snapshot, custom_rules: bool, run: Run) -> layout::Interface {
        let settings = |family, index| {
            snapshot
                .settings
                .get(&(family, index))
                .copied()
                .unwrap_or_default()
        };
        let own = settings(Family::V4, self.ifindex as i32);
        let all = settings(Family::V4, ForwardingSettings::ALL);
        // ip6_forward() asks the whole host's.
        let six = settings(Family::V6, ForwardingSettings::ALL);
        let link = self.link(snapshot);
        // What comes by a VLAN that is down the kernel drops.
        let up = link.is_some_and(|link| link.up);
        let mut flags = 0;
        if own.forwarding && up {
            flags |= layout::INTERFACE_FORWARD4;
        }
        if six.forwarding && up && self.has_ipv6(snapshot) {
            flags |= layout::INTERFACE_FORWARD6;
        }
        if run.xdp {
            flags |= layout::INTERFACE_XDP;
        }
        if run.xdp && run.buffers {
            flags |= layout::INTERFACE_BEGUN;
        }
        if link.is_some_and(|link| is_on_another_mac(link, snapshot)) {
            flags |= layout::INTERFACE_OTHER_MAC;
        }
        let rp_filter = match own.rp_filter.max(all.rp_filter) {
            0 if custom_rules => RP_ROUTES,
            0 => 0,
            1 => 1,
            // Without an address loose filtering is as strict.
            _ if !snapshot
                .addresses_of(self.ifindex)
                .any(|own| own.ip.is_ipv4()) =>
            {
                1
            }
            _ => 2,
        };
        layout::Interface {
            mac: link.and_then(|link| link.mac).unwrap_or_default().0,
            flags,
            rp_filter,
            ifindex: self.ifindex,
            slot: self.slot,
        }
    }

    /// Why its packets are another interface's, as a sentence: it was given to a bridge, bond or
    /// VRF when it was the router's already.
    pub fn taken(&self, snapshot: &Snapshot) -> Option<String> {
        taken_by_master(self.link(snapshot)?, snapshot)
    }

    /// Whether the program sends by it: the device takes frames, or the program runs `at_tc`, and
    /// no tag of its tells priorities, which the kernel alone knows.
    pub fn is_sent_by(&self, snapshot: &Snapshot, at_tc: bool) -> bool {
        (self.sends || at_tc) && !self.maps_priorities(snapshot)
    }

    /// Its tags, or those of a VLAN that it is within, tell the packets' priorities.
    pub fn maps_priorities(&self, snapshot: &Snapshot) -> bool {
        let mut vlan = self.link(snapshot).and_then(|link| link.vlan);
        for _ in 0..self.tags.len() {
            let Some(Vlan {
                parent,
                maps_priorities,
                ..
            }) = vlan
            else {
                return false;
            };
            if maps_priorities {
                return true;
            }
            vlan = snapshot.links.get(&parent).and_then(|link| link.vlan);
        }
        false
    }

    /// Whether the kernel takes IPv6 from it.
    pub fn has_ipv6(&self, snapshot: &Snapshot) -> bool {
        let link = self.link(snapshot);
        self.ipv6 && link.is_some_and(|link| link.mtu >= LEAST_MTU6)
    }

    /// What the kernel says of it now.
    pub fn link<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Link> {
        snapshot.links.get(&self.ifindex).map(|link| &**link)
    }
}

/// The kernel hands what comes in by a port to its master, and looks routes up for that one.
fn taken_by_master(link: &Link, snapshot: &Snapshot) -> Option<String> {
    let index = link.master?;
    let master = snapshot.links.get(&index);
    let kind = master.and_then(|master| master.kind.as_deref());
    let kind = kind.unwrap_or("device");
    let name = master.map_or_else(|| index.to_string(), |master| master.name.clone());
    let remedy = match kind {
        "bond" => ": name the bond",
        _ => "",
    };
    Some(format!(
        "it belongs to the {kind} {name}, which has its packets{remedy}"
    ))
}

/// Whether the device of a VLAN, the VLAN that it is within, or a port of its bond has another MAC
/// address: the kernel takes for it what is sent to that one as well.
fn is_on_another_mac(link: &Link, snapshot: &Snapshot) -> bool {
    let below = |one: &Link| one.vlan.as_ref().map(|vlan| vlan.parent);
    let mut device = link;
    while let Some(next) = below(device).and_then(|parent| snapshot.links.get(&parent)) {
        device = next;
        if device.mac != link.mac {
            return true;
        }
    }
    let mut ports = snapshot.ports_of(device.index);
    ports.any(|port| port.mac != link.mac)
}

/// `enum rp_filter`: off, but routes that refuse refuse sources too.
const RP_ROUTES: u8 = 3;

/// How neighbours are reached, by one snapshot.
pub struct View<'a> {
    /// The kernel's tables.
    pub snapshot: &'a Snapshot,
    /// Ours, by the index that routes name.
    pub interfaces: &'a BTreeMap<u32, Interface>,
    /// The program runs at tc on all of them, alone or behind XDP: any device can be sent by.
    pub at_tc: bool,
}

impl Reach for View<'_> {
    fn hop(&self, ifindex: u32, neighbour: IpAddr, mtu: Option<u32>) -> Result<Hop, Counter> {
        let interface = self
            .interfaces
            .get(&ifindex)
            .filter(|interface| interface.is_sent_by(self.snapshot, self.at_tc));
        let interface = interface.ok_or(Counter::Elsewhere)?;
        let link = interface
            .link(self.snapshot)
            .filter(|link| link.up && link.carrier);
        let link = link.ok_or(Counter::Neighbour)?;
        let known = || {
            let known = self.snapshot.neighbour(ifindex, neighbour)?;
            known.mac.filter(|_| known.is_valid())
        };
        // One that was written down comes before what arp_constructor() and ndisc_constructor()
        // make.
        let to = known().or(link.mac.filter(|_| link.no_arp));
        let (Some(to), Some(from)) = (to, link.mac) else {
            return Err(Counter::Neighbour);
        };
        let egress = interface.egress();
        let mtu = mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
        Ok(Hop {
            destination: to.0,
            source: from.0,
            port: egress.port,
            ifindex,
            mtu: if interface.sends { mtu } else { 0 },
            tc_mtu: mtu,
            device: egress.device,
            // What is for somebody behind the other end goes as any packet does: the other end is
            // to see that it is not its own.
            flags: if interface.tags.is_empty() && interface.peer == Some(to) {
                HOP_PEER
            } else {
                0
            },
            protocol: egress.protocol,
            vlan: egress.vlan,
            inner_protocol: egress.inner_protocol,
            inner_vlan: egress.inner_vlan,
            slot: egress.slot,
            ..Hop::default()
        })
    }
}
