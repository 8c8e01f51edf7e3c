//! Target `round`: a whole data plane in virtual time, and guests that send whatever frames with
//! whatever offloads.
//!
//! Two networks with the same addresses. In the first `A` may send only in its own name, `L` has
//! machines behind it, `S` watches `A`, and `B` says nothing and lets in TCP to port 80 and UDP to
//! port 53. `X` and `Y` are in the second.
//!
//! Promises: nothing crosses from one network to the other; nobody gets its own frame back; `B`
//! gets what its rules or the protocol's own needs let in and nothing else, also after a checksum
//! was completed or a large frame cut; `A` cannot send in another's name; a frame that goes nowhere
//! is counted under a reason.
//!
//! Input: a byte of what the receivers take, then steps ([`Lab::step`]).

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::ruleset::{Direction, Peer, RuleSet, RuleSpec};
use dataplane::*;
use io::memory_port::MemoryPeer;
use io::port::Accepts;
use wire::build::{self, Builder};
use wire::offload::Offload;
use wire::parse::{self, L4, Net, QuotedL4, TcpFlags, protocol};
use wire::{Mac, Vni, dhcp, nd};

use crate::fixture::{self, FORGOTTEN, Reused};
use crate::input::Input;

const WAITS_MAX: usize = 4;

const A: usize = 0;
const B: usize = 1;
const L: usize = 2;
const S: usize = 3;
const X: usize = 4;
const Y: usize = 5;
const NICS: usize = 6;

/// Index of the network that a NIC is in.
fn network(nic: usize) -> u32 {
    u32::from(nic >= X)
}

/// X and Y are called as A and B are.
fn host(nic: usize) -> u8 {
    (if nic >= X { nic - X } else { nic }) as u8 + 1
}

fn mac(nic: usize) -> Mac {
    fixture::mac(host(nic))
}

fn v4(nic: usize) -> Ipv4Addr {
    fixture::v4(host(nic))
}

fn v6(nic: usize) -> Ipv6Addr {
    fixture::v6(host(nic))
}

struct Lab {
    sim: Simulation,
    peers: Vec<MemoryPeer>,
    epoch: u64,
    /// The snapshot in force has all of B's rules.
    open: bool,
    /// Times that time may still pass for this input: the worker turns often meanwhile.
    waits: usize,
}

/// What the switch itself answers to a frame that is larger than the receiver's MTU: ICMP "needs
/// fragmentation" (RFC 1191) or ICMPv6 "packet too big" (RFC 4443, 3.2).
fn is_too_big(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame[23] == 1 && frame.get(34..36) == Some(&[3, 4]),
        Some([0x86, 0xdd]) => frame[20] == 58 && frame.get(54) == Some(&2),
        _ => false,
    }
}

thread_local! {
    static LAB: Reused<Lab> = const { RefCell::new(None) };
}

/// Sends frames.
pub fn round(data: &[u8]) {
    fixture::play(&LAB, data);
}

impl fixture::Lab for Lab {
    const STEPS_MAX: usize = 64;

    fn new() -> Lab {
        let mut sim = fixture::simulation();
        let peers = (0..NICS)
            .map(|slot| sim.attach(PortSlot(slot as u32)))
            .collect();
        sim.publish(snapshot(1, true));
        Lab {
            sim,
            peers,
            epoch: 1,
            open: true,
            waits: 0,
        }
    }

    /// With receivers that take what the bits of the first byte say.
    fn begin(&mut self, input: &mut Input<'_>) {
        let takes = input.u8();
        let accepts = Accepts {
            checksum: takes & 1 != 0,
            tso4: takes & 2 != 0,
            tso6: takes & 4 != 0,
            ecn: takes & 8 != 0,
            uso: takes & 16 != 0,
        };
        self.peers.iter().for_each(|peer| peer.accept(accepts));
        self.waits = WAITS_MAX;
        if !self.open {
            self.publish(true);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.u8();
        let from = [A, L, X, Y][usize::from(op >> 6)];
        match op & 0x0f {
            0..=2 => {
                let offload = input.offload();
                let frame = input.piece().to_vec();
                self.send(from, vec![(frame, offload)]);
            }
            3..=10 => {
                let frame = self.built(from, input);
                self.send(from, vec![frame]);
            }
            11 | 12 => {
                // Fragments of a good packet, some of them bent.
                let (whole, _) = self.built(from, input);
                let size = usize::from(input.u8() % 64 + 1) * 8;
                let mut pieces = match parse::parse(&whole, whole.len()).map(|packet| packet.net) {
                    Ok(Net::Ip(ip)) if ip.fragment.is_none() && ip.end as usize == whole.len() => {
                        build::fragments(&whole, size, input.u8().into())
                    }
                    _ => vec![whole],
                };
                pieces.truncate(32);
                for piece in &mut pieces {
                    input.corrupt(piece, 0);
                }
                self.send(
                    from,
                    pieces
                        .into_iter()
                        .map(|piece| (piece, Offload::default()))
                        .collect(),
                );
            }
            13 => self.wait(Duration::from_secs(input.u8().into())),
            14 => self.publish(input.u8() & 1 == 0),
            _ => self.wait(Duration::from_millis(input.u8().into())),
        }
    }

    fn end(&mut self) {
        self.sim.advance(FORGOTTEN);
        self.receive(None);
    }
}

impl Lab {
    fn publish(&mut self, open: bool) {
        self.epoch += 1;
        self.open = open;
        self.sim.publish(snapshot(self.epoch, open));
    }

