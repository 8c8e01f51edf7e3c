//! Every way to a server, for every kind of packet: tunnels, families, tags in and out, options and
//! extension headers.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use butterfly_balancer::{Protocol, Server, Service, Tunnel};
use wire::build::{self, Builder};
use wire::parse::TcpFlags;
use xdp::Verdict;

use super::stage::*;

trials! {
    every_way_for_every_packet,
    a_flow_looks_the_same_from_outside,
}

const UDP_PORT: NonZeroU16 = NonZeroU16::new(5555).expect("not zero");

/// Its name, and how it is made on a frame that has its addresses.
type Packet = (&'static str, fn(Builder) -> Builder);

/// What is sent, to a service that has all protocols.
fn packets(v6: bool) -> Vec<Packet> {
    let mut packets: Vec<Packet> = vec![
        ("SYN", |b| b.tcp(40000, PORT, TcpFlags::SYN)),
        ("data", |b| {
            b.tcp(40001, PORT, TcpFlags::ACK).payload(&[7; 999])
        }),
        ("FIN", |b| b.tcp(40001, PORT, TcpFlags::FIN | TcpFlags::ACK)),
        ("short datagram", |b| b.udp(40002, PORT)),
        ("datagram", |b| {
            b.udp(40002, PORT).tos(0xb9).payload(&[3; 333])
        }),
        ("INIT", |b| b.sctp(40003, PORT, 0, 1).payload(&[0; 16])),
        ("DATA", |b| {
            b.sctp(40003, PORT, 0x1234_5678, 0).payload(&[5; 77])
        }),
        ("last hop but one", |b| b.udp(40004, PORT).ttl(2)),
    ];
    if v6 {
        packets.push(("hop-by-hop options", |b| {
            b.extension(0, &[1, 4]).tcp(40005, PORT, TcpFlags::SYN)
        }));
        packets.push(("three extension headers", |b| {
            b.extension(0, &[1, 4])
                .extension(60, &[1, 12, 0, 0])
                .extension(43, &[4, 0])
                .udp(40006, PORT)
        }));
        packets.push(("an authentication header", |b| {
            b.extension(51, &[0; 22]).udp(40007, PORT)
        }));
    } else {
        packets.push(("options", |b| {
            b.ip_options(&[148, 4, 0, 0])
                .tcp(40005, PORT, TcpFlags::SYN)
        }));
        packets.push(("all the options that fit", |b| {
            b.ip_options(&[1; 40]).udp(40006, PORT)
        }));
        packets.push(("padding behind", |b| b.udp(40007, PORT).pad_to(60)));
    }
    packets
}

fn tunnels() -> [(&'static str, Tunnel); 5] {
    [
        ("layer 2", Tunnel::None),
        ("IPIP", Tunnel::Ipip),
        ("GRE", Tunnel::Gre),
        ("FOU", Tunnel::Fou { port: UDP_PORT }),
        ("GUE", Tunnel::Gue { port: UDP_PORT }),
    ]
}

fn every_way_for_every_packet() {
    let mut balancer = stage();
    let mut rows = 0;
    for (name, tunnel) in tunnels() {
        for outer_v6 in [false, true] {
            for (ifindex, vlans) in [(IN, &[][..]), (OUT, &[7][..]), (IN, &[100, 4094][..])] {
                configure(&mut balancer, tunnel, outer_v6, ifindex, vlans);
                for inner_v6 in [false, true] {
                    for tags in [&[][..], &[5][..], &[0x2005, 6][..]] {
                        for (what, make) in packets(inner_v6) {
                            let row = format!(
                                "{what}, IPv6 {inner_v6}, tags {tags:?}, {name}, over IPv6 \
                                 {outer_v6}, to {vlans:?}"
                            );
                            one(&balancer, tunnel, outer_v6, inner_v6, tags, make, &row);
                            rows += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(rows, 5 * 2 * 3 * 2 * 3 * 11);
}

/// One server for both families and all protocols, reached by this way.
fn configure(balancer: &mut Balancer, tunnel: Tunnel, outer_v6: bool, ifindex: u32, vlans: &[u16]) {
    let mut way = hop(outer_v6, 1);
    way.ifindex = ifindex;
    way.vlans = vlans.to_vec();
    let only = Server::new(server(outer_v6, 1))
        .expect("a host")
        .tunnel(tunnel);
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let keys = [false, true]
        .into_iter()
        .flat_map(|v6| protocols.map(|protocol| key(v6, protocol, PORT)));
    apply(balancer, keys.map(|key| Service::new(key).with(only)));
    balancer
        .set_hops(BTreeMap::from([(server(outer_v6, 1), way)]))
        .expect("maps can be written");
}

fn one(
    balancer: &Balancer,
    tunnel: Tunnel,
    outer_v6: bool,
    inner_v6: bool,
    tags: &[u16],
    make: fn(Builder) -> Builder,
    row: &str,
) {
    let start = tags
        .iter()
        .fold(build::frame(ROUTER, OURS), |builder, tag| builder.tag(*tag));
    let frame = make(start.ip(client(inner_v6, 1), vip(inner_v6))).build();
    let way = &balancer.hops()[&server(outer_v6, 1)];
    // A trial's sum begins behind Ethernet's addresses, and tags are none of a NIC's.
    let mut out = if tags.is_empty() && way.vlans.len() < 2 {
        run_summed(balancer, &frame, row)
    } else {
        run(balancer, &frame)
    };
    out.frame = with_its_tags(out.frame, &way.vlans);
    let verdict = if way.ifindex == IN {
        Verdict::Transmit
    } else {
        elsewhere()
    };
    let expected = match tunnel {
        Tunnel::None => forwarded(&frame, way.mac, &way.vlans),
        // Ethernet's padding has no place in a tunnel's length, but it is still behind.
        _ => {
            let (packet, padding) = split_padding(&frame);
            let mut expected = tunnelled(
                &one_hop_less(packet),
                way,
                server(outer_v6, 1),
                tunnel,
                &out.frame,
            );
            expected.extend(padding);
            expected
        }
    };
    assert_eq!(out.verdict, verdict, "{row}");
    assert_eq!(hex(&out.frame), hex(&expected), "{row}");
}

fn split_padding(frame: &[u8]) -> (&[u8], &[u8]) {
    let packet = &frame[l3(frame)..];
    let length = match packet[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
        _ => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
    };
    packet.split_at(length)
}

/// The source port of UDP tunnels and the flow label are the flow's: the same for all its packets,
/// others for other flows.
fn a_flow_looks_the_same_from_outside() {
    let mut balancer = stage();
    configure(&mut balancer, Tunnel::Fou { port: UDP_PORT }, true, IN, &[]);
    let outside = |port, flags| {
        let out = run(&balancer, &tcp(false, 1, port, flags));
        (out.frame[14..18].to_vec(), out.frame[54..56].to_vec())
    };
    let first = outside(1000, TcpFlags::SYN);
    assert_eq!(first, outside(1000, TcpFlags::ACK));
    assert_ne!(first, outside(1001, TcpFlags::SYN));
}
