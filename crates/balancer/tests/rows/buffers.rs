//! Packets that are not frames yet, at tc ingress: begun checksums and segments that are not cut,
//! from a TAP device through the program and out of another one, by every way to a server. What
//! comes out, cut and finished, is what the rows expect of each of the packets that came in.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use butterfly_balancer::{Hop, Interface, Protocol, Reason, Server, Service, Tunnel};
use testkit::cable::{Cable, Undone, packets};
use testkit::netns::Namespace;
use wire::build::{self, Builder};
use wire::checksum;
use wire::parse::TcpFlags;
use xdp::Mode;

use crate::rows::stage::*;

/// All trials, by the names of their functions.
pub const TRIALS: &[crate::rows::Trial] = &[
    ("segments_go_every_way", segments_go_every_way),
    (
        "errors_quote_what_is_not_finished",
        errors_quote_what_is_not_finished,
    ),
];

const UDP_PORT: NonZeroU16 = NonZeroU16::new(5555).expect("not zero");
const FAR: wire::Mac = wire::Mac([2, 0, 0, 0, 0, 9]);

/// Both ends of the balancer's host.
struct Hall {
    balancer: Balancer,
    near: Cable,
    far: Cable,
    out: u32,
}

/// Runs a story in a namespace with the program at tc ingress of one TAP device.
fn hall(story: impl FnOnce(Hall) + Send) {
    let namespace = Namespace::new().expect("a namespace");
    let work = || {
        let near = Cable::new("near", OURS).expect("a TAP device");
        let far = Cable::new("far", FAR).expect("a TAP device");
        let index = |name: &str| namespace.ifindex(name).expect("it is there");
        let mut balancer = stage_with(&small());
        balancer.forget_interface(IN).expect("maps can be written");
        let taken = Interface::new(index("near"), OURS);
        let mode = balancer
            .attach(taken, Some(Mode::Tc))
            .expect("TAP devices have tc");
        assert_eq!(mode, Mode::Tc);
        let out = index("far");
        story(Hall {
            balancer,
            near,
            far,
            out,
        });
    };
    namespace.inside(work).expect("enter");
}

impl Hall {
    /// One server for both families, by this way.
    fn configure(&mut self, tunnel: Tunnel, outer_v6: bool, vlans: &[u16]) -> Hop {
        let mut way = hop(outer_v6, 1);
        way.ifindex = self.out;
        way.vlans = vlans.to_vec();
        let only = Server::new(server(outer_v6, 1))
            .expect("a host")
            .tunnel(tunnel);
        let keys = [false, true]
            .into_iter()
            .flat_map(|v6| [Protocol::Tcp, Protocol::Udp].map(|protocol| key(v6, protocol, PORT)));
        apply(
            &mut self.balancer,
            keys.map(|key| Service::new(key).with(only)),
        );
        let ways = BTreeMap::from([(server(outer_v6, 1), way.clone())]);
        self.balancer.set_hops(ways).expect("maps can be written");
        way
    }

    /// What a packet becomes at the far end.
    fn becomes(&mut self, (frame, offload): &Undone) -> Vec<Vec<u8>> {
        self.near
            .send(frame, *offload)
            .expect("the interface is up");
        packets(&self.far.receive().expect("the interface is up")).expect("they can be finished")
    }
}