    fn wait(&mut self, time: Duration) {
        if self.waits > 0 {
            self.waits -= 1;
            self.sim.advance(time);
        }
    }

    /// A frame that is good at first.
    fn built(&self, from: usize, input: &mut Input) -> (Vec<u8>, Offload) {
        let choice = input.u8();
        let peers = if network(from) == 0 {
            [A, B, L, B]
        } else {
            [X, Y, X, Y]
        };
        let to = peers[usize::from(choice & 3)];
        let frame = build::frame(mac(from), mac(to));
        let ip: Builder = if choice & 4 == 0 {
            frame.ip(v4(from), v4(to))
        } else {
            frame.ip(v6(from), v6(to))
        };
        let port = |input: &mut Input| match input.u8() {
            0..=99 => 80,
            100..=179 => 53,
            180..=199 => 67,
            200..=210 => 68,
            other => u16::from(other),
        };
        let mut ip = match choice >> 3 & 7 {
            0 | 1 => ip
                .tcp(port(input), port(input), TcpFlags(input.u8()))
                .seq(input.u32())
                .ack(input.u32())
                .window(input.u16()),
            2 => ip.udp(port(input), port(input)),
            3 => ip.sctp(port(input), port(input), input.u32(), input.u8()),
            4 => ip.icmp(input.u8(), input.u8(), input.u32()),
            5 if from != B => {
                let mut frame = match input.u8() % 5 {
                    0 => build::arp_request(mac(from), v4(from), v4(to)),
                    1 => build::neighbour_solicitation(mac(from), v6(from), v6(to)),
                    2 => build::neighbour_advertisement(mac(from), v6(from), mac(to), v6(to)),
                    3 => build::router_advertisement(mac(from)),
                    _ => build::dhcp_request(mac(from), 1, 1),
                };
                input.corrupt(&mut frame, 0);
                return (frame, input.offload());
            }
            5 => ip.icmp(128, 0, 0),
            6 => ip.protocol(input.u8()),
            _ => ip.icmp(3, 1, 0).payload(input.piece()),
        };
        if choice & 0x40 != 0 {
            ip = ip.extension(input.u8(), input.piece());
        }
        let len = usize::from(input.u16()) % 4096;
        ip = ip.payload(&vec![0x55; len]);
        let (mut bytes, mut offload) = (ip.build(), Offload::default());
        if choice & 0x80 != 0 {
            input.corrupt(&mut bytes, 0);
            offload = input.offload();
        }
        (bytes, offload)
    }

    fn send(&mut self, from: usize, frames: Vec<(Vec<u8>, Offload)>) {
        let before = self.drops();
        let single = frames.len() == 1;
        for (frame, offload) in frames {
            let later = parse::parse(&frame, frame.len())
                .is_ok_and(|packet| packet.ip().is_some_and(|ip| ip.fragment.is_some()));
            let counted = single && !later;
            self.peers[from].send(frame, offload);
            if counted {
                self.sim.run();
                let delivered = self.receive(Some(from));
                assert!(
                    delivered > 0 || self.drops() > before,
                    "a frame went without a trace"
                );
            }
        }
        self.sim.run();
        self.receive(Some(from));
    }

    /// Takes and judges what arrived; gives how many, copies for `S` apart.
    fn receive(&mut self, from: Option<usize>) -> usize {
        let mut count = 0;
        for nic in 0..NICS {
            while let Some((frame, offload)) = self.peers[nic].receive() {
                if let Some(from) = from {
                    assert_eq!(network(nic), network(from), "a frame in another network");
                    if nic == from {
                        let answers = is_too_big(&frame) || fixture::is_reset(&frame);
                        assert!(answers, "a frame came back");
                        count += 1;
                        continue;
                    }
                    if from == A && nic != S {
                        in_own_name(&frame);
                    }
                }
                if nic == B {
                    let_in(&frame, &offload);
                }
                count += usize::from(nic != S);
            }
        }
        count
    }

