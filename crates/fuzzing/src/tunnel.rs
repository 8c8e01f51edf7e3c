//! Target `tunnel`: a host whose network goes on on another one, and whatever comes from the wire
//! and from its guests.
//!
//! `A` lets in everything, `B` TCP to port 80 alone. `F` is bound to one of the network's two
//! hosts; where others are is learnt. A third host is of other networks alone, a fourth
//! host is nobody's. Frames come as any bytes, or as good outer headers around a good inner frame,
//! some of either bent.
//!
//! Promises: what goes to the wire is VXLAN of our network to that host, no larger than the way
//! takes, and carries what a NIC of ours has sent, never what has come from the wire; nobody on the
//! wire is delivered in the name of one of ours, of a machine on another host, as a DHCP server or
//! as a router; nothing is delivered from who has no part in the network; `B` gets what its rules
//! let in; a frame that goes nowhere is counted under a reason.
//!
//! Input: steps ([`Lab::step`]).

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::overlay::{Flood, HostIdx, Overlay};
use dataplane::ruleset::{Direction, Peer, RuleSet, RuleSpec};
use dataplane::*;
use io::memory_port::MemoryPeer;
use wire::build;
use wire::offload::Offload;
use wire::parse::{self, L4, Net, TcpFlags, protocol};
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, checksum};

use crate::fixture::{self, FORGOTTEN, HERE, HERE_MAC, ROUTER_MAC, Reused, mac, v4, v6};
use crate::input::Input;

const A: u8 = 1;
const B: u8 = 2;
const F: u8 = 3;

const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// A host of the network, but not the one that F is behind.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// A host that is known, but only of other networks.
const OTHERS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 4);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const VNI: u32 = 7;
/// The largest outer packet.
const MTU: u16 = 1400;
/// Half of all frames stay whole ([`Input::corrupt`]): they have two headers to be right in.
const SPARED: u8 = 4;

struct Lab {
    sim: Simulation,
    /// The guests of A and B.
    peers: [MemoryPeer; 2],
    wire: MemoryPeer,
}

thread_local! {
    static LAB: Reused<Lab> = const { RefCell::new(None) };
}

/// Sends frames.
pub fn tunnel(data: &[u8]) {
    fixture::play(&LAB, data);
}

impl fixture::Lab for Lab {
    const STEPS_MAX: usize = 32;

    fn new() -> Lab {
        let mut sim = fixture::simulation();
        let peers = [0, 1].map(|slot| sim.attach(PortSlot(slot)));
        let wire = sim.attach(PortSlot::uplink(0));
        sim.publish(snapshot());
        sim.set_underlay(fixture::underlay([THERE], MTU));
        Lab { sim, peers, wire }
    }

    fn begin(&mut self, _: &mut Input<'_>) {}

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        // What an interface says is undone is what a neighbour on the same host has left so.
        let undone = |input: &mut Input<'_>| match what & 0x80 {
            0 => Offload::default(),
            _ => input.offload(),
        };
        match what % 8 {
            0 => {
                let offload = undone(input);
                self.arrive(input.piece().to_vec(), offload);
            }
            1..=4 => {
                let inner = inner(input);
                let mut frame = outer(&inner, input);
                input.corrupt(&mut frame, SPARED);
                let offload = undone(input);
                self.arrive(frame, offload);
            }
            5 | 6 => {
                let (frame, offload) = (inner(input), input.offload());
                let to = usize::from(input.u8() & 1);
                self.leave(to, frame, offload);
            }
            _ => self.sim.advance(Duration::from_secs(input.u8().into())),
        }
    }

    fn end(&mut self) {
        self.sim.advance(FORGOTTEN);
    }
}