/// Its name, and how it is made on a frame that has its addresses.
type Kind = (&'static str, fn(Builder) -> Builder);

const KINDS: [Kind; 6] = [
    ("begun TCP", |b| {
        b.tcp(40000, PORT, TcpFlags::ACK)
            .payload(&[7; 999])
            .partial_checksum()
    }),
    ("begun UDP", |b| {
        b.udp(40001, PORT).payload(&[3; 333]).partial_checksum()
    }),
    ("finished TCP", |b| {
        b.tcp(40000, PORT, TcpFlags::ACK).payload(&[8; 77])
    }),
    ("segments of TCP", |b| {
        b.tcp(40002, PORT, TcpFlags::ACK | TcpFlags::PSH)
            .payload(&[9; 5000])
            .gso(1300)
    }),
    ("64 KiB of TCP", |b| {
        b.tcp(40002, PORT, TcpFlags::ACK)
            .payload(&[1; 64000])
            .gso(1200)
    }),
    ("datagrams of UDP", |b| {
        b.udp(40003, PORT).payload(&[2; 3500]).gso(1000)
    }),
];

fn segments_go_every_way() {
    let tunnels = [
        Tunnel::None,
        Tunnel::Ipip,
        Tunnel::Gre,
        Tunnel::Fou { port: UDP_PORT },
        Tunnel::Gue { port: UDP_PORT },
    ];
    hall(|mut hall| {
        for tunnel in tunnels {
            for outer_v6 in [false, true] {
                for vlans in [&[][..], &[7][..], &[100, 4094][..]] {
                    let way = hall.configure(tunnel, outer_v6, vlans);
                    for v6 in [false, true] {
                        for tags in [&[][..], &[5][..], &[0x2005, 6][..]] {
                            for (what, make) in KINDS {
                                let row = format!(
                                    "{what}, IPv6 {v6}, tags {tags:?}, {tunnel:?} over IPv6 \
                                     {outer_v6}, to {vlans:?}"
                                );
                                let start = tags
                                    .iter()
                                    .fold(build::frame(ROUTER, OURS), |builder, tag| {
                                        builder.tag(*tag)
                                    });
                                let sent =
                                    make(start.ip(client(v6, 1), vip(v6))).build_with_offload();
                                one(&mut hall, &way, tunnel, outer_v6, &sent, &row);
                            }
                        }
                    }
                }
            }
        }
    });
}

fn one(hall: &mut Hall, way: &Hop, tunnel: Tunnel, outer_v6: bool, sent: &Undone, row: &str) {
    let came = hall.becomes(sent);
    let whole = packets(std::slice::from_ref(sent)).expect("our own packets");
    assert_eq!(came.len(), whole.len(), "{row}");
    for (came, packet) in came.iter().zip(&whole) {
        let expected = match tunnel {
            Tunnel::None => forwarded(packet, way.mac, &way.vlans),
            _ => {
                let inner = one_hop_less(&packet[l3(packet)..]);
                let mut expected = tunnelled(&inner, way, server(outer_v6, 1), tunnel, came);
                if !outer_v6 {
                    take_identification(&mut expected, came);
                }
                expected
            }
        };
        assert_eq!(hex(came), hex(&expected), "{row}");
    }
}

/// The kernel numbers the outer headers of segments; nobody fragments them, so no number means
/// anything.
fn take_identification(expected: &mut [u8], came: &[u8]) {
    let at = l3(expected);
    expected[at + 4..at + 6].copy_from_slice(&came[at + 4..at + 6]);
    expected[at + 10..at + 12].fill(0);
    let sum = checksum::checksum(&expected[at..at + 20]);
    expected[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Bytes that an error quotes (bpf/lib/icmp.h).
const QUOTE: usize = 128;

fn errors_quote_what_is_not_finished() {
    hall(|mut hall| {
        hall.configure(Tunnel::Ipip, false, &[]);
        for v6 in [false, true] {
            for tags in [&[][..], &[5][..]] {
                for (what, make) in KINDS {
                    for too_big in [false, true] {
                        let row = format!("{what}, IPv6 {v6}, tags {tags:?}, too big {too_big}");
                        let start = tags
                            .iter()
                            .fold(build::frame(ROUTER, OURS), |builder, tag| builder.tag(*tag));
                        let start = start.ip(client(v6, 1), vip(v6));
                        let builder = match too_big {
                            // With any headers: over 1480, and not over 1500.
                            true if what.starts_with("segments") => start
                                .tcp(40002, PORT, TcpFlags::ACK)
                                .payload(&[9; 5000])
                                .gso(if v6 { 1430 } else { 1450 }),
                            true => continue,
                            false => make(start.ttl(1)),
                        };
                        refused(&mut hall, &builder.build_with_offload(), v6, too_big, &row);
                    }
                }
            }
        }
        let counters = hall.balancer.counters().expect("maps can be read");
        assert_eq!(counters.reason(Reason::Silent), 0, "all are answered");
    });
}

fn refused(hall: &mut Hall, sent: &Undone, v6: bool, too_big: bool, row: &str) {
    assert!(hall.becomes(sent).is_empty(), "{row}: nothing goes on");
    let back = packets(&hall.near.receive().expect("it is up")).expect("they can be finished");
    let [error] = &back[..] else {
        panic!("{row}: {} answers", back.len())
    };
    let frame = &sent.0;
    assert_eq!(error[..6], frame[6..12], "{row}: to whom it came from");
    let (at, headers) = (l3(frame), if v6 { 40 } else { 20 });
    assert_eq!(error[12..at], frame[12..at], "{row}: with its tags");
    let packet = &error[at..];
    let quoted = (frame.len() - at).min(QUOTE) & !1;
    assert_eq!(packet.len(), headers + 8 + quoted, "{row}");
    let icmp = &packet[headers..];
    let sum = match (client(v6, 1), vip(v6)) {
        (std::net::IpAddr::V6(to), std::net::IpAddr::V6(from)) => checksum::add(
            checksum::pseudo_v6(from, to, 58, icmp.len() as u32),
            checksum::sum(icmp),
        ),
        _ => checksum::sum(icmp),
    };
    assert_eq!(checksum::fold(sum), 0xffff, "{row}: its checksum holds");
    let (kind, code, rest) = match (v6, too_big) {
        (false, false) => (11, 0, 0),
        (false, true) => (3, 4, 1480),
        (true, false) => (3, 0, 0),
        (true, true) => (2, 0, 1480),
    };
    assert_eq!((icmp[0], icmp[1]), (kind, code), "{row}");
    assert_eq!(icmp[4..8], u32::to_be_bytes(rest), "{row}");
    // Its own checksum may have been finished there.
    let mut quote = icmp[8..].to_vec();
    let mut ours = frame[at..at + quoted].to_vec();
    let field = headers
        + if ours[if v6 { 6 } else { 9 }] == 6 {
            16
        } else {
            6
        };
    quote[field..field + 2].fill(0);
    ours[field..field + 2].fill(0);
    assert_eq!(hex(&quote), hex(&ours), "{row}");
}