    fn drops(&self) -> u64 {
        let of = |slot| {
            let counters = self.sim.port(PortSlot(slot as u32));
            counters
                .drops_from
                .iter()
                .chain(&counters.drops_to)
                .sum::<u64>()
        };
        (0..NICS).map(of).sum()
    }
}

/// A is spoofing nobody.
fn in_own_name(frame: &[u8]) {
    let packet = parse::parse(frame, frame.len()).expect("a frame that parses");
    assert_eq!(packet.src, mac(A), "another MAC");
    let mine = |address: Ipv6Addr| {
        address == v6(A) || address == mac(A).link_local() || address.is_unspecified()
    };
    match &packet.net {
        Net::Arp(arp) => {
            assert_eq!(arp.sender_mac, mac(A));
            assert!(
                arp.sender_ip == v4(A) || arp.sender_ip.is_unspecified(),
                "{arp:?}"
            );
        }
        Net::Ip(ip) => {
            let own = match ip.src() {
                std::net::IpAddr::V4(address) => address == v4(A) || address.is_unspecified(),
                std::net::IpAddr::V6(address) => mine(address),
            };
            assert!(own, "from {}", ip.src());
            let head = &frame[..frame.len().min(256)];
            if let Ok(Some(message)) = nd::parse(head, ip)
                && let nd::NdKind::NeighbourAdvertisement { target, .. } = message.kind
            {
                assert!(mine(target), "advertises {target}");
            }
        }
        Net::Other => panic!("a frame that nobody has looked into"),
    }
}

/// B's rules, said once more and simply.
fn let_in(frame: &[u8], offload: &Offload) {
    let packet = parse::parse(frame, frame.len()).expect("a frame that parses");
    parse::check_offload(&packet, frame.len(), offload).expect("an offload that suits the frame");
    assert!(
        packet.dst == mac(B) || packet.dst.is_multicast(),
        "{packet:?}"
    );
    let ip = match &packet.net {
        Net::Arp(_) => return,
        Net::Ip(ip) => ip,
        Net::Other => panic!("a frame that nobody has looked into"),
    };
    let head = &frame[..frame.len().min(256)];
    let allowed = match ip.l4_info {
        // Of a datagram whose first fragment was let in.
        L4::LaterFragment => true,
        L4::Tcp { dport, .. } => dport == 80,
        L4::Udp { dport, .. } => dport == 53 || dhcp::is_client_request(ip),
        _ if ip.is_icmp_error() => {
            let quoted = parse::quoted(ip.message(head), ip.v6);
            quoted.is_ok_and(|quoted| matches!(quoted.l4, QuotedL4::Ports { sport: 80 | 53, .. }))
        }
        L4::Icmp { .. } => matches!(nd::parse(head, ip), Ok(Some(message)) if !matches!(
            message.kind,
            nd::NdKind::RouterAdvertisement | nd::NdKind::Redirect { .. }
        )),
        L4::Sctp { .. } | L4::Other => false,
    };
    assert!(allowed, "B was sent {packet:?}");
}

fn snapshot(epoch: u64, open: bool) -> Snapshot {
    let port = |nic: usize| {
        let vni = Vni::new(network(nic) + 1).expect("a VNI");
        let group = GroupIdx(u32::from(nic != B));
        PortConfig {
            anti_spoof: nic != L,
            sniffers: if nic == A {
                vec![PortSlot(S as u32)]
            } else {
                Vec::new()
            },
            is_sniffer: nic == S,
            learn_macs: nic == L,
            ..fixture::port(nic as u32, host(nic), vni, NetworkIdx(network(nic)), group)
        }
    };
    let of_network = |number: u32| {
        let mine = || (0..NICS).filter(move |&nic| network(nic) == number && nic != S);
        Network {
            vni: Vni::new(number + 1).expect("a VNI"),
            macs: mine().map(|nic| (mac(nic), PortSlot(nic as u32))).collect(),
            shared: Default::default(),
            ports: mine().map(|nic| PortSlot(nic as u32)).collect(),
            learners: mine()
                .filter(|&nic| nic == L)
                .map(|nic| PortSlot(nic as u32))
                .collect(),
            overlay: None,
        }
    };
    let rule = |protocol: Option<u8>, port: Option<u16>, slot: u32| RuleSpec {
        direction: Direction::Ingress,
        protocol,
        selector: port.map_or(0..=u16::MAX, |port| port..=port),
        peer: Peer::Any,
        slot: RuleSlot(slot),
    };
    let mut rules = vec![rule(Some(protocol::TCP), Some(80), 0)];
    if open {
        rules.push(rule(Some(protocol::UDP), Some(53), 1));
    }
    let group = |rules| {
        Some(Arc::new(Group {
            rules: RuleSet::new(rules),
            ..Group::default()
        }))
    };
    Snapshot {
        epoch: Epoch(epoch),
        ports: (0..NICS).map(|nic| Some(Arc::new(port(nic)))).collect(),
        networks: (0..2)
            .map(|number| Some(Arc::new(of_network(number))))
            .collect(),
        groups: [group(rules), group(vec![rule(None, None, 2)])]
            .into_iter()
            .collect(),
        hosts: Default::default(),
        ..Snapshot::default()
    }
}