impl Lab {
    /// A frame comes from the wire.
    fn arrive(&mut self, frame: Vec<u8>, offload: Offload) {
        // The memory port takes no frame of no bytes for one.
        if frame.is_empty() {
            return;
        }
        let before = self.drops();
        let received = vxlan::parse(&frame, frame.len(), vxlan::PORT);
        let from = received.as_ref().ok().map(|received| received.src);
        let later = received.is_ok_and(|received| {
            let inner = &frame[usize::from(received.inner)..received.end as usize];
            parse::parse(inner, inner.len())
                .is_ok_and(|packet| packet.ip().is_some_and(|ip| ip.fragment.is_some()))
        });
        self.wire.send(frame, offload);
        self.sim.run();
        while let Some((back, _)) = self.wire.receive() {
            let outer = vxlan::parse(&back, back.len(), vxlan::PORT).expect("VXLAN");
            let inner = &back[usize::from(outer.inner)..outer.end as usize];
            let answers = fixture::is_reset(inner) && Some(outer.dst) == from;
            assert!(answers, "back to the wire: {back:02x?}");
        }
        let mut count = 0;
        for nic in 0..2 {
            while let Some((frame, _)) = self.peers[nic].receive() {
                from_elsewhere(&frame, from);
                if nic == 1 {
                    let_in(&frame);
                }
                count += 1;
            }
        }
        assert!(
            count > 0 || later || self.drops() > before,
            "a frame went without a trace"
        );
    }

    /// A guest sends a frame.
    fn leave(&mut self, from: usize, frame: Vec<u8>, offload: Offload) {
        self.peers[from].send(frame, offload);
        self.sim.run();
        while let Some((frame, _)) = self.wire.receive() {
            let received = vxlan::parse(&frame, frame.len(), vxlan::PORT).expect("VXLAN");
            assert_eq!((received.src, received.dst), (HERE.into(), THERE.into()));
            assert_eq!(received.vni.id(), VNI);
            assert!(
                frame.len() <= usize::from(MTU) + 14,
                "{} bytes",
                frame.len()
            );
            let inner = &frame[usize::from(received.inner)..];
            let packet = parse::parse(inner, inner.len()).expect("an inner frame that parses");
            assert_eq!(packet.src, mac(from as u8 + 1), "somebody else's frame");
        }
        for peer in &self.peers {
            while peer.receive().is_some() {}
        }
    }

    fn drops(&self) -> u64 {
        let of = |slot| {
            let counters = self.sim.port(slot);
            counters
                .drops_from
                .iter()
                .chain(&counters.drops_to)
                .sum::<u64>()
        };
        [PortSlot(0), PortSlot(1), PortSlot::uplink(0)]
            .map(of)
            .iter()
            .sum()
    }
}

/// Nobody on the wire is one of ours, or of another host than the one that the frame has come from.
fn from_elsewhere(frame: &[u8], from: Option<IpAddr>) {
    let packet = parse::parse(frame, frame.len()).expect("a frame that parses");
    assert!(packet.src != mac(A) && packet.src != mac(B), "{packet:?}");
    let ours = |address: IpAddr| {
        [A, B]
            .iter()
            .any(|host| address == v4(*host) || address == v6(*host))
    };
    let source = match &packet.net {
        Net::Arp(arp) => Some(arp.sender_ip.into()),
        Net::Ip(ip) => Some(ip.src()),
        Net::Other => panic!("a frame that nobody has looked into"),
    };
    assert!(!source.is_some_and(ours), "{packet:?}");
    let of_f = |address: IpAddr| address == v4(F) || address == v6(F);
    let ip = packet.ip();
    // What is released with its first fragment may have come from another host than that.
    if ip.is_some_and(|ip| ip.fragment.is_some()) {
        return;
    }
    let from = from.expect("delivered without a sender");
    assert!(
        [THERE, ELSEWHERE].iter().any(|one| from == *one),
        "from {from}"
    );
    if from != THERE {
        assert!(
            packet.src != mac(F) && !source.is_some_and(of_f),
            "{from}: {packet:?}"
        );
    }
    let refused = ip.is_some_and(|ip| match ip.l4_info {
        L4::Udp { dport, .. } => dport == if ip.v6 { 546 } else { 68 },
        L4::Icmp { kind, .. } if ip.v6 => matches!(kind, 134 | 137),
        L4::Icmp { kind, .. } => matches!(kind, 5 | 9),
        _ => false,
    });
    assert!(!refused, "{from} may not say so: {packet:?}");
}

/// B's rules; what the protocol's own needs let in is told apart by the `round` target.
fn let_in(frame: &[u8]) {
    let packet = parse::parse(frame, frame.len()).expect("a frame that parses");
    if let Some(ip) = packet.ip() {
        let refused = match ip.l4_info {
            L4::Tcp { dport, .. } => dport != 80,
            L4::Udp { sport, dport } => ![67, 68, 546, 547]
                .iter()
                .any(|port| [sport, dport].contains(port)),
            L4::Sctp { .. } => true,
            _ => false,
        };
        // What B has begun itself is answered.
        assert!(
            !refused || ip.dst() == v4(B) || ip.dst() == v6(B),
            "B was sent {packet:?}"
        );
    }
}

