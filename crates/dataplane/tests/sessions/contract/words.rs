//! What sessions are written in beside the lab: NICs, frames and rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::ruleset::{Direction, Peer, RuleSpec};
use dataplane::{NetworkIdx, PortConfig, PortSlot, PortUid, RuleSlot};
use wire::build::{self, Builder};
use wire::parse::TcpFlags;
use wire::{Mac, Vni};

pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const RST: TcpFlags = TcpFlags::RST;
pub const FIN_ACK: TcpFlags = TcpFlags(0x11);
pub const SYN_ACK: TcpFlags = TcpFlags(0x12);
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A guest's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nic {
    pub slot: PortSlot,
    pub uid: PortUid,
    pub mac: Mac,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Nic {
    /// The one in this slot, with an address of each family.
    pub fn new(network: u32, slot: PortSlot, uid: PortUid) -> Nic {
        let n = slot.0 as u8 + 1;
        Nic {
            slot,
            uid,
            mac: Mac([2, 0, 0, 0, network as u8, n]),
            v4: Ipv4Addr::new(10, 0, 0, n),
            v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()),
        }
    }

    pub fn ip(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// As it begins: in no group, with anti-spoofing.
    pub fn config(self, network: u32) -> PortConfig {
        let (vni, index) = (Vni::new(network).unwrap(), NetworkIdx(network));
        PortConfig {
            name: "nic".into(),
            addresses: vec![self.v4.into(), self.v6.into()],
            anti_spoof: true,
            flow_share: 1000,
            ..PortConfig::new(self.slot, self.uid, vni, index, self.mac)
        }
    }
}

/// A frame from one NIC to another, as far as IP.
pub fn ip(from: Nic, to: Nic, family: Family) -> Builder {
    build::frame(from.mac, to.mac).ip(from.ip(family), to.ip(family))
}

pub fn udp(from: Nic, to: Nic, family: Family, sport: u16, dport: u16) -> Vec<u8> {
    ip(from, to, family)
        .udp(sport, dport)
        .payload(b"hello")
        .build()
}

/// A segment of a connection that `connect` has opened, by who has sent nothing since.
pub fn amid(from: Nic, to: Nic, family: Family, sport: u16, dport: u16) -> Vec<u8> {
    let segment = ip(from, to, family).tcp(sport, dport, ACK);
    segment.seq(1001).ack(1001).build()
}

/// An address that is no NIC's.
pub fn foreign(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 9, 9, 9]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 9, 0, 0, 0, 0, 9]),
    }
}

pub fn rule(
    direction: Direction,
    protocol: Option<u8>,
    ports: std::ops::RangeInclusive<u16>,
    peer: Peer,
) -> RuleSpec {
    RuleSpec {
        direction,
        protocol,
        selector: ports,
        peer,
        slot: RuleSlot(0),
    }
}

/// Anybody may reach this port.
pub fn allow_in(protocol: u8, port: u16) -> RuleSpec {
    rule(Direction::Ingress, Some(protocol), port..=port, Peer::Any)
}

pub fn allow_out(protocol: u8, port: u16) -> RuleSpec {
    rule(Direction::Egress, Some(protocol), port..=port, Peer::Any)
}

/// Everything of a protocol, or of all, from anybody.
pub fn allow_all_in(protocol: Option<u8>) -> RuleSpec {
    rule(Direction::Ingress, protocol, 0..=u16::MAX, Peer::Any)
}

pub fn allow_all_out(protocol: Option<u8>) -> RuleSpec {
    rule(Direction::Egress, protocol, 0..=u16::MAX, Peer::Any)
}
