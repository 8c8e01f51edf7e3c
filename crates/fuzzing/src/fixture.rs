//! What the targets with a whole data plane share ([`crate::round`], [`crate::tunnel`],
//! [`crate::whole`]): a lab that
//! is used for many inputs, the addresses of its guests, and their ports.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread::LocalKey;
use std::time::Duration;

use dataplane::underlay::{Encapsulation, Hop, Underlay};
use dataplane::*;
use wire::parse::{self, L4, TcpFlags};
use wire::{Mac, Vni};

use crate::input::Input;

/// This host towards others, and the router that leads to them.
pub const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const HERE_MAC: Mac = Mac([2, 0xaa, 0, 0, 0, 1]);
pub const ROUTER_MAC: Mac = Mac([2, 0xaa, 0, 0, 0, 2]);

/// Inputs for one lab, which become sixteen years.
const INPUTS_MAX: usize = 1000;

/// A data plane in virtual time, and what is attached to it.
pub trait Lab: Sized + 'static {
    /// The most steps of an input.
    const STEPS_MAX: usize;

    fn new() -> Self;

    /// Makes everything as it was when it was new, for an input that begins.
    fn begin(&mut self, input: &mut Input<'_>);

    fn step(&mut self, input: &mut Input<'_>);

    /// After an input: lets longer pass than anything is remembered, and looks at what comes of it.
    fn end(&mut self);
}

/// The lab of the input before, and how many it has had: setting one up takes a dance with another
/// thread. Its tables are emptied by time.
pub type Reused<L> = RefCell<Option<(L, usize)>>;

/// Longer than anything is remembered.
pub const FORGOTTEN: Duration = Duration::from_secs(6 * 86_400);

/// Plays an input in a lab.
pub fn play<L: Lab>(reused: &'static LocalKey<Reused<L>>, data: &[u8]) {
    let mut input = Input::new(data);
    // A lab in which something went wrong does not come back.
    let (mut lab, inputs) = reused.take().unwrap_or_else(|| (L::new(), 0));
    lab.begin(&mut input);
    for _ in 0..L::STEPS_MAX {
        if input.is_empty() {
            break;
        }
        lab.step(&mut input);
    }
    lab.end();
    reused.set(Some((lab, inputs + 1)).filter(|(_, inputs)| *inputs < INPUTS_MAX));
}

/// Small tables, and a port that breaks its protocol is our fault.
pub fn simulation() -> Simulation {
    Simulation::new(WorkerConfig {
        max_flows: 64,
        max_fragments: 16,
        max_learned_macs: 4,
        seed: 1,
        on_broken: Box::new(|slot, error| panic!("{slot:?}: {error}")),
    })
}

/// The MAC of guest number `host` of a network.
pub fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

/// Its IPv4 address.
pub fn v4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host)
}

/// Its IPv6 address.
pub fn v6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into())
}

/// The VLAN that our address is in besides none.
pub const VLAN: u16 = 5;

/// A NIC with these addresses that may send in its own name alone.
pub fn port(slot: u32, host: u8, vni: Vni, network: NetworkIdx, group: GroupIdx) -> PortConfig {
    let (slot, uid) = (PortSlot(slot), PortUid(100 + slot));
    PortConfig {
        name: "nic".into(),
        addresses: vec![v4(host).into(), v6(host).into()],
        anti_spoof: true,
        groups: vec![group],
        flow_share: 32,
        ..PortConfig::new(slot, uid, vni, network, mac(host))
    }
}

/// All those hosts are behind the router, and reach us untagged and in this VLAN, over a wire with
/// this MTU.
pub fn underlay(hosts: impl IntoIterator<Item = Ipv4Addr>, mtu: u16) -> Underlay {
    let hop = Hop {
        uplink: PortSlot::uplink(0),
        src_mac: HERE_MAC,
        dst_mac: ROUTER_MAC,
        vlan: None,
        source: HERE.into(),
        mtu,
        weight: 1,
        device: 0,
    };
    let hosts = hosts.into_iter();
    let paths = hosts.map(|host| (host.into(), vec![hop.clone()]));
    let endpoints = [0, VLAN].map(|vlan| (HERE.into(), vlan));
    Underlay::new(Encapsulation::default(), endpoints, paths).expect("a path to each")
}

/// What the switch answers to TCP amid a connection that nobody knows.
pub fn is_reset(frame: &[u8]) -> bool {
    let packet = parse::parse(frame, frame.len());
    let l4 = packet.as_ref().ok().and_then(|packet| packet.ip());
    l4.is_some_and(|ip| matches!(ip.l4_info, L4::Tcp { flags, .. } if flags == TcpFlags::RST))
}