/// An inner frame that is good at first.
fn inner(input: &mut Input) -> Vec<u8> {
    let choice = input.u8();
    let host = |bits: u8| [A, B, F, 9][usize::from(bits & 3)];
    let (from, to) = (host(choice), host(choice >> 2));
    let dst = if choice & 0x80 != 0 {
        Mac::BROADCAST
    } else {
        mac(to)
    };
    let frame = build::frame(mac(from), dst);
    let ip = match choice & 0x10 {
        0 => frame.ip(v4(from), v4(to)),
        _ => frame.ip(v6(from), v6(to)),
    };
    let ip = ip.tos(input.u8());
    let mut bytes = match choice >> 5 & 3 {
        0 => ip
            .tcp(input.u16(), 80, TcpFlags(input.u8()))
            .payload(&vec![1; usize::from(input.u16()) % 2000])
            .build(),
        1 => ip
            .udp(input.u8().into(), input.u8().into())
            .payload(&vec![2; usize::from(input.u16()) % 2000])
            .build(),
        2 => build::arp_request(mac(from), v4(from), v4(to)),
        _ => build::neighbour_solicitation(mac(from), v6(from), v6(to)),
    };
    input.corrupt(&mut bytes, SPARED);
    bytes
}

/// Around it, good outer headers from one host or another.
fn outer(inner: &[u8], input: &mut Input) -> Vec<u8> {
    let choice = input.u8();
    let from = match choice & 7 {
        7 => STRANGER,
        6 => OTHERS,
        4 | 5 => ELSEWHERE,
        _ => THERE,
    };
    let udp = if choice & 8 == 0 {
        UdpChecksum::Zero
    } else {
        UdpChecksum::Full
    };
    let vlan = (choice & 0x30 == 0x30).then_some(fixture::VLAN);
    let mut outer = Outer::new(
        (ROUTER_MAC, HERE_MAC),
        vlan,
        Ends::V4(from, HERE),
        64,
        vxlan::PORT,
        udp,
    );
    outer.set_flow(Vni::new(VNI).expect("a VNI"), input.u16(), choice >> 6);
    let mut frame = vec![0; outer.len()];
    outer.write(&mut frame, inner.len(), checksum::sum(inner));
    frame.extend_from_slice(inner);
    frame
}

fn snapshot() -> Snapshot {
    let vni = Vni::new(VNI).expect("a VNI");
    let port = |host: u8| {
        let slot = u32::from(host) - 1;
        fixture::port(slot, host, vni, NetworkIdx(0), GroupIdx(slot))
    };
    let mut overlay = Overlay::new(PortUid(50));
    overlay.bindings.insert(mac(F), HostIdx(0));
    overlay.neighbours.insert(v4(F).into(), mac(F).into());
    overlay.neighbours.insert(v6(F).into(), mac(F).into());
    overlay.members = [HostIdx(0), HostIdx(1)].into();
    overlay.flood = Flood::Hosts([HostIdx(0)].into());
    overlay.learn = true;
    let network = Network {
        vni,
        macs: [A, B]
            .map(|host| (mac(host), PortSlot(u32::from(host) - 1)))
            .into_iter()
            .collect(),
        ports: vec![PortSlot(0), PortSlot(1)],
        shared: Default::default(),
        learners: Vec::new(),
        overlay: Some(Arc::new(overlay)),
    };
    let group = |protocol, ports| {
        let rule = RuleSpec {
            direction: Direction::Ingress,
            protocol,
            selector: ports,
            peer: Peer::Any,
            slot: RuleSlot(0),
        };
        Some(Arc::new(Group {
            rules: RuleSet::new(vec![rule]),
            ..Group::default()
        }))
    };
    Snapshot {
        epoch: Epoch(1),
        ports: [A, B]
            .map(|host| Some(Arc::new(port(host))))
            .into_iter()
            .collect(),
        networks: [Some(Arc::new(network))].into_iter().collect(),
        groups: [
            group(None, 0..=u16::MAX),
            group(Some(protocol::TCP), 80..=80),
        ]
        .into_iter()
        .collect(),
        hosts: [THERE, ELSEWHERE, OTHERS]
            .map(|host| Some(host.into()))
            .into_iter()
            .collect(),
        ..Snapshot::default()
    }
}
