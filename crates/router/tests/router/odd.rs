//! Why a packet is the kernel's: each reason has a packet that gives it, and counts nothing else.

use crate::lab::{EAST, SMALL, host, story};
use crate::ours::Ours;
use crate::packets::{from, to};
use butterfly_router::layout::Counter;
use wire::Mac;

#[test]
fn each_reason_is_counted_by_its_name() {
    let setup = "ip route add blackhole 192.0.2.0/24; ip route add prohibit 192.0.3.0/24
        ip link add other type veth peer name far; ip link set other up; ip link set far up
        ip addr add 10.3.0.1/24 dev other; ip neigh add 10.3.0.2 lladdr 02:00:00:00:03:02 dev other
        ip route add 192.0.4.0/24 via 10.3.0.2";
    story(setup, async |_, mut lab| {
        let ours = Ours::start(&SMALL).await;
        let four = || to("203.0.113.7").udp(1, 2).payload(b"hello");
        let six = || to("2001:db8:f::7").udp(1, 2).payload(b"hello");
        let spoilt = |at: usize, by: u8| {
            let mut bytes = four().build();
            bytes[at] ^= by;
            bytes
        };
        let address = |text: &str| text.parse().expect("an address");
        let rows: Vec<(Counter, Vec<u8>)> = vec![
            (Counter::Forwarded, four().build()),
            (Counter::Forwarded, six().build()),
            (Counter::Forwarded, to("10.2.0.4").udp(1, 2).build()),
            (Counter::Forwarded, to("2001:db8:2::4").udp(1, 2).build()),
            (Counter::Blackhole, to("192.0.2.1").udp(1, 2).build()),
            (
                Counter::NotToUs,
                wire::build::frame(host(1, 2), Mac::BROADCAST)
                    .ip(v4(10, 1, 0, 2), v4(203, 0, 113, 7))
                    .udp(1, 2)
                    .build(),
            ),
            (Counter::Malformed, four().build()[..40].to_vec()),
            (Counter::Malformed, six().build()[..60].to_vec()),
            (Counter::Checksum, spoilt(24, 1)),
            (Counter::Options, four().ip_options(&[1, 1, 1, 0]).build()),
            (
                Counter::Options,
                to("2001:db8:f::7")
                    .extension(0, &[1, 4, 0, 0, 0, 0])
                    .udp(1, 2)
                    .build(),
            ),
            (Counter::HopLimit, four().ttl(1).build()),
            (Counter::HopLimit, six().ttl(1).build()),
            (
                Counter::TooBig,
                to("203.0.113.7").udp(1, 2).payload(&[0; 1380]).build(),
            ),
            (
                Counter::TooBig,
                to("198.51.100.9").udp(1, 2).payload(&[0; 1280]).build(),
            ),
            (
                Counter::TooBig,
                to("2001:db8:f::7").udp(1, 2).payload(&[0; 1360]).build(),
            ),
            (
                Counter::Source,
                from("10.2.0.1", address("203.0.113.7")).udp(1, 2).build(),
            ),
            (
                Counter::Source,
                from("127.0.0.1", address("203.0.113.7")).udp(1, 2).build(),
            ),
            (
                Counter::Source,
                from("fe80::2", address("2001:db8:f::7")).udp(1, 2).build(),
            ),
            (Counter::Destination, to("224.0.0.5").udp(1, 2).build()),
            (Counter::Destination, to("10.2.0.255").udp(1, 2).build()),
            (Counter::Destination, to("ff02::1").udp(1, 2).build()),
            (Counter::Local, to("10.2.0.1").udp(1, 2).build()),
            (Counter::Local, to("2001:db8:2::1").udp(1, 2).build()),
            (Counter::NoRoute, to("172.16.0.1").udp(1, 2).build()),
            (Counter::NoRoute, to("2001:db8:dead::1").udp(1, 2).build()),
            (Counter::Refused, to("192.0.3.1").udp(1, 2).build()),
            (Counter::Neighbour, to("10.2.0.77").udp(1, 2).build()),
            (Counter::SameInterface, to("10.1.0.3").udp(1, 2).build()),
            (Counter::Elsewhere, to("192.0.4.1").udp(1, 2).build()),
            (Counter::Asked, arp(1)),
            (Counter::Told, arp(2)),
            (Counter::Malformed, arp(9)),
            (Counter::Asked, discovery(135, "ff02::1:ff00:1")),
            (Counter::Told, discovery(136, "2001:db8:1::1")),
            // To a host behind us, for which the kernel may answer (proxy_ndp).
            (Counter::Asked, discovery(135, "2001:db8:2::2")),
            (Counter::Told, discovery(136, "2001:db8:2::2")),
            (Counter::Beyond, discovery(133, "2001:db8:2::2")),
            (Counter::Beyond, discovery(137, "2001:db8:2::2")),
            (Counter::Forwarded, discovery(132, "2001:db8:2::2")),
            (Counter::Forwarded, discovery(138, "2001:db8:2::2")),
        ];
        for (expected, frame) in rows {
            let before: Vec<u64> = Counter::ALL
                .iter()
                .map(|counter| ours.count(*counter))
                .collect();
            lab.east.send(&frame);
            let after: Vec<u64> = Counter::ALL
                .iter()
                .map(|counter| ours.count(*counter))
                .collect();
            let risen = Counter::ALL.iter().zip(before.iter().zip(after));
            let mut risen: Vec<_> = risen
                .filter(|(_, (before, after))| *before < after)
                .map(|(c, _)| *c)
                .collect();
            match expected {
                Counter::Forwarded => {
                    risen.retain(|counter| *counter != Counter::Known);
                    assert_eq!(
                        risen,
                        [Counter::Forwarded, Counter::ForwardedBytes, Counter::Sent],
                        "{frame:02x?}"
                    );
                }
                other => assert_eq!(risen, [other], "{frame:02x?}"),
            }
        }
        assert_ne!(EAST, host(1, 2));
    });
}

/// ARP of this operation from a host in the east, to all.
fn arp(operation: u8) -> Vec<u8> {
    let from = host(1, 2).0;
    let header = [0, 1, 8, 0, 6, 4, 0, operation];
    let addresses = [&from[..], &[10, 1, 0, 2], &[0; 6], &[10, 1, 0, 1]].concat();
    [&[0xff; 6], &from[..], &[8, 6], &header, &addresses].concat()
}

/// Neighbour discovery of this ICMPv6 type (RFC 4861), or what is like it, from a host in the east;
/// its checksum is the kernel's to look at.
fn discovery(kind: u8, to: &str) -> Vec<u8> {
    let to: std::net::IpAddr = to.parse().expect("an address");
    from("2001:db8:1::2", to)
        .ttl(255)
        .protocol(58)
        .payload(&[kind, 0, 0, 0, 0, 0, 0, 0])
        .build()
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> std::net::IpAddr {
    std::net::IpAddr::from([a, b, c, d])
}
